from libc.stdint cimport uint64_t

from pyqd.hot.primitives.arrays cimport Array

cdef enum:
    PAGE_BYTES = 4096                    # of files and mappings: the smallest page of memory of all processors

cdef extern from *:
    """
    #include <unistd.h>
    static inline uint64_t pyqd_kernel_page_start(uint64_t at) {
        static uint64_t page_bytes;
        if (page_bytes == 0) {
            page_bytes = (uint64_t) sysconf(_SC_PAGESIZE);
        }
        return at & ~(page_bytes - 1);
    }
    """
    # Begin of the kernel's page with this address or offset. Its pages have 16 or 64 KiB on some machines with arm64,
    # and calls such as madvise(2) refuse any other begin of a range.
    uint64_t kernel_page_start "pyqd_kernel_page_start" (uint64_t at) noexcept nogil

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
