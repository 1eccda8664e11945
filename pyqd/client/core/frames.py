"""Decoder of the frames of a connection: compiled code if pyqd is installed with it, else plain Python.

A frame is a tuple, and its first item is its type:

    (RESPONSE, data)
    (ERROR, data)
    (MESSAGE, timestamp_ns, attempts, id, body)

Source: docs/nsq/tcp-protocol.md, "Server to client framing".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyqd.client.errors import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pyqd.fallback.client_frames import FrameSplitter
else:
    try:
        from pyqd.hot.wire.client_frames import FrameSplitter
    except ImportError:  # For a copy of the Python modules without the compiled ones.
        from pyqd.fallback.client_frames import FrameSplitter

RESPONSE, ERROR, MESSAGE = 0, 1, 2
# The sign of life of a broker, which the client answers with NOP.
HEARTBEAT: Final = (RESPONSE, b"_heartbeat_")
FRAME_BYTES_MAX: Final = 1 << 30


class FrameReader:
    """Decoder of the bytes of one connection. frame_bytes_max: no frame is longer."""

    __slots__ = ("feed",)

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        # Returns the frames that are complete now, in order; an incomplete one is kept. Raises: ProtocolError for a
        # malformed frame, and in every call after that; complete frames before it are lost.
        self.feed: Callable[[Buffer], list[tuple[Any, ...]]] = FrameSplitter(frame_bytes_max, ProtocolError).feed
