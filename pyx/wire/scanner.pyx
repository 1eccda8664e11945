"""Scanner that turns bytes into commands.

    NAME[ SP PARAM]* [CR] LF [ int32 size, body ]

A command line is split on every single space, so two spaces make an empty parameter. The body, if the command has one,
belongs to the caller: some commands are refused before their body is read. An MPUB's body is walked by its inner sizes,
as nsqd does; its outer size is only checked for range. If the buffer ends during the walk, the walk resumes at the same
place. So a large batch that arrives in small packets is walked once and not once per packet.

The module keeps no state, touches no socket and knows no topic. Source: docs/nsq/tcp-protocol.md, "Client to server
framing", "MPUB".
"""

from libc.string cimport memchr, memcmp

cdef extern from *:
    """
    #define LETTERS(first) [first ... first + 25] = 1
    static const unsigned char pyqd_name_bytes[256] = {
        LETTERS('a'), LETTERS('A'), ['0' ... '9'] = 1, ['.'] = 1, ['_'] = 1, ['-'] = 1,
    };
    #undef LETTERS
    """
    const unsigned char* NAME_BYTES "pyqd_name_bytes"

cdef const char* EPHEMERAL = "#ephemeral"
cdef enum:
    EPHEMERAL_BYTES = 10


cdef inline bint token_is(const Text* token, const char* word, uint32_t size_bytes) noexcept nogil:
    return token.size_bytes == size_bytes and memcmp(token.at, word, size_bytes) == 0


cdef Command command_of(const Text* name) noexcept nogil:
    if name.size_bytes == 3:
        if token_is(name, "FIN", 3):
            return COMMAND_FIN
        if token_is(name, "PUB", 3):
            return COMMAND_PUB
        if token_is(name, "RDY", 3):
            return COMMAND_RDY
        if token_is(name, "REQ", 3):
            return COMMAND_REQ
        if token_is(name, "NOP", 3):
            return COMMAND_NOP
        if token_is(name, "SUB", 3):
            return COMMAND_SUB
        if token_is(name, "CLS", 3):
            return COMMAND_CLS
    elif name.size_bytes == 4:
        if token_is(name, "MPUB", 4):
            return COMMAND_MPUB
        if token_is(name, "DPUB", 4):
            return COMMAND_DPUB
        if token_is(name, "AUTH", 4):
            return COMMAND_AUTH
    elif token_is(name, "DMPUB", 5):
        return COMMAND_DMPUB
    elif token_is(name, "TOUCH", 5):
        return COMMAND_TOUCH
    elif token_is(name, "IDENTIFY", 8):
        return COMMAND_IDENTIFY
    return COMMAND_UNKNOWN


cdef Scan scan_line(const char* at, uint64_t size_bytes, CommandLine* line) noexcept nogil:
    """Split the command line at `at`. Returns: ready, need more, or too long."""
    cdef uint64_t limit = min(size_bytes, <uint64_t> LINE_BYTES_MAX)
    cdef const char* end = <const char*> memchr(at, c"\n", limit)
    cdef const char* space
    cdef const char* rest = at
    cdef Text token
    cdef bint is_first = True
    if end == NULL:
        return SCAN_TOO_LONG if size_bytes >= LINE_BYTES_MAX else SCAN_NEED_MORE
    line.line_bytes = <uint32_t> (end - at) + 1
    if end > at and (end - 1)[0] == c"\r":
        end -= 1
    line.param_count = 0
    while True:
        space = <const char*> memchr(rest, c" ", end - rest)
        token = Text(at=rest, size_bytes=<uint32_t> ((end if space == NULL else space) - rest))
        if is_first:
            line.name = token
            is_first = False
        else:
            if line.param_count < PARAMS_KEPT:
                line.params[line.param_count] = token
            line.param_count += 1
        if space == NULL:
            break
        rest = space + 1
    line.command = command_of(&line.name)
    return SCAN_READY


cdef Scan scan_batch(
    const char* at, uint64_t size_bytes, int64_t max_msg_bytes, int64_t max_count, uint32_t lead_bytes, Batch* batch,
) noexcept nogil:
    """Check the received part of a batch's body after its outer size: `int32 count, {lead, int32 size, body}*`.

    lead_bytes: of the unchecked field before each size; 0 for MPUB. batch: zeros at first; kept by the caller until the
    command is complete. Returns: ready, need more, or the fault.
    """
    cdef int32_t size
    if batch.count == 0:
        if size_bytes < 4:
            return SCAN_NEED_MORE
        size = read_be32(at)
        if size < 1 or size > max_count:
            batch.size_bytes = size
            return SCAN_BAD_COUNT
        batch.count = <uint32_t> size
        batch.offset = 4
    while batch.index < batch.count:
        if size_bytes < batch.offset + lead_bytes + 4:
            return SCAN_NEED_MORE
        size = read_be32(at + batch.offset + lead_bytes)
        if size < 1 or size > max_msg_bytes:
            batch.size_bytes = size
            return SCAN_BAD_SIZE if size < 1 else SCAN_TOO_BIG
        if size_bytes - batch.offset - lead_bytes - 4 < <uint64_t> size:
            return SCAN_NEED_MORE
        batch.offset += lead_bytes + 4 + <uint64_t> size
        batch.body_words += (<uint64_t> size + 7) >> 3
        batch.index += 1
    return SCAN_READY


cdef bint is_name(const char* at, uint32_t size_bytes) noexcept nogil:
    """Return whether the bytes are a valid name of a topic or channel."""
    cdef uint32_t index
    if size_bytes < 1 or size_bytes > NAME_BYTES_MAX:
        return False
    if size_bytes > EPHEMERAL_BYTES and memcmp(at + size_bytes - EPHEMERAL_BYTES, EPHEMERAL, EPHEMERAL_BYTES) == 0:
        size_bytes -= EPHEMERAL_BYTES
    for index in range(size_bytes):
        if not NAME_BYTES[<unsigned char> at[index]]:
            return False
    return True


cdef bint parse_digits(const char* at, uint32_t size_bytes, int64_t* value) noexcept nogil:
    """Parse a decimal number; no digits at all read as 0. It wraps around at 64 bits and is then signed, as in nsqd.

    Returns: False if a byte is no digit.
    """
    cdef uint64_t total = 0
    cdef uint32_t index
    for index in range(size_bytes):
        if at[index] < c"0" or at[index] > c"9":
            return False
        total = total * 10 + <uint64_t> (at[index] - c"0")
    value[0] = <int64_t> total
    return True
