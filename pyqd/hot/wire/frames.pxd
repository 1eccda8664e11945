# Encoders of messages and answers into frames. Pure functions. Source: docs/nsq/tcp-protocol.md, "Server to client
# framing".
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyqd.hot.primitives.guid cimport id_to_hex

cdef enum FrameType:
    FRAME_RESPONSE = 0
    FRAME_ERROR = 1
    FRAME_MESSAGE = 2

cdef enum:
    FRAME_HEADER_BYTES = 8
    MESSAGE_HEADER_BYTES = 26            # timestamp, attempts, id

cdef extern from *:
    """
    #include <string.h>
    static inline void pyqd_put_be16(char* at, uint16_t value) {
        value = __builtin_bswap16(value);
        memcpy(at, &value, 2);
    }
    static inline void pyqd_put_be32(char* at, uint32_t value) {
        value = __builtin_bswap32(value);
        memcpy(at, &value, 4);
    }
    static inline void pyqd_put_be64(char* at, uint64_t value) {
        value = __builtin_bswap64(value);
        memcpy(at, &value, 8);
    }
    """
    void put_be16 "pyqd_put_be16" (char* at, uint16_t value) noexcept nogil
    void put_be32 "pyqd_put_be32" (char* at, uint32_t value) noexcept nogil
    void put_be64 "pyqd_put_be64" (char* at, uint64_t value) noexcept nogil

cdef inline uint64_t message_frame_bytes(uint32_t body_bytes) noexcept nogil:
    return FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES + <uint64_t> body_bytes

cdef inline void put_message_head(
    char* out, uint64_t guid, int64_t timestamp_ns, uint16_t attempts, uint32_t body_bytes,
) noexcept nogil:
    # Write the frame of a message up to its body; `out` has message_frame_bytes(0) bytes.
    put_be32(out, 4 + MESSAGE_HEADER_BYTES + body_bytes)
    put_be32(out + 4, FRAME_MESSAGE)
    put_be64(out + 8, <uint64_t> timestamp_ns)
    put_be16(out + 16, attempts)
    id_to_hex(guid, out + 18)

cdef inline void put_message(
    char* out, uint64_t guid, int64_t timestamp_ns, uint16_t attempts, const char* body, uint32_t body_bytes,
) noexcept nogil:
    # Write the frame of a message; `out` has message_frame_bytes(body_bytes) bytes.
    put_message_head(out, guid, timestamp_ns, attempts, body_bytes)
    memcpy(out + FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES, body, body_bytes)

cdef inline void put_frame(char* out, FrameType frame_type, const char* data, uint32_t size_bytes) noexcept nogil:
    # Write a response or error frame; `out` has FRAME_HEADER_BYTES + size_bytes bytes.
    put_be32(out, 4 + size_bytes)
    put_be32(out + 4, <uint32_t> frame_type)
    memcpy(out + FRAME_HEADER_BYTES, data, size_bytes)
