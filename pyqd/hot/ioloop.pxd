# The IOLoop of a connection: receive, scan, execute, answer. Design notes: pyx/ioloop.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from pyqd.hot.pump cimport Pump
from pyqd.hot.scanner cimport NAME_BYTES_MAX, Batch, CommandLine, Scan, Text
from pyqd.hot.topic cimport TopicCore

# What the protocol allows; one object for all connections.
cdef class Limits:
    cdef readonly int64_t max_msg_bytes
    cdef readonly int64_t max_body_bytes
    cdef readonly int64_t max_rdy_count
    cdef readonly int64_t max_req_timeout_ns
    cdef readonly int64_t max_defer_ns
    cdef readonly bint sync_each         # an OK leaves when what it answers for is on stable storage

cdef enum ClientState:
    STATE_INIT = 0
    STATE_SUBSCRIBED = 3
    STATE_CLOSING = 4

cdef class IoLoop(Pump):
    cdef readonly Limits limits
    cdef public int state                # ClientState, as /stats shows it
    cdef char* held                      # own buffer with a command that is not complete; NULL when there is none
    cdef uint64_t held_bytes
    cdef uint64_t held_capacity
    cdef bint eof                        # the peer sends no more
    cdef readonly bint refused           # a fatal error was answered: what is queued leaves, nothing more is read
    cdef bint magic_seen
    cdef object read_watcher
    cdef int64_t wall_now_ns             # of this pass
    cdef Batch batch                     # how far the MPUB at hand has been checked
    cdef TopicCore topic                 # the last one published to
    cdef char[NAME_BYTES_MAX] topic_name
    cdef uint32_t topic_name_bytes
    cdef uint64_t topic_count            # messages to it that are not in publish_counts yet
    cdef readonly dict publish_counts    # topic name: messages
    cdef list unsynced                   # topics published to in this pass whose OK waits for a sync
    cdef object slow_call                # (name, params, body) of a command for the Python half
    cdef readonly uint64_t command_count

    cdef int serve_once(self) except -1
    cdef int wait_readable(self) except -1
    cdef int wait_until_drained(self) except -1
    cdef int wait_until_synced(self) except -1
    cdef int accepted(self, TopicCore topic, uint32_t count) except -1
    cdef ssize_t receive(self, char** buffer, uint64_t* size_bytes) except -2
    cdef int run_pass(self, char* buffer, uint64_t size_bytes) except -1
    cdef int64_t step(self, char* at, uint64_t size_bytes) except -1
    cdef int64_t step_magic(self, const char* at, uint64_t size_bytes) except -1
    cdef int64_t execute(self, CommandLine* line, const char* body, uint64_t size_bytes) except -1
    cdef int hold(self, const char* at, uint64_t size_bytes) except -1
    cdef int run_slow(self) except -1
    cdef TopicCore topic_for(self, const Text* name)
    cdef int64_t publish(self, CommandLine* line, const char* at, uint64_t size_bytes, bint deferred) except -1
    cdef int64_t publish_batch(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
    cdef int64_t batch_not_ready(self, CommandLine* line, Scan scan, uint64_t size_bytes) except -1
    cdef int64_t incomplete(self, CommandLine* line, code, text) except -1
    cdef int refuse_publish(self, CommandLine* line, name, uint32_t params_needed) except -1
    cdef int finish_message(self, const char* id16) except -1
    cdef int requeue_message(self, CommandLine* line) except -1
    cdef int touch_message(self, CommandLine* line) except -1
    cdef int set_ready(self, CommandLine* line) except -1
    cdef int64_t with_body(self, CommandLine* line, const char* at, uint64_t size_bytes) except -1
