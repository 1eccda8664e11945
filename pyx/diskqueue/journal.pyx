"""One commit of the journal, in memory: the bytes appended to all logs since the commit before.

A group commit makes many logs durable, and a flush of each file would cost as much as one flush of the whole commit. So
the new bytes of all logs are copied one after the other and written with one write(2) to a file of the journal, which
is opened with O_DIRECT and O_DSYNC and has all its blocks. The syncer writes back the logs themselves as usual; after
that the journal's bytes count no more. After a power failure the start restores them (pyqd/diskqueue/redo.py).

    | header | entry | entry | ... | zeros up to a whole block |

An entry holds bytes of one segment as they lie there, and the data to restore them: the file's name, the segment's
number, and enough of the topic's state that its page need not be written. An entry holds bytes and not messages:
restoring them twice does no harm, and recovery finds the log as if the process had been killed after its last commit.

Invariants: 1. the entries of a log follow one another without a gap, over commits, as far as the log was not synced by
other means. 2. a log counts bytes as durable only when they are on stable storage.

Source: docs/storage.md, "Journal"; write-ahead logging as in ARIES (Mohan et al., 1992), with redo only.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign

from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.crc32c cimport crc32c

from pyqd.hot.diskqueue import logstart

cdef uint64_t MAGIC = 0x4c4e524a_44515950        # "PYQDJRNL", little-endian
cdef uint64_t CAPACITY_FIRST_BYTES = 256 << 10
# A larger one is not written faster here than to the logs themselves, and would be written twice.
cdef uint64_t COMMIT_BYTES_MAX = 4 << 20
cdef enum:
    READ_ONLY = 0x100                    # PyBUF_READ

HEADER_SIZE = sizeof(CommitHeader)
ENTRY_SIZE = sizeof(EntryHeader)
BLOCK_SIZE = JOURNAL_BLOCK_BYTES
FORMAT_MAGIC = MAGIC
FORMAT_VERSION = JOURNAL_VERSION
# Bytes of a header before the part that its checksum covers.
CHECKED_FROM = 16

assert sizeof(CommitHeader) == 64 and sizeof(EntryHeader) == 64


cdef uint64_t padded(uint64_t size_bytes) noexcept:
    return (size_bytes + 7) & ~<uint64_t> 7


cdef bint note_name(Segment segment) except -1:
    """Store the number in the name of a segment's file. Returns: False if no log has named it."""
    name = os.path.basename(segment.mapping.path)
    number = name.removesuffix(logstart.SUFFIX)
    if not (number.isascii() and number.isdigit()) or name != f"{int(number)}{logstart.SUFFIX}":
        return False
    segment.file_number = int(number)
    return True


cdef class CommitBuffer:
    """Memory of one commit at a time: `begin`, `add` for each log, `finish`, and `note_durable` after the write."""

    def __cinit__(self):
        self.grow(CAPACITY_FIRST_BYTES)
        self.begin()

    def __dealloc__(self):
        free(self.base)
        free(self.reaches)

    def begin(self):
        """Begin another commit and drop the entries of the one before."""
        self.used = sizeof(CommitHeader)
        self.entry_count = 0
        self.owners = []

    cdef bint reserve(self, uint64_t size_bytes) except -1:
        """Reserve memory for more bytes and a block's padding. Returns: False if the commit would be too large."""
        cdef uint64_t needed = self.used + size_bytes + JOURNAL_BLOCK_BYTES
        assert self.used <= self.capacity
        if needed > COMMIT_BYTES_MAX:
            return False
        if needed > self.capacity:
            self.grow(max(needed, 2 * self.capacity))
        return True

    def grow(self, uint64_t capacity):
        """Enlarge the memory and keep its content. Raises: MemoryError."""
        cdef void* grown = NULL
        assert capacity >= self.used
        capacity = (capacity + JOURNAL_BLOCK_BYTES - 1) & ~<uint64_t> (JOURNAL_BLOCK_BYTES - 1)
        if posix_memalign(&grown, JOURNAL_BLOCK_BYTES, capacity) != 0:
            raise MemoryError
        if self.base != NULL:
            memcpy(grown, self.base, self.used)
            free(self.base)
        self.base = <char*> grown
        self.capacity = capacity

    cdef int reserve_reach(self) except -1:
        """Make room for the reach of one more entry. Raises: MemoryError."""
        cdef uint32_t capacity = max(<uint32_t> 64, 2 * self.reach_capacity)
        cdef void* grown
        if self.entry_count < self.reach_capacity:
            return 0
        grown = realloc(self.reaches, capacity * sizeof(Reach))
        if grown == NULL:
            raise MemoryError
        self.reaches = <Reach*> grown
        self.reach_capacity = capacity
        assert self.entry_count < self.reach_capacity
        return 0

    cdef int put(self, const void* data, uint64_t size_bytes) except -1:
        """Append bytes, padded to a multiple of 8; the caller has reserved memory for them."""
        cdef char* at = self.base + self.used
        cdef uint64_t span = padded(size_bytes)
        assert self.used + span <= self.capacity
        if span != size_bytes:
            (<uint64_t*> (at + span - 8))[0] = 0
        memcpy(at, data, size_bytes)
        self.used += span
        return 0

    cdef bint add(self, Log log, bytes name, const void* state, uint8_t state_words) except -1:
        """Add the new bytes of a log since the last commit. state: the restorable state of its topic.

        Returns: False if the commit would be too large; nothing was added then. Cost: O(bytes).
        """
        cdef uint64_t used = self.used
        cdef uint32_t entries = self.entry_count
        cdef Segment segment = log.active
        assert <uint32_t> len(self.owners) == 2 * entries and len(name) <= 0xFFFF
        if segment.first_ordinal > log.synced_end:
            segment = log.segment_of(log.synced_end)
        while segment is not None:
            if not self.add_segment(log, segment, name, state, state_words):
                self.used = used
                del self.owners[2 * entries:]
                self.entry_count = entries
                return False
            segment = segment.next
        return True

    cdef bint add_segment(
        self, Log log, Segment segment, bytes name, const void* state, uint8_t state_words,
    ) except -1:
        """Add the new bytes of a segment. Returns: as `add`."""
        cdef EntryHeader* entry
        cdef uint64_t start = segment.durable_bytes()
        cdef uint64_t at = self.used
        cdef uint64_t span
        if start < SEGMENT_HEADER_BYTES:
            start = 0
        if segment.tail <= max(start, <uint64_t> SEGMENT_HEADER_BYTES) or segment.mapping.path is None:
            return True
        assert start <= segment.tail <= segment.file_bytes, "more is durable than was appended"
        span = sizeof(EntryHeader) + padded(len(name)) + 8 * state_words + padded(segment.tail - start)
        if not self.reserve(span):
            return False
        if segment.file_number == 0 and not note_name(segment):
            return False
        entry = <EntryHeader*> (self.base + at)
        entry.size_bytes = <uint32_t> span
        entry.name_bytes = <uint16_t> len(name)
        entry.state_words = state_words
        entry.kind = 0
        entry.file_number = segment.file_number
        entry.segment_number = segment.number
        entry.first_seq = segment.header().first_seq
        entry.first_number = log.first.number
        entry.file_bytes = segment.file_bytes
        entry.start = start
        entry.length = segment.tail - start
        self.used += sizeof(EntryHeader)
        self.put(PyBytes_AS_STRING(name), len(name))
        self.put(state, 8 * state_words)
        self.put(segment.base + start, segment.tail - start)
        self.reserve_reach()
        self.reaches[self.entry_count] = Reach(segment.number, segment.tail, log.end)
        self.owners.append(log)
        self.owners.append(segment)
        self.entry_count += 1
        assert self.used == at + span
        return True

    def finish(self, uint64_t generation, uint64_t oldest, uint64_t offset, int64_t latest_created_ns,
               uint64_t commit_number):
        """Write the header. Returns: the bytes to write, a view of whole blocks that is valid until `begin`."""
        cdef CommitHeader* header = <CommitHeader*> self.base
        cdef uint64_t whole = (self.used + JOURNAL_BLOCK_BYTES - 1) & ~<uint64_t> (JOURNAL_BLOCK_BYTES - 1)
        assert whole <= self.capacity and offset % JOURNAL_BLOCK_BYTES == 0
        memset(self.base + self.used, 0, whole - self.used)
        header.magic = MAGIC
        header.version = JOURNAL_VERSION
        header.generation, header.oldest, header.offset = generation, oldest, offset
        header.size_bytes = self.used
        header.latest_created_ns = latest_created_ns
        header.commit_number = commit_number
        header.checksum = crc32c(JOURNAL_VERSION, self.base + 16, self.used - 16)
        return PyMemoryView_FromMemory(self.base, <Py_ssize_t> whole, READ_ONLY)

    @property
    def whole_bytes(self):
        """Bytes of a file that the commit takes."""
        return (self.used + JOURNAL_BLOCK_BYTES - 1) & ~<uint64_t> (JOURNAL_BLOCK_BYTES - 1)

    def note_durable(self):
        """Tell the logs that the added bytes are on stable storage."""
        cdef Log log
        cdef Segment segment
        cdef Reach* reach
        cdef uint32_t index
        assert <uint32_t> len(self.owners) == 2 * self.entry_count
        for index in range(self.entry_count):
            reach = &self.reaches[index]
            log, segment = <Log> self.owners[2 * index], <Segment> self.owners[2 * index + 1]
            # The segment may have been recycled since the commit began.
            if segment.number == reach.segment_number:
                segment.note_journaled(reach.tail)
            log.synced_end = max(log.synced_end, reach.end)
