# A batch of a log set aside between two turns of the loop. Design notes: pyx/diskqueue/draft.pyx.
from pyqd.hot.diskqueue.log cimport Log

cdef int set_batch_aside(Log log) except -1
cdef bint resume_batch(Log log) except -1
cdef int forget_batch(Log log) noexcept
