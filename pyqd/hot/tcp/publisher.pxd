# What a connection publishes: PUB, MPUB, DPUB, DMPUB. Design notes: pyx/tcp/publisher.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyqd.hot.broker.intake cimport QueuedBatch
from pyqd.hot.broker.topic cimport MessageBatch, TopicCore
from pyqd.hot.tcp.limits cimport Limits
from pyqd.hot.tcp.pump cimport Pump
from pyqd.hot.wire.scanner cimport NAME_BYTES_MAX, Batch, CommandLine, Scan, Text

cdef inline object text_of(const Text* text):
    return text.at[:text.size_bytes]

cdef class Publisher(Pump):
    cdef readonly Limits limits
    cdef bint eof                        # the peer sends no more
    cdef int64_t wall_now_ns             # of this pass
    cdef public bint tells_ids           # an OK names the messages it is for; asked for in IDENTIFY
    cdef Batch batch                     # how far the batch at hand has been checked
    cdef TopicCore topic                 # the last one published to
    cdef char[NAME_BYTES_MAX] topic_name
    cdef uint32_t topic_name_bytes
    cdef uint64_t topic_count            # messages to it that are not in publish_counts yet
    cdef dict known_topics               # name: TopicCore, of the last ones that were published to; None: none yet
    cdef readonly dict publish_counts    # topic name: messages
    cdef object slow_call                # (name, params, body) of a command for the Python half
    cdef public bint auth_needed         # what is published has to be permitted
    cdef int64_t pass_ns                 # monotonic, of this pass; only where auth_needed
    cdef char[NAME_BYTES_MAX] permitted_topic
    cdef uint32_t permitted_topic_bytes
    cdef int64_t permitted_until_ns      # monotonic: publishing to that topic is
    cdef TopicCore open_topic            # of the MPUBs that are stored but not valid yet; None: there are none
    cdef uint32_t open_batches           # how many these are
    cdef uint32_t open_messages          # and theirs
    cdef QueuedBatch queued              # what the client waits for to be stored; None: nothing
    cdef TopicCore queued_topic
    cdef uint64_t queued_bytes           # of the messages, in the buffer of the pass or in the block
    cdef char* queued_block              # holds them between passes; owned
    cdef uint64_t queued_block_bytes
    cdef int64_t* queued_dues            # owned
    cdef dict unsynced                   # topics published to in this pass whose OK waits for a sync

    cdef int accepted(self, TopicCore topic, uint64_t last_id, uint32_t count, bint is_batch) except -1
    cdef int64_t queue_batch(
        self, CommandLine* line, TopicCore topic, const char* at, int64_t used,
        uint32_t count, uint64_t body_words, int64_t due_ns, int64_t* dues) except -1
    cdef int finish_queued(self, command) except -1
    cdef int drop_queued_batch(self) except -1
    cdef int put_ok_with_ids(self, uint64_t last_id, uint32_t count, bint is_batch) except -1
    cdef TopicCore topic_for(self, const Text* name)
    cdef bint is_permitted(self, CommandLine* line) except -1
    cdef int64_t publish(self, CommandLine* line, const char* at, uint64_t size_bytes, bint deferred) except -1
    cdef int64_t publish_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
    cdef int close_batches(self) except -1
    cdef int drop_batches(self) except -1
    cdef int64_t publish_deferred_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
    cdef int64_t check_batch(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t lead_bytes) except -1
    cdef int64_t latest_due_ms(self) noexcept
    cdef int read_dues(self, const char* at, bint are_moments, int64_t* dues) except -1
    cdef int64_t batch_not_ready(
        self, CommandLine* line, Scan scan, uint64_t size_bytes, uint32_t lead_bytes) except -1
    cdef int64_t incomplete(self, CommandLine* line, code, text) except -1
    cdef int refuse_publish(self, CommandLine* line, name, uint32_t params_needed) except -1
