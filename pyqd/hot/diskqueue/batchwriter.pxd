from libc.stdint cimport int64_t, uint32_t, uint64_t

cimport cython

from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.guid cimport GuidFactory
from pyqd.hot.wire.record cimport ORDINAL_MASK, store_word

@cython.final
cdef class BatchWriter:
    cdef readonly object files           # the seam to the operating system
    cdef readonly Segment segment        # takes the batch; None: there is no batch
    cdef uint64_t segment_number         # of the segment when the batch began: it may be recycled meanwhile
    cdef readonly bint is_open           # records can be appended; False while the batch is set aside
    cdef char* first                     # address of the batch's first record; NULL before that
    cdef uint64_t first_word             # stored at `first` by `commit`, which makes the batch valid
    cdef uint64_t tail                   # offset in the segment behind the batch's last record
    cdef uint64_t start_seq              # sequence number of the batch's first record
    cdef uint64_t seq                    # sequence number of the next record
    cdef bint is_staged                  # records are written by pwrite(2), by way of `Staging`
    cdef bint was_staged                 # the same of the batch that is set aside
    cdef uint64_t staged_bytes           # bytes of the batch that were written that way
    cdef uint64_t segment_staged_bytes   # the same of all committed batches of the log's active segment

    cdef inline uint64_t end_ordinal(self) noexcept:
        # Return the ordinal behind the batch's last record.
        return self.seq & ORDINAL_MASK

    cdef inline void count(self, char* at, char* stored_at, uint64_t word, uint64_t span_bytes) noexcept:
        # Count a record as appended at `at`. stored_at: where its bytes are now, but for its first word.
        if self.first == NULL:
            self.first = at
            self.first_word = word
        else:
            store_word(stored_at, word)
        self.tail += span_bytes
        self.seq += 1

    cdef int begin(self, Segment segment, uint64_t seq, uint64_t span_bytes, bint may_stage) except -1
    cdef bint joins(self, uint64_t span_bytes) noexcept
    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes) except NULL
    cdef char* append_staged(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes) except NULL
    cdef char* append_large(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes) except NULL
    cdef const char* append_frames(
        self, const char* at, uint32_t count, uint64_t gap_bytes, int64_t now_ns, GuidFactory guids) except NULL
    cdef int commit(self) except -1
    cdef int write_staged(self) except -1
    cdef int discard(self) noexcept
    cdef int set_aside(self) except -1
    cdef int resume(self) except -1
    cdef bint stage(self) except -1
    cdef bint is_valid(self) noexcept
