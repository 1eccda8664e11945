# What the protocol allows; one object for all connections. Design notes: pyx/tcp/limits.pyx.
from libc.stdint cimport int64_t

cdef class Limits:
    cdef readonly int64_t max_msg_bytes
    cdef readonly int64_t max_body_bytes
    cdef readonly int64_t max_rdy_count
    cdef readonly int64_t max_req_timeout_ns
    cdef readonly int64_t max_defer_ns
    cdef readonly bint sync_each         # an OK leaves when what it answers for is on stable storage
