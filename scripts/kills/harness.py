"""Harness of the loops of kills: start programs, load them, make faults, check what clients saw; report and exit code.

A loop is a class of `Loop` with these four steps. Beside it stand the programs that are killed.
"""

import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.testing import BrokerProcess

HOST = "127.0.0.1"
WAIT_S = 30.0
POLL_S = 0.02
LOG_BYTES_SHOWN = 2000
Option = tuple[str, dict[str, Any]]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Return the first true result of a condition; an error of the network is none. Raises: RuntimeError."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if result := condition():
                return result
        time.sleep(POLL_S)
    raise RuntimeError(f"{what}: not within {seconds:g} s")


def messages_in(stats: dict[str, Any] | None) -> int:
    """Return the number of messages that a topic of /stats and its channels have not finished."""
    channels = stats["channels"] or () if stats else ()
    names = ("depth", "in_flight_count", "deferred_count")
    return sum((each[name] for each in channels for name in names), stats["depth"] if stats else 0)


def found_in(counts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of numbered messages that were found so many times each."""
    lost = [number for number, count in enumerate(counts) if not count]
    return {"lost": len(lost), "first_lost": lost[:10], "duplicates": sum(counts) - (len(counts) - len(lost))}


class Program:
    """A program of Python, one process after the other, with one log."""

    def __init__(self, log_path: Path, *command: str) -> None:
        self.command = [sys.executable, *command]
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, **options: Any) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            options = {"stdout": log, "stderr": log} | options
            self.process = subprocess.Popen([*self.command, *more], **options)
        return self.process

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def stop(self) -> int:
        """End the process by SIGTERM. Returns: its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-LOG_BYTES_SHOWN:]


class Daemon(BrokerProcess):
    """The daemon of this checkout, or another program with its flags."""

    def __init__(self, program: str | None, directory: Path, flags: Sequence[str]) -> None:
        super().__init__(directory, flags if program else (*flags, "--retention-time=0"))
        self._program = program

    def _spawned(self) -> "subprocess.Popen[bytes]":
        if self._program is None:
            return super()._spawned()
        command = [self._program, f"-tcp-address={self.tcp_address}", f"-http-address={self.http_address}"]
        command += [f"-data-path={self.data_path}", *self.flags]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def _wait_ready(self) -> None:
        if self._program is None:
            super()._wait_ready()
        else:
            # The HTTP listener comes last.
            wait_until(lambda: not socket.create_connection((HOST, self.http_port), WAIT_S).close(), self._program)

    def kill_while_starting(self, seconds: float) -> None:
        self._process = self._spawned()
        time.sleep(seconds)
        self.kill()

    def close(self) -> None:
        self.kill()
        super().close()


class Loop(ABC):
    """One run of a loop. given: its options; stack: closes its programs in the end.

    COUNT: name of the option with the number of faults, and its default; None: there are faults until `goes_on` says
    that the load is over. SECONDS: mean time until a fault.
    """

    COUNT: tuple[str, int] | None = ("--kills", 100)
    SECONDS = 0.5
    OPTIONS: tuple[Option, ...] = ()

    def __init__(self, given: argparse.Namespace, directory: Path) -> None:
        self.given, self.directory = given, directory
        self.rng = random.Random(given.seed)
        self.stack = contextlib.ExitStack()
        self.error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    @abstractmethod
    def start(self) -> None:
        """Start the programs and the load."""

    @abstractmethod
    def fault(self, number: int) -> None:
        """Let the load work for a while, and make one fault."""

    @abstractmethod
    def finish(self) -> None:
        """End the load, and wait until all is delivered."""

    @abstractmethod
    def check(self) -> dict[str, Any]:
        """Compare. Returns: the report; `ok` says whether all is as it must be."""

    def goes_on(self, number: int) -> bool:
        """Return whether another fault is to come."""
        return number < self.given.count

    def note(self) -> str:
        """Return a text for the bar."""
        return ""

    def run(self, progress: Progress) -> dict[str, Any]:
        """Take all steps. Returns: the report. Raises: the error of a thread."""
        with self.stack:
            self.start()
            number = 0
            while self.goes_on(number):
                self.fault(number)
                self.raise_error()
                number += 1
                progress.move_to(number, self.note())
            self.finish()
            self.raise_error()
            return self.check()

    def work(self, function: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Run a function in a thread. Its error ends the loop."""

        def guarded() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        while self._threads:
            self._threads.pop().join(WAIT_S)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def broker(self, name: str, *flags: str) -> BrokerProcess:
        """Return a broker that is started, and closed in the end."""
        home = self.directory / name
        home.mkdir()
        broker = BrokerProcess(home, flags)
        self.stack.callback(broker.close)
        broker.start()
        return broker

    def pause(self, share: float = 1.0) -> None:
        """Wait for a random time until a fault."""
        time.sleep(self.rng.uniform(0.0, 2 * share * self.given.interval))


def parse(kind: type[Loop], arguments: list[str]) -> argparse.Namespace:
    module = sys.modules[kind.__module__]
    parser = CommandParser(description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(count=None)
    if kind.COUNT:
        name, count = kind.COUNT
        parser.add_argument(name, dest="count", type=int, default=count, help="number of faults (%(default)s)")
    parser.add_argument("--interval", type=float, default=kind.SECONDS, help="mean seconds until one (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides everything but the timing (%(default)s)")
    parser.add_argument("--directory", type=Path, help="keep data and logs there, instead of in a temporary one")
    for flag, options in kind.OPTIONS:
        parser.add_argument(flag, **options)
    return parser.parse_args(arguments)


def main(kind: type[Loop]) -> int:
    """Run a loop, and print its report as JSON. Returns: 0 if all is as it must be, else 1."""
    given = parse(kind, sys.argv[1:])
    started_s = time.monotonic()
    # Ends the programs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = given.directory or Path(tempfile.mkdtemp(prefix="pyqd-kills-"))
    directory.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"ok": False}
    try:
        with Progress("", given.count or None, "faults", line_s=10.0) as progress:
            report = kind(given, directory).run(progress)
    finally:
        if given.directory is None and report["ok"]:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"data and logs are in {directory}", file=sys.stderr)
    report["seconds"] = round(time.monotonic() - started_s, 1)
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1
