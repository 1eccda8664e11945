"""Commands that publish rows of a column, in Python. Compiled form: pyqd.hot.wire.mpub."""

import struct
from array import array
from typing import Any

_COUNT = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
_TIME_AND_SIZE = struct.Struct(">qi")


def command(
    head: bytes,
    offsets: Any,
    data: Any,
    first: int,
    end: int,
    body_bytes_max: int,
    *,
    offset_bytes: int = 4,
    times: Any = None,
    prefix: bytes = b"",
    number: int = 0,
) -> tuple[bytes, int]:
    """Return a whole command with as many rows as fit into a body, at least one, and the row after them.

    Arguments and errors are those of pyqd.hot.wire.mpub.command.
    """
    starts = array("i" if offset_bytes == 4 else "q")
    starts.frombytes(memoryview(offsets).cast("B")[: offset_bytes * (end + 1)])
    dues = array("q")
    if times is not None:
        dues.frombytes(memoryview(times).cast("B")[: 8 * end])
    overhead_bytes = 4 if times is None else 12
    view = memoryview(data).cast("B")
    parts: list[bytes | memoryview] = []
    total = 4
    row = first
    while row < end:
        start, stop = starts[row], starts[row + 1]
        if not 0 <= start <= stop <= len(view):
            raise ValueError(f"row {row} lies outside of its column")
        if start == stop:
            raise ValueError(f"row {row} is empty, and a message has one byte at least")
        label = b"%s%d\n" % (prefix, number + row) if prefix else b""
        size = len(label) + stop - start
        if row > first and total + overhead_bytes + size > body_bytes_max:
            break
        total += overhead_bytes + size
        parts += (_SIZE.pack(size) if times is None else _TIME_AND_SIZE.pack(dues[row], size), label, view[start:stop])
        row += 1
    return b"".join((head, _COUNT.pack(total, row - first), *parts)), row
