# Wire format of NSQ as inline helpers over raw memory: big-endian integers, frame constants, command texts.
#
#   frame    int32 size | int32 frame_type | data          size = len(data) + 4
#   message  int64 timestamp_ns | uint16 attempts | 16-byte id | body
#   body     uint64 counter | filler                       what this benchmark puts into every message
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyqd.hot.wire.frames cimport FRAME_ERROR, FRAME_HEADER_BYTES, FRAME_MESSAGE, FRAME_RESPONSE, MESSAGE_HEADER_BYTES

cdef extern from "<endian.h>" nogil:
    uint32_t htobe32(uint32_t value)
    uint32_t be32toh(uint32_t value)
    uint64_t htobe64(uint64_t value)
    uint64_t be64toh(uint64_t value)

cdef enum:
    MESSAGE_ID_OFFSET = 10         # within the data of a message frame
    MESSAGE_ID_BYTES = 16
    COUNTER_BYTES = 8
    FIN_BYTES = 21                 # "FIN " + id + LF

cdef inline void put_u32(char* target, uint32_t value) noexcept nogil:
    cdef uint32_t swapped = htobe32(value)
    memcpy(target, &swapped, 4)

cdef inline void put_u64(char* target, uint64_t value) noexcept nogil:
    cdef uint64_t swapped = htobe64(value)
    memcpy(target, &swapped, 8)

cdef inline void put_text_u56(char* target, uint64_t value) noexcept nogil:
    # Write 56 bits of a value over 8 bytes, none of which is a control character of ASCII.
    cdef int index
    for index in range(8):
        target[index] = <char>(0x80 | ((value >> (7 * index)) & 0x7f))

cdef inline uint32_t get_u32(const char* source) noexcept nogil:
    cdef uint32_t swapped = 0
    memcpy(&swapped, source, 4)
    return be32toh(swapped)

cdef inline uint64_t get_u64(const char* source) noexcept nogil:
    cdef uint64_t swapped = 0
    memcpy(&swapped, source, 8)
    return be64toh(swapped)

cdef inline uint32_t put_fin(char* target, const char* id) noexcept nogil:
    # Write "FIN <id>\n" and return its length; id points at 16 bytes.
    memcpy(target, b"FIN ", 4)
    memcpy(target + 4, id, MESSAGE_ID_BYTES)
    target[20] = b"\n"
    return FIN_BYTES

cdef inline uint32_t put_response(char* target, const char* text, uint32_t text_bytes) noexcept nogil:
    # Write one whole response frame and return its length.
    put_u32(target, text_bytes + 4)
    put_u32(target + 4, FRAME_RESPONSE)
    memcpy(target + FRAME_HEADER_BYTES, text, text_bytes)
    return FRAME_HEADER_BYTES + text_bytes
