from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.diskqueue.arena cimport Extent, extent_is_lost
from pyqd.hot.primitives.debug cimport debug_require

cdef extern from *:
    """
    #define pyqd_barrier() __asm__ volatile("" ::: "memory")
    """
    # Keeps the compiler from moving stores over it. x86 itself keeps stores in order, and the stores of a killed
    # process to a shared mapping are in the page cache; so recovery finds them in program order.
    void store_barrier "pyqd_barrier" () noexcept nogil

cdef extern from *:
    """
    /* Not __atomic_fetch_or: a compiler may make a mere load of an "or 0". */
    static inline void pyqd_store_again(char *at) {
    #if defined(__x86_64__)
        __asm__ volatile("lock; orb $0, %0" : "+m"(*at) : : "memory");
    #else
        char is = __atomic_load_n(at, __ATOMIC_RELAXED);
        __atomic_compare_exchange_n((volatile char *) at, &is, is, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    #endif
    }
    """
    # Stores the present byte again, without losing a store of another thread.
    void store_again "pyqd_store_again" (char* at) noexcept nogil

cdef class Mapping:
    cdef char* base                      # owned; page aligned
    cdef readonly uint64_t size_bytes
    cdef Extent* extent                  # owned; NULL for memory that the caller has mapped
    cdef bint counted                    # it is a file, mapped outside the arena
    cdef bint on_heap                    # it is memory of malloc(3)
    cdef readonly str path               # None for anonymous memory
    cdef int fd                          # owned, open for writing; -1: none
    cdef uint32_t place                  # among those that own a descriptor
    cdef bint fd_refused                 # it could not be opened
    cdef bint alone                      # a page that is not in the cache is brought in alone
    cdef public uint64_t failed_syncs    # how many; counted by pyqd.diskqueue.reliable_sync
    cdef public uint64_t healed_syncs    # how many of these a sync has made good

    cdef inline bint is_lost(self, uint64_t start, uint64_t length) noexcept:
        # Whether some of those bytes could not be read from the disk: there are zeros in their place.
        # The caller has accessed these bytes before: the compiler must not move this check before the access.
        debug_require(start <= self.size_bytes)
        debug_require(length <= self.size_bytes - start)
        store_barrier()
        return self.extent != NULL and self.extent.lost_pages != 0 and extent_is_lost(self.extent, start, length)

    cdef inline void set_verified(self, bint verified) noexcept:
        # After the content has been checked, zeros must not take the place of an unreadable page.
        if self.extent != NULL:
            self.extent.verified = verified

    cdef void close(self) noexcept
    cdef int take_descriptor(self) noexcept
    cdef void stop_read_ahead(self) noexcept
    cdef void read_ahead(self) noexcept
    cdef void advise(self, bint alone) noexcept
    cdef void prefetch(self, uint64_t start, uint64_t length) noexcept

cdef Extent* extent_existing(int directory, const char* name, const char* path, bint reserves) noexcept nogil
cdef Mapping over_extent(Extent* extent, str path)
