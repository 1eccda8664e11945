"""Commands that publish rows of an Arrow column: compiled code if pyqd's wheel is installed, else plain Python.

Both forms take the same arguments and return the same bytes.
"""

import struct
from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

_COUNT = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
_TIME_AND_SIZE = struct.Struct(">qi")

OFFSET_BYTES: Final = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8, pa.large_string(): 8}


def command_in_python(
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


def _command() -> Callable[..., tuple[bytes, int]]:
    try:
        from pyqd.hot.wire.mpub import command
    except ImportError:
        return command_in_python
    return command


command = _command()


class Column(NamedTuple):
    """The rows of an Arrow column as two buffers that begin with row 0, and a time for each row or None."""

    offsets: Any
    data: Any
    offset_bytes: int
    rows: int
    times: Any = None

    @classmethod
    def of(cls, values: pa.Array, times: pa.Array | None = None) -> "Column":
        """Return a column of binary or string. times: of int64. Neither has nulls."""
        offset_bytes = OFFSET_BYTES[values.type]
        _, offsets, data = values.buffers()
        due = None if times is None else times.buffers()[1].slice(times.offset * 8)
        return cls(offsets.slice(values.offset * offset_bytes), data or b"", offset_bytes, len(values), due)

    def command(
        self, head: bytes, first: int, end: int, bytes_max: int, prefix: bytes, number: int
    ) -> tuple[bytes, int]:
        """Return a command of rows from `first` to before `end` at most, and the row after them."""
        return command(
            head,
            self.offsets,
            self.data,
            first,
            end,
            bytes_max,
            offset_bytes=self.offset_bytes,
            times=self.times,
            prefix=prefix,
            number=number,
        )
