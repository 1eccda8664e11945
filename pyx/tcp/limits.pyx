"""Limits of the protocol, shared by all connections, and the errors for commands beyond them.

Codes and texts follow nsqd: docs/nsq/tcp-protocol.md, "Commands".
"""

from pyqd.hot.wire.scanner cimport text_of

from pyqd.primitives.errors import ClientError


cdef class ProtocolLimits:
    """Limits of the protocol: sizes in bytes, times in ns."""

    def __init__(self, *, int64_t max_msg_bytes, int64_t max_body_bytes, int64_t max_rdy_count,
                 int64_t max_req_timeout_ns, int64_t max_defer_ns=-1, bint sync_each=False):
        self.max_msg_bytes = max_msg_bytes
        self.max_body_bytes = max_body_bytes
        self.max_rdy_count = max_rdy_count
        self.max_req_timeout_ns = max_req_timeout_ns
        self.max_defer_ns = max_req_timeout_ns if max_defer_ns < 0 else max_defer_ns
        self.sync_each = sync_each


cdef object size_error(CommandLine* line, code, noun, short_noun, int64_t size, int64_t limit):
    name = text_of(&line.name).decode("ascii")
    if size <= 0:
        return ClientError(code, f"{name} invalid {noun} size {size}")
    return ClientError(code, f"{name} {short_noun} too big {size} > {limit}")


cdef object truncation_error(CommandLine* line, code, text):
    name = text_of(&line.name).decode("ascii")
    return ClientError(code, f"{name} {text}")
