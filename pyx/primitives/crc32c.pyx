"""CRC-32C, the checksum of the records on disk.

The polynomial is Castagnoli's, 0x1EDC6F41, in the usual reflected form: state 0xFFFFFFFF before, inverted after. The
result can be continued: crc32c(crc32c(0, a), b) == crc32c(0, a + b). Source: RFC 3720, appendix B.4, has the known
values.

Theory of the fast path
    The instruction crc32q takes 8 bytes, gives its result after 3 cycles, and a core can start one in every cycle. One
    chain therefore runs at a third of the possible rate. So the input is cut into three equal runs A, B, C of `run`
    words (8 bytes each), which the loop takes in step, and the states are joined at the end.

    Joining: let a be the state after A. It has to be carried over B and C, which is a multiplication by x^(128 run)
    modulo the polynomial, and b, carried over C, by x^(64 run). In reflected bit order the carry-less product of two
    32-bit values, read as a 64-bit word, is their product times x, and crc32q multiplies the word it takes by x^32.
    With

        carry[n] = x^(64 n - 33) mod P

    the word clmul(a, carry[2 run]) ^ clmul(b, carry[run]), added to the last word of C before crc32q takes that, does
    the whole joining, for two multiplications and no further reduction. carry[1] is x^31, which is the integer 1 in
    reflected order, and carry[n + 1] is the state that 8 zero bytes make of carry[n]; so the table needs no constants
    from elsewhere.

Invariants
    1. run <= CRC_RUN_WORDS_MAX, so that carry[2 * run] exists; a longer input goes in several rounds.
    2. Both implementations give equal results for every input (tests/property/test_crc32c_property.py).

Not done: folding with pclmulqdq alone, whose set-up wants inputs longer than records are. Rejected: a few fixed run
lengths with a table each, as a record of 248 bytes falls between any two of them; here every length is cut in three.
Without SSE 4.2 and PCLMULQDQ a table-driven version takes 8 bytes a step ("slicing by 8").
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <endian.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #define CRC_POLYNOMIAL_REFLECTED 0x82F63B78u

    /* A round takes at most 3 runs of this many words: 6 KiB, and 2 KiB of carry table. */
    #define CRC_RUN_WORDS_MAX 256

    /* Below this many words one chain is faster than three and their joining. */
    #define CRC_SPLIT_WORDS_MIN 9

    /* crc_slices[k][byte]: the state which `byte` followed by k zero bytes makes of state 0. */
    static uint32_t crc_slices[8][256];
    static uint32_t crc_carry[2 * CRC_RUN_WORDS_MAX + 1];
    static int crc_has_hardware = 0;

    static inline uint64_t crc_load_word(const unsigned char *at)
    {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }

    static uint32_t crc_extend_software(uint32_t state, const unsigned char *at, size_t count)
    {
        for (; count >= 8; count -= 8, at += 8) {
            uint64_t word = le64toh(crc_load_word(at)) ^ state;
            state = crc_slices[7][word & 0xff] ^ crc_slices[6][(word >> 8) & 0xff]
                  ^ crc_slices[5][(word >> 16) & 0xff] ^ crc_slices[4][(word >> 24) & 0xff]
                  ^ crc_slices[3][(word >> 32) & 0xff] ^ crc_slices[2][(word >> 40) & 0xff]
                  ^ crc_slices[1][(word >> 48) & 0xff] ^ crc_slices[0][word >> 56];
        }
        for (; count > 0; count--, at++)
            state = crc_slices[0][(state ^ *at) & 0xff] ^ (state >> 8);
        return state;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int crc_detect_hardware(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    }

    __attribute__((target("sse4.2,pclmul")))
    static inline uint64_t crc_carry_over(uint64_t state, uint32_t carry)
    {
        __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)state), _mm_cvtsi32_si128((int)carry), 0);
        return (uint64_t)_mm_cvtsi128_si64(product);
    }

    __attribute__((target("sse4.2,pclmul")))
    static uint32_t crc_extend_hardware(uint32_t start, const unsigned char *at, size_t count)
    {
        uint64_t state = start;
        size_t words = count / 8;

        while (words >= CRC_SPLIT_WORDS_MIN) {
            size_t run = words / 3 < CRC_RUN_WORDS_MAX ? words / 3 : CRC_RUN_WORDS_MAX;
            const unsigned char *last = at + 8 * (run - 1);
            uint64_t b = 0, c = 0;
            for (; at < last; at += 8) {
                state = _mm_crc32_u64(state, crc_load_word(at));
                b = _mm_crc32_u64(b, crc_load_word(at + 8 * run));
                c = _mm_crc32_u64(c, crc_load_word(at + 16 * run));
            }
            state = _mm_crc32_u64(state, crc_load_word(at));
            b = _mm_crc32_u64(b, crc_load_word(at + 8 * run));
            state = _mm_crc32_u64(c, crc_load_word(at + 16 * run) ^ crc_carry_over(state, crc_carry[2 * run])
                                     ^ crc_carry_over(b, crc_carry[run]));
            at += 16 * run + 8;
            words -= 3 * run;
        }
        for (; words > 0; words--, at += 8)
            state = _mm_crc32_u64(state, crc_load_word(at));
        for (count &= 7; count > 0; count--, at++)
            state = _mm_crc32_u8((uint32_t)state, *at);
        return (uint32_t)state;
    }
    #else
    static int crc_detect_hardware(void) { return 0; }

    static uint32_t crc_extend_hardware(uint32_t start, const unsigned char *at, size_t count)
    {
        return crc_extend_software(start, at, count);
    }
    #endif

    static void crc_prepare(void)
    {
        static const unsigned char zeros[8];
        int byte, bit, k, n;

        for (byte = 0; byte < 256; byte++) {
            uint32_t state = (uint32_t)byte;
            for (bit = 0; bit < 8; bit++)
                state = (state >> 1) ^ (state & 1 ? CRC_POLYNOMIAL_REFLECTED : 0);
            crc_slices[0][byte] = state;
        }
        for (k = 1; k < 8; k++)
            for (byte = 0; byte < 256; byte++) {
                uint32_t before = crc_slices[k - 1][byte];
                crc_slices[k][byte] = crc_slices[0][before & 0xff] ^ (before >> 8);
            }
        crc_carry[1] = 1;
        for (n = 2; n <= 2 * CRC_RUN_WORDS_MAX; n++)
            crc_carry[n] = crc_extend_software(crc_carry[n - 1], zeros, 8);
        crc_has_hardware = crc_detect_hardware();
    }
    """
    const bint crc_has_hardware
    void crc_prepare() noexcept nogil
    uint32_t crc_extend_software(uint32_t state, const unsigned char* at, size_t count) noexcept nogil
    uint32_t crc_extend_hardware(uint32_t state, const unsigned char* at, size_t count) noexcept nogil

crc_prepare()


cdef uint32_t crc32c(uint32_t crc, const void* data, size_t count) noexcept nogil:
    """Return the CRC-32C of data[:count], continued from `crc`, the checksum of the bytes before; 0 to start.

    `data` needs no alignment, and may be NULL if count is 0.
    """
    if crc_has_hardware:
        return ~crc_extend_hardware(~crc, <const unsigned char*>data, count)
    return ~crc_extend_software(~crc, <const unsigned char*>data, count)


cdef uint32_t crc32c_software(uint32_t crc, const void* data, size_t count) noexcept nogil:
    """Return the same without the processor's CRC instructions."""
    return ~crc_extend_software(~crc, <const unsigned char*>data, count)


assert crc32c(0, <const char*>b"123456789", 9) == 0xE3069283
assert crc32c_software(0, <const char*>b"123456789", 9) == 0xE3069283


def value(data, uint32_t crc=0):
    """Return the CRC-32C of a bytes-like object, 0 to 2**32 - 1.

    crc: the checksum of the bytes before these. Raises: TypeError if data is not bytes-like, BufferError if it is not
    contiguous.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32c(crc, view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
