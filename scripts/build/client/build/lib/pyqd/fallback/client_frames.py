"""Decoder of the frames that a broker sends, in Python. Compiled form: pyqd.hot.wire.client_frames."""

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

RESPONSE, ERROR, MESSAGE = 0, 1, 2
SIZE_BYTES: Final = 4
FRAME_HEADER_BYTES: Final = 8
MESSAGE_HEADER_BYTES: Final = 26

_SIZE = struct.Struct(">i")
_FRAME_HEADER = struct.Struct(">ii")
_MESSAGE_HEADER = struct.Struct(">qH16s")

assert _MESSAGE_HEADER.size == MESSAGE_HEADER_BYTES


class FrameSplitter:
    """Splitter of received bytes into frames. An unfinished frame is kept for the next call.

    A frame in many small pieces costs as much per byte as a whole one: nothing of it is read before it is complete.
    error_type: of the error that a malformed frame raises.
    """

    def __init__(self, frame_bytes_max: int = 1 << 30, error_type: type[Exception] = ValueError) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._error_type = error_type
        self._unfinished = bytearray()
        self._needed_bytes = 0
        self._error: str | None = None

    def feed(self, data: "Buffer") -> list[tuple[Any, ...]]:
        """Return the frames that are complete now: (0 or 1, data) or (2, timestamp_ns, attempts, id, body).

        Raises: error_type for a malformed frame, and in every call after that; complete frames before it are lost.
        """
        if self._error is not None:
            raise self._error_type(self._error)
        whole = bytes(data)
        if self._unfinished:
            self._unfinished += whole
            if len(self._unfinished) < self._needed_bytes:
                return []
            whole = bytes(self._unfinished)
        frames: list[tuple[Any, ...]] = []
        used_bytes = self._split(whole, frames)
        self._unfinished = bytearray(whole[used_bytes:])
        return frames

    def _split(self, data: bytes, frames: list[tuple[Any, ...]]) -> int:
        """Append the whole frames at the front of the data. Returns: their bytes."""
        at, total_bytes = 0, len(data)
        self._needed_bytes = SIZE_BYTES
        while total_bytes - at >= SIZE_BYTES:
            if total_bytes - at < FRAME_HEADER_BYTES:
                self._check(_SIZE.unpack_from(data, at)[0])
                self._needed_bytes = FRAME_HEADER_BYTES
                break
            size, frame_type = _FRAME_HEADER.unpack_from(data, at)
            self._check(size, frame_type)
            end = at + SIZE_BYTES + size
            if end > total_bytes:
                self._needed_bytes = SIZE_BYTES + size
                break
            body_at = at + FRAME_HEADER_BYTES
            if frame_type == MESSAGE:
                header = _MESSAGE_HEADER.unpack_from(data, body_at)
                frames.append((MESSAGE, *header, data[body_at + MESSAGE_HEADER_BYTES : end]))
            else:
                frames.append((frame_type, data[body_at:end]))
            at = end
        return at

    def _check(self, size: int, frame_type: int = RESPONSE) -> None:
        if SIZE_BYTES <= size <= self.frame_bytes_max:
            if frame_type in (RESPONSE, ERROR):
                return
            if frame_type == MESSAGE and size >= SIZE_BYTES + MESSAGE_HEADER_BYTES:
                return
            if frame_type == MESSAGE:
                self._error = f"a message of {size - SIZE_BYTES} bytes, and its header has 26 alone"
            else:
                self._error = f"a frame of the unknown type {frame_type}; is this NSQ's TCP port?"
        else:
            self._error = f"a frame of {size} bytes; is this NSQ's TCP port?"
        self._unfinished = bytearray()
        raise self._error_type(self._error)
