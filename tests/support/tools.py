"""Command-line tools under test: this repository's, and NSQ's originals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.nsq import Client
from tests.support.preloaded import run, spawn
from tests.support.server import REPOSITORY, Daemon, wait_until

RUN_S = 30.0
ORIGINALS = {
    "pyq_tail": "nsq_tail",
    "pyq_stat": "nsq_stat",
    "pyq_to_file": "nsq_to_file",
    "pyq_to_http": "nsq_to_http",
    "pyq_to_nsq": "nsq_to_nsq",
    "to_pyq": "to_nsq",
}


@dataclass(frozen=True)
class Tools:
    """One set of tools. directory: of the originals; None for this repository's."""

    directory: Path | None = None

    @property
    def are_originals(self) -> bool:
        return self.directory is not None

    def name(self, tool: str) -> str:
        """Return the name that a tool of this repository has in this set."""
        return ORIGINALS[tool] if self.are_originals else tool

    def command(self, tool: str) -> list[str]:
        """Return the beginning of the command line of a tool, by its name in this repository."""
        if self.directory is not None:
            return [str(self.directory / ORIGINALS[tool])]
        return [sys.executable, "-m", f"pyqd.tools.{tool}"]


def tools_environment() -> dict[str, str]:
    """Return the environment of tools: the package of this repository, in English, in UTC."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(REPOSITORY)])
    return os.environ | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


@dataclass(frozen=True)
class Result:
    """End of a tool. code: below 0 for a signal."""

    code: int
    out: bytes
    err: str

    def mistake(self) -> str:
        """Return the last line of standard error without date and time."""
        return self.err.strip().rpartition("\n")[2][len("2026/11/23 12:00:00 ") :]


class Running:
    """A tool that runs; its output goes to files, which may be read at any time."""

    def __init__(self, command: Sequence[str], directory: Path, number: int, stdin: int) -> None:
        self.out_path, self.err_path = directory / f"tool-{number}.out", directory / f"tool-{number}.err"
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            fds = {"stdin": stdin, "stdout": out.fileno(), "stderr": err.fileno()}
            self.process = spawn(command, directory, tools_environment(), **fds)

    @property
    def out(self) -> bytes:
        return self.out_path.read_bytes()

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def lines(self) -> list[bytes]:
        """Return the whole lines on standard output, without line ends."""
        return self.out.split(b"\n")[:-1]

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for_lines(self, count: int) -> list[bytes]:
        """Wait for that many lines on standard output, and return all."""
        wait_until(lambda: len(self.lines()) >= count, f"{count} lines", RUN_S)
        return self.lines()

    def wait_for_error(self, text: str) -> None:
        wait_until(lambda: text in self.err, text, RUN_S)

    def wait(self) -> Result:
        if self.process.stdin is not None:
            self.process.stdin.close()
        code = self.process.wait(RUN_S)
        return Result(code, self.out, self.err)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Result:
        self.process.send_signal(number)
        # With its input still open: the end of it is another reason to end.
        self.process.wait(RUN_S)
        return self.wait()


class Start(Protocol):
    """Function that starts a tool, by its name in this repository. has_stdin: give it a pipe, for Running.write()."""

    def __call__(self, tool: str, *arguments: str, has_stdin: bool = False) -> Running: ...


class Run(Protocol):
    """Function that runs a tool to its end."""

    def __call__(self, tool: str, *arguments: str, stdin: bytes = b"") -> Result: ...


@contextmanager
def starting(tools: Tools, directory: Path) -> Iterator[Start]:
    """Give a block a function that starts tools, which are killed after it."""
    started: list[Running] = []

    def start(tool: str, *arguments: str, has_stdin: bool = False) -> Running:
        stdin = subprocess.PIPE if has_stdin else subprocess.DEVNULL
        started.append(Running([*tools.command(tool), *arguments], directory, len(started), stdin))
        return started[-1]

    try:
        yield start
    finally:
        for running in started:
            if running.process.stdin is not None:
                running.process.stdin.close()
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait(RUN_S)


def bodies_of(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """Read that many messages of a topic, and no more than are there; return their bodies in order."""
    with Client(daemon.tcp_address) as client:
        client.sub(topic, "reader", rdy_count=1)
        bodies = []
        for _ in range(count):
            message = client.read_message()
            client.fin(message)
            bodies.append(message.body)
        client.expect_alive()
    return bodies


def run_tool(tools: Tools, tool: str, *arguments: str, stdin: bytes = b"") -> Result:
    command = [*tools.command(tool), *arguments]
    code, out, err = run(command, REPOSITORY, tools_environment(), stdin, RUN_S)
    return Result(code, out, err.decode(errors="replace"))


def finished(broker: Daemon, topic: str, **fields: int) -> None:
    """Wait until all messages of the channel `c` are finished. fields: other counts of the channel."""
    # nsqd makes a channel before it moves the messages of the topic to it.
    counts = broker.topic(topic)
    assert counts is not None, "nothing was published"
    none_left = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": counts["message_count"]}
    broker.wait_for_channel(topic, "c", **{**none_left, **fields})
