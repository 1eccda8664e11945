"""Dispatcher of a channel: takes its next message, and shares the deliverable messages out among its consumers.

    cursor, or queue of returned messages -> take -> in flight (slots) -> Consumer.put_delivery

In each run of the channel the nearest consumers that can take messages get equal parts, in turn. The next run begins
after the consumer that was served last, so that a channel with more consumers than messages starves none of them. A
rate limit bounds the messages of all consumers together.

Redelivered and fresh messages alternate, fresh first: a message that is requeued again and again neither starves the
rest nor waits behind a million of them. Only a long queue of returned messages goes first, so that it stays bounded.

An id names one message in flight. Two messages of one id should not be, but files may be damaged and clocks set back:
the second is held back among the returned messages until the first is finished. The bodies decide whether one is a copy
of the other.

Source: docs/nsq/broker-semantics.md, "Delivery to a client".
"""

cimport cython
from libc.stdint cimport int32_t
from libc.string cimport memcmp

from pyqd.hot.broker.consumer cimport REGION_LOCAL, ZONE_LOCAL, count_ready
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.notefiles cimport NOTE_DELIVERED
from pyqd.hot.diskqueue.notes cimport NO_NOTE
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport record_body, record_body_bytes, record_ordinal
from pyqd.hot.wire.trace_events cimport REASON_COPY, REASON_SAMPLED

from pyqd.primitives.errors import StorageError

cdef enum:
    RETURNED_FIRST = 10000               # so many returned messages are served before fresh ones
    PASSED_PER_TAKE = 1000               # deferred records that the cursor passes over
    HELD_BACK_PER_TAKE = 16              # bounds a search among messages whose ids are in flight


@cython.final
cdef class Dispatcher:
    """Dispatcher of one channel, with the channel's parts."""

    def __cinit__(
        self, Deferral deferral not None, SlotTable slots not None, ReadyRing ready not None,
        ChannelWaits waits not None,
    ):
        self.cursor = deferral.cursor
        self.deferral = deferral
        self.slots = slots
        self.ready = ready
        self.waits = waits
        self.consumers = []
        self.by_number = {}

    # Take.

    cdef const Record* take_fresh(self) except? NULL:
        """Move the cursor over the next record that is to be handed out. Returns: NULL if there is none."""
        cdef const Record* record
        cdef LogCursor cursor = self.cursor
        cdef uint32_t passed_count = 0
        while True:
            record = cursor.next_record()
            if record == NULL:
                if cursor.absent_end != 0 and not self.waits_for_pages():
                    continue
                if cursor.ledger_full and cursor.ledger.growing is None and not self.waits.is_held_up():
                    self.grow_to_finish_lost()
                return NULL
            if record_ordinal(record) >= cursor.ledger.roomy_below and self.waits_for_window(record):
                return NULL
            if (record.due_ns != 0 or cursor.overridden is not None) and cursor.steps_over(record):
                passed_count += 1
                if passed_count == PASSED_PER_TAKE:
                    self.passes_more = True
                    return NULL
                continue
            debug_require(not cursor.ledger.is_finished(record_ordinal(record)))
            cursor.pass_over(record)
            return record

    cdef bint waits_for_pages(self) except -1:
        """Have a thread read the pages at the cursor. Returns: False if they are in memory."""
        if not self.cursor.reads and self.cursor.find_absent():
            self.read_in()
        return self.cursor.reads

    cdef int read_ahead(self) except -1:
        """Have a thread map pages that the cursor comes to soon, so that no delivery waits for them."""
        if self.cursor.ahead_due and not self.cursor.reads and self.cursor.find_unmapped():
            self.read_in()
        return 0

    cdef int read_in(self) except -1:
        """Have a thread read the pages that the cursor has found absent or unmapped."""
        cdef LogCursor cursor = self.cursor
        cdef Segment segment = cursor.unmapped
        assert segment is not None, "the cursor has found no pages"
        cursor.unmapped = None
        self.waits.read_in(cursor, segment, cursor.unmapped_start, cursor.unmapped_end)
        return 0

    cdef bint can_return(self) except -1:
        """Return whether the oldest returned message is in memory; if it is not, have a thread read it."""
        cdef Presence presence = self.returned_presence
        cdef const ReadyEntry* entry = self.ready.at(self.ready.first)
        debug_require(self.ready.count != 0)
        if presence is None:
            presence = self.returned_presence = Presence(self.cursor.readable.log.files)
        if not presence.reads and not presence.has_record_at(self.cursor.readable.log, entry.record):
            self.waits.read_absent(presence)
        return not presence.reads

    cdef bint must_wait(self, const ReadyEntry* entry) except -1:
        """Return whether a returned message, which may lie past the cursor, must wait until the ledger has grown."""
        return (
            record_ordinal(entry.record) >= self.cursor.ledger.roomy_below and self.waits_for_window(entry.record))

    cdef bint waits_for_window(self, const Record* record) except -1:
        """Begin to grow the ledger before a record is handed out, if the end of the ledger's window is near.

        Returns: True if the record must wait until it has grown. False also if it cannot grow: its FIN tries again.
        """
        cdef Ledger ledger = self.cursor.ledger
        cdef uint64_t ordinal = record_ordinal(record)
        cdef uint64_t spare = ledger.capacity_bits // 4
        debug_require(not ledger.is_finished(ordinal))
        # Here, because the cursor moves next.
        ledger.unseal()
        if ledger.path is None:
            # In memory, where it grows without a sync.
            ledger.roomy_below = <uint64_t> -1
            return False
        ledger.roomy_below = ledger.bits_start() + ledger.capacity_bits - spare
        if ordinal < ledger.roomy_below:
            return False
        if ledger.growing is None:
            self.grow_ahead(ledger, ordinal + spare)
        return ledger.growing is not None and not ledger.reaches(ordinal)

    def grow_ahead(self, Ledger ledger not None, uint64_t next_try):
        """Double the window of a ledger in a thread; if it cannot grow, try again at the record `next_try`."""
        assert ledger.path is not None and ledger.growing is None, "one file at a time replaces a ledger"

        def after(has_grown):
            if not has_grown:
                ledger.unseal()
                ledger.roomy_below = next_try

        self.waits.grow(ledger, ledger.header.floor + ledger.capacity_bits, after)

    def grow_to_finish_lost(self):
        """Grow the ledger in a thread until it reaches the lost record at the cursor; if it cannot grow, retry."""
        cdef Ledger ledger = self.cursor.ledger
        assert self.cursor.ledger_full, "the ledger reaches the record at the cursor"

        def after(has_grown):
            if not has_grown:
                self.waits.retry_soon()

        if ledger.path is None:
            self.waits.retry_soon()
        else:
            self.waits.grow(ledger, ledger.header.cursor, after)

    cdef int take(self, Consumer consumer, int64_t now_ns, Delivery* delivery) except -1:
        """Hand the next message to the consumer and note it as in flight.

        The caller has checked that the consumer can take messages and the channel is not paused.
        Returns: 1, with the delivery filled in; 0 if there is no message. Raises: MemoryError, StorageError.
        """
        cdef ReadyEntry entry
        cdef const Record* record
        cdef int held_back_count = 0
        while True:
            record = NULL
            if (
                self.ready.count == 0 or not (self.ready_next or self.ready.count > RETURNED_FIRST)
                or not self.can_return()
            ):
                record = self.take_fresh()
                entry = ReadyEntry(record=record, fingerprint=0, attempts=0, note=NO_NOTE)
                self.ready_next = True
            if record == NULL:
                if self.ready.count == 0 or not self.can_return():
                    return 0
                self.ready_next = False
                entry = self.ready.pop()
                if self.must_wait(&entry):
                    self.ready.push(entry.record, entry.attempts, entry.note)
                    return 0
            if consumer.sample_rate != 0 and consumer.sampled_out():
                if not self.try_finish(&entry, REASON_SAMPLED):
                    return 0
                continue
            if self.slots.add(&entry, consumer.number, now_ns, now_ns + consumer.msg_timeout_ns):
                break
            if self.is_copy(&entry):
                # Once is enough.
                if not self.try_finish(&entry, REASON_COPY):
                    return 0
                continue
            self.ready.push(entry.record, entry.attempts, entry.note)
            self.held_back = True
            held_back_count += 1
            if held_back_count == HELD_BACK_PER_TAKE:
                return 0
        self.note_delivered(consumer, &entry, now_ns)
        delivery.record = entry.record
        delivery.attempts = entry.attempts + 1
        return 1

    cdef int note_delivered(self, Consumer consumer, const ReadyEntry* entry, int64_t now_ns) except -1:
        cdef const Record* record
        debug_require(self.slots.find_record(entry.record) >= 0)
        if entry.record.due_ns != 0 or entry.note != NO_NOTE:
            self.note_attempts(entry)
        if self.trace is not None:
            self.trace.sent(consumer, entry, now_ns)
        consumer.in_flight += 1
        consumer.message_count += 1
        self.delivered_count += 1
        self.zone_local_count += consumer.locality == ZONE_LOCAL
        self.region_local_count += consumer.locality == REGION_LOCAL
        record = self.cursor.following()
        if record != NULL:
            # The next delivery stores there.
            self.slots.ids.load_cell_ahead(record.guid)
        return 0

    cdef int note_attempts(self, const ReadyEntry* entry) except -1:
        """Store that a message is delivered which has a note, or a due time of its publisher's.

        A start would let the latter wait, as a message that was not delivered. On a full disk it does.
        """
        cdef int64_t slot
        if entry.note != NO_NOTE:
            return self.deferral.notes.change(entry.note, NOTE_DELIVERED, entry.attempts + 1)
        slot = self.slots.find_record(entry.record)
        assert slot >= 0, "the message is not in flight"
        try:
            self.slots.slots[slot].note = self.deferral.put(entry.record, NOTE_DELIVERED, entry.attempts + 1, 0)
        except StorageError:
            return 0
        return 0

    cdef bint is_copy(self, const ReadyEntry* entry) noexcept:
        """Return True if an entry is the message in flight with its id, and not another message with the same id."""
        cdef const Record* other = self.slots.slots[self.slots.find(entry.record.guid)].record
        debug_require(self.slots.find(entry.record.guid) >= 0)
        return (
            entry.record.timestamp_ns == other.timestamp_ns
            and record_body_bytes(entry.record) == record_body_bytes(other)
            and memcmp(record_body(entry.record), record_body(other), record_body_bytes(other)) == 0)

    cdef bint try_finish(self, const ReadyEntry* entry, uint32_t reason) except -1:
        """Finish a message that was taken and is delivered to no client. reason: for its trace.

        Returns: False if its ledger cannot grow; the message waits for redelivery then, and a timer retries.
        """
        assert reason != 0, "the trace shows a reason for each dropped message"
        try:
            self.cursor.ledger.reach(record_ordinal(entry.record))
        except StorageError:
            self.ready.push(entry.record, entry.attempts, entry.note)
            self.waits.retry_soon()
            return False
        if self.trace is not None:
            self.trace.dropped(entry, reason)
        self.cursor.finish(entry.record)
        if entry.note != NO_NOTE:
            self.deferral.forget(entry.note)
        return True

    # Share out.

    cdef int add(self, Consumer consumer) except -1:
        assert consumer.number not in self.by_number, "two consumers have one number, which owns messages in flight"
        self.consumers.append(consumer)
        self.by_number[consumer.number] = consumer
        assert len(self.consumers) == len(self.by_number)
        return 0

    cdef int remove(self, Consumer consumer) except -1:
        """Remove a consumer, if it is subscribed."""
        if self.by_number.pop(consumer.number, None) is not None:
            self.consumers.remove(consumer)
        assert len(self.consumers) == len(self.by_number)
        return 0

    cdef list remove_all(self):
        assert len(self.consumers) == len(self.by_number)
        consumers, self.consumers = self.consumers, []
        self.by_number = {}
        return consumers

    cdef bint can_dispatch(self) except -1:
        """Return True if there is a message that may be delivered, and a consumer that can take it."""
        cdef Consumer consumer
        if self.deliverable() != 0:
            for consumer in self.consumers:
                if consumer.can_take():
                    return True
        return False

    cdef Outcome share_out(self, uint64_t depth, Scheduler scheduler) except *:
        """Share `depth` messages among the nearest consumers that can take them; each gets an equal part at most.

        Ends early if the work budget of this pass is used up.
        """
        cdef Consumer consumer
        cdef Outcome outcome = SHARED_OUT
        cdef uint64_t quota
        cdef Py_ssize_t at, ready_count, count = len(self.consumers)
        cdef int32_t nearest = 0
        assert depth != 0
        ready_count = count_ready(self.consumers, &nearest)
        if ready_count == 0:
            return NONE_READY
        quota = (depth + ready_count - 1) // ready_count
        at = <Py_ssize_t> (self.rotation % <uint64_t> count)
        for _ in range(count):
            consumer = self.consumers[at]
            at = at + 1 if at + 1 < count else 0
            if consumer.locality == nearest and consumer.can_take():
                self.serve(consumer, quota)
                if self.deliverable() == 0 or len(self.consumers) != count:
                    break
                if not scheduler.has_work():
                    outcome = OUT_OF_WORK
                    break
        self.rotation = <uint64_t> at
        return outcome

    cdef int serve(self, Consumer consumer, uint64_t quota) except -1:
        """Give a consumer up to `quota` messages, as far as the rate limit allows."""
        cdef uint64_t before = consumer.message_count
        debug_require(quota != 0)
        if self.rate_limit is None:
            return self.run(consumer, quota)
        try:
            self.run(consumer, min(quota, self.rate_limit.available(mono_ns())))
        finally:
            # Those before an error as well: they are in flight.
            self.rate_limit.spend(consumer.message_count - before)
        return 0

    cdef int run(self, Consumer consumer, uint64_t quota) except -1:
        """Give a consumer up to `quota` messages in one run. Raises: StorageError."""
        debug_require(consumer.can_take())
        failure = None
        if not consumer.begin_run():
            return 0
        try:
            try:
                self.put_taken(consumer, quota)
            except StorageError as error:
                # The error is the channel's; the queued frames are complete.
                failure = error
            consumer.end_run()
        except BaseException as error:
            consumer.fail_run(error)
            raise
        if failure is not None:
            raise failure
        return 0

    cdef int put_taken(self, Consumer consumer, uint64_t quota) except -1:
        """Take messages and put them to a consumer, until the quota, its RDY, its run or the messages end."""
        cdef Delivery delivery
        cdef int64_t now_ns = mono_ns()
        debug_require(consumer.in_flight >= 0)
        while quota != 0 and consumer.in_flight + consumer.unsynced_count < consumer.rdy:
            if not self.take(consumer, now_ns, &delivery) or not consumer.put_delivery(&delivery):
                break
            quota -= 1
        return 0
