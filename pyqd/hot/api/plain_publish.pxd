# Short path of an HTTP connection for plain publishes. Design notes: pyx/api/plain_publish.pyx.
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.api.plain_scan cimport PlainLimits, PlainPublish
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.http.front cimport Answers, ShortPath

cdef class PlainPublisher(ShortPath):
    cdef PlainLimits limits
    cdef int64_t batch_count_max
    cdef object find_topic               # bytes -> TopicCore, or None: leave the publish to the routes
    cdef TopicCore topic                 # of the last plain publish
    cdef bytes topic_name

    cdef int64_t accept(self, PlainPublish* found, int64_t now_ns) except -2
    cdef int64_t store(self, TopicCore topic, PlainPublish* found, int64_t now_ns) except -2
    cdef TopicCore topic_for(self, PlainPublish* found)
