"""Parking: deferred messages leave the order of the topic's log for the channel's parked log.

    topic's log   | finished | handed out, or an origin | cursor | never handed out            | readable.end
    parked log    | finished | waiting for its due time, in flight ...                         | end

A deferred record is parked: it is copied to the channel's parked log under its due time, and the record here is its
origin, to be finished when that is safe (see pyx/broker/parked_log.pyx). A parked record that is requeued with a delay
is parked again. One of the topic's log stays there (see pyx/broker/deferral.pyx).

Deferred messages are parked when they are published, until the work budget of a pass of the loop is used up. Then
a channel *lags*: it goes on parking in order from the place it has reached, a slice in each of its runs, until it has
caught up. Lagging messages count as deferred, and `step_over` parks those that the cursor meets. A kill in between
leaves `parked_below` at the place that parking has reached; a start goes on there.

A publish counts deferred records once, in the ReadableLog's `deferred_count`, and not once for each channel. Those that
this channel has parked, handed out or finished are `deferred_seen`; the difference is *pending*. Deferred records that
were never counted, because an earlier run held them, are in the depth until they are parked.

Parking never calls its channel. The channel requests the wakes and timers that follow from the results and the fields
(see `ChannelCore.catch_up`).

Invariants:
1. `unsettled_ahead` counts the origins at or past the cursor; each has a due time and lies below `parked_below`.
2. Pending records are deferred, not finished and not overridden, at or past `parked_below`, the cursor and
   `counted_from`.
3. Every record that is deferred, not finished, not overridden, at or past the cursor and below the readable end is
   parked, or lies at or past the place at which the channel goes on parking.

Source: docs/nsq/broker-semantics.md, "Publish and fan-out", "Delivery to a client".
"""

cimport cython

from pyqd.hot.broker.slots cimport FROM_PARKED
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport ordinal_after, record_ordinal, record_span

from pyqd.primitives.errors import StorageError

cdef enum:
    # In units of work.
    WALK_WORK = 10                       # of a record walked over
    VERIFY_SHARE = 8                     # of its bytes, if it has to be verified
    SETTLE_WORK = 20
    SETTLED_AT_ONCE = 1000

# Asked for ahead of the walk.
cdef uint64_t WALKED_AHEAD_BYTES = 256 << 10


@cython.final
cdef class Parking:
    """Parking of one channel. files: its ChannelFiles, which open the parked log when a message is first parked."""

    def __init__(self, LogCursor cursor not None, files not None):
        self.cursor = cursor
        self.readable = cursor.readable
        self.ledger = cursor.ledger
        self.files = files
        self.deferred_seen = self.readable.deferred_count
        self.counted_from = self.readable.end
        assert self.counted_from <= self.readable.log.end

    cdef int open(self) except -1:
        """Open the parked log unless it is open. Raises: StorageError."""
        if self.parked is None:
            self.parked = self.files.open_parked()
        return 0

    cpdef int adopt(self, ParkedLog parked) except -1:
        """Take up the parked log that an earlier run left."""
        assert self.parked is None, "the channel has a parked log"
        self.parked = parked
        return 0

    cdef bint step_over(self, const Record* record) except -1:
        """Move over, or park, a record at the cursor that may be deferred. Returns: False if it is to be handed out."""
        debug_require(record_ordinal(record) == self.ledger.header.cursor)
        debug_require(not self.ledger.is_finished(record_ordinal(record)))
        if self.cursor.is_overridden(record_ordinal(record)):
            self.cursor.pass_over(record)
            self.cursor.forget_overridden(record_ordinal(record))
            return True
        if self.is_origin_ahead(record):
            self.cursor.pass_over(record)
            self.forget_ahead()
            return True
        if record.due_ns == 0:
            return False
        if (record.due_ns > wall_ns() or self.is_parked(record)) and self.try_park_published(record, record.attempts):
            return True
        self.pass_deferred(record_ordinal(record))
        return False

    cdef bint is_origin_ahead(self, const Record* record) except -1:
        """Return True if an unfinished record at or past the cursor is an origin that is not settled."""
        debug_require(record_ordinal(record) >= self.ledger.header.cursor)
        return (
            self.unsettled_ahead != 0 and record.due_ns != 0
            and record_ordinal(record) < self.ledger.header.parked_below
            and not self.cursor.is_overridden(record_ordinal(record)))

    cdef int forget_ahead(self) except -1:
        """Count an origin as one past the cursor no longer."""
        assert self.unsettled_ahead != 0, "an origin past the cursor was not counted"
        self.unsettled_ahead -= 1
        return 0

    cdef int park(
        self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns, bint is_delay=False,
    ) except -1:
        """Copy a record to the parked log, due at `due_ns` (Unix); the record is the origin of the copy.

        is_delay: as for `ParkedLog.park`.

        Raises: StorageError, MemoryError (nothing is parked).
        """
        assert due_ns != 0, "a parked record has a due time"
        self.open()
        return self.parked.park(record, source, attempts, due_ns, is_delay)

    cdef int prepare(self, uint64_t span_bytes, uint64_t ordinal) except -1:
        """Reserve space so that parking a record of the topic's log cannot fail. Raises: StorageError, MemoryError."""
        self.open()
        self.parked.prepare(span_bytes)
        self.ledger.reach(ordinal)
        return 0

    cdef int prepare_batch(self, uint64_t span_bytes, uint32_t count, uint64_t last_ordinal) except -1:
        """Reserve space so that parking `count` records of the topic's log cannot fail. span_bytes: of them all.

        Raises: StorageError, MemoryError.
        """
        assert count != 0
        self.prepare(span_bytes, last_ordinal)
        return self.parked.prepare_slots(count)

    cdef int park_batch(self, const Record* first, uint32_t count) except -1:
        """Park the deferred records among `count` consecutive ones. Space is reserved; the channel has no lag."""
        cdef const Record* record = first
        debug_require(count != 0)
        for _ in range(count):
            if record.due_ns != 0:
                self.park_published(record, record.attempts)
            record = <const Record*> (<const char*> record + record_span(record.size_bytes))
        return 0

    cdef bint try_park_published(self, const Record* record, uint16_t attempts) except -1:
        """Park a record found at the cursor. Returns: False if there is no space; the message comes without delay."""
        debug_require(record.due_ns != 0)
        try:
            self.park_published(record, attempts)
        except StorageError:
            return False
        return True

    cdef int park_published(self, const Record* record, uint16_t attempts) except -1:
        """Park a record of the topic's log under its due time; records are parked in order.

        attempts: deliveries so far.
        Raises: StorageError, MemoryError (nothing is parked).
        """
        cdef uint64_t ordinal = record_ordinal(record)
        assert record.due_ns != 0, "the record is not deferred"
        self.ledger.unseal()
        if not self.ledger.is_finished(ordinal) and not self.cursor.is_overridden(ordinal):
            self.ledger.reach(ordinal)
            if self.is_parked(record):
                self.ledger.finish(ordinal)
            else:
                self.park(record, FROM_TOPIC, attempts, record.due_ns)
                self.unsettled_ahead += ordinal >= self.ledger.header.cursor
                self.settle_now()
            self.pass_deferred(ordinal)
        self.ledger.header.parked_below = max(self.ledger.header.parked_below, ordinal + 1)
        return 0

    cdef int pass_deferred(self, uint64_t ordinal) except -1:
        """Count a deferred record as pending no longer, if it is: it is parked, handed out or finished now."""
        if (
            self.readable.deferred_count != self.deferred_seen and ordinal >= self.counted_from
            and ordinal >= self.ledger.header.parked_below
        ):
            self.deferred_seen += 1
            # The difference counts, modulo 2**64: after a seek, more may be pending than were published in this run.
            debug_require(self.pending() <= self.readable.log.end - self.counted_from)
            if not self.lags():
                # The cursor may come to the last one before `catch_up` does.
                self.forget_lag()
        return 0

    cdef int settle_now(self) except -1:
        """Finish the origins of all parked records, unless syncs settle them."""
        assert self.parked is not None, "nothing was parked"
        if not self.durable:
            self.settle_end = self.parked.log.end
            self.settle_some(True)
            self.parked.note_settled(self.parked.settled)
        return 0

    cdef bint settle_some(self, bint whole) except -1:
        """Finish origins of records below `settle_end` until the work budget is used up. whole: all of them.

        Returns: True if all are finished.
        """
        cdef uint64_t before = self.parked.settled
        cdef uint64_t end
        assert self.parked is not None, "nothing was parked"
        assert self.settle_end <= self.parked.log.end
        while self.settle_end > self.parked.settled and (whole or self.readable.scheduler.has_work()):
            end = min(self.settle_end, self.parked.settled + SETTLED_AT_ONCE)
            self.readable.scheduler.spend(SETTLE_WORK * (end - self.parked.settled))
            self.settle_to(end)
        if self.settle_end <= self.parked.settled:
            self.settle_end = 0
        if self.parked.settled != before:
            self.parked.trim()
            self.cursor.note_finished_ahead()
            self.readable.note_floor(self.ledger)
        return self.settle_end == 0

    cdef int settle_to(self, uint64_t end) except -1:
        """Finish the origins of the parked records below an ordinal, some of which are not settled."""
        cdef uint64_t index, origin
        assert self.parked.settled <= end <= self.parked.log.end
        for index in range(end - self.parked.settled):
            origin = self.parked.origin_at(index)
            if origin & 1 == FROM_PARKED:
                self.settle_in(self.parked.ledger, origin >> 1)
                continue
            if origin >> 1 >= self.ledger.header.cursor:
                self.forget_ahead()
            self.settle_in(self.ledger, origin >> 1)
        return self.parked.forget_origins(end)

    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1:
        if not ledger.is_finished(ordinal):
            ledger.unseal()
            ledger.finish(ordinal)
        return 0

    cdef int walk_to(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        assert SEGMENT_HEADER_BYTES <= offset <= segment.tail, "there is no place for a record"
        self.walk_segment = segment
        self.walk_offset = offset
        self.walk_ordinal = max(ordinal, segment.first_ordinal)
        return 0

    cdef int lag_from(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1:
        """Set the place at which parking continues, unless the channel lags already; `deferred_count` grows after."""
        if not self.lags():
            self.walk_to(segment, offset, ordinal)
        return 0

    cdef int lag_uncounted(self, Position position, uint64_t end) except -1:
        """Begin to lag: an unknown number of records from a position to before an ordinal are deferred."""
        assert end <= self.readable.end
        if not self.lags():
            self.walk_to(position.segment, position.offset, position.ordinal)
        self.uncounted_end = max(self.uncounted_end, end)
        self.counted_from = self.readable.end
        self.deferred_seen = self.readable.deferred_count
        if not self.lags():
            self.forget_lag()
        return 0

    cdef int lag_counted(self, Position position, uint64_t count) except -1:
        """Begin to lag: `count` records from a position on are deferred and not parked. Nothing else lags."""
        assert self.uncounted_end == 0 and count <= self.readable.end - position.ordinal
        self.walk_to(position.segment, position.offset, position.ordinal)
        self.counted_from = position.ordinal
        self.deferred_seen = self.readable.deferred_count - count
        return 0

    cdef int lag_below(self, uint64_t end) except -1:
        """After a start: note that deferred records of the topic's log below `end` may not be parked."""
        cdef uint64_t start = max(self.ledger.header.parked_below, self.ledger.header.cursor)
        # A kill may have left the topic's `deferred_below` announced and no record behind it.
        end = min(end, self.readable.end)
        if start < end:
            if start == self.ledger.header.cursor:
                self.cursor.leave_drained()
                self.lag_uncounted(Position(self.cursor.segment, self.cursor.offset, start), end)
            else:
                self.lag_uncounted(self.readable.log.locate(start), end)
        return 0

    cdef int forget_lag(self) except -1:
        """End the lag: no message remains to be parked."""
        self.deferred_seen = self.readable.deferred_count
        self.counted_from = self.readable.end
        self.uncounted_end = 0
        self.walk_segment = None
        self.stuck = False
        # The next publish that does not park at once has to call `lag_from` of this channel. Otherwise parking would
        # resume at the old place, and park again what was parked at once since.
        self.readable.all_lag = False
        return 0

    cdef Progress catch_up(self, bint whole) except *:
        """Continue to park lagging messages until the work budget of this pass is used up. whole: all of them.

        If there is no space to park, the messages count as queued. If the ledger has to grow first, or pages are not in
        memory, the caller has a thread do that.
        """
        cdef const Record* record
        assert self.lags()
        if self.presence is None:
            self.presence = Presence(self.readable.log.files)
        self.presence.absent = None
        if self.walk_segment is None or self.walk_ordinal <= self.ledger.header.cursor:
            self.cursor.leave_drained()
            self.walk_to(self.cursor.segment, self.cursor.offset, self.ledger.header.cursor)
        while self.pending() != 0 or self.walk_ordinal < self.uncounted_end:
            if not whole and not self.readable.scheduler.has_work():
                return MORE_TO_PARK
            record = self.next_walked(whole)
            if record == NULL:
                if self.presence.absent is not None:
                    return PAGES_ABSENT
                break
            self.readable.scheduler.spend(WALK_WORK)
            if record.due_ns != 0:
                if not whole and self.is_beyond(record_ordinal(record)):
                    return self.stop_for_window(record_ordinal(record))
                self.readable.scheduler.spend(
                    PARK_WORK + record.size_bytes + (OPEN_WORK if self.parked is None else 0))
                try:
                    self.park_published(record, record.attempts)
                except StorageError as error:
                    return self.stop_for_space(error)
                self.grows_at_once = False
            self.walk_offset += record_span(record.size_bytes)
            self.walk_ordinal = ordinal_after(record)
        # A record that was counted and has been damaged since is not met.
        if self.ledger.header.parked_below < self.walk_ordinal:
            self.ledger.unseal()
            self.ledger.header.parked_below = self.walk_ordinal
        self.forget_lag()
        return CAUGHT_UP

    cdef const Record* next_walked(self, bint whole) except? NULL:
        """Return the record at which parking goes on; NULL at the readable end, or if its pages are absent.

        whole: do not ask for the pages.
        """
        cdef Segment segment
        cdef const Record* record
        cdef Position position
        debug_require(self.walk_segment is not None)
        while self.walk_ordinal < self.readable.end:
            segment = self.walk_segment
            if self.walk_offset == segment.tail:
                if segment.next is None:
                    return NULL
                self.walk_to(segment.next, SEGMENT_HEADER_BYTES, segment.next.first_ordinal)
                continue
            record = <const Record*> (segment.base + self.walk_offset)
            if not whole and not self.presence.covers_record(record) and not self.presence.has_record(
                    segment, self.walk_offset, WALKED_AHEAD_BYTES):
                return NULL
            if segment.unverified:
                if not self.cursor.verify(segment, self.walk_offset, self.walk_ordinal):
                    position = self.readable.log.locate(self.walk_ordinal)
                    self.walk_to(position.segment, position.offset, position.ordinal)
                    continue
                self.readable.scheduler.spend(record.size_bytes // VERIFY_SHARE)
            return record
        return NULL

    cdef Progress stop_for_space(self, error) except *:
        """Leave messages that cannot be parked in the queue, until there is space or the cursor meets them."""
        self.uncounted_end = self.readable.end
        self.counted_from = self.readable.end
        self.deferred_seen = self.readable.deferred_count
        if not self.stuck:
            self.stuck = True
            self.files.note_stuck(error)
        return NO_SPACE_TO_PARK

    cdef Progress stop_for_window(self, uint64_t ordinal) except *:
        """Set `beyond` to the ordinal that the ledger must reach so that all messages from `ordinal` on can be parked.

        There are as many records at least as pending messages; the readable end is the limit.
        """
        self.beyond = max(ordinal + max(self.pending(), <uint64_t> 1), min(self.uncounted_end, self.readable.end)) - 1
        self.beyond = min(self.beyond, self.readable.end - 1)
        assert self.beyond >= ordinal and not self.ledger.reaches(ordinal)
        return WINDOW_TOO_SMALL

    cdef int drop_all(self) except -1:
        """Drop all parked messages after a reset of the channel's ledger, which records the drop."""
        if self.parked is not None:
            self.parked.drop_all()
            if not self.durable:
                self.parked.finish_dropped(self.parked.dropped_below)
        return self.forget()

    cdef int abandon(self) except -1:
        """Drop everything for good: the channel's files are gone."""
        if self.parked is not None:
            self.parked.abandon()
        return self.forget()

    cdef int forget(self) except -1:
        self.unsettled_ahead = 0
        self.settle_end = 0
        return self.forget_lag()
