# Window of an endless row of bits: inline functions over the owner's memory, a mapped page of the ledger.
#
# A channel finishes messages out of order. Finished messages are ones in an endless row of bits, of which only a window
# between the oldest unfinished and the newest message matters. The window lies in 64-bit words, around their end: bit i
# of the row is bit i % 64 of word (i % capacity_bits) / 64.
#
# Arguments of all functions: `words` has capacity_bits / 64 words; capacity_bits is a power of two, at least 64. Bits
# are named by their position in the endless row, 0 to 2**63. [start, end) is at most capacity_bits long, start <= end.
# If it is exactly that long and does not begin at a word, its first and its last word are the same one; each function
# masks each visit. Bits outside the window have no meaning: the owner clears those that enter it.
#
# i % 64 is the same for any capacity, so growing is a copy of whole words with masks at both ends.

from libc.stdint cimport uint64_t
from libc.string cimport memset

from pyqd.hot.primitives.debug cimport debug_require

cdef extern from *:
    """
    #define PYQD_ALL_ONES (~0ULL)
    #define PYQD_ONE_BIT(position) (1ULL << ((position) & 63))
    """
    const uint64_t ALL_ONES "PYQD_ALL_ONES"
    # The bit of a position within its word.
    uint64_t one_bit "PYQD_ONE_BIT" (uint64_t position) noexcept nogil
    # Index of the lowest one bit; word is not 0.
    int lowest_one "__builtin_ctzll" (uint64_t word) noexcept nogil
    int count_ones "__builtin_popcountll" (uint64_t word) noexcept nogil


cdef inline bint is_window(uint64_t capacity_bits, uint64_t start, uint64_t end) noexcept nogil:
    return (
        capacity_bits >= 64 and capacity_bits & (capacity_bits - 1) == 0
        and start <= end and end - start <= capacity_bits
    )


cdef inline uint64_t window_word(uint64_t capacity_bits, uint64_t position) noexcept nogil:
    # Return the index of the word that holds a position.
    return (position & (capacity_bits - 1)) >> 6


cdef inline uint64_t window_mask(uint64_t start, uint64_t end) noexcept nogil:
    # Return the bits of [start, end) in the word of `start`; start < end.
    cdef uint64_t mask = ALL_ONES << (start & 63)
    if end - (start & ~<uint64_t>63) < 64:
        mask &= one_bit(end) - 1
    return mask


cdef inline uint64_t window_after_word(uint64_t position) noexcept nogil:
    # Return the first position of the next word.
    return (position | 63) + 1


cdef inline void window_set(uint64_t* words, uint64_t capacity_bits, uint64_t position) noexcept nogil:
    words[window_word(capacity_bits, position)] |= one_bit(position)


cdef inline bint window_test(const uint64_t* words, uint64_t capacity_bits, uint64_t position) noexcept nogil:
    return words[window_word(capacity_bits, position)] >> (position & 63) & 1


cdef inline uint64_t window_next_one(
    const uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end
) noexcept nogil:
    # Return the first position of [start, end) whose bit is 1; end if there is none.
    cdef uint64_t rest
    debug_require(is_window(capacity_bits, start, end))
    while start < end:
        rest = words[window_word(capacity_bits, start)] >> (start & 63)
        if rest:
            start += <uint64_t>lowest_one(rest)
            return start if start < end else end
        start = window_after_word(start)
    return end


cdef inline uint64_t window_next_zero(
    const uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end
) noexcept nogil:
    # Return the first position of [start, end) whose bit is 0; end if there is none.
    cdef uint64_t rest
    debug_require(is_window(capacity_bits, start, end))
    while start < end:
        rest = ~words[window_word(capacity_bits, start)] >> (start & 63)
        if rest:
            start += <uint64_t>lowest_one(rest)
            return start if start < end else end
        start = window_after_word(start)
    return end


cdef inline uint64_t window_run_of_ones(
    const uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end
) noexcept nogil:
    # Return the number of consecutive ones from start on, at most end - start.
    return window_next_zero(words, capacity_bits, start, end) - start


cdef inline void window_set_range(uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end) noexcept nogil:
    debug_require(is_window(capacity_bits, start, end))
    while start < end:
        words[window_word(capacity_bits, start)] |= window_mask(start, end)
        start = window_after_word(start)


cdef inline void window_clear_range(
    uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end
) noexcept nogil:
    debug_require(is_window(capacity_bits, start, end))
    while start < end:
        words[window_word(capacity_bits, start)] &= ~window_mask(start, end)
        start = window_after_word(start)


cdef inline uint64_t window_count(
    const uint64_t* words, uint64_t capacity_bits, uint64_t start, uint64_t end
) noexcept nogil:
    # Return the number of ones in [start, end).
    cdef uint64_t count = 0
    debug_require(is_window(capacity_bits, start, end))
    while start < end:
        count += <uint64_t>count_ones(words[window_word(capacity_bits, start)] & window_mask(start, end))
        start = window_after_word(start)
    return count


cdef inline void window_copy(
    const uint64_t* source, uint64_t source_capacity_bits,
    uint64_t* target, uint64_t target_capacity_bits,
    uint64_t start, uint64_t end,
) noexcept nogil:
    # Copy [start, end) of `source` to `target`, and clear all other bits. The two do not overlap in memory.
    memset(target, 0, target_capacity_bits >> 3)
    window_add(source, source_capacity_bits, target, target_capacity_bits, start, end)

cdef inline void window_add(
    const uint64_t* source, uint64_t source_capacity_bits,
    uint64_t* target, uint64_t target_capacity_bits,
    uint64_t start, uint64_t end,
) noexcept nogil:
    # Set the ones in [start, end) of `source` in `target` as well. The two do not overlap in memory.
    debug_require(is_window(source_capacity_bits, start, end))
    debug_require(is_window(target_capacity_bits, start, end))
    while start < end:
        target[window_word(target_capacity_bits, start)] |= (
            source[window_word(source_capacity_bits, start)] & window_mask(start, end)
        )
        start = window_after_word(start)
