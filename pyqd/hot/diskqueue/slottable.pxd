# Slots of the arena (pyx/diskqueue/arena.pyx): which are free, and the holder of each used one. All under the arena's
# lock.
#
# Slots are numbered and given out in ranges of 2**order, the lowest first and then those that were given back. A table
# of tables leads from a slot to its holder; its parts are allocated as slots are given out, as an arena may have 2**26.
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, realloc

cdef enum:
    ORDER_MAX = 17
    TABLE_SLOTS = 16384
    TABLE_COUNT = 4096
    SLOTS_MAX = TABLE_SLOTS * TABLE_COUNT

# Free ranges of 2**order slots, as their first slots.
cdef struct FreeRanges:
    uint64_t* slots
    uint64_t count
    uint64_t capacity

cdef struct ArenaSlots:
    uint64_t slots                       # that there are
    uint64_t used_slots                  # given out so far, from the first on
    void*** tables                       # by slot // TABLE_SLOTS, then by slot % TABLE_SLOTS
    FreeRanges[ORDER_MAX + 1] free_ranges

cdef inline bint prepare_slots(ArenaSlots* table) noexcept nogil:
    # Allocate the outer table; the caller sets `slots`. Returns: False without memory.
    table.tables = <void***> calloc(TABLE_COUNT, sizeof(void**))
    return table.tables != NULL

cdef inline void* holder_of(const ArenaSlots* table, uint64_t slot) noexcept nogil:
    if slot >= table.slots or table.tables[slot // TABLE_SLOTS] == NULL:
        return NULL
    return table.tables[slot // TABLE_SLOTS][slot % TABLE_SLOTS]

cdef inline void set_holder(ArenaSlots* table, uint64_t slot, uint8_t order, void* holder) noexcept nogil:
    cdef uint64_t at
    for at in range(slot, slot + (<uint64_t> 1 << order)):
        table.tables[at // TABLE_SLOTS][at % TABLE_SLOTS] = holder

cdef inline bint has_table(ArenaSlots* table, uint64_t slot) noexcept nogil:
    if table.tables[slot // TABLE_SLOTS] == NULL:
        table.tables[slot // TABLE_SLOTS] = <void**> calloc(TABLE_SLOTS, sizeof(void*))
    return table.tables[slot // TABLE_SLOTS] != NULL

cdef inline int64_t allocate_slots(ArenaSlots* table, uint8_t order) noexcept nogil:
    # Returns: the first of 2**order slots; -1 when there are no more, or no memory for their table.
    cdef FreeRanges* ranges = &table.free_ranges[order]
    cdef uint64_t slot = table.used_slots
    cdef uint64_t count = <uint64_t> 1 << order
    cdef uint64_t at = slot
    if ranges.count > 0:
        ranges.count -= 1
        return <int64_t> ranges.slots[ranges.count]
    if table.slots - table.used_slots < count:
        return -1
    while at < slot + count:
        if not has_table(table, at):
            return -1
        at += TABLE_SLOTS
    if not has_table(table, slot + count - 1):
        return -1
    table.used_slots += count
    return <int64_t> slot

cdef inline void free_slots(ArenaSlots* table, uint64_t slot, uint8_t order) noexcept nogil:
    # Make 2**order slots free again; without memory for the note they stay unused.
    cdef FreeRanges* ranges = &table.free_ranges[order]
    cdef uint64_t capacity
    cdef void* grown
    if ranges.count == ranges.capacity:
        capacity = max(<uint64_t> 64, 2 * ranges.capacity)
        grown = realloc(ranges.slots, capacity * sizeof(uint64_t))
        if grown == NULL:
            return
        ranges.slots = <uint64_t*> grown
        ranges.capacity = capacity
    ranges.slots[ranges.count] = slot
    ranges.count += 1
