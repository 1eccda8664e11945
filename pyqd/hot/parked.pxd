# A channel's parked messages: deferred, or requeued with a delay. Design notes: pyx/parked.pyx.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.heap cimport DeadlineHeap
from pyqd.hot.ledger cimport Ledger
from pyqd.hot.log cimport Log
from pyqd.hot.record cimport Record

cdef class Parked:
    cdef readonly Log log
    cdef readonly Ledger ledger
    cdef DeadlineHeap dues               # by slot; Unix ns, as due times outlive the process
    cdef const Record** records          # by slot; owned
    cdef uint32_t* free_slots            # owned
    cdef uint32_t free_count
    cdef uint32_t capacity

    cdef inline uint32_t count(self) noexcept:
        return self.dues.count

    cdef int prepare(self, uint64_t span_bytes) except -1
    cdef int park(self, const Record* record, uint16_t attempts, int64_t due_ns) except -1
    cdef const Record* pop_due(self, int64_t wall_now_ns) except? NULL
    cdef const Record* take(self, uint32_t slot) except NULL
    cdef int finish(self, const Record* record) except -1
    cdef int clear(self) except -1
    cdef int grow(self) except -1
    cdef int wait_for(self, const Record* record) except -1
