"""One mapped file of a log: a header of 128 bytes, then records back to back.

A file is a *spare* (number 0), *open* (the log's last, records are appended), or *sealed* (its end and count stand in
the header, so a start need not walk it). Its name says nothing; the number in the header gives its place in the log.
So a drained file becomes the next segment by one store of its header, with no rename on the loop.

Invariants:
1. `SEGMENT_HEADER_BYTES <= tail <= capacity_bytes`, and `tail` is a multiple of 8.
2. Records `first_ordinal ... first_ordinal + count - 1` lie below `tail`, dense and in order.
3. `next` is None or begins at `end_ordinal()` or later (later only behind a recorded hole).
"""

cimport cython

from pyqd.hot.crc32c cimport crc32c
from pyqd.hot.mapping cimport store_barrier
from pyqd.hot.record cimport (
    ORDINAL_BITS,
    RECORD_ALIGN_BYTES,
    RECORD_DAMAGED,
    RECORD_VALID,
    Record,
    record_span,
    record_verdict,
)

from pyqd.primitives.errors import CorruptionError

cdef uint64_t MAGIC = 0x474553_44515950          # "PYQDSEG\0", little-endian

assert sizeof(SegmentHeader) <= SEGMENT_HEADER_BYTES
assert SEGMENT_HEADER_BYTES % RECORD_ALIGN_BYTES == 0


cdef uint32_t header_checksum(const SegmentHeader* header, uint64_t number) noexcept:
    cdef uint64_t[3] parts
    parts[0] = number
    parts[1] = header.first_seq
    parts[2] = <uint64_t> header.created_ns
    return crc32c(header.version, parts, sizeof(parts))


@cython.final
cdef class Segment:
    """A segment over a mapping, which it keeps. Source: docs/storage.md, "Segment"."""

    def __init__(self, Mapping mapping not None):
        if mapping.size_bytes <= SEGMENT_HEADER_BYTES:
            raise CorruptionError(mapping.path or "memory", 0, "shorter than a segment's header")
        self.mapping = mapping
        self.base = mapping.base
        self.capacity_bytes = mapping.size_bytes
        self.tail = SEGMENT_HEADER_BYTES

    cdef int begin(self, uint64_t number, uint64_t first_seq, int64_t created_ns) except -1:
        """Make a spare the log's last segment."""
        cdef SegmentHeader* header = self.header()
        assert number > 0 and self.number == 0
        header.number = 0
        store_barrier()
        header.magic = MAGIC
        header.version = SEGMENT_VERSION
        header.first_seq = first_seq
        header.created_ns = created_ns
        header.sealed_count = 0
        header.sealed_bytes = 0
        header.synced_bytes = 0
        # The walk of recovery starts here: what a former life left must not look like this life's first record.
        (<uint64_t*> (self.base + SEGMENT_HEADER_BYTES))[0] = 0
        header.checksum = header_checksum(header, number)
        store_barrier()
        header.number = number
        self.number = number
        self.first_ordinal = first_seq & ((<uint64_t> 1 << ORDINAL_BITS) - 1)
        self.count = 0
        self.tail = SEGMENT_HEADER_BYTES
        self.next = None
        return 0

    cdef int seal(self) except -1:
        """Write down where the records end; nothing is appended from now on."""
        cdef SegmentHeader* header = self.header()
        header.sealed_count = self.count
        store_barrier()
        header.sealed_bytes = self.tail
        return 0

    cdef int retire(self) except -1:
        """Make a drained segment a spare; its old records are unreachable from here on."""
        self.header().number = 0
        self.number = 0
        self.count = 0
        self.tail = SEGMENT_HEADER_BYTES
        self.next = None
        return 0

    cdef int load(self) except -1:
        """Read the header of a file found at start.

        Raises: CorruptionError for a foreign file, a bad checksum or a later format version.
        """
        cdef SegmentHeader* header = self.header()
        path = self.mapping.path or "memory"
        if header.magic == 0 or (header.magic == MAGIC and header.number == 0):
            self.number = 0
            return 0
        if header.magic != MAGIC:
            raise CorruptionError(path, 0, "not a pyqd segment")
        if header.version != SEGMENT_VERSION:
            raise CorruptionError(
                path, 8, f"segment format version {header.version}; this pyqd reads {SEGMENT_VERSION}")
        if header.checksum != header_checksum(header, header.number):
            raise CorruptionError(path, 12, "the segment header's checksum is wrong")
        self.number = header.number
        self.first_ordinal = header.first_seq & ((<uint64_t> 1 << ORDINAL_BITS) - 1)
        if header.sealed_bytes != 0:
            if not SEGMENT_HEADER_BYTES <= header.sealed_bytes <= self.capacity_bytes:
                raise CorruptionError(path, 48, "the segment is shorter than its sealed end")
            self.tail = header.sealed_bytes
            self.count = header.sealed_count
        return 0

    cdef int walk(self) except -1:
        """Find the end of an unsealed segment: count records up to the first that is not the next one.

        Returns: 0 when the walk ended at an absent record, 1 when at a damaged one. Cost: O(bytes in the segment).
        """
        cdef uint64_t seq = self.header().first_seq
        cdef uint64_t tail = SEGMENT_HEADER_BYTES
        cdef uint64_t count = 0
        cdef int verdict = record_verdict(self.base + tail, self.capacity_bytes - tail, seq)
        while verdict == RECORD_VALID:
            tail += record_span((<const Record*> (self.base + tail)).size_bytes)
            count += 1
            verdict = record_verdict(self.base + tail, self.capacity_bytes - tail, seq + count)
        self.tail = tail
        self.count = count
        return 1 if verdict == RECORD_DAMAGED else 0
