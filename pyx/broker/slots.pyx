"""Messages in flight, and messages that wait for redelivery, of one channel.

A message in flight is a C slot with its record, its time of delivery, its consumer and its attempts. It is found by its
id through a hash table (FIN, REQ, TOUCH) and ordered by deadline in a queue (timeouts). A message that waits
for redelivery is 24 bytes in a ring. Both point at records in mapped segments: the segment stays as long as a record in
it is unfinished.

Entries of the ring are numbered as they come and keep their numbers, with one exception. If an entry is taken out of
the middle, each one before it gets the number of the next. So a walk through the ring in slices, by number, misses
none.

Invariants: 1. A slot is on the stack of free ones, or in `ids` and in `deadlines`. 2. A ring's capacity is a power of
two. Memory is bounded by the clients' RDY, and for the ring by the messages they requeued.
"""

cimport cython
from libc.string cimport memcpy

from pyqd.hot.primitives.releases cimport array_release_later
from pyqd.hot.primitives.arrays cimport array_release, array_reserve, load_ahead
from pyqd.hot.primitives.debug cimport debug_require

cdef enum:
    SLOTS_MIN = 16
    RING_MIN = 16


@cython.final
cdef class SlotTable:
    """The messages of one channel that are in flight."""

    def __cinit__(self):
        self.ids = IdTable()
        self.deadlines = DeadlineQueue()

    def __dealloc__(self):
        array_release(&self.slots_memory)
        array_release(&self.free_memory)

    cdef int grow(self) except -1:
        cdef uint32_t capacity = max(<uint32_t> SLOTS_MIN, 2 * self.capacity)
        cdef uint32_t slot
        assert self.free_count == 0, "a free slot would be on the stack twice"
        if array_reserve(&self.slots_memory, <size_t> capacity * sizeof(Slot)) != 0:
            raise MemoryError
        self.slots = <Slot*> self.slots_memory.base
        if array_reserve(&self.free_memory, <size_t> capacity * sizeof(uint32_t)) != 0:
            raise MemoryError
        self.free_slots = <uint32_t*> self.free_memory.base
        self.deadlines.reserve(capacity)
        for slot in range(capacity, self.capacity, -1):
            self.free_slots[self.free_count] = slot - 1
            self.free_count += 1
        self.capacity = capacity
        return 0

    cdef int load_slots_ahead(self, const uint64_t* guids, uint32_t count) noexcept:
        """Load what finishing up to LOADED_AT_ONCE messages reads, so that the loads run at the same time.

        One after the other, the loads from tables that have left the cache take most of the time of a FIN.
        """
        cdef int64_t[LOADED_AT_ONCE] found
        cdef uint32_t index
        debug_require(count <= LOADED_AT_ONCE)
        for index in range(count):
            self.ids.load_cell_ahead(guids[index])
        for index in range(count):
            found[index] = self.ids.get(guids[index])
            if found[index] >= 0:
                load_ahead(&self.slots[found[index]])
                load_ahead(&self.deadlines.index_of[found[index]])
        for index in range(count):
            if found[index] >= 0:
                load_ahead(self.slots[found[index]].record)
        return 0

    cdef int add(
        self, const ReadyEntry* entry, uint64_t consumer, int64_t now_ns, int64_t deadline_ns,
    ) except -1:
        """Add a message that is delivered once more. Returns: 1; 0 if its id is in flight already (nothing changed).

        Raises: MemoryError (nothing changed).
        """
        cdef uint32_t slot
        if self.free_count == 0:
            self.grow()
        slot = self.free_slots[self.free_count - 1]
        if not self.ids.put(entry.record.guid, slot):
            return 0
        self.deadlines.push(slot, deadline_ns)
        self.free_count -= 1
        self.slots[slot] = Slot(
            record=entry.record, delivered_ns=now_ns, consumer=consumer, attempts=entry.attempts + 1,
            note=entry.note)
        return 1

    cdef int remove(self, uint32_t slot) except -1:
        cdef int64_t found
        debug_require(slot < self.capacity)
        debug_require(self.deadlines.contains(slot))
        self.deadlines.remove(slot)
        found = self.ids.take(self.slots[slot].record.guid)
        assert found == slot, "the id of a message in flight leads to another slot"
        self.free_slots[self.free_count] = slot
        self.free_count += 1
        return 0

    cdef int clear(self) except -1:
        self.ids.clear()
        self.deadlines.clear()
        array_release_later(&self.slots_memory)
        array_release_later(&self.free_memory)
        self.slots = NULL
        self.free_slots = NULL
        self.capacity = 0
        self.free_count = 0
        return 0


@cython.final
cdef class ReadyRing:
    """The records of one channel that wait to be delivered again, oldest first."""

    def __dealloc__(self):
        array_release(&self.memory)

    cdef int push(self, const Record* record, uint16_t attempts, uint32_t note) except -1:
        """Append an entry. Raises: MemoryError (nothing changed)."""
        debug_require(record != NULL)
        if self.count == self.capacity:
            self.grow()
        self.entries[(self.head + self.count) & (self.capacity - 1)] = ReadyEntry(
            record=record, fingerprint=fingerprint(record.guid), attempts=attempts, note=note)
        self.count += 1
        return 0

    cdef ReadyEntry pop(self) noexcept:
        """Take the oldest entry; the ring is not empty."""
        cdef ReadyEntry entry = self.entries[self.head]
        debug_require(self.count != 0)
        self.head = (self.head + 1) & (self.capacity - 1)
        self.count -= 1
        self.first += 1
        if self.count == 0 and self.capacity > 4096:
            self.release()
        return entry

    cdef int remove(self, uint64_t number) except -1:
        """Take an entry out, wherever it is. Cost: O(entries before it)."""
        assert self.first <= number < self.first + self.count
        while number > self.first:
            self.at(number)[0] = self.at(number - 1)[0]
            number -= 1
        self.pop()
        return 0

    cdef int grow(self) except -1:
        """Reserve memory for twice as many entries. Of a ring that has wrapped, the shorter part is moved."""
        cdef uint32_t former = self.capacity
        cdef uint32_t capacity = max(<uint32_t> RING_MIN, 2 * former)
        cdef uint32_t wrapped
        assert self.count == former, "only a full ring grows"
        if array_reserve(&self.memory, <size_t> capacity * sizeof(ReadyEntry)) != 0:
            raise MemoryError
        self.entries = <ReadyEntry*> self.memory.base
        self.capacity = capacity
        wrapped = self.head + self.count - former if self.head + self.count > former else 0
        if wrapped == 0:
            return 0
        if wrapped <= former - self.head:
            memcpy(self.entries + former, self.entries, wrapped * sizeof(ReadyEntry))
        else:
            memcpy(
                self.entries + capacity - (former - self.head), self.entries + self.head,
                (former - self.head) * sizeof(ReadyEntry))
            self.head = capacity - (former - self.head)
        return 0

    cdef int release(self) noexcept:
        array_release_later(&self.memory)
        self.entries = NULL
        self.capacity = 0
        self.head = 0
        return 0

    cdef int clear(self) except -1:
        self.release()
        self.first += self.count
        self.count = 0
        return 0
