from libc.stdint cimport uint64_t

from pyqd.hot.diskqueue.dues cimport Dues
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.schedule cimport Scheduled, Scheduler

cdef class ReadableLog:
    cdef readonly Log log
    cdef readonly Scheduler scheduler
    cdef Scheduled topic                 # woken to trim the log
    cdef readonly uint64_t end           # ordinal; channels may read the records below
    cdef Segment oldest_unfinished       # first segment that some channel has not finished, as of the last trim
    cdef bint trim_wanted                # a channel has moved past it
    cdef Position held                   # of `end`, while messages are held; None: not located yet, or none are held
    cdef readonly Dues dues              # due times of the log's records
    cdef uint64_t dues_stored            # its entries below this index are of records that the log has
    cdef uint64_t due_end                # and those below this one of records below `end`

    cdef inline int note_floor(self, Ledger ledger) except -1:
        # Request a trim if a channel has finished the oldest unfinished segment.
        if (
            not self.trim_wanted and self.oldest_unfinished is not self.log.active
            and ledger.header.floor >= self.oldest_unfinished.end_ordinal()
        ):
            self.note_passed(ledger)
        return 0

    cdef int note_passed(self, Ledger ledger) except -1
    cdef int request_trim(self) except -1
    cdef int advance_end(self) except -1
    cdef int move_end(self, uint64_t end) except -1
    cdef int note_held(self) except -1
    cdef int forget_held(self) except -1
    cdef Position end_position(self)
    cdef int leave_drained_held(self) except -1
