"""Reader that follows a page of the manual: every block in its order, unchanged, on a machine of its own.

Nothing in a block is replaced. Shell blocks share one bash, which ends at the first command that fails; blocks of
Python share one interpreter. A broker that a page starts in the foreground gets a terminal of its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.machine import Machine
from tests.support.pages import SAMPLES, SHELLS, Block, starts_broker
from tests.support.readiness import is_readable
from tests.support.server import POLL_S

BLOCK_WAIT_S = 200.0
PING = "http://127.0.0.1:4151/ping"
LOWEST_FD = 10
# Both programs read the name of a file with a block and the name of its output, then report the end of the block.
# Standard input and the pipe are not for the commands of a block.
BASH = """\
set -euo pipefail
while read -r block output <&4; do
    exec >"$output" 2>&1
    . "$block" </dev/null 3>&- 4<&-
    echo >&3
done
"""
INTERPRETER = """\
import os
with open(4) as steps:
    names = {"__name__": "__main__"}
    for step in steps:
        block, output = step.split()
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        exec(compile(open(block).read(), block, "exec"), names)
        print(end="", flush=True)
        os.write(3, b"\\n")
"""


def high_pipe() -> tuple[int, int]:
    """Return a pipe whose descriptor numbers the programs above do not use."""
    low = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD) for fd in low]
    for fd in low:
        os.close(fd)
    return high[0], high[1]


class Terminal:
    """One program that carries out blocks one after the other, and so keeps variables from block to block."""

    def __init__(self, machine: Machine, command: Sequence[str]) -> None:
        read_fd, self._steps_fd = high_pipe()
        self._done_fd, write_fd = high_pipe()
        wrapper = f'exec 3>&{write_fd} 4<&{read_fd} {write_fd}>&- {read_fd}<&-; exec "$@"'
        self._said = machine.directory / f"terminal-{write_fd}"
        self._process = machine.start(
            ["bash", "-c", wrapper, "bash", *command], self._said, pass_fds=(read_fd, write_fd)
        )
        os.close(read_fd)
        os.close(write_fd)

    def carry_out(self, path: Path, output: Path, what: str, wait_s: float) -> str:
        """Return the output of the block. Raises: AssertionError with the output if it fails or takes too long."""
        output.touch()
        os.write(self._steps_fd, f"{path} {output}\n".encode())
        readable = is_readable(self._done_fd, wait_s)
        printed = output.read_text(errors="replace") + self._said.read_text(errors="replace")
        assert readable, f"{what} takes more than {wait_s} s\n{printed}"
        if not os.read(self._done_fd, 1):
            raise AssertionError(f"{what} failed\n{printed}")
        return printed

    def close(self) -> None:
        os.close(self._steps_fd)
        os.close(self._done_fd)


class Reader:
    """Follower of blocks on a machine; `printed` is the output of the last one."""

    def __init__(self, machine: Machine, page: Path, wait_s: float = BLOCK_WAIT_S) -> None:
        self.machine = machine
        self.page = page
        self.wait_s = wait_s
        self.printed = ""
        self._terminals: dict[str, Terminal] = {}
        self._broker: subprocess.Popen[bytes] | None = None

    def follow(self, block: Block) -> None:
        if block.saved_as:
            path = self.machine.home / block.saved_as
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            for command in block.commands():
                self.run(command, block)
        elif block.language in SHELLS:
            self.printed = self._carry_out("bash", ["bash", "-c", BASH], block.text, block)
        elif block.language == "python":
            self.printed = self._carry_out("python", [sys.executable, "-c", INTERPRETER], block.text, block)
        elif block.promised:
            assert_promised(block, self.printed, self.page)
        else:
            assert block.language in SAMPLES, f"{self.what(block)}: nothing runs a block of {block.language}"

    def run(self, command: str, block: Block) -> None:
        if starts_broker(command):
            self.start_broker(command)
        else:
            self.printed = self._carry_out("bash", ["bash", "-c", BASH], command + "\n", block)

    def start_broker(self, command: str) -> None:
        """Start a broker in a terminal of its own and wait until it answers."""
        assert self._broker is None, "the page starts a second broker"
        log = self.machine.directory / "broker.log"
        self._broker = self.open_terminal(command, log)
        deadline_s = time.monotonic() + self.wait_s
        while self.machine.start(["curl", "-sf", PING], self.machine.directory / "ping").wait(self.wait_s) != 0:
            assert self._broker.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline_s, log.read_text(errors="replace")
            time.sleep(POLL_S)

    def open_terminal(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a permanent command in a terminal of its own, with its output in a file."""
        return self.machine.start(["bash", "-c", f"exec {command}"], log)

    def what(self, block: Block) -> str:
        return f"{self.page.name}, line {block.line}"

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()
        self._terminals.clear()

    def _carry_out(self, name: str, command: Sequence[str], text: str, block: Block) -> str:
        if name not in self._terminals:
            self._terminals[name] = Terminal(self.machine, command)
        number = len(list(self.machine.directory.glob("block-*")))
        path = self.machine.directory / f"block-{number}"
        path.write_text(text)
        output = self.machine.directory / f"output-{number}"
        return self._terminals[name].carry_out(path, output, self.what(block), self.wait_s)


def assert_promised(block: Block, printed: str, page: Path) -> None:
    """Assert that output contains the text that a page promises; white space is free, and an ellipsis stands for
    anything.
    """
    pattern = ".*?".join(re.escape("".join(part.split())) for part in block.text.split("…"))
    found = re.search(pattern, "".join(printed.split()), re.DOTALL)
    if not found:
        # No assert statement: pytest may rewrite its text.
        raise AssertionError(f"{page.name}, line {block.line}: promised\n{block.text}\nbut printed\n{printed}")
