# FINs of a channel that wait for a sync. Design notes: pyx/broker/unsynced_fins.pyx.
from pyqd.hot.broker.consumer cimport Consumer

cdef class UnsyncedFins:
    cdef list consumers                  # with FINs that no sync under way covers

    cdef bint add(self, Consumer consumer) except -1
    cpdef list begin_sync(self)
    cdef int end_sync(self, list covered) except -1
    cpdef int fail_sync(self, list covered) except -1
