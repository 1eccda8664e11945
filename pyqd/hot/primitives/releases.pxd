from libc.stdint cimport uint64_t

from pyqd.hot.primitives.arrays cimport Array

cdef enum:
    PAGE_BYTES = 4096                    # of memory

# Size rounded up to whole pages.
cdef inline uint64_t whole_pages(uint64_t size_bytes) noexcept nogil:
    return (size_bytes + PAGE_BYTES - 1) & ~<uint64_t> (PAGE_BYTES - 1)

cdef struct Release:
    void (*run)(Release* release) noexcept nogil  # drops the reference, and frees the memory of the release
    Release* following                   # in the queue
    bint closes                          # it keeps a descriptor

cdef void run_later(Release* release) noexcept nogil
cdef void close_later(int fd) noexcept nogil
cdef void unmap_later(void* base, size_t size_bytes) noexcept nogil
cdef void free_later(void* block, size_t size_bytes) noexcept nogil
cdef void array_release_later(Array* array) noexcept nogil
