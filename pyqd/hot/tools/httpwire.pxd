# Parser of an HTTP response for the generator: its end, and whether its status is 200.
from libc.stdint cimport int64_t
from libc.string cimport memcmp

cdef extern from "<string.h>" nogil:
    void* memmem(const void* hay, size_t hay_bytes, const void* needle, size_t needle_bytes)

cdef enum:
    HTTP_MORE = 0                  # not all there yet
    HTTP_BAD = -1                  # no response, or none with a length
    HTTP_REFUSED = -2              # any status but 200

cdef inline int64_t http_message_bytes(const char* text, int64_t size) noexcept nogil:
    # Return the bytes of the message with a body at text: its head and body; or HTTP_MORE, or HTTP_BAD.
    cdef const char* end = <const char*>memmem(text, <size_t>size, b"\r\n\r\n", 4)
    cdef const char* length
    cdef int64_t body_bytes = 0
    if end == NULL:
        return HTTP_MORE
    length = <const char*>memmem(text, <size_t>(end - text), b"Content-Length: ", 16)
    if length == NULL:
        return HTTP_BAD
    length += 16
    while b"0" <= length[0] <= b"9":
        body_bytes = body_bytes * 10 + (length[0] - 48)
        length += 1
    return (end - text) + 4 + body_bytes

cdef inline int64_t http_response_bytes(const char* text, int64_t size) noexcept nogil:
    # Return the bytes of the response at text, or one of the values above.
    cdef int64_t total = http_message_bytes(text, size)
    if total == HTTP_BAD:
        return HTTP_BAD
    if total == HTTP_MORE or total > size:
        return HTTP_MORE
    return total if memcmp(text, b"HTTP/1.1 200 ", 13) == 0 else HTTP_REFUSED
