"""Waiting for sockets: the selector of an engine, and a pair of sockets by which other threads end the wait."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Final

from pyqd.client.engine.link import Link

WAKES_BYTES: Final = 4096


class SocketPoller:
    """Selector over the sockets of links. Only wake() may be called by several threads at a time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        # The link whose socket is the only one; None if there are several, or none.
        self.only_link: Link | None = None

    def watch(self, sock: socket.socket, link: Link, *, writes: bool, is_new: bool = False) -> None:
        """Wait for a socket that is readable, and with `writes` also for one that is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        (self._selector.register if is_new else self._selector.modify)(sock, events, link)
        self._note_links()

    def unwatch(self, sock: socket.socket) -> None:
        """Forget a socket."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        self._note_links()

    def _note_links(self) -> None:
        keys = (self._selector.get_map() or {}).values()
        links = [key.data for key in keys if key.data is not None]
        self.only_link = links[0] if len(links) == 1 else None

    def select(self, timeout_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Sleep until a socket is ready, wake() is called, or timeout_s is over. The engine's lock is not held."""
        return self._selector.select(timeout_s)

    def handle(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Have the links handle the events that select() has returned."""
        for key, mask in ready:
            if key.data is None:
                with contextlib.suppress(BlockingIOError, OSError):
                    self._wake_read.recv(WAKES_BYTES)
            elif key.data.is_open:
                key.data.ready(bool(mask & selectors.EVENT_READ), bool(mask & selectors.EVENT_WRITE))

    def wake(self) -> None:
        """End the present select(), or the next one."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"w")

    def fileno(self) -> int | None:
        """Return the descriptor that is readable if select() would not sleep; None on Windows and with gevent."""
        fileno: Callable[[], int] | None = getattr(self._selector, "fileno", None)
        return None if fileno is None else fileno()

    def release(self) -> None:
        """Close the descriptors. May be repeated."""
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def disown(self) -> None:
        """In the child of a fork: close this process's copies of all sockets. The parent's stay as they are."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.disown()
        self.release()
