"""The side of a channel that faces its topic's log: a cursor over it, and what leaves its order for the parked log.

    topic's log   | finished | handed out, or an origin | cursor | never handed out            | feed.end
    parked log    | finished | waiting for its due time, in flight ...                        | end

The cursor moves over each record once. A record that it meets is handed out, or stepped over: as it is finished, lost
in a hole, damaged, or deferred. A deferred one is parked: copied to the channel's parked log under its due time, and
the record here is its origin, to be finished when that is safe (see pyx/broker/parked.pyx). A requeue with a delay
parks as well, whether the record came from the topic's log or from the parked one.

Deferred messages are parked when they are published, as far as the work of a turn of the loop goes. Beyond that a
channel *lags*: it goes on parking from where it stands, in order, a slice in each of its turns, until it has caught up.
They count as deferred meanwhile, and the cursor parks what it meets of them by itself. A kill in between leaves
`parked_below` where parking stood; a start goes on there. Deferred records that the feed has shown since the
start (`deferred_count`), less those this channel is past (`deferred_seen`), are *pending*: a publish counts them once
and not once for each channel. Deferred records that nobody counted, as an earlier run held them, are in the depth until
they are parked.

Invariants:
1. `segment.base + offset` is the record with ordinal `ledger.cursor`, or the log's end.
2. `unsettled_ahead` counts the origins at or past the cursor; each has a due time and lies below `parked_below`, or is
   in `moved_ahead`: a queued message whose turn was put off by its id (see pyx/broker/amend.pyx).
3. Pending records are deferred and not finished, at or past `parked_below`, the cursor and `counted_from`.
4. Every record that is deferred, not finished, at or past the cursor and below the feed's end is parked, or lies at or
   past the place where the channel goes on parking.

Source: docs/nsq/broker-semantics.md, "Publish and fan-out", "Delivery to a client".
"""

from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC
from pyqd.hot.diskqueue.ledger cimport LedgerHeader
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport RECORD_LOST, RECORD_VALID, record_ordinal, record_span, record_verdict

from pyqd.primitives.errors import StorageError

cdef enum:
    RETRY_NS = 1000000000
    SKIPPED_PER_TURN = 10000
    # As work of a turn.
    WALK_WORK = 10                       # of a record walked over
    VERIFY_SHARE = 8                     # of its bytes, where it has to be verified
    SETTLE_WORK = 20
    SETTLED_AT_ONCE = 1000


cdef class ChannelCursor(Scheduled):
    """What a channel has still to read of its topic's log, what it has finished, and what it parks."""

    def __init__(self, Feed feed not None, Ledger ledger not None, Position position not None):
        self.feed = feed
        self.ledger = ledger
        self.segment = position.segment
        self.offset = position.offset
        self.deferred_seen = feed.deferred_count
        self.counted_from = feed.end
        assert position.ordinal == ledger.header.cursor or position.segment.first_ordinal > ledger.header.cursor

    cdef int set_next_timer(self, int64_t now_ns) except -1:
        """Ask to be called when the next message is due. The subclass knows what else has a time."""
        raise NotImplementedError("the subclass sets the timer")

    cdef const Record* take_at_cursor(self) except? NULL:
        """Move the cursor over the next record that is to be handed out. Returns: NULL at the feed's end."""
        cdef const Record* record
        while self.ledger.header.cursor < self.feed.end:
            self.leave_drained()
            if self.ledger.header.cursor < self.segment.first_ordinal:
                # A hole: what is missing counts as finished.
                if not self.try_finish_at_cursor():
                    return NULL
                self.ledger.skip()
                continue
            record = <const Record*> (self.segment.base + self.offset)
            if self.segment.unverified and not self.cursor_is_sound(record):
                continue
            assert record_ordinal(record) == self.ledger.header.cursor, "the cursor is off its record"
            if record.flags & RECORD_LOST and not self.try_finish_at_cursor():
                return NULL
            if self.ledger.next_is_finished():
                self.offset += record_span(record.size_bytes)
                self.ledger.skip()
                self.note_drained()
                continue
            if (record.due_ns != 0 or self.moved_ahead is not None) and self.step_over_deferred(record):
                continue
            self.offset += record_span(record.size_bytes)
            self.ledger.hand_out()
            return record
        return NULL

    cdef bint try_finish_at_cursor(self) except -1:
        """Finish the record at the cursor, which is not to be handed out, if it is not finished yet.

        Returns: False if the ledger cannot grow; redelivery goes on, and a timer retries.
        """
        if not self.ledger.next_is_finished():
            try:
                self.ledger.finish(self.ledger.header.cursor)
            except StorageError:
                self.retry_soon()
                return False
        return True

    cdef int finish_missing(self, uint64_t start, uint64_t end) except -1:
        """Finish what of `[start, end)` the topic's log has lost; the channel may read all of it.

        What lies behind the feed's end is no part of the depth yet, so it must not be finished. Raises: StorageError.
        """
        cdef uint64_t first, behind
        assert end <= self.feed.end
        for first, behind in self.feed.log.holes:
            self.ledger.finish_range(max(first, start), min(behind, end))
        return 0

    cdef int retry_soon(self) except -1:
        """Have the channel wake in a while: nothing else may tell that there is room again."""
        self.held_up = True
        self.feed.scheduler.set_timer(self, mono_ns() + RETRY_NS)
        return 0

    cdef bint cursor_is_sound(self, const Record* record) except -1:
        """Verify a record that an earlier run wrote, as it is reached; where it is damaged, mend the segment."""
        cdef Position position
        cdef uint64_t cursor = self.ledger.header.cursor
        if self.is_sound(self.segment, self.offset, cursor):
            return True
        self.feed.log.mend(self.segment)
        position = self.feed.log.locate(cursor)
        self.segment, self.offset = position.segment, position.offset
        return False

    cdef bint is_sound(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        """Say whether a segment has the record with that ordinal there, undamaged."""
        cdef uint64_t seq = segment.header().first_seq + (ordinal - segment.first_ordinal)
        return offset < segment.tail and record_verdict(
            segment.base + offset, segment.tail - offset, seq) == RECORD_VALID

    cdef bint step_over_deferred(self, const Record* record) except -1:
        """See to a record at the cursor that may be deferred. Returns: False when it is to be handed out now."""
        if self.is_origin_ahead(record):
            self.offset += record_span(record.size_bytes)
            self.ledger.hand_out()
            self.forget_ahead(record_ordinal(record))
            return True
        if record.due_ns == 0:
            return False
        if (record.due_ns > wall_ns() or self.is_parked(record)) and self.try_park_published(record, record.attempts):
            return True
        self.pass_deferred(record_ordinal(record))
        return False

    cdef bint is_origin_ahead(self, const Record* record) except -1:
        """Say whether an unfinished record at or past the cursor is an origin that is not settled."""
        if self.unsettled_ahead == 0:
            return False
        return self.is_moved(record_ordinal(record)) or (
            record.due_ns != 0 and record_ordinal(record) < self.ledger.header.parked_below)

    cdef bint is_moved(self, uint64_t ordinal) except -1:
        """Say whether the turn of a record past the cursor was put off, and it is not settled yet."""
        return self.moved_ahead is not None and ordinal in self.moved_ahead

    cdef int forget_ahead(self, uint64_t ordinal) except -1:
        """Count an origin as one past the cursor no longer."""
        self.unsettled_ahead -= 1
        if self.moved_ahead is not None:
            self.moved_ahead.discard(ordinal)
            if not self.moved_ahead:
                self.moved_ahead = None
        return 0

    cdef int leave_drained(self) except -1:
        """Move on from a segment that has been read to its end; it may be recycled as soon as all of it is finished."""
        while self.offset == self.segment.tail and self.segment.next is not None:
            self.segment = self.segment.next
            self.offset = SEGMENT_HEADER_BYTES
        return 0

    cdef int note_cursor(self) except -1:
        """Write down where the cursor's record lies; a hint that recovery checks."""
        cdef LedgerHeader* header = self.ledger.header
        if header.cursor_segment != self.segment.number:
            # An offset of another segment may lead into a body, and a body may look like a record.
            header.cursor_offset = 0
            store_barrier()
            header.cursor_segment = self.segment.number
            store_barrier()
        header.cursor_offset = self.offset
        return 0

    cdef Ledger ledger_of(self, uint8_t source):
        """Return the ledger of the log that a record is from."""
        return self.ledger if source == FROM_TOPIC else (<Parked> self.parked).ledger

    cdef int reach(self, const Record* record, uint8_t source) except -1:
        """Make room so that finishing a record cannot fail. Raises: StorageError (nothing changed)."""
        self.ledger_of(source).reach(record_ordinal(record))
        return 0

    cdef int finish_record(self, const Record* record, uint8_t source) except -1:
        """Mark a record as finished in its ledger, and let drained segments go."""
        if source == FROM_PARKED:
            (<Parked> self.parked).finish(record)
            return 0
        self.ledger.finish(record_ordinal(record))
        self.note_drained()
        return 0

    cdef int note_drained(self) except -1:
        """Ask for a trim when the floor has moved past a segment that was not finished before."""
        if (
            not self.feed.trim_wanted
            and self.feed.watched is not self.feed.log.active
            and self.ledger.header.floor >= self.feed.watched.end_ordinal()
        ):
            self.feed.trim_wanted = True
            self.feed.scheduler.request_wake(self.feed)
        return 0

    cdef int park(self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns) except -1:
        if self.parked is None:
            self.parked = self.open_parked()
        (<Parked> self.parked).park(record, source, attempts, due_ns)
        self.note_parking()
        self.set_next_timer(mono_ns())
        return 0

    cdef int note_parking(self) except -1:
        """Have the parked log covered by the next sync of the topic: something has been parked."""
        if self.parks_durably and not self.parking:
            self.parking = True
            self.feed.parking.add(self)
        return 0

    cdef int note_all_settled(self) except -1:
        """Leave the channels whose parked logs wait for a sync, unless something more has been parked."""
        if self.parking and (<Parked> self.parked).unsettled() == 0:
            self.parking = False
            self.feed.parking.discard(self)
        return 0

    cdef int settle_unless_durable(self) except -1:
        """Finish the origins of what was parked, unless that waits for a sync."""
        if not self.parks_durably:
            self.settle((<Parked> self.parked).log.end, True)
            (<Parked> self.parked).note_settled((<Parked> self.parked).settled)
        return 0

    def settle(self, uint64_t end, bint whole=False):
        """Finish the origins of what lies below an ordinal of the parked log, as it is on stable storage.

        As far as the work of this turn goes, and the rest in turns to come. whole: all now.
        """
        self.settle_end = max(self.settle_end, end)
        self.settle_some(whole)

    cdef int settle_some(self, bint whole) except -1:
        cdef Parked parked = self.parked
        cdef uint64_t before = parked.settled
        cdef uint64_t end
        while self.settle_end > parked.settled:
            if not whole and not self.feed.scheduler.has_work():
                self.feed.scheduler.request_wake(self)
                break
            end = min(self.settle_end, parked.settled + SETTLED_AT_ONCE)
            self.feed.scheduler.spend(SETTLE_WORK * (end - parked.settled))
            self.settle_to(end)
        if self.settle_end <= parked.settled:
            self.settle_end = 0
        self.note_all_settled()
        if parked.settled != before:
            parked.trim()
            self.note_finished_ahead()
            self.note_drained()
        return 0

    cdef int settle_to(self, uint64_t end) except -1:
        """Finish the origins of the records of the parked log below an ordinal, some of which are not settled."""
        cdef Parked parked = self.parked
        cdef uint64_t index, origin
        for index in range(end - parked.settled):
            origin = parked.origin_at(index)
            if origin & 1 == FROM_PARKED:
                self.settle_in(parked.ledger, origin >> 1)
                continue
            if origin >> 1 >= self.ledger.header.cursor:
                self.forget_ahead(origin >> 1)
            self.settle_in(self.ledger, origin >> 1)
        return parked.forget_origins(end)

    cdef bint skip_finished(self) except -1:
        """Move the cursor over finished records, or these would hold a segment of a channel that is idle.

        Cost: a step for each, SKIPPED_PER_TURN at most. Returns: whether there are more.
        """
        cdef const Record* record
        for _ in range(SKIPPED_PER_TURN):
            self.leave_drained()
            if self.ledger.header.cursor >= self.feed.end or not self.ledger.next_is_finished():
                return False
            if self.ledger.header.cursor >= self.segment.first_ordinal:
                record = <const Record*> (self.segment.base + self.offset)
                if self.segment.unverified and not self.cursor_is_sound(record):
                    continue
                self.offset += record_span(record.size_bytes)
            self.ledger.skip()
        # The last one may have ended a segment, which is recycled next.
        self.leave_drained()
        return True

    cdef int note_finished_ahead(self) except -1:
        """Schedule `skip_finished` if the record at the cursor is finished: it was not by being handed out."""
        if self.ledger.next_is_finished():
            self.feed.trim_wanted = True
            self.feed.scheduler.request_wake(self.feed)
        return 0

    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1:
        if not ledger.is_finished(ordinal):
            ledger.finish(ordinal)
        return 0

    def note_settled(self, uint64_t end):
        """Note that the origins of what lies below an ordinal of the parked log are finished on stable storage."""
        (<Parked> self.parked).note_settled(end)

    def note_dropped(self, uint64_t end):
        """Note that the ledger says on stable storage that records of the parked log below `end` were dropped."""
        (<Parked> self.parked).finish_dropped(end)

    cdef int prepare_park(self, uint64_t span_bytes, uint64_t ordinal) except -1:
        """Make room so that parking a record of the topic's log cannot fail. Raises: StorageError, MemoryError."""
        if self.parked is None:
            self.parked = self.open_parked()
        (<Parked> self.parked).prepare(span_bytes)
        self.ledger.reach(ordinal)
        return 0

    cdef int prepare_park_batch(self, uint64_t span_bytes, uint32_t count, uint64_t last_ordinal) except -1:
        """Make room so that parking `count` records of the topic's log cannot fail. span_bytes: of them all.

        Raises: StorageError, MemoryError.
        """
        self.prepare_park(span_bytes, last_ordinal)
        (<Parked> self.parked).prepare_slots(count)
        return 0

    cdef int park_batch(self, const Record* first, uint32_t count) except -1:
        """Park those of `count` records in a row that have a due time; room has been made, and the channel lags not."""
        cdef const Record* record = first
        for _ in range(count):
            if record.due_ns != 0:
                self.park_published(record, record.attempts)
            record = <const Record*> (<const char*> record + record_span(record.size_bytes))
        return 0

    cdef bint try_park_published(self, const Record* record, uint16_t attempts) except -1:
        """Park a record found at the cursor. Returns: False where there is no room; consuming goes on without delay."""
        try:
            self.park_published(record, attempts)
        except StorageError:
            return False
        return True

    cdef int park_published(self, const Record* record, uint16_t attempts) except -1:
        """Park a record of the topic's log that has a due time, and step over it at the cursor. In order.

        attempts: deliveries so far.
        Raises: StorageError, MemoryError (nothing is parked).
        """
        cdef uint64_t ordinal = record_ordinal(record)
        if not self.ledger.is_finished(ordinal) and not self.is_moved(ordinal):
            self.ledger.reach(ordinal)
            if self.is_parked(record):
                self.ledger.finish(ordinal)
            else:
                self.park(record, FROM_TOPIC, attempts, record.due_ns)
                self.unsettled_ahead += ordinal >= self.ledger.header.cursor
                self.settle_unless_durable()
            self.pass_deferred(ordinal)
        self.ledger.header.parked_below = max(self.ledger.header.parked_below, ordinal + 1)
        return 0

    cdef bint is_parked(self, const Record* record) noexcept:
        """Say whether the last run ended between parking the message and finishing this record of it."""
        return self.parked is not None and (<Parked> self.parked).has_twin(record)

    cdef int pass_deferred(self, uint64_t ordinal) noexcept:
        """Count a record with a due time as pending no longer, if it is: it is parked, handed out or finished now."""
        if (
            self.feed.deferred_count != self.deferred_seen and ordinal >= self.counted_from
            and ordinal >= self.ledger.header.parked_below
        ):
            self.deferred_seen += 1
        return 0

    cdef int walk_to(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        self.walk_segment = segment
        self.walk_offset = offset
        self.walk_ordinal = max(ordinal, segment.first_ordinal)
        return 0

    cdef int lag_from(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        """Note where parking goes on, unless the channel lags already. The feed counts what lies there afterwards."""
        if not self.lags():
            self.walk_to(segment, offset, ordinal)
        return 0

    cdef int lag_uncounted(self, Position position, uint64_t end) except -1:
        """Note that records from a position to before an ordinal may be deferred, of which nobody knows how many."""
        if not self.lags():
            self.walk_to(position.segment, position.offset, position.ordinal)
        self.uncounted_end = max(self.uncounted_end, end)
        self.counted_from = self.feed.end
        self.deferred_seen = self.feed.deferred_count
        return 0

    cdef int lag_counted(self, Position position, uint64_t count) except -1:
        """Note that `count` records from a position on are deferred, and none of them is parked. Nothing else lags."""
        self.walk_to(position.segment, position.offset, position.ordinal)
        self.counted_from = position.ordinal
        self.deferred_seen = self.feed.deferred_count - count
        return 0

    def park_on(self):
        """Go on parking what lags, now as far as the work of this turn goes, and then in turns to come."""
        self.catch_up(False)

    cdef int forget_lag(self) except -1:
        """Note that nothing is left to be parked."""
        self.deferred_seen = self.feed.deferred_count
        self.counted_from = self.feed.end
        self.uncounted_end = 0
        self.walk_segment = None
        self.stuck = False
        # The next that is not parked at once has to tell this channel where it lies.
        self.feed.all_lag = False
        return 0

    cdef int catch_up(self, bint whole) except -1:
        """Go on parking, as far as the work of this turn goes, and ask for another turn where that is not all.

        whole: all now. Where there is no room to park, the messages count as queued, and a timer retries.
        """
        cdef const Record* record
        if not self.lags():
            return 0
        if self.walk_segment is None or self.walk_ordinal <= self.ledger.header.cursor:
            self.leave_drained()
            self.walk_to(self.segment, self.offset, self.ledger.header.cursor)
        while self.pending() != 0 or self.walk_ordinal < self.uncounted_end:
            if not whole and not self.feed.scheduler.has_work():
                self.feed.scheduler.request_wake(self)
                return 0
            record = self.next_walked()
            if record == NULL:
                break
            self.feed.scheduler.spend(WALK_WORK)
            if record.due_ns != 0:
                self.feed.scheduler.spend(
                    PARK_WORK + record.size_bytes + (OPEN_WORK if self.parked is None else 0))
                try:
                    self.park_published(record, record.attempts)
                except StorageError as error:
                    return self.stay_behind(error)
            self.walk_offset += record_span(record.size_bytes)
            self.walk_ordinal += 1
        # A record that was counted and has been damaged since is not met.
        self.ledger.header.parked_below = max(self.ledger.header.parked_below, self.walk_ordinal)
        return self.forget_lag()

    cdef const Record* next_walked(self) except? NULL:
        """Return the record at which parking goes on; NULL at the feed's end."""
        cdef Segment segment
        cdef const Record* record
        cdef Position position
        while self.walk_ordinal < self.feed.end:
            segment = self.walk_segment
            if self.walk_offset == segment.tail:
                if segment.next is None:
                    return NULL
                self.walk_to(segment.next, SEGMENT_HEADER_BYTES, segment.next.first_ordinal)
                continue
            record = <const Record*> (segment.base + self.walk_offset)
            if segment.unverified:
                if not self.is_sound(segment, self.walk_offset, self.walk_ordinal):
                    self.feed.log.mend(segment)
                    position = self.feed.log.locate(self.walk_ordinal)
                    self.walk_to(position.segment, position.offset, position.ordinal)
                    continue
                self.feed.scheduler.spend(record.size_bytes // VERIFY_SHARE)
            return record
        return NULL

    cdef int stay_behind(self, error) except -1:
        """Leave in the queue what cannot be parked, until there is room or the cursor comes to it."""
        self.uncounted_end = self.feed.end
        self.counted_from = self.feed.end
        self.deferred_seen = self.feed.deferred_count
        if not self.stuck:
            self.stuck = True
            self.note_stuck(error)
        return self.retry_soon()

    def park_deferred(self, uint64_t end):
        """Park every record of the topic's log below `end` that has a due time and is not parked yet.

        Cost: walks the records between the last parked one and `end`. Records for which there is no room stay in the
        queue; the channel lags, so nothing behind them is parked before: `parked_below` speaks for all below it.
        """
        cdef uint64_t start = max(self.ledger.header.parked_below, self.ledger.header.cursor)
        # A kill may have left the topic's `deferred_below` announced and no record behind it.
        end = min(end, self.feed.end)
        if start < end:
            if start == self.ledger.header.cursor:
                self.leave_drained()
                self.lag_uncounted(Position(self.segment, self.offset, start), end)
            else:
                self.lag_uncounted(self.feed.log.locate(start), end)
        self.catch_up(True)

    def note_stuck(self, error):
        """Take note that deferred messages could not be parked."""
        raise NotImplementedError("the subclass logs")

    def open_parked(self):
        """Make the parked log. The Python half knows where."""
        raise NotImplementedError("the subclass opens the parked log")
