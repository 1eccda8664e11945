"""Publishes of a topic that are stored in slices, and those that came behind them, in order.

Problem: a batch of a million messages takes tens of milliseconds to store, becomes visible all at once, and must not
hold the loop. So a batch above SLICED_BYTES_MIN is queued here: each run appends some of its messages behind the log's
end and sets the batch aside (pyx/diskqueue/batchwriter.pyx), and the last run makes all of them visible. As ordinals
are dense, no other message can be accepted meanwhile: whatever is published to the topic queues up behind, a single
message too. The publisher's connection waits, the loop does not. A publish to a topic without a queue never comes here.

A slice is bounded by the remaining work budget of the pass, so many large batches at once, to different topics,
share one budget.

A batch that cannot be stored is refused as a whole: nothing of it was visible, and the log ends where it ended. If the
log goes on in another segment between two slices, the batch begins again. If the client leaves, its batch is stored all
the same, like any command that has come completely, unless the daemon stops or the topic is deleted first.

A topic of a daemon that drains takes no more publishes. They come here as those to a busy topic do, and end unstored.

Invariants: 1. `topic.busy` exactly if something is queued, or the topic drains. 2. Only the first of the queue has
begun. 3. The log has a batch set aside exactly if the first has begun and is not taken one by one.

Rejected: letting others publish between slices and numbering the batch at its end, as the checksum of each record
covers its number, and computing those is most of the work.
"""

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from pyqd.hot.broker.topic cimport MessageBatch, TopicCore, batch_span
from pyqd.hot.wire.bodies cimport Frames
from pyqd.hot.wire.record cimport record_span
from pyqd.hot.wire.scanner cimport read_be32

from pyqd.primitives.errors import StorageError

# In the log. A batch of this size takes a millisecond, or ten if the host has taken the memory back.
cdef uint64_t SLICED_BYTES_MIN = 1 << 20
cdef uint64_t SLICE_BYTES_MAX = 1 << 20
cdef uint64_t PART_BYTES_MAX = 64 << 10          # of a slice: between them the time is read


def set_limits_for_tests(uint64_t sliced_bytes_min, uint64_t slice_bytes_max):
    """Set the size above which batches are stored in slices, and that of a slice, for tests. Returns: the former."""
    global SLICED_BYTES_MIN, SLICE_BYTES_MAX
    former = (SLICED_BYTES_MIN, SLICE_BYTES_MAX)
    SLICED_BYTES_MIN, SLICE_BYTES_MAX = sliced_bytes_min, slice_bytes_max
    return former


cdef bint is_large(uint32_t count, uint64_t body_words) noexcept:
    return batch_span(count, body_words) > SLICED_BYTES_MIN


cdef QueuedBatch enqueue(TopicCore topic, const MessageBatch* batch, body):
    """Queue a publish; it is stored in runs of the topic's intake, after those that came before it."""
    cdef QueuedBatch queued = QueuedBatch()
    assert batch.count != 0 and batch.done == 0, "the batch has begun"
    if topic.intake is None:
        topic.intake = Intake(topic)
    queued.batch = batch[0]
    queued.batch.in_slices = True
    queued.start = batch.at
    queued.body = body
    queued.refused = topic.draining
    queued.intake = topic.intake
    queued.intake.add(queued)
    return queued


def must_queue(TopicCore topic not None, Frames frames not None):
    """Return True if messages cannot be published at once, in one piece."""
    return topic.busy or is_large(frames.count, frames.words)


def enqueue_frames(TopicCore topic not None, Frames frames not None, int64_t now_ns, int64_t due_ns=0):
    """Queue messages, one or more, framed and checked. Returns: the QueuedBatch."""
    cdef MessageBatch batch
    memset(&batch, 0, sizeof(MessageBatch))
    if frames.count == 0:
        raise ValueError("there is no message")
    batch.at = PyBytes_AS_STRING(frames.data) + frames.start
    batch.count, batch.body_words = frames.count, frames.words
    batch.now_ns, batch.due_ns = now_ns, due_ns
    return enqueue(topic, &batch, frames.data)


cdef class QueuedBatch:
    """One publish in the queue of a topic."""

    cdef int moved(self, const char* start) noexcept:
        """Set the new address of the messages; none has been added yet."""
        assert not self.begun
        self.start = self.batch.at = start
        return 0

    @property
    def stored(self):
        return self.last_id != 0

    def cancel(self):
        """Drop the batch unless it is finished; its publisher does not wait any more."""
        self.on_done = None
        if not self.finished:
            self.intake.end(self, None)


cdef class Intake(Scheduled):
    """The queue of one topic."""

    def __init__(self, TopicCore topic not None):
        self.topic = topic
        self.waiting = deque()

    cdef int add(self, QueuedBatch queued) except -1:
        assert not queued.finished and not queued.begun
        # First what may raise MemoryError: a batch in the queue points into the memory of its publisher.
        self.topic.scheduler.request_wake(self)
        self.waiting.append(queued)
        self.topic.busy = True
        return 0

    cdef int wake(self) except -1:
        """Store as much as the work budget of this pass allows."""
        cdef QueuedBatch queued
        while self.waiting:
            queued = self.waiting[0]
            try:
                if queued.refused:
                    self.end(queued, None)
                elif self.store_slice(queued):
                    queued.last_id = self.topic.guids.last_id
                    self.end(queued, None)
            except Exception as error:
                self.end(queued, error)
                if not isinstance(error, StorageError):
                    raise
            if self.waiting and (not self.topic.scheduler.has_work() or queued is self.waiting[0]):
                return self.topic.scheduler.request_wake(self)
        return 0

    cdef bint store_slice(self, QueuedBatch queued) except -1:
        """Add some messages of the first batch. Returns: whether it is stored. Raises: StorageError (it is dropped)."""
        cdef MessageBatch* batch = &queued.batch
        assert queued is self.waiting[0], "ordinals are given in the order of the queue"
        if not queued.begun or not (batch.kept == 0 or self.topic.log.resume_batch()):
            self.begin(queued)
        try:
            self.add_slice(batch)
            if batch.done < batch.count:
                batch.kept == 0 or self.topic.log.batch.set_aside()
                return False
        except BaseException:
            self.topic.drop_messages(batch)
            raise
        if self.topic.trace is not None:
            self.topic.trace.publisher = queued.publisher
        assert batch.done == batch.count, "messages are missing"
        self.topic.accept_messages(batch)
        return True

    cdef int begin(self, QueuedBatch queued) except -1:
        """Begin with the first message, perhaps again."""
        cdef MessageBatch* batch = &queued.batch
        assert queued is self.waiting[0], "invariant 2"
        batch.at = queued.start
        batch.done = 0
        batch.body_bytes = 0
        self.topic.take_dues_back()
        queued.begun = False
        self.topic.begin_messages(batch)
        queued.begun = True
        return 0

    cdef int add_slice(self, MessageBatch* batch) except -1:
        """Add messages of a batch, one or more, until the work budget of this pass is used up. Raises: StorageError."""
        cdef uint64_t left_bytes = SLICE_BYTES_MAX
        cdef uint64_t span
        assert batch.done < batch.count, "the batch is complete"
        while batch.done < batch.count:
            span = self.add_part(batch, min(left_bytes, PART_BYTES_MAX))
            if not self.topic.scheduler.spend(<int64_t> span) or span >= left_bytes:
                break
            left_bytes -= span
        return 0

    cdef uint64_t add_part(self, MessageBatch* batch, uint64_t limit) except? 0:
        """Add messages, one at least, until their records take `limit` bytes. Returns: these. Raises: StorageError."""
        cdef uint64_t lead_bytes = 0 if batch.dues == NULL else sizeof(int64_t)
        cdef uint64_t span = 0
        cdef uint32_t count = 0
        cdef uint32_t size
        cdef const char* at = batch.at
        while count < batch.count - batch.done and (count == 0 or span < limit):
            size = <uint32_t> read_be32(at + lead_bytes)
            at += lead_bytes + sizeof(uint32_t) + size
            span += record_span(size)
            count += 1
        self.topic.add_messages(batch, count)
        return span

    cdef int end(self, QueuedBatch queued, error) except -1:
        """Take a batch out of the queue: stored, refused, or cancelled. error: None if there is none to report."""
        if self.topic.log.batch.segment is not None and queued is self.waiting[0]:
            self.topic.log.batch.discard()
            self.topic.take_dues_back()
        self.waiting.remove(queued)
        self.topic.busy = self.topic.draining or len(self.waiting) != 0
        if self.waiting:
            self.topic.scheduler.request_wake(self)
        queued.finished = True
        queued.error = error
        queued.body = None
        if queued.on_done is not None:
            queued.on_done()
        return 0

    def refuse_all(self):
        """Refuse the queued batches without an error: the topic is deleted or closed."""
        while self.waiting:
            self.end(self.waiting[0], None)
