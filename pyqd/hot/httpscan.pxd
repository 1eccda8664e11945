# The one form of an HTTP request that most of them have, recognised without a parser. Design notes: pyx/httpscan.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.scanner cimport Text

cdef enum:
    PLAIN_HEAD_BYTES_MAX = 4096          # of a request line with its headers; a longer one is not plain

cdef struct PlainPublish:
    Text topic                           # a valid name; both point into the scanned buffer
    Text body                            # at least one byte

# Returns the bytes of the request, or 0: it is not plain, or not all of it is there.
cdef int64_t scan_plain_publish(
    const char* at, uint64_t size_bytes, int64_t body_bytes_max, PlainPublish* found) noexcept nogil
