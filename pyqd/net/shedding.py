"""What happens when the buffers of all connections take more memory than --max-buffer-bytes: the largest are closed.

A buffer belongs to a connection whose client sends half a command or request, or does not read what it is sent. The
connection that holds the most is closed, then the next, until an eighth of the limit is free: so it takes a while until
it is looked at them all again. A client loses no more by it than by any broken connection.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyqd.hot.net import buffers

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection."""

    @property
    def gone(self) -> bool:
        """Whether it is being closed already."""

    @property
    def buffer_bytes(self) -> int:
        """The memory that its own buffers take."""

    def close_because(self, reason: str) -> None:
        """Close it at once. Switches: no."""


class Shedder:
    """Watches the buffers of the connections on the hub of the calling thread. limit_bytes: 0 is no limit."""

    def __init__(self, hub: Any, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.shed_count = 0
        self.sources: list[Callable[[], Iterable[Holder]]] = []
        buffers.watch(limit_bytes, lambda: hub.loop.run_callback(self.shed))

    def shed(self) -> None:
        """Close the connections that hold the most, until the others are below the limit."""
        holders = [(holder.buffer_bytes, holder) for source in self.sources for holder in source() if not holder.gone]
        held_bytes = sum(size_bytes for size_bytes, _ in holders)
        if held_bytes > self.limit_bytes:
            holders.sort(key=lambda pair: pair[0], reverse=True)
            for size_bytes, holder in holders:
                if held_bytes <= self.limit_bytes - self.limit_bytes // 8:
                    break
                holder.close_because(f"buffers take more than {self.limit_bytes} bytes, its own {size_bytes}")
                held_bytes -= size_bytes
                self.shed_count += 1
        buffers.arm()
