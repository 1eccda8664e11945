"""One record of a log: a header of 48 bytes, properties, the body, zeros up to a multiple of 8.

    0      4        8     16     24          32    40      42           44         48
    | size | crc32c | seq | guid | timestamp | due | flags | properties | key hash | properties | body | 0..7 zeros |
                                                             (words)

The properties are 8-byte words before the body and count in the size. Nothing writes any yet; readers skip them.

Numbers are little-endian. The first word (size and checksum) is stored last: until then the record is not there, and a
process killed half-way leaves none. Behind the last record are zeros in a fresh segment and older records in
a recycled one; neither has the sequence number that comes next, so a walk ends there. Only a record that carries the
expected number and a wrong checksum is called damaged; its size is not trusted either.

Invariants: 1. the header is a multiple of the alignment. 2. no record is empty (NSQ knows no empty message), so a first
word of zero is never a record.
"""

assert sizeof(Record) == RECORD_HEADER_BYTES
assert RECORD_HEADER_BYTES % RECORD_ALIGN_BYTES == 0


cdef Verdict record_verdict(const char* at, uint64_t free_bytes, uint64_t seq) noexcept nogil:
    """Check whether the record with that sequence number is at `at`, within `free_bytes`. Returns: the verdict."""
    cdef const Record* record = <const Record*> at
    if free_bytes < RECORD_HEADER_BYTES or load_word(at) == 0 or record.seq != seq:
        return RECORD_ABSENT
    if record.size_bytes == 0 or record_span(record.size_bytes) > free_bytes or not record_is_sound(record):
        return RECORD_DAMAGED
    return RECORD_VALID


def span_bytes(uint64_t size_bytes) -> int:
    """Return the bytes that a record of that size takes in a segment."""
    return record_span(size_bytes)
