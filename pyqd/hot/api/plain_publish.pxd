# Short path of an HTTP connection for plain publishes. Design notes: pyx/api/plain_publish.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.api.plain_scan cimport PlainLimits, PlainPublish
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.broker.trace cimport TraceClient
from pyqd.hot.http.front cimport Answers, ShortPath
from pyqd.hot.wire.scanner cimport Text

cdef class PlainPublisher(ShortPath):
    cdef PlainLimits limits
    cdef int64_t batch_count_max
    cdef object find_topic               # bytes -> TopicCore, or None: leave the publish to the routes
    cdef TopicCore topic                 # of the last plain publish
    cdef bytes topic_name
    cdef str remote                      # address of the client
    cdef TraceClient traced              # the client in trace events, with this user agent; None: not needed yet
    cdef bytes user_agent
    cdef object accepts_host             # str -> bool; None: all are accepted
    cdef bytes host                      # the last accepted one

    cdef int64_t accept(self, PlainPublish* found, int64_t now_ns) except -2
    cdef int64_t store(self, TopicCore topic, PlainPublish* found, int64_t now_ns) except -2
    cdef TraceClient traced_client(self, const Text* headers)
    cdef bint is_host_accepted(self, const Text* host) except -1
    cdef TopicCore topic_for(self, PlainPublish* found)
