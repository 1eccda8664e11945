from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef enum:
    LINE_BYTES_MAX = 16384               # a command line with its LF
    NAME_BYTES_MAX = 64
    PARAMS_KEPT = 2                      # no command uses more

cdef enum Scan:
    SCAN_NEED_MORE = 0
    SCAN_READY = 1
    SCAN_TOO_LONG = 2                    # no LF within LINE_BYTES_MAX
    SCAN_BAD_COUNT = 3                   # a batch: the number of messages is out of range
    SCAN_BAD_SIZE = 4                    # a batch: a message's size is not positive
    SCAN_TOO_BIG = 5                     # a batch: a message is larger than the limit

cdef enum Command:
    COMMAND_UNKNOWN = 0
    COMMAND_FIN = 1
    COMMAND_PUB = 2
    COMMAND_MPUB = 3
    COMMAND_DPUB = 4
    COMMAND_RDY = 5
    COMMAND_REQ = 6
    COMMAND_TOUCH = 7
    COMMAND_NOP = 8
    COMMAND_SUB = 9
    COMMAND_IDENTIFY = 10
    COMMAND_AUTH = 11
    COMMAND_CLS = 12
    COMMAND_DMPUB = 13                   # an extension

cdef struct Text:
    const char* at                       # points into the scanned buffer
    uint32_t size_bytes

cdef struct CommandLine:
    Command command
    Text name                            # the first token
    Text[PARAMS_KEPT] params
    uint32_t param_count                 # all of them, kept or not
    uint32_t line_bytes                  # with CR and LF

cdef struct Batch:
    uint32_t index                       # messages checked so far
    uint32_t count                       # messages in all; 0: not read yet
    int32_t size_bytes                   # of the message that was refused
    uint64_t offset                      # bytes checked so far, from the count on
    uint64_t body_words                  # 8-byte words that the checked bodies take, each rounded up

cdef extern from *:
    """
    #include <string.h>
    static inline int32_t pyqd_read_be32(const char* at) {
        uint32_t value;
        memcpy(&value, at, 4);
        return (int32_t) __builtin_bswap32(value);
    }
    static inline int64_t pyqd_read_be64(const char* at) {
        uint64_t value;
        memcpy(&value, at, 8);
        return (int64_t) __builtin_bswap64(value);
    }
    """
    int32_t read_be32 "pyqd_read_be32" (const char* at) noexcept nogil
    int64_t read_be64 "pyqd_read_be64" (const char* at) noexcept nogil

cdef inline bytes text_of(const Text* text):
    return text.at[:text.size_bytes]

cdef Scan scan_line(const char* at, uint64_t size_bytes, CommandLine* line) noexcept nogil
cdef Scan scan_batch(
    const char* at, uint64_t size_bytes, int64_t max_msg_bytes, int64_t max_count, uint32_t lead_bytes,
    Batch* batch) noexcept nogil
cdef bint is_name(const char* at, uint32_t size_bytes) noexcept nogil
cdef bint parse_digits(const char* at, uint32_t size_bytes, int64_t* value) noexcept nogil
