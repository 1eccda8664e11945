# Rewriting of sealed segments without their finished records. Design notes: pyx/diskqueue/rewrite.pyx.
from libc.stdint cimport uint64_t

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

# Content of the new file, while the old ones are read.
cdef struct Gathered:
    uint64_t* needed                     # owned; a window of bits by ordinal; 1: some channel needs the record
    uint64_t capacity_bits               # of that window
    char* records                        # owned; gaps included
    uint64_t used_bytes
    uint64_t capacity_bytes
    Move* moves                          # owned; by address, once all are there
    uint64_t move_count
    uint64_t move_capacity
    uint64_t gap_count                   # ordinals of the gap that ends at `seq`
    uint64_t seq                         # of the next record
    uint64_t end                         # ordinal at which the last segment ends
    Fault fault

cdef class Rewrite:
    cdef readonly Log log
    cdef readonly list segments          # to be replaced, in order
    cdef list sources                    # (path, address, end of the records, number of ordinals) of each
    cdef readonly uint64_t start         # ordinals of all of them
    cdef readonly uint64_t end
    cdef Gathered to
    cdef readonly Segment made           # the new file; None: it is not there yet

    cdef uint64_t needed_count(self) noexcept
    cdef int gather_from(self, str path, const char* base, uint64_t tail) except -1
    cdef int require_sound(self, str path, uint64_t offset) except -1
    cdef const Record* moved(self, const Record* record) noexcept
