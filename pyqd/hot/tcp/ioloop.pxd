# Input of a client's connection: receive, scan, execute, answer. Design notes: pyx/tcp/ioloop.pyx.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.net.transport cimport Transport
from pyqd.hot.tcp.output cimport ClientOutput
from pyqd.hot.tcp.publisher cimport ProtocolLimits, Publisher
from pyqd.hot.wire.scanner cimport CommandLine

cdef enum Pending:
    # Reason for which the pass stopped, and the work of the greenlet before the next pass.
    PENDING_NOTHING = 0
    PENDING_COMMAND = 1                  # execute a command of the Python half
    PENDING_RENEWAL = 2                  # renew the client's permissions, then execute the command again
    PENDING_STORE = 3                    # wait until queued messages are stored, then answer them
    PENDING_TURN = 4                     # let the loop serve others, then execute the rest of the pass

cdef enum Stage:
    # AWAITS_MAGIC -> READING; from there and back: AWAITS_SYNC, PASS_DONE, or both in this order.
    AWAITS_MAGIC = 0
    READING = 1
    AWAITS_SYNC = 2                      # `on_durable` will be called; nothing is read before
    PASS_DONE = 3                        # a callback ran a pass, or its error is stored: the greenlet does the rest

cdef enum Input:
    # Only goes up.
    INPUT_OPEN = 0
    INPUT_ENDED = 1                      # the peer sends nothing more
    INPUT_REFUSED = 2                    # a fatal error was answered: the answers leave, nothing more is read

@cython.final
cdef class IoLoop:
    cdef object client                   # Python half of the connection; None after its end
    cdef object hub                      # gevent's
    cdef ClientOutput output
    cdef Publisher publisher
    cdef ProtocolLimits limits
    cdef public object greenlet          # runs `io_loop`
    cdef public int state                # a ClientState
    cdef public bint tls_needed          # IDENTIFY is the only command before TLS
    cdef Input input
    cdef readonly uint64_t command_count # the magic counts as one

    # Received bytes.
    cdef int fd
    cdef Transport transport             # None: bytes come from the socket unchanged
    cdef char* partial                   # own buffer with an incomplete command; NULL: there is none
    cdef uint64_t partial_bytes
    cdef uint64_t partial_capacity
    cdef int64_t partial_since_ns        # when the wait for the client began; nothing was received before
    cdef int64_t connected_ns

    # The current pass.
    cdef int until_look                  # commands before the next look at the clock; 0: it comes behind this one
    cdef int64_t pass_end_ns             # monotonic; 0: neither a look nor a slow command yet

    # Waits.
    cdef object read_watcher
    cdef Stage stage
    cdef object pass_error               # raised by the pass of a callback; it ends the greenlet
    cdef Pending pending
    cdef tuple pending_command           # (name, parameters, body)

    # The loop.
    cdef int serve_once(self) except -1
    cdef bint is_at_rest(self) noexcept
    cdef bint is_served(self) noexcept
    cdef int wait_readable(self) except -1
    cdef int wait_until_drained(self) except -1
    cdef int wait_until_synced(self) except -1
    cdef int notify_when_durable(self) except -1
    cdef int end_withholding(self, error) except -1
    cdef int run_pending(self) except -1
    cdef int wait_stored(self) except -1

    # Receive.
    cdef bint receive_and_run(self) except -1
    cdef ssize_t receive(self, char** buffer, uint64_t* size_bytes) except -2
    cdef ssize_t receive_through(self, char* into, uint64_t capacity) except -3
    cdef int grow_partial(self, uint64_t capacity) except -1
    cdef int save_partial(self, const char* at, uint64_t size_bytes) except -1
    cdef int save_queued(self, char* buffer, uint64_t end) except -1

    # Execute.
    cdef int run_pass(self, char* buffer, uint64_t size_bytes) except -1
    cdef int note_commands(self) except -1
    cdef int note_slow(self) noexcept
    cdef int note_more(self, uint32_t count) noexcept
    cdef bint is_over_time(self) noexcept
    cdef int64_t step(self, char* at, uint64_t size_bytes) except -1
    cdef int64_t finish_run(self, const char* at, uint64_t size_bytes) except -1
    cdef int64_t step_magic(self, const char* at, uint64_t size_bytes) except -1
    cdef int64_t execute(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1
    cdef int64_t execute_other(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1
    cdef int set_pending(self, Pending pending, CommandLine* line, body) except -1
    cdef int64_t with_body(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
    cdef int finish_message(self, const char* id16) except -1
    cdef int finish_refused(self, uint64_t guid, message_id, int answer) except -1
    cdef int finish_with_growth(self, uint64_t guid, message_id) except -1
    cdef int requeue_message(self, CommandLine* line) except -1
    cdef int touch_message(self, CommandLine* line) except -1
    cdef int set_ready(self, CommandLine* line) except -1
    cdef int require_subscribed(self, name) except -1

    # Refuse.
    cdef int refuse(self, error) except -1
    cdef int refuse_after_batches(self, error) except -1
    cdef int refuse_for_storage(self, name, message_id, error) except -1
    cdef int refuse_answer(self, name, message_id, int answer) except -1
