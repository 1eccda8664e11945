"""Scanner that recognises the plain publish over HTTP.

Nearly every request to a broker's HTTP port has one of three forms:

    POST /pub?topic=NAME HTTP/1.1 CR LF    or
    POST /mpub?topic=NAME HTTP/1.1 CR LF    or
    POST /mpub?topic=NAME&binary=true HTTP/1.1 CR LF
    {one of a few headers that mean nothing here, Host once, Content-Length once} CR LF
    CR LF
    body

The scanner works on the bytes and creates no object. A request that differs in any way is left to the parser and the
routes: another parameter, an escape, a header not on the list, a folded line, a bare LF, bytes outside of ASCII, an
incomplete body. The routes define the meaning of a request. The scanner accepts a subset of the same requests with the
same meaning, which tests/property/test_httpscan_model.py compares.

Source: RFC 9112, sections 3 to 6; docs/nsq/http-api.md, "POST /pub" and "POST /mpub".
"""

from libc.string cimport memchr, memcmp

from pyqd.hot.wire.scanner cimport is_name

cdef extern from "<strings.h>" nogil:
    int strncasecmp(const char* a, const char* b, size_t size_bytes)

cdef const char* START_PUB = b"POST /pub?topic="
cdef const char* START_MPUB = b"POST /mpub?topic="
cdef const char* BINARY = b"&binary=true"
cdef const char* VERSION = b" HTTP/1.1\r"
cdef const char* KEEP_ALIVE = b"keep-alive"
cdef const char* USER_AGENT = b"user-agent:"
cdef enum:
    START_PUB_BYTES = 16
    START_MPUB_BYTES = 17
    BINARY_BYTES = 12
    VERSION_BYTES = 10                   # with the CR, which the LF follows
    KEEP_ALIVE_BYTES = 10
    USER_AGENT_BYTES = 11
    LENGTH_DIGITS_MAX = 9

cdef enum Header:
    HEADER_OTHER = 0
    HEADER_IDLE = 1                      # does not affect how the request is read or answered
    HEADER_HOST = 2
    HEADER_LENGTH = 3
    HEADER_CONNECTION = 4


cdef inline bint named(const Text* name, const char* word) noexcept nogil:
    return strncasecmp(name.at, word, name.size_bytes) == 0


cdef Header header_of(const Text* name) noexcept nogil:
    if name.size_bytes == 4:
        return HEADER_HOST if named(name, b"host") else HEADER_OTHER
    if name.size_bytes == 14:
        return HEADER_LENGTH if named(name, b"content-length") else HEADER_OTHER
    if name.size_bytes == 10:
        if named(name, b"connection"):
            return HEADER_CONNECTION
        return HEADER_IDLE if named(name, b"user-agent") else HEADER_OTHER
    if name.size_bytes == 6:
        return HEADER_IDLE if named(name, b"accept") else HEADER_OTHER
    if name.size_bytes == 12:
        return HEADER_IDLE if named(name, b"content-type") else HEADER_OTHER
    if name.size_bytes == 15:
        if named(name, b"accept-encoding") or named(name, b"accept-language"):
            return HEADER_IDLE
    return HEADER_OTHER


cdef bint is_printable(const Text* value) noexcept nogil:
    cdef uint32_t index
    for index in range(value.size_bytes):
        if not c" " <= value.at[index] <= c"~":
            return False
    return True


cdef int64_t length_of(const Text* value) noexcept nogil:
    """Return the number in the digits; -1 if they are invalid or too many."""
    cdef int64_t total = 0
    cdef uint32_t index
    if not 1 <= value.size_bytes <= LENGTH_DIGITS_MAX:
        return -1
    for index in range(value.size_bytes):
        if not c"0" <= value.at[index] <= c"9":
            return -1
        total = 10 * total + (value.at[index] - c"0")
    return total


cdef int64_t scan_headers(const char* at, const char* end, Text* host, int64_t* body_bytes) noexcept nogil:
    """Walk over header lines and the empty line after them. Returns: their bytes; 0 if one of them is not plain."""
    cdef const char* line = at
    cdef const char* stop
    cdef const char* colon
    cdef Text name
    cdef Text value
    cdef Header header
    cdef bint host_seen = False
    body_bytes[0] = -1
    while True:
        stop = <const char*> memchr(line, c"\n", end - line)
        if stop == NULL or stop == line or (stop - 1)[0] != c"\r":
            return 0
        if stop - line == 1:
            return (stop + 1 - at) if host_seen and body_bytes[0] >= 0 else 0
        colon = <const char*> memchr(line, c":", stop - line)
        if colon == NULL:
            return 0
        name = Text(at=line, size_bytes=<uint32_t> (colon - line))
        value = Text(at=colon + 1, size_bytes=<uint32_t> (stop - 1 - (colon + 1)))
        if value.size_bytes != 0 and value.at[0] == c" ":
            value = Text(at=value.at + 1, size_bytes=value.size_bytes - 1)
        header = header_of(&name)
        if header == HEADER_OTHER or not is_printable(&value):
            return 0
        if header == HEADER_HOST:
            if host_seen:
                return 0
            host_seen = True
            host[0] = value
        elif header == HEADER_LENGTH:
            if body_bytes[0] >= 0:
                return 0
            body_bytes[0] = length_of(&value)
            if body_bytes[0] < 0:
                return 0
        elif header == HEADER_CONNECTION:
            if value.size_bytes != KEEP_ALIVE_BYTES or strncasecmp(value.at, KEEP_ALIVE, KEEP_ALIVE_BYTES) != 0:
                return 0
        line = stop + 1


cdef const char* scan_target(const char* at, const char* end, PlainPublish* found) noexcept nogil:
    """Recognise the start of a request line. Returns: the end of its target; NULL if it is not plain."""
    cdef const char* name
    cdef const char* stop
    cdef const char* space
    if end - at >= START_PUB_BYTES and memcmp(at, START_PUB, START_PUB_BYTES) == 0:
        found.form = PLAIN_PUB
        name = at + START_PUB_BYTES
    elif end - at >= START_MPUB_BYTES and memcmp(at, START_MPUB, START_MPUB_BYTES) == 0:
        found.form = PLAIN_LINES
        name = at + START_MPUB_BYTES
    else:
        return NULL
    space = stop = <const char*> memchr(name, c" ", end - name)
    if space == NULL:
        return NULL
    if (
        found.form == PLAIN_LINES and space - name > BINARY_BYTES
        and memcmp(space - BINARY_BYTES, BINARY, BINARY_BYTES) == 0
    ):
        found.form = PLAIN_BINARY
        stop = space - BINARY_BYTES
    found.topic = Text(at=name, size_bytes=<uint32_t> (stop - name))
    # In a target, # begins a fragment, which clients do not send; the routes handle it.
    if not is_name(name, found.topic.size_bytes) or memchr(name, c"#", found.topic.size_bytes):
        return NULL
    return space


cdef int64_t scan_plain_publish(
    const char* at, uint64_t size_bytes, const PlainLimits* limits, PlainPublish* found,
) noexcept nogil:
    """Recognise a plain publish at `at`. Returns: its bytes; 0 if it is not plain or incomplete."""
    cdef const char* head_end = at + min(size_bytes, <uint64_t> PLAIN_HEAD_BYTES_MAX)
    cdef const char* space = scan_target(at, head_end, found)
    cdef const char* headers
    cdef int64_t headers_bytes
    cdef int64_t body_bytes = 0
    cdef int64_t head_bytes
    if space == NULL or head_end - space <= VERSION_BYTES or memcmp(space, VERSION, VERSION_BYTES) != 0:
        return 0
    if (space + VERSION_BYTES)[0] != c"\n":
        return 0
    headers = space + VERSION_BYTES + 1
    headers_bytes = scan_headers(headers, head_end, &found.host, &body_bytes)
    if headers_bytes == 0 or body_bytes < 1:
        return 0
    if body_bytes > (limits.msg_bytes_max if found.form == PLAIN_PUB else limits.body_bytes_max):
        return 0
    head_bytes = (headers - at) + headers_bytes
    if <uint64_t> (head_bytes + body_bytes) > size_bytes:
        return 0
    found.body = Text(at=at + head_bytes, size_bytes=<uint32_t> body_bytes)
    found.headers = Text(at=headers, size_bytes=<uint32_t> headers_bytes)
    return head_bytes + body_bytes


cdef Text user_agent_in(const Text* headers) noexcept nogil:
    """Return the value of the header User-Agent in the headers of a plain publish; empty if it has none."""
    cdef const char* line = headers.at
    cdef const char* end = headers.at + headers.size_bytes
    cdef const char* stop
    while line < end:
        stop = <const char*> memchr(line, c"\n", end - line)
        if stop == NULL:
            break
        if stop - line > USER_AGENT_BYTES and strncasecmp(line, USER_AGENT, USER_AGENT_BYTES) == 0:
            line += USER_AGENT_BYTES
            if line[0] == c" ":
                line += 1
            return Text(at=line, size_bytes=<uint32_t> (stop - 1 - line))
        line = stop + 1
    return Text(at=headers.at, size_bytes=0)


FORMS = ("pub", "lines", "binary")


def plain_publish(bytes data not None, int64_t msg_bytes_max, int64_t body_bytes_max):
    """Scan one request, for tests. Returns: (form, topic, body, bytes used), or None if it is not plain."""
    cdef PlainPublish found
    cdef PlainLimits limits = PlainLimits(msg_bytes_max=msg_bytes_max, body_bytes_max=body_bytes_max)
    cdef int64_t used = scan_plain_publish(data, <uint64_t> len(data), &limits, &found)
    if used == 0:
        return None
    return FORMS[found.form], found.topic.at[:found.topic.size_bytes], found.body.at[:found.body.size_bytes], used
