"""The records of a batch on their way into a segment's file: built in memory that stays in the cache, written by
pwrite(2).

Problem: the first store to a page of a mapped file is a fault, as is the first after a sync of it. The kernel clears
the page, though it is about to be overwritten, and asks the file system about each page alone. That costs several times
what the records themselves cost. A write of many pages at once clears nothing, takes large folios and asks once.
A mapping of the same file shows what was written at once, as both are the page cache: so readers go on as they are, and
single messages are stored through the mapping as ever, which is cheaper for a few hundred bytes than a call.

A body of more than a block is written from where it lies, as copying it to the buffer would gain nothing.

The alignment of the writes matters as much: a page of which a part is written is zeroed and looked up again for the
rest, and what is asked for piecemeal comes in small folios. So a batch is followed by zeros up to the end of a block of
BLOCK_BYTES, and what does not fit the buffer is written in whole blocks. Larger blocks cost more again,
perhaps as the kernel has free folios of up to 32 KiB at hand for each core, and no larger ones.

The first word of the batch's first record is written by itself and last, when all the others are in the page cache: a
kill in the middle of a write leaves nothing of the batch. Unlike a store through a mapping, a write that fails is an
error and no signal.

Invariants: 1. `start <= end <= STAGING_BYTES`; both are 0 and `fd` is -1 while nothing is staged. 2. The bytes of the
buffer belong at `offset` of the file, as far into a block there as here, and all before them have been written.

Source: pwrite(2), mmap(2); docs/storage.md, "Batch".
"""

from libc.errno cimport EINTR, errno
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from posix.unistd cimport pwrite
from pyqd.hot.primitives.debug cimport debug_require

import os

from pyqd.hot.primitives.releases cimport PAGE_BYTES

from pyqd.primitives.errors import storage_error

cdef enum:
    BLOCK_BYTES = 16 << 10

assert STAGED_RECORD_MAX <= STAGING_BYTES - 2 * BLOCK_BYTES


cdef class Staging:
    """One batch at a time; all logs share one object."""

    def __cinit__(self):
        cdef void* at = NULL
        if posix_memalign(&at, PAGE_BYTES, STAGING_BYTES) != 0:
            raise MemoryError
        self.buffer = <char*> at
        self.fd = -1

    def __dealloc__(self):
        free(self.buffer)

    cdef bint begin(self, int fd, str path, uint64_t offset) noexcept:
        """Begin to stage bytes for an offset of a file. Returns: False if another batch is in progress."""
        debug_require(fd >= 0)
        if self.fd >= 0:
            return False
        self.fd = fd
        self.path = path
        self.offset = offset
        self.start = self.end = offset % BLOCK_BYTES
        return True

    cdef int put(self, const char* data, uint64_t size_bytes) except -1:
        """Stage bytes of any number. Whole blocks are written from where they lie.

        data: not in the arena (pyx/diskqueue/arena.pyx), where a system call may find no mapping. Raises: StorageError.
        """
        cdef uint64_t piece = min(size_bytes, BLOCK_BYTES - self.end % BLOCK_BYTES)
        assert self.fd >= 0 and size_bytes != 0
        memcpy(self.take(piece), data, piece)
        data += piece
        size_bytes -= piece
        if size_bytes >= BLOCK_BYTES:
            self.flush_blocks()
            piece = size_bytes - size_bytes % BLOCK_BYTES
            self.write(data, piece, self.offset)
            self.skip(piece)
            data += piece
            size_bytes -= piece
        if size_bytes > 0:
            memcpy(self.take(size_bytes), data, size_bytes)
        return 0

    cdef int flush(self) except -1:
        """Write the buffer. Raises: StorageError."""
        assert self.fd >= 0 and self.start <= self.end <= STAGING_BYTES
        if self.end > self.start:
            self.write(self.buffer + self.start, self.end - self.start, self.offset)
        return self.skip(0)

    cdef int flush_blocks(self) except -1:
        """Write the whole blocks that are in the buffer, and go on with the rest. Raises: StorageError."""
        cdef uint64_t whole = self.end - self.end % BLOCK_BYTES
        cdef uint64_t rest_bytes = self.end - whole
        assert whole > self.start and rest_bytes <= whole
        self.write(self.buffer + self.start, whole - self.start, self.offset)
        memcpy(self.buffer, self.buffer + whole, rest_bytes)
        self.offset += whole - self.start
        self.start = 0
        self.end = rest_bytes
        return 0

    cdef int flush_last(self, uint64_t file_bytes) except -1:
        """Write the buffer and zeros up to the end of a block; the file ends there. Raises: StorageError."""
        cdef uint64_t end = self.offset + self.end - self.start
        cdef uint64_t padding = min(file_bytes, (end + BLOCK_BYTES - 1) & ~<uint64_t> (BLOCK_BYTES - 1)) - end
        assert end <= file_bytes and padding <= STAGING_BYTES - self.end
        memset(self.buffer + self.end, 0, padding)
        self.end += padding
        return self.flush()

    cdef int skip(self, uint64_t span_bytes) except -1:
        """Skip the next bytes of the file, because they are written elsewhere. The caller has flushed the buffer."""
        assert self.fd >= 0
        self.offset += self.end - self.start + span_bytes
        self.start = self.end = self.offset % BLOCK_BYTES
        return 0

    cdef int store_word(self, uint64_t offset, uint64_t word) except -1:
        """Write one word somewhere in the file, past the buffer. Raises: StorageError."""
        assert self.fd >= 0 and offset % sizeof(uint64_t) == 0
        return self.write(<const char*> &word, sizeof(uint64_t), offset)

    cdef int write(self, const char* data, uint64_t size_bytes, uint64_t offset) except -1:
        cdef ssize_t written
        debug_require(size_bytes != 0)
        while size_bytes > 0:
            written = pwrite(self.fd, data, size_bytes, <long> offset)
            if written > 0:
                data += written
                offset += <uint64_t> written
                size_bytes -= <uint64_t> written
            elif written == 0 or errno != EINTR:
                failed = errno
                raise storage_error("write", self.path, OSError(failed, os.strerror(failed)))
        return 0

    cdef int finish(self) noexcept:
        """Release the buffer for the next batch; unflushed bytes are dropped."""
        self.fd = -1
        self.path = None
        self.start = self.end = self.offset = 0
        return 0

    @property
    def busy(self) -> bool:
        return self.fd >= 0


cdef Staging shared = Staging()


cdef Staging shared_staging():
    return shared
