from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.primitives.arrays cimport Array
from pyqd.hot.primitives.heap cimport DeadlineHeap
from pyqd.hot.primitives.idtable cimport IdTable
from pyqd.hot.wire.record cimport Record

cdef class ParkedLog:
    cdef readonly Log log
    cdef Presence presence               # of the pages of the record that is due next; None until one is due
    cdef readonly Ledger ledger
    cdef DeadlineHeap dues               # by slot; Unix ns, odd after a requeue with a delay; see design notes
    cdef int64_t wall_ahead_ns           # the wall clock less the monotonic one, to which the odd ones belong
    cdef const Record** records          # by slot; of a free one 1 + the next free slot
    cdef uint16_t* fingerprints          # by slot: the top of the id's fingerprint, for searches
    cdef Array records_memory
    cdef Array fingerprints_memory
    cdef uint32_t free_slot              # 1 + the first free slot; 0: there is none
    cdef uint32_t capacity
    cdef uint64_t* origins               # ordinal << 1 | source, of the records from `settled` on, behind a gap
    cdef Array origins_memory
    cdef uint64_t origins_capacity
    cdef uint64_t origins_gap            # entries before them of records that are settled
    cdef readonly uint64_t settled       # the origins of records below are finished
    cdef readonly uint64_t dropped_below # records below do not count; the channel's ledger says so
    cdef IdTable duplicates              # id to last ordinal here, less the `settled` of the start; see design notes
    cdef uint64_t last_duplicate_guid    # the highest of them; 0: there are none
    # Of the messages that the start found here, unfinished or with an origin to finish.
    cdef uint64_t highest_guid

    cdef inline uint32_t count(self) noexcept:
        return self.dues.count

    cdef inline const Record* waiting_in(self, uint32_t slot) noexcept:
        # Return the record of a slot below `capacity`; NULL: the slot is free.
        return self.records[slot] if self.dues.contains(slot) else NULL

    cdef inline int64_t due_in(self, uint32_t slot) noexcept:
        # Return the due time of the record in a slot that is not free.
        return self.dues.due_of(slot)

    cdef inline int64_t next_due(self) noexcept:
        return self.dues.peek_due()

    cdef inline bint is_being_read(self) noexcept:
        # Return whether the record that is due next waits for a thread that reads it.
        return self.presence is not None and self.presence.reads

    cdef inline int repoint(self, uint32_t slot, const Record* record) noexcept:
        # Note that the record of a slot lies elsewhere now.
        self.records[slot] = record
        return 0

    cdef int prepare(self, uint64_t span_bytes) except -1
    cdef int prepare_slots(self, uint32_t count) except -1
    cdef inline uint64_t unsettled(self) noexcept:
        return self.log.end - self.settled

    cdef int park(
        self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns, bint is_delay) except -1
    cdef int follow_clock(self, int64_t wall_now_ns) except -1
    cdef Record* copy_handed_out(
        self, const Record* record, uint8_t source, uint16_t attempts, uint16_t handed_out, int64_t due_ns) except NULL
    cdef uint64_t find_fingerprint(self, uint64_t guid, uint64_t start, uint64_t end) noexcept
    cdef inline uint64_t origin_at(self, uint64_t index) noexcept:
        return self.origins[self.origins_gap + index]

    cdef int grow_origins(self) except -1
    cdef int reserve_origins(self, uint64_t count) except -1
    cdef int close_gap(self) noexcept
    cdef int add_origin(self, uint64_t origin) noexcept
    cdef int forget_origins(self, uint64_t end) except -1
    cpdef int note_settled(self, uint64_t end) except -1
    cdef int find_duplicates(self, uint64_t origins_unknown_below) except -1
    cdef bint is_superseded(self, const Record* record) noexcept
    cdef bint has_duplicate(self, const Record* record) noexcept
    cdef int trim(self) except -1
    cdef bint has_due(self, int64_t wall_now_ns) noexcept
    cdef bint is_next_present(self) except -1
    cdef const Record* pop_due(self, int64_t wall_now_ns) except? NULL
    cdef const Record* take(self, uint32_t slot) except NULL
    cdef int finish(self, const Record* record) except -1
    cdef int drop_all(self) except -1
    cpdef int finish_dropped(self, uint64_t end) except -1
    cdef int forget(self) except -1
    cdef int abandon(self) except -1
    cdef int release_slot(self, uint32_t slot) noexcept
    cdef int grow(self) except -1
    cdef int wait_for(self, const Record* record, bint is_delay) except -1
