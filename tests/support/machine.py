"""A machine of a reader's own: a network with nothing but loopback, an empty home directory and an empty /var/lib.

Documentation names ports and hosts. In a namespace of its own a test uses them as they are written, beside other tests
that use the same ones, and nothing outside can be reached by mistake.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.needs import skip_outside_ci
from tests.support.readiness import is_readable
from tests.support.server import POLL_S, REPOSITORY

WAIT_S = 20.0
STOP_WAIT_S = 5.0
# Without privileges, a namespace of users comes first.
WAYS = (("--net", "--mount"), ("--user", "--map-root-user", "--net", "--mount"))
# These would lead a reader's commands to the developer's settings, or to another build.
HIDDEN = (
    "PYTHONHOME",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "SPARK_LOCAL_IP",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    # Of the `make test` that may run this: its variables would go to the `make run` of a page.
    "ARGS",
    "MAKEFLAGS",
    "MAKEOVERRIDES",
    "MFLAGS",
)
# Stays until its standard input ends, so the namespace never outlives the test process.
HOLDER = """\
import fcntl, socket, struct, subprocess, sys

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    subprocess.run(["mount", "--bind", source, target], check=True)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
print("ready", flush=True)
sys.stdin.read()
"""


class Machine:
    """Runner of commands in a private namespace.

    directory: holds the directories `home` and `var_lib`, and the output of commands.
    """

    def __init__(self, directory: Path, names: Sequence[str] = ()) -> None:
        """names: host names that lead to loopback. Skips the test if no namespace can be made."""
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.var_lib = directory / "var_lib"
        self.var_lib.mkdir()
        hosts = directory / "hosts"
        hosts.write_text(" ".join(["127.0.0.1", "localhost", os.uname().nodename, *names]) + "\n")
        self.environment: dict[str, str] = {name: value for name, value in os.environ.items() if name not in HIDDEN} | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            # A command that would install something fails at once instead of waiting for a network.
            "PIP_NO_INDEX": "1",
            # Comparing the requirements of all packages takes pip a second of a core. 0: as the option sets it.
            "PIP_NO_WARN_CONFLICTS": "0",
            "GOPROXY": "off",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            self._holder, self.prefix = hold({hosts: "/etc/hosts", self.var_lib: "/var/lib"})
        except OSError as error:
            skip_outside_ci(f"no network namespace can be made here: {error}")

    def start(self, command: Sequence[str], output: Path, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        """Start a command in the home directory, in a process group of its own; `close` ends the group."""
        with output.open("ab") as file:
            process = subprocess.Popen(
                # Entering a namespace leads to its root directory.
                [*self.prefix, "env", "--chdir", str(self.home), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self._started):
            if process.returncode is None:
                end_group(process)
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(WAIT_S)
        self._holder.stdout.close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and the rest of its group: with SIGTERM, then with SIGKILL."""
    os.killpg(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_WAIT_S
    # Without being reaped the process keeps its number, so that the second signal cannot meet another group.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline_s:
            break
        time.sleep(POLL_S)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT_S)


def hold(mounted: Mapping[Path, str]) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Make a namespace. mounted: paths that are visible under other names there.

    Returns: the process that holds it, and the words before a command that run it there. Raises: OSError.
    """
    said = []
    places = [str(place) for pair in mounted.items() for place in pair]
    for flags in WAYS:
        holder = subprocess.Popen(
            ["unshare", *flags, sys.executable, "-c", HOLDER, *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        assert holder.stdout is not None
        assert holder.stderr is not None
        if is_readable(holder.stdout, WAIT_S) and holder.stdout.readline() == b"ready\n":
            holder.stderr.close()
            names = [flag for flag in flags if flag != "--map-root-user"]
            credentials = ["--preserve-credentials"] if "--user" in flags else []
            return holder, ["nsenter", f"--target={holder.pid}", *names, *credentials, "--"]
        holder.kill()
        said.append(holder.communicate()[1].decode(errors="replace").strip())
    raise OSError("; ".join(said))
