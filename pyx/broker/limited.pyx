"""A channel with limits: how many messages a second, and how often one message.

    requeue, time-out, due  | attempts left           -> ring -> take
                            | none left    -> doomed -> published in the dead-letter topic -> buried -> finished

The rate is kept by a token bucket that is asked once per turn of a client and never once per message; where no token is
left the channel's timer is set to when the next one comes. A channel without a limit pays a branch per turn.

A message that has been delivered `attempts_max` times is not handed out again. It is a dead letter: its body is
published in another topic, and only then is it finished here. Between the two it is *buried*: nobody gets it, and its
bit is not set before a sync has covered the dead letter, or a power failure could leave the bit alone. So at every
instant it is in one of the two topics at least; a kill in between leaves it in both. Where it cannot be published (no
room, no such topic) it stays doomed, counts for the depth, and is tried again every RETRY_NS.

If the limit changes, what waits for redelivery and what is doomed is sorted again, in slices: the first entries of both
rings are *unsorted* meanwhile, and the channel delivers and buries nothing before all are sorted.

Invariants: 1. those of the channel, with `doomed` and `buried` beside slots and ring. 2. nothing in the ring behind the
unsorted entries has `attempts_max` attempts. 3. `burials` has an entry for each of `buried`, in the same order.
"""

from collections import deque

from libc.stdint cimport INT64_MAX, uint8_t, uint32_t, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport Record, record_body, record_ordinal

from pyqd.primitives.errors import StorageError

cdef enum:
    BURIED_PER_TURN = 256
    SORT_WORK = 30                       # of an entry, as work of a turn
    SORTED_AT_ONCE = 1000
    BURIED_MAX = 10000                   # more wait until a sync has covered these
    RETRY_NS = 1000000000
    BUSY_NS = 1000000                    # the dead-letter topic stores a large batch


cdef class LimitedChannel(ChannelCore):
    """A channel core that knows limits. `pyqd.broker.channel.Channel` knows where they are kept."""

    def __cinit__(self, *args, **kwargs):
        self.doomed = ReadyRing()
        self.buried = ReadyRing()
        self.burials = deque()
        # Numbers of an earlier run, which a reader may hold, are not given again.
        self.doomed.first = <uint64_t> wall_ns()

    def limit_rate(self, TokenBucket bucket):
        """Deliver what a bucket allows from now on; None: without limit."""
        self.bucket = bucket
        self.throttled = False
        self.feed.scheduler.request_wake(self)

    def limit_attempts(self, uint16_t attempts_max):
        """Make dead letters of what has been delivered so often, from now on; 0: of nothing.

        Of many messages waiting for redelivery some are sorted at once, the others in the channel's next turns.
        """
        self.attempts_max = attempts_max
        self.bury_again_ns = 0
        self.doomed_unsorted = self.doomed.count
        self.ready_unsorted = self.ready.count
        self.sort_some()
        self.feed.scheduler.request_wake(self)

    cdef bint sort_some(self) except -1:
        """Sort some of what is unsorted by the present limit of attempts. Returns: whether all is sorted."""
        cdef ReadyEntry entry
        cdef uint32_t count = 0
        # An entry may have been taken out of the middle since.
        self.doomed_unsorted = min(self.doomed_unsorted, self.doomed.count)
        self.ready_unsorted = min(self.ready_unsorted, self.ready.count)
        while self.doomed_unsorted + self.ready_unsorted != 0 and count < SORTED_AT_ONCE:
            if self.doomed_unsorted != 0:
                entry = self.doomed.pop()
                self.doomed_unsorted -= 1
            else:
                entry = self.ready.pop()
                self.ready_unsorted -= 1
            self.give_back(entry.record, entry.attempts, entry.source)
            count += 1
        self.feed.scheduler.spend(count * SORT_WORK)
        return self.doomed_unsorted + self.ready_unsorted == 0

    cdef bint is_spent(self, uint16_t attempts) noexcept:
        return self.attempts_max != 0 and attempts >= self.attempts_max

    cdef int give_back(self, const Record* record, uint16_t attempts, uint8_t source) except -1:
        if self.is_spent(attempts):
            return self.doomed.push(record, attempts, source)
        return self.ready.push(record, attempts, source)

    cdef uint64_t deliverable(self) noexcept:
        cdef uint64_t count = self.available()
        if self.bucket is not None and count != 0:
            count = min(count, self.bucket.whole(mono_ns()))
        return count

    cdef int serve(self, Consumer consumer, uint64_t quota) except -1:
        cdef uint64_t before = consumer.message_count
        if self.bucket is None:
            return consumer.deliver(quota)
        consumer.deliver(min(quota, self.bucket.whole(mono_ns())))
        return self.bucket.spend(consumer.message_count - before)

    cdef int wake(self) except -1:
        cdef uint64_t delivered_before = self.delivered_count
        cdef bint begins_without = self.bucket is not None and self.bucket.whole(mono_ns()) == 0
        if self.doomed_unsorted + self.ready_unsorted != 0 and not self.sort_rest():
            return 0
        if self.doomed.count != 0:
            self.bury()
        ChannelCore.wake(self)
        if self.bucket is not None:
            # Not by the tokens of now alone: one that came since the turn looked for the last time would be waited for
            # by nobody. A turn that had tokens and delivered nothing was not held up by them.
            self.throttled = self.available() != 0 and (
                begins_without or self.delivered_count != delivered_before or self.deliverable() == 0)
            self.set_next_timer(mono_ns())
        return 0

    cdef bint sort_rest(self) except -1:
        """Sort as far as the work of this turn goes. Returns: whether all is sorted; if not, another run follows."""
        while not self.sort_some():
            if not self.feed.scheduler.has_work():
                self.feed.scheduler.request_wake(self)
                return False
        return True

    cdef int on_time(self, int64_t now_ns) except -1:
        if self.throttled or self.doomed.count != 0:
            self.feed.scheduler.request_wake(self)
        return ChannelCore.on_time(self, now_ns)

    cdef int set_next_timer(self, int64_t now_ns) except -1:
        cdef int64_t due = INT64_MAX
        if self.throttled:
            due = self.bucket.ready_ns()
        if self.doomed.count != 0:
            due = min(due, self.bury_again_ns)
        if due != INT64_MAX:
            self.feed.scheduler.set_timer(self, max(due, now_ns + 1))
        return ChannelCore.set_next_timer(self, now_ns)

    cdef int drop_excess(self) except -1:
        if self.bucket is not None and self.deliverable() == 0 and self.available() > self.memory_count_max:
            # No consumer takes anything in this turn, whatever it waits for.
            return self.drop_beyond()
        return ChannelCore.drop_excess(self)

    cdef int bury(self) except -1:
        """Publish what is doomed in the dead-letter topic, a bounded number."""
        cdef int64_t now_ns = mono_ns()
        cdef int count = 0
        cdef bint waits_for_sync
        if now_ns < self.bury_again_ns:
            self.set_next_timer(now_ns)
            return 0
        topic = self.dead_letter_topic()
        if topic is None:
            return self.put_off(None)
        if (<TopicCore> topic).busy:
            self.bury_again_ns = now_ns + BUSY_NS
            return self.set_next_timer(now_ns)
        letters = []
        waits_for_sync = False
        try:
            while self.doomed.count != 0 and count < BURIED_PER_TURN and not waits_for_sync:
                letters.append(self.bury_next(topic))
                count += 1
                waits_for_sync = self.buried.count >= BURIED_MAX
        except StorageError as error:
            return self.put_off(error)
        finally:
            if letters:
                self.note_burials(topic, letters)
        self.bury_again_ns = now_ns + RETRY_NS if waits_for_sync else 0
        self.set_next_timer(now_ns)
        return 0

    cdef int put_off(self, error) except -1:
        """Leave what is doomed for later. error: None where there is no such topic."""
        cdef int64_t now_ns = mono_ns()
        self.bury_again_ns = now_ns + RETRY_NS
        self.set_next_timer(now_ns)
        self.note_put_off(error)
        return 0

    def bury_next(self, TopicCore topic not None):
        """Publish the first of what is doomed. Returns: (id, attempts, id of the dead letter). Raises: StorageError."""
        cdef ReadyEntry entry = self.doomed.entries[self.doomed.head]
        cdef const Record* record = entry.record
        # Finishing it must not fail any more.
        self.reach(record, entry.source)
        topic.publish(record_body(record), record.size_bytes, wall_ns(), 0)
        letter = (record.guid, entry.attempts, topic.guids.last_id)
        self.doomed.pop()
        if self.parks_durably:
            self.buried.push(record, entry.attempts, entry.source)
            self.burials.append((topic, topic.log.end - 1))
        else:
            self.finish_buried(&entry)
        return letter

    cdef int finish_buried(self, const ReadyEntry* entry) except -1:
        self.finish_record(entry.record, entry.source)
        self.ledger.header.dead_letter_count += 1
        if self.on_finished is not None:
            # A power failure would make another dead letter of it, when this one may be finished.
            self.on_finished(self)
        return 0

    def settle_burials(self):
        """Finish what is buried as far as the dead letters are on stable storage; what was deleted is doomed again."""
        cdef ReadyEntry entry
        cdef Log log
        while self.burials:
            topic, ordinal = self.burials[0]
            log = topic.log
            if self.is_deleted(topic):
                entry = self.buried.pop()
                self.doomed.push(entry.record, entry.attempts, entry.source)
                self.feed.scheduler.request_wake(self)
            elif log.synced_end > <uint64_t> ordinal:
                entry = self.buried.pop()
                self.finish_buried(&entry)
            else:
                break
            self.burials.popleft()
        if self.doomed.count != 0 and self.buried.count < BURIED_MAX:
            self.feed.scheduler.request_wake(self)

    cdef int forget_deliveries(self) except -1:
        self.doomed.clear()
        self.doomed_unsorted = self.ready_unsorted = 0
        self.buried.clear()
        self.burials.clear()
        return ChannelCore.forget_deliveries(self)

    def attempts_noted(self):
        """Return {(source, ordinal): deliveries so far} of what is in flight, waits for redelivery, or is doomed."""
        cdef uint32_t index
        cdef ReadyEntry entry
        cdef ReadyRing ring
        noted = ChannelCore.attempts_noted(self)
        for ring in (self.doomed, self.buried):
            for index in range(ring.count):
                entry = ring.entries[(ring.head + index) & (ring.capacity - 1)]
                noted[(entry.source, record_ordinal(entry.record))] = entry.attempts
        return noted

    def dead_letter_topic(self):
        """Return the topic for dead letters, or None where it does not exist."""
        raise NotImplementedError("the subclass knows the broker")

    def is_deleted(self, topic):
        """Say whether a topic is not one of the broker's any more."""
        raise NotImplementedError("the subclass knows the broker")

    def note_burials(self, topic, letters):
        """Take note of dead letters just published, as `bury_next` returned them."""
        raise NotImplementedError("the subclass logs")

    def note_put_off(self, error):
        """Take note that dead letters could not be published."""
        raise NotImplementedError("the subclass logs")

    @property
    def depth(self) -> int:
        return self.available() + self.doomed.count

    @property
    def doomed_count(self) -> int:
        return self.doomed.count

    @property
    def buried_count(self) -> int:
        return self.buried.count

    @property
    def dead_letter_count(self) -> int:
        return self.ledger.header.dead_letter_count
