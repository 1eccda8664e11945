# A range of mapped memory and who gives it back. Design notes: pyx/mapping.pyx.
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #define pyqd_barrier() __asm__ volatile("" ::: "memory")
    """
    # Keeps the compiler from moving stores over it. x86 itself keeps stores in order, and what a killed process had
    # stored into a shared mapping is in the page cache; so program order is what recovery finds.
    void store_barrier "pyqd_barrier" () noexcept nogil

cdef class Mapping:
    cdef char* base                      # owned; page aligned
    cdef readonly uint64_t size_bytes
    cdef readonly str path               # None for anonymous memory
    cdef int fd                          # owned, open for writing; -1: none
    cdef bint fd_refused                 # it could not be opened

    cdef void close(self) noexcept
