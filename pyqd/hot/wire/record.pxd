# One record of a log: its layout and its codec. The format is described in docs/storage.md, "Record".
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyqd.hot.primitives.crc32c cimport crc32c

cdef enum:
    RECORD_HEADER_BYTES = 48
    RECORD_ALIGN_BYTES = 8
    ORDINAL_BITS = 48                    # the rest of a sequence number is the epoch
    RECORD_LOST = 1                      # flag: replaces a damaged record, or finished ones; never delivered
    RECORD_GAP = 2                       # flag, with RECORD_LOST: stands for a run of records, see ordinals_of
    RECORD_FLAGS_REFUSED = 0xFF00        # of later formats: a reader that does not know one refuses the record
    RECORD_SPAN_MIN = 56                 # no record takes fewer bytes

cdef struct Record:
    uint32_t size_bytes                  # of properties and body; stored last, as one word with the checksum
    uint32_t checksum                    # crc32c over the bytes after it, continued from the size
    uint64_t seq                         # epoch << 48 | ordinal
    uint64_t guid                        # the message's id
    int64_t timestamp_ns                 # of publishing, Unix
    int64_t due_ns                       # Unix; 0: due at once
    uint16_t flags                       # RECORD_LOST, or that and RECORD_GAP, or 0
    uint16_t properties_words            # words of 8 bytes before the body; see record_body
    uint32_t key_hash                    # crc32c of the message's key; 0: it has none

cdef extern from *:
    """
    #define pyqd_store_word(at, word) __atomic_store_n((uint64_t*)(at), (word), __ATOMIC_RELEASE)
    #define pyqd_load_word(at) __atomic_load_n((const uint64_t*)(at), __ATOMIC_ACQUIRE)
    #define PYQD_ORDINAL_MASK (((uint64_t) 1 << 48) - 1)
    """
    const uint64_t ORDINAL_MASK "PYQD_ORDINAL_MASK"  # of a sequence number
    void store_word "pyqd_store_word" (char* at, uint64_t word) noexcept nogil
    uint64_t load_word "pyqd_load_word" (const char* at) noexcept nogil

cdef inline uint64_t record_span(uint64_t size_bytes) noexcept nogil:
    # Bytes a record of that size takes in a segment.
    return (RECORD_HEADER_BYTES + size_bytes + RECORD_ALIGN_BYTES - 1) & ~(<uint64_t> RECORD_ALIGN_BYTES - 1)

cdef inline const char* record_body(const Record* record) noexcept nogil:
    # The properties lie before it.
    return <const char*> (record + 1) + 8 * record.properties_words

cdef inline uint32_t record_body_bytes(const Record* record) noexcept nogil:
    return record.size_bytes - 8 * <uint32_t> record.properties_words

cdef inline uint64_t record_ordinal(const Record* record) noexcept nogil:
    return record.seq & ORDINAL_MASK

cdef inline uint64_t ordinals_of(const Record* record) noexcept nogil:
    # Return the number of ordinals that a record stands for; the first is its own.
    return (<const uint64_t*> (record + 1))[0] if record.flags & RECORD_GAP else 1

cdef inline uint64_t ordinal_after(const Record* record) noexcept nogil:
    # Return the ordinal of the next record.
    return record_ordinal(record) + ordinals_of(record)

cdef inline bint record_is_sound(const Record* record) noexcept nogil:
    # Whether the checksum is right and the properties leave a body. The caller has checked the span.
    return record.checksum == crc32c(
        record.size_bytes, <const char*> record + 8, RECORD_HEADER_BYTES - 8 + <uint64_t> record.size_bytes
    ) and 8 * <uint32_t> record.properties_words < record.size_bytes

cdef inline uint32_t checksum_of(const Record* header, const char* body, uint32_t body_bytes) noexcept nogil:
    # Return the checksum of a record without properties, whose header and body lie apart.
    return crc32c(crc32c(body_bytes, <const char*> header + 8, RECORD_HEADER_BYTES - 8), body, body_bytes)

cdef inline void header_fill(
    Record* record, uint64_t seq, uint64_t guid, int64_t timestamp_ns, int64_t due_ns,
) noexcept nogil:
    # Fill a header; its first word is 0.
    store_word(<char*> record, 0)
    record.seq = seq
    record.guid = guid
    record.timestamp_ns = timestamp_ns
    record.due_ns = due_ns
    record.flags = 0
    record.properties_words = 0
    record.key_hash = 0

cdef inline uint64_t record_fill(
    char* at, uint64_t seq, uint64_t guid, int64_t timestamp_ns, int64_t due_ns, const char* body, uint32_t body_bytes,
) noexcept nogil:
    # Fill all of a record without properties but its first word, and return that word: storing it makes it valid.
    cdef uint64_t span = record_span(body_bytes)
    header_fill(<Record*> at, seq, guid, timestamp_ns, due_ns)
    (<uint64_t*> (at + span - 8))[0] = 0
    memcpy(at + RECORD_HEADER_BYTES, body, body_bytes)
    return body_bytes | <uint64_t> crc32c(
        body_bytes, at + 8, RECORD_HEADER_BYTES - 8 + body_bytes) << 32

cdef inline void gap_fill(Record* record, uint64_t seq, uint64_t count, uint32_t body_bytes) noexcept nogil:
    # Make `count` ordinals a gap, at all times damaged or whole. body_bytes: 8 or more; those after the first 8 stay.
    cdef Record header
    memset(&header, 0, sizeof(Record))
    header.size_bytes = body_bytes
    header.seq = seq
    header.flags = RECORD_LOST | RECORD_GAP
    (<uint64_t*> (record + 1))[0] = count
    header.checksum = checksum_of(&header, <const char*> (record + 1), body_bytes)
    memcpy(<char*> record + 8, <const char*> &header + 8, RECORD_HEADER_BYTES - 8)
    store_word(<char*> record, (<const uint64_t*> &header)[0])

cdef enum Verdict:
    RECORD_VALID = 0
    RECORD_ABSENT = 1                    # zeros, or bytes of a former use of the segment: the end of the log
    RECORD_DAMAGED = 2                   # the sequence number is the next one and the checksum disagrees

cdef Verdict record_verdict(const char* at, uint64_t free_bytes, uint64_t seq) noexcept nogil
