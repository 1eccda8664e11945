# Looking up a message of a channel by its id, to cancel or reschedule it. Design notes: pyx/broker/message_lookup.pyx.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.slots cimport ReadyRing
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.wire.record cimport Record

cdef enum Place:
    UNKNOWN = 0                          # neither the channel nor the topic's log has it
    FINISHED = 1                         # the log still has it, the channel has finished it
    HELD = 2                             # the topic holds it, the channel may not read it yet
    QUEUED = 3                           # at or past the cursor
    RETURNED = 4                         # in the ring of messages for redelivery
    DEFERRED = 5                         # in the parked log, under its due time
    IN_FLIGHT = 6
    DEAD_LETTER = 7                      # to be published in the dead-letter topic

cdef class MessageLookup:
    cdef readonly ChannelCore channel
    cdef readonly uint64_t guid
    cdef readonly Place place            # of the last `step`; right until the loop runs
    cdef const Record* kept              # in the topic's log, whatever the place; NULL: the log does not have it
    cdef const Record* record            # at the place, if there is one there
    cdef uint64_t at                     # slot in the parked log, or number in its ring
    cdef uint64_t slots_per_step
    cdef uint64_t entries_per_step
    cdef uint64_t next_slot              # the search has come to this slot ...
    cdef uint64_t next_number            # ... and to this entry of those for redelivery
    cdef uint64_t next_letter            # ... and of the dead letters
    cdef uint64_t parked_end             # of the parked log when this round of the search began
    cdef uint64_t round_count

    cdef bint is_in_place(self) except -1
    cdef uint8_t source(self) except *
    cdef bint step_in_log(self) except -1
    cdef bint step_in_parked(self, Presence presence) except -1
    cdef bint step_in_ring(self, ReadyRing ring, uint64_t* next_number, Place place) except -1
    cdef ReadyRing ring(self)
    cdef uint64_t slots_end(self) noexcept
    cdef bint found(self, Place place, const Record* record, uint64_t at) noexcept
    cdef int begin_round(self) except -1
    cdef int finish(self) except -1
    cdef int note_cancelled(self) except -1
