"""Commands that publish rows of an Arrow column: compiled code if pyqd's wheel is installed, else plain Python."""

from typing import Any, Final, NamedTuple

import pyarrow as pa

OFFSET_BYTES: Final = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8, pa.large_string(): 8}


try:
    from pyqd.hot.wire.mpub import command as command
except ImportError:  # For a copy of the Python modules without the compiled ones.
    from pyqd.fallback.mpub import command


class BodyColumn(NamedTuple):
    """The rows of an Arrow column as two buffers that begin with row 0, and a time for each row or None."""

    offsets: Any
    data: Any
    offset_bytes: int
    rows: int
    times: Any = None

    @classmethod
    def of(cls, values: pa.Array, times: pa.Array | None = None) -> "BodyColumn":
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
