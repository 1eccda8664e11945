"""Admission of connections: limits their number in total and per address, and sends refused peers the reason.

A refused peer gets an answer and LINGER_S to read it: closing at once with unread bytes would reset the connection and
could lose the answer. At most REFUSED_AT_ONCE_MAX refused connections linger. Beyond that the answer is left out, so
that a flood of connections costs next to nothing.
"""

import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import gevent

from pyqd.net.greenlets import spawn
from pyqd.net.slice_queue import READ_EVENT

REFUSED_AT_ONCE_MAX = 256
LINGER_S = 1.0
DROPPED_BYTES = 64 * 1024
UNIX_HOST = ""


class Admission:
    """Counter of connections. limits: returns the limit in total and the limit per address; 0 is no limit.

    refusal: returns why the machine cannot take one more connection; the empty string if it can. told_at_once_max:
    refused connections that stay open at a time to read their answer.

    Unix sockets have no address, so only the total limit applies to them.
    """

    def __init__(
        self,
        limits: Callable[[], tuple[int, int]],
        refusal: Callable[[], str] = str,
        told_at_once_max: int = REFUSED_AT_ONCE_MAX,
    ) -> None:
        self._limits = limits
        self._refusal = refusal
        self._told_at_once_max = min(told_at_once_max, REFUSED_AT_ONCE_MAX)
        self._count_of: Counter[str] = Counter()
        self.count = 0
        self.refused_count = 0
        self._lingering = 0

    def admit(self, remote: str) -> str:
        """Count a connection and return the empty string; return the reason if the connection is refused."""
        count_max, of_address_max = self._limits()
        host = remote.rpartition(":")[0]
        if count_max and self.count >= count_max:
            self.refused_count += 1
            return f"limit of {count_max} connections reached"
        if of_address_max and host != UNIX_HOST and self._count_of[host] >= of_address_max:
            self.refused_count += 1
            return f"limit of {of_address_max} connections from {host} reached"
        reason = self._refusal()
        if reason:
            self.refused_count += 1
            return reason
        self.count += 1
        self._count_of[host] += 1
        return ""

    def leave(self, remote: str) -> None:
        host = remote.rpartition(":")[0]
        assert self._count_of[host] > 0, "each is admitted before it leaves, and leaves once"
        self.count -= 1
        self._count_of[host] -= 1
        if not self._count_of[host]:
            del self._count_of[host]

    def turn_away(self, refused: socket.socket, answer: bytes) -> None:
        """Send an answer and close. answer: small; empty if the peer could not read one. Switches: no."""
        if not answer or self._lingering >= self._told_at_once_max:
            refused.close()
            return
        self._lingering += 1
        spawn(self._linger, refused, answer)

    def _linger(self, refused: socket.socket, answer: bytes) -> None:
        watcher: Any = gevent.get_hub().loop.io(refused.fileno(), READ_EVENT)
        try:
            with contextlib.suppress(OSError, gevent.Timeout), gevent.Timeout(LINGER_S):
                refused.send(answer)
                refused.shutdown(socket.SHUT_WR)
                while True:
                    gevent.get_hub().wait(watcher)
                    if not refused.recv(DROPPED_BYTES):
                        break
        finally:
            watcher.close()
            refused.close()
            self._lingering -= 1


def ip_of(remote: str) -> str:
    """Return the host in a peer's address as `remote_text` of a listener writes it; empty for a unix socket."""
    return remote.rpartition(":")[0].strip("[]")
