cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.intake cimport QueuedBatch
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.tcp.output cimport ClientOutput
from pyqd.hot.wire.scanner cimport COMMAND_MPUB, COMMAND_PUB, NAME_BYTES_MAX, Batch, Command, CommandLine, Scan, Text

cdef enum Incomplete:
    # The command stays in the buffer, and is executed again later. Returned in place of a number of bytes.
    NEEDS_BYTES = -2                     # until the rest of its body has come
    NEEDS_PERMISSION = -3                # until the permissions of the client are renewed

@cython.final
cdef class ProtocolLimits:
    cdef readonly int64_t max_msg_bytes
    cdef readonly int64_t max_body_bytes
    cdef readonly int64_t max_rdy_count
    cdef readonly int64_t max_req_timeout_ns
    cdef readonly int64_t max_defer_ns
    cdef readonly bint sync_each         # an OK leaves when its messages are on stable storage

cdef object size_error(CommandLine* line, code, noun, short_noun, int64_t size, int64_t limit)
cdef object truncation_error(CommandLine* line, code, text)

@cython.final
cdef class Publisher:
    cdef object client                   # Python half of the connection; None after its end
    cdef ClientOutput output
    cdef ProtocolLimits limits
    cdef public bint auth_needed         # the client needs a permission to publish
    cdef public bint returns_ids           # an OK carries the ids of its messages; negotiated in IDENTIFY

    # The current pass.
    cdef bint eof                        # no bytes follow those of the pass
    cdef int64_t wall_now_ns
    cdef int64_t mono_now_ns             # only if auth_needed
    cdef Batch batch                     # check of the batch whose bytes are coming in
    cdef dict unsynced                   # topics with OKs that wait for a sync

    # Topics of the client.
    cdef TopicCore topic                 # the last one published to
    cdef char[NAME_BYTES_MAX] topic_name
    cdef uint32_t topic_name_bytes
    cdef uint64_t topic_count            # messages to it that `publish_counts` lacks
    cdef dict known_topics               # name: TopicCore, of recent topics; None: none yet
    cdef readonly dict publish_counts    # topic name: messages
    cdef char[NAME_BYTES_MAX] permitted_topic
    cdef uint32_t permitted_topic_bytes
    cdef int64_t permitted_until_ns      # monotonic; of permitted_topic

    # PUBs or MPUBs that are joined to one batch of the log, which is not committed yet.
    cdef TopicCore open_topic            # None: there are none
    cdef Command open_command            # COMMAND_PUB or COMMAND_MPUB
    cdef uint32_t open_commands
    cdef uint32_t open_messages

    # Messages that wait in the intake of a topic.
    cdef QueuedBatch queued              # None: none wait
    cdef TopicCore queued_topic
    cdef uint64_t queued_bytes           # of the messages, in the buffer of the pass or in the block
    cdef char* queued_block              # holds them between passes; owned
    cdef uint64_t queued_block_bytes
    cdef int64_t* queued_dues            # owned

    # Commands. They return the bytes of the body, or an Incomplete. Raise: CommandError.
    cdef int64_t publish(
        self, CommandLine* line, const char* at, uint64_t size_bytes, bint deferred, uint32_t* commands) except -1
    cdef int64_t publish_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
    cdef int64_t publish_deferred_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1

    # The pass around them.
    cdef int begin_pass(self, int64_t wall_now_ns, bint eof) except -1
    cdef int close_batches(self) except -1
    cdef int drop_batches(self) except -1
    cdef dict take_unsynced(self)
    cdef int adopt_block(self, char* block, uint64_t capacity) except -1
    cdef int copy_queued(self, const char* end) except -1
    cdef int finish_queued(self, command) except -1
    cdef int drop_queued(self) except -1
    cdef int end(self) except -1

    # Steps of a command.
    cdef TopicCore topic_for(self, CommandLine* line)
    cdef bint is_permitted(self, CommandLine* line) except -1
    cdef uint32_t walk_run(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint64_t* used, uint64_t* body_words) noexcept
    cdef bint publish_run(
        self, TopicCore topic, CommandLine* line, const char* at, uint64_t size_bytes, int64_t due_ns, uint64_t* used,
        uint32_t* commands) except -1
    cdef int64_t add_run(
        self, TopicCore topic, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t* commands) except -1
    cdef int add_to_batch(
        self, TopicCore topic, const char* at, uint32_t count, uint32_t commands, uint64_t body_words,
        uint64_t gap_bytes, Command command) except -1
    cdef int accepted(
        self, TopicCore topic, uint64_t last_id, uint32_t count, uint32_t commands, bint are_batches) except -1
    cdef int put_ok_with_ids(self, uint64_t last_id, uint32_t count, bint is_batch) except -1
    cdef int64_t queue_batch(
        self, TopicCore topic, const char* at, int64_t used,
        uint32_t count, uint64_t body_words, int64_t due_ns, int64_t* dues) except -1
    cdef int64_t check_batch(
        self, CommandLine* line, const char* at, uint64_t size_bytes, uint32_t lead_bytes) except -1
    cdef int64_t batch_not_ready(
        self, CommandLine* line, Scan scan, uint64_t size_bytes, uint32_t lead_bytes) except -1
    cdef int64_t need_bytes(self, CommandLine* line, code, text) except -1
    cdef int64_t parse_due(self, name, text) except -1
    cdef int read_dues(self, const char* at, bint are_timestamps, int64_t* dues) except -1
    cdef int64_t latest_due_ms(self) noexcept
    cdef int refuse_publish(self, CommandLine* line, name, uint32_t params_needed) except -1
    cdef int refuse_write(self, name, error) except -1
