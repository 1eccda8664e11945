# The IOLoop of a connection: receive, scan, execute, answer. Design notes: pyx/tcp/ioloop.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyqd.hot.tcp.publisher cimport Publisher
from pyqd.hot.wire.scanner cimport CommandLine

cdef enum ClientState:
    STATE_INIT = 0
    STATE_SUBSCRIBED = 3
    STATE_CLOSING = 4

cdef class IoLoop(Publisher):
    cdef public int state                # ClientState, as /stats shows it
    cdef char* held                      # own buffer with a command that is not complete; NULL when there is none
    cdef uint64_t held_bytes
    cdef uint64_t held_capacity
    cdef int64_t held_since_ns           # when the client was last waited for and nothing was held
    cdef int64_t connected_ns
    cdef readonly bint refused           # a fatal error was answered: what is queued leaves, nothing more is read
    cdef bint magic_seen
    cdef public bint tls_needed          # until then IDENTIFY is the only command
    cdef object read_watcher
    cdef bint is_waiting                 # for `on_durable`: nothing is read before
    cdef bint is_served                  # the callback has run the pass that the greenlet is woken after
    cdef object pass_error               # what that pass raised; the greenlet ends by it
    cdef readonly uint64_t command_count

    cdef bint is_at_rest(self) noexcept
    cdef object wait_at_rest(self)
    cdef int end_withholding(self, error) except -1
    cdef int serve_once(self) except -1
    cdef int wait_readable(self) except -1
    cdef bint receive_and_run(self) except -1
    cdef int wait_until_drained(self) except -1
    cdef int wait_until_synced(self) except -1
    cdef ssize_t receive(self, char** buffer, uint64_t* size_bytes) except -2
    cdef ssize_t receive_through(self, char* into, uint64_t capacity) except -3
    cdef int keep_queued(self, char* buffer, uint64_t end) except -1
    cdef int run_pass(self, char* buffer, uint64_t size_bytes) except -1
    cdef int64_t step(self, char* at, uint64_t size_bytes) except -1
    cdef int refuse_behind_batches(self, error) except -1
    cdef int64_t step_magic(self, const char* at, uint64_t size_bytes) except -1
    cdef int64_t execute(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1
    cdef int hold(self, const char* at, uint64_t size_bytes) except -1
    cdef int run_slow(self) except -1
    cdef int finish_message(self, const char* id16) except -1
    cdef int requeue_message(self, CommandLine* line) except -1
    cdef int touch_message(self, CommandLine* line) except -1
    cdef int set_ready(self, CommandLine* line) except -1
    cdef int64_t with_body(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
