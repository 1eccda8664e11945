"""`pyq_spark` of a reader's machine: the first command starts as a user's does, a resident process runs the others.

The imports and the JVM of one command take 10 s of CPU time, and a page has a dozen commands. The resident process
calls the same `main` with the arguments of each command and with its standard output and error. Each command still
makes and stops a Spark context of its own, in a JVM that stays.

Differences to a process of a command's own: environment and working directory are those of the machine; settings that
a JVM reads at its start are those of the first resident command; a thread or an exit handler that keeps a process from
ending is noticed in the first command only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.machine import Machine

COMMAND = "pyq_spark"
# An abstract address belongs to a network namespace, and each machine has one.
ADDRESS = "\0pyqd-resident-spark"
REQUEST_BYTES_MAX = 64 << 10
CONNECT_WAIT_S = 60.0
POLL_S = 0.05
# The first command makes the directory. Clients need no packages: with -I and -S they start in a fifth of the time.
SCRIPT = """\
#!/bin/bash
mkdir {first} 2>/dev/null && exec {command} "$@"
exec {python} -I -S {program} ask "$@"
"""


def install(machine: Machine) -> None:
    """Put the command first on the machine's PATH, and start the resident process."""
    directory = machine.directory / "resident"
    directory.mkdir()
    program = Path(__file__).resolve()
    words = {
        "first": directory / "first",
        "command": Path(sys.executable).parent / COMMAND,
        "python": sys.executable,
        "program": program,
    }
    path = directory / COMMAND
    path.write_text(SCRIPT.format_map({name: shlex.quote(str(word)) for name, word in words.items()}))
    path.chmod(0o755)
    log = directory / "log"
    machine.start([sys.executable, "-P", str(program), "serve", str(log)], log)
    machine.environment["PATH"] = os.pathsep.join([str(directory), machine.environment["PATH"]])


def ask(arguments: Sequence[str]) -> int:
    """Have the resident process run a command, with the standard output and error of this one.

    Returns: the exit code. Raises: OSError.
    """
    deadline_s = time.monotonic() + CONNECT_WAIT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        while connection.connect_ex(ADDRESS) != 0:
            if time.monotonic() > deadline_s:
                raise ConnectionError("the resident process does not answer")
            time.sleep(POLL_S)
        socket.send_fds(connection, ["\0".join([os.getcwd(), *arguments]).encode()], [1, 2])
        answer = connection.recv(1)
    if not answer:
        raise ConnectionError("the resident process has ended")
    return answer[0]


def serve(log: Path) -> None:
    """Run the commands of clients, one after the other, for ever. log: standard error of this process and its JVM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(ADDRESS)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            content, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 2)
            directory, *arguments = content.decode().split("\0")
            with connection, open(fds[0], "w") as out, open(fds[1], "w") as error:
                begin = log.stat().st_size
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                    code = run(directory, arguments)
                if code != 0:
                    error.write(log.read_bytes()[begin:].decode(errors="replace"))
                out.flush()
                error.flush()
                connection.send(bytes([code]))


def run(directory: str, arguments: Sequence[str]) -> int:
    """Run one command. Returns: the exit code, as that of a process."""
    import logging
    import traceback

    from pyqd_spark import cli

    try:
        # The JVM's working directory cannot change.
        assert directory == os.getcwd(), f"{COMMAND} runs in {directory}, and the resident process in {os.getcwd()}"
        return cli.main(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        # The handler writes to the standard error of this command.
        logging.getLogger().handlers.clear()


def main() -> int:
    role, *arguments = sys.argv[1:]
    if role == "ask":
        return ask(arguments)
    serve(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
