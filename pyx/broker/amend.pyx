"""Changing what becomes of a message, by its id: it is finished unread, or gets another due time.

Where a message is, no table says: there are many, and few are ever asked for. So it is looked for, cheapest first:

    in flight      the table of ids that FIN uses
    queued         the topic's log, by the id, which grows with the ordinal (see pyx/diskqueue/logreader.pyx)
    deferred       2 bytes of the id's fingerprint for each slot, read through: 10 million are 20 MB
    returned       the fingerprints in the ring's entries, 16 bytes each, read through

The last two are read in parts, and whoever asks lets others have their turn in between. Slots stay, and entries of the
ring keep their numbers or get higher ones, so nothing is passed over, but for a message that moves meanwhile: to the
ring's end it is met there; parked anew, in a slot that was passed, it is met in another round, which is made whenever
something was parked meanwhile, and at last in one part. What was found holds until something switches; the answer and
the change are made in one go, so they are right whatever consumers do.

Changes are those of consumers, by the same means, and as safe: finishing is a bit; another due time is a new record in
the parked log whose origin is the old one, to be settled (see pyx/broker/parked.pyx). New is that a record at or past
the cursor with no due time may be an origin: `moved_ahead` names these while they are not settled. After a kill
`moved_until` in the ledger's header, stored before the record, says that the records past the cursor are to be looked
through for them; that costs a walk up to the last of them, at that start.

Invariants: 1. what is in flight is not changed. 2. A change is made whole or not at all.

Rejected: a table from id to record (16 bytes for each deferred message, and a copy of what the files say).
"""

cimport cython
from libc.stdint cimport uint16_t, uint32_t

from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, print_of
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.wire.record cimport record_attempts, record_ordinal

cdef enum:
    SLOTS_PER_TURN = 1 << 22             # 8 MiB
    ENTRIES_PER_TURN = 1 << 19           # 8 MiB
    SLOTS_PER_BLOCK = 4096
    ROUNDS_MAX = 8                       # then the search is made in one part

AT_UNKNOWN, AT_FINISHED, AT_HELD, AT_QUEUED, AT_RETURNED, AT_DEFERRED, AT_IN_FLIGHT = (
    UNKNOWN, FINISHED, HELD, QUEUED, RETURNED, DEFERRED, IN_FLIGHT)


cdef uint64_t next_print(const uint16_t* prints, uint64_t start, uint64_t end, uint16_t wanted) noexcept nogil:
    """Return the first place of `[start, end)` with that fingerprint; end where there is none."""
    cdef uint64_t stop, index
    cdef uint32_t hits
    while start < end:
        stop = min(end, start + SLOTS_PER_BLOCK)
        hits = 0
        # Counting has no way out in the middle, so the compiler makes it a comparison of many at once.
        for index in range(start, stop):
            hits += prints[index] == wanted
        if hits:
            for index in range(start, stop):
                if prints[index] == wanted:
                    return index
        start = stop
    return end


@cython.final
cdef class Sought:
    """A message of a channel, to be looked for and then changed. slots_per_turn, entries_per_turn: read in one part."""

    def __init__(
        self, ChannelCore channel not None, uint64_t guid, *,
        uint64_t slots_per_turn=SLOTS_PER_TURN, uint64_t entries_per_turn=ENTRIES_PER_TURN,
    ):
        self.channel = channel
        self.guid = guid
        self.slots_per_turn = slots_per_turn
        self.entries_per_turn = entries_per_turn
        self.begin_round()

    cdef int begin_round(self) except -1:
        self.next_slot = 0
        self.next_number = 0
        self.parked_end = 0 if self.channel.parked is None else (<Parked> self.channel.parked).log.end
        return 0

    cdef bint found(self, Place place, const Record* record, uint64_t at) noexcept:
        self.place = place
        self.record = record
        self.at = at
        return True

    def look(self, LogReader reader not None):
        """Look on, in a bounded part. reader: of the topic's log, prepared for the id.

        Returns: whether the place is known, until something switches; if not, another look is to follow.
        """
        if self.channel.slots.ids.get(self.guid) >= 0:
            return self.found(IN_FLIGHT, NULL, 0)
        if self.look_in_log(reader):
            return True
        if self.look_in_parked() or self.look_in_ring():
            return True
        if self.next_slot < self.slots_end() or self.next_number < self.numbers_end():
            return False
        if self.parked_end != (0 if self.channel.parked is None else (<Parked> self.channel.parked).log.end):
            self.round_count += 1
            self.begin_round()
            return False
        return self.found(UNKNOWN if self.record == NULL else FINISHED, self.record, 0)

    cdef bint look_in_log(self, LogReader reader) except -1:
        """Look where the topic's log has the message, if it has. Returns: whether that tells the place."""
        cdef ChannelCore channel = self.channel
        cdef const Record* record = reader.find(self.guid)
        cdef uint64_t ordinal
        self.record = self.kept = record
        if record == NULL:
            return channel.parked is None and self.found(UNKNOWN, NULL, 0)
        ordinal = record_ordinal(record)
        if ordinal >= channel.feed.end:
            return self.found(HELD, record, 0)
        if channel.ledger.is_finished(ordinal):
            return channel.parked is None and self.found(FINISHED, record, 0)
        if ordinal >= channel.ledger.header.cursor and not channel.is_origin_ahead(record):
            return self.found(QUEUED, record, 0)
        return False

    def slots_end(self):
        """Return how many slots there are to look through."""
        return 0 if self.channel.parked is None else (<Parked> self.channel.parked).capacity

    def numbers_end(self):
        """Return the number behind the last entry of the ring."""
        return self.channel.ready.first + self.channel.ready.count

    cdef bint look_in_parked(self) except -1:
        """Look through some of the slots of what is deferred. Returns: whether it is there."""
        cdef Parked parked = self.channel.parked
        cdef uint64_t end, slot
        cdef uint16_t wanted = <uint16_t> (print_of(self.guid) >> 16)
        if parked is None:
            return False
        end = parked.capacity
        if self.round_count < ROUNDS_MAX:
            end = min(end, self.next_slot + self.slots_per_turn)
        while self.next_slot < end:
            slot = next_print(parked.prints, self.next_slot, end, wanted)
            if slot < end and parked.dues.contains(<uint32_t> slot) and parked.records[slot].guid == self.guid:
                return self.found(DEFERRED, parked.records[slot], slot)
            self.next_slot = min(slot + 1, end)
        return False

    cdef bint look_in_ring(self) except -1:
        """Look through some of the ring, once the slots have been. Returns: whether it is there."""
        cdef ChannelCore channel = self.channel
        cdef uint64_t end = channel.ready.first + channel.ready.count
        cdef uint64_t number = max(self.next_number, channel.ready.first)
        cdef uint32_t wanted = print_of(self.guid)
        cdef const ReadyEntry* entry
        if self.next_slot < self.slots_end():
            return False
        if self.round_count < ROUNDS_MAX:
            end = min(end, number + self.entries_per_turn)
        while number < end:
            entry = &channel.ready.entries[channel.ready.place(number)]
            if entry.print == wanted and entry.record.guid == self.guid:
                self.next_number = number
                return self.found(RETURNED, entry.record, number)
            number += 1
        self.next_number = number
        return False

    def due_ns(self):
        """Return when the message is due (Unix); 0 for one that is due already, or whose place has no due time."""
        if self.place == DEFERRED or (self.place == QUEUED and self.record.due_ns > wall_ns()):
            return self.record.due_ns
        return 0

    def cancel(self):
        """Finish the message, which is queued, returned or deferred and was looked for in this turn.

        A channel that is moved back does not deliver it: that is noted first, so a kill leaves it noted and finished.
        Raises: StorageError, MemoryError (nothing changed).
        """
        cdef ChannelCore channel = self.channel
        cdef ReadyEntry entry
        assert self.place in (QUEUED, RETURNED, DEFERRED)
        if self.place == DEFERRED:
            channel.reach(self.record, FROM_PARKED)
            self.note_cancelled()
            (<Parked> channel.parked).take(<uint32_t> self.at)
            (<Parked> channel.parked).finish(self.record)
        elif self.place == RETURNED:
            entry = channel.ready.entries[channel.ready.place(self.at)]
            channel.reach(entry.record, entry.source)
            self.note_cancelled()
            channel.ready.remove(self.at)
            channel.finish_record(entry.record, entry.source)
        else:
            channel.reach(self.record, FROM_TOPIC)
            self.note_cancelled()
            if self.record.due_ns != 0:
                channel.pass_deferred(record_ordinal(self.record))
            channel.finish_record(self.record, FROM_TOPIC)
            channel.note_finished_ahead()
        channel.ledger.header.finish_count += 1

    cdef int note_cancelled(self) except -1:
        """Have a seek leave the message out, if the topic's log still has it. Raises: StorageError (no change)."""
        if self.kept != NULL:
            self.channel.note_cancelled(record_ordinal(self.kept))
        return 0

    def put_off(self, int64_t due_ns, LogReader reader not None):
        """Give the message, which is queued, returned or deferred and was looked for in this turn, another due time.

        due_ns: Unix. What can be had already stays where it is if the time has passed. reader: as for `look`.
        Raises: StorageError, MemoryError (nothing changed).
        """
        cdef ChannelCore channel = self.channel
        cdef const Record* record = self.record
        cdef ReadyEntry entry
        assert self.place in (QUEUED, RETURNED, DEFERRED)
        if self.place == DEFERRED:
            channel.reach(record, FROM_PARKED)
            channel.park(record, FROM_PARKED, record_attempts(record), due_ns)
            (<Parked> channel.parked).take(<uint32_t> self.at)
        elif due_ns <= wall_ns() and (self.place == RETURNED or record.due_ns <= wall_ns()):
            return
        elif self.place == RETURNED:
            entry = channel.ready.entries[channel.ready.place(self.at)]
            channel.reach(entry.record, entry.source)
            channel.park(entry.record, entry.source, entry.attempts, due_ns)
            channel.ready.remove(self.at)
        else:
            channel.feed.log.ready(channel.feed.log.segment_of(record_ordinal(record)))
            # Verifying may have found that it is damaged.
            self.record = reader.find(self.guid)
            if self.record == NULL:
                self.place = UNKNOWN
                return
            self.put_off_queued(due_ns)
        channel.settle_unless_durable()

    cdef int put_off_queued(self, int64_t due_ns) except -1:
        cdef ChannelCore channel = self.channel
        cdef uint64_t ordinal = record_ordinal(self.record)
        channel.reach(self.record, FROM_TOPIC)
        if channel.parked is None:
            channel.parked = channel.open_parked()
        channel.ledger.header.moved_until = (<Parked> channel.parked).log.end + 1
        store_barrier()
        channel.park(self.record, FROM_TOPIC, self.record.attempts, due_ns)
        if self.record.due_ns != 0:
            channel.pass_deferred(ordinal)
        channel.unsettled_ahead += 1
        if channel.moved_ahead is None:
            channel.moved_ahead = set()
        channel.moved_ahead.add(ordinal)
        return 0
