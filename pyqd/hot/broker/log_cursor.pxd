from libc.stdint cimport uint64_t

from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.wire.record cimport RECORD_LOST, Record, record_ordinal, record_span

cdef class LogCursor:
    cdef ReadableLog readable
    cdef Ledger ledger                   # its header holds the cursor's ordinal
    cdef Segment segment                 # of the record at the cursor
    cdef uint64_t offset                 # of that record in the segment
    cdef uint64_t present_end            # records of the segment up to there can be read without waiting for the disk
    cdef uint64_t absent_end             # `next_record` waits for the pages from the cursor up to there; 0: it does not
    cdef bint ahead_due                  # `find_unmapped` may find something
    cdef public bint reads               # set by the reader: a thread reads what was found
    cdef Segment unmapped                # what it has found, and the range in it
    cdef uint64_t unmapped_start
    cdef uint64_t unmapped_end
    cdef set overridden                  # plain records at or past the cursor that it passes over; None: there are none
    # Deferred records below the readable end that the cursor has passed, or that are finished: as indexes of `dues` are
    # counted. `ReadableLog.due_end` less this are unfinished and at or past the cursor.
    cdef uint64_t dues_passed
    cdef uint64_t next_due               # index of the entry of dues that the cursor is likely to come to next
    cdef uint64_t dues_void              # entries of dues that the Deferral has yet to drop: finished or superseded
    cdef bint ledger_full                # `next_record` found a record to finish, and the ledger has to grow first

    cdef inline uint64_t ordinal(self) noexcept:
        return self.ledger.header.cursor

    cdef inline const Record* next_record(self) except? NULL:
        # Return the record at the cursor, which is not finished, after skipping records that are. Returns: NULL at the
        # end of the readable part, or with `ledger_full` set: the ledger has to grow; or with `absent_end` set: pages
        # have to be read from the disk.
        cdef const Record* record
        if (
            self.ledger.header.cursor < self.readable.end and self.ledger.ahead == 0
            and self.offset < self.segment.tail and self.offset < self.present_end and not self.segment.unverified
        ):
            record = <const Record*> (self.segment.base + self.offset)
            if (
                record_ordinal(record) == self.ledger.header.cursor and not record.flags & RECORD_LOST
                and self.offset + record_span(record.size_bytes) <= self.present_end
            ):
                return record
        return self.find_next_record()

    cdef inline const Record* following(self) noexcept:
        # Return the record at the cursor if its page is in memory and it can be read; NULL if that is not certain.
        if self.ledger.header.cursor < self.readable.end and self.offset < min(self.segment.tail, self.present_end):
            return <const Record*> (self.segment.base + self.offset)
        return NULL

    cdef inline uint64_t dues_ahead(self) noexcept:
        # Count the deferred records at or past the cursor that are not finished.
        return self.readable.due_end - self.dues_passed

    cdef inline uint64_t queued_count(self) noexcept:
        # Count the messages that were neither handed out nor deferred.
        return (
            self.readable.end - self.ledger.header.cursor - self.ledger.ahead - self.dues_ahead()
            - self.overridden_count())

    cdef inline int pass_over(self, const Record* record) except -1:
        # Move over the record at the cursor, which is handed out now, is deferred or is overridden.
        self.offset += record_span(record.size_bytes)
        self.ledger.hand_out()
        return 0

    cdef inline bint is_overridden(self, uint64_t ordinal) except -1:
        return self.overridden is not None and ordinal in self.overridden

    cdef inline uint64_t overridden_count(self) noexcept:
        return 0 if self.overridden is None else <uint64_t> len(self.overridden)

    cdef inline int finish(self, const Record* record) except -1:
        # Mark a record as finished, and have drained segments trimmed.
        if record_ordinal(record) >= self.ledger.header.cursor:
            return self.finish_ahead(record)
        self.ledger.finish(record_ordinal(record))
        return self.readable.note_floor(self.ledger)

    cdef int finish_ahead(self, const Record* record) except -1
    cdef bint is_in_dues(self, uint64_t ordinal) except -1
    cdef bint steps_over(self, const Record* record) except -1
    cdef int finish_range(self, uint64_t start, uint64_t end) except -1
    cdef uint64_t unfinished_dues(self, uint64_t start, uint64_t end) except? <uint64_t> -1
    cdef int count_dues(self) except -1
    cdef bint try_finish_one(self, uint64_t ordinal) except -1
    cdef list unfinished_dues_from(self, uint64_t start)
    cdef const Record* find_next_record(self) except? NULL
    cdef bint is_present(self) except -1
    cdef bint look_ahead(self, uint64_t end) except -1
    cdef bint find_absent(self) except -1
    cdef bint find_unmapped(self) except -1
    cdef int set_unmapped(self, Segment segment, uint64_t start, uint64_t end) except -1
    cdef bint try_finish_next(self) except -1
    cdef bint try_finish_lost(self, const Record* record) except -1
    cdef int skip_record(self, const Record* record) except -1
    cdef bint next_is_sound(self, const Record* record) except -1
    cdef bint verify(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef bint is_sound(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef int finish_missing(self, uint64_t start, uint64_t end) except -1
    cdef int leave_drained(self) except -1
    cdef int move_to(self, Segment segment, uint64_t offset) except -1
    cdef int save_place(self) except -1
    cdef bint skip_finished(self) except -1
    cdef bint skip_segment(self) except -1
    cdef int note_finished_ahead(self) except -1
    cdef int forget_overridden(self, uint64_t ordinal) except -1
    cdef uint64_t overridden_end(self) except? 0
