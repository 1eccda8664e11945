# Front of an HTTP connection: reads, and answers plain publishes itself. Design notes: pyx/http/front.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.http.scan cimport PlainLimits, PlainPublish

cdef class PlainPublisher:
    cdef public bint enabled
    cdef PlainLimits limits
    cdef int64_t batch_count_max
    cdef readonly object find_topic      # bytes -> TopicCore, or None: the routes handle it

cdef class HttpFront:
    cdef int fd
    cdef object hub
    cdef object watcher
    cdef object greenlet
    cdef PlainPublisher publisher        # None: the routes handle every request
    cdef TopicCore topic                 # of the last plain publish
    cdef bytes topic_name
    cdef bint behind                     # the socket was full
    cdef bint plain_wanted               # plain publishes may be answered: no request is half read
    cdef bint arrived                    # the greenlet has work: the three fields below
    cdef uint64_t rest_at                # part of the shared buffer that is not answered
    cdef uint64_t rest_end
    cdef object error
    cdef readonly int64_t plain_count
    cdef public double deadline_s
    cdef public double idle_s            # seconds by which a read moves the deadline

    cdef bint take(self) except -1
    cdef int64_t read(self) except -2
    cdef uint64_t answer_plain(self, const char* at, uint64_t size_bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef int64_t accept(self, PlainPublish* found, int64_t now_ns) except -2
    cdef int64_t store(self, TopicCore topic, PlainPublish* found, int64_t now_ns) except -2
    cdef TopicCore topic_for(self, PlainPublish* found)
    cdef int send_answers(self, uint64_t size_bytes) except -1
