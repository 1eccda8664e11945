"""Reader of a journal of record batches in Arrow's stream format: tells an incomplete end from damage.

A kill leaves an incomplete record batch at the end of the file, whose messages are not finished. A record batch that
cannot be decoded although the file has all of its bytes is damaged: it and those after it hold finished messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from pyqd.tools.to_file.disk import FileStorageError

# Before the metadata: a mark, and the size of the metadata.
HEADER_BYTES: Final = 8
# The metadata of a record batch has some 600 bytes, whatever its number of rows.
METADATA_BYTES_MAX: Final = 64 << 10


class ArrowJournal:
    """One journal. damage: offset and cause of the damage that has ended `batches`; empty without damage."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.damage = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches up to the end, to an incomplete one or to damage. Raises: FileStorageError."""
        size = os.stat(self._path).st_size
        schema: pa.Schema | None = None
        with pa.OSFile(self._path) as source:
            while (offset := source.tell()) < size:
                piece = self._read(source, offset, size)
                if piece is None:
                    return
                try:
                    if schema is None:
                        schema = pa.ipc.read_schema(piece)
                        continue
                    batch = pa.ipc.read_record_batch(piece, schema)
                    # Places outside the data would end the process when the batch is converted.
                    batch.validate(full=True)
                except (pa.ArrowException, OSError) as error:
                    self._note(offset, error)
                    return
                yield batch

    def _read(self, source: Any, offset: int, size: int) -> Any:
        """Return the schema or record batch at an offset; None if it is damaged. Raises: FileStorageError."""
        try:
            return pa.ipc.read_message(source)
        except (pa.ArrowException, EOFError, OSError) as error:
            # Arrow raises an OSError without a number for data that it cannot decode.
            if isinstance(error, OSError) and error.errno is not None:
                raise FileStorageError(f"cannot read {self._path}: {error.strerror or error}") from error
            if not _is_incomplete(source, offset, size):
                self._note(offset, error)
            return None

    def _note(self, offset: int, error: Exception) -> None:
        self.damage = f"damaged at offset {offset} ({error})"


def _is_incomplete(source: Any, offset: int, size: int) -> bool:
    """Return whether reading at an offset has failed because the file ends too early."""
    # Arrow has read all that is there then.
    if source.tell() < size:
        return False
    source.seek(offset)
    header = source.read(HEADER_BYTES)
    # A damaged size may reach past the end too.
    return len(header) < HEADER_BYTES or int.from_bytes(header[4:], "little") <= METADATA_BYTES_MAX
