from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.primitives.arrays cimport Array
from pyqd.hot.primitives.deadlines cimport DeadlineQueue
from pyqd.hot.primitives.idtable cimport IdTable
from pyqd.hot.wire.record cimport Record

cdef inline uint32_t fingerprint(uint64_t guid) noexcept nogil:
    # Return the fingerprint of a message id, by which searches distinguish ids without reading records.
    return <uint32_t> ((guid * <uint64_t> 0x9E3779B97F4A7C15) >> 32)

cdef enum:
    LOADED_AT_ONCE = 32                  # messages; processors wait for fewer loads at the same time

cdef struct Slot:
    const Record* record                 # stays mapped while the record is not finished
    int64_t delivered_ns                 # monotonic
    uint64_t consumer                    # number of the owner
    uint16_t attempts                    # deliveries, this one included
    uint32_t note                        # of the message; NO_NOTE: it has none

cdef struct ReadyEntry:
    const Record* record
    uint32_t fingerprint                 # of the message's id, so that a search need not read the records
    uint16_t attempts                    # deliveries so far
    uint32_t note                        # as of a Slot

cdef class SlotTable:
    cdef Slot* slots
    cdef uint32_t* free_slots            # stack of free indices
    cdef Array slots_memory
    cdef Array free_memory
    cdef uint32_t free_count
    cdef uint32_t capacity
    cdef IdTable ids                     # message id to slot
    cdef DeadlineQueue deadlines          # by slot; monotonic ns

    cdef inline uint32_t count(self) noexcept:
        return self.capacity - self.free_count

    cdef inline int64_t find(self, uint64_t guid) noexcept:
        # Return the slot of the message in flight with that id; negative: there is none.
        return self.ids.get(guid)

    cdef inline int64_t find_record(self, const Record* record) noexcept:
        # Return the slot of the very record; negative: it is not in flight.
        cdef int64_t slot = self.ids.get(record.guid)
        return slot if slot >= 0 and self.slots[slot].record == record else -1

    cdef inline const Slot* used(self, uint32_t slot) noexcept:
        # Return a slot below `capacity`; NULL: it is free.
        return &self.slots[slot] if self.deadlines.contains(slot) else NULL

    cdef inline int64_t deadline_of(self, uint32_t slot) noexcept:
        return self.deadlines.due_of(slot)

    cdef inline int64_t next_deadline(self) noexcept:
        # Return the earliest deadline; INT64_MAX: nothing is in flight.
        return self.deadlines.peek_due()

    cdef inline uint32_t next_slot(self) noexcept:
        return self.deadlines.peek_slot()

    cdef int load_slots_ahead(self, const uint64_t* guids, uint32_t count) noexcept
    cdef int add(
        self, const ReadyEntry* entry, uint64_t consumer, int64_t now_ns, int64_t deadline_ns) except -1
    cdef int remove(self, uint32_t slot) except -1
    cdef int clear(self) except -1
    cdef int grow(self) except -1

cdef class ReadyRing:
    cdef ReadyEntry* entries             # capacity is a power of two
    cdef Array memory
    cdef uint32_t capacity
    cdef uint32_t head                   # index of the oldest
    cdef uint32_t count
    cdef readonly uint64_t run           # the number it began with; that of no other ring
    cdef uint64_t first                  # number of the oldest; entries are numbered as they come

    cdef inline uint64_t end(self) noexcept:
        # Return the number behind the newest entry.
        return self.first + self.count

    cdef inline ReadyEntry* at(self, uint64_t number) noexcept:
        # Return the entry of a number in `[first, end)`.
        return &self.entries[(self.head + <uint32_t> (number - self.first)) & (self.capacity - 1)]

    cdef int push(self, const Record* record, uint16_t attempts, uint32_t note) except -1
    cdef ReadyEntry pop(self) noexcept
    cdef int remove(self, uint64_t number) except -1
    cdef int grow(self) except -1
    cdef int release(self) noexcept
    cdef int clear(self) except -1
