# Exceptions of a ledger: the unfinished records below its window. Inline functions over the owner's memory, a file.
#
# Ascending ordinals, written once. A record that is finished later gets FINISHED_SINCE set in its place, by one store,
# so a kill leaves the list right. The struct counts the open ones, those without the flag.
#
# Arguments `start` and `end` name records by their ordinals, which are below 2**63.

from libc.stdint cimport uint64_t

from pyqd.hot.primitives.debug cimport debug_require

cdef extern from *:
    """
    #define PYQD_FINISHED_SINCE (1ULL << 63)
    #define PYQD_NONE_OPEN (~0ULL)
    """
    const uint64_t FINISHED_SINCE "PYQD_FINISHED_SINCE"
    # `oldest` if no exception is open: above all ordinals.
    const uint64_t NONE_OPEN "PYQD_NONE_OPEN"

cdef struct Exceptions:
    uint64_t* ordinals
    uint64_t count
    uint64_t open_from                   # index of the first open one; count: none is open
    uint64_t open_count
    uint64_t oldest                      # ordinal of the first open one, or NONE_OPEN


cdef inline bint are_ascending(const uint64_t* ordinals, uint64_t count) noexcept nogil:
    cdef uint64_t index
    for index in range(1, count):
        if ordinals[index - 1] & ~FINISHED_SINCE >= ordinals[index] & ~FINISHED_SINCE:
            return False
    return True


cdef inline void find_oldest(Exceptions* found) noexcept nogil:
    # Advance `open_from` to the first open exception. Cost: O(finished ones passed), once for each.
    while found.open_from < found.count and found.ordinals[found.open_from] & FINISHED_SINCE:
        found.open_from += 1
    found.oldest = found.ordinals[found.open_from] if found.open_from < found.count else NONE_OPEN


cdef inline void use_exceptions(Exceptions* found, uint64_t* ordinals, uint64_t count) noexcept nogil:
    # Continue with a list. Cost: O(count).
    cdef uint64_t index
    found.ordinals = ordinals
    found.count = count
    found.open_from = 0
    found.open_count = 0
    for index in range(count):
        found.open_count += not ordinals[index] & FINISHED_SINCE
    find_oldest(found)


cdef inline uint64_t index_from(const Exceptions* found, uint64_t ordinal) noexcept nogil:
    # Return the index of the first exception from `open_from` on that is not below an ordinal. Cost: O(log count).
    cdef uint64_t low = found.open_from
    cdef uint64_t high = found.count
    cdef uint64_t middle
    while low < high:
        middle = low + (high - low) // 2
        if found.ordinals[middle] & ~FINISHED_SINCE < ordinal:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline bint is_exception(const Exceptions* found, uint64_t ordinal) noexcept nogil:
    # Return True if a record is an open exception.
    cdef uint64_t index
    if ordinal < found.oldest:
        return False
    index = index_from(found, ordinal)
    return index < found.count and found.ordinals[index] == ordinal


cdef inline uint64_t count_exceptions(const Exceptions* found, uint64_t start, uint64_t end) noexcept nogil:
    # Count the open exceptions of [start, end). Cost: O(exceptions there).
    cdef uint64_t index, count = 0
    if end <= found.oldest:
        return 0
    for index in range(index_from(found, start), index_from(found, end)):
        count += not found.ordinals[index] & FINISHED_SINCE
    return count


cdef inline uint64_t finish_exceptions(Exceptions* found, uint64_t start, uint64_t end) noexcept nogil:
    # Finish the exceptions of [start, end). Returns: the number of those that were open. Cost: O(exceptions there).
    cdef uint64_t index, count = 0
    debug_require(start <= end)
    for index in range(index_from(found, start), index_from(found, end)):
        if not found.ordinals[index] & FINISHED_SINCE:
            found.ordinals[index] |= FINISHED_SINCE
            count += 1
    found.open_count -= count
    find_oldest(found)
    return count
