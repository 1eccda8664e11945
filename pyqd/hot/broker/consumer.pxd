# Channel's view of one subscribed client. Design notes: pyx/broker/consumer.pyx.
from libc.stdint cimport int32_t, int64_t, uint64_t

from pyqd.hot.primitives.schedule cimport Scheduled

# How near a client is; the nearest that can take a message gets it.
cdef enum Locality:
    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    GLOBAL = 2

cdef class Consumer(Scheduled):
    cdef readonly uint64_t number        # unique in a process; names the owner of messages in flight
    cdef public int64_t rdy              # ceiling on in_flight, with unsynced_count
    cdef public int64_t in_flight
    cdef readonly int64_t unsynced_count # finished, and counted until a sync has covered that; see --sync-fin
    cdef bint awaits_sync                # it is in its channel's `unsynced`
    cdef public uint64_t message_count   # sent to this client
    cdef public uint64_t finish_count
    cdef public uint64_t requeue_count
    cdef public int64_t msg_timeout_ns
    cdef public int32_t sample_rate      # 0: everything; else (sample_rate + 1) % are delivered
    cdef public int32_t locality         # a Locality; GLOBAL unless the experiment is on
    cdef bint blocked                    # cannot take anything now: its socket is full, or it is going away
    cdef uint64_t random_state

    cdef inline bint can_take(self) noexcept:
        return self.in_flight + self.unsynced_count < self.rdy and not self.blocked

    cdef bint sampled_out(self) noexcept
    # Take and send up to `quota` messages of the channel. Never switches greenlets.
    cdef int deliver(self, uint64_t quota) except -1

# Returns how many of the nearest consumers that can take something there are; `nearest` becomes their locality.
cdef Py_ssize_t count_ready(list consumers, int32_t* nearest)
