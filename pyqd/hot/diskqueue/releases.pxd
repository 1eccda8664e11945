# Thread that drops references to removed files, and unmaps large arrays. Design notes: pyx/diskqueue/releases.pyx.

from pyqd.hot.primitives.arrays cimport Array

cdef struct Release:
    void (*run)(Release* release) noexcept nogil  # drops the reference, and frees the memory of the release
    Release* following                   # in the queue
    bint closes                          # it keeps a descriptor

cdef void run_later(Release* release) noexcept nogil
cdef void close_later(int fd) noexcept nogil
cdef void unmap_later(void* base, size_t size_bytes) noexcept nogil
cdef void array_release_later(Array* array) noexcept nogil
