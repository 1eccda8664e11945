# Finding a message of a channel by its id, and changing what becomes of it. Design notes: pyx/broker/amend.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.wire.record cimport Record

cdef enum Place:
    UNKNOWN = 0                          # neither the channel nor the topic's log has it
    FINISHED = 1                         # the log has it still, the channel is done with it
    HELD = 2                             # the topic holds it and has not shown it to the channel
    QUEUED = 3                           # at or past the cursor
    RETURNED = 4                         # in the ring of what waits for redelivery
    DEFERRED = 5                         # in the parked log, under its due time
    IN_FLIGHT = 6

cdef class Sought:
    cdef readonly ChannelCore channel
    cdef readonly uint64_t guid
    cdef readonly Place place            # of the last `look`; nothing has switched since, or look again
    cdef const Record* kept              # as the topic's log has it, wherever it is; NULL: it has it no more
    cdef const Record* record            # where the place is one in which there is one
    cdef uint64_t at                     # its slot in `parked`, or its number in the ring
    cdef uint64_t slots_per_turn
    cdef uint64_t entries_per_turn
    cdef uint64_t next_slot              # the search has come so far ...
    cdef uint64_t next_number            # ... and so far
    cdef uint64_t parked_end             # what was parked when this round of the search began
    cdef uint64_t round_count

    cdef bint look_in_log(self, LogReader reader) except -1
    cdef bint look_in_parked(self) except -1
    cdef bint look_in_ring(self) except -1
    cdef bint found(self, Place place, const Record* record, uint64_t at) noexcept
    cdef int begin_round(self) except -1
    cdef int note_cancelled(self) except -1
    cdef int put_off_queued(self, int64_t due_ns) except -1
