"""A connection compressed with snappy, in its framing format.

    stream: identifier, chunk, chunk, ...        chunk: type: uint8, size: uint24 little-endian, then so many bytes
    data chunk: masked CRC-32C of the uncompressed bytes, then these, compressed (type 0x00) or as they are (0x01)

A chunk stands for 64 KiB at most, and is stored as it is if compressing would save less than an eighth. Blocks are
compressed by cramjam, checksums computed here. Source: the framing format's description, with the snappy library;
docs/nsq/tcp-protocol.md, "Upgrade sequence".
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcmp, memcpy

from cramjam import DecompressionError, snappy as blocks

from pyqd.hot.net.transport import TransportError
from pyqd.hot.net.transport cimport StreamCodec
from pyqd.hot.primitives.crc32c cimport crc32c

cdef enum:
    BLOCK_BYTES = 64 << 10
    COMPRESSED_MAX = 32 + BLOCK_BYTES + BLOCK_BYTES // 6
    CHUNK_HEADER_BYTES = 4
    CHECKSUM_BYTES = 4
    NO_SPACE = -1

    CHUNK_COMPRESSED = 0x00
    CHUNK_STORED = 0x01
    CHUNK_SKIPPABLE = 0x80               # and above, up to 0xfe
    CHUNK_IDENTIFIER = 0xff

    IDENTIFIER_BYTES = 6

cdef const char* IDENTIFIER = b"sNaPpY"
cdef bytes IDENTIFIER_CHUNK = b"\xff\x06\x00\x00sNaPpY"

# The buffer is empty between two calls.
cdef char* scratch = <char*> malloc(CHUNK_HEADER_BYTES + CHECKSUM_BYTES + COMPRESSED_MAX)
if scratch == NULL:
    raise MemoryError

cdef str CORRUPT = "snappy: corrupt input"
cdef str UNSUPPORTED = "snappy: unsupported input"


cdef uint32_t masked_crc32c(const char* data, uint64_t size_bytes) noexcept nogil:
    cdef uint32_t crc = crc32c(0, data, size_bytes)
    return ((crc >> 15) | (crc << 17)) + <uint32_t> 0xa282ead8


cdef uint32_t read_le(const char* at, int count) noexcept nogil:
    cdef uint32_t value = 0
    cdef int index
    for index in range(count):
        value |= <uint32_t> <uint8_t> at[index] << (8 * index)
    return value


cdef int put_le(char* at, uint32_t value, int count) noexcept nogil:
    cdef int index
    for index in range(count):
        at[index] = <char> ((value >> (8 * index)) & 0xff)
    return 0


cdef int block_size(const char* at, uint64_t size_bytes) noexcept nogil:
    """Return the number of bytes that a block decodes to, which it begins with; -1 if it is none or too large."""
    cdef uint32_t value = 0
    cdef int index
    for index in range(3):
        if <uint64_t> index >= size_bytes:
            return -1
        value |= <uint32_t> (<uint8_t> at[index] & 0x7f) << (7 * index)
        if <uint8_t> at[index] < 0x80:
            return -1 if value > BLOCK_BYTES else <int> value
    return -1


@cython.final
cdef class Snappy(StreamCodec):
    """Snappy."""

    cdef bint begun                      # this side has sent its stream identifier
    cdef bint identified                 # the peer has
    cdef bytes undecoded

    def __init__(self):
        self.undecoded = b""

    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used):
        cdef char* body = scratch + CHUNK_HEADER_BYTES + CHECKSUM_BYTES
        cdef uint64_t body_bytes
        cdef uint8_t chunk_type = CHUNK_COMPRESSED
        size_bytes = min(size_bytes, <uint64_t> BLOCK_BYTES)
        body_bytes = blocks.compress_raw_into(
            PyMemoryView_FromMemory(<char*> data, <Py_ssize_t> size_bytes, PyBUF_READ),
            PyMemoryView_FromMemory(body, COMPRESSED_MAX, PyBUF_WRITE))
        if body_bytes >= size_bytes - size_bytes // 8:
            chunk_type = CHUNK_STORED
            body_bytes = size_bytes
            memcpy(body, data, size_bytes)
        scratch[0] = <char> chunk_type
        put_le(scratch + 1, <uint32_t> (CHECKSUM_BYTES + body_bytes), 3)
        put_le(scratch + CHUNK_HEADER_BYTES, masked_crc32c(data, size_bytes), 4)
        used[0] = size_bytes
        chunk = PyBytes_FromStringAndSize(
            scratch, <Py_ssize_t> (CHUNK_HEADER_BYTES + CHECKSUM_BYTES + body_bytes))
        if self.begun:
            return chunk
        self.begun = True
        return IDENTIFIER_CHUNK + chunk

    cdef int take(self, const char* data, uint64_t size_bytes) except -1:
        self.undecoded = self.undecoded + data[:size_bytes]
        return 0

    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1:
        cdef const char* base = self.undecoded
        cdef uint64_t left = <uint64_t> len(self.undecoded)
        cdef const char* at = base
        cdef uint64_t decoded = 0
        cdef uint64_t size_bytes
        cdef ssize_t got
        while left >= CHUNK_HEADER_BYTES:
            size_bytes = read_le(at + 1, 3)
            if size_bytes > CHECKSUM_BYTES + COMPRESSED_MAX:
                raise TransportError(UNSUPPORTED)
            if left < CHUNK_HEADER_BYTES + size_bytes:
                break
            got = self.decode_chunk(
                <uint8_t> at[0], at + CHUNK_HEADER_BYTES, size_bytes, into + decoded, capacity - decoded)
            if got == NO_SPACE:
                self.more = True
                break
            decoded += <uint64_t> got
            at += CHUNK_HEADER_BYTES + size_bytes
            left -= CHUNK_HEADER_BYTES + size_bytes
        self.undecoded = at[:left]
        self.state_bytes = left
        return <ssize_t> decoded

    cdef ssize_t decode_chunk(
            self, uint8_t chunk_type, const char* body, uint64_t size_bytes, char* into, uint64_t capacity) except -2:
        """Decode a whole chunk. Returns: the bytes it stands for, or NO_SPACE. Raises: TransportError."""
        if chunk_type == CHUNK_IDENTIFIER:
            if size_bytes != IDENTIFIER_BYTES or memcmp(body, IDENTIFIER, IDENTIFIER_BYTES) != 0:
                raise TransportError(CORRUPT)
            self.identified = True
            return 0
        if not self.identified:
            raise TransportError(CORRUPT)
        if chunk_type >= CHUNK_SKIPPABLE:
            return 0
        if chunk_type > CHUNK_STORED:
            raise TransportError(UNSUPPORTED)
        if size_bytes < CHECKSUM_BYTES:
            raise TransportError(CORRUPT)
        return self.decode_data(chunk_type, body, size_bytes, into, capacity)

    cdef ssize_t decode_data(
            self, uint8_t chunk_type, const char* body, uint64_t size_bytes, char* into, uint64_t capacity) except -2:
        cdef uint64_t stored_bytes = size_bytes - CHECKSUM_BYTES
        cdef const char* stored = body + CHECKSUM_BYTES
        cdef int block_bytes
        if chunk_type == CHUNK_STORED:
            if stored_bytes > BLOCK_BYTES:
                raise TransportError(CORRUPT)
            block_bytes = <int> stored_bytes
        else:
            block_bytes = block_size(stored, stored_bytes)
            if block_bytes < 0:
                raise TransportError(CORRUPT)
        if <uint64_t> block_bytes > capacity:
            return NO_SPACE
        if chunk_type == CHUNK_STORED:
            memcpy(into, stored, stored_bytes)
        else:
            self.decode_block(stored, stored_bytes, into, block_bytes)
        if masked_crc32c(into, <uint64_t> block_bytes) != read_le(body, CHECKSUM_BYTES):
            raise TransportError(CORRUPT)
        return block_bytes

    cdef int decode_block(self, const char* stored, uint64_t stored_bytes, char* into, int block_bytes) except -1:
        try:
            decoded = blocks.decompress_raw_into(
                PyMemoryView_FromMemory(<char*> stored, <Py_ssize_t> stored_bytes, PyBUF_READ),
                PyMemoryView_FromMemory(into, block_bytes, PyBUF_WRITE))
        except DecompressionError as error:
            raise TransportError(CORRUPT) from error
        if decoded != block_bytes:
            raise TransportError(CORRUPT)
        return 0
