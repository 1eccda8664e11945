cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "endian.h" nogil:
    uint64_t be64toh(uint64_t value)
    uint64_t htobe64(uint64_t value)

cdef extern from *:
    """
    #define PYQD_GUID_EPOCH_TICKS 1288834974288ULL
    #define PYQD_GUID_TICKS_MAX ((1ULL << 41) - 1)
    #define PYQD_EVERY_BYTE(value) (0x0101010101010101ULL * (value))
    """
    # nsqd's epoch, in ticks of 2**20 ns since 1970, and the ticks since it that keep an id below 2**63.
    const uint64_t EPOCH_TICKS "PYQD_GUID_EPOCH_TICKS"
    const uint64_t TICKS_MAX "PYQD_GUID_TICKS_MAX"
    # A word with `value`, 0 to 255, in each of its 8 bytes.
    uint64_t every_byte "PYQD_EVERY_BYTE" (uint64_t value) noexcept nogil

cdef enum:
    TICK_NS_SHIFT = 20                 # a tick is 2**20 ns = 1.048576 ms
    SEQUENCE_BITS = 12
    NODE_BITS = 10
    TICK_SHIFT = SEQUENCE_BITS + NODE_BITS
    NODE_ID_COUNT = 1 << NODE_BITS
    HEX_SIZE = 16                      # bytes of an id in hex


cdef inline uint64_t hex_digits_of(uint64_t half) noexcept nogil:
    # Return the ASCII digits of a 32-bit value, most significant first if the result is stored big-endian.
    cdef uint64_t nibbles = (half | half << 16) & <uint64_t>0x0000FFFF0000FFFF
    nibbles = (nibbles | nibbles << 8) & <uint64_t>0x00FF00FF00FF00FF
    nibbles = (nibbles | nibbles << 4) & every_byte(0x0F)
    # Adding 6 carries into bit 4 exactly for the nibbles that are letters; from '9' + 1 to 'a' there are 39 codes.
    cdef uint64_t is_letter = (nibbles + every_byte(6)) >> 4 & every_byte(1)
    return nibbles + every_byte(0x30) + is_letter * 39


cdef inline void id_to_hex(uint64_t guid, char* out16) noexcept nogil:
    # Write exactly HEX_SIZE lowercase hex digits of the big-endian value; no terminating zero.
    cdef uint64_t high = htobe64(hex_digits_of(guid >> 32))
    cdef uint64_t low = htobe64(hex_digits_of(guid & <uint64_t>0xFFFFFFFF))
    memcpy(out16, &high, 8)
    memcpy(out16 + 8, &low, 8)


cdef inline uint64_t bytes_at_least(uint64_t text, uint64_t least) noexcept nogil:
    # Return, in the top bit of each byte, whether that byte of `text`, which is below 0x80, is at least `least`, 1 to
    # 0x80.
    return text + every_byte(0x80 - least)


cdef inline uint64_t half_of_hex(uint64_t text, uint64_t* bad) noexcept nogil:
    # Parse 8 hex digits, given as a big-endian word. Sets top bits in `bad` for bytes that are not lowercase hex
    # digits.
    cdef uint64_t low_bits = text & every_byte(0x7F)
    cdef uint64_t is_digit = bytes_at_least(low_bits, 0x30) & ~bytes_at_least(low_bits, 0x3A)
    cdef uint64_t is_letter = bytes_at_least(low_bits, 0x61) & ~bytes_at_least(low_bits, 0x67)
    bad[0] |= (text | ~(is_digit | is_letter)) & every_byte(0x80)
    cdef uint64_t nibbles = (text & every_byte(0x0F)) + (is_letter >> 7 & every_byte(1)) * 9
    nibbles = (nibbles | nibbles >> 4) & <uint64_t>0x00FF00FF00FF00FF
    nibbles = (nibbles | nibbles >> 8) & <uint64_t>0x0000FFFF0000FFFF
    return (nibbles | nibbles >> 16) & <uint64_t>0xFFFFFFFF


cdef inline int hex_to_id(const char* in16, uint64_t* out) noexcept nogil:
    # Parse HEX_SIZE bytes into out[0] and return 0; return -1 and keep out[0] if one is not a lowercase hex digit.
    cdef uint64_t high = 0
    cdef uint64_t low = 0
    cdef uint64_t bad = 0
    memcpy(&high, in16, 8)
    memcpy(&low, in16 + 8, 8)
    high = half_of_hex(be64toh(high), &bad)
    low = half_of_hex(be64toh(low), &bad)
    if bad:
        return -1
    out[0] = high << 32 | low
    return 0


cdef inline uint64_t id_after_steps(uint64_t guid, int64_t steps) noexcept nogil:
    # Return the id that a factory gives `steps` ids after this one while the clock stands still; before it if steps is
    # negative.
    cdef uint64_t node = guid & <uint64_t> (NODE_ID_COUNT - 1) << SEQUENCE_BITS
    cdef uint64_t sequence = guid & <uint64_t> ((1 << SEQUENCE_BITS) - 1)
    cdef uint64_t count = (guid >> TICK_SHIFT << SEQUENCE_BITS | sequence) + <uint64_t> steps
    return count >> SEQUENCE_BITS << TICK_SHIFT | node | count & <uint64_t> ((1 << SEQUENCE_BITS) - 1)


@cython.final
cdef class GuidFactory:
    cdef readonly uint64_t last_id     # all future ids are greater; 0 before the first
    cdef readonly uint32_t node_id     # 0 to NODE_ID_COUNT - 1

    cdef inline uint64_t next_id(self, int64_t wall_ns) noexcept nogil:
        # Return the next id, never 0. O(1), never blocks.
        cdef uint64_t node = <uint64_t>self.node_id << SEQUENCE_BITS
        # A time before the epoch wraps to a huge value, so one comparison finds both ends of the range.
        cdef uint64_t ticks = <uint64_t>(wall_ns >> TICK_NS_SHIFT) - EPOCH_TICKS
        cdef uint64_t candidate = 0
        if ticks <= TICKS_MAX:
            candidate = ticks << TICK_SHIFT | node
        if candidate <= self.last_id:
            candidate = self.last_id + 1
            if (candidate ^ node) >> SEQUENCE_BITS & (NODE_ID_COUNT - 1):
                candidate = ((self.last_id >> TICK_SHIFT) + 1) << TICK_SHIFT | node
        self.last_id = candidate
        return candidate

    cdef int resume_after(self, uint64_t last_id) except -1
