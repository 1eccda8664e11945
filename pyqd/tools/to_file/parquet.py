"""Parquet files: messages go to a journal first, and the journal becomes the file when it gets no more of them.

A Parquet file is readable only with the footer at its end, but messages are finished long before. So each flush appends
a record batch to a journal in Arrow's stream format, and syncs it. At the end the journal is converted, and the Parquet
file takes the journal's place in one step. A journal that a kill has left is converted at the next start, without a
record batch that is incomplete. A damaged journal is kept too, and the Parquet file has the rows before the damage.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyqd.client.message import Message
from pyqd.tools.to_file import disk
from pyqd.tools.to_file.disk import FileStorageError
from pyqd.tools.to_file.encodings import Lines

WORKING_SUFFIX: Final = ".partial"
DAMAGED_SUFFIX: Final = ".damaged"
MAGIC: Final = b"PAR1"
# A row group has about so many rows or bytes.
GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 64 << 20
# Before the metadata of a record batch: a mark, and the size of the metadata.
HEADER_BYTES: Final = 8
# The metadata of a record batch has some 600 bytes, whatever its number of rows.
METADATA_BYTES_MAX: Final = 64 << 10
# The columns of docs/spark.md.
SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
    ]
)

logger = logging.getLogger("pyqd.tools.to_file")


class Parquet(Lines):
    """Rows with body, topic, channel, broker, time, id and number of attempts."""

    suffix = ".parquet"
    is_plain = False

    def __init__(self, topic: str, channel: str) -> None:
        self._topic = topic
        self._channel = channel

    def head(self) -> bytes:
        return bytes(SCHEMA.serialize())

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Return a record batch in Arrow's stream format; without a message, the beginning of a file."""
        if not messages:
            return self.head()
        return bytes(self._batch(messages).serialize())

    def _batch(self, messages: Sequence[Message]) -> pa.RecordBatch:
        count = len(messages)
        times = pa.array([message.timestamp_ns for message in messages], pa.int64())
        columns = [
            pa.array([message.body for message in messages], pa.binary()),
            pa.array([self._topic] * count, pa.string()),
            pa.array([self._channel] * count, pa.string()),
            pa.array([message.broker for message in messages], pa.string()),
            times.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False),
            times,
            pa.array([message.id for message in messages], pa.string()),
            pa.array([message.attempts for message in messages], pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def working_name(self, name: str) -> str:
        """Return a hidden name: readers of the directory must not take a journal for a Parquet file."""
        directory, base = os.path.split(name)
        return os.path.join(directory, f".{base}{WORKING_SUFFIX}")

    def final_name(self, name: str) -> str:
        directory, base = os.path.split(name)
        return os.path.join(directory, base.removeprefix(".").removesuffix(WORKING_SUFFIX))

    def complete(self, descriptor: int, path: str, /) -> int:
        """Put the Parquet file in the place of its journal. Raises: FileStorageError."""
        with disk.doing("read", path):
            if os.pread(descriptor, len(MAGIC), 0) == MAGIC:
                # The kill came after the conversion.
                return descriptor
        new_path = path + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_path)
        new = disk.create_locked(new_path)
        try:
            with disk.doing("write", new_path):
                self._convert(path, new_path)
                os.fsync(new)
                os.replace(new_path, path)
        except BaseException:
            os.close(new)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new_path)
            raise
        disk.sync_directory(path)
        os.close(descriptor)
        return new

    def _convert(self, path: str, target: str) -> None:
        """Write the rows of a journal to a Parquet file. A damaged journal is kept. Raises: FileStorageError."""
        journal = ArrowJournal(path)
        with pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
            for group in self._groups(journal):
                writer.write_table(group)
        if journal.damage:
            kept = _keep(path)
            logger.error(
                "[%s/%s] journal %s is %s; its Parquet file ends before that offset, and the journal is kept as %s",
                self._topic,
                self._channel,
                path,
                journal.damage,
                kept,
            )

    def _groups(self, journal: ArrowJournal) -> Iterator[pa.Table]:
        """Yield the rows of a journal, up to its end or to damage, in tables of some size."""
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in journal.batches():
            batches.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
                yield pa.Table.from_batches(batches)
                batches, rows, size_bytes = [], 0, 0
        if batches:
            yield pa.Table.from_batches(batches)


def _keep(path: str) -> str:
    """Give a journal a second name, and return that. Raises: FileStorageError.

    The name is hidden as well, and no start finishes such a file.
    """
    for number in itertools.count(1):
        kept = f"{path}{DAMAGED_SUFFIX}{f'.{number}' if number > 1 else ''}"
        with disk.doing("keep", path):
            try:
                os.link(path, kept)
            except FileExistsError:
                # A kill may have come after this step before, or an earlier journal had the same name.
                if not os.path.samefile(path, kept):
                    continue
        disk.sync_directory(kept)
        return kept
    raise AssertionError("numbers do not end")


class ArrowJournal:
    """Reader of a journal of record batches in Arrow's stream format: tells an incomplete end from damage.

    A kill leaves an incomplete record batch at the end of the file, whose messages are not finished. A record batch
    that cannot be decoded although the file has all of its bytes is damaged: it and those after it hold finished
    messages. damage: offset and cause of the damage that has ended `batches`; empty without damage.
    """

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
    # Arrow has read all that is there then.
    if source.tell() < size:
        return False
    source.seek(offset)
    header = source.read(HEADER_BYTES)
    # A damaged size may reach past the end too.
    return len(header) < HEADER_BYTES or int.from_bytes(header[4:], "little") <= METADATA_BYTES_MAX
