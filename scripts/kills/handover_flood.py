#!/usr/bin/env python3
"""Restart a broker while clients connect many times a second, and count what they notice.

Connections begin at a fixed rate, from several addresses of loopback. Most are closed as soon as they are established.
One in twenty asks for /ping and waits for the answer. A connection is refused if the system answers it with an error;
it waits if the broker's queue takes it later. Clients that wait are counted, too.
"""

import contextlib
import errno
import resource
import select
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness import HOST, WAIT_S, Loop, RestartedBroker, main

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
# From this time on a connection counts as one that has waited.
WAITED_S = 0.1


@dataclass(slots=True)
class Attempt:
    """One connection. asks: it sends a request when it is established."""

    socket: socket.socket
    began_s: float
    asks: bool
    established: bool = False


class HandoverFlood(Loop):
    """The run. outcomes: numbers of connections by outcome; waits_s: of those that have waited."""

    COUNT = ("--restarts", 5)
    SECONDS = 2.0
    OPTIONS = (("--rate", {"type": int, "default": 20_000, "help": "connections per second (%(default)s)"}),)

    def start(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.began, self.per_second = 0, 0.0
        self._poll = select.epoll()
        self._open: dict[int, Attempt] = {}
        self._open_max = raised_limit() - FILES_OF_OTHERS
        self._stopping = threading.Event()
        self.server = RestartedBroker(self.directory / "broker", "--max-http-connections=0")
        self.stack.callback(self.server.stop)
        self.stack.callback(self._stopping.set)
        self._flood = self.work(self._connect_all)

    def fault(self, _number: int) -> None:
        time.sleep(self.given.interval)
        self.server.restart()

    def finish(self) -> None:
        time.sleep(self.given.interval)
        self._stopping.set()
        self._flood.join()

    def check(self) -> dict[str, Any]:
        waits_s = self.waits_s or [0.0]
        return {
            "restarts": self.given.count,
            "connections": self.began,
            "per_second": round(self.per_second),
            "outcomes": dict(self.outcomes.most_common()),
            "waited": len(self.waits_s),
            "median_wait_s": round(statistics.median(waits_s), 2),
            "longest_wait_s": round(max(waits_s), 2),
            "refused": self.outcomes["ECONNREFUSED"],
            "ok": not self.outcomes["ECONNREFUSED"],
        }

    def _connect_all(self) -> None:
        """Connect until the end, and wait for all connections that are open."""
        began_s = time.monotonic()
        while not self._stopping.is_set():
            wanted = int((time.monotonic() - began_s) * self.given.rate)
            # What the machine cannot do in time is not made up for later in one burst.
            free = self._open_max - len(self._open)
            for _ in range(min(wanted - self.began, 4 * int(self.given.rate * TICK_S) + 1, free)):
                self._begin()
            self._serve(TICK_S)
        self.per_second = self.began / (time.monotonic() - began_s)
        while self._open:
            self._serve(0.1)
            for attempt in [each for each in self._open.values() if time.monotonic() - each.began_s > WAIT_S]:
                self._end(attempt, "no answer")

    def _begin(self) -> None:
        self.began += 1
        attempt = Attempt(
            socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK),
            time.monotonic(),
            self.began % ASKS_EVERY == 0,
        )
        connection = attempt.socket
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        if len(self._open) > WAITING_MAX:
            connection.bind((SOURCES[self.began % len(SOURCES)], 0))
        address = (HOST, self.server.http_port)
        code = connection.connect_ex(address)
        # On loopback most connections are established by now, which a second call tells.
        if code == errno.EINPROGRESS and not attempt.asks and connection.connect_ex(address) == 0:
            self._end(attempt, "established")
        elif code not in (0, errno.EINPROGRESS):
            self._end(attempt, errno.errorcode[code])
        else:
            self._open[connection.fileno()] = attempt
            self._poll.register(connection, select.EPOLLOUT)

    def _serve(self, timeout_s: float) -> None:
        for fd, _ in self._poll.poll(timeout_s):
            attempt = self._open[fd]
            try:
                self._go_on(attempt)
            except OSError as error:
                when = "answer" if attempt.established else "request"
                self._end(attempt, f"{errno.errorcode[error.errno or 0]} before the {when}")

    def _go_on(self, attempt: Attempt) -> None:
        """Take the next step of a connection that is ready."""
        if attempt.established:
            answer = attempt.socket.recv(1000)
            self._end(attempt, "answered" if answer.endswith(b"OK") else f"answered {answer[:40]!r}")
        elif code := attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(attempt, errno.errorcode[code])
        elif not attempt.asks:
            self._end(attempt, "established")
        else:
            attempt.socket.send(REQUEST)
            attempt.established = True
            self._poll.modify(attempt.socket, select.EPOLLIN)

    def _end(self, attempt: Attempt, outcome: str) -> None:
        self._open.pop(attempt.socket.fileno(), None)
        attempt.socket.close()
        self.outcomes[outcome] += 1
        waited_s = time.monotonic() - attempt.began_s
        if waited_s >= WAITED_S:
            self.waits_s.append(waited_s)


def raised_limit() -> int:
    """Raise the limit of open files, as root beyond the hard one. Returns: the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (max(hard, FILES_WANTED), hard):
        with contextlib.suppress(ValueError, PermissionError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return limit
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


if __name__ == "__main__":
    sys.exit(main(HandoverFlood))
