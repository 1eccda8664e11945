"""A channel's parked messages: deferred by the publisher, or requeued with a delay.

They have left the order of the topic's log, so they get a log of their own, one per channel and made when first
needed, with their due times in the records. In memory each is a slot: the record's address and a place in a heap by
due time, 28 bytes. A parked message that is due, delivered and requeued once more is a new record; the old one is
finished. Restarting reads the log back; that is how a due time outlives the process.

Invariants: 1. a slot is free, or its record waits in `dues` and is not finished. 2. the ledger's cursor stands at the
log's end: everything is handed out to `dues` at once.
"""

cimport cython
from libc.stdlib cimport free, realloc

from pyqd.hot.heap cimport DeadlineHeap
from pyqd.hot.record cimport record_body, record_ordinal, record_span
from pyqd.hot.segment cimport SEGMENT_HEADER_BYTES, Segment

cdef enum:
    SLOTS_MIN = 16


@cython.final
cdef class Parked:
    """The parked log of one channel with its ledger and its heap of due times."""

    def __init__(self, Log log not None, Ledger ledger not None):
        self.log = log
        self.ledger = ledger
        self.dues = DeadlineHeap()
        ledger.clamp(log.first.first_ordinal, log.end)
        for hole in log.holes:
            ledger.finish_range(hole[0], hole[1])
        ledger.header.cursor = log.end
        ledger.count_ahead()
        ledger.absorb()
        self.wait_for_unfinished()
        log.trim(ledger.header.floor)

    def __dealloc__(self):
        free(self.records)
        free(self.free_slots)

    def wait_for_unfinished(self):
        """Put every record that is not finished back under its due time. Cost: O(records kept)."""
        cdef Segment segment = self.log.segment_of(self.ledger.header.floor)
        cdef uint64_t offset
        cdef const Record* record
        while segment is not None:
            offset = SEGMENT_HEADER_BYTES
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                if not self.ledger.is_finished(record_ordinal(record)):
                    self.wait_for(record)
                offset += record_span(record.size_bytes)
            segment = segment.next

    cdef int grow(self) except -1:
        cdef uint32_t capacity = max(<uint32_t> SLOTS_MIN, 2 * self.capacity)
        cdef uint32_t slot
        cdef void* grown = realloc(self.records, capacity * sizeof(Record*))
        if grown == NULL:
            raise MemoryError
        self.records = <const Record**> grown
        grown = realloc(self.free_slots, capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError
        self.free_slots = <uint32_t*> grown
        self.dues.reserve(capacity)
        for slot in range(capacity, self.capacity, -1):
            self.free_slots[self.free_count] = slot - 1
            self.free_count += 1
        self.capacity = capacity
        return 0

    cdef int wait_for(self, const Record* record) except -1:
        cdef uint32_t slot
        if self.free_count == 0:
            self.grow()
        slot = self.free_slots[self.free_count - 1]
        self.dues.push(slot, record.due_ns)
        self.free_count -= 1
        self.records[slot] = record
        return 0

    cdef int prepare(self, uint64_t span_bytes) except -1:
        """Make room so that parking a record cannot fail. Raises: StorageError, MemoryError (nothing changed)."""
        if self.free_count == 0:
            self.grow()
        self.log.reserve(span_bytes)
        return 0

    cdef int park(self, const Record* record, uint16_t attempts, int64_t due_ns) except -1:
        """Copy a record here, due at `due_ns` (Unix). Raises: StorageError, MemoryError (nothing is parked)."""
        cdef const char* at
        if self.free_count == 0:
            self.grow()
        at = self.log.append(
            record.guid, record.timestamp_ns, due_ns, attempts, record_body(record), record.size_bytes)
        self.ledger.hand_out()
        self.wait_for(<const Record*> at)
        return 0

    cdef const Record* pop_due(self, int64_t wall_now_ns) except? NULL:
        """Take the record that is due first, if it is due. Returns: NULL when none is."""
        cdef uint32_t slot
        if self.dues.peek_due() > wall_now_ns:
            return NULL
        slot = self.dues.peek_slot()
        return self.take(slot)

    cdef const Record* take(self, uint32_t slot) except NULL:
        """Take the record of a slot out of `dues`, whether it is due or not."""
        self.dues.remove(slot)
        self.free_slots[self.free_count] = slot
        self.free_count += 1
        return self.records[slot]

    cdef int finish(self, const Record* record) except -1:
        """Finish a record that was due and delivered, or parked anew."""
        self.ledger.finish(record_ordinal(record))
        self.log.trim(self.ledger.header.floor)
        return 0

    cdef int clear(self) except -1:
        """Drop everything that is parked or came from here."""
        free(self.records)
        free(self.free_slots)
        self.records = NULL
        self.free_slots = NULL
        self.capacity = 0
        self.free_count = 0
        self.dues.clear()
        self.ledger.reset(self.log.end)
        self.log.trim(self.log.end)
        return 0
