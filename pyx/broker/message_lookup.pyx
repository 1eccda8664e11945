"""Message lookup: finds a message of a channel by its id, to finish it unread or to give it another due time.

There is no index by message id: lookups are rare, and an index would cost 16 bytes per message. The search begins where
it is cheapest:

    in flight      the table of ids that FIN uses
    queued         the topic's log, by the id, which grows with the ordinal (see pyx/diskqueue/logreader.pyx)
    deferred       by its consumer or by its id: the notes that wait, 32 bytes each, read through
    returned       the fingerprints in the ring's entries, 24 bytes each, read through
    dead letter    likewise, in the ring of those that are not published yet
    deferred       by its publisher: its record has a due time, is not finished, and none of these has it

Three of these are read in steps, and the caller yields to the event loop between them, or has pages read that the step
found absent. Slots stay, and entries of the ring keep their numbers or get higher ones, so the search misses only a
message that moves meanwhile. A message that moves to the ring's end is met there. A message that is deferred again may
get a slot that the search has passed: another round finds it, which follows whenever something was deferred meanwhile,
and the last round is one step. The place that was found is right until the loop runs; the caller changes the message at
once, whatever consumers do.

Changes are those of consumers, by the same means, and as safe. Finishing is a bit. Another due time is a note, as of a
requeue with a delay (see pyx/broker/deferral.pyx). One thing is special: the message may be queued. Then the cursor
passes over its record.

Invariants: 1. messages in flight are not changed. 2. A change is made whole or not at all.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, fingerprint
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.notes cimport NO_NOTE
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport Record, record_ordinal
from pyqd.hot.wire.trace_events cimport DELIVERED_NOW, RESCHEDULED

cdef enum Place:
    UNKNOWN = 0                          # neither the channel nor the topic's log has it
    FINISHED = 1                         # the log still has it, the channel has finished it, or a sync will
    HELD = 2                             # the topic holds it, the channel may not read it yet
    QUEUED = 3                           # at or past the cursor
    RETURNED = 4                         # in the ring of messages for redelivery
    DEFERRED = 5                         # until the due time of its publisher
    IN_FLIGHT = 6
    DEAD_LETTER = 7                      # to be published in the dead-letter topic
    NOTED = 8                            # until the due time of its note

cdef enum:
    NOTES_PER_STEP = 1 << 17             # 4 MiB, and as much of the heap
    ENTRIES_PER_STEP = 1 << 18           # 6 MiB
    ROUNDS_MAX = 8                       # after these the search is one step

AT_UNKNOWN, AT_FINISHED, AT_HELD, AT_QUEUED, AT_RETURNED, AT_DEFERRED, AT_IN_FLIGHT, AT_DEAD_LETTER, AT_NOTED = (
    UNKNOWN, FINISHED, HELD, QUEUED, RETURNED, DEFERRED, IN_FLIGHT, DEAD_LETTER, NOTED)


@cython.final
cdef class MessageLookup:
    """Lookup of one message of a channel. notes_per_step, entries_per_step: read at once."""

    cdef readonly ChannelCore channel
    cdef readonly uint64_t guid
    cdef readonly Place place            # of the last `step`; right until the loop runs
    cdef const Record* kept              # in the topic's log, whatever the place; NULL: the log does not have it
    cdef const Record* record            # at the place, if there is one there
    cdef uint64_t at                     # slot of its note, or number in its ring
    cdef uint64_t notes_per_step
    cdef uint64_t entries_per_step
    cdef uint64_t next_note              # the search has come to this slot of notes ...
    cdef uint64_t next_number            # ... and to this entry of those for redelivery
    cdef uint64_t next_letter            # ... and of the dead letters
    cdef uint64_t defer_count            # messages that were given a note to wait with when this round began
    cdef uint64_t round_count

    def __init__(
        self, ChannelCore channel not None, uint64_t guid, *,
        uint64_t notes_per_step=NOTES_PER_STEP, uint64_t entries_per_step=ENTRIES_PER_STEP,
    ):
        self.channel = channel
        self.guid = guid
        self.notes_per_step = notes_per_step
        self.entries_per_step = entries_per_step
        self.begin_round()

    cdef int begin_round(self) except -1:
        self.next_note = 0
        self.next_number = 0
        self.next_letter = 0
        self.defer_count = self.channel.deferral.defer_count
        return 0

    cdef bint found(self, Place place, const Record* record, uint64_t at) noexcept:
        self.place = place
        self.record = record
        self.at = at
        return True

    def step(self, LogReader reader not None):
        """Continue the search, in a bounded step. reader: of the topic's log, prepared for the id.

        The presence of the reader names pages that the step has found absent. Returns: True if the place is known,
        until the loop runs; if not, another step is to follow.
        """
        cdef Presence presence = reader.begin()
        cdef bint asks = self.round_count < ROUNDS_MAX
        cdef ReadyRing ready = self.channel.ready
        cdef ReadyRing letters = self.channel.dead_letters.pending
        cdef uint64_t unsynced_number = 0
        if self.channel.slots.find(self.guid) >= 0:
            return self.found(IN_FLIGHT, NULL, 0)
        self.kept = reader.find(self.guid)
        # All of it: a message that is rescheduled is copied.
        if asks and self.kept != NULL and not presence.has_record_at(reader.log, self.kept):
            return False
        if self.step_in_log():
            return True
        if self.step_in_notes():
            return True
        if self.next_note < self.channel.deferral.waiting.slot_count_max:
            return False
        if self.step_in_ring(ready, &self.next_number, RETURNED):
            return True
        if self.step_in_ring(letters, &self.next_letter, DEAD_LETTER):
            return True
        if self.next_number < ready.end() or self.next_letter < letters.end():
            return False
        if self.defer_count != self.channel.deferral.defer_count:
            self.round_count += 1
            self.begin_round()
            return False
        # At most as many as are read at once wait for a sync of their dead letters.
        if self.step_in_ring(self.channel.dead_letters.unsynced, &unsynced_number, FINISHED):
            return True
        assert self.kept.due_ns != 0, "an unfinished message below the cursor is in no place"
        if not self.channel.cursor.is_in_dues(record_ordinal(self.kept)):
            return self.found(QUEUED, self.kept, 0)
        return self.found(DEFERRED, self.kept, 0)

    cdef bint step_in_log(self) except -1:
        """Look at the message in the topic's log, if the log has it. Returns: True if the place is known then."""
        cdef ChannelCore channel = self.channel
        cdef const Record* record = self.kept
        cdef uint64_t ordinal
        self.record = record
        if record == NULL:
            return self.found(UNKNOWN, NULL, 0)
        ordinal = record_ordinal(record)
        if ordinal >= channel.readable.end:
            return self.found(HELD, record, 0)
        if channel.ledger.is_finished(ordinal):
            return self.found(FINISHED, record, 0)
        if record.due_ns == 0 and ordinal >= channel.cursor.ordinal() and not channel.cursor.is_overridden(ordinal):
            return self.found(QUEUED, record, 0)
        return False

    cdef bint step_in_notes(self) except -1:
        """Search some of the notes that wait. Returns: True if the message has one of them."""
        cdef uint64_t end = self.channel.deferral.waiting.slot_count_max
        cdef int64_t slot
        if self.round_count < ROUNDS_MAX:
            end = min(end, self.next_note + self.notes_per_step)
        slot = self.channel.deferral.find_waiting(self.kept.seq, self.next_note, end)
        if slot >= 0:
            return self.found(NOTED, self.kept, <uint64_t> slot)
        self.next_note = max(self.next_note, end)
        return False

    cdef bint step_in_ring(self, ReadyRing ring, uint64_t* next_number, Place place) except -1:
        """Search some entries of a ring. next_number: of the next one. Returns: True if the message is there."""
        cdef uint64_t end = ring.end()
        cdef uint64_t number = max(next_number[0], ring.first)
        cdef uint32_t wanted = fingerprint(self.guid)
        cdef const ReadyEntry* entry
        if self.round_count < ROUNDS_MAX:
            end = min(end, number + self.entries_per_step)
        while number < end:
            entry = ring.at(number)
            if entry.fingerprint == wanted and entry.record.guid == self.guid:
                next_number[0] = number
                return self.found(place, entry.record, number)
            number += 1
        next_number[0] = number
        return False

    cdef ReadyRing ring(self):
        """Return the ring that the message was found in; None if it was found elsewhere."""
        if self.place == RETURNED:
            return self.channel.ready
        return self.channel.dead_letters.pending if self.place == DEAD_LETTER else None

    cdef bint is_in_place(self) except -1:
        """Return True if the message is in the place that was found, in which it may be changed."""
        cdef ChannelCore channel = self.channel
        cdef ReadyRing ring = self.ring()
        assert self.record != NULL or self.place in (UNKNOWN, IN_FLIGHT), "a place has a record"
        if self.place == DEFERRED:
            return not channel.ledger.is_finished(record_ordinal(self.record))
        if self.place == NOTED:
            return channel.deferral.find_waiting(self.record.seq, self.at, self.at + 1) >= 0
        if ring is not None:
            return ring.first <= self.at < ring.end() and ring.at(self.at).record.guid == self.guid
        return self.place == QUEUED and record_ordinal(self.record) >= channel.cursor.ordinal()

    def due_ns(self):
        """Return the due time of the message (Unix); 0 if it has passed, or the place has none."""
        if self.place == NOTED:
            return self.channel.deferral.notes.at(<uint32_t> self.at).due_ns
        return self.record.due_ns if self.place == DEFERRED else 0

    def make_room(self, bint cancels):
        """Grow a ledger in a thread, if a change of the message, found since the loop ran, needs it larger.

        Returns: False if there is no need; if True, the caller waits until no ledger grows, and searches again.
        """
        assert self.is_in_place(), "the message has moved since it was found"
        if self.channel.grow_for(self.channel.ledger, record_ordinal(self.record)):
            return True
        return cancels and self.kept != NULL and self.channel.make_room_to_cancel(record_ordinal(self.kept))

    def cancel(self):
        """Finish the message, which was found queued, returned, deferred or as a dead letter since the loop ran.

        A channel that is moved back does not deliver it: that is noted first, so a kill leaves it noted and finished.
        Raises: StorageError, MemoryError (nothing changed).
        """
        cdef TracePlace traced = None if self.channel.trace is None else self.channel.trace.place
        cdef bint is_done = False
        assert self.is_in_place(), "the message has moved since it was found"
        if traced is not None:
            traced.begin_cancel(self.guid)
        try:
            self.finish()
            is_done = True
        finally:
            if traced is not None:
                traced.end_cancel(is_done)

    cdef int finish(self) except -1:
        """Finish the message in its place. Raises: StorageError, MemoryError (nothing changed)."""
        cdef ChannelCore channel = self.channel
        cdef ReadyRing ring = self.ring()
        cdef uint32_t note = NO_NOTE
        assert self.place != IN_FLIGHT and self.record != NULL, "invariant 1"
        channel.ledger.reach(record_ordinal(self.record))
        if self.kept != NULL:
            # Seeks skip it.
            channel.note_cancelled(record_ordinal(self.kept))
        if self.place == NOTED:
            note = <uint32_t> self.at
        elif self.place == DEFERRED:
            channel.cursor.dues_void += 1
        elif ring is not None:
            note = ring.at(self.at).note
            ring.remove(self.at)
        channel.cursor.finish(self.record)
        if note != NO_NOTE:
            channel.deferral.forget(note)
        channel.cursor.note_finished_ahead()
        channel.ledger.header.finish_count += 1
        return 0

    def reschedule(self, int64_t due_ns, LogReader reader not None, bint at_once=False):
        """Give the message, which was found queued, returned or deferred since the loop ran, another due time.

        due_ns: Unix. A message that is due stays in its place if this time has passed, too. reader: as for `step`.
        at_once: the message is to be delivered now, for its trace.
        Raises: StorageError, MemoryError (nothing changed).
        """
        cdef ChannelCore channel = self.channel
        cdef ReadyEntry entry
        assert self.place in (DEFERRED, NOTED, QUEUED, RETURNED)
        assert self.is_in_place(), "the message has moved since it was found"
        if self.place in (QUEUED, RETURNED) and due_ns <= wall_ns():
            return
        if self.place == QUEUED:
            self.reschedule_queued(due_ns, reader)
        elif self.place == RETURNED:
            entry = channel.ready.at(self.at)[0]
            channel.deferral.defer(entry.record, entry.attempts, due_ns, entry.note)
            channel.ready.remove(self.at)
        elif self.place == NOTED:
            channel.deferral.defer(
                self.record, channel.deferral.notes.at(<uint32_t> self.at).attempts, due_ns, <uint32_t> self.at)
        else:
            channel.deferral.supersede(self.record, due_ns)
        if self.place == UNKNOWN:
            return
        channel.set_next_timer(mono_ns())
        if channel.trace is not None and at_once:
            channel.trace.place.note(DELIVERED_NOW, self.guid, 0, 0, None, wall_ns())
        elif channel.trace is not None:
            channel.trace.place.note_due(RESCHEDULED, self.guid, due_ns, wall_ns())

    cdef int reschedule_queued(self, int64_t due_ns, LogReader reader) except -1:
        """Let the cursor pass over the message's record. If damage has taken the message, the place is UNKNOWN."""
        cdef ChannelCore channel = self.channel
        cdef uint64_t ordinal = record_ordinal(self.record)
        cdef Segment segment = channel.readable.log.segment_of(ordinal)
        if not channel.cursor.verify(segment, <const char*> self.record - segment.base, ordinal):
            # It may be at another place now.
            self.record = reader.find(self.guid)
        if self.record == NULL:
            self.place = UNKNOWN
            return 0
        channel.deferral.override(self.record, due_ns)
        return 0
