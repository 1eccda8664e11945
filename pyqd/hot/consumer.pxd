# What a channel knows of one subscribed client. Design notes: pyx/consumer.pyx.
from libc.stdint cimport int32_t, int64_t, uint64_t

from pyqd.hot.schedule cimport Scheduled

cdef class Consumer(Scheduled):
    cdef readonly uint64_t number        # never used twice in a process; names the owner of what is in flight
    cdef public int64_t rdy              # ceiling on in_flight
    cdef public int64_t in_flight
    cdef public uint64_t message_count   # sent to this client
    cdef public uint64_t finish_count
    cdef public uint64_t requeue_count
    cdef public int64_t msg_timeout_ns
    cdef public int32_t sample_rate      # 0: everything; else (sample_rate + 1) % are delivered
    cdef bint blocked                    # cannot take anything now: its socket is full, or it is going away
    cdef uint64_t random_state

    cdef inline bint can_take(self) noexcept:
        return self.in_flight < self.rdy and not self.blocked

    cdef bint sampled_out(self) noexcept
    # Take and send up to `quota` messages of the channel. Never switches greenlets.
    cdef int deliver(self, uint64_t quota) except -1
