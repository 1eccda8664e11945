# The messagePump of a connection: deliver, flush, heartbeat. Design notes: pyx/tcp/pump.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore, Delivery
from pyqd.hot.primitives.schedule cimport Scheduler
from pyqd.hot.tcp.outbox cimport Outbox

cdef class Pump(Outbox):
    cdef readonly object hub             # gevent's
    cdef Scheduler scheduler
    cdef public ChannelCore channel      # None until SUB
    cdef public object pump_greenlet
    cdef public object io_greenlet
    cdef object write_watcher            # made when the socket was full for the first time
    cdef bint pump_idle                  # the pump waits for a wake
    cdef bint io_draining                # the IOLoop waits until what is queued has left
    cdef bint heartbeat_wanted
    cdef readonly bint gone              # closed, or about to be: nothing more is read or delivered
    cdef public int64_t heartbeat_ns     # 0: disabled
    cdef int64_t heartbeat_due_ns        # monotonic
    cdef int64_t command_ns              # monotonic; when the last command was complete
    cdef int64_t draining_since_ns

    cdef int put_delivery(self, const Delivery* delivery) except -1
    cdef int flush_or_block(self) except -1
    cdef int wake_pump(self) except -1
    cdef int pump_once(self) except -1
    cdef int wait_drained(self) except -1
    cdef int arm(self, int64_t now_ns) except -1
