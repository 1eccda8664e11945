# pyqd/hot/primitives/idtable.pxd: from the id of a message to its slot. Design notes: pyx/primitives/idtable.pyx.

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

    # Whether an id belongs to the array that is being copied.
    cdef inline bint is_old(self, uint64_t guid) noexcept:
        return self.old_cells != NULL and guid * PYQD_ID_MULTIPLIER >> self.old_shift >= self.moved

    # Loads the cell of an id ahead of a put, get or take: a table of thousands of ids is not in the first-level cache.
    cdef inline void load_cell_ahead(self, uint64_t guid) noexcept:
        load_ahead(&self.cells[guid * PYQD_ID_MULTIPLIER >> self.shift])

    # guid is not 0. Returns 1; 0 if the id is in the table: no change. Raises MemoryError: no change. Amortised O(1).
    cdef int put(self, uint64_t guid, uint32_t slot) except -1
    # Returns the slot; -1 if the id is absent.
    cdef int64_t get(self, uint64_t guid) noexcept
    # Removes the id and returns its slot; -1 if it is absent. Amortised O(1).
    cdef int64_t take(self, uint64_t guid) except -2
    # Removes everything and returns the memory of a large table. Returns 0.
    cdef int clear(self) except -1
    # Checks every cell; AssertionError for a broken invariant. O(capacity).
    cdef int check(self) except -1
    # Checks at intervals that keep a debug build linear.
    cdef int check_often(self) except -1
    # Begins to move all ids to a new array of that many cells. Raises MemoryError: no change.
    cdef int resize(self, uint64_t capacity) except -1
    cdef int move_some(self, uint64_t count) noexcept
    cdef int move_last(self) noexcept
    cdef int drop_old(self) noexcept
    cdef bint put_old(self, uint64_t guid, uint32_t slot) noexcept
    cdef int64_t take_old(self, uint64_t guid) noexcept
