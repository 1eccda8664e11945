"""Ring bitmap functions of the `.pxd`, shown to Python for tests.

Theory. A channel finishes messages out of order. Finished messages are ones in an endless row of bits, of which only a
window between the oldest unfinished and the newest message matters. The window lives in a ring of 64-bit words: bit i
of the row is bit i % 64 of word (i % capacity_bits) / 64. The window may wrap around the end and need not begin at a
word.

Invariants
1. capacity_bits is a power of two and at least 64; so i % 64 is the same in rings of any size, and growing is a copy
   of whole words with masks at both ends.
2. A window is at most capacity_bits long. When it is exactly that long and does not begin at a word, its first and its
   last word are the same one; each function masks each visit, so that the two parts do not disturb each other.

Bits outside the window have no meaning: the owner clears those that enter it.

The functions are free and inline, over the owner's memory: a malloc'ed block or a mapped page of the ledger. All but
ring_copy pass over the words once and touch nothing outside of [start, end).
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free


@cython.final
cdef class Ring:
    """Ring of capacity_bits bits; misuse raises ValueError instead of corrupting.

    capacity_bits: a power of two, 64 or more. All positions are positions in the endless row.
    """

    cdef uint64_t* words
    cdef readonly uint64_t capacity_bits

    def __cinit__(self, uint64_t capacity_bits):
        self.words = NULL
        self.capacity_bits = capacity_bits
        if not is_ring_range(capacity_bits, 0, 0):
            raise ValueError(f"invalid capacity of {capacity_bits} bits: give a power of two, 64 or more")
        self.words = <uint64_t*>calloc(capacity_bits // 64, sizeof(uint64_t))
        if self.words == NULL:
            raise MemoryError(f"not enough memory for a bitmap of {capacity_bits} bits")

    def __dealloc__(self):
        free(self.words)

    cdef int require_range(self, uint64_t start, uint64_t end) except -1:
        if not is_ring_range(self.capacity_bits, start, end):
            raise ValueError(f"[{start}, {end}) must be a range of at most {self.capacity_bits} bits")
        return 0

    def set(self, uint64_t position):
        """Set one bit."""
        ring_set(self.words, self.capacity_bits, position)

    def clear(self, uint64_t position):
        """Clear one bit."""
        ring_clear(self.words, self.capacity_bits, position)

    def test(self, uint64_t position):
        """Return whether a bit is 1."""
        return bool(ring_test(self.words, self.capacity_bits, position))

    def next_one(self, uint64_t start, uint64_t end):
        """Return the first position in [start, end) with a one; end if there is none."""
        self.require_range(start, end)
        return ring_next_one(self.words, self.capacity_bits, start, end)

    def next_zero(self, uint64_t start, uint64_t end):
        """Return the first position in [start, end) with a zero; end if there is none."""
        self.require_range(start, end)
        return ring_next_zero(self.words, self.capacity_bits, start, end)

    def run_of_ones(self, uint64_t start, uint64_t end):
        """Return the number of consecutive ones from start on, at most end - start."""
        self.require_range(start, end)
        return ring_run_of_ones(self.words, self.capacity_bits, start, end)

    def set_range(self, uint64_t start, uint64_t end):
        """Set the bits of [start, end)."""
        self.require_range(start, end)
        ring_set_range(self.words, self.capacity_bits, start, end)

    def clear_range(self, uint64_t start, uint64_t end):
        """Clear the bits of [start, end)."""
        self.require_range(start, end)
        ring_clear_range(self.words, self.capacity_bits, start, end)

    def count(self, uint64_t start, uint64_t end):
        """Return the number of ones in [start, end)."""
        self.require_range(start, end)
        return ring_count(self.words, self.capacity_bits, start, end)

    def copied(self, uint64_t capacity_bits, uint64_t start, uint64_t end):
        """Return a Ring of another capacity with the bits of [start, end), and zeros elsewhere."""
        cdef Ring target = Ring(capacity_bits)
        self.require_range(start, end)
        target.require_range(start, end)
        # Ones everywhere, so that a word which ring_copy does not write is noticed.
        ring_set_range(target.words, capacity_bits, 0, capacity_bits)
        ring_copy(self.words, self.capacity_bits, target.words, capacity_bits, start, end)
        return target
