# One commit of the journal: layout, filling.
# Design notes: pyx/diskqueue/journal.pyx; the format: docs/storage.md, "Journal".
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport Segment

cdef enum:
    JOURNAL_VERSION = 2
    JOURNAL_BLOCK_BYTES = 4096           # a commit begins at a multiple of it and is written in whole blocks

cdef struct CommitHeader:
    uint64_t magic
    uint32_t version
    uint32_t checksum                    # crc32c over all that follows, to the end of the entries
    uint64_t generation                  # of the file: each use of one has its own, and a later use a higher one
    uint64_t oldest                      # generation of the oldest file that counts
    uint64_t offset                      # in the file, at which the commit lies
    uint64_t size_bytes                  # of header and entries
    int64_t latest_created_ns            # no topic of this node was made later
    uint64_t commit_number               # from 1: so many commits has the journal had since a clean stop

# Followed by the topic's name, its state, and the bytes, each padded with zeros to a multiple of 8.
cdef struct EntryHeader:
    uint32_t size_bytes                  # of all of the entry
    uint16_t name_bytes
    uint8_t state_words                  # of 8 bytes
    uint8_t kind                         # 0: bytes appended to a log
    uint64_t file_number                 # the segment's file is called so
    uint64_t segment_number
    uint64_t first_seq                   # of the segment's first record
    uint64_t first_number                # of the log's first segment then: those before are drained
    uint64_t file_bytes                  # of the segment
    uint64_t start                       # offset of the bytes in the segment
    uint64_t length                      # how many there are

# How far an entry makes a segment and its log durable.
cdef struct Reach:
    uint64_t segment_number
    uint64_t tail                        # of the segment
    uint64_t end                         # of the log

cdef class CommitBuffer:
    cdef char* base                      # owned; aligned to a block
    cdef uint64_t capacity
    cdef readonly uint64_t used          # bytes of header and entries
    cdef readonly uint32_t entry_count
    cdef list owners                     # Log and Segment of each entry
    cdef Reach* reaches                  # owned; one for each entry
    cdef uint32_t reach_capacity

    cdef bint add(self, Log log, bytes name, const void* state, uint8_t state_words) except -1
    cdef bint add_segment(self, Log log, Segment segment, bytes name, const void* state, uint8_t state_words) except -1
    cdef bint reserve(self, uint64_t size_bytes) except -1
    cdef int reserve_reach(self) except -1
    cdef int put(self, const void* data, uint64_t size_bytes) except -1
