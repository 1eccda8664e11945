"""What the protocol allows, for all connections alike."""

cimport cython


@cython.final
cdef class Limits:
    """What the protocol allows: sizes in bytes, times in ns."""

    def __init__(self, *, int64_t max_msg_bytes, int64_t max_body_bytes, int64_t max_rdy_count,
                 int64_t max_req_timeout_ns, int64_t max_defer_ns=-1, bint sync_each=False):
        self.max_msg_bytes = max_msg_bytes
        self.max_body_bytes = max_body_bytes
        self.max_rdy_count = max_rdy_count
        self.max_req_timeout_ns = max_req_timeout_ns
        self.max_defer_ns = max_req_timeout_ns if max_defer_ns < 0 else max_defer_ns
        self.sync_each = sync_each
