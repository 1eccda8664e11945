#!/usr/bin/env python3
"""Restart a broker while clients connect many times a second, and count what they notice.

Connections begin at a fixed rate, from several addresses of loopback. Most are closed as soon as they are established.
One in twenty asks for /ping and waits for the answer. A connection is refused if the system answers it with an error;
it waits if the broker's queue takes it later. Clients that wait are counted, too.
"""

import contextlib
import errno
import http.client
import json
import os
import resource
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyqd.primitives.command_line import CommandParser

# While many connections wait, further ones come from these addresses, as one address has 28,000 ports.
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 18))
WAITING_MAX = 10_000
# A second without a broker that accepts leaves as many connections open as begin in it, and a restart takes some.
FILES_WANTED = 200_000
FILES_OF_OTHERS = 200
REQUEST = b"GET /ping HTTP/1.0\r\n\r\n"
ASKS_EVERY = 20
TICK_S = 0.001
# Ends a connection without leaving its port in TIME_WAIT.
LINGER = struct.pack("ii", 1, 0)
GIVEN_UP_S = 30.0
WAIT_S = 60.0
# From this time on a connection counts as one that has waited.
WAITED_S = 0.1


@dataclass(slots=True)
class Attempt:
    """One connection. asks: it sends a request when it is established."""

    socket: socket.socket
    began_s: float
    asks: bool
    established: bool = False


class Flood:
    """Connections to a port at a rate, at most open_max at a time.

    outcomes: their number by outcome; waits_s: of those that have waited.
    """

    def __init__(self, port: int, rate: int, open_max: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.began = 0
        self._address = ("127.0.0.1", port)
        self._rate = rate
        self._open_max = open_max
        self._poll = select.epoll()
        self._open: dict[int, Attempt] = {}

    def run(self, stopping: threading.Event) -> float:
        """Connect until the event is set, and wait for all that are open. Returns: the attempts per second."""
        began_s = time.monotonic()
        while not stopping.is_set():
            wanted = int((time.monotonic() - began_s) * self._rate)
            # What the machine cannot do in time is not made up for later in one burst.
            free = self._open_max - len(self._open)
            for _ in range(min(wanted - self.began, 4 * int(self._rate * TICK_S) + 1, free)):
                self._begin()
            self._serve(TICK_S)
        lasted_s = time.monotonic() - began_s
        while self._open:
            self._serve(0.1)
            for attempt in [each for each in self._open.values() if time.monotonic() - each.began_s > GIVEN_UP_S]:
                self._end(attempt, "no answer")
        return self.began / lasted_s

    def _begin(self) -> None:
        self.began += 1
        began_s = time.monotonic()
        connection = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        if len(self._open) > WAITING_MAX:
            connection.bind((SOURCES[self.began % len(SOURCES)], 0))
        asks = self.began % ASKS_EVERY == 0
        code = connection.connect_ex(self._address)
        # On loopback most connections are established by now, which a second call tells.
        if code == errno.EINPROGRESS and not asks and connection.connect_ex(self._address) == 0:
            connection.close()
            self.outcomes["established"] += 1
            return
        attempt = Attempt(connection, began_s, asks)
        if code not in (0, errno.EINPROGRESS):
            self._end(attempt, errno.errorcode[code])
            return
        self._open[connection.fileno()] = attempt
        self._poll.register(connection, select.EPOLLOUT)

    def _serve(self, timeout_s: float) -> None:
        for fd, _ in self._poll.poll(timeout_s):
            attempt = self._open[fd]
            if not attempt.established:
                self._establish(attempt)
            else:
                try:
                    answer = attempt.socket.recv(1000)
                except OSError as error:
                    self._end(attempt, f"{errno.errorcode[error.errno or 0]} before the answer")
                else:
                    self._end(attempt, "answered" if answer.endswith(b"OK") else f"answered {answer[:40]!r}")

    def _establish(self, attempt: Attempt) -> None:
        code = attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._end(attempt, errno.errorcode[code])
        elif not attempt.asks:
            self._end(attempt, "established")
        else:
            attempt.established = True
            try:
                attempt.socket.send(REQUEST)
            except OSError as error:
                self._end(attempt, f"{errno.errorcode[error.errno or 0]} before the request")
            else:
                self._poll.modify(attempt.socket, select.EPOLLIN)

    def _end(self, attempt: Attempt, outcome: str) -> None:
        self._open.pop(attempt.socket.fileno(), None)
        attempt.socket.close()
        self.outcomes[outcome] += 1
        waited_s = time.monotonic() - attempt.began_s
        if waited_s >= WAITED_S:
            self.waits_s.append(waited_s)


class Broker:
    """The broker under test, in a directory of its own. pid: of the process that serves."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "pyqd.apps.daemon", f"--data-path={directory}", "--log-level=warn"]
        command += ["--tcp-address=127.0.0.1:0", f"--http-address=127.0.0.1:{self.port}", "--max-http-connections=0"]
        self._process = subprocess.Popen(command)
        self.pid = self._process.pid
        self._until(lambda: self._asked("GET")["pid"] == self.pid)

    def restart(self) -> None:
        """Hand over to a new process. Raises: SystemExit if it does not come up."""
        pid = self._asked("POST")["pid"]
        self._until(lambda: self._asked("GET")["pid"] == pid)
        self.pid = pid
        self._process.poll()

    def stop(self) -> None:
        """Stop the process that serves, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(self.pid)
            os.kill(self.pid, signal.SIGTERM)
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.poll(WAIT_S * 1000)
            os.close(ended)

    def _asked(self, method: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, "/restart")
            return json.loads(connection.getresponse().read())

    def _until(self, condition: Any) -> None:
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if condition():
                    return
            time.sleep(0.02)
        raise SystemExit("the broker does not serve; see its log above")


def main() -> int:
    """Run, and print the figures. Returns: 1 if a connection was refused."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="connections per second (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=5, help="number of restarts (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two (default: %(default)s)")
    given = parser.parse_args()
    stopping = threading.Event()
    failure: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="pyqd-flood-") as directory:
        broker = Broker(Path(directory))
        flood = Flood(broker.port, given.rate, raised_limit() - FILES_OF_OTHERS)

        def restart() -> None:
            try:
                for _ in range(given.restarts):
                    time.sleep(given.pause)
                    broker.restart()
                time.sleep(given.pause)
            except BaseException as error:
                failure.append(error)
            finally:
                stopping.set()

        thread = threading.Thread(target=restart)
        thread.start()
        try:
            per_second = flood.run(stopping)
        finally:
            thread.join()
            broker.stop()
    if failure:
        raise failure[0]
    return report(flood, per_second, given.restarts)


def raised_limit() -> int:
    """Raise the limit of open files, as root beyond the hard one. Returns: the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (max(hard, FILES_WANTED), hard):
        with contextlib.suppress(ValueError, PermissionError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return limit
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def report(flood: Flood, per_second: float, restarts: int) -> int:
    """Print the figures. Returns: 1 if a connection was refused."""
    print(f"{restarts} restarts, {flood.began} connections, {per_second:,.0f} per second")
    for outcome, count in flood.outcomes.most_common():
        print(f"{count:>10} {outcome}")
    if flood.waits_s:
        median_s, longest_s = statistics.median(flood.waits_s), max(flood.waits_s)
        print(f"{len(flood.waits_s)} waited, median {median_s:.2f} s, longest {longest_s:.2f} s")
    print(f"{flood.outcomes['ECONNREFUSED']} refused")
    return 1 if flood.outcomes["ECONNREFUSED"] else 0


if __name__ == "__main__":
    sys.exit(main())
