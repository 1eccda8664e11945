"""Deferral: messages of the topic's log that wait for a due time of the channel's own.

    REQ with a delay, reschedule by id  ->  note, heap of due times  ->  due: queue of returned messages

The record stays where it is in the topic's log, and no ledger changes. A note with the due time and the deliveries so
far outlives the process (see pyx/diskqueue/notes.pyx); the heap has the notes that wait. A message that was deferred
keeps its note until it is finished, so that a kill forgets neither its attempts nor, if the deferral was a long one,
the due time. FIN sets the bit first and frees the note then: the note of a finished message is garbage.

A queued message that is rescheduled by its id is *overridden*: its record lies at or past the cursor, and the cursor
passes over it when it comes there. Until then the record is in `LogCursor.overridden`, wherever its message is.

A due time that an operator gave is a time of the wall clock, and follows its jumps. The delay of a requeue follows the
monotonic clock while the process lives. Its time in the heap is odd; all others are even. After a jump of the wall
clock `follow_clock` shifts the odd ones by as much.

In memory a deferred message takes 20 bytes: an entry of the heap, and its place there by the slot of the note.

Invariants: 1. A note that is in `waiting` is of kind NOTE_DEFERRED, and its record is in no other place of the channel.
2. Each overridden record is not finished, lies at or past the cursor and has a note.
"""

cimport cython

from pyqd.hot.broker.slots cimport FROM_TOPIC
from pyqd.hot.diskqueue.notes cimport NOTE_DEFERRED, Note, note_offset
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, record_ordinal

cdef enum:
    WAITING_MIN = 4096                   # slots of the heap
    JUMP_NS_MIN = 50000000               # less is a correction of the clock's rate, or a pause between two readings
    ASKED_BYTES = 64 << 10               # as much as the kernel reads at a page fault
    NO_PLACE = 0


@cython.final
cdef class Deferral:
    """Deferral of one channel. files: its ChannelFiles."""

    def __init__(self, LogCursor cursor not None, files not None):
        self.cursor = cursor
        self.log = cursor.readable.log
        self.files = files
        self.reader = LogReader(self.log)
        self.waiting = DeadlineHeap()
        self.wall_ahead_ns = wall_ns() - mono_ns()

    cpdef int adopt(self, Notes notes) except -1:
        """Take up the notes that an earlier run left."""
        assert self.notes is None, "the channel has notes"
        self.notes = notes
        return 0

    cdef int open(self) except -1:
        """Open the notes unless they are open. Raises: StorageError."""
        if self.notes is None:
            self.notes = self.files.open_notes()
        return 0

    # Places of records.

    cdef uint64_t place_of(self, const Record* record) noexcept:
        """Return the place of a record of the topic's log, as a note has it. Cost: O(segments)."""
        cdef Segment segment = self.log.segment_of(record_ordinal(record))
        if segment.rewrites != 0:
            # The next rewriting of the segment puts the record at another place.
            return NO_PLACE
        return segment.number << 32 | <uint64_t> (<const char*> record - segment.base) >> 3

    cdef uint64_t hinted_offset(self, const Note* note, Segment segment) noexcept:
        """Return the offset that a note's hint gives; 0: the hint is of another file.

        A hint into a segment that was never rewritten is right. Another one is not to be tried: a client may have
        published any bytes that lie there now.
        """
        return note_offset(note) if segment.rewrites == 0 and segment.number == note.place >> 32 else 0

    cdef bint is_present(self, Presence presence, uint32_t slot, uint64_t length) except -1:
        """Return whether the record of a note, or more of the log from there on, is in memory.

        If it is not, `presence` names the pages. Cost: O(segments); in a rewritten segment a walk, once.
        """
        cdef const Note* note = self.notes.at(slot)
        cdef uint64_t ordinal = note.seq & ORDINAL_MASK
        cdef Segment segment = self.log.segment_of(ordinal)
        cdef uint64_t offset = self.hinted_offset(note, segment)
        if offset != 0:
            return presence.has_record(segment, offset, length)
        self.reader.asked = presence
        while not self.reader.prepare(ordinal, length):
            if presence.absent is not None:
                return False
        return True

    cdef const Record* record_of(self, uint32_t slot) except? NULL:
        """Return the record of a note; NULL: damage has taken it. Cost: as of `is_present`, and waits for the disk."""
        cdef const Note* note = self.notes.at(slot)
        cdef uint64_t ordinal = note.seq & ORDINAL_MASK
        cdef Segment segment = self.log.segment_of(ordinal)
        cdef uint64_t offset = self.hinted_offset(note, segment)
        cdef const Record* record
        if offset == 0:
            offset = self.reader.offset_of(segment, ordinal, &ordinal)
        record = <const Record*> (segment.base + offset)
        return record if offset < segment.tail and record.seq == note.seq and not record.flags & RECORD_LOST else NULL

    # Changes.

    cdef uint32_t put(self, const Record* record, uint8_t kind, uint16_t attempts, int64_t due_ns) except NO_NOTE:
        """Store a note of a record. Returns: its slot. Raises: StorageError (nothing changed)."""
        self.open()
        return self.notes.put(record.seq, FROM_TOPIC, kind, attempts, due_ns, self.place_of(record))

    cdef uint32_t defer(
        self, const Record* record, uint16_t attempts, int64_t due_ns, uint32_t former, bint is_delay=False,
    ) except NO_NOTE:
        """Let a record wait for a due time (Unix), with a new note in place of the former one, which may be NO_NOTE.

        is_delay: the due time is a delay from now, so it does not follow jumps of the wall clock.
        Returns: the slot of the note. Raises: StorageError, MemoryError (nothing changed).
        """
        cdef uint32_t slot = self.put(record, NOTE_DEFERRED, attempts, due_ns)
        due_ns &= ~1
        if is_delay:
            due_ns += mono_ns() + self.wall_ahead_ns - wall_ns()
            due_ns |= 1
        try:
            self.wait_for(slot, due_ns)
        except MemoryError:
            self.notes.free(slot)
            raise
        self.defer_count += 1
        if former != NO_NOTE:
            if self.waiting.contains(former):
                self.waiting.remove(former)
            self.notes.free(former)
        return slot

    cdef int wait_for(self, uint32_t slot, int64_t due_ns) except -1:
        """Enter a note in the heap. Raises: MemoryError (nothing changed)."""
        cdef uint32_t capacity = self.waiting.slot_count_max
        if slot >= capacity:
            self.waiting.reserve(max(slot + 1, <uint32_t> WAITING_MIN, capacity + (capacity >> 3)))
        return self.waiting.push(slot, due_ns)

    cdef int override(self, const Record* record, int64_t due_ns) except -1:
        """Let a queued record, at or past the cursor, wait for a due time instead.

        Raises: StorageError, MemoryError (nothing changed).
        """
        assert record_ordinal(record) >= self.cursor.ordinal(), "the record was handed out"
        assert not self.cursor.is_overridden(record_ordinal(record)), "the record waits already"
        self.defer(record, record.attempts, due_ns, NO_NOTE)
        return self.add_overridden(record_ordinal(record))

    cdef int add_overridden(self, uint64_t ordinal) except -1:
        if self.cursor.overridden is None:
            self.cursor.overridden = set()
        self.cursor.overridden.add(ordinal)
        return 0

    cdef int forget(self, uint32_t slot) except -1:
        """Drop a note: its message is finished, or another log has the message now."""
        cdef uint64_t ordinal = self.notes.at(slot).seq & ORDINAL_MASK
        if self.waiting.contains(slot):
            self.waiting.remove(slot)
        if self.cursor.overridden is not None:
            self.cursor.forget_overridden(ordinal)
        return self.notes.free(slot)

    # Due messages.

    cdef int follow_clock(self, int64_t wall_now_ns) except -1:
        """Shift the due times that are delays if the wall clock has jumped. Cost: O(waiting) after a jump."""
        cdef int64_t jump_ns = (wall_now_ns - mono_ns() - self.wall_ahead_ns) & ~1
        if jump_ns >= JUMP_NS_MIN or jump_ns <= -JUMP_NS_MIN:
            self.wall_ahead_ns += jump_ns
            self.waiting.shift_odd(jump_ns)
        return 0

    cdef bint is_next_present(self) except -1:
        """Return whether the record that is due first, which there is, is in memory; if not, `presence` names it."""
        assert self.waiting.count != 0, "no message waits"
        if self.presence is None:
            self.presence = Presence(self.log.files)
        self.presence.absent = None
        return self.is_present(self.presence, self.waiting.peek_slot(), ASKED_BYTES)

    cdef uint32_t pop_due(self) except NO_NOTE:
        """Take the note that is due first out of the heap. Returns: its slot."""
        cdef uint32_t slot = self.waiting.peek_slot()
        assert self.waiting.count != 0, "no message waits"
        self.waiting.remove(slot)
        return slot

    cdef int64_t find_waiting(self, uint64_t seq, uint64_t start, uint64_t end) except? -1:
        """Return the first slot of `[start, end)` whose note waits and is of a record; -1: there is none."""
        cdef uint64_t slot
        for slot in range(start, min(end, <uint64_t> self.waiting.slot_count_max)):
            if self.waiting.contains(<uint32_t> slot) and self.notes.at(<uint32_t> slot).seq == seq:
                return <int64_t> slot
        return -1

    # Ends.

    cdef int drop_all(self) except -1:
        """Forget all notes after a reset of the channel's ledger, which has begun another generation of them.

        Their files go when a sync has covered the ledger: a power failure before that brings the channel back to its
        former place.
        """
        self.waiting.clear()
        self.cursor.overridden = None
        if self.notes is not None:
            self.notes.begin_generation(self.cursor.ledger.header.generation)
        return 0

    cdef int abandon(self) except -1:
        """Forget all notes for good: the files are gone."""
        self.waiting.clear()
        self.cursor.overridden = None
        if self.notes is not None:
            self.notes.abandon()
        return 0

    def check(self):
        """Assert the invariants. Cost: O(slots)."""
        cdef uint32_t slot
        self.waiting.check()
        if self.notes is None:
            assert self.waiting.count == 0
            assert self.cursor.overridden is None
            return
        self.notes.check()
        noted = {row[0] & ORDINAL_MASK for row in self.notes.rows().values()}
        for slot in range(self.waiting.slot_count_max):
            if self.waiting.contains(slot):
                assert self.notes.at(slot).kind == NOTE_DEFERRED, "invariant 1"
                assert not self.cursor.ledger.is_finished(self.notes.at(slot).seq & ORDINAL_MASK), "invariant 1"
                assert self.record_of(slot) != NULL, "a note of a record that the log does not keep"
        for ordinal in self.cursor.overridden or ():
            assert ordinal >= self.cursor.ordinal() and not self.cursor.ledger.is_finished(ordinal), "invariant 2"
            assert ordinal in noted, "invariant 2"
