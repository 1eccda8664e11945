"""A channel's parked messages: deferred by the publisher, or requeued with a delay.

Parked messages have left the order of the topic's log. Each channel has a log for them, created when the first message
is parked, with the due times in the records. A start reads the log, so due times outlive the process. A parked message
that is due, delivered and requeued with a delay again becomes a new record; the old one is finished. The record itself
stores the number of its deliveries, so a message that was in flight at a kill does not return as a first delivery.

In memory a parked message is a slot: the record's address and a place in a heap by due time (28 bytes), 2 bytes of the
id's fingerprint, which searches read, and 8 bytes until the message is settled (see below). These arrays grow by an
eighth and by half, so a slot takes 46 bytes at most.

Parking makes two records of one message: the *origin*, in the topic's log or in this one, and the new record here. The
origin is finished only when the new record is on stable storage; otherwise a power failure could keep the finished bit
and lose the new record. Until then the origin is *unsettled*: its reader passes over it, and its bit is not set. When a
sync has covered the new records, `Parking.settle_some` sets the bits of their origins, in the order of parking.

After a kill, unsettled messages have two records. `duplicates` names every message parked at or past `settled_below`,
and the start finishes their other records. `settled_below` lies in the header, at the place of `parked_below` in a
topic's ledger, and advances when the bits themselves are on stable storage. Records from there on are not trimmed,
finished or not, because the start needs them to recognise their origins.

A due time that a publisher or an operator gave is a time of the wall clock, and follows its jumps. The delay of a
requeue follows the monotonic clock while the process lives. Its time in `dues` is odd; all others are even. After a
jump of the wall clock `follow_clock` shifts the odd ones by as much.

When a channel is moved or emptied, all parked messages are dropped. The reset of the channel's ledger stores in the
same page below which ordinal. Nothing is stored here before a sync has covered that page.

Invariants:
1. a slot is free, or its record waits in `dues` and is not finished.
2. the ledger's cursor stands at the log's end: every record is handed out to `dues` at once.
3. `settled_below <= settled <= log.end`; `origins` holds one entry for each record of `[settled, log.end)`, in order.
"""

cimport cython
from libc.stdint cimport uintptr_t
from libc.string cimport memmove

from pyqd.hot.broker.slots cimport fingerprint
from pyqd.hot.primitives.releases cimport array_release_later
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.primitives.arrays cimport array_release, array_reserve
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.heap cimport DeadlineHeap, Entry
from pyqd.hot.wire.record cimport RECORD_LOST, record_body, record_ordinal, record_span

cdef enum:
    SLOTS_MIN = 16
    SLOTS_PER_BLOCK = 4096               # of a search
    ORIGINS_KEPT = 4096                  # memory of a burst beyond these is freed once it is settled
    JUMP_NS_MIN = 50000000               # less is a correction of the clock's rate, or a pause between two readings


cdef uint64_t next_fingerprint(const uint16_t* fingerprints, uint64_t start, uint64_t end, uint16_t wanted) noexcept:
    """Return the first index of `[start, end)` with that fingerprint; end: there is none."""
    cdef uint64_t stop, index
    cdef uint32_t hits
    debug_require(start <= end)
    while start < end:
        stop = min(end, start + SLOTS_PER_BLOCK)
        hits = 0
        # Counting has no exit in the middle, so the compiler compares many at once.
        for index in range(start, stop):
            hits += fingerprints[index] == wanted
        if hits:
            for index in range(start, stop):
                if fingerprints[index] == wanted:
                    return index
        start = stop
    return end


@cython.final
cdef class ParkedLog:
    """The parked log of one channel with its ledger and its heap of due times. dropped_below: see `drop_all`.

    origins_unknown_below: the records below may have unfinished origins, because an earlier ledger of the channel is
    lost. The origins of waiting messages are finished again. Those of finished messages stay as they are: the channel
    may have been moved back to them. Past the log's end: this is the first start since the loss.
    """

    def __init__(
        self, Log log not None, Ledger ledger not None, uint64_t dropped_below=0, uint64_t origins_unknown_below=0,
    ):
        self.log = log
        self.ledger = ledger
        self.dues = DeadlineHeap()
        self.wall_ahead_ns = wall_ns() - mono_ns()
        ledger.clamp(log.first.first_ordinal, log.end)
        for hole in log.holes:
            ledger.try_note_range(hole[0], hole[1])
        if ledger.header.cursor != log.end:
            ledger.unseal()
            ledger.header.cursor = log.end
            ledger.count_ahead()
        ledger.absorb_found()
        self.dropped_below = min(dropped_below, log.end)
        self.settled = 0 if origins_unknown_below > log.end else min(ledger.header.parked_below, log.end)
        if ledger.header.parked_below != self.settled:
            ledger.unseal()
            ledger.header.parked_below = self.settled
        self.settled = max(self.settled, self.dropped_below)
        self.duplicates = IdTable()
        self.find_duplicates(origins_unknown_below)
        self.wait_for_unfinished()
        # The start settles unsettled records, by finishing the duplicates.
        self.settled = log.end
        self.trim()
        assert ledger.header.cursor == log.end, "invariant 2"

    def __dealloc__(self):
        array_release(&self.records_memory)
        array_release(&self.fingerprints_memory)
        array_release(&self.origins_memory)

    cdef int trim(self) except -1:
        """Trim finished records whose origins are finished on stable storage."""
        assert self.ledger.header.parked_below <= self.settled <= self.log.end, "invariant 3"
        self.log.trim(min(self.ledger.oldest_unfinished(), self.ledger.header.parked_below))
        return 0

    cdef int find_duplicates(self, uint64_t origins_unknown_below) except -1:
        """Fill `duplicates`: the last record of each message whose origin may be unfinished. Cost: O(unsynced ones)."""
        cdef Segment segment = self.log.segment_of(self.settled)
        cdef uint64_t offset
        cdef const Record* record
        while segment is not None:
            self.log.ready(segment)
            offset = SEGMENT_HEADER_BYTES
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                if (
                    record_ordinal(record) >= self.settled and not record.flags & RECORD_LOST
                    and (
                        record_ordinal(record) >= origins_unknown_below
                        or not self.ledger.is_finished(record_ordinal(record)))
                ):
                    self.last_duplicate_guid = max(self.last_duplicate_guid, record.guid)
                    # Also if it is finished: a new message of that id would count as its origin.
                    self.highest_guid = max(self.highest_guid, record.guid)
                    self.duplicates.take(record.guid)
                    self.duplicates.put(record.guid, <uint32_t> (record_ordinal(record) - self.settled))
                offset += record_span(record.size_bytes)
            segment = segment.next
        return 0

    def highest_guid_kept(self, bint thorough):
        """Return the highest id of the records that the log has, whatever has become of them; 0 if there is none.

        A later start may have lost the ledgers. Records that were finished or dropped wait again then, and would take a
        new message of the same id for their origin. thorough: read also segments that the start has not read.
        """
        cdef Segment segment = self.log.first
        cdef uint64_t highest = self.highest_guid
        while segment is not None:
            if thorough:
                self.log.ready(segment)
            highest = max(highest, segment.highest_guid)
            segment = segment.next
        return highest

    cdef bint is_superseded(self, const Record* record) noexcept:
        """Return True if a record of this log is the origin of a later one."""
        cdef int64_t last = self.duplicates.get(record.guid)
        debug_require(record_ordinal(record) < self.log.end)
        return last >= 0 and record_ordinal(record) < self.settled + <uint64_t> last

    cdef bint has_duplicate(self, const Record* record) noexcept:
        """Return True if a record of the topic's log is the origin of one that was here at the start."""
        return self.duplicates.count != 0 and self.duplicates.get(record.guid) >= 0

    def wait_for_unfinished(self):
        """Enter every unfinished record in the heap of due times. Cost: O(records kept)."""
        cdef Segment segment = self.log.segment_of(max(self.ledger.oldest_unfinished(), self.dropped_below))
        cdef uint64_t offset
        cdef const Record* record
        while segment is not None:
            self.log.ready(segment)
            offset = SEGMENT_HEADER_BYTES
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                if record_ordinal(record) >= self.dropped_below and not self.ledger.is_finished(record_ordinal(record)):
                    if record.flags & RECORD_LOST or self.is_superseded(record):
                        self.ledger.try_finish(record_ordinal(record))
                    else:
                        self.highest_guid = max(self.highest_guid, record.guid)
                        self.wait_for(record, False)
                offset += record_span(record.size_bytes)
            segment = segment.next

    cdef int grow(self) except -1:
        cdef uint32_t capacity = max(<uint32_t> SLOTS_MIN, self.capacity + (self.capacity >> 3))
        cdef uint32_t slot
        if array_reserve(&self.records_memory, <size_t> capacity * sizeof(Record*)) != 0:
            raise MemoryError
        self.records = <const Record**> self.records_memory.base
        if array_reserve(&self.fingerprints_memory, <size_t> capacity * sizeof(uint16_t)) != 0:
            raise MemoryError
        self.fingerprints = <uint16_t*> self.fingerprints_memory.base
        self.dues.reserve(capacity)
        for slot in range(capacity, self.capacity, -1):
            self.release_slot(slot - 1)
        self.capacity = capacity
        assert self.capacity <= self.dues.slot_count_max
        return 0

    cdef int release_slot(self, uint32_t slot) noexcept:
        """Add a slot to the list of free ones, which is linked through the slots' places for records."""
        debug_require(slot < self.dues.slot_count_max)
        self.records[slot] = <const Record*> <uintptr_t> self.free_slot
        self.free_slot = slot + 1
        return 0

    cdef int wait_for(self, const Record* record, bint is_delay) except -1:
        """Enter a record in the heap of due times. is_delay: its due time is a delay from now."""
        cdef uint32_t slot
        cdef int64_t due_ns = record.due_ns & ~1
        if is_delay:
            due_ns += mono_ns() + self.wall_ahead_ns - wall_ns()
            due_ns |= 1
        if self.free_slot == 0:
            self.grow()
        slot = self.free_slot - 1
        self.dues.push(slot, due_ns)
        self.free_slot = <uint32_t> <uintptr_t> self.records[slot]
        self.records[slot] = record
        self.fingerprints[slot] = <uint16_t> (fingerprint(record.guid) >> 16)
        debug_require(slot < self.capacity)
        debug_require(self.dues.contains(slot))
        return 0

    cdef int grow_origins(self) except -1:
        cdef uint64_t capacity = max(<uint64_t> SLOTS_MIN, self.origins_capacity + (self.origins_capacity >> 1))
        self.close_gap()
        if array_reserve(&self.origins_memory, <size_t> capacity * sizeof(uint64_t)) != 0:
            raise MemoryError
        self.origins = <uint64_t*> self.origins_memory.base
        self.origins_capacity = capacity
        assert self.unsettled() < self.origins_capacity
        return 0

    cdef int prepare(self, uint64_t span_bytes) except -1:
        """Reserve space so that parking a record cannot fail. Raises: StorageError, MemoryError (nothing changed)."""
        if self.free_slot == 0:
            self.grow()
        if self.origins_gap + self.unsettled() == self.origins_capacity:
            self.reserve_origins(1)
        self.log.reserve(span_bytes)
        return 0

    cdef int prepare_slots(self, uint32_t count) except -1:
        """Reserve memory for so many slots and origins. Raises: MemoryError (nothing changed)."""
        while self.capacity - self.dues.count < count:
            self.grow()
        self.reserve_origins(count)
        return 0

    cdef int reserve_origins(self, uint64_t count) except -1:
        """Reserve memory behind the last origin for so many more. Raises: MemoryError (nothing changed)."""
        if self.origins_capacity - self.origins_gap - self.unsettled() >= count:
            return 0
        while self.origins_capacity - self.unsettled() < count:
            self.grow_origins()
        return self.close_gap()

    cdef int close_gap(self) noexcept:
        """Move the origins to the start of their array. Cost: O(unsettled)."""
        debug_require(self.origins_gap + self.unsettled() <= self.origins_capacity)
        if self.origins_gap != 0:
            memmove(self.origins, self.origins + self.origins_gap, self.unsettled() * sizeof(uint64_t))
            self.origins_gap = 0
        return 0

    cdef int add_origin(self, uint64_t origin) noexcept:
        """Store the origin of the record that is appended next; there is space for it."""
        debug_require(self.origins_gap + self.unsettled() < self.origins_capacity)
        self.origins[self.origins_gap + self.unsettled()] = origin
        return 0

    cdef int follow_clock(self, int64_t wall_now_ns) except -1:
        """Shift the due times that are delays if the wall clock has jumped. Cost: O(count) after a jump."""
        cdef int64_t jump_ns = (wall_now_ns - mono_ns() - self.wall_ahead_ns) & ~1
        if jump_ns >= JUMP_NS_MIN or jump_ns <= -JUMP_NS_MIN:
            self.wall_ahead_ns += jump_ns
            self.dues.shift_odd(jump_ns)
        return 0

    cdef int park(
        self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns, bint is_delay,
    ) except -1:
        """Copy a record here, due at `due_ns` (Unix); it is the origin, to be finished by `settle`.

        is_delay: `due_ns` is a delay from now, so that it does not follow jumps of the wall clock.
        Raises: StorageError, MemoryError (nothing is parked).
        """
        cdef const char* at
        cdef uint64_t origin = record_ordinal(record) << 1 | source
        assert self.ledger.header.cursor == self.log.end, "a parked record does not wait for its due time"
        self.prepare(record_span(record.size_bytes))
        self.add_origin(origin)
        at = self.log.append(
            record.guid, record.timestamp_ns, due_ns, attempts, record_body(record), record.size_bytes)
        self.ledger.unseal()
        self.ledger.hand_out()
        self.wait_for(<const Record*> at, is_delay)
        return 0

    cdef Record* copy_handed_out(
        self, const Record* record, uint8_t source, uint16_t attempts, uint16_t handed_out, int64_t due_ns,
    ) except NULL:
        """Copy a record here that stays where it is for its channel; the record is the origin of the copy.

        The caller repoints its slot, or its place in a ring, to the copy. Returns: the copy.
        Raises: StorageError, MemoryError (nothing changed).
        """
        cdef Record* copy
        assert self.ledger.header.cursor == self.log.end, "a parked record does not wait for its due time"
        self.prepare(record_span(record.size_bytes))
        self.add_origin(record_ordinal(record) << 1 | source)
        copy = <Record*> self.log.append(
            record.guid, record.timestamp_ns, due_ns, attempts, record_body(record), record.size_bytes)
        copy.handed_out = handed_out
        self.ledger.unseal()
        self.ledger.hand_out()
        return copy

    cdef uint64_t find_fingerprint(self, uint64_t guid, uint64_t start, uint64_t end) noexcept:
        """Return the first slot of `[start, end)` that has the fingerprint of an id; end: none has."""
        debug_require(end <= self.capacity)
        return next_fingerprint(self.fingerprints, start, end, <uint16_t> (fingerprint(guid) >> 16))

    cdef int forget_origins(self, uint64_t end) except -1:
        """Drop the origins of the records below an ordinal: their bits are set."""
        cdef uint64_t count = self.unsettled()
        cdef uint64_t done = end - self.settled
        assert self.settled <= end <= self.log.end
        self.origins_gap += done
        self.settled = end
        if count == done:
            self.origins_gap = 0
            if self.origins_capacity > ORIGINS_KEPT:
                array_release_later(&self.origins_memory)
                self.origins = NULL
                self.origins_capacity = 0
        elif self.origins_gap > count - done:
            # Not each time: with millions of origins, settled in slices, each slice would move all others.
            self.close_gap()
        return 0

    cpdef int note_settled(self, uint64_t end) except -1:
        """Record that the bits of all origins of records below an ordinal are on stable storage."""
        assert end <= self.log.end
        if end > self.ledger.header.parked_below:
            self.ledger.unseal()
            self.ledger.header.parked_below = min(end, self.settled)
            self.trim()
        return 0

    cdef bint has_due(self, int64_t wall_now_ns) noexcept:
        """Return whether a record is due."""
        return self.dues.peek_due() <= wall_now_ns

    cdef bint is_next_present(self) except -1:
        """Return whether the record that is due first, which there is, is in memory."""
        assert self.dues.count != 0, "no record waits"
        if self.presence is None:
            self.presence = Presence(self.log.files)
        return self.presence.has_record_at(self.log, self.records[self.dues.peek_slot()])

    cdef const Record* pop_due(self, int64_t wall_now_ns) except? NULL:
        """Take the record that is due first, if it is due. Returns: NULL when none is."""
        return self.take(self.dues.peek_slot()) if self.has_due(wall_now_ns) else NULL

    cdef const Record* take(self, uint32_t slot) except NULL:
        """Take the record of a slot out of `dues`, whether it is due or not."""
        cdef const Record* record = self.records[slot]
        assert self.dues.contains(slot), "nothing waits in the slot"
        self.dues.remove(slot)
        self.release_slot(slot)
        return record

    cdef int finish(self, const Record* record) except -1:
        """Finish a record that was due and delivered, or parked again."""
        debug_require(record_ordinal(record) < self.log.end)
        self.ledger.finish(record_ordinal(record))
        self.trim()
        return 0

    cdef int forget(self) except -1:
        """Forget all parked messages; the files stay as they are."""
        array_release_later(&self.records_memory)
        array_release_later(&self.fingerprints_memory)
        self.records = NULL
        self.fingerprints = NULL
        self.capacity = 0
        self.free_slot = 0
        self.dues.clear()
        self.duplicates.clear()
        return 0

    cdef int abandon(self) except -1:
        """Forget all parked messages for good: the files are gone."""
        self.forget()
        self.ledger.forget_growth()
        self.log.abandon()
        return 0

    cdef int drop_all(self) except -1:
        """Forget all parked messages: the channel's ledger has just been reset and says so.

        Nothing is stored here. If the power fails before that ledger is on stable storage, the channel resumes at its
        former place and needs these messages. `finish_dropped` finishes them after that sync.
        """
        self.forget()
        self.origins_gap = 0
        self.settled = self.log.end
        self.dropped_below = self.log.end
        return 0

    cpdef int finish_dropped(self, uint64_t end) except -1:
        """Finish the records below `end` after `drop_all`. The channel's ledger with the drop is on stable storage."""
        assert end <= self.dropped_below
        if end > self.ledger.header.floor:
            self.ledger.clamp(end, self.log.end)
        self.ledger.finish_range(0, min(end, self.ledger.header.floor))
        self.note_settled(end)
        self.trim()
        return 0

    def memory_bytes(self):
        """Return the bytes of the arrays of parked messages: due times and origins."""
        return (
            self.capacity * (sizeof(Record*) + sizeof(uint16_t))
            + self.dues.slot_count_max * (sizeof(Entry) + sizeof(uint32_t)) + self.origins_capacity * sizeof(uint64_t))
