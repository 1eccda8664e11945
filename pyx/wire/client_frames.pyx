"""Decoder of the frames that a broker sends, for clients. Plain form: pyqd/fallback/client_frames.py.

    | size: int32 | type: int32 | data |                    size counts the type and the data
    message data: | timestamp: int64 ns | attempts: uint16 | id: 16 hex digits | body |

A chunk without an unfinished frame before it is decoded in place. Otherwise it is appended to the unfinished frame, and
nothing of it is read before that frame is complete: a frame in many small pieces costs as much per byte as a whole one.

Source: docs/nsq/tcp-protocol.md, "Server to client framing".
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t

from pyqd.hot.wire.frames cimport (
    FRAME_ERROR, FRAME_HEADER_BYTES, FRAME_MESSAGE, FRAME_RESPONSE, MESSAGE_HEADER_BYTES,
)
from pyqd.hot.wire.scanner cimport read_be32, read_be64

cdef enum:
    SIZE_BYTES = 4
    ID_BYTES = 16


cdef extern from *:
    """
    static inline uint32_t pyqd_read_be16(const char* at) {
        return (uint32_t) (unsigned char) at[0] << 8 | (unsigned char) at[1];
    }
    """
    uint32_t read_be16 "pyqd_read_be16" (const char* at) noexcept nogil


cdef tuple message_of(const char* at, int64_t data_bytes):
    """Return the tuple of a message. at: data of its frame, of data_bytes bytes."""
    return (
        <int> FRAME_MESSAGE,
        read_be64(at),
        read_be16(at + 8),
        PyBytes_FromStringAndSize(at + 10, ID_BYTES),
        PyBytes_FromStringAndSize(at + MESSAGE_HEADER_BYTES, data_bytes - MESSAGE_HEADER_BYTES),
    )


@cython.final
cdef class FrameSplitter:
    """Splitter of received bytes into frames. An unfinished frame is kept for the next call."""

    cdef readonly int64_t frame_bytes_max
    cdef object error_type               # of the error that a malformed frame raises
    cdef bytearray unfinished
    cdef int64_t needed_bytes            # of `unfinished`, before it is worth another look
    cdef str error                       # first malformed frame; nothing is decoded after it

    def __cinit__(self, int64_t frame_bytes_max=1 << 30, error_type=ValueError):
        self.frame_bytes_max = frame_bytes_max
        self.error_type = error_type
        self.unfinished = bytearray()
        self.needed_bytes = 0

    def feed(self, data):
        """Return the frames that are complete now: (0 or 1, data) or (2, timestamp_ns, attempts, id, body).

        Raises: error_type for a malformed frame, and in every call after that; complete frames before it are lost.
        """
        cdef list frames = []
        cdef int64_t used_bytes
        if self.error is not None:
            raise self.error_type(self.error)
        if not self.unfinished:
            used_bytes = self.split(data, frames)
            if used_bytes < memoryview(data).nbytes:
                self.unfinished += memoryview(data).cast("B")[used_bytes:]
            return frames
        self.unfinished += data
        if len(self.unfinished) >= self.needed_bytes:
            used_bytes = self.split(self.unfinished, frames)
            del self.unfinished[:used_bytes]
        return frames

    cdef int64_t split(self, data, list frames) except -1:
        """Append the whole frames at the front of the data. Returns: their bytes."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.split_bytes(<const char*> view.buf, view.len, frames)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t split_bytes(self, const char* start, int64_t total_bytes, list frames) except -1:
        cdef int64_t at = 0, size_bytes
        cdef int frame_type
        self.needed_bytes = SIZE_BYTES
        while total_bytes - at >= SIZE_BYTES:
            size_bytes = read_be32(start + at)
            if size_bytes < SIZE_BYTES or size_bytes > self.frame_bytes_max:
                self.fail(f"a frame of {size_bytes} bytes; is this NSQ's TCP port?")
            if total_bytes - at < FRAME_HEADER_BYTES:
                self.needed_bytes = FRAME_HEADER_BYTES
                break
            frame_type = read_be32(start + at + SIZE_BYTES)
            if frame_type == FRAME_MESSAGE:
                if size_bytes < SIZE_BYTES + MESSAGE_HEADER_BYTES:
                    self.fail(f"a message of {size_bytes - SIZE_BYTES} bytes, and its header has 26 alone")
            elif frame_type != FRAME_RESPONSE and frame_type != FRAME_ERROR:
                self.fail(f"a frame of the unknown type {frame_type}; is this NSQ's TCP port?")
            if total_bytes - at < SIZE_BYTES + size_bytes:
                self.needed_bytes = SIZE_BYTES + size_bytes
                break
            if frame_type == FRAME_MESSAGE:
                frames.append(message_of(start + at + FRAME_HEADER_BYTES, size_bytes - SIZE_BYTES))
            else:
                frames.append((frame_type, PyBytes_FromStringAndSize(
                    start + at + FRAME_HEADER_BYTES, size_bytes - SIZE_BYTES)))
            at += SIZE_BYTES + size_bytes
        return at

    cdef int fail(self, str text) except -1:
        self.error = text
        self.unfinished = bytearray()
        raise self.error_type(text)
