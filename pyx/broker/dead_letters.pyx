"""Dead-letter policy of a channel: the limit of deliveries of a message, and the dead letters on their way.

    requeue, timeout, due | attempts remain -> ring for redelivery -> take
                          | none remain     -> pending -> published in the dead-letter topic -> unsynced -> finished

A message that has been delivered `attempts_max` times is not delivered again. Its body is published in the dead-letter
topic, and only then the message is finished in the channel. In between the dead letter is *unsynced*: no consumer gets
the message, and its finished bit is not set before a sync has covered the dead letter. Otherwise a power failure could
keep the bit and lose the dead letter. So at every instant the message is in at least one of the two topics; a kill in
between leaves it in both. While a dead letter cannot be published (no space, no such topic) it stays pending, counts
as depth, and is retried every RETRY_NS.

After a change of the limit the entries of both rings are sorted again, in slices. Entries that an earlier limit has
placed are *unsorted*: they are the first of their ring. The channel delivers and publishes nothing before all are
sorted.

The channel schedules the rounds of publishing and requests the syncs (see `ChannelCore.publish_dead_letters`).

Invariants: 1. no entry of `ready` behind the unsorted ones has `attempts_max` attempts. 2. `copies` has an entry for
each of `unsynced`, in the same order. 3. the unsorted entries of a ring are at most its entries.
"""

from collections import deque

cimport cython
from libc.stdint cimport uint64_t

from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.notes cimport NO_NOTE
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.wire.record cimport record_body, record_body_bytes, record_ordinal
from pyqd.hot.wire.trace_events cimport DEAD_LETTERED, REASON_ATTEMPTS

from pyqd.primitives.errors import StorageError

cdef enum:
    SORT_WORK = 30                       # of an entry, in units of work
    SORTED_AT_ONCE = 1000
    PUBLISHED_PER_RUN = 256
    UNSYNCED_MAX = 10000                 # further dead letters wait until a sync has covered these
    RETRY_NS = 1000000000
    BUSY_NS = 1000000                    # the dead-letter topic stores a large batch


@cython.final
cdef class DeadLetterPolicy:
    """Dead-letter policy of one channel, with the channel's parts.

    target: a DeadLetterTarget.
    """

    def __cinit__(self, Deferral deferral not None, ReadyRing ready not None, target):
        self.deferral = deferral
        self.ready = ready
        self.target = target
        self.pending = ReadyRing()
        self.unsynced = ReadyRing()
        self.copies = deque()
        # Numbers of an earlier run, which a page's cursor may hold, are not used again.
        self.pending.first = <uint64_t> wall_ns()

    cdef int add_returned(self, const Record* record, uint16_t attempts, uint32_t note) except -1:
        """Queue a message that was in flight or has become due: for redelivery, or as a dead letter."""
        if self.is_spent(attempts):
            return self.pending.push(record, attempts, note)
        return self.ready.push(record, attempts, note)

    cdef int change_limit(self, uint16_t attempts_max) except -1:
        """Set the limit of attempts. `sort_some` is to be called until all messages are sorted by it."""
        self.attempts_max = attempts_max
        self.retry_ns = 0
        self.pending_unsorted = self.pending.count
        self.ready_unsorted = self.ready.count
        return 0

    cdef bint sort_some(self, Scheduler scheduler) except -1:
        """Sort some of the unsorted messages by the present limit. Returns: True if all are sorted."""
        cdef ReadyEntry entry
        cdef uint32_t count = 0
        # An entry may have been removed from the middle since.
        self.pending_unsorted = min(self.pending_unsorted, self.pending.count)
        self.ready_unsorted = min(self.ready_unsorted, self.ready.count)
        while not self.is_sorted() and count < SORTED_AT_ONCE:
            if self.pending_unsorted != 0:
                entry = self.pending.pop()
                self.pending_unsorted -= 1
            else:
                entry = self.ready.pop()
                self.ready_unsorted -= 1
            self.add_returned(entry.record, entry.attempts, entry.note)
            count += 1
        scheduler.spend(count * SORT_WORK)
        assert self.pending_unsorted <= self.pending.count and self.ready_unsorted <= self.ready.count
        return self.is_sorted()

    cdef object topic_for(self, int64_t now_ns):
        """Return the topic in which dead letters can be published now; None: not before `retry_ns`."""
        if now_ns < self.retry_ns:
            return None
        topic = self.target.find()
        if topic is None:
            self.retry_ns = now_ns + RETRY_NS
            self.target.note_failed(None, self.pending.count)
        elif topic.busy:
            # While the daemon drains, the topic stays busy.
            self.retry_ns = now_ns + (RETRY_NS if topic.draining else BUSY_NS)
            topic = None
        return topic

    cdef bint may_publish(self) noexcept:
        """Return True if there is a dead letter to publish and not too many wait for a sync."""
        return self.pending.count != 0 and self.unsynced.count < UNSYNCED_MAX

    cdef uint32_t publish_some(self, topic, int64_t now_ns) except? 0:
        """Publish a bounded number of pending dead letters in a topic that can take them.

        Returns: the number of messages that are finished now: all, unless finishing waits for a sync.
        """
        cdef list letters = []
        assert self.is_sorted(), "a message may have attempts left by the present limit"
        error = None
        try:
            while self.may_publish() and len(letters) < PUBLISHED_PER_RUN:
                letters.append(self.publish_first(topic))
        except StorageError as failure:
            error = failure
        finally:
            self.finish_round(now_ns, topic, letters, error)
        return 0 if self.durable else len(letters)

    cdef tuple publish_first(self, topic):
        """Publish the first pending dead letter. Returns: (id, attempts, id of the dead letter). Raises: StorageError.

        Without `durable` its message is finished at once, else when a sync has covered the dead letter.
        """
        cdef ReadyEntry entry = self.pending.at(self.pending.first)[0]
        cdef const Record* record = entry.record
        cdef uint64_t guid = record.guid
        assert self.is_sorted(), "a message may have attempts left by the present limit"
        # Finishing the message must not fail any more.
        self.deferral.cursor.ledger.reach(record_ordinal(record))
        topic.published_by(None)
        letter = topic.publish_body(record_body(record)[:record_body_bytes(record)], wall_ns())
        if self.trace is not None:
            self.trace.note(DEAD_LETTERED, guid, entry.attempts, REASON_ATTEMPTS, None, wall_ns())
        entry = self.pending.pop()
        if self.durable:
            self.unsynced.push(entry.record, entry.attempts, entry.note)
            self.copies.append((topic, topic.log.end - 1))
        else:
            self.finish_message(&entry)
        return (guid, entry.attempts, letter)

    cdef int finish_round(self, int64_t now_ns, topic, list letters, error) except -1:
        """End a round of publishing: set the time of the next one, and log. error: that ended the round, or None.

        letters: (id, attempts, id of the dead letter) of each message published.
        """
        assert len(letters) <= PUBLISHED_PER_RUN
        if error is not None:
            self.retry_ns = now_ns + RETRY_NS
            self.target.note_failed(error, self.pending.count)
        else:
            self.retry_ns = now_ns + RETRY_NS if self.unsynced.count >= UNSYNCED_MAX else 0
        if letters:
            self.target.note_published(topic, letters, self.pending.count)
        return 0

    cdef uint32_t finish_synced(self) except? 0:
        """Finish the messages whose dead letters are on stable storage. Returns: their number."""
        cdef ReadyEntry entry
        cdef uint32_t count = 0
        while self.take_synced(&entry):
            self.finish_message(&entry)
            count += 1
        return count

    cdef bint take_synced(self, ReadyEntry* entry) except -1:
        """Take the next unsynced entry whose dead letter is on stable storage. Returns: False if there is none.

        Entries whose dead letter was deleted with its topic become pending again.
        """
        cdef Log log
        assert len(self.copies) == self.unsynced.count
        while self.copies:
            topic, ordinal = self.copies[0]
            log = topic.log
            if self.target.is_deleted(topic):
                entry[0] = self.unsynced.pop()
                self.pending.push(entry.record, entry.attempts, entry.note)
                self.copies.popleft()
            elif log.synced_end > <uint64_t> ordinal:
                entry[0] = self.unsynced.pop()
                self.copies.popleft()
                return True
            else:
                break
        return False

    cdef int finish_message(self, const ReadyEntry* entry) except -1:
        """Finish a message whose dead letter is published, and durable if that is asked for."""
        cdef Ledger ledger = self.deferral.cursor.ledger
        assert not ledger.is_finished(record_ordinal(entry.record))
        ledger.unseal()
        self.deferral.cursor.finish(entry.record)
        if entry.note != NO_NOTE:
            self.deferral.forget(entry.note)
        ledger.header.dead_letter_count += 1
        return 0

    cdef int clear(self) except -1:
        """Discard all dead letters; the limit stays."""
        self.pending.clear()
        self.unsynced.clear()
        self.copies.clear()
        self.pending_unsorted = self.ready_unsorted = 0
        return 0
