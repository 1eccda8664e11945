"""Hash table from the id of a message, a uint64, to its slot, a uint32.

Open addressing with linear probing in one array of 16-byte cells; an id of 0 marks an empty cell, and no message has
it.

The home of an id is the top bits of id * MULTIPLIER (multiplicative hashing: Knuth, The Art of Computer Programming 3,
6.4). Ids are close to an arithmetic grid: consecutive within a tick, 2**22 apart from tick to tick. The multiplication
lays the grid out over the table, mostly without any collision, so that the branches of a probe are predicted. Measured
as take of one id and put of a new one, in a loop with 40 to 100,000 ids in the table at 1 to 2000 ids per tick, in ns,
average and worst:

                                              the oldest leaves     any leaves
    one multiplication (this)                      2.4    5          8.8   29
    one multiplication by 2**64/phi                4.0   18         12     58
    one, of the id folded upon itself             10     26         17     38
    two, with a fold between them                 25     32         28     40

The mixed ones behave like random numbers, and pay for each unlucky home with a branch that was not foreseen. MULTIPLIER
was searched: of 6000 random odd numbers the eight best on some steady rates, of these the best on many. On 20,000
patterns drawn afterwards (rate, gaps, jitter, missing ids, node, size) a lookup read 1.18 cells on average, more than 4
in 45 of them, 60 in the worst; with 2**64/phi 1.34, 236 and 108. So a bad pattern exists (a burst exactly every 79
ticks was the worst), and costs some 15 cache lines in a row.

Invariants
    1. capacity is a power of two, at least CAPACITY_MIN; shift == 64 - log2(capacity).
    2. 2 * count <= capacity. So there are empty cells, and every probe ends.
    3. Between the home of an id and its cell, going up and around the end, no cell is empty.

Invariant 3 holds without marks for deleted cells: a removal moves later members of the run back over the gap. So the
cost depends on what is in the table, not on its history: a broker passes millions of ids through a table that holds a
few hundred.

The table doubles at load 1/2, and halves below 1/8 when it has more than CAPACITY_KEPT cells, at a removal; between two
changes of the size there are at least capacity / 8 operations, which pay for the copy. When memory for the smaller
table is missing, the larger one just stays.

A table of up to CAPACITY_KEPT cells is copied at once. The copy of a larger one would hold the loop (28 ms for half a
million ids): there each put and take that follows moves some cells, in the order of the old array. As a home is the top
bits of a hash, whatever the size, one comparison selects the array to look in: the ids whose home in the old array lies
below `moved` are in the new one, all others in the old one. `moved` stands behind an empty cell, so that no run of
cells is cut. An id that was moved stays in its old cell, which no lookup reads; it has its home at or before the
cell. An id whose run goes around the end of the old array has its home behind its cell: it is moved last.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pyqd.hot.primitives.arrays cimport ARRAY_MAPPED_MIN
from pyqd.hot.primitives.debug cimport PYQD_DEBUG
from pyqd.hot.primitives.releases cimport free_later

cdef enum:
    CAPACITY_MIN = 16
    # no larger than 256 KiB: kept, so that a usual rise and fall of messages in flight does not resize
    CAPACITY_KEPT = 16384
    MOVED_AT_ONCE = 16                 # cells; two would be enough for the copy to end before the next resize
    # a debug build checks tables of up to this many cells after every change, larger ones less often
    CHECKED_CAPACITY_MAX = 64

assert CAPACITY_MIN & (CAPACITY_MIN - 1) == 0 and CAPACITY_MIN < CAPACITY_KEPT


# 64 - log2 of a power of two.
cdef inline uint32_t shift_of(uint64_t capacity) noexcept nogil:
    cdef uint32_t shift = 64
    while capacity > 1:
        capacity >>= 1
        shift -= 1
    return shift


cdef inline uint64_t home_of(uint64_t guid, uint32_t shift) noexcept nogil:
    return guid * PYQD_ID_MULTIPLIER >> shift


# The index of the id's cell, or of the empty cell that ends its run.
cdef inline uint64_t probe(const Cell* cells, uint64_t mask, uint32_t shift, uint64_t guid) noexcept nogil:
    cdef uint64_t index = home_of(guid, shift)
    while cells[index].guid != guid and cells[index].guid != 0:
        index = (index + 1) & mask
    return index


# Empties the cell at `gap` and moves back the ids that a probe could no longer find behind it.
cdef inline void close_gap(Cell* cells, uint64_t mask, uint32_t shift, uint64_t gap) noexcept nogil:
    cdef uint64_t index = gap
    cdef uint64_t home
    while True:
        index = (index + 1) & mask
        if cells[index].guid == 0:
            break
        home = home_of(cells[index].guid, shift)
        # The id may move to the gap unless its home lies after the gap; distances are counted around the end.
        if ((index - home) & mask) >= ((index - gap) & mask):
            cells[gap] = cells[index]
            gap = index
    cells[gap].guid = 0


cdef inline void free_cells(Cell* cells, uint64_t capacity) noexcept nogil:
    if capacity * sizeof(Cell) < ARRAY_MAPPED_MIN:
        free(cells)
    else:
        free_later(cells, capacity * sizeof(Cell))


@cython.final
cdef class IdTable:
    """Map from message ids to slots; starts empty, with a few cells."""

    def __cinit__(self):
        self.cells = NULL
        self.capacity = 0
        self.shift = 0
        self.count = 0
        self.unchecked_count = 0
        self.copied_at_once_max = CAPACITY_KEPT
        self.resize(CAPACITY_MIN)

    def __dealloc__(self):
        free(self.cells)
        free(self.old_cells)

    cdef int put(self, uint64_t guid, uint32_t slot) except -1:
        """Add an id, not 0. Returns: 1; 0 if it is there already. Raises: MemoryError. Cost: amortised O(1)."""
        cdef uint64_t index
        assert guid != 0, "0 marks an empty cell"
        if 2 * (<uint64_t>self.count + 1) > self.capacity:
            self.resize(2 * self.capacity)
        if self.old_cells != NULL:
            self.move_some(MOVED_AT_ONCE)
        if self.is_old(guid):
            if not self.put_old(guid, slot):
                return 0
        else:
            index = probe(self.cells, self.capacity - 1, self.shift, guid)
            if self.cells[index].guid != 0:
                return 0
            self.cells[index] = Cell(guid=guid, slot=slot)
        self.count += 1
        if PYQD_DEBUG:
            self.check_often()
        return 1

    cdef bint put_old(self, uint64_t guid, uint32_t slot) noexcept:
        """Add an id to the old array. Returns: False if it is there."""
        cdef uint64_t index = probe(self.old_cells, self.old_capacity - 1, self.old_shift, guid)
        if self.old_cells[index].guid != 0:
            return False
        self.old_cells[index] = Cell(guid=guid, slot=slot)
        return True

    cdef int64_t get(self, uint64_t guid) noexcept:
        """Return the slot; -1 if the id is absent."""
        cdef uint64_t index
        if self.is_old(guid):
            index = probe(self.old_cells, self.old_capacity - 1, self.old_shift, guid)
            return -1 if self.old_cells[index].guid == 0 else <int64_t> self.old_cells[index].slot
        index = probe(self.cells, self.capacity - 1, self.shift, guid)
        if self.cells[index].guid == 0:
            return -1
        return self.cells[index].slot

    cdef int64_t take(self, uint64_t guid) except -2:
        """Remove an id. Returns: its slot; -1 if it is absent. Cost: amortised O(1)."""
        cdef uint64_t index
        cdef int64_t slot
        if self.old_cells != NULL:
            self.move_some(MOVED_AT_ONCE)
        if self.is_old(guid):
            slot = self.take_old(guid)
            if slot < 0:
                return -1
        else:
            index = probe(self.cells, self.capacity - 1, self.shift, guid)
            if self.cells[index].guid == 0:
                return -1
            slot = self.cells[index].slot
            close_gap(self.cells, self.capacity - 1, self.shift, index)
        self.count -= 1
        if 8 * <uint64_t>self.count < self.capacity and self.capacity > CAPACITY_KEPT:
            try:
                self.resize(self.capacity // 2)
            except MemoryError:
                pass
        if PYQD_DEBUG:
            self.check_often()
        return slot

    cdef int64_t take_old(self, uint64_t guid) noexcept:
        """Remove an id from the old array. Returns: its slot; -1 if it is absent."""
        cdef uint64_t index = probe(self.old_cells, self.old_capacity - 1, self.old_shift, guid)
        cdef int64_t slot = self.old_cells[index].slot
        if self.old_cells[index].guid == 0:
            return -1
        close_gap(self.old_cells, self.old_capacity - 1, self.old_shift, index)
        return slot

    cdef int clear(self) except -1:
        """Remove everything, and free the memory of a large table."""
        cdef Cell* cells = NULL
        self.count = 0
        self.drop_old()
        if self.capacity > CAPACITY_KEPT:
            cells = <Cell*>calloc(CAPACITY_MIN, sizeof(Cell))
        if cells == NULL:
            memset(self.cells, 0, self.capacity * sizeof(Cell))
        else:
            free_cells(self.cells, self.capacity)
            self.cells = cells
            self.capacity = CAPACITY_MIN
            self.shift = shift_of(CAPACITY_MIN)
        return 0

    cdef int resize(self, uint64_t capacity) except -1:
        """Begin to move all ids to a new array of that many cells. Raises: MemoryError (nothing changed)."""
        cdef Cell* cells
        assert capacity >= CAPACITY_MIN and capacity & (capacity - 1) == 0, "invariant 1"
        assert 2 * <uint64_t>self.count <= capacity, "invariant 2"
        cells = <Cell*>calloc(capacity, sizeof(Cell))
        if cells == NULL:
            raise MemoryError(f"not enough memory for a table of {capacity} message ids")
        if self.old_cells != NULL:
            self.move_some(self.old_capacity)
        self.old_cells, self.old_capacity, self.old_shift = self.cells, self.capacity, self.shift
        self.moved = 0
        self.cells = cells
        self.capacity = capacity
        self.shift = shift_of(capacity)
        if self.old_capacity <= self.copied_at_once_max:
            self.move_some(self.old_capacity)
        return 0

    cdef int move_some(self, uint64_t count) noexcept:
        """Move the ids in the next `count` cells of the old array, and in the cells up to an empty one."""
        cdef uint64_t index = self.moved
        cdef uint64_t guid
        while index < self.old_capacity:
            guid = self.old_cells[index].guid
            index += 1
            if guid == 0:
                if count == 0:
                    break
            elif home_of(guid, self.old_shift) < index:
                self.cells[probe(self.cells, self.capacity - 1, self.shift, guid)] = self.old_cells[index - 1]
            if count != 0:
                count -= 1
        self.moved = index
        if index == self.old_capacity:
            self.move_last()
        return 0

    cdef int move_last(self) noexcept:
        """Move the ids whose run goes around the end of the old array, and free that array."""
        cdef uint64_t index = 0
        cdef uint64_t guid
        while index < self.old_capacity and self.old_cells[index].guid != 0:
            guid = self.old_cells[index].guid
            if home_of(guid, self.old_shift) > index:
                self.cells[probe(self.cells, self.capacity - 1, self.shift, guid)] = self.old_cells[index]
            index += 1
        return self.drop_old()

    cdef int drop_old(self) noexcept:
        free_cells(self.old_cells, self.old_capacity)
        self.old_cells = NULL
        self.old_capacity = self.moved = 0
        return 0

    cdef int check(self) except -1:
        """Assert the invariants. Cost: O(capacity)."""
        cdef uint64_t index
        cdef uint64_t at
        cdef uint64_t mask = self.capacity - 1
        cdef uint32_t count = 0
        assert self.capacity >= CAPACITY_MIN and self.capacity & mask == 0, "invariant 1"
        assert <uint64_t>1 << (64 - self.shift) == self.capacity, "invariant 1"
        assert 2 * <uint64_t>self.count <= self.capacity, "invariant 2"
        for index in range(self.old_capacity):
            if self.old_cells[index].guid != 0 and self.is_old(self.old_cells[index].guid):
                count += 1
                at = home_of(self.old_cells[index].guid, self.old_shift)
                while at != index:
                    assert self.old_cells[at].guid != 0, "invariant 3"
                    at = (at + 1) & (self.old_capacity - 1)
        for index in range(self.capacity):
            if self.cells[index].guid == 0:
                continue
            count += 1
            assert not self.is_old(self.cells[index].guid), "an id is in the wrong array"
            at = home_of(self.cells[index].guid, self.shift)
            while at != index:
                assert self.cells[at].guid != 0, "invariant 3"
                assert self.cells[at].guid != self.cells[index].guid, "an id is there twice"
                at = (at + 1) & mask
        assert count == self.count, "count is wrong"
        return 0

    cdef int check_often(self) except -1:
        """Check at intervals that keep a debug build linear."""
        self.unchecked_count += 1
        if self.capacity <= CHECKED_CAPACITY_MAX or self.unchecked_count >= self.capacity:
            self.unchecked_count = 0
            self.check()
        return 0


@cython.final
cdef class IdMap:
    """An IdTable for Python."""

    cdef IdTable table

    def __cinit__(self):
        self.table = IdTable()

    def put(self, uint64_t guid, uint32_t slot):
        """Add an id. Raises: KeyError if it is there already, AssertionError for 0."""
        if not self.table.put(guid, slot):
            raise KeyError(guid)

    def get(self, uint64_t guid):
        """Return the slot of an id; -1 if it is absent."""
        return self.table.get(guid)
