"""The messages in the body of POST /mpub, as an MPUB has them: for each an int32 of its size and its bytes, big-endian.

Both forms of the body are walked once, in C, and only good ones are taken: where anything is wrong with one, the answer
is None, and the routes, which look at one message after the other, say what it is.

Source: spec of the HTTP API, "POST /mpub".
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from pyqd.hot.scanner cimport SCAN_READY, Batch, scan_batch

cdef extern from "endian.h" nogil:
    uint32_t htobe32(uint32_t value)

cdef enum:
    SIZE_BYTES = 4


cdef class Frames:
    """Messages framed. data: holds them from `start` on. count: of messages. words: 8-byte words of the bodies."""

    def __init__(self, bytes data not None, uint64_t start, uint32_t count, uint64_t words):
        self.data = data
        self.start = start
        self.count = count
        self.words = words


def frames_of_lines(bytes body not None, uint64_t line_bytes_max):
    """Frame each line that is not empty. Returns: Frames, or None where a line is too long."""
    return lines_framed(PyBytes_AS_STRING(body), <uint64_t> len(body), line_bytes_max)


cdef Frames lines_framed(const char* at, uint64_t body_bytes, uint64_t line_bytes_max):
    cdef const char* end = at + body_bytes
    cdef const char* stop
    cdef uint64_t size_bytes, words = 0
    cdef uint32_t size, count = 0
    # A line of one byte takes two in the body and five framed.
    cdef bytes framed = PyBytes_FromStringAndSize(NULL, 3 * <Py_ssize_t> body_bytes + SIZE_BYTES + 1)
    cdef char* out = PyBytes_AS_STRING(framed)
    while at < end:
        stop = <const char*> memchr(at, c"\n", end - at)
        size_bytes = <uint64_t> ((end if stop == NULL else stop) - at)
        if size_bytes > line_bytes_max:
            return None
        if size_bytes != 0:
            size = htobe32(<uint32_t> size_bytes)
            memcpy(out, &size, SIZE_BYTES)
            memcpy(out + SIZE_BYTES, at, size_bytes)
            out += SIZE_BYTES + size_bytes
            words += (size_bytes + 7) >> 3
            count += 1
        at += size_bytes + 1
    return Frames(framed, 0, count, words)


def frames_of_binary(bytes body not None, int64_t msg_bytes_max, int64_t count_max):
    """Check a body of a count and that many messages; what follows is ignored. Returns: Frames, or None."""
    cdef Batch batch
    memset(&batch, 0, sizeof(Batch))
    if scan_batch(body, <uint64_t> len(body), msg_bytes_max, count_max, 0, &batch) != SCAN_READY:
        return None
    return Frames(body, SIZE_BYTES, batch.count, batch.body_words)
