"""Shedding of connections: if all buffers together exceed --max-buffer-bytes, the connections with the largest are
closed.

A buffer belongs to a connection whose client has sent half a command or request, or does not read its answers. The
largest connections are closed until an eighth of the limit is free, so that the next pass over all connections is some
time away. A client loses no more than with any broken connection.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pyqd.hot.net import buffers

logger = logging.getLogger(__name__)


class Shedder:
    """Watcher of the buffers of all connections on the calling thread's hub.

    limit_bytes: 0 is no limit. sources: return the connections. A connection has `buffer_bytes`, the memory of its own
    buffers; `gone`, true once it is being closed; and `close_because(reason)`, which closes it at once.
    """

    def __init__(self, hub: Any, limit_bytes: int, *sources: Callable[[], Iterable[Any]]) -> None:
        self.limit_bytes = limit_bytes
        self.shed_count = 0
        self.sources = sources
        buffers.watch(limit_bytes, lambda: hub.loop.run_callback(self.shed))

    def shed(self) -> None:
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
