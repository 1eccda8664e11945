# Set of the counters that came back: one bit per message published, so that losses and duplicates are facts, not
# differences of two totals (a loss and a duplicate would cancel out there).
#
# 1. unique = number of set bits; unique <= expected.
# 2. received = unique + duplicates + foreign.
# 3. losses = expected - unique.
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

cdef struct Tally:
    uint64_t* words           # bit n set: counter n was received; owned
    uint64_t expected         # counters 0 .. expected - 1 are ours
    uint64_t unique
    uint64_t duplicates
    uint64_t foreign          # counters that were never published here

cdef inline int tally_open(Tally* tally, uint64_t expected) noexcept nogil:
    tally.words = <uint64_t*>calloc(expected // 64 + 1, sizeof(uint64_t))
    tally.expected = expected
    tally.unique = tally.duplicates = tally.foreign = 0
    return 0 if tally.words != NULL else -1

cdef inline void tally_close(Tally* tally) noexcept nogil:
    free(tally.words)
    tally.words = NULL

cdef inline void tally_add(Tally* tally, uint64_t counter) noexcept nogil:
    cdef uint64_t bit = (<uint64_t>1) << (counter & 63)
    cdef uint64_t* word
    if counter >= tally.expected:
        tally.foreign += 1
        return
    word = &tally.words[counter >> 6]
    if word[0] & bit:
        tally.duplicates += 1
    else:
        word[0] |= bit
        tally.unique += 1
