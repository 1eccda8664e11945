# Arrays of up to millions of entries: growing one moves no entries.
#
# realloc(3) copies a block of less than its mmap threshold, which the daemon raises (pyx/net/buffers.pyx), and touches
# as much new memory. A page that the host has taken back costs some 10 us, so 16 MiB held the loop for 20 ms and more.
# From PYQD_ARRAY_MAPPED_MIN on an array has pages of its own, which mremap(2) moves in the page table.

cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>

    #define PYQD_ARRAY_MAPPED_MIN ((size_t) 1 << 20)

    typedef struct { void *base; size_t bytes; } pyqd_array;

    static inline int pyqd_array_reserve(pyqd_array *array, size_t bytes)
    {
        void *grown;
        if (bytes <= array->bytes)
            return 0;
        if (bytes < PYQD_ARRAY_MAPPED_MIN) {
            grown = realloc(array->base, bytes);
            if (grown == NULL)
                return -1;
        } else if (array->bytes >= PYQD_ARRAY_MAPPED_MIN) {
            grown = mremap(array->base, array->bytes, bytes, MREMAP_MAYMOVE);
            if (grown == MAP_FAILED)
                return -1;
        } else {
            grown = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (grown == MAP_FAILED)
                return -1;
            if (array->bytes != 0)
                memcpy(grown, array->base, array->bytes);
            free(array->base);
        }
        array->base = grown;
        array->bytes = bytes;
        return 0;
    }

    static inline void pyqd_array_release(pyqd_array *array)
    {
        if (array->bytes >= PYQD_ARRAY_MAPPED_MIN)
            munmap(array->base, array->bytes);
        else
            free(array->base);
        array->base = NULL;
        array->bytes = 0;
    }
    """
    # An array of so many bytes has pages of its own.
    const size_t ARRAY_MAPPED_MIN "PYQD_ARRAY_MAPPED_MIN"

    # Empty when all its bytes are zero.
    ctypedef struct Array "pyqd_array":
        void* base
        size_t bytes

    # Reserve this many bytes; old bytes stay, new ones are undefined. Returns: -1 if there is no memory: no change.
    int array_reserve "pyqd_array_reserve"(Array* array, size_t bytes) noexcept nogil
    # Free the memory; the array is empty.
    void array_release "pyqd_array_release"(Array* array) noexcept nogil

cdef extern from *:
    """
    #define pyqd_load_ahead(at) __builtin_prefetch((at), 1)
    """
    # Begins to load the cache line at an address, which need not be valid, for a store that comes soon.
    void load_ahead "pyqd_load_ahead" (const void* at) noexcept nogil
