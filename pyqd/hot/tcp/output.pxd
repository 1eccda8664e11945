cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.consumer cimport Consumer, Delivery
from pyqd.hot.net.transport cimport CodecTransport
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.wire.frames cimport FrameType

@cython.final
cdef class ClientOutput(Consumer):
    cdef readonly object hub             # gevent's
    cdef readonly Scheduler scheduler
    cdef readonly ChannelCore channel    # None before SUB
    cdef public object pump_greenlet     # messagePump; None before the magic
    cdef readonly bint gone              # the connection is closed, or about to be
    cdef int fd
    cdef readonly CodecTransport transport    # None: bytes go to the socket unchanged

    # Queued bytes.
    cdef char* base                      # shared scratch, or an own buffer if `owned`
    cdef uint64_t start                  # base[start:end] waits to be sent
    cdef uint64_t end
    cdef uint64_t capacity
    cdef bint owned
    cdef bint broken                     # the peer is gone: queued bytes are dropped
    cdef bint withholding                # nothing may leave: the queue holds an OK that is not durable yet
    cdef uint64_t durable_bytes          # while withholding: base[start:start + durable_bytes] was queued before
    cdef readonly uint64_t sent_bytes
    cdef uint64_t run_end_bytes          # a run of deliveries ends when so much was sent and queued

    # Waits and deadlines, monotonic ns.
    cdef object write_watcher            # created when the socket was full for the first time
    cdef bint pump_idle                  # messagePump waits for a wake
    cdef object drain_waiter             # greenlet that waits until the queue has left; None: there is none
    cdef int64_t draining_since_ns
    cdef bint heartbeat_wanted
    cdef readonly int64_t heartbeat_ns   # interval; 0: disabled
    cdef int64_t heartbeat_due_ns
    cdef int64_t command_ns              # when the last command was complete
    cdef bint executing                  # the IOLoop executes a command that may wait, and does not read

    # Queue.
    cdef char* reserve(self, uint64_t size_bytes) except NULL
    cdef int put(self, FrameType frame_type, const char* data, uint32_t size_bytes) except -1
    cdef int put_oks(self, uint32_t count) except -1
    cdef int spill(self, uint64_t capacity) except -1
    cdef int discard(self) except -1
    cdef int release(self) except -1
    cdef uint64_t owned_bytes(self) noexcept

    # Send.
    cdef int flush(self) except -1
    cdef int flush_or_block(self) except -1
    cdef int send_in_place(self, const char* data, uint64_t size_bytes) except -1
    cdef ssize_t send_through(self, const char* data, uint64_t size_bytes) except -2
    cdef int flush_transport(self) except -1
    cdef int note_broken(self) except -1
    cdef int wait_until_drained(self, greenlet) except -1
    cdef int wake_drain_waiter(self) except -1

    # Withhold answers until a sync.
    cdef int begin_withholding(self) except -1
    cdef int drop_withheld(self) except -1
    cdef int end_withholding(self) except -1

    # messagePump and heartbeats.
    cdef int pump_once(self) except -1
    cdef int wait_writable(self) except -1
    cdef int wake_pump(self) except -1
    cdef int put_large(self, const Delivery* delivery) except -1
    cdef int request_delivery(self) except -1
    cdef int set_heartbeat_timer(self) except -1
