"""Deferral: messages of a channel that wait for their due times.

    DPUB                                dues of the topic -> heap `published`  ->  due: queue of returned messages
    REQ with a delay, reschedule by id      note -> heap `waiting`             ->  due: queue of returned messages

A record stays where it is in the topic's log, and no ledger changes. The due time of its publisher lies in the record,
and in the topic's index of due times (pyx/diskqueue/dues.pyx), which all channels share. Each channel reads the index
as a second sequence, apart from its cursor: in its runs it pushes new entries into its heap, a slice in each. Entries
that it has not come to are *unseen*; their messages count as deferred. The cursor passes over their records.

A due time of the channel's own is a note, with the deliveries so far (pyx/diskqueue/notes.pyx). A message that was
deferred and delivered has a note until it is finished, so that a kill forgets neither its attempts nor, if the deferral
was a long one, the due time. FIN sets the bit first and frees the note then: the note of a finished message is garbage.

Entries of the heap `published` are removed when they become due only. Those of messages that were finished or
rescheduled by their id before are *void*: dropped when they are met. A rescheduled message, which is not finished, is
in `superseded` until then.

A queued message that is rescheduled by its id is *overridden*: its record lies at or past the cursor, and the cursor
passes over it when it comes there. Until then the record is in `LogCursor.overridden`, wherever its message is.

A due time that a publisher or an operator gave is a time of the wall clock, and follows its jumps. The delay of a
requeue follows the monotonic clock while the process lives. Its time in the heap is odd; all others there are even.
After a jump of the wall clock `follow_clock` shifts the odd ones by as much.

In memory a message deferred by its publisher takes 16 bytes, and one with a note 20: an entry of the heap, and its
place there by the slot of the note.

Invariants: 1. A note that is in `waiting` is of kind NOTE_DEFERRED, and its record is in no other place of the channel.
2. Each overridden record is not finished, lies at or past the cursor and has a note. 3. `LogCursor.dues_void` counts
the entries, in `published` or unseen, that are finished or in `superseded`.
"""

cimport cython

from pyqd.hot.diskqueue.notefiles cimport NOTE_DEFERRED, Note, note_offset, note_place
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, record_ordinal

cdef enum:
    WAITING_MIN = 4096                   # slots of the heap
    SEEING_WORK = 30                     # of an entry of dues, in units of work
    SEEN_PER_SLICE = 1000
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
        self.published = DueHeap()
        self.superseded = set()
        self.dues_seen = cursor.readable.due_end
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
        return note_place(segment.number, <uint64_t> (<const char*> record - segment.base))

    cdef uint64_t hinted_offset(self, const Note* note, Segment segment) noexcept:
        """Return the offset that a note's hint gives; 0: the hint is of another file.

        A hint into a segment that was never rewritten is right. Another one is not to be tried: a client may have
        published any bytes that lie there now.
        """
        return note_offset(note) if segment.rewrites == 0 and segment.number == note.place >> 32 else 0

    cdef bint is_present(self, Presence presence, const Note* note, uint64_t length) except -1:
        """Return whether the record of a note or entry, or more of the log from there on, is in memory.

        If it is not, `presence` names the pages. Cost: O(segments); in a rewritten segment a walk, once.
        """
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

    cdef const Record* record_of(self, const Note* note) except? NULL:
        """Return the record of a note or entry, verified; NULL: damage has taken it.

        Cost: as of `is_present`, and waits for the disk.
        """
        cdef uint64_t ordinal = note.seq & ORDINAL_MASK
        cdef uint64_t found
        cdef Segment segment = self.log.segment_of(ordinal)
        cdef uint64_t offset = self.hinted_offset(note, segment)
        if offset == 0:
            offset = self.reader.offset_of(segment, ordinal, &found)
        if not self.cursor.is_sound(segment, offset, ordinal) and segment.unverified:
            self.log.mend(segment)
            segment = self.log.segment_of(ordinal)
            offset = self.reader.offset_of(segment, ordinal, &found)
        # A lost record, which has the same number, may have taken its place.
        if not self.cursor.is_sound(segment, offset, ordinal) or (
                (<const Record*> (segment.base + offset)).flags & RECORD_LOST):
            return NULL
        return <const Record*> (segment.base + offset)

    # Changes.

    cdef uint32_t put(self, const Record* record, uint8_t kind, uint16_t attempts, int64_t due_ns) except NO_NOTE:
        """Store a note of a record. Returns: its slot. Raises: StorageError (nothing changed)."""
        self.open()
        return self.notes.put(record.seq, kind, attempts, due_ns, self.place_of(record))

    cdef uint32_t defer(
        self, const Record* record, uint16_t attempts, int64_t due_ns, uint32_t former,
    ) except NO_NOTE:
        """Let a record wait for a due time (Unix), with a new note in place of the former one, which may be NO_NOTE.

        Returns: the slot of the note. Raises: StorageError, MemoryError (nothing changed).
        """
        return self.defer_as(record, attempts, due_ns, due_ns & ~1, former)

    cdef uint32_t delay(
        self, const Record* record, uint16_t attempts, int64_t delay_ns, uint32_t former,
    ) except NO_NOTE:
        """Let a record wait for a delay from now, which follows no jumps of the wall clock. Otherwise like `defer`."""
        return self.defer_as(
            record, attempts, wall_ns() + delay_ns, (mono_ns() + self.wall_ahead_ns + delay_ns) | 1, former)

    cdef uint32_t defer_as(
        self, const Record* record, uint16_t attempts, int64_t due_ns, int64_t waits_until_ns, uint32_t former,
    ) except NO_NOTE:
        """Let a record wait. due_ns: for the note. waits_until_ns: for the heap."""
        cdef uint32_t slot = self.put(record, NOTE_DEFERRED, attempts, due_ns)
        try:
            self.wait_for(slot, waits_until_ns)
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
        self.defer(record, 0, due_ns, NO_NOTE)
        return self.add_overridden(record_ordinal(record))

    cdef int add_overridden(self, uint64_t ordinal) except -1:
        if self.cursor.overridden is None:
            self.cursor.overridden = set()
        self.cursor.overridden.add(ordinal)
        return 0

    cdef int supersede(self, const Record* record, int64_t due_ns) except -1:
        """Let a record that waits for its publisher's due time wait for another one.

        Raises: StorageError, MemoryError (nothing changed).
        """
        assert record.due_ns != 0, "the record has no due time"
        self.superseded.add(record_ordinal(record))
        try:
            self.defer(record, 0, due_ns, NO_NOTE)
        except BaseException:
            self.superseded.discard(record_ordinal(record))
            raise
        self.cursor.dues_void += 1
        return 0

    cdef uint64_t superseded_end(self) except? 0:
        """Return 1 + the highest ordinal in `superseded`; 0 if there is none. Cost: O(superseded)."""
        return <uint64_t> max(self.superseded) + 1 if self.superseded else 0

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

    cdef bint see(self) except -1:
        """Push entries of dues that are unseen into the heap, until the work budget of this pass is used up.

        Returns: whether none is left. Raises: MemoryError (some were pushed).
        """
        cdef uint64_t end
        while self.dues_seen != self.cursor.readable.due_end:
            if not self.cursor.readable.scheduler.has_work():
                return False
            end = min(self.cursor.readable.due_end, self.dues_seen + SEEN_PER_SLICE)
            self.cursor.readable.scheduler.spend(<int64_t> (SEEING_WORK * (end - self.dues_seen)))
            self.see_to(end)
        return True

    cdef int see_to(self, uint64_t end) except -1:
        """Push the entries of dues below an index into the heap. Raises: MemoryError (some were pushed)."""
        cdef const Note* entry
        cdef uint64_t file_end
        assert self.dues_seen <= end <= self.cursor.readable.due_end
        while self.dues_seen != end:
            entry = self.cursor.readable.dues.at(self.dues_seen)
            file_end = min(end, self.cursor.readable.dues.file_of(self.dues_seen).end)
            self.published.reserve(file_end - self.dues_seen)
            while self.dues_seen != file_end:
                # Nearly always none is void.
                if self.cursor.dues_void == 0 or not self.drops_void(entry.seq & ORDINAL_MASK):
                    self.published.push(entry.due_ns, entry.seq & ORDINAL_MASK)
                self.dues_seen += 1
                entry += 1
        return 0

    cdef bint drops_void(self, uint64_t ordinal) except -1:
        """Return whether an entry of dues, which is about to be seen or due, is void; it is dropped then."""
        if len(self.superseded) != 0 and ordinal in self.superseded:
            self.superseded.discard(ordinal)
        elif not self.cursor.ledger.is_finished(ordinal):
            return False
        # Damage may have taken a message that was delivered.
        self.cursor.dues_void -= self.cursor.dues_void != 0
        return True

    cdef int begin(self, bint from_cursor) except -1:
        """Begin with the unseen entries at a start, or after a move of the cursor. Cost: O(deferred messages).

        from_cursor: all messages below the cursor are finished.
        """
        cdef uint64_t index, ordinal
        cdef ReadableLog readable = self.cursor.readable
        cdef Ledger ledger = self.cursor.ledger
        cdef uint64_t oldest = ledger.header.cursor if from_cursor else ledger.oldest_unfinished()
        self.cursor.count_dues()
        self.published.clear()
        self.cursor.dues_void = 0
        self.dues_seen = readable.dues.lower_bound(min(oldest, readable.end))
        if from_cursor and ledger.ahead == 0 and not self.superseded:
            return 0
        for index in range(self.dues_seen, readable.due_end):
            ordinal = readable.dues.at(index).seq & ORDINAL_MASK
            self.cursor.dues_void += ledger.is_finished(ordinal) or (
                len(self.superseded) != 0 and ordinal in self.superseded)
        return 0

    cdef bint is_next_present(self) except -1:
        """Return whether the record that is due first, which there is, is in memory; if not, `presence` names it."""
        if self.presence is None:
            self.presence = Presence(self.log.files)
        self.presence.absent = None
        return self.is_present(self.presence, self.next_entry(), ASKED_BYTES)

    cdef uint32_t next_note(self) except? NO_NOTE:
        """Return the slot of the note of the message that is due first; NO_NOTE: it waits for its publisher's time."""
        assert self.waiting.count + self.published.count != 0, "no message waits"
        return self.waiting.peek_slot() if self.waiting.peek_due() < self.published.peek_due() else <uint32_t> NO_NOTE

    cdef const Note* next_entry(self) except NULL:
        """Return the note, or entry of dues, of the message that is due first."""
        cdef uint32_t note = self.next_note()
        return self.notes.at(note) if note != NO_NOTE else self.entry_of(self.published.peek_ref())

    cdef bint drops_next_void(self) except -1:
        """Drop the entry that is due first if it is void. Returns: whether it was."""
        if self.next_note() != NO_NOTE or not self.drops_void(self.published.peek_ref()):
            return False
        self.published.pop()
        return True

    cdef int drop_lost(self) except -1:
        """Finish the message that is due first, which damage has taken.

        On a full disk it stays unfinished, and keeps its segment until the next start.
        """
        cdef uint32_t note = self.next_note()
        self.cursor.try_finish_one(self.next_entry().seq & ORDINAL_MASK)
        if note != NO_NOTE:
            self.forget(note)
        else:
            self.pop_published()
        return self.cursor.note_finished_ahead()

    cdef int pop_published(self) except -1:
        """Take the first entry out of `published`: its message is due, or lost."""
        self.released_ns = max(self.released_ns, self.published.peek_due())
        self.published.pop()
        return 0

    cdef const Note* entry_of(self, uint64_t ordinal) except NULL:
        """Return the entry of dues of a record that has one. Cost: O(log dues)."""
        cdef const Note* entry = self.cursor.readable.dues.at(self.cursor.readable.dues.lower_bound(ordinal))
        assert entry.seq & ORDINAL_MASK == ordinal, "a message has lost its due time"
        return entry

    cdef uint64_t count(self) noexcept:
        """Count the messages that wait for a due time."""
        cdef uint64_t entries = self.cursor.readable.due_end - self.dues_seen + self.published.count
        debug_require(self.cursor.dues_void <= entries)
        return entries - self.cursor.dues_void + self.waiting.count

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
        self.clear()
        if self.notes is not None:
            self.notes.begin_generation(self.cursor.ledger.header.generation)
        return 0

    cdef int clear(self) except -1:
        self.waiting.clear()
        self.published.clear()
        self.superseded.clear()
        self.cursor.overridden = None
        self.cursor.dues_void = 0
        self.dues_seen = self.cursor.readable.due_end
        return 0

    cdef int abandon(self) except -1:
        """Forget all notes for good: the files are gone."""
        self.clear()
        if self.notes is not None:
            self.notes.abandon()
        return 0

    def check(self):
        """Assert the invariants. Cost: O(slots, and deferred messages)."""
        cdef uint32_t slot
        cdef uint64_t index, ordinal
        cdef uint64_t void_count = 0
        self.waiting.check()
        self.published.check()
        for index in range(self.published.count):
            ordinal = self.published.entries[index].ref
            assert self.entry_of(ordinal).due_ns == self.published.entries[index].due_ns
            void_count += self.is_void(ordinal)
        for index in range(self.dues_seen, self.cursor.readable.due_end):
            void_count += self.is_void(self.cursor.readable.dues.at(index).seq & ORDINAL_MASK)
        assert self.cursor.dues_void == void_count, "invariant 3"
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
        for ordinal in self.cursor.overridden or ():
            assert ordinal >= self.cursor.ordinal() and not self.cursor.ledger.is_finished(ordinal), "invariant 2"
            assert ordinal in noted, "invariant 2"

    cdef bint is_void(self, uint64_t ordinal) except -1:
        return ordinal in self.superseded or self.cursor.ledger.is_finished(ordinal)
