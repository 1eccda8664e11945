from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t

from pyqd.hot.broker.trace cimport TraceClient
from pyqd.hot.primitives.schedule cimport Scheduled
from pyqd.hot.wire.record cimport Record

# Distance of a client from the daemon; the nearest client that can take a message gets it.
cdef enum Locality:
    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    GLOBAL = 2

cdef struct Delivery:
    const Record* record                 # readable until the next greenlet switch
    uint16_t attempts                    # this delivery included

cdef class Consumer(Scheduled):
    cdef readonly uint64_t number        # unique in the process; names the owner of a message in flight
    cdef public object client            # Python half of the connection, with stats() and close(); None after its end
    cdef public int64_t rdy              # ceiling on in_flight + unsynced_count
    cdef public int64_t in_flight
    cdef readonly int64_t unsynced_count # FINs that no sync covers yet; 0 without --sync-fin
    cdef bint awaits_sync                # listed in its channel's `unsynced`
    cdef public uint64_t message_count   # messages sent to this client
    cdef public uint64_t finish_count
    cdef public uint64_t requeue_count
    cdef public int64_t msg_timeout_ns
    cdef public int32_t sample_rate      # 0: all messages; else (sample_rate + 1) % of them
    cdef public int32_t locality         # a Locality; GLOBAL unless the topology experiment is on
    cdef bint blocked                    # takes nothing now: its socket is full, or its answers wait for a sync
    cdef uint64_t random_state
    cdef int64_t acted_ns                # Unix, of the pass whose commands are executed; 0: unknown
    cdef public TraceClient traced       # the client in trace events; None: not needed yet

    cdef inline bint can_take(self) noexcept:
        return self.in_flight + self.unsynced_count < self.rdy and not self.blocked

    cdef bint sampled_out(self) noexcept
    cdef TraceClient traced_client(self)
    # A run of deliveries, which never switches greenlets: begin, messages one by one, and the end, or `fail_run`.
    cdef bint begin_run(self) except -1
    cdef bint put_delivery(self, const Delivery* delivery) except -1
    cdef int end_run(self) except -1
    cdef int fail_run(self, error) except -1

# Count the nearest consumers that can take a message; `nearest` becomes their locality.
cdef Py_ssize_t count_ready(list consumers, int32_t* nearest)

cdef class UnsyncedFins:
    cdef list consumers                  # with FINs that no sync under way covers

    cdef bint add(self, Consumer consumer) except -1
    cpdef list begin_sync(self)
    cdef int end_sync(self, list covered) except -1
    cpdef int fail_sync(self, list covered) except -1
