"""A channel: one copy of a topic's messages, each to one of its clients until one finishes it.

    topic's log   | finished | in flight, finished, waiting for redelivery ... | cursor | never handed out | feed.end
    parked log    | finished | waiting for its due time, in flight ...                             | end

The channel keeps no messages: a cursor over the topic's log, a ledger of what is finished, slots for what is in
flight, a ring of what waits for redelivery, and a parked log for what has a due time. A message goes:

    take -> in flight -> finish                        one bit in the ledger
                      -> requeue, delay 0; time-out    ring -> take
                      -> requeue with a delay          parked log; the old record is finished
    published with a due time                          parked log at once, and stepped over at the cursor
    due                                                ring

Redelivered and fresh messages alternate, fresh first: a message that is requeued again and again neither starves the
rest nor waits behind a million of them. Only a long ring goes first, so that it stays bounded.

Invariants:
1. A record below the cursor and not finished is in exactly one of: slots, ring, (parked records) dues.
   Or it is the origin of a parked record that no sync has covered yet (see pyx/parked.pyx).
2. `depth = feed.end - cursor - ledger.ahead - unsettled_ahead + ring`; in flight and deferred are counted apart, as in
   nsqd. `unsettled_ahead` counts the origins at or past the cursor; each has a due time and lies below `parked_below`.
3. `segment.base + offset` is the record with ordinal `ledger.cursor`, or the log's end.

Source: spec of broker semantics, "Delivery to a client", "In-flight outcomes".
"""

from libc.stdint cimport INT64_MAX, uint32_t

from pyqd.hot.clock cimport mono_ns, wall_ns
from pyqd.hot.ledger cimport LedgerHeader
from pyqd.hot.log cimport Position
from pyqd.hot.mapping cimport store_barrier
from pyqd.hot.record cimport (
    RECORD_LOST,
    RECORD_VALID,
    record_attempts,
    record_body,
    record_ordinal,
    record_span,
    record_verdict,
)
from pyqd.hot.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, Slot

from pyqd.primitives.errors import StorageError

cdef enum:
    RING_FIRST = 10000                   # a ring that long is served before fresh messages
    DUE_PER_TURN = 20000                 # bounds one turn of releasing or expiring
    LOOK_AGAIN_NS_MAX = 10000000000      # the wall clock may jump: due times are looked at this often


cdef class ChannelCore(Scheduled):
    """The compiled half of a channel. `pyqd.broker.channel.Channel` adds name, life cycle and files."""

    def __init__(
        self, Feed feed not None, Ledger ledger not None, Position position not None, *,
        int64_t max_msg_timeout_ns, uint64_t memory_count_max, bint ephemeral,
    ):
        self.feed = feed
        self.ledger = ledger
        self.segment = position.segment
        self.offset = position.offset
        assert position.ordinal == ledger.header.cursor or position.segment.first_ordinal > ledger.header.cursor
        self.slots = SlotTable()
        self.ready = ReadyRing()
        self.consumers = []
        self.max_msg_timeout_ns = max_msg_timeout_ns
        self.memory_count_max = memory_count_max
        self.ephemeral = ephemeral

    cdef uint64_t available(self) noexcept:
        """Count the messages that could be delivered now: the depth."""
        return self.feed.end - self.ledger.header.cursor - self.ledger.ahead - self.unsettled_ahead + self.ready.count

    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1:
        """Hand the next message to the consumer and note it as in flight.

        Returns: 1 and fills in the delivery, or 0 when nothing is to be had. The consumer can take, the channel is not
        paused. Raises: MemoryError, StorageError.
        """
        cdef ReadyEntry entry
        cdef const Record* record
        while True:
            record = NULL
            if self.ready.count == 0 or not (self.ready_turn or self.ready.count > RING_FIRST):
                record = self.take_at_cursor()
                entry = ReadyEntry(record=record, attempts=0, source=FROM_TOPIC)
                self.ready_turn = True
            if record == NULL:
                if self.ready.count == 0:
                    return 0
                self.ready_turn = False
                entry = self.ready.pop()
                # A kill between parking a message and finishing its old record leaves it twice; once is enough.
                if self.slots.ids.get(entry.record.guid) >= 0:
                    self.finish_record(entry.record, entry.source)
                    continue
            if consumer.sample_rate != 0 and consumer.sampled_out():
                self.finish_record(entry.record, entry.source)
                continue
            break
        self.slots.add(
            entry.record, entry.attempts + 1, entry.source, consumer.number, now_ns, now_ns + consumer.msg_timeout_ns)
        if entry.source == FROM_PARKED:
            # Below the cursor of the topic's log a delivery is presumed; a parked record has to tell itself.
            (<Record*> entry.record).handed_out = entry.attempts + 1
        consumer.in_flight += 1
        consumer.message_count += 1
        delivery.record = entry.record
        delivery.attempts = entry.attempts + 1
        return 1

    cdef const Record* take_at_cursor(self) except? NULL:
        """Move the cursor over the next record that is to be handed out. Returns: NULL at the feed's end."""
        cdef const Record* record
        while self.ledger.header.cursor < self.feed.end:
            self.leave_drained()
            if self.ledger.header.cursor < self.segment.first_ordinal:
                # A hole: what is missing counts as finished.
                if not self.ledger.next_is_finished():
                    self.ledger.finish(self.ledger.header.cursor)
                self.ledger.skip()
                continue
            record = <const Record*> (self.segment.base + self.offset)
            if self.segment.unverified and not self.cursor_is_sound(record):
                continue
            assert record_ordinal(record) == self.ledger.header.cursor, "the cursor is off its record"
            if record.flags & RECORD_LOST and not self.ledger.next_is_finished():
                self.ledger.finish(record_ordinal(record))
            if self.ledger.next_is_finished():
                self.offset += record_span(record.size_bytes)
                self.ledger.skip()
                self.note_drained()
                continue
            if record.due_ns != 0 and self.step_over_deferred(record):
                continue
            self.offset += record_span(record.size_bytes)
            self.ledger.hand_out()
            return record
        return NULL

    cdef bint cursor_is_sound(self, const Record* record) except -1:
        """Verify a record that an earlier run wrote, as it is reached; where it is damaged, mend the segment."""
        cdef Position position
        cdef uint64_t cursor = self.ledger.header.cursor
        cdef uint64_t seq = self.segment.header().first_seq + (cursor - self.segment.first_ordinal)
        if self.offset < self.segment.tail and record_verdict(
                <const char*> record, self.segment.tail - self.offset, seq) == RECORD_VALID:
            return True
        self.feed.log.mend(self.segment)
        position = self.feed.log.locate(cursor)
        self.segment, self.offset = position.segment, position.offset
        return False

    cdef bint step_over_deferred(self, const Record* record) except -1:
        """See to a record with a due time at the cursor. Returns: False when it is to be handed out now."""
        if self.unsettled_ahead != 0 and record_ordinal(record) < self.ledger.header.parked_below:
            self.offset += record_span(record.size_bytes)
            self.ledger.hand_out()
            self.unsettled_ahead -= 1
            return True
        return (record.due_ns > wall_ns() or self.is_parked(record)) and self.try_park_published(record)

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

    cdef int finish(self, Consumer consumer, uint64_t guid) except -1:
        """FIN: the consumer is done with the message. Raises: StorageError when it stays in flight."""
        cdef int64_t slot = self.slots.ids.get(guid)
        cdef Slot* held
        cdef const Record* record
        cdef uint8_t source
        if slot < 0:
            return NOT_IN_FLIGHT
        held = &self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        record, source = held.record, held.source
        self.reach(record, source)
        # In this order: finishing may unmap the record, and the slot is found by the record's id.
        self.slots.remove(<uint32_t> slot)
        self.finish_record(record, source)
        consumer.in_flight -= 1
        consumer.finish_count += 1
        self.ledger.header.finish_count += 1
        return DONE

    cdef int reach(self, const Record* record, uint8_t source) except -1:
        """Make room so that finishing a record cannot fail. Raises: StorageError (nothing changed)."""
        cdef Ledger ledger = self.ledger if source == FROM_TOPIC else (<Parked> self.parked).ledger
        ledger.reach(record_ordinal(record))
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

    cdef int requeue(self, Consumer consumer, uint64_t guid, int64_t delay_ns) except -1:
        """REQ: give the message back, to be delivered again at once (delay 0) or after a delay.

        Raises: StorageError when it cannot be parked; it stays in flight then.
        """
        cdef int64_t slot = self.slots.ids.get(guid)
        cdef Slot held
        if slot < 0:
            return NOT_IN_FLIGHT
        held = self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        if delay_ns > 0:
            self.reach(held.record, held.source)
            self.park(held.record, held.source, held.attempts, wall_ns() + delay_ns)
            self.slots.remove(<uint32_t> slot)
            self.settle_unless_durable()
        else:
            self.ready.push(held.record, held.attempts, held.source)
            self.slots.remove(<uint32_t> slot)
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.ledger.header.requeue_count += 1
        self.feed.scheduler.request_wake(self)
        return DONE

    cdef int touch(self, Consumer consumer, uint64_t guid, int64_t now_ns) except -1:
        """TOUCH: put the message's deadline off, at most to its delivery plus --max-msg-timeout."""
        cdef int64_t slot = self.slots.ids.get(guid)
        cdef Slot* held
        if slot < 0:
            return NOT_IN_FLIGHT
        held = &self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        self.slots.deadlines.update(
            <uint32_t> slot,
            min(now_ns + consumer.msg_timeout_ns, held.delivered_ns + self.max_msg_timeout_ns))
        return DONE

    cdef int park(self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns) except -1:
        if self.parked is None:
            self.parked = self.open_parked()
        (<Parked> self.parked).park(record, source, attempts, due_ns)
        self.set_next_timer(mono_ns())
        return 0

    cdef int settle_unless_durable(self) except -1:
        """Finish the origins of what was parked, unless that waits for a sync."""
        if not self.parks_durably:
            self.settle((<Parked> self.parked).log.end)
            (<Parked> self.parked).note_settled((<Parked> self.parked).settled)
        return 0

    def settle(self, uint64_t end):
        """Finish the origins of what lies below an ordinal of the parked log, as it is on stable storage."""
        cdef Parked parked = self.parked
        cdef uint64_t index, origin
        if end <= parked.settled:
            return
        for index in range(end - parked.settled):
            origin = parked.origins[index]
            if origin & 1 == FROM_PARKED:
                self.settle_in(parked.ledger, origin >> 1)
                continue
            self.unsettled_ahead -= origin >> 1 >= self.ledger.header.cursor
            self.settle_in(self.ledger, origin >> 1)
        parked.forget_origins(end)
        parked.trim()
        self.note_drained()

    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1:
        if not ledger.is_finished(ordinal):
            ledger.finish(ordinal)
        return 0

    def note_settled(self, uint64_t end):
        """Note that the origins of what lies below an ordinal of the parked log are finished on stable storage."""
        (<Parked> self.parked).note_settled(end)

    cdef int prepare_park(self, uint64_t span_bytes, uint64_t ordinal) except -1:
        """Make room so that parking a record of the topic's log cannot fail. Raises: StorageError, MemoryError."""
        if self.parked is None:
            self.parked = self.open_parked()
        (<Parked> self.parked).prepare(span_bytes)
        self.ledger.reach(ordinal)
        return 0

    cdef bint try_park_published(self, const Record* record) except -1:
        """Park a record found at the cursor. Returns: False where there is no room; consuming goes on without delay."""
        try:
            self.park_published(record)
        except StorageError:
            return False
        return True

    cdef int park_published(self, const Record* record) except -1:
        """Park a record of the topic's log that has a due time, and step over it at the cursor. In order.

        Raises: StorageError, MemoryError (nothing is parked).
        """
        cdef uint64_t ordinal = record_ordinal(record)
        if not self.ledger.is_finished(ordinal):
            self.ledger.reach(ordinal)
            if self.is_parked(record):
                self.ledger.finish(ordinal)
            else:
                self.park(record, FROM_TOPIC, record.attempts, record.due_ns)
                self.unsettled_ahead += ordinal >= self.ledger.header.cursor
                self.settle_unless_durable()
        self.ledger.header.parked_below = max(self.ledger.header.parked_below, ordinal + 1)
        return 0

    cdef bint is_parked(self, const Record* record) noexcept:
        """Say whether the last run ended between parking the message and finishing this record of it."""
        return self.parked is not None and (<Parked> self.parked).has_twin(record)

    def park_deferred(self, uint64_t end):
        """Park every record of the topic's log below `end` that has a due time and is not parked yet.

        Cost: walks the records between the last parked one and `end`.
        """
        cdef uint64_t start = max(self.ledger.header.parked_below, self.ledger.header.cursor)
        cdef Position position
        cdef Segment segment
        cdef uint64_t offset, ordinal
        cdef const Record* record
        # A kill may have left the topic's `deferred_below` announced and no record behind it.
        end = min(end, self.feed.end)
        if start >= end:
            return
        position = self.feed.log.locate(start)
        segment, offset, ordinal = position.segment, position.offset, position.ordinal
        self.feed.log.ready(segment)
        while ordinal < end:
            if offset == segment.tail:
                if segment.next is None:
                    break
                segment = segment.next
                self.feed.log.ready(segment)
                offset = SEGMENT_HEADER_BYTES
                ordinal = segment.first_ordinal
                continue
            record = <const Record*> (segment.base + offset)
            if record.due_ns != 0:
                self.park_published(record)
            offset += record_span(record.size_bytes)
            ordinal += 1
        self.ledger.header.parked_below = max(self.ledger.header.parked_below, end)

    def open_parked(self):
        """Make the parked log. The Python half knows where."""
        raise NotImplementedError("the subclass opens the parked log")

    cdef int wake(self) except -1:
        """Share what can be delivered among the consumers that can take it, each at most its part."""
        cdef Consumer consumer
        cdef uint64_t depth, quota
        cdef Py_ssize_t at, ready_count = 0, count = len(self.consumers)
        if self.ephemeral:
            self.drop_excess()
        depth = self.available()
        if depth == 0 or count == 0 or self.ledger.header.paused:
            return 0
        for consumer in self.consumers:
            ready_count += consumer.can_take()
        if ready_count == 0:
            return 0
        quota = (depth + ready_count - 1) // ready_count
        at = <Py_ssize_t> (self.rotation % <uint64_t> count)
        for _ in range(count):
            consumer = self.consumers[at]
            at = at + 1 if at + 1 < count else 0
            if consumer.can_take():
                consumer.deliver(quota)
                if self.available() == 0 or len(self.consumers) != count:
                    break
        self.rotation = <uint64_t> at
        self.ask_for_another_turn(depth)
        self.note_cursor()
        self.set_next_timer(mono_ns())
        return 0

    cdef int ask_for_another_turn(self, uint64_t depth) except -1:
        """Ask for a turn when this one got somewhere and left both messages and a consumer that can take them."""
        cdef Consumer consumer
        if 0 < self.available() < depth:
            for consumer in self.consumers:
                if consumer.can_take():
                    self.feed.scheduler.request_wake(self)
                    break
        return 0

    cdef int on_time(self, int64_t now_ns) except -1:
        self.expire(now_ns)
        self.release_due(wall_ns())
        self.set_next_timer(now_ns)
        return 0

    cdef int set_next_timer(self, int64_t now_ns) except -1:
        """Ask to be called when the next message times out or is due."""
        cdef int64_t due = self.slots.deadlines.peek_due()
        cdef int64_t wait_ns
        if self.parked is not None and (<Parked> self.parked).dues.count:
            wait_ns = (<Parked> self.parked).dues.peek_due() - wall_ns()
            due = min(due, now_ns + min(max(wait_ns, <int64_t> 0), <int64_t> LOOK_AGAIN_NS_MAX))
        if due != INT64_MAX:
            # Not at once: what DUE_PER_TURN left over waits until the loop has seen to others.
            self.feed.scheduler.set_timer(self, max(due, now_ns + 1))
        return 0

    cdef int expire(self, int64_t now_ns) except -1:
        """Take back what its consumer has held longer than its timeout. Returns: how many."""
        cdef int count = 0
        cdef uint32_t slot
        cdef Slot held
        cdef Consumer consumer
        while count < DUE_PER_TURN and self.slots.deadlines.peek_due() <= now_ns:
            slot = self.slots.deadlines.peek_slot()
            held = self.slots.slots[slot]
            self.ready.push(held.record, held.attempts, held.source)
            self.slots.remove(slot)
            self.ledger.header.timeout_count += 1
            for consumer in self.consumers:
                if consumer.number == held.consumer:
                    consumer.in_flight -= 1
                    break
            count += 1
        if count:
            self.feed.scheduler.request_wake(self)
        return count

    cdef int release_due(self, int64_t wall_now_ns) except -1:
        """Move the parked messages that are due to the ring, paused or not. Returns: how many."""
        cdef int count = 0
        cdef const Record* record
        if self.parked is None:
            return 0
        while count < DUE_PER_TURN:
            record = (<Parked> self.parked).pop_due(wall_now_ns)
            if record == NULL:
                break
            self.ready.push(record, record_attempts(record), FROM_PARKED)
            count += 1
        if count:
            self.feed.scheduler.request_wake(self)
        return count

    cdef int drop_excess(self) except -1:
        """Keep an ephemeral channel within --mem-queue-size: the newest messages beyond it are finished unread.

        While a consumer waits for messages nothing is dropped; it takes them in this very turn.
        Source: spec of broker semantics, "Topic lifecycle", ephemeral.
        """
        cdef uint64_t depth = self.available()
        cdef uint64_t excess
        cdef Consumer consumer
        if depth <= self.memory_count_max:
            return 0
        for consumer in self.consumers:
            if consumer.can_take():
                return 0
        excess = min(depth - self.memory_count_max, self.feed.end - self.ledger.header.cursor)
        self.ledger.finish_range(self.feed.end - excess, self.feed.end)
        return 0

    def take_message(self, Consumer consumer not None):
        """Take one message from Python (tests, cold paths), for a consumer whatever its RDY.

        Returns: (id, attempts, timestamp in ns, body), or None when nothing is to be had.
        """
        cdef Delivery delivery
        if not self.take(consumer, mono_ns(), &delivery):
            return None
        self.note_cursor()
        self.set_next_timer(mono_ns())
        return (delivery.record.guid, delivery.attempts, delivery.record.timestamp_ns,
                record_body(delivery.record)[:delivery.record.size_bytes])

    def finish_message(self, Consumer consumer not None, uint64_t guid):
        """FIN from Python. Returns: an Answer: 0 done, 1 not in flight, 2 not the owner."""
        return self.finish(consumer, guid)

    def requeue_message(self, Consumer consumer not None, uint64_t guid, int64_t delay_ns):
        """REQ from Python. Returns: an Answer, as `finish_message`. Raises: StorageError."""
        return self.requeue(consumer, guid, delay_ns)

    def touch_message(self, Consumer consumer not None, uint64_t guid):
        """TOUCH from Python. Returns: an Answer, as `finish_message`."""
        return self.touch(consumer, guid, mono_ns())

    def add_consumer(self, Consumer consumer not None):
        """Subscribe a client."""
        self.consumers.append(consumer)

    def remove_consumer(self, Consumer consumer not None):
        """Unsubscribe a client; what it has in flight waits for its timeout."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def pause(self, bint paused):
        """Stop or resume deliveries; remembered over restarts."""
        self.ledger.header.paused = paused
        if not paused:
            self.feed.scheduler.request_wake(self)

    def empty(self):
        """Drop what is queued, in flight and deferred; the clients' in-flight counts become zero."""
        cdef Position position
        cdef Consumer consumer
        self.slots.clear()
        self.ready.clear()
        if self.parked is not None:
            (<Parked> self.parked).clear()
        self.unsettled_ahead = 0
        self.ledger.reset(self.feed.end)
        position = self.feed.log.locate(self.feed.end)
        self.segment, self.offset = position.segment, position.offset
        self.note_cursor()
        for consumer in self.consumers:
            consumer.in_flight = 0
        self.feed.trim_wanted = True
        self.feed.scheduler.request_wake(self.feed)
        self.feed.scheduler.request_wake(self)

    def recover(self, dict attempts_of):
        """After a start: what was handed out and not finished waits for redelivery, in order.

        What has a due time to come was never handed out: the power failed before its parked record was on stable
        storage, and it is parked again.
        attempts_of: {(source, ordinal): deliveries so far} as noted by a clean stop; without a note one delivery is
        presumed, so that attempts never read as a first delivery again. Cost: walks the unfinished part of the log.
        """
        cdef uint64_t ordinal
        cdef Position position = None
        cdef Segment segment = None
        cdef uint64_t offset = 0
        cdef const Record* record
        if self.parked is not None and (<Parked> self.parked).twins.count != 0:
            self.forget_parked_below()
        for ordinal in list(self.ledger.unfinished(self.ledger.header.cursor)):
            if position is None or ordinal >= position.segment.end_ordinal():
                position = self.feed.log.locate(ordinal)
                self.feed.log.ready(position.segment)
                segment, offset = position.segment, position.offset
            if position.ordinal > ordinal:
                continue
            record = <const Record*> (segment.base + offset)
            while record_ordinal(record) < ordinal:
                offset += record_span(record.size_bytes)
                record = <const Record*> (segment.base + offset)
            if record.flags & RECORD_LOST or self.is_parked(record):
                self.ledger.finish(ordinal)
            elif not (record.due_ns > wall_ns() and self.try_park_published(record)):
                self.ready.push(record, attempts_of.get((FROM_TOPIC, ordinal), 1), FROM_TOPIC)

    def finish_twins(self):
        """After a power failure and before `recover`: finish the origins past the cursor, which may be one of before.

        Cost: O(records up to the last one that was parked since the last sync).
        """
        cdef Position position = self.feed.log.locate(self.ledger.header.cursor)
        cdef Segment segment = position.segment
        cdef uint64_t offset = position.offset
        cdef uint64_t left = 0 if self.parked is None else (<Parked> self.parked).last_twin_guid
        cdef const Record* record
        self.forget_parked_below()
        while segment is not None:
            self.feed.log.ready(segment)
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                if record.guid > left:
                    return
                if self.is_parked(record) and not self.ledger.is_finished(record_ordinal(record)):
                    self.ledger.finish(record_ordinal(record))
                offset += record_span(record.size_bytes)
            segment = segment.next
            offset = SEGMENT_HEADER_BYTES

    def forget_parked_below(self):
        """Before `recover`: look again at the records past the cursor, which of them are parked."""
        self.ledger.header.parked_below = min(self.ledger.header.parked_below, self.ledger.header.cursor)

    def recover_parked(self, dict attempts_of):
        """After a start: what of the parked log was handed out goes to the ring, with its attempts; the rest waits."""
        cdef Parked parked = self.parked
        cdef const Record* record
        cdef uint32_t slot
        for slot in range(parked.capacity):
            if parked.dues.contains(slot):
                record = parked.records[slot]
                # A note of 0 is of one that was due and not delivered yet; a kill leaves no notes.
                attempts = attempts_of.get((FROM_PARKED, record_ordinal(record))) if attempts_of else None
                if attempts is None and record.handed_out:
                    attempts = record.handed_out
                if attempts is not None:
                    self.ready.push(parked.take(slot), attempts, FROM_PARKED)
        self.set_next_timer(mono_ns())

    def attempts_noted(self):
        """Return {(source, ordinal): deliveries so far} of what is in flight or waits for redelivery."""
        noted = {}
        cdef uint32_t index
        cdef ReadyEntry entry
        cdef Slot* held
        for index in range(self.slots.deadlines.count):
            held = &self.slots.slots[self.slots.deadlines.entries[index].slot]
            noted[(held.source, record_ordinal(held.record))] = held.attempts
        for index in range(self.ready.count):
            entry = self.ready.entries[(self.ready.head + index) & (self.ready.capacity - 1)]
            noted[(entry.source, record_ordinal(entry.record))] = entry.attempts
        return noted

    def close_consumers(self):
        """Return the clients and forget them, for whoever closes their sockets."""
        consumers, self.consumers = self.consumers, []
        return consumers

    @property
    def paused(self) -> bool:
        return bool(self.ledger.header.paused)

    @property
    def depth(self) -> int:
        return self.available()

    @property
    def backend_depth(self) -> int:
        depth = self.available()
        return 0 if self.ephemeral or depth <= self.memory_count_max else depth - self.memory_count_max

    @property
    def in_flight_count(self) -> int:
        return self.slots.count()

    @property
    def deferred_count(self) -> int:
        return 0 if self.parked is None else (<Parked> self.parked).count()

    @property
    def message_count(self) -> int:
        return self.feed.end - self.ledger.header.start

    @property
    def requeue_count(self) -> int:
        return self.ledger.header.requeue_count

    @property
    def timeout_count(self) -> int:
        return self.ledger.header.timeout_count

    def check(self):
        """Assert the invariants that relate the parts. Cost: O(capacity of the ledger)."""
        assert self.ledger.header.cursor <= self.feed.end
        assert self.slots.deadlines.count == self.slots.ids.count == self.slots.count()
        self.ledger.check()


def start_ledger(Ledger ledger not None, Position position not None):
    """Make a fresh ledger begin at a position of the log."""
    ledger.reset(position.ordinal)
    ledger.header.start = position.ordinal
    ledger.header.parked_below = position.ordinal
    ledger.header.cursor_offset = position.offset
    # The segment's number is what says that the ledger has its place: all else comes before it.
    store_barrier()
    ledger.header.cursor_segment = position.segment.number


def cursor_position(Ledger ledger not None, Feed feed not None):
    """Return the Position of a ledger's cursor in its log, from the place noted where that still holds."""
    return feed.log.position_at(
        ledger.header.cursor_segment, ledger.header.cursor_offset, ledger.header.cursor)
