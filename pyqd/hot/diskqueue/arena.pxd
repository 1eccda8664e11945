from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyqd.hot.primitives.releases cimport Release
from pyqd.hot.primitives.debug cimport debug_require

cdef enum ExtentState:
    EXTENT_ABSENT                        # not mapped: the next access maps the file again
    EXTENT_PRESENT                       # mapped, readable and writable
    EXTENT_GUARDED                       # mapped without access rights: the next access shows that it is in use

cdef struct Extent:
    Release release                      # first, so that its address is that of the extent; used by `extent_free`
    char* base                           # of its slots; page aligned
    uint64_t size_bytes                  # of the file
    char* path                           # owned; replaced under the lock
    uint64_t device                      # of the file, with `inode`: another file of that path is never mapped
    uint64_t inode
    Extent* following                    # in the list of its state, oldest first
    Extent* preceding
    uint64_t guarded_at                  # value of the guard counter when it was guarded
    uint32_t pin_count                   # mapped, and not to be unmapped, while this is above 0
    ExtentState state
    uint8_t order                        # it has 2**order slots
    bint removed                         # its file is gone: an access finds zeros
    bint alone                           # a page that is not in the cache is brought in alone: madvise(2), MADV_RANDOM
    bint verified                        # its content has been checked: an unreadable page ends the process
    uint64_t lost_pages                  # that could not be read, with zeros in their place

cdef struct ExtentList:
    Extent* first
    Extent* last
    uint64_t count

cdef inline void append(ExtentList* to, Extent* extent) noexcept nogil:
    extent.following = NULL
    extent.preceding = to.last
    if to.last == NULL:
        to.first = extent
    else:
        to.last.following = extent
    to.last = extent
    to.count += 1

cdef inline void remove(ExtentList* of, Extent* extent) noexcept nogil:
    debug_require((extent.preceding == NULL) == (of.first == extent))
    debug_require((extent.following == NULL) == (of.last == extent))
    if extent.preceding == NULL:
        of.first = extent.following
    else:
        extent.preceding.following = extent.following
    if extent.following == NULL:
        of.last = extent.preceding
    else:
        extent.following.preceding = extent.preceding
    of.count -= 1

cdef Extent* extent_new(int fd, uint64_t size_bytes, const char* path, bint private=*) noexcept nogil
cdef Extent* extent_of(
    int fd, uint64_t size_bytes, const char* path, uint64_t device, uint64_t inode, bint private=*,
) noexcept nogil
cdef void extent_free(Extent* extent) noexcept nogil
cdef int extent_pin(Extent* extent) noexcept nogil
cdef void extent_unpin(Extent* extent) noexcept nogil
cdef int extent_move(Extent* extent, const char* path) noexcept nogil
cdef void extent_remove(Extent* extent) noexcept nogil
cdef bint extent_is_lost(Extent* extent, uint64_t start, uint64_t length) noexcept nogil
