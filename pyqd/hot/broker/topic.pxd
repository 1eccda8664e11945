from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.trace cimport TracePlace
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.mapping cimport Mapping
from pyqd.hot.primitives.guid cimport GuidFactory
from pyqd.hot.primitives.schedule cimport Scheduled, Scheduler
from pyqd.hot.wire.record cimport RECORD_HEADER_BYTES, Record

cdef enum:
    TOPIC_STATE_BYTES = 4096
    TOPIC_STATE_VERSION = 3

cdef struct TopicState:
    uint64_t magic
    uint32_t version
    uint32_t paused
    uint64_t held_from                   # ordinal of the first message no channel has been given
    uint64_t deferred_below              # 1 + ordinal of the last record with a due time; 0: there was none
    uint64_t dues_below                  # the due times of records below it are on stable storage, as the records are
    uint64_t last_guid                   # no id to come is at or below it
    uint64_t message_count               # accepted, ever
    uint64_t message_bytes               # of their bodies
    uint64_t retention_bytes             # this and the next two: 1 + the topic's own limit; 0: it has none
    uint64_t retention_time_ns
    uint64_t bytes_max
    int64_t created_ns                   # wall clock; 0: unknown, created by an early version
    uint64_t given_below                 # 1 + the end of the messages given to channels with durable names; 0: unknown
    uint64_t trace_threshold             # this and the next: 1 + the topic's own setting of its trace; 0: it has none
    uint64_t trace_body_bytes
    uint64_t count_ahead                 # 1 + message_count - end of the log, modulo 2**64; 0: unknown
    uint64_t producers_below             # for later: 0

# Fields of a state that the journal stores beside the records, so that the state's page need not be synced with them.
cdef struct JournaledState:
    int64_t created_ns                   # distinguishes a topic from an earlier one of the same name
    uint64_t deferred_below
    uint64_t last_guid
    uint64_t message_count
    uint64_t message_bytes
    uint64_t producers_below

# Messages that are accepted all together or not at all: each a big-endian int32 size and a body, checked before.
cdef struct MessageBatch:
    const char* at                       # of the next message to add
    uint32_t count
    uint32_t done                        # added so far
    uint64_t body_words                  # 8-byte words of all bodies, each rounded up
    int64_t now_ns                       # Unix
    int64_t due_ns                       # Unix, of all of them; 0: at once
    const int64_t* dues                  # or one for each, and 8 ignored bytes precede each size
    uint64_t gap_bytes                   # skipped between two messages
    uint64_t body_bytes                  # of those added
    bint in_slices                       # the loop runs between the parts that are added
    uint32_t kept                        # messages to store; an ephemeral topic has no room for the rest

cdef inline uint64_t batch_span(uint32_t count, uint64_t body_words) noexcept:
    # Return bytes that a batch takes in a log.
    return 8 * body_words + <uint64_t> count * RECORD_HEADER_BYTES

cdef class TopicCore(Scheduled):
    cdef readonly Log log
    cdef readonly Scheduler scheduler
    cdef readonly ReadableLog readable   # shared with the channels
    cdef readonly GuidFactory guids
    cdef readonly Mapping mapping
    cdef TopicState* state
    cdef readonly list channels          # ChannelCore
    cdef readonly bint ephemeral
    cdef public bint exiting
    cdef readonly bint awaits_channels   # messages are held until channels that are known elsewhere are created
    # While the topic is deleted: called in its runs to drop some channels, returns True if others remain. Else None.
    cdef public object on_drop_wanted
    cdef readonly bint busy                    # publishes wait in `intake`, or are refused: each further one goes there
    cdef readonly bint draining                # the intake refuses publishes
    cdef public object intake            # Intake; None until a publish was stored in slices
    cdef readonly uint64_t memory_count_max
    cdef public uint64_t retention_bytes     # finished messages to keep; in force, with the daemon's flags
    cdef public int64_t retention_time_ns
    cdef uint64_t state_change_count     # changes of the state, apart from those that messages make
    cdef uint64_t open_count             # messages added to the log's batch under way; 0: there is none
    cdef uint64_t open_bytes             # of their bodies
    cdef readonly TracePlace trace       # None: the topic is not traced

    cdef int recount(self, bint power_failed) except -1
    cdef int restore(self, bytes journaled, bint fresh) except -1
    cdef uint64_t held_count(self) noexcept
    cdef int publish(self, const char* body, uint32_t body_bytes, int64_t now_ns, int64_t due_ns) except -1
    cdef int publish_batch(self, const char* at, uint32_t count, uint64_t body_words, int64_t now_ns) except -1
    cdef int add_batch(
        self, const char* at, uint32_t count, uint64_t body_words, uint64_t gap_bytes, int64_t now_ns,
        bint may_stage) except -1
    cdef bint joins(self, uint32_t count, uint64_t body_words) noexcept
    cdef int commit_batches(self) except -1
    cdef int abort_batches(self) except -1
    cdef int publish_deferred_batch(
        self, const char* at, uint32_t count, uint64_t body_words, uint64_t gap_bytes, int64_t now_ns, int64_t due_ns,
        const int64_t* dues) except -1
    cdef int begin_messages(self, MessageBatch* batch) except -1
    cdef int add_messages(self, MessageBatch* batch, uint32_t count) except -1
    cdef int accept_messages(self, MessageBatch* batch) except -1
    cdef int drop_messages(self, MessageBatch* batch) except -1
    cdef int reserve_dues(self, uint64_t count) except -1
    cdef int note_deferred(self) except -1
    cdef int take_dues_back(self) except -1
    cdef int trim_to(self, uint64_t floor) except -1
    cdef bint is_readable(self) noexcept
    cdef int advance_end(self) except -1
    cdef int finish_missing(self, uint64_t start) except -1
    cdef int trim(self) except -1
    cdef int trim_traced(self, uint64_t floor) except -1
    cdef int note_unkept(self, uint64_t guid, uint32_t body_bytes, int64_t now_ns, int64_t due_ns) except -1
    cdef int note_members(self) except -1
    cdef int note_released(self, uint64_t count) except -1
