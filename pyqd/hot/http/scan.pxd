# The forms of an HTTP request that most of them have, recognised without a parser. Design notes: pyx/http/scan.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.wire.scanner cimport Text

cdef enum:
    PLAIN_HEAD_BYTES_MAX = 4096          # of a request line with its headers; a longer one is not plain

cdef enum PlainForm:
    PLAIN_PUB = 0                        # the body is a message
    PLAIN_LINES = 1                      # each line of the body that is not empty is
    PLAIN_BINARY = 2                     # the body is that of an MPUB

cdef struct PlainPublish:
    PlainForm form
    Text topic                           # a valid name; both point into the scanned buffer
    Text body                            # at least one byte; nothing in it was looked at

cdef struct PlainLimits:
    int64_t msg_bytes_max                # of the body of a /pub
    int64_t body_bytes_max               # of that of an /mpub

# Returns the bytes of the request, or 0: it is not plain, or not all of it is there.
cdef int64_t scan_plain_publish(
    const char* at, uint64_t size_bytes, const PlainLimits* limits, PlainPublish* found) noexcept nogil
