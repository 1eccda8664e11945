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
from typing import TYPE_CHECKING, Final

from pyqd.client.message import Message
from pyqd.tools.to_file import disk
from pyqd.tools.to_file.encodings import Lines

if TYPE_CHECKING:
    import pyarrow as pa

    from pyqd.tools.to_file.journal import ArrowJournal

WORKING_SUFFIX: Final = ".partial"
DAMAGED_SUFFIX: Final = ".damaged"
MAGIC: Final = b"PAR1"
# A row group has about so many rows or bytes.
GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 64 << 20

logger = logging.getLogger("pyqd.tools.to_file")


class Parquet(Lines):
    """Rows with body, topic, channel, broker, time, id and number of attempts. Raises: ImportError without pyarrow."""

    suffix = ".parquet"
    writes_at_once = False
    is_appendable = False

    def __init__(self, topic: str, channel: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from pyqd.tools.to_file.journal import ArrowJournal

        self._journal = ArrowJournal
        self._pa = pa
        self._pq = pq
        self._topic = topic
        self._channel = channel
        # The columns of docs/spark.md.
        self.schema = pa.schema(
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

    def head(self) -> bytes:
        """Return the schema in Arrow's stream format."""
        return bytes(self.schema.serialize())

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Return a record batch in Arrow's stream format; without a message, the beginning of a file."""
        if not messages:
            return self.head()
        return bytes(self._batch(messages).serialize())

    def _batch(self, messages: Sequence[Message]) -> pa.RecordBatch:
        pa = self._pa
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
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def working_name(self, name: str) -> str:
        """Return a hidden name: readers of the directory must not take a journal for a Parquet file."""
        directory, base = os.path.split(name)
        return os.path.join(directory, f".{base}{WORKING_SUFFIX}")

    def final_name(self, name: str) -> str:
        """Return the name of the Parquet file."""
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
        journal = self._journal(path)
        with self._pq.ParquetWriter(target, self.schema, compression="zstd") as writer:
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
                yield self._pa.Table.from_batches(batches)
                batches, rows, size_bytes = [], 0, 0
        if batches:
            yield self._pa.Table.from_batches(batches)


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
