"""A channel: one copy of a topic's messages, each to one of its clients until one finishes it.

    topic's log   | finished | in flight, finished, deferred, for redelivery | cursor | never handed out | readable.end

The channel keeps no messages. Its parts are:

    LogCursor         the next record of the topic's log, and the ledger of finished records   (log_cursor.pyx)
    SlotTable         messages in flight, by id and by deadline                                 (slots.pyx)
    ReadyRing         queue of returned messages, which wait for redelivery                     (slots.pyx)
    Deferral          messages that wait for their due times                                    (deferral.pyx)
    DeadLetterPolicy  the limit of attempts, and dead letters on their way                      (dead_letters.pyx)
    Dispatcher        takes the next message, and shares messages out among the consumers       (dispatcher.pyx)
    ChannelWaits      threads, disk space and tokens that the channel waits for                 (waits.pyx)
    UnsyncedFins      FINs that wait for a sync                                                 (consumer.pyx)
    ChannelTrace      events for the trace of messages; None without a trace                    (channel_trace.pyx)

The parts never call the channel. A message goes:

    take -> in flight -> finish                        one bit in the ledger
                      -> requeue, delay 0; timeout     returned messages -> take
                      -> requeue with a delay          a note and a heap of due times, until due
    published with a due time                          a heap of due times; the cursor passes over it
    due                                                returned messages

The Python half (pyqd/broker/channel.py) adds the name and the life cycle. From Python the core needs two objects:
`files` (ChannelFiles), which opens ledgers and notes, and the DeadLetterTarget of the policy. Messages of an earlier
run are resumed by pyx/broker/recovery.pyx. Emptying a channel is a reset to the end of the readable part; a seek is a
reset to any place (pyx/broker/replay.pyx).

Invariants, beside those of the parts:
1. A record below the cursor and not finished is in exactly one of: slots, returned messages, dead letters, a heap of
   due times, the unseen entries of dues.
2. `depth = readable.end - cursor - ledger.ahead - dues_ahead - overridden + returned + dead letters pending`; in flight
   and deferred are counted apart, as in nsqd.

Source: docs/nsq/broker-semantics.md, "Delivery to a client", "In-flight outcomes".
"""

from libc.stdint cimport INT64_MAX

from pyqd.hot.broker.channel_trace cimport ChannelTrace
from pyqd.hot.broker.consumer cimport Delivery
from pyqd.hot.broker.dead_letters cimport DeadLetterPolicy
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.dispatcher cimport NONE_READY, OUT_OF_WORK, Dispatcher, Outcome
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.rate_limit cimport RateLimit
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.slots cimport Slot
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.broker.consumer cimport UnsyncedFins
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.notes cimport NO_NOTE
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport Record, record_body, record_body_bytes, record_ordinal
from pyqd.hot.wire.trace_events cimport FINISHED, REASON_EMPTIED, REASON_EPHEMERAL, TOUCHED

from pyqd.primitives.errors import StorageError

cdef enum:
    DUE_WORK = 200                       # releasing or expiring a message, in units of work
    RECHECK_NS_MAX = 10000000000         # the wall clock may jump: due times are checked this often


cdef class ChannelCore(Scheduled):
    """The compiled half of a channel. `pyqd.broker.channel.Channel` adds name, life cycle and files."""

    def __init__(
        self, ReadableLog readable not None, Ledger ledger not None, Position position not None, *,
        int64_t max_msg_timeout_ns, uint64_t memory_count_max, bint ephemeral, files, dead_letter_target,
    ):
        """Begin at a position of the topic's log, that of the ledger's cursor.

        files: ChannelFiles. dead_letter_target: DeadLetterTarget.
        """
        self.readable = readable
        self.ledger = ledger
        self.files = files
        self.waits = ChannelWaits(self, readable.scheduler, files)
        self.cursor = LogCursor(readable, ledger, position)
        self.slots = SlotTable()
        self.ready = ReadyRing()
        # Numbers of an earlier run, which a page's cursor may hold, are not used again.
        self.ready.run = self.ready.first = <uint64_t> wall_ns()
        self.deferral = Deferral(self.cursor, files)
        self.cursor.count_dues()
        self.dispatcher = Dispatcher(self.deferral, self.slots, self.ready, self.waits)
        self.dead_letters = DeadLetterPolicy(self.deferral, self.ready, dead_letter_target)
        self.unsynced_fins = UnsyncedFins()
        self.max_msg_timeout_ns = max_msg_timeout_ns
        self.memory_count_max = memory_count_max
        self.ephemeral = ephemeral
        assert ledger.header.floor <= ledger.header.cursor and readable.end <= readable.log.end

    cdef bint is_due_present(self) except -1:
        """Return whether the message that is due first is in memory; if it is not, have a thread read it."""
        cdef Deferral deferral = self.deferral
        if not deferral.is_being_read() and not deferral.is_next_present():
            self.waits.read_absent(deferral.presence, True)
        return not deferral.is_being_read()

    cdef int finish(self, Consumer consumer, uint64_t guid) except -1:
        """FIN: the consumer is done with the message.

        Returns: an Answer; after BEYOND_LEDGER the caller makes the message finishable and calls again, so that a FIN
        which needs no larger ledger pays for no exception handler. A deleted channel has no message in flight: its
        files are gone, and their paths may be those of a new channel.
        """
        cdef int64_t slot = self.slots.find(guid)
        cdef Slot* held
        cdef const Record* record
        cdef uint32_t note
        cdef int64_t published_ns = 0
        if slot < 0 or self.exiting:
            return NOT_IN_FLIGHT
        held = &self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        record, note = held.record, held.note
        if self.latency is not None:
            published_ns = record.timestamp_ns
        if not self.ledger.is_open_for(record_ordinal(record)) and not self.ledger.is_open_below(
                record_ordinal(record)):
            return BEYOND_LEDGER
        assert consumer.in_flight > 0, "a message in flight is not counted for its consumer"
        if self.trace is not None:
            # Before the act: if a kill comes in between, the message is delivered again, which shows as well.
            self.trace.note(FINISHED, consumer, held)
        # In this order: removing the slot reads the record's id, and finishing may unmap the record.
        self.slots.remove(<uint32_t> slot)
        self.cursor.finish(record)
        if note != NO_NOTE:
            self.deferral.forget(note)
        consumer.in_flight -= 1
        consumer.finish_count += 1
        self.ledger.header.finish_count += 1
        if self.on_finished is not None and self.unsynced_fins.add(consumer):
            self.on_finished(self)
        if self.latency is not None:
            self.latency.note(published_ns)
        if self.dispatcher.held_back:
            self.dispatcher.held_back = False
            self.readable.scheduler.request_wake(self)
        debug_require(self.slots.find(guid) < 0)
        return DONE

    def end_fin_sync(self, list covered not None):
        """Release FINs that are on stable storage, as `UnsyncedFins.begin_sync` returned them."""
        self.unsynced_fins.end_sync(covered)
        self.readable.scheduler.request_wake(self)

    cdef int make_finishable(self, uint64_t guid) except -1:
        """Make the ledger ready for the FIN of a message in flight. Raises: StorageError (nothing changed)."""
        cdef int64_t slot = self.slots.find(guid)
        assert slot >= 0, "the message is not in flight"
        return self.ledger.reach(record_ordinal(self.slots.slots[slot].record))

    cdef int requeue(self, Consumer consumer, uint64_t guid, int64_t delay_ns) except -1:
        """REQ: requeue the message: it is delivered again at once (delay 0) or after a delay.

        Raises: StorageError when its due time cannot be stored; it stays in flight then.
        """
        cdef int64_t slot = self.slots.find(guid)
        assert delay_ns >= 0, "the caller clamps the delay"
        if slot < 0 or self.exiting:
            return NOT_IN_FLIGHT
        if self.slots.slots[slot].consumer != consumer.number:
            return NOT_OWNER
        if self.trace is not None and self.trace.place.samples(guid):
            self.requeue_traced(consumer, <uint32_t> slot, delay_ns)
        else:
            self.requeue_slot(consumer, <uint32_t> slot, delay_ns)
        return DONE

    cdef int requeue_traced(self, Consumer consumer, uint32_t slot, int64_t delay_ns) except -1:
        """Like `requeue_slot`, after a trace event, which is removed if the requeue fails."""
        assert self.trace is not None and self.slots.slots[slot].consumer == consumer.number
        self.trace.requeued(consumer, &self.slots.slots[slot], delay_ns)
        try:
            self.requeue_slot(consumer, slot, delay_ns)
        except BaseException:
            self.trace.place.log.take_back()
            raise
        return 0

    cdef int requeue_slot(self, Consumer consumer, uint32_t slot, int64_t delay_ns) except -1:
        """Requeue the message of a slot. Raises: StorageError (nothing changed)."""
        cdef Slot held = self.slots.slots[slot]
        cdef int64_t due_before
        assert held.consumer == consumer.number, "only the owner requeues a message"
        assert consumer.in_flight > 0, "a message in flight is not counted for its consumer"
        if delay_ns <= 0 or self.dead_letters.is_spent(held.attempts):
            self.dead_letters.add_returned(held.record, held.attempts, held.note)
            self.slots.remove(slot)
        else:
            due_before = self.deferral.next_due()
            self.deferral.delay(held.record, held.attempts, delay_ns, held.note)
            self.slots.remove(slot)
            if self.deferral.next_due() < due_before:
                self.set_next_timer(mono_ns())
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.ledger.header.requeue_count += 1
        self.readable.scheduler.request_wake(self)
        return 0

    cdef int touch(self, Consumer consumer, uint64_t guid, int64_t now_ns) except -1:
        """TOUCH: defer the message's deadline, at most to its delivery plus --max-msg-timeout."""
        cdef int64_t slot = self.slots.find(guid)
        cdef Slot* held
        if slot < 0 or self.exiting:
            return NOT_IN_FLIGHT
        held = &self.slots.slots[slot]
        if held.consumer != consumer.number:
            return NOT_OWNER
        self.slots.deadlines.update(
            <uint32_t> slot,
            min(now_ns + consumer.msg_timeout_ns, held.delivered_ns + self.max_msg_timeout_ns))
        if self.trace is not None:
            self.trace.note(TOUCHED, consumer, held)
        debug_require(self.slots.deadline_of(<uint32_t> slot) <= held.delivered_ns + self.max_msg_timeout_ns)
        return DONE

    cdef uint64_t unfinished_count(self) noexcept:
        return (
            self.dispatcher.available() + self.slots.count() + self.deferral.count()
            + self.dead_letters.pending.count + self.dead_letters.unsynced.count)

    def trace_dropped(self, uint32_t reason):
        """Add an event for all unfinished messages, which are about to be dropped."""
        if self.trace is not None:
            self.trace.dropped_many(reason, self.unfinished_count())

    cdef int wake(self) except -1:
        """Publish dead letters, see deferred messages, and deliver, until the work budget of this pass is used up."""
        cdef uint64_t delivered_before = self.dispatcher.delivered_count
        cdef bint began_without_tokens = False
        if self.exiting:
            return 0
        if self.waits.due_was_read:
            self.waits.due_was_read = False
            self.release_due(wall_ns())
            self.set_next_timer(mono_ns())
        if self.trace is not None and self.trace.has_gone():
            self.note_gone()
        if self.dispatcher.rate_limit is not None:
            began_without_tokens = self.dispatcher.rate_limit.available(mono_ns()) == 0
        if not self.dead_letters.is_sorted() and not self.sort_rest():
            return 0
        if self.dead_letters.pending.count != 0:
            self.publish_dead_letters()
        self.see_dues()
        if self.ephemeral:
            self.drop_excess()
        # The consumers are checked first: the ledger of an idle channel may not be mapped.
        if len(self.dispatcher.consumers) != 0 and not (
                self.ledger.header.paused or self.waits.blocks_delivery()):
            self.share_out(delivered_before)
        if self.dispatcher.rate_limit is not None:
            # Do not test only the current tokens: a token that arrived after the last check would leave the channel
            # without a timer. A run that had tokens and delivered nothing was not held up by them.
            self.waits.throttled = self.dispatcher.available() != 0 and (
                began_without_tokens or self.dispatcher.delivered_count != delivered_before
                or self.dispatcher.deliverable() == 0)
            self.set_next_timer(mono_ns())
        return 0

    cdef int note_gone(self) except -1:
        """Add the trace events of clients that have left, until the work budget of this pass is used up."""
        assert self.trace is not None
        self.trace.note_gone(self.slots, self.readable.scheduler)
        if self.trace.has_gone():
            self.readable.scheduler.request_wake(self)
        return 0

    cdef int share_out(self, uint64_t delivered_before) except -1:
        """Deliver to consumers, and schedule another run if there is reason for one.

        There is one if the work of this pass is used up, or if the run made progress and left both messages and a
        consumer that can take them. delivered_before: `delivered_count` at the start of this run.
        """
        cdef Dispatcher dispatcher = self.dispatcher
        cdef uint64_t depth = dispatcher.deliverable()
        cdef Outcome outcome
        assert not self.waits.blocks_delivery() and not self.ledger.header.paused, "deliveries are stopped"
        if depth == 0:
            return 0
        try:
            outcome = dispatcher.share_out(depth, self.readable.scheduler)
        except BaseException:
            # The messages before the error are in flight and time out. Nothing else wakes the other consumers.
            self.waits.retry_soon()
            self.set_next_timer(mono_ns())
            raise
        if outcome == NONE_READY:
            return 0
        self.cursor.note_finished_ahead()
        dispatcher.read_ahead()
        if outcome == OUT_OF_WORK or dispatcher.passes_more or (
            (dispatcher.deliverable() < depth or dispatcher.delivered_count != delivered_before)
            and dispatcher.can_dispatch()
        ):
            dispatcher.passes_more = False
            self.readable.scheduler.request_turn(self)
        self.cursor.save_place()
        self.set_next_timer(mono_ns())
        return 0

    cdef int on_time(self, int64_t now_ns) except -1:
        if self.exiting:
            return 0
        if self.waits.is_held_up() or self.waits.throttled or self.dead_letters.pending.count != 0:
            self.waits.retry_ns = INT64_MAX
            self.readable.scheduler.request_wake(self)
        self.expire(now_ns)
        self.release_due(wall_ns())
        self.set_next_timer(now_ns)
        return 0

    cdef int set_next_timer(self, int64_t now_ns) except -1:
        """Set the timer to the next timeout, due time or retry."""
        cdef int64_t due = min(
            self.slots.next_deadline(), self.waits.next_retry_ns(self.dispatcher.rate_limit))
        cdef int64_t due_ns, wall_now_ns
        assert not self.waits.throttled or self.dispatcher.rate_limit is not None
        if self.deferral.next_due() != INT64_MAX and not self.deferral.is_being_read():
            wall_now_ns = wall_ns()
            self.deferral.follow_clock(wall_now_ns)
            due_ns = self.deferral.next_due()
            due = min(due, now_ns + min(max(due_ns - wall_now_ns, <int64_t> 0), <int64_t> RECHECK_NS_MAX))
        if self.dead_letters.pending.count != 0:
            due = min(due, self.dead_letters.retry_ns)
        if due != INT64_MAX:
            # Not at once: messages for which no work was left wait until the loop has polled.
            self.readable.scheduler.set_timer(self, max(due, now_ns + 1))
        return 0

    cdef int expire(self, int64_t now_ns) except -1:
        """Requeue the messages in flight whose deadlines have passed, until the work budget of this pass is used up.

        Returns: their number.
        """
        cdef int count = 0
        cdef uint32_t slot
        cdef Slot held
        cdef Consumer consumer
        while self.slots.next_deadline() <= now_ns and (count == 0 or self.readable.scheduler.spend(DUE_WORK)):
            slot = self.slots.next_slot()
            held = self.slots.slots[slot]
            consumer = self.dispatcher.by_number.get(held.consumer)
            if self.trace is not None:
                self.trace.timed_out(consumer, slot, &held)
            self.dead_letters.add_returned(held.record, held.attempts, held.note)
            self.slots.remove(slot)
            self.ledger.header.timeout_count += 1
            if consumer is not None:
                assert consumer.in_flight > 0, "a message in flight is not counted for its consumer"
                consumer.in_flight -= 1
            count += 1
        if count:
            self.readable.scheduler.request_wake(self)
        return count

    cdef int release_due(self, int64_t wall_now_ns) except -1:
        """Return due messages, paused or not, by due time and until the work budget is used up. Returns: their number.
        """
        cdef int count = 0
        if self.deferral.next_due() == INT64_MAX:
            return 0
        self.deferral.follow_clock(wall_now_ns)
        while (count == 0 or self.readable.scheduler.spend(DUE_WORK)) and self.release_next(wall_now_ns):
            count += 1
        if count:
            self.readable.scheduler.request_wake(self)
        return count

    cdef bint release_next(self, int64_t wall_now_ns) except -1:
        """Return the message that is due first, if it is due. Returns: False if it is not, or not in memory."""
        cdef Deferral deferral = self.deferral
        cdef uint32_t note
        cdef const Record* record
        if deferral.next_due() > wall_now_ns or deferral.drops_next_void():
            return deferral.next_due() <= wall_now_ns
        if not self.is_due_present():
            return False
        note = deferral.next_note()
        record = deferral.record_of(deferral.next_entry())
        if record == NULL:
            deferral.drop_lost()
        elif note == NO_NOTE:
            self.dead_letters.add_returned(record, 0, NO_NOTE)
            deferral.pop_published()
        else:
            self.dead_letters.add_returned(record, deferral.notes.at(note).attempts, note)
            deferral.waiting.remove(note)
        return True

    cdef int see_dues(self) except -1:
        """Go on with the deferred messages that the channel has not seen, until the work budget is used up."""
        cdef int64_t due_before = self.deferral.next_due()
        if self.deferral.dues_seen != self.readable.due_end:
            if not self.deferral.see():
                self.readable.scheduler.request_wake(self)
            # The timer is set for the time that came first before.
            if self.deferral.next_due() < due_before:
                self.set_next_timer(mono_ns())
        return 0

    @property
    def grows(self):
        """True while a thread syncs for a larger ledger or a reset; the channel is woken afterwards."""
        return self.waits.growths != 0

    def begin_reset(self, uint64_t target, uint64_t reached):
        """Prepare a reset to an ordinal in a thread; deliveries wait until `ChannelWaits.end_reset`.

        reached: an ordinal that the ledger's window has to reach afterwards.
        """
        assert not self.exiting, "the files of a deleted channel are gone"
        self.waits.begin_reset(self.ledger, target, reached)

    def has_room_for(self, uint64_t ordinal):
        """Return whether a record of the topic's log can be finished, or is, without growth of the ledger."""
        return ordinal < self.ledger.header.floor or self.ledger.reaches(ordinal)

    def grow_ledger(self, uint64_t ordinal, done):
        """Grow the ledger until it reaches an ordinal, with the sync of its larger file in a thread.

        done: called when the growth has ended, with success or not. Called at once if the ledger has no file, need not
        grow or grows already, or if the channel has been deleted.
        """
        if self.exiting or self.waits.growths != 0 or self.ledger.path is None or self.has_room_for(ordinal):
            done()
        else:
            self.waits.grow(self.ledger, ordinal, lambda _has_grown: done())

    cdef bint grow_for(self, Ledger ledger, uint64_t ordinal) except -1:
        """Grow a ledger that does not reach an ordinal in a thread. Returns: False if there is no need."""
        assert not self.exiting, "the files of a deleted channel are gone"
        if ledger.path is None or ordinal < ledger.header.floor or ledger.reaches(ordinal):
            return False
        if self.waits.growths == 0:
            self.waits.grow(ledger, ordinal)
        return True

    cdef int drop_excess(self) except -1:
        """Keep an ephemeral channel within --mem-queue-size, unless a consumer takes messages in this very run.

        The newest messages beyond it are finished unread. Source: docs/nsq/broker-semantics.md, "Topic lifecycle".
        """
        cdef uint64_t depth = self.dispatcher.available()
        cdef uint64_t excess
        assert self.ephemeral, "a durable channel drops no message"
        if depth <= self.memory_count_max:
            return 0
        if not self.ledger.header.paused and self.dispatcher.can_dispatch():
            return 0
        # The rest of the depth waits for redelivery.
        excess = min(depth - self.memory_count_max, self.cursor.queued_count())
        if excess == 0:
            return 0
        if self.trace is not None:
            self.trace.dropped_many(REASON_EPHEMERAL, excess)
        assert excess <= depth
        return self.finish_newest(excess)

    cdef int finish_newest(self, uint64_t count) except -1:
        """Finish the newest queued messages. Deferred ones, and those rescheduled by their id, are none of them.

        Cost: O(these among the newest).
        """
        cdef uint64_t end = self.readable.end
        cdef uint64_t ordinal, start
        cdef Py_ssize_t kept_count = -1
        cdef list kept = []
        while len(kept) != kept_count:
            kept_count = len(kept)
            start = self.ledger.start_of_newest(count + <uint64_t> kept_count, end)
            kept = sorted([
                *self.cursor.unfinished_dues_from(start),
                *[each for each in self.cursor.overridden or () if each >= start]])
        for ordinal in kept:
            self.ledger.finish_range(start, ordinal)
            start = ordinal + 1
        return self.ledger.finish_range(start, end)

    cdef bint sort_rest(self) except -1:
        """Sort by the limit of attempts until the work budget of this pass is used up.

        Returns: True if all messages are sorted; if not, another run follows.
        """
        while not self.dead_letters.sort_some(self.readable.scheduler):
            if not self.readable.scheduler.has_work():
                self.readable.scheduler.request_wake(self)
                return False
        return True

    cdef int publish_dead_letters(self) except -1:
        cdef DeadLetterPolicy policy = self.dead_letters
        cdef int64_t now_ns = mono_ns()
        assert policy.pending.count != 0 and policy.is_sorted()
        topic = policy.topic_for(now_ns)
        if topic is not None:
            try:
                self.note_dead_letters_finished(policy.publish_some(topic, now_ns))
            finally:
                if policy.unsynced.count != 0:
                    topic.dead_letter_sources.add(self)
        return self.set_next_timer(now_ns)

    def settle_dead_letters(self):
        """Finish the messages whose dead letters are on stable storage. Called after a sync of the topic with these."""
        self.note_dead_letters_finished(self.dead_letters.finish_synced())
        if self.dead_letters.may_publish():
            self.readable.scheduler.request_wake(self)

    cdef int note_dead_letters_finished(self, uint32_t count) except -1:
        """Request a sync of the ledgers after `count` messages were finished whose dead letters are published."""
        if count != 0 and self.on_finished is not None:
            # Otherwise a power failure could create a second dead letter when the first may be finished already.
            self.on_finished(self)
        return 0

    cdef int forget_deliveries(self) except -1:
        """Forget messages in flight and waiting for redelivery; the ledger is about to be reset."""
        self.slots.clear()
        self.ready.clear()
        self.dead_letters.clear()
        assert self.slots.count() == 0 and self.ready.count == 0
        return 0

    cdef int start_over(self, Position position) except -1:
        """Resume at a place of the log: messages before it are finished, delivered and deferred ones are forgotten.

        Raises: StorageError, at most before anything is changed.
        """
        cdef Consumer consumer
        self.ledger.reset(position.ordinal)
        self.forget_deliveries()
        for consumer in self.dispatcher.consumers:
            consumer.in_flight = 0
        self.cursor.move_to(position.segment, position.offset)
        self.cursor.save_place()
        self.deferral.drop_all()
        if not self.dead_letters.durable and self.deferral.notes is not None:
            self.deferral.notes.remove_dropped(self.deferral.notes.dropped_files())
        self.deferral.begin(True)
        # Nothing waits for space any more, and `empty` drops the timer that would retry.
        self.waits.retry_ns = INT64_MAX
        self.readable.request_trim()
        self.readable.scheduler.request_wake(self)
        assert self.ledger.header.cursor == position.ordinal
        return 0

    def empty(self):
        """Drop the queued, in-flight and deferred messages; the clients' in-flight counts become zero."""
        cdef uint64_t count = 0 if self.trace is None else self.unfinished_count()
        self.start_over(self.readable.end_position())
        if self.trace is not None:
            self.trace.dropped_many(REASON_EMPTIED, count)
        # Nothing times out and nothing is due any more.
        self.readable.scheduler.drop_timer(self)
        assert self.dispatcher.available() == 0, "messages are queued yet"

    def abandon(self):
        """Drop everything for good, as the channel's files are gone. It has no consumers any more."""
        cdef Position position = self.readable.log.end_position()
        assert len(self.dispatcher.consumers) == 0
        self.cursor.move_to(position.segment, position.offset)
        self.forget_deliveries()
        self.deferral.abandon()
        self.waits.end()
        # The sync of a larger file may still run. Its path is free for the next channel of this name.
        self.ledger.forget_growth()
        if self.cancelled is not None:
            self.cancelled.forget_growth()
        self.readable.scheduler.drop_timer(self)

    def limit_rate(self, RateLimit rate_limit):
        """Deliver at most the messages that a token bucket allows, from now on; None: without limit."""
        self.dispatcher.rate_limit = rate_limit
        self.waits.throttled = False
        self.readable.scheduler.request_wake(self)

    def limit_attempts(self, uint16_t attempts_max):
        """Make dead letters of messages that have been delivered this often, from now on; 0: of none.

        Of many messages waiting for redelivery some are sorted at once, the others in the channel's next runs.
        """
        self.dead_letters.change_limit(attempts_max)
        self.dead_letters.sort_some(self.readable.scheduler)
        self.readable.scheduler.request_wake(self)

    def take_message(self, Consumer consumer not None):
        """Take one message from Python (tests, cold paths), for a consumer whatever its RDY.

        Returns: (id, attempts, timestamp in ns, body), or None if there is no message.
        """
        cdef Delivery delivery
        cdef bint is_taken = self.dispatcher.take(consumer, mono_ns(), &delivery)
        if not is_taken:
            return None
        assert consumer.in_flight > 0, "a message in flight is not counted for its consumer"
        self.dispatcher.read_ahead()
        self.cursor.save_place()
        self.set_next_timer(mono_ns())
        return (delivery.record.guid, delivery.attempts, delivery.record.timestamp_ns,
                record_body(delivery.record)[:record_body_bytes(delivery.record)])

    def finish_message(self, Consumer consumer not None, uint64_t guid):
        """FIN from Python. Returns: an Answer: 0 done, 1 not in flight, 2 not the owner.

        Raises: StorageError if the ledger cannot grow; the message stays in flight.
        """
        cdef int answer = self.finish(consumer, guid)
        if answer == BEYOND_LEDGER:
            self.make_finishable(guid)
            answer = self.finish(consumer, guid)
        assert answer != BEYOND_LEDGER, "a ledger that has grown does not reach the message"
        return answer

    def requeue_message(self, Consumer consumer not None, uint64_t guid, int64_t delay_ns):
        """REQ from Python. Returns: an Answer, as `finish_message`. Raises: StorageError."""
        return self.requeue(consumer, guid, delay_ns)

    def touch_message(self, Consumer consumer not None, uint64_t guid):
        """TOUCH from Python. Returns: an Answer, as `finish_message`."""
        return self.touch(consumer, guid, mono_ns())

    def add_consumer(self, Consumer consumer not None):
        """Subscribe a client."""
        self.dispatcher.add(consumer)

    def remove_consumer(self, Consumer consumer not None):
        """Unsubscribe a client; its messages in flight wait for their timeouts."""
        if self.trace is not None and consumer.number in self.dispatcher.by_number:
            self.trace.note_leaving(consumer)
            if self.trace.has_gone():
                self.readable.scheduler.request_wake(self)
        self.dispatcher.remove(consumer)
        assert consumer.number not in self.dispatcher.by_number

    def trace_stop(self):
        """Add the events of clients that the stop of the daemon disconnects. Nothing is traced after it."""
        cdef Consumer consumer
        if self.trace is not None:
            for consumer in self.dispatcher.by_number.values():
                self.trace.note_leaving(consumer)
            # The ends of their connections may follow, and would be traced again.
            self.trace_as(None)

    def trace_as(self, TracePlace place):
        """Trace the channel's messages from now on; None: do not."""
        self.finish_trace()
        self.trace = self.dispatcher.trace = None if place is None else ChannelTrace(place)
        self.dead_letters.trace = place

    def finish_trace(self):
        """Add the trace events that would come in later runs. Cost: O(messages in flight), if a client has left."""
        if self.trace is not None:
            self.trace.note_gone(self.slots, None)
        assert self.trace is None or not self.trace.has_gone(), "events are missing"

    def pause(self, bint paused):
        """Stop or resume deliveries; remembered over restarts."""
        self.ledger.unseal()
        self.ledger.header.paused = paused
        self.ledger.change_count += 1
        if not paused:
            self.readable.scheduler.request_wake(self)
        assert self.ledger.open_bits != 0, "a sealed file was changed"

    def note_cancelled(self, uint64_t ordinal):
        """Record a message of the topic's log as cancelled: a seek skips it. Raises: StorageError (nothing changed)."""
        assert ordinal < self.readable.log.end, "the log has no such message"
        if self.cancelled is None:
            self.cancelled = self.files.open_cancelled()
        self.cancelled.mark(ordinal, self.readable.log.first.first_ordinal, self.readable.log.end)
        assert self.cancelled.is_finished(ordinal), "a seek would deliver a cancelled message"

    cdef bint make_room_to_cancel(self, uint64_t ordinal) except -1:
        """Like `grow_for`, before `note_cancelled`. Returns: False also on a full disk, which that one reports."""
        assert ordinal < self.readable.log.end, "the log has no such message"
        try:
            if self.cancelled is None:
                self.cancelled = self.files.open_cancelled()
            self.cancelled.advance_to(self.readable.log.first.first_ordinal, self.readable.log.end)
        except StorageError:
            return False
        return self.grow_for(self.cancelled, ordinal)

    def close_consumers(self):
        """Return the clients and forget them; the caller closes their sockets."""
        return self.dispatcher.remove_all()

    @property
    def delivered_count(self) -> int:
        """Deliveries since the start."""
        return self.dispatcher.delivered_count

    @property
    def zone_local_count(self) -> int:
        """Deliveries to clients in the daemon's zone."""
        return self.dispatcher.zone_local_count

    @property
    def region_local_count(self) -> int:
        """Deliveries to other clients in its region."""
        return self.dispatcher.region_local_count

    @property
    def held_up(self) -> bool:
        """True after a full disk or a failed run, until the retry."""
        return self.waits.is_held_up()

    @property
    def consumers(self) -> list:
        """The subscribed clients."""
        return self.dispatcher.consumers

    @property
    def rate_limit(self):
        """The RateLimit; None without one."""
        return self.dispatcher.rate_limit

    @property
    def notes(self):
        """The notes of the channel; None until there is one."""
        return self.deferral.notes

    @property
    def paused(self) -> bool:
        return bool(self.ledger.header.paused)

    @property
    def reads_in(self) -> bool:
        """True while a thread reads pages that a delivery waits for."""
        cdef Presence returned = self.dispatcher.returned_presence
        return (
            self.cursor.reads or (returned is not None and returned.reads) or self.deferral.is_being_read())

    @property
    def depth(self) -> int:
        return self.dispatcher.available() + self.dead_letters.pending.count

    @property
    def backend_depth(self) -> int:
        depth = self.dispatcher.available()
        return 0 if self.ephemeral or depth <= self.memory_count_max else depth - self.memory_count_max

    @property
    def in_flight_count(self) -> int:
        return self.slots.count()

    @property
    def deferred_count(self) -> int:
        return self.deferral.count()

    @property
    def message_count(self) -> int:
        # After a power failure the readable part may end before the channel began.
        return max(self.readable.end, self.ledger.counted_from()) - self.ledger.counted_from()

    @property
    def finish_count(self) -> int:
        return self.ledger.header.finish_count

    @property
    def requeue_count(self) -> int:
        return self.ledger.header.requeue_count

    @property
    def timeout_count(self) -> int:
        return self.ledger.header.timeout_count

    @property
    def dead_letter_count(self) -> int:
        return self.ledger.header.dead_letter_count

    @property
    def dead_letters_pending(self) -> int:
        return self.dead_letters.pending.count

    @property
    def dead_letters_unsynced(self) -> int:
        return self.dead_letters.unsynced.count
