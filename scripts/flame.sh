#!/usr/bin/env bash
# Record a flame graph of the daemon under load, with native frames: bench/results/flame.svg, and its stacks in flame.txt
# beside it. See docs/profiling.md.
#
# The load is a benchmark, which starts the daemon on free loopback ports and with an empty data directory of its own. In
# place of the daemon it is given a script that lets py-spy watch the process and then becomes the daemon. What the
# daemon does before it opens its first socket is start-up and stays out. py-spy must be allowed to read another process:
# as root, or with kernel.yama.ptrace_scope=0. Of a load that starts several daemons the last one is shown.
#
# FLAME_WORKLOAD  which benchmark (e2e); ".venv/bin/python -m bench list" names them
# FLAME_LOAD      another load: a shell command, which starts the server named in FLAME_TARGET and stops it by SIGTERM
# FLAME_DAEMON    another server to watch: a shell command
# FLAME_BIN       where python and py-spy are (.venv/bin)
# FLAME_RATE      samples per second (250)
# FLAME_OUTPUT    where the picture goes; what the benchmark writes goes to a directory of the same name beside it
# Arguments go to the load: scripts/flame.sh --scale=5 for a longer run, -w pub for another benchmark
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN=${FLAME_BIN:-$PWD/.venv/bin}
OUTPUT=${FLAME_OUTPUT:-bench/results/flame.svg}
DAEMON=${FLAME_DAEMON:-"'$BIN/python' -m pyqd.apps.daemon"}
WRITE_DEADLINE_S=60

fail() {
    printf 'flame: %s\n' "$*" >&2
    exit 1
}

# Asked of a process of our own before the load, which may take minutes.
require_permission() {
    local dumped
    coproc PROBE { exec "$BIN/python" -c 'import time; print(flush=True); time.sleep(60)'; }
    # Both are unset when the process ends.
    local probe=$PROBE_PID output=${PROBE[0]}
    read -r <&"$output" || fail "$BIN/python does not run"
    dumped=$("$BIN/py-spy" dump --native --pid "$probe" 2>&1) || {
        kill "$probe"
        printf '%s\n' "$dumped" >&2
        fail "py-spy cannot read another process here. Where the permission is missing: run this as root, or after" \
            "'sudo sysctl kernel.yama.ptrace_scope=0'; a container needs --cap-add=SYS_PTRACE"
    }
    kill "$probe"
}

count_workloads() {
    local count=0
    for argument in "$@"; do
        if [[ $argument == -w* || $argument == --w* ]]; then
            count=$((count + 1))
        fi
    done
    printf '%s\n' "$count"
}

[[ -x $BIN/python ]] || fail "no python in $BIN: 'make env' makes an environment"
[[ -x $BIN/py-spy ]] || fail "no py-spy in $BIN: '$BIN/python -m pip install py-spy' installs it"
workload=" -w ${FLAME_WORKLOAD:-e2e}"
case $(count_workloads "$@") in
    0) ;;
    1) workload= ;;
    *) [[ -n ${FLAME_LOAD:-} ]] || fail "one benchmark at a time: -w is given more than once" ;;
esac
require_permission

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FLAME_TARGET=$work/pyqd
LOAD=${FLAME_LOAD:-"'$BIN/python' -m bench run --target='$FLAME_TARGET' --results='${OUTPUT%.svg}' --scale=2$workload"}

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
    exec "$BIN/py-spy" record --native --nolineno --format raw --rate ${FLAME_RATE:-250} --pid \$pid --output "$work/\$pid.raw"
) >"$work/py-spy.log" 2>&1 &
echo "\$! $work/\$pid.raw" >"$work/recorder"
exec $DAEMON "\$@"
END
chmod +x "$FLAME_TARGET"

if ! bash -c "$LOAD${*:+ ${*@Q}}"; then
    if [[ -s $work/py-spy.log ]]; then
        cat "$work/py-spy.log" >&2
    fi
    fail "the load failed"
fi
[[ -s $work/recorder ]] || fail "the load has not started $FLAME_TARGET"

# py-spy writes when the daemon has ended. It is no child of this shell, so there is no wait for it.
read -r recorder stacks <"$work/recorder"
for ((tick = 0; tick < WRITE_DEADLINE_S * 10; tick++)); do
    kill -0 "$recorder" 2>/dev/null || break
    sleep 0.1
done
if [[ ! -s $stacks ]]; then
    cat "$work/py-spy.log" >&2
    fail "py-spy has recorded nothing"
fi
"$BIN/python" -m pyqd.debug.flamegraph "$stacks" "$OUTPUT"
printf 'flame: %s\n' "$OUTPUT"
