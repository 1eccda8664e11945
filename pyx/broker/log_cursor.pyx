"""Cursor of a channel over its topic's log: the next record never handed out.

    topic's log   | finished | handed out, or deferred | cursor | never handed out            | readable.end

The cursor moves over each record once. `next_record` skips records that are finished, lost in a hole or damaged, and
returns the next one without moving over it. Most often that is the record at the cursor, so this case is inline. The
channel then hands the record out or, if the record has a due time, passes over it: the message comes by its due time
(see pyx/broker/deferral.pyx), whether the cursor has come to its record or not.

The ledger stores the cursor's ordinal and, as a hint that recovery checks, the place of its record.

A load from a page that is not in memory, or not in the page table, may hold the event loop for as long as the disk
takes (see pyx/diskqueue/presence.pyx). Both waits belong to a thread:

    pages not in memory             the cursor asks the kernel about each MiB that it comes to
    written by pwrite(2), backlog   put into the page table before the cursor comes there, some MiB ahead

`next_record` returns nothing while the pages at the cursor are being read. Messages that are read soon after they were
written are left to the load: write-back comes later.

A queued message that was rescheduled by its id is *overridden*: the cursor passes over its record likewise.

Invariants: 1. `segment.base + offset` is the record with ordinal `ledger.cursor`, or the gap that has it, or the log's
end. The cursor meets a gap only if its ledger is older than the rewriting of the segment, after a power failure. 2. The
cursor hands out no record that has a due time or is overridden. 3. `dues_ahead()` is the number of records at or past
the cursor, below the readable end, that have a due time and are not finished.

Source: docs/nsq/broker-semantics.md, "Delivery to a client".
"""

cimport cython
from libc.stdint cimport UINT64_MAX

from pyqd.hot.diskqueue.dues cimport Dues
from pyqd.hot.diskqueue.ledger cimport LedgerHeader
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.mapping cimport Mapping, store_barrier
from pyqd.hot.diskqueue.presence cimport is_backlog, page_below
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport whole_pages
from pyqd.hot.wire.record cimport (
    ORDINAL_MASK,
    RECORD_HEADER_BYTES,
    RECORD_VALID,
    ordinal_after,
    ordinals_of,
    record_verdict,
)

from pyqd.primitives.errors import StorageError

cdef enum:
    SKIPPED_PER_RUN = 10000

cdef uint64_t LOOKED_AT_ONCE_BYTES = 1 << 20
cdef uint64_t READ_AT_ONCE_BYTES = 4 << 20
cdef uint64_t AHEAD_BYTES = 8 << 20

@cython.final
cdef class LogCursor:
    """Cursor of one channel. position: that of the ledger's cursor in the log, or of the first record behind it."""

    def __init__(self, ReadableLog readable not None, Ledger ledger not None, Position position not None):
        self.readable = readable
        self.ledger = ledger
        self.segment = position.segment
        self.offset = position.offset
        assert position.ordinal == ledger.header.cursor or position.segment.first_ordinal > ledger.header.cursor

    cdef bint steps_over(self, const Record* record) except -1:
        """Move over the record at the cursor, which is not finished, unless it is to be handed out.

        Returns: whether it has moved.
        """
        debug_require(not self.ledger.is_finished(record_ordinal(record)))
        if record.due_ns != 0 and self.is_in_dues(record_ordinal(record)):
            self.dues_passed += 1
            debug_require(self.dues_ahead() <= self.readable.end - self.ledger.header.cursor)
        elif self.is_overridden(record_ordinal(record)):
            self.forget_overridden(record_ordinal(record))
        else:
            return False
        self.pass_over(record)
        return True

    cdef bint is_in_dues(self, uint64_t ordinal) except -1:
        """Return whether a record has an entry of dues. Cost: O(1) for records in order, else O(log dues).

        A mended segment may have a record of a batch that a kill has interrupted, in the place of a damaged one.
        Without an entry it would never be due, so it comes in the order of the log.
        """
        cdef Dues dues = self.readable.dues
        if not dues.first <= self.next_due < dues.end or dues.at(self.next_due).seq & ORDINAL_MASK != ordinal:
            self.next_due = dues.lower_bound(ordinal)
            if self.next_due == dues.end or dues.at(self.next_due).seq & ORDINAL_MASK != ordinal:
                return False
        self.next_due += 1
        return True

    cdef int finish_ahead(self, const Record* record) except -1:
        """Like `finish`, for a record at or past the cursor: its message was deferred, or is cancelled."""
        self.ledger.finish(record_ordinal(record))
        self.dues_passed += record.due_ns != 0 and self.is_in_dues(record_ordinal(record))
        return self.note_finished_ahead()

    cdef int finish_range(self, uint64_t start, uint64_t end) except -1:
        """Finish the records of a range, no message of which was handed out. Raises: StorageError (nothing changed).

        Cost: O(deferred ones among them, and the 64th part of all).
        """
        cdef uint64_t count = self.unfinished_dues(start, end)
        cdef uint64_t ahead = self.unfinished_dues(max(start, self.ledger.header.cursor), end)
        self.ledger.finish_range(start, end)
        self.dues_void += count
        self.dues_passed += ahead
        return 0

    cdef uint64_t unfinished_dues(self, uint64_t start, uint64_t end) except? <uint64_t> -1:
        """Count the deferred records of a range, as far as it is readable, that are not finished."""
        cdef uint64_t index, found = 0
        end = min(end, self.readable.end)
        if start < end:
            for index in range(self.readable.dues.lower_bound(start), self.readable.dues.lower_bound(end)):
                found += not self.ledger.is_finished(self.readable.dues.at(index).seq & ORDINAL_MASK)
        return found

    cdef list unfinished_dues_from(self, uint64_t start):
        """Return the ordinals of the deferred records from one on that are not finished, as far as they are readable.
        """
        cdef uint64_t index, ordinal
        found = []
        for index in range(self.readable.dues.lower_bound(start), self.readable.due_end):
            ordinal = self.readable.dues.at(index).seq & ORDINAL_MASK
            if not self.ledger.is_finished(ordinal):
                found.append(ordinal)
        return found

    cdef bint try_finish_one(self, uint64_t ordinal) except -1:
        """Finish a record that damage has taken, and whose message was in a place that the caller knows.

        Returns: False on a full disk (nothing changed).
        """
        cdef uint64_t ahead = self.unfinished_dues(max(ordinal, self.ledger.header.cursor), ordinal + 1)
        if not self.ledger.try_finish(ordinal):
            return False
        self.dues_passed += ahead
        return True

    cdef int count_dues(self) except -1:
        """Count the deferred records at or past the cursor, at a start or after a move of the cursor.

        Cost: O(log dues); if records past the cursor are finished, O(deferred ones past the cursor).
        """
        cdef uint64_t cursor = min(self.ledger.header.cursor, self.readable.end)
        if self.ledger.ahead == 0:
            self.dues_passed = self.readable.dues.lower_bound(cursor)
        else:
            self.dues_passed = self.readable.due_end - self.unfinished_dues(cursor, self.readable.end)
        return 0

    cdef const Record* find_next_record(self) except? NULL:
        """Like `next_record`, which comes here unless the record at the cursor is the next one."""
        cdef const Record* record
        self.ledger_full = False
        self.absent_end = 0
        while self.ledger.header.cursor < self.readable.end:
            self.leave_drained()
            if self.ledger.header.cursor < self.segment.first_ordinal:
                # A hole: missing records count as finished.
                if not self.try_finish_next():
                    return NULL
                self.ledger.skip()
                continue
            if not self.is_present():
                return NULL
            record = <const Record*> (self.segment.base + self.offset)
            if self.segment.unverified and not self.next_is_sound(record):
                continue
            assert record_ordinal(record) <= self.ledger.header.cursor < ordinal_after(record), "the cursor is off"
            if record.flags & RECORD_LOST and not self.try_finish_lost(record):
                return NULL
            if self.ledger.next_is_finished():
                self.skip_record(record)
                self.readable.note_floor(self.ledger)
                continue
            return record
        return NULL

    cdef bint is_present(self) except -1:
        """Return whether the record at the cursor is in memory. If it is not, `absent_end` is set."""
        cdef uint64_t span
        debug_require(self.offset < self.segment.tail)
        if self.offset + RECORD_HEADER_BYTES > self.present_end and not self.look_ahead(LOOKED_AT_ONCE_BYTES):
            return False
        # Of a damaged record the size may be wrong.
        span = min(
            record_span((<const Record*> (self.segment.base + self.offset)).size_bytes),
            self.segment.tail - self.offset)
        return self.offset + span <= self.present_end or self.look_ahead(max(span, LOOKED_AT_ONCE_BYTES))

    cdef bint look_ahead(self, uint64_t length) except -1:
        """Ask whether the pages of the next `length` bytes are in memory, and set `present_end` or `absent_end`.

        Bytes behind the log's end count as present: they are about to be written.
        """
        cdef Mapping mapping = self.segment.mapping
        cdef uint64_t start = page_below(self.offset)
        cdef uint64_t end = whole_pages(self.offset + length)
        cdef uint64_t asked_end = min(end, min(whole_pages(self.segment.tail), mapping.size_bytes))
        debug_require(length != 0)
        if mapping.path is None:
            self.present_end = UINT64_MAX
            return True
        if (self.segment.mapped_end < asked_end and is_backlog(self.segment, self.offset)) or (
                not self.readable.log.files.is_present(mapping, start, asked_end - start)):
            self.absent_end = end
            return False
        self.present_end = end
        self.ahead_due = True
        return True

    cdef bint find_absent(self) except -1:
        """Find the pages that `next_record` waits for, as `unmapped`, and some more. Returns: whether it waits."""
        if self.absent_end == 0:
            return False
        self.set_unmapped(self.segment, self.offset, max(self.absent_end, self.offset + READ_AT_ONCE_BYTES))
        return True

    cdef bint find_unmapped(self) except -1:
        """Find pages of a backlog that the cursor comes to next and that are not in the page table, as `unmapped`.

        Returns: whether there are any. Cost: O(segments within AHEAD_BYTES).
        """
        cdef Segment segment = self.segment
        cdef uint64_t at = self.offset
        cdef uint64_t distance = 0
        cdef uint64_t start
        self.ahead_due = False
        while segment is not None and distance < AHEAD_BYTES:
            start = max(segment.mapped_end, at)
            if start < segment.tail and distance + (start - at) < AHEAD_BYTES and is_backlog(segment, start):
                self.set_unmapped(segment, start, start + READ_AT_ONCE_BYTES)
                return True
            distance += segment.tail - at
            segment = segment.next
            at = SEGMENT_HEADER_BYTES
        return False

    cdef int set_unmapped(self, Segment segment, uint64_t start, uint64_t end) except -1:
        self.unmapped = segment
        self.unmapped_start = page_below(start)
        self.unmapped_end = min(whole_pages(end), min(whole_pages(segment.tail), segment.mapping.size_bytes))
        assert self.unmapped_start < self.unmapped_end
        return 0

    def note_read(self, Segment segment not None, uint64_t start, uint64_t end):
        """Go on after the pages of a range were read. If that failed, the load that meets them shows it."""
        assert start < end
        segment.note_mapped(end)
        self.ahead_due = True
        if segment is self.segment and start <= self.offset and self.absent_end != 0:
            self.present_end = max(self.present_end, end)

    cdef bint try_finish_next(self) except -1:
        """Finish the record at the cursor, which cannot be handed out, if it is not finished yet.

        Returns: False if the ledger has to grow first; `ledger_full` is set.
        """
        cdef uint64_t cursor = self.ledger.header.cursor
        debug_require(cursor < self.readable.end)
        if not self.ledger.next_is_finished():
            if self.ledger.path is not None and not self.ledger.reaches(cursor):
                self.ledger_full = True
                return False
            self.ledger.unseal()
            try:
                self.finish_range(cursor, cursor + 1)
            except StorageError:
                self.ledger_full = True
                return False
        return True

    cdef bint try_finish_lost(self, const Record* record) except -1:
        """Finish the ordinals that a lost record stands for, from the cursor on, as far as the ledger's window reaches.

        Returns: as `try_finish_next`.
        """
        cdef uint64_t end = min(ordinal_after(record), self.readable.end, self.ledger.bits_end())
        if self.ledger.header.cursor + 1 < end:
            self.finish_range(self.ledger.header.cursor, end)
        return self.try_finish_next()

    cdef int skip_record(self, const Record* record) except -1:
        """Move over the record at the cursor, which is finished; over a gap as far as it is finished and readable."""
        cdef uint64_t end = min(ordinal_after(record), self.readable.end)
        assert self.ledger.header.cursor < end
        if ordinals_of(record) == 1:
            self.ledger.skip()
        else:
            self.ledger.skip_run(self.ledger.finished_run(end))
        if self.ledger.header.cursor == ordinal_after(record):
            self.offset += record_span(record.size_bytes)
        return 0

    cdef bint next_is_sound(self, const Record* record) except -1:
        """Verify a record of an earlier run when the cursor reaches it; if it is damaged, mend the segment."""
        cdef Position position
        cdef uint64_t cursor = self.ledger.header.cursor
        debug_require(self.segment.unverified)
        if self.verify(self.segment, self.offset, cursor):
            return True
        position = self.readable.log.locate(cursor)
        self.move_to(position.segment, position.offset)
        return False

    cdef bint verify(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        """Return whether the record there is undamaged, if an earlier run wrote it; if it is not, mend its segment.

        The whole segment, which may be as large as --max-bytes-per-file, is read for a damaged record only.
        """
        if not segment.unverified or self.is_sound(segment, offset, ordinal):
            return True
        self.readable.log.mend(segment)
        return False

    cdef bint is_sound(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        """Return True if a segment has the undamaged record with that ordinal at that offset."""
        cdef uint64_t seq = segment.header().first_seq + (ordinal - segment.first_ordinal)
        debug_require(ordinal >= segment.first_ordinal)
        return offset < segment.tail and record_verdict(
            segment.base + offset, segment.tail - offset, seq) == RECORD_VALID

    cdef int finish_missing(self, uint64_t start, uint64_t end) except -1:
        """Finish the records of `[start, end)` that the topic's log has lost; the channel may read all of it.

        Records behind the readable end are no part of the depth yet, so they must not be finished.
        Raises: StorageError.
        """
        cdef uint64_t first, behind
        assert end <= self.readable.end
        for first, behind in self.readable.log.holes:
            self.finish_range(max(first, start), min(behind, end))
        return 0

    cdef int forget_overridden(self, uint64_t ordinal) except -1:
        """Let a record be overridden no longer, if it is: the cursor passes it, or its message is finished."""
        assert self.overridden is not None
        self.overridden.discard(ordinal)
        if not self.overridden:
            self.overridden = None
        return 0

    cdef uint64_t overridden_end(self) except? 0:
        """Return 1 + the highest overridden ordinal; 0 if there is none. Cost: O(overridden)."""
        return 0 if self.overridden is None else <uint64_t> max(self.overridden) + 1

    cdef int leave_drained(self) except -1:
        """Move on from a segment that has been read to its end; it is recycled when all of it is finished."""
        while self.offset == self.segment.tail and self.segment.next is not None:
            self.move_to(self.segment.next, SEGMENT_HEADER_BYTES)
        debug_require(self.offset <= self.segment.tail)
        return 0

    cdef int move_to(self, Segment segment, uint64_t offset) except -1:
        """Set the place of the cursor; the ledger already has its ordinal."""
        assert SEGMENT_HEADER_BYTES <= offset <= segment.tail
        self.segment = segment
        self.offset = offset
        self.present_end = 0
        return 0

    cdef int save_place(self) except -1:
        """Store the place of the cursor's record: a hint that recovery checks."""
        cdef LedgerHeader* header = self.ledger.header
        if header.cursor_segment != self.segment.number:
            self.ledger.unseal()
            # An offset of another segment may lead into a body, and a body may look like a record.
            header.cursor_offset = 0
            store_barrier()
            header.cursor_segment = self.segment.number
            store_barrier()
        header.cursor_offset = self.offset
        debug_require(self.offset <= self.segment.tail)
        return 0

    cdef bint skip_finished(self) except -1:
        """Move over finished records, so that they do not hold a segment while the channel is idle.

        Cost: one step per segment whose remaining records are all finished, and per record of others or per ordinal of
        a hole, at most SKIPPED_PER_RUN. Returns: True if there are more.
        """
        cdef const Record* record
        cdef Segment tried = None
        debug_require(self.ledger.header.cursor <= self.readable.end)
        for _ in range(SKIPPED_PER_RUN):
            self.leave_drained()
            if self.ledger.header.cursor >= self.readable.end or not self.ledger.next_is_finished():
                return False
            if self.ledger.header.cursor < self.segment.first_ordinal:
                self.ledger.skip()
                continue
            if self.segment is not tried:
                tried = self.segment
                if self.skip_segment():
                    continue
            record = <const Record*> (self.segment.base + self.offset)
            if not self.segment.unverified or self.next_is_sound(record):
                self.skip_record(record)
        # The last record may have ended a segment, which is recycled next.
        self.leave_drained()
        return True

    cdef bint skip_segment(self) except -1:
        """Move to the end of the cursor's segment if all records from the cursor to that end are finished.

        The records are not read, so they need not be verified. Returns: whether the cursor has moved. Cost:
        O(records / 64).
        """
        cdef uint64_t cursor = self.ledger.header.cursor
        cdef uint64_t end = self.segment.end_ordinal()
        # The header of an unverified segment may be wrong about its end.
        if not cursor < end <= self.readable.end or self.ledger.finished_run(end) != end - cursor:
            return False
        self.ledger.skip_run(end - cursor)
        self.offset = self.segment.tail
        return True

    cdef int note_finished_ahead(self) except -1:
        """Request a trim, which calls `skip_finished`, if the record at the cursor is finished already."""
        if self.ledger.next_is_finished():
            self.readable.request_trim()
        return 0
