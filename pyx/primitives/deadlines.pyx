"""Queue of the deadlines of messages in flight: a ring of those that come in order, and a heap of the others.

A delivery's deadline is now + a fixed timeout, so nearly every deadline is the latest, and nearly every one is removed
before it is due. A heap does the first at once; a removal near its root walks down all levels, through memory that has
left the cache if there are thousands of entries. It took a tenth of the time of a message with sixteen channels.

    ring      [ . | due, slot | dropped | due, slot | ... ]      by deadline, from `head` on
    index_of  [ i | ABSENT | ... ]                               by slot
    heap      deadlines earlier than the latest in the ring: after a TOUCH, and of clients with shorter timeouts

A removal from the ring stores one word in `index_of`: an entry is dropped if its slot's index is not its own. Dropped
entries leave when they come to the head, or when the ring is full and is copied without them. So the cost is amortised
O(1), and a message that stays in flight for long holds no more than a ring of dropped entries.

The ring has twice as many entries as there are slots, up to RING_MAX. If most of a full ring is kept, further deadlines
go to the heap.

Invariants
    1. ring[head : head + used] is ordered by due_ns.
    2. A slot is in the ring, in the heap, or in neither; `kept` counts the entries of the ring that are not dropped.
"""

cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from pyqd.hot.primitives.arrays cimport array_release, array_reserve
from pyqd.hot.primitives.debug cimport PYQD_DEBUG, debug_require

cdef enum:
    RING_MIN = 32
    CHECKED_SLOT_COUNT_MAX = 64


@cython.final
cdef class DeadlineQueue:
    """Queue of slots ordered by deadline; empty and without slots until `reserve`."""

    def __cinit__(self):
        self.heap = DeadlineHeap()

    def __dealloc__(self):
        free(self.ring)
        array_release(&self.index_memory)

    cdef int reserve(self, uint32_t slot_count) except -1:
        """Make slots 0 to slot_count - 1 usable. Cost: O(slot_count). Raises: MemoryError."""
        cdef uint32_t size = max(self.ring_size, <uint32_t> RING_MIN)
        cdef uint32_t slot
        if slot_count <= self.slot_count_max:
            return 0
        self.heap.reserve(slot_count)
        if array_reserve(&self.index_memory, <size_t> slot_count * sizeof(uint32_t)) != 0:
            raise MemoryError(f"not enough memory for {slot_count} deadlines")
        self.index_of = <uint32_t*> self.index_memory.base
        while size < 2 * <size_t> slot_count and size < RING_MAX:
            size *= 2
        if size != self.ring_size and not self.copy_ring(size):
            raise MemoryError(f"not enough memory for {slot_count} deadlines")
        for slot in range(self.slot_count_max, slot_count):
            self.index_of[slot] = ABSENT
        self.slot_count_max = slot_count
        return 0

    cdef bint copy_ring(self, uint32_t size) noexcept:
        """Copy the entries that are not dropped to a ring of this size. Returns: False without memory (no change)."""
        cdef Entry* to = <Entry*> malloc(size * sizeof(Entry))
        cdef uint32_t count = 0
        cdef uint32_t index, number
        if to == NULL:
            return False
        for number in range(self.used):
            index = (self.head + number) & (self.ring_size - 1)
            if self.index_of[self.ring[index].slot] == index:
                to[count] = self.ring[index]
                self.index_of[to[count].slot] = count
                count += 1
        debug_require(count == self.kept)
        free(self.ring)
        self.ring = to
        self.ring_size = size
        self.head = 0
        self.used = count
        return True

    cdef int push(self, uint32_t slot, int64_t due_ns) except -1:
        """Add a slot. Cost: amortised O(1) for a deadline that is not before the latest; else O(log count)."""
        cdef uint32_t last
        assert slot < self.slot_count_max, "the slot is not reserved"
        assert not self.contains(slot), "the slot waits already"
        if self.used == self.ring_size and 2 * self.kept <= self.ring_size:
            self.copy_ring(self.ring_size)
        last = (self.head + self.used - 1) & (self.ring_size - 1)
        if self.used == self.ring_size or (self.used != 0 and due_ns < self.ring[last].due_ns):
            return self.heap.push(slot, due_ns)
        last = (self.head + self.used) & (self.ring_size - 1)
        self.ring[last] = Entry(due_ns=due_ns, slot=slot)
        self.index_of[slot] = last
        self.used += 1
        self.kept += 1
        if PYQD_DEBUG and self.slot_count_max <= CHECKED_SLOT_COUNT_MAX:
            self.check()
        return 0

    cdef int update(self, uint32_t slot, int64_t due_ns) except -1:
        self.remove(slot)
        return self.push(slot, due_ns)

    cdef int remove(self, uint32_t slot) except -1:
        """Remove a slot that waits. Cost: O(1) for a slot in the ring; else O(log count)."""
        if not self.is_in_ring(slot):
            return self.heap.remove(slot)
        self.index_of[slot] = ABSENT
        self.kept -= 1
        if self.kept == 0:
            # The next deadline may be any.
            self.head = self.used = 0
        return 0

    cdef int clear(self) noexcept:
        self.heap.clear()
        memset(self.index_of, 0xff, self.slot_count_max * sizeof(uint32_t))
        self.head = self.used = self.kept = 0
        return 0

    cdef int check(self) except -1:
        """Assert the invariants. Cost: O(slot_count_max)."""
        cdef uint32_t index, number, slot
        cdef uint32_t kept = 0
        cdef int64_t before_ns = -INT64_MAX - 1
        for number in range(self.used):
            index = (self.head + number) & (self.ring_size - 1)
            slot = self.ring[index].slot
            assert slot < self.slot_count_max and before_ns <= self.ring[index].due_ns, "invariant 1"
            before_ns = self.ring[index].due_ns
            kept += self.index_of[slot] == index
            assert self.index_of[slot] == <uint32_t> ABSENT or not self.heap.contains(slot), "invariant 2"
        assert kept == self.kept, "invariant 2"
        return self.heap.check()
