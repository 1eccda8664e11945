"""The bodies of MPUB and DMPUB from columns of Arrow tables, without a Python object per row.

    | size: int32 | count: int32 |  then for each message  | time: int64, DMPUB only | size: int32 | body |

A column of binary or string is two buffers: offsets, one more than there are rows, and the bytes of all rows one behind
the other. So rows are walked twice, in C: once to see how many fit, once to copy them. Nothing that the buffers say is
trusted: offsets that run backwards or out of the data are an error, not a read outside of them.

Source: docs/nsq/tcp-protocol.md, "MPUB"; docs/protocol-extensions.md, "DMPUB"; Arrow columnar format, "Variable-size
Binary Layout".
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyqd.hot.wire.frames cimport put_be32, put_be64

cdef enum:
    SIZE_BYTES = 4
    TIME_BYTES = 8
    DIGITS_MAX = 20

# Rows of one column of binary or string. All pointers are borrowed.
cdef struct Rows:
    const int32_t* offsets               # or NULL
    const int64_t* offsets_large         # or NULL
    const char* data                     # data[offsets[i]:offsets[i + 1]] is row i
    int64_t data_bytes
    const int64_t* times                 # one for each row, or NULL


cdef class _View:
    """Buffer of another object, held while this object lives."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, exporter):
        PyObject_GetBuffer(exporter, &self.buffer, PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef int64_t size_of(const Rows* rows, int64_t row) except -1:
    """Return the bytes of a row, at least 1."""
    cdef int64_t start, end
    if rows.offsets != NULL:
        start, end = rows.offsets[row], rows.offsets[row + 1]
    else:
        start, end = rows.offsets_large[row], rows.offsets_large[row + 1]
    if start < 0 or end < start or end > rows.data_bytes:
        raise ValueError(f"row {row} lies outside of its column")
    if start == end:
        raise ValueError(f"row {row} is empty, and a message has one byte at least")
    return end - start


cdef int digits_of(uint64_t number, char* out) noexcept nogil:
    """Write a number in decimal. Returns: the number of digits."""
    cdef char reverse[DIGITS_MAX]
    cdef int count = 0, index
    while True:
        reverse[count] = <char> (c"0" + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    for index in range(count):
        out[index] = reverse[count - 1 - index]
    return count


cdef char* put_row(
    char* out, const Rows* rows, int64_t row, const char* label, int64_t label_bytes, int64_t size,
) noexcept nogil:
    """Write one message. Returns: its end."""
    cdef int64_t start = rows.offsets[row] if rows.offsets != NULL else rows.offsets_large[row]
    if rows.times != NULL:
        put_be64(out, <uint64_t> rows.times[row])
        out += TIME_BYTES
    put_be32(out, <uint32_t> (label_bytes + size))
    out += SIZE_BYTES
    memcpy(out, label, label_bytes)
    memcpy(out + label_bytes, rows.data + start, size)
    return out + label_bytes + size


cdef class _Labels:
    """Labels of the bodies: a prefix, the row's number in decimal and a line feed; nothing without a prefix."""

    cdef bytes text
    cdef int64_t prefix_bytes
    cdef uint64_t number

    def __cinit__(self, bytes prefix not None, uint64_t number):
        self.text = prefix + bytes(DIGITS_MAX + 1) if prefix else b""
        self.prefix_bytes = len(prefix)
        self.number = number

    cdef int64_t label(self, int64_t row) noexcept:
        """Write the label of a row into `text`. Returns: its bytes."""
        cdef char* at
        cdef int count
        if self.prefix_bytes == 0:
            return 0
        at = PyBytes_AS_STRING(self.text) + self.prefix_bytes
        count = digits_of(self.number + <uint64_t> row, at)
        at[count] = c"\n"
        return self.prefix_bytes + count + 1


cdef tuple fitting(const Rows* rows, _Labels labels, int64_t first, int64_t end, int64_t body_bytes_max):
    """Return the bytes of the rows from `first` on that fit into a body, and the row after them."""
    cdef int64_t overhead_bytes = SIZE_BYTES + (TIME_BYTES if rows.times != NULL else 0)
    cdef int64_t total = SIZE_BYTES, message_bytes
    cdef int64_t row = first
    while row < end:
        message_bytes = overhead_bytes + labels.label(row) + size_of(rows, row)
        if message_bytes > INT32_MAX - SIZE_BYTES:
            raise ValueError(f"row {row} has {message_bytes} bytes, and no message has 2 GiB")
        if row > first and total + message_bytes > body_bytes_max:
            break
        total += message_bytes
        row += 1
    return total, row


def command(
    bytes head not None,
    offsets,
    data,
    int64_t first,
    int64_t end,
    int64_t body_bytes_max,
    *,
    int offset_bytes=4,
    times=None,
    bytes prefix not None=b"",
    uint64_t number=0,
):
    """Return a whole command with as many rows as fit into a body, at least one, and the row after them.

    head: the command's line. offsets: integers of offset_bytes, 4 or 8, in the machine's byte order, from row 0 on.
    data: the bytes that they point into. first, end: the wanted rows, at least one. body_bytes_max: the broker's
    --max-body-size. times: an int64 for each row from row 0 on, for DMPUB. prefix: if given, each body starts with the
    prefix, the decimal of number + row and a line feed. Raises: ValueError for an empty row and for offsets out of the
    data.
    """
    cdef _View offsets_view = _View(offsets), data_view = _View(data)
    cdef _View times_view = None if times is None else _View(times)
    cdef _Labels labels = _Labels(prefix, number)
    cdef Rows rows
    cdef int64_t inner_bytes, row, behind
    memset(&rows, 0, sizeof(Rows))
    if offset_bytes not in (4, 8):
        raise ValueError(f"offsets have 4 or 8 bytes, not {offset_bytes}")
    if not 0 <= first < end or end >= offsets_view.buffer.len // offset_bytes:
        raise ValueError(f"no rows {first} to {end} in a column of {offsets_view.buffer.len // offset_bytes - 1}")
    if times_view is not None:
        if end > times_view.buffer.len // TIME_BYTES:
            raise ValueError(f"no times for rows up to {end}")
        rows.times = <const int64_t*> times_view.buffer.buf
    if offset_bytes == 4:
        rows.offsets = <const int32_t*> offsets_view.buffer.buf
    else:
        rows.offsets_large = <const int64_t*> offsets_view.buffer.buf
    rows.data = <const char*> data_view.buffer.buf
    rows.data_bytes = data_view.buffer.len
    inner_bytes, behind = fitting(&rows, labels, first, end, body_bytes_max)
    if inner_bytes > INT32_MAX:
        raise ValueError(f"a body of {inner_bytes} bytes, and none has 2 GiB")
    cdef bytes built = PyBytes_FromStringAndSize(NULL, len(head) + SIZE_BYTES + inner_bytes)
    cdef char* out = PyBytes_AS_STRING(built)
    memcpy(out, PyBytes_AS_STRING(head), len(head))
    out += len(head)
    put_be32(out, <uint32_t> inner_bytes)
    put_be32(out + SIZE_BYTES, <uint32_t> (behind - first))
    out += 2 * SIZE_BYTES
    for row in range(first, behind):
        out = put_row(out, &rows, row, PyBytes_AS_STRING(labels.text), labels.label(row), size_of(&rows, row))
    assert out == PyBytes_AS_STRING(built) + len(head) + SIZE_BYTES + inner_bytes
    return built, behind
