"""Messages in the body of POST /mpub, framed as in an MPUB: an int32 size and the bytes of each, big-endian.

Both forms of the body are walked once, in C, and only valid ones are accepted. A body of millions of lines takes tens
of milliseconds, so a framer walks it in slices, and its caller lets the loop run in between.

Source: docs/nsq/http-api.md, "POST /mpub".
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from pyqd.hot.wire.scanner cimport SCAN_BAD_COUNT, SCAN_NEED_MORE, SCAN_READY, Batch, Scan, scan_batch

cdef extern from "endian.h" nogil:
    uint32_t htobe32(uint32_t value)

cdef enum:
    SIZE_BYTES = 4


cdef class Frames:
    """Framed messages. data: holds them from `start` on. count: of messages. words: 8-byte words of the bodies."""

    def __init__(self, bytes data not None, uint64_t start, uint32_t count, uint64_t words):
        self.data = data
        self.start = start
        self.count = count
        self.words = words


cdef struct Lines:
    const char* at                       # of the next line
    const char* end                      # end of the body
    char* out                            # end of the last framed message
    uint64_t line_bytes_max
    uint64_t words
    uint32_t count


cdef bint frame_lines(Lines* lines, const char* until) noexcept:
    """Frame the lines that begin before `until`. Returns: False if a line is too long."""
    cdef const char* stop
    cdef uint64_t size_bytes
    cdef uint32_t size
    while lines.at < until:
        stop = <const char*> memchr(lines.at, c"\n", lines.end - lines.at)
        size_bytes = <uint64_t> ((lines.end if stop == NULL else stop) - lines.at)
        if size_bytes > lines.line_bytes_max:
            return False
        if size_bytes != 0:
            size = htobe32(<uint32_t> size_bytes)
            memcpy(lines.out, &size, SIZE_BYTES)
            memcpy(lines.out + SIZE_BYTES, lines.at, size_bytes)
            lines.out += SIZE_BYTES + size_bytes
            lines.words += (size_bytes + 7) >> 3
            lines.count += 1
        lines.at += size_bytes + 1
    return True


cdef bytes begin_lines(Lines* lines, const char* at, uint64_t body_bytes, uint64_t line_bytes_max):
    """Allocate memory for the framed messages of a body, and set `lines` to its start. Returns: the memory."""
    # A line of one byte takes two bytes in the body and five framed.
    cdef bytes framed = PyBytes_FromStringAndSize(NULL, 3 * <Py_ssize_t> body_bytes + SIZE_BYTES + 1)
    memset(lines, 0, sizeof(Lines))
    lines.at = at
    lines.end = at + body_bytes
    lines.out = PyBytes_AS_STRING(framed)
    lines.line_bytes_max = line_bytes_max
    return framed


cdef Frames lines_framed(const char* at, uint64_t body_bytes, uint64_t line_bytes_max):
    """Frame each non-empty line. Returns Frames, or None if a line is too long."""
    cdef Lines lines
    cdef bytes framed = begin_lines(&lines, at, body_bytes, line_bytes_max)
    if not frame_lines(&lines, lines.end):
        return None
    return Frames(framed, 0, lines.count, lines.words)


@cython.final
cdef class LineFramer:
    """Framer of the lines of a body, in slices. Empty lines are skipped."""

    cdef bytes body
    cdef bytes framed
    cdef Lines lines
    cdef readonly bint failed            # a line is too long
    cdef readonly bint cut               # the long line is the last one, and has no end

    def __init__(self, bytes body not None, uint64_t line_bytes_max):
        self.body = body
        self.framed = begin_lines(&self.lines, PyBytes_AS_STRING(body), <uint64_t> len(body), line_bytes_max)

    def step(self, uint64_t bytes_max):
        """Frame the lines that begin in the next bytes. Returns: whether all lines are framed."""
        cdef uint64_t left_bytes = 0
        if self.lines.at < self.lines.end:
            left_bytes = <uint64_t> (self.lines.end - self.lines.at)
        if not frame_lines(&self.lines, self.lines.at + min(bytes_max, left_bytes)):
            self.failed = True
            self.cut = memchr(self.lines.at, c"\n", self.lines.end - self.lines.at) == NULL
        return self.failed or self.lines.at >= self.lines.end

    @property
    def frames(self):
        """Return the framed messages."""
        assert not self.failed and self.lines.at >= self.lines.end
        return Frames(self.framed, 0, self.lines.count, self.lines.words)


@cython.final
cdef class BinaryFramer:
    """Checker of a binary body, a count and that many messages, in slices. Bytes after the messages are ignored."""

    cdef bytes body
    cdef Batch batch
    cdef uint64_t seen_bytes
    cdef int64_t msg_bytes_max
    cdef int64_t count_max
    cdef Scan scan
    cdef readonly bint cut               # the body ends before its messages do

    def __init__(self, bytes body not None, int64_t msg_bytes_max, int64_t count_max):
        self.body = body
        self.msg_bytes_max = msg_bytes_max
        self.count_max = count_max
        memset(&self.batch, 0, sizeof(Batch))

    def step(self, uint64_t bytes_max):
        """Check the messages that end in the next bytes. Returns: whether all messages are checked."""
        cdef uint64_t size_bytes = <uint64_t> len(self.body)
        self.seen_bytes = min(self.seen_bytes + bytes_max, size_bytes)
        self.scan = scan_batch(
            PyBytes_AS_STRING(self.body), self.seen_bytes, self.msg_bytes_max, self.count_max, 0, &self.batch)
        self.cut = self.scan == SCAN_NEED_MORE and self.seen_bytes == size_bytes
        return self.cut or self.scan != SCAN_NEED_MORE

    @property
    def failed(self):
        """Return whether the body is invalid."""
        return self.scan != SCAN_READY

    @property
    def counts(self):
        """Return whether the body begins with a valid number of messages."""
        return self.scan != SCAN_BAD_COUNT and self.batch.count != 0

    @property
    def frames(self):
        """Return the messages."""
        assert self.scan == SCAN_READY
        return Frames(self.body, SIZE_BYTES, self.batch.count, self.batch.body_words)
