#!/usr/bin/env bash
# Record a flame graph of the daemon under load: bench/results/flame.svg, with native frames. See docs/profiling.md.
#
# The load is a benchmark, which starts the daemon on free loopback ports and with an empty data directory of its own. In
# place of the daemon it is given a script that lets py-spy watch the process and then becomes the daemon. What the
# daemon does before it opens its first socket is start-up and stays out. py-spy must be allowed to read another process:
# as root, or with kernel.yama.ptrace_scope=0.
#
# FLAME_WORKLOAD  which benchmark (e2e); "python -m bench list" names them
# FLAME_LOAD      another load: a shell command, which starts the server named in FLAME_TARGET and stops it by SIGTERM
# FLAME_DAEMON    another server to watch: a shell command
# FLAME_BIN       where python and py-spy are (.venv/bin)
# FLAME_RATE      samples per second (250)
# FLAME_OUTPUT    where the picture goes
# Arguments go to the benchmark: scripts/flame.sh --scale=5 for a longer run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN=${FLAME_BIN:-$PWD/.venv/bin}
OUTPUT=${FLAME_OUTPUT:-bench/results/flame.svg}
DAEMON=${FLAME_DAEMON:-"'$BIN/python' -m pyqd.apps.daemon"}
WRITE_DEADLINE_S=60

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FLAME_TARGET=$work/pyqd
LOAD=${FLAME_LOAD:-"'$BIN/python' -m bench run --target='$FLAME_TARGET' --results='$work' --scale=2 -w ${FLAME_WORKLOAD:-e2e}"}

mkdir -p "$(dirname "$OUTPUT")"
rm -f "$OUTPUT"

cat >"$FLAME_TARGET" <<END
#!/usr/bin/env bash
pid=\$\$
(
    until find /proc/\$pid/fd -lname 'socket:*' 2>"$work/find.log" | grep -q .; do
        [[ -d /proc/\$pid ]] || exit 1
        sleep 0.02
    done
    exec "$BIN/py-spy" record --native --nolineno --rate ${FLAME_RATE:-250} --pid \$pid --output "$work/flame.svg"
) >"$work/py-spy.log" 2>&1 &
echo \$! >"$work/py-spy.pid"
exec $DAEMON "\$@"
END
chmod +x "$FLAME_TARGET"

bash -c "$LOAD $*"

# py-spy writes when the daemon has ended. It is no child of this shell, so there is no wait for it.
recorder=$(cat "$work/py-spy.pid")
for ((tick = 0; tick < WRITE_DEADLINE_S * 10; tick++)); do
    kill -0 "$recorder" 2>/dev/null || break
    sleep 0.1
done
if [[ ! -s $work/flame.svg ]]; then
    cat "$work/py-spy.log" >&2
    printf 'flame: py-spy has left no picture\n' >&2
    exit 1
fi
"$BIN/python" -m pyqd.services.flamegraph "$work/flame.svg"
cp "$work/flame.svg" "$OUTPUT"
printf 'flame: %s\n' "$OUTPUT"
