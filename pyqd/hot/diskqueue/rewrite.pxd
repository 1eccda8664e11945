# Rewriting of sealed segments without their finished records. Design notes: pyx/diskqueue/rewrite.pyx.
from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.wire.record cimport Record

# A kept record: its former address, and its offset in the new file.
cdef struct Move:
    const char* at
    uint64_t offset

cdef enum Fault:
    NO_FAULT = 0
    DAMAGED = 1
    NO_MEMORY = 2

cdef class Rewrite:
    cdef readonly Log log
    cdef readonly list segments          # to be replaced, in order
    cdef list sources                    # (path, address, end of the records) of each
    cdef readonly uint64_t start         # ordinals of all of them
    cdef readonly uint64_t end
    cdef uint64_t* needed                # owned: a window of bits by ordinal; 1: some channel needs the record
    cdef uint64_t capacity_bits          # of that window
    cdef char* records                   # owned: those of the new file, gaps included
    cdef uint64_t used_bytes
    cdef uint64_t capacity_bytes
    cdef Move* moves                     # owned; by address, once all are there
    cdef uint64_t move_count
    cdef uint64_t move_capacity
    cdef uint64_t gap_count              # ordinals of the gap that ends at `seq`
    cdef uint64_t seq                    # of the next record
    cdef Fault fault
    cdef readonly Segment made           # the new file; None: it is not there yet

    cdef uint64_t needed_count(self) noexcept
    cdef uint64_t add_records(
        self, const char* data, uint64_t length, const char* base, uint64_t offset) noexcept nogil
    cdef Fault add_record(self, const Record* record, const char* at) noexcept nogil
    cdef Fault end_gap(self) noexcept nogil
    cdef Fault reserve(self, uint64_t size_bytes) noexcept nogil
    cdef int gather_from(self, str path, const char* base, uint64_t tail) except -1
    cdef int require_sound(self, str path, uint64_t offset) except -1
    cdef const Record* moved(self, const Record* record) noexcept
