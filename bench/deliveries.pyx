"""Parser of deliveries and builder of FINs, for consumers behind Python's TLS and compression libraries.

One call handles a buffer of many frames, without a Python object per message. The consumers of a load share the tally.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pyqd.hot.tools.tally cimport Tally, tally_add, tally_close, tally_open
from pyqd.hot.tools.wire cimport (
    COUNTER_BYTES, FIN_BYTES, FRAME_HEADER_BYTES, FRAME_MESSAGE, FRAME_RESPONSE, MESSAGE_HEADER_BYTES,
    MESSAGE_ID_OFFSET, get_u32, get_u64, put_fin,
)

cdef enum:
    OUTPUT_BYTES = 1048576
    CONTROL_BYTES = 64


class DeliveryError(Exception):
    """An error frame, or bytes that are not a frame; the text says which."""


cdef class Deliveries:
    """Tally of the counters 0 .. expected - 1."""

    cdef Tally tally

    def __cinit__(self, uint64_t expected):
        if tally_open(&self.tally, expected) < 0:
            raise MemoryError

    def __dealloc__(self):
        tally_close(&self.tally)

    @property
    def unique(self):
        """Return the number of received counters."""
        return self.tally.unique

    @property
    def duplicates(self):
        """Return the number of repeated counters."""
        return self.tally.duplicates

    @property
    def foreign(self):
        """Return the number of counters that were never published."""
        return self.tally.foreign

    @property
    def complete(self):
        """True if all messages have come."""
        return self.tally.unique == self.tally.expected


cdef class Reader:
    """The frames of one consumer."""

    cdef Deliveries deliveries
    cdef bytearray torn
    cdef char* output
    cdef readonly bint finished            # CLOSE_WAIT has come

    def __cinit__(self, Deliveries deliveries not None):
        self.deliveries = deliveries
        self.torn = bytearray()
        self.output = <char*>malloc(OUTPUT_BYTES + CONTROL_BYTES)
        if self.output == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.output)

    def feed(self, bytes data not None):
        """Parse bytes of the decoded stream. Returns: the bytes to answer. Raises: DeliveryError."""
        cdef const char* position = data
        cdef const char* end = position + len(data)
        cdef uint64_t size
        cdef uint32_t output_end = 0
        if self.torn:
            self.torn += data
            position = PyByteArray_AS_STRING(self.torn)
            end = position + len(self.torn)
        cdef const char* begin = position
        while end - position >= FRAME_HEADER_BYTES:
            size = 4 + <uint64_t>get_u32(position)
            if <uint64_t>(end - position) < size:
                break
            if output_end > OUTPUT_BYTES - FIN_BYTES:
                raise DeliveryError("too many frames at once")
            output_end += self.take(position + 4, size - 4, self.output + output_end)
            position += size
        if self.torn:
            del self.torn[:position - begin]
        elif position < end:
            self.torn += data[position - begin:]
        return PyBytes_FromStringAndSize(self.output, output_end)

    cdef uint32_t take(self, const char* frame, uint64_t size, char* answer) except? 0:
        """Parse one frame. Returns: the bytes of its answer, which is written to `answer`."""
        cdef const char* body = frame + 4 + MESSAGE_HEADER_BYTES
        cdef uint32_t kind = get_u32(frame)
        if kind == FRAME_MESSAGE and size >= 4 + MESSAGE_HEADER_BYTES + COUNTER_BYTES:
            tally_add(&self.deliveries.tally, get_u64(body))
            return put_fin(answer, frame + 4 + MESSAGE_ID_OFFSET)
        if kind == FRAME_RESPONSE and size == 15 and memcmp(frame + 4, b"_heartbeat_", 11) == 0:
            memcpy(answer, b"NOP\n", 4)
            return 4
        if kind == FRAME_RESPONSE and size == 14 and memcmp(frame + 4, b"CLOSE_WAIT", 10) == 0:
            self.finished = True
            return 0
        raise DeliveryError(f"frame type {kind}: {frame[4:size].decode('utf-8', 'replace')}")
