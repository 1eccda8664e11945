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

An id names one message in flight. Two messages of one id should not be, but files may be damaged and clocks set back:
the second is held back in the ring until the first is finished, and never taken for a copy of it unread.

What faces the log is in pyx/broker/cursor.pyx: reading on, parking. Here is what faces the clients. What an earlier run
left is taken up in pyx/broker/recovery.pyx.

Invariants, beside those of the cursor:
1. A record below the cursor and not finished is in exactly one of: slots, ring, (parked records) dues.
   Or it is the origin of a parked record that no sync has covered yet (see pyx/broker/parked.pyx).
2. `depth = feed.end - cursor - ledger.ahead - unsettled_ahead - pending + ring`; in flight and deferred are counted
   apart, as in nsqd.

Source: docs/nsq/broker-semantics.md, "Delivery to a client", "In-flight outcomes".
"""

from libc.stdint cimport INT64_MAX, int32_t
from libc.string cimport memcmp

from pyqd.hot.broker.consumer cimport REGION_LOCAL, ZONE_LOCAL, count_ready
from pyqd.hot.broker.feed cimport Feed
from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, Slot
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport record_attempts, record_body, record_ordinal

from pyqd.primitives.errors import StorageError

cdef enum:
    RING_FIRST = 10000                   # a ring that long is served before fresh messages
    DUE_WORK = 200                       # releasing or expiring a message, as work of a turn
    HELD_BACK_PER_TAKE = 16              # bounds a search among messages whose ids are in flight
    LOOK_AGAIN_NS_MAX = 10000000000      # the wall clock may jump: due times are looked at this often


cdef class ChannelCore(ChannelCursor):
    """The compiled half of a channel. `pyqd.broker.channel.Channel` adds name, life cycle and files."""

    def __init__(
        self, Feed feed not None, Ledger ledger not None, Position position not None, *,
        int64_t max_msg_timeout_ns, uint64_t memory_count_max, bint ephemeral,
    ):
        ChannelCursor.__init__(self, feed, ledger, position)
        self.slots = SlotTable()
        self.ready = ReadyRing()
        # Numbers of an earlier run, which a reader may hold, are not given again.
        self.ready.run = self.ready.first = <uint64_t> wall_ns()
        self.consumers = []
        self.consumer_of = {}
        self.unsynced = []
        self.max_msg_timeout_ns = max_msg_timeout_ns
        self.memory_count_max = memory_count_max
        self.ephemeral = ephemeral

    cdef uint64_t available(self) noexcept:
        """Count the messages that could be delivered now: the depth."""
        return (
            self.feed.end - self.ledger.header.cursor - self.ledger.ahead - self.unsettled_ahead - self.pending()
            + self.ready.count)

    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1:
        """Hand the next message to the consumer and note it as in flight.

        Returns: 1 and fills in the delivery, or 0 when nothing is to be had. The consumer can take, the channel is not
        paused. Raises: MemoryError, StorageError.
        """
        cdef ReadyEntry entry
        cdef const Record* record
        cdef int held_back_count = 0
        while True:
            record = NULL
            if self.ready.count == 0 or not (self.ready_turn or self.ready.count > RING_FIRST):
                record = self.take_at_cursor()
                entry = ReadyEntry(record=record, print=0, attempts=0, source=FROM_TOPIC)
                self.ready_turn = True
            if record == NULL:
                if self.ready.count == 0:
                    return 0
                self.ready_turn = False
                entry = self.ready.pop()
            if consumer.sample_rate != 0 and consumer.sampled_out():
                if not self.try_finish(&entry):
                    return 0
                continue
            if self.slots.add(
                    entry.record, entry.attempts + 1, entry.source, consumer.number, now_ns,
                    now_ns + consumer.msg_timeout_ns):
                break
            if self.is_copy(&entry):
                # A kill between parking a message and finishing its old record leaves it twice; once is enough.
                if not self.try_finish(&entry):
                    return 0
                continue
            self.ready.push(entry.record, entry.attempts, entry.source)
            self.held_back = True
            held_back_count += 1
            if held_back_count == HELD_BACK_PER_TAKE:
                return 0
        if entry.source == FROM_PARKED:
            # Below the cursor of the topic's log a delivery is presumed; a parked record has to tell itself.
            (<Record*> entry.record).handed_out = entry.attempts + 1
        consumer.in_flight += 1
        consumer.message_count += 1
        self.delivered_count += 1
        self.zone_local_count += consumer.locality == ZONE_LOCAL
        self.region_local_count += consumer.locality == REGION_LOCAL
        delivery.record = entry.record
        delivery.attempts = entry.attempts + 1
        return 1

    cdef bint is_copy(self, const ReadyEntry* entry) noexcept:
        """Say whether an entry is the message that is in flight by its id, and not another one with the same id."""
        cdef const Record* other = self.slots.slots[self.slots.ids.get(entry.record.guid)].record
        return (
            entry.record.timestamp_ns == other.timestamp_ns and entry.record.size_bytes == other.size_bytes
            and memcmp(record_body(entry.record), record_body(other), other.size_bytes) == 0)

    cdef int finish(self, Consumer consumer, uint64_t guid) except -1:
        """FIN: the consumer is done with the message.

        Returns: an Answer; after BEYOND_LEDGER the caller makes the message finishable and calls again, so that a FIN
        which needs no room pays for no exception handler.
        """
        cdef int64_t slot = self.slots.ids.get(guid)
        cdef Slot* held
        cdef const Record* record
        cdef uint8_t source
        cdef int64_t published_ns
        if slot < 0:
            return NOT_IN_FLIGHT
        held = &self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        record, source = held.record, held.source
        published_ns = record.timestamp_ns
        if not self.ledger_of(source).reaches(record_ordinal(record)):
            return BEYOND_LEDGER
        # In this order: finishing may unmap the record, and the slot is found by the record's id.
        self.slots.remove(<uint32_t> slot)
        self.finish_record(record, source)
        consumer.in_flight -= 1
        consumer.finish_count += 1
        self.ledger.header.finish_count += 1
        if self.on_finished is not None:
            self.count_until_synced(consumer)
        if self.latency is not None:
            self.latency.note(published_ns)
        if self.held_back:
            self.held_back = False
            self.feed.scheduler.request_wake(self)
        return DONE

    cdef int count_until_synced(self, Consumer consumer) except -1:
        """With --sync-fin: let a FIN count against its consumer's RDY until a sync has covered it."""
        consumer.unsynced_count += 1
        if not consumer.awaits_sync:
            consumer.awaits_sync = True
            self.unsynced.append(consumer)
            if len(self.unsynced) == 1:
                self.on_finished(self)
        return 0

    def begin_fin_sync(self):
        """Return [(consumer, FINs)] that a sync of the channel's ledgers covers if it is gathered now."""
        cdef Consumer consumer
        covered = []
        for consumer in self.unsynced:
            consumer.awaits_sync = False
            covered.append((consumer, consumer.unsynced_count))
        self.unsynced = []
        return covered

    def end_fin_sync(self, list covered not None):
        """Note that these FINs are on stable storage, as `begin_fin_sync` returned them."""
        cdef Consumer consumer
        cdef int64_t count
        for consumer, count in covered:
            consumer.unsynced_count -= count
        self.feed.scheduler.request_wake(self)

    def fail_fin_sync(self, list covered not None):
        """Have the next sync cover these FINs: theirs has failed."""
        cdef Consumer consumer
        for consumer, _ in covered:
            if not consumer.awaits_sync:
                consumer.awaits_sync = True
                self.unsynced.append(consumer)

    cdef int make_finishable(self, uint64_t guid) except -1:
        """Grow the ledger so that a message in flight can be finished. Raises: StorageError (nothing changed)."""
        cdef Slot* held = &self.slots.slots[self.slots.ids.get(guid)]
        return self.reach(held.record, held.source)

    cdef bint try_finish(self, const ReadyEntry* entry) except -1:
        """Finish a message that was taken and is delivered to nobody.

        Returns: False if its ledger cannot grow; the message waits for redelivery then, and a timer retries.
        """
        try:
            self.reach(entry.record, entry.source)
        except StorageError:
            self.ready.push(entry.record, entry.attempts, entry.source)
            self.retry_soon()
            return False
        self.finish_record(entry.record, entry.source)
        return True

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
        if delay_ns > 0 and not self.is_spent(held.attempts):
            self.reach(held.record, held.source)
            self.park(held.record, held.source, held.attempts, wall_ns() + delay_ns)
            self.slots.remove(<uint32_t> slot)
            self.settle_unless_durable()
        else:
            self.give_back(held.record, held.attempts, held.source)
            self.slots.remove(<uint32_t> slot)
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.ledger.header.requeue_count += 1
        self.feed.scheduler.request_wake(self)
        return DONE

    cdef bint is_spent(self, uint16_t attempts) noexcept:
        """Say whether a message has been delivered often enough. A limit of the channel's says how often that is."""
        return False

    cdef int give_back(self, const Record* record, uint16_t attempts, uint8_t source) except -1:
        """Let a message wait for redelivery, unless it has been delivered often enough."""
        return self.ready.push(record, attempts, source)

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

    cdef int wake(self) except -1:
        """Share what can be delivered among the nearest consumers that can take it, each at most its part."""
        cdef Consumer consumer
        cdef uint64_t depth, quota
        cdef uint64_t delivered_before = self.delivered_count
        cdef Py_ssize_t at, ready_count, count = len(self.consumers)
        cdef int32_t nearest = 0
        if self.exiting:
            return 0
        if self.settle_end != 0:
            self.settle_some(False)
        if self.lags() and not self.held_up:
            self.catch_up(False)
        if self.ephemeral:
            self.drop_excess()
        # Before a look at the ledger: that of an idle channel may not be mapped.
        if count == 0 or self.ledger.header.paused:
            return 0
        depth = self.deliverable()
        if depth == 0:
            return 0
        ready_count = count_ready(self.consumers, &nearest)
        if ready_count == 0:
            return 0
        quota = (depth + ready_count - 1) // ready_count
        at = <Py_ssize_t> (self.rotation % <uint64_t> count)
        for _ in range(count):
            consumer = self.consumers[at]
            at = at + 1 if at + 1 < count else 0
            if consumer.locality == nearest and consumer.can_take():
                self.serve(consumer, quota)
                if self.deliverable() == 0 or len(self.consumers) != count:
                    break
                if not self.feed.scheduler.has_work():
                    self.feed.scheduler.request_wake(self)
                    break
        self.rotation = <uint64_t> at
        self.note_finished_ahead()
        self.ask_for_another_turn(depth, delivered_before)
        self.note_cursor()
        self.set_next_timer(mono_ns())
        return 0

    cdef uint64_t deliverable(self) noexcept:
        """Count the messages that may be delivered now. A limit of the channel's may make it less than the depth."""
        return self.available()

    cdef int serve(self, Consumer consumer, uint64_t quota) except -1:
        """Let a consumer take up to `quota` messages."""
        return consumer.deliver(quota)

    cdef int ask_for_another_turn(self, uint64_t depth, uint64_t delivered_before) except -1:
        """Schedule another run if this one made progress and left both messages and a consumer that can take them.

        depth, delivered_before: as this run began. A deferred message that could not be parked is delivered without
        making the depth smaller, so that alone does not tell of progress.
        """
        cdef Consumer consumer
        cdef uint64_t left = self.deliverable()
        if left != 0 and (left < depth or self.delivered_count != delivered_before):
            for consumer in self.consumers:
                if consumer.can_take():
                    self.feed.scheduler.request_wake(self)
                    break
        return 0

    cdef int on_time(self, int64_t now_ns) except -1:
        if self.held_up:
            self.held_up = False
            self.feed.scheduler.request_wake(self)
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
            # Not at once: messages for which no work was left wait until the loop has polled.
            self.feed.scheduler.set_timer(self, max(due, now_ns + 1))
        return 0

    cdef int expire(self, int64_t now_ns) except -1:
        """Take back what its consumer has held longer than its timeout, as far as the work goes. Returns: how many."""
        cdef int count = 0
        cdef uint32_t slot
        cdef Slot held
        cdef Consumer consumer
        while self.slots.deadlines.peek_due() <= now_ns and (count == 0 or self.feed.scheduler.spend(DUE_WORK)):
            slot = self.slots.deadlines.peek_slot()
            held = self.slots.slots[slot]
            self.give_back(held.record, held.attempts, held.source)
            self.slots.remove(slot)
            self.ledger.header.timeout_count += 1
            consumer = self.consumer_of.get(held.consumer)
            if consumer is not None:
                consumer.in_flight -= 1
            count += 1
        if count:
            self.feed.scheduler.request_wake(self)
        return count

    cdef int release_due(self, int64_t wall_now_ns) except -1:
        """Move parked messages that are due to the ring, paused or not, as far as the work goes. Returns: how many."""
        cdef int count = 0
        cdef const Record* record
        if self.parked is None:
            return 0
        while count == 0 or self.feed.scheduler.spend(DUE_WORK):
            record = (<Parked> self.parked).pop_due(wall_now_ns)
            if record == NULL:
                break
            self.give_back(record, record_attempts(record), FROM_PARKED)
            count += 1
        if count:
            self.feed.scheduler.request_wake(self)
        return count

    cdef int drop_excess(self) except -1:
        """Keep an ephemeral channel within --mem-queue-size, unless a consumer waits: it takes in this very turn.

        Source: docs/nsq/broker-semantics.md, "Topic lifecycle".
        """
        cdef Consumer consumer
        if self.available() <= self.memory_count_max or self.lags():
            return 0
        if not self.ledger.header.paused:
            for consumer in self.consumers:
                if consumer.can_take():
                    return 0
        return self.drop_beyond()

    cdef int drop_beyond(self) except -1:
        """Finish the newest messages beyond --mem-queue-size unread; there are some."""
        cdef uint64_t excess = min(
            self.available() - self.memory_count_max, self.feed.end - self.ledger.header.cursor)
        return self.ledger.finish_range(self.feed.end - excess, self.feed.end)

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
        """FIN from Python. Returns: an Answer: 0 done, 1 not in flight, 2 not the owner.

        Raises: StorageError if the ledger cannot grow; the message stays in flight.
        """
        cdef int answer = self.finish(consumer, guid)
        if answer == BEYOND_LEDGER:
            self.make_finishable(guid)
            answer = self.finish(consumer, guid)
        return answer

    def requeue_message(self, Consumer consumer not None, uint64_t guid, int64_t delay_ns):
        """REQ from Python. Returns: an Answer, as `finish_message`. Raises: StorageError."""
        return self.requeue(consumer, guid, delay_ns)

    def touch_message(self, Consumer consumer not None, uint64_t guid):
        """TOUCH from Python. Returns: an Answer, as `finish_message`."""
        return self.touch(consumer, guid, mono_ns())

    def add_consumer(self, Consumer consumer not None):
        """Subscribe a client."""
        self.consumers.append(consumer)
        self.consumer_of[consumer.number] = consumer

    def remove_consumer(self, Consumer consumer not None):
        """Unsubscribe a client; what it has in flight waits for its timeout."""
        if self.consumer_of.pop(consumer.number, None) is not None:
            self.consumers.remove(consumer)

    def pause(self, bint paused):
        """Stop or resume deliveries; remembered over restarts."""
        self.ledger.header.paused = paused
        self.ledger.change_count += 1
        if not paused:
            self.feed.scheduler.request_wake(self)

    cdef int forget_deliveries(self) except -1:
        """Forget what is in flight and what waits for redelivery; the ledger is about to be reset."""
        self.slots.clear()
        self.ready.clear()
        return 0

    cdef int start_over(self, Position position) except -1:
        """Go on at a place of the log: what lies before it is finished, what was handed out or parked is forgotten.

        Raises: StorageError, at most before anything is changed.
        """
        cdef Consumer consumer
        self.ledger.reset(position.ordinal, 0 if self.parked is None else (<Parked> self.parked).log.end)
        self.forget_deliveries()
        for consumer in self.consumers:
            consumer.in_flight = 0
        self.segment, self.offset = position.segment, position.offset
        self.note_cursor()
        if self.parked is not None:
            (<Parked> self.parked).drop_all()
            self.note_all_settled()
            if not self.parks_durably:
                self.note_dropped((<Parked> self.parked).dropped_below)
        self.unsettled_ahead = 0
        self.moved_ahead = None
        self.settle_end = 0
        self.forget_lag()
        self.feed.trim_wanted = True
        self.feed.scheduler.request_wake(self.feed)
        self.feed.scheduler.request_wake(self)
        return 0

    def empty(self):
        """Drop what is queued, in flight and deferred; the clients' in-flight counts become zero."""
        self.start_over(self.feed.end_position())
        # Nothing times out and nothing is due any more.
        self.feed.scheduler.drop_timer(self)

    def abandon(self):
        """Drop everything for good, as the channel's files are gone. It has no consumers any more."""
        cdef Position position = self.feed.log.end_position()
        assert len(self.consumers) == 0
        self.segment, self.offset = position.segment, position.offset
        self.forget_deliveries()
        if self.parked is not None:
            (<Parked> self.parked).abandon()
        self.unsettled_ahead = 0
        self.moved_ahead = None
        self.settle_end = 0
        self.forget_lag()
        self.feed.scheduler.drop_timer(self)

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

    def note_cancelled(self, uint64_t ordinal):
        """Have a seek leave a record of the topic's log out. The Python half knows where that is kept."""
        raise NotImplementedError("the subclass opens the list")

    def close_consumers(self):
        """Return the clients and forget them, for whoever closes their sockets."""
        consumers, self.consumers = self.consumers, []
        self.consumer_of = {}
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
        return self.pending() + (0 if self.parked is None else (<Parked> self.parked).count())

    @property
    def message_count(self) -> int:
        # After a power failure what is shown may end before the channel began.
        return max(self.feed.end, self.ledger.header.start) - self.ledger.header.start

    @property
    def finish_count(self) -> int:
        return self.ledger.header.finish_count

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
