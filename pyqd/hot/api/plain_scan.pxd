from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.wire.scanner cimport Text

cdef enum:
    PLAIN_HEAD_BYTES_MAX = 4096          # of a request line with its headers; a longer one is not plain

cdef enum PlainForm:
    PLAIN_PUB = 0                        # the body is a message
    PLAIN_LINES = 1                      # each non-empty line of the body is a message
    PLAIN_BINARY = 2                     # the body has the form of an MPUB

cdef struct PlainPublish:
    PlainForm form
    Text topic                           # a valid name; both point into the scanned buffer
    Text body                            # at least one byte; not checked
    Text headers                         # with the empty line after them
    Text host                            # the value of the header

cdef struct PlainLimits:
    int64_t msg_bytes_max                # of the body of a /pub
    int64_t body_bytes_max               # of the body of an /mpub

cdef int64_t scan_plain_publish(
    const char* at, uint64_t size_bytes, const PlainLimits* limits, PlainPublish* found) noexcept nogil

cdef Text user_agent_in(const Text* headers) noexcept nogil
