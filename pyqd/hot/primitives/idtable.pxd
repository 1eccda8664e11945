cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.primitives.arrays cimport load_ahead


cdef extern from *:
    """
    #define PYQD_ID_MULTIPLIER 0xC4677F8B5D699E3BULL
    """
    const uint64_t PYQD_ID_MULTIPLIER

cdef struct Cell:
    uint64_t guid                      # 0: the cell is empty
    uint32_t slot


@cython.final
cdef class IdTable:
    cdef Cell* cells                   # cells[:capacity]; owned
    cdef readonly uint64_t capacity    # a power of two
    cdef uint32_t shift                # 64 - log2(capacity): the home of an id is the top bits of its hash
    cdef readonly uint32_t count
    cdef Cell* old_cells               # the array that is being copied to `cells`; owned; NULL if none is
    cdef uint64_t old_capacity         # 0 if none is
    cdef uint32_t old_shift
    cdef uint64_t moved                # ids whose home in the old array lies below are in `cells`
    cdef uint64_t copied_at_once_max   # capacity up to which an array is copied at once
    cdef uint64_t unchecked_count      # changes since the last check; counted in debug builds only

    cdef inline bint is_old(self, uint64_t guid) noexcept:
        # Return whether an id belongs to the array that is being copied.
        return self.old_cells != NULL and guid * PYQD_ID_MULTIPLIER >> self.old_shift >= self.moved

    cdef inline void load_cell_ahead(self, uint64_t guid) noexcept:
        # Load the cell of an id ahead of a put, get or take: a table of thousands of ids is not in the first-level
        # cache.
        load_ahead(&self.cells[guid * PYQD_ID_MULTIPLIER >> self.shift])

    cdef int put(self, uint64_t guid, uint32_t slot) except -1
    cdef int64_t get(self, uint64_t guid) noexcept
    cdef int64_t take(self, uint64_t guid) except -2
    cdef int clear(self) except -1
    cdef int check(self) except -1
    cdef int check_often(self) except -1
    cdef int resize(self, uint64_t capacity) except -1
    cdef int move_some(self, uint64_t count) noexcept
    cdef int move_last(self) noexcept
    cdef int drop_old(self) noexcept
    cdef bint put_old(self, uint64_t guid, uint32_t slot) noexcept
    cdef int64_t take_old(self, uint64_t guid) noexcept
