"""Writer of one batch (MPUB): appends its records to a segment and makes all of them valid at once.

    begin, append ... append                         commit | discard
    begin, append ... append, set_aside  (the loop runs)  resume, append ... append, commit | discard

The records of a batch lie in one segment. The first word of the first record is stored last: after a kill all of the
batch is there or nothing. Until `commit` the segment's tail and count are those from before the batch, so readers,
syncs and counts see nothing of the batch, and discarding it takes no undoing.

A large batch that goes to pages which are not present yet is *staged*: written by pwrite(2) instead of stores through
the mapping (pyx/diskqueue/staging.pyx). The pages then need not be populated ahead of the writer either.

A very large batch is written in slices between passes of the event loop. Between two slices the batch is *set aside*.
The caller appends nothing else to the log meanwhile. If the log continues in another segment in between (a page became
unreadable, or the log shrank), the caller discards the batch and begins again.

Invariants: 1. `segment` is None exactly if there is no batch. 2. `is_open` implies that there is a batch. 3.
`is_staged` implies `is_open`, and that the shared Staging belongs to this batch. 4. `segment.tail <= tail <=
segment.limit_bytes`.

Source: docs/storage.md, "Batch".
"""

cimport cython

from libc.string cimport memcpy, memset

from pyqd.hot.diskqueue.mapping cimport Mapping
from pyqd.hot.diskqueue.staging cimport STAGED_RECORD_MAX, Staging, shared_staging
from pyqd.hot.primitives.debug cimport PYQD_DEBUG
from pyqd.hot.primitives.releases cimport whole_pages
from pyqd.hot.wire.record cimport (
    RECORD_ALIGN_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_VALID,
    Record,
    checksum_of,
    header_fill,
    record_fill,
    record_span,
    record_verdict,
    store_word,
)
from pyqd.hot.wire.scanner cimport read_be32

from pyqd.primitives.errors import StorageError

# Below this size stores through the mapping cost less than two calls of pwrite(2).
cdef uint64_t STAGED_BATCH_BYTES_MIN = 8 << 10

cdef Staging staging = shared_staging()


@cython.final
cdef class BatchWriter:
    """The batch of one log, one at a time. files: the operating system."""

    def __init__(self, files):
        self.files = files

    cdef int begin(self, Segment segment, uint64_t seq, uint64_t span_bytes, bint may_stage) except -1:
        """Begin a batch whose records take at least `span_bytes`, which fit into the segment.

        seq: sequence number of its first record. may_stage: a large batch may be written by pwrite(2). The caller ends
        the batch with `commit` or `discard`, whatever goes wrong before, and appends nothing else to the log until
        then.
        """
        assert self.segment is None, "another batch of this log is under way"
        assert segment.free_bytes() >= span_bytes, "the caller has not reserved space for the batch"
        self.segment = segment
        self.segment_number = segment.number
        self.first = NULL
        self.tail = segment.tail
        self.start_seq = self.seq = seq
        self.staged_bytes = 0
        try:
            # Stores cost less than pwrite(2) if the pages are present.
            self.is_staged = (
                may_stage and span_bytes >= STAGED_BATCH_BYTES_MIN
                and whole_pages(segment.tail) >= segment.prepared and self.stage())
        except BaseException:
            self.discard()
            raise
        self.is_open = True
        return 0

    cdef bint joins(self, uint64_t span_bytes) noexcept:
        """Return whether records of so many bytes can join the open batch and become valid together with it."""
        return self.is_open and self.segment.limit_bytes - self.tail >= span_bytes

    cdef bint stage(self) except -1:
        """Begin to stage records at the batch's tail. Returns: whether they can be staged."""
        cdef Mapping mapping = self.segment.mapping
        if staging.fd >= 0:
            # Another log's batch is open, and its descriptor must not be closed to admit another one.
            return False
        if mapping.fd < 0:
            if mapping.path is None or mapping.fd_refused:
                return False
            try:
                mapping.keep_descriptor(self.files.open_for_writing(mapping.path))
            except StorageError:
                # Too many open files, for example: records are then stored through the mapping.
                mapping.fd_refused = True
                return False
        if not staging.begin(mapping.fd, mapping.path, self.tail):
            return False
        self.segment.note_staged(self.tail)
        return True

    cdef char* append(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes,
    ) except NULL:
        """Append one record to the open batch.

        body: 1 or more bytes, copied. Returns: the record's address, which may be read once the batch is committed.
        Raises: StorageError (the caller discards the batch). Switches: no. Cost: O(body_bytes).
        """
        cdef uint64_t span = record_span(body_bytes)
        cdef char* at
        cdef uint64_t word
        assert self.is_open and body_bytes > 0
        if self.is_staged:
            if span <= STAGED_RECORD_MAX:
                return self.append_staged(guid, timestamp_ns, due_ns, body, body_bytes)
            return self.append_large(guid, timestamp_ns, due_ns, body, body_bytes)
        assert self.segment.limit_bytes - self.tail >= span, "`begin` was called with fewer bytes"
        at = self.segment.base + self.tail
        word = record_fill(at, self.seq, guid, timestamp_ns, due_ns, body, body_bytes)
        if self.segment.capacity_bytes - self.tail > span:
            # A record of a batch that a kill tore may follow, and have the sequence number that comes next.
            store_word(at + span, 0)
        self.count(at, at, word, span)
        return at

    cdef char* append_staged(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes,
    ) except NULL:
        """Append a record of at most STAGED_RECORD_MAX bytes to a staged batch. Returns, raises: as `append`."""
        cdef uint64_t span = record_span(body_bytes)
        cdef char* at = self.segment.base + self.tail
        cdef char* staged
        cdef uint64_t word
        assert self.segment.limit_bytes - self.tail >= span, "`begin` was called with fewer bytes"
        staged = staging.take(span)
        word = record_fill(staged, self.seq, guid, timestamp_ns, due_ns, body, body_bytes)
        self.count(at, staged, word, span)
        self.staged_bytes += span
        return at

    cdef char* append_large(
        self, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes,
    ) except NULL:
        """Append a record of any size to a staged batch. Returns, raises: as `append`."""
        cdef uint64_t span = record_span(body_bytes)
        cdef uint64_t padding = span - RECORD_HEADER_BYTES - body_bytes
        cdef char* at = self.segment.base + self.tail
        cdef Record header
        cdef uint64_t word
        assert self.segment.limit_bytes - self.tail >= span, "`begin` was called with fewer bytes"
        header_fill(&header, self.seq, guid, timestamp_ns, due_ns)
        word = body_bytes | <uint64_t> checksum_of(&header, body, body_bytes) << 32
        self.count(at, <char*> &header, word, span)
        memcpy(staging.take(RECORD_HEADER_BYTES), &header, RECORD_HEADER_BYTES)
        staging.put(body, body_bytes)
        if padding:
            memset(staging.take(padding), 0, padding)
        self.staged_bytes += span
        return at

    cdef const char* append_frames(
        self, const char* at, uint32_t count, uint64_t gap_bytes, int64_t now_ns, GuidFactory guids,
    ) except NULL:
        """Append `count` messages, each a big-endian int32 size and a body, which the caller has checked.

        gap_bytes: between two of them, skipped. The loop stands here so that the work per message is compiled into it.
        Returns: the address behind the last message. Raises: as `append`.
        """
        cdef uint32_t size
        assert self.is_open
        at -= gap_bytes
        for _ in range(count):
            at += gap_bytes
            size = <uint32_t> read_be32(at)
            if self.is_staged and record_span(size) <= STAGED_RECORD_MAX:
                self.append_staged(guids.next_id(now_ns), now_ns, 0, at + sizeof(uint32_t), size)
            else:
                self.append(guids.next_id(now_ns), now_ns, 0, at + sizeof(uint32_t), size)
            at += sizeof(uint32_t) + size
        return at

    cdef int commit(self) except -1:
        """Make the batch valid, and part of its segment. Raises: StorageError (nothing is left of the batch)."""
        cdef Segment segment = self.segment
        assert self.is_open
        assert segment.tail <= self.tail <= segment.limit_bytes
        if self.is_staged:
            self.write_staged()
            self.segment_staged_bytes += self.staged_bytes
        elif self.first != NULL:
            store_word(self.first, self.first_word)
        if PYQD_DEBUG:
            assert self.is_valid(), "a record of the batch is not the one that was appended"
        if self.is_staged or self.tail - segment.tail >= STAGED_BATCH_BYTES_MIN:
            # A large batch has used its pages. That they were not prepared does not mean that the preparation lags.
            segment.prepared = max(segment.prepared, whole_pages(self.tail))
        segment.tail = self.tail
        segment.count += self.seq - self.start_seq
        return self.discard()

    cdef int write_staged(self) except -1:
        """Write the rest of a staged batch, then its first word. Raises: any exception (the batch is discarded)."""
        cdef Segment segment = self.segment
        try:
            if segment.capacity_bytes - self.tail >= RECORD_ALIGN_BYTES:
                # As `append` does behind each record.
                store_word(staging.take(RECORD_ALIGN_BYTES), 0)
            staging.flush_last(segment.capacity_bytes)
            if self.first != NULL:
                staging.store_word(<uint64_t> (self.first - segment.base), self.first_word)
        except BaseException:
            self.discard()
            raise
        return 0

    cdef int discard(self) noexcept:
        """End the batch. If it was not committed, nothing is left of it: its first word has not been written."""
        if self.is_staged:
            self.is_staged = False
            staging.finish()
        self.is_open = False
        self.segment = None
        self.first = NULL
        return 0

    cdef int set_aside(self) except -1:
        """Set the open batch aside until `resume` or `discard`. Raises: StorageError (the batch is discarded)."""
        assert self.is_open and self.first != NULL, "an empty batch has nothing to be set aside"
        self.was_staged = self.is_staged
        if self.is_staged:
            try:
                staging.flush_last(self.segment.capacity_bytes)
            except BaseException:
                self.discard()
                raise
            self.is_staged = False
            staging.finish()
        self.is_open = False
        return 0

    cdef int resume(self) except -1:
        """Continue with the batch that is set aside; its segment is still the log's active one."""
        assert self.segment is not None and not self.is_open
        assert self.segment.end_ordinal() == self.start_seq & ORDINAL_MASK, (
            "records were appended while a batch was set aside")
        self.is_staged = self.was_staged and self.stage()
        self.is_open = True
        return 0

    cdef bint is_valid(self) noexcept:
        """Return whether all records of the batch can be read as recovery reads them. Cost: O(bytes of the batch)."""
        cdef uint64_t offset = self.segment.tail
        cdef uint64_t seq = self.start_seq
        while offset < self.tail and record_verdict(
                self.segment.base + offset, self.tail - offset, seq) == RECORD_VALID:
            offset += record_span((<const Record*> (self.segment.base + offset)).size_bytes)
            seq += 1
        return offset == self.tail and seq == self.seq
