from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.broker.topic cimport MessageBatch, TopicCore
from pyqd.hot.broker.trace cimport TraceClient
from pyqd.hot.primitives.schedule cimport Scheduled

cdef class QueuedBatch:
    cdef MessageBatch batch
    cdef const char* start               # of the messages; valid until the batch is finished
    cdef object body                     # holds them, or None: the caller does
    cdef Intake intake
    cdef bint begun                      # some of its messages may have been added
    cdef bint refused                    # the topic drained when it came
    cdef readonly bint finished          # it is stored, refused or cancelled
    cdef readonly object error           # error of storing it; None: none, or the topic is deleted
    cdef readonly uint64_t last_id       # of the last message; 0 until it is stored
    cdef public TraceClient publisher    # for the trace; None: unknown
    cdef public object on_done           # called without arguments when it is stored or refused; may be None

    cdef int moved(self, const char* start) noexcept

cdef class Intake(Scheduled):
    cdef readonly TopicCore topic
    cdef object waiting                  # deque of QueuedBatch; the first is under way

    cdef int add(self, QueuedBatch queued) except -1
    cdef bint store_slice(self, QueuedBatch queued) except -1
    cdef int begin(self, QueuedBatch queued) except -1
    cdef int add_slice(self, MessageBatch* batch) except -1
    cdef uint64_t add_part(self, MessageBatch* batch, uint64_t limit) except? 0
    cdef int end(self, QueuedBatch queued, error) except -1

cdef bint is_large(uint32_t count, uint64_t body_words) noexcept

cdef QueuedBatch enqueue(TopicCore topic, const MessageBatch* batch, body)
