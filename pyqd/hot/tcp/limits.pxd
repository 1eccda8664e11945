# Limits of the protocol, and the errors for commands beyond them. Design notes: pyx/tcp/limits.pyx.
cimport cython
from libc.stdint cimport int64_t

from pyqd.hot.wire.scanner cimport CommandLine

@cython.final
cdef class ProtocolLimits:
    cdef readonly int64_t max_msg_bytes
    cdef readonly int64_t max_body_bytes
    cdef readonly int64_t max_rdy_count
    cdef readonly int64_t max_req_timeout_ns
    cdef readonly int64_t max_defer_ns
    cdef readonly bint sync_each         # an OK leaves when its messages are on stable storage

# Return the ClientError for a size that is not positive or exceeds its limit.
cdef object size_error(CommandLine* line, code, noun, short_noun, int64_t size, int64_t limit)
# Return the ClientError for a command whose body ends with the stream.
cdef object truncation_error(CommandLine* line, code, text)
