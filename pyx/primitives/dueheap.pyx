"""Binary heap of due times, 16 bytes for each: for up to millions of messages that wait.

An entry cannot be found or removed but as the least one: that would take an index by reference. The owner of an entry
that does not count any more leaves it, and drops it when it is popped.

The memory doubles up to 1 MiB, and then grows by an eighth at a time, which moves no entries: so a large heap has 18
bytes for an entry at most. An empty one keeps 64 KiB.

Invariants: 1. no entry is less than its parent, by (due_ns, ref). 2. the memory has space for `count` entries.
"""

cimport cython

from pyqd.hot.primitives.arrays cimport ARRAY_MAPPED_MIN, array_release, array_reserve
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport array_release_later

cdef enum:
    ENTRIES_MIN = 64
    KEPT_BYTES = 64 << 10

assert sizeof(DueEntry) == 16


@cython.final
cdef class DueHeap:
    """Heap of (due time, reference); of equal times the lesser reference comes first."""

    def __dealloc__(self):
        array_release(&self.memory)

    cdef int reserve(self, uint64_t count) except -1:
        """Reserve memory for so many more entries. Raises: MemoryError (nothing changed)."""
        cdef uint64_t capacity = self.memory.bytes // sizeof(DueEntry)
        if self.count + count > capacity:
            capacity += max(
                <uint64_t> ENTRIES_MIN, capacity // 8 if self.memory.bytes >= ARRAY_MAPPED_MIN else capacity)
            if array_reserve(&self.memory, max(self.count + count, capacity) * sizeof(DueEntry)) != 0:
                raise MemoryError(f"not enough memory for {self.count + count} due times")
            self.entries = <DueEntry*> self.memory.base
        return 0

    cdef uint64_t pop(self) noexcept:
        """Remove the least entry, which there is. Returns: its reference. Cost: O(log count)."""
        cdef DueEntry* entries = self.entries
        cdef uint64_t ref = entries[0].ref
        cdef uint64_t index = 0
        cdef uint64_t child = 1
        cdef uint64_t last = self.count - 1
        debug_require(self.count > 0)
        self.count = last
        if last == 0:
            self.clear()
            return ref
        while child < last:
            if child + 1 < last:
                child += precedes(&entries[child + 1], &entries[child])
            if not precedes(&entries[child], &entries[last]):
                break
            entries[index] = entries[child]
            index = child
            child = 2 * index + 1
        entries[index] = entries[last]
        return ref

    cdef void clear(self) noexcept:
        """Remove all entries, and free the memory if it is large."""
        self.count = 0
        if self.memory.bytes > KEPT_BYTES:
            array_release_later(&self.memory)
            self.entries = NULL

    cdef int check(self) except -1:
        """Assert the invariants. Cost: O(count)."""
        cdef uint64_t index
        assert self.count * sizeof(DueEntry) <= self.memory.bytes, "invariant 2"
        assert self.entries == <DueEntry*> self.memory.base, "invariant 2"
        for index in range(1, self.count):
            assert not precedes(&self.entries[index], &self.entries[(index - 1) >> 1]), "invariant 1"
        return 0
