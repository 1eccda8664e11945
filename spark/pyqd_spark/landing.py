"""Atomic files: Parquet under a hidden name until it is on stable storage, then renamed.

The order is: write, sync the file, rename, sync the directory. After a kill there is the old file or the new one, and
perhaps a hidden one that readers skip: Spark ignores names that begin with `_` or `.`. The same batches with the same
schema give the same bytes, so landing a file again under its name changes nothing.

Local and network file systems only, because their rename is atomic; `local_path` refuses object stores.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from pyqd.primitives.errors import storage_error

COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
COMPRESSION: Final = "zstd"

# Nearly every value in these is different: a dictionary would cost time and memory and be abandoned in the end.
PLAIN_COLUMNS: Final = frozenset({"value", "id", "offset", "timestamp", "timestamp_ns"})
# With the lengths stored apart, incompressible bodies are recognised at once, in half the time.
LENGTHS_APART: Final = frozenset({"value", "id"})
# Each value is its predecessor plus one: stored as differences it takes almost no space.
DIFFERENCES: Final = frozenset({"offset"})
# A smallest and a largest body in every row group would be useless.
COLUMNS_WITHOUT_STATISTICS: Final = frozenset({"value"})

HIDDEN: Final = (".", "_")
_SUFFIX = ".tmp"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class Landed(NamedTuple):
    """A file that is on stable storage under its name. path: absolute or as the directory was given."""

    path: str
    rows: int
    bytes: int


class Landing:
    """One Parquet file in the making, invisible to readers before `land`.

    directory: final directory, which must exist. name: without directory, not hidden. schema: of all batches.
    compression: one of COMPRESSIONS. temporary: directory of the hidden file, on the same file system, by default
    `directory`; once it is removed, no file can land from it. Used as a context manager it discards a file that was not
    landed. Raises: ValueError for an invalid name or compression; StorageError, DiskFull among them, from every method
    but `discard`.
    """

    def __init__(
        self,
        directory: str | Path,
        name: str,
        schema: pa.Schema,
        *,
        compression: str = COMPRESSION,
        temporary: str | Path | None = None,
    ) -> None:
        if not name or os.sep in name or name.startswith(HIDDEN):
            raise ValueError(f"{name!r} cannot be the name of a file that readers see")
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} is unknown: expected one of {', '.join(COMPRESSIONS)}")
        self.directory = str(directory)
        self.path = os.path.join(self.directory, name)
        self.rows = 0
        self._hidden = os.path.join(str(temporary or directory), _hidden_name(name))
        try:
            # For syncs: this descriptor reports errors of all writes since it was opened.
            self._fd = os.open(self._hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error("create", self._hidden, error) from error
        self._done = False
        self._file: pa.OSFile | None = None
        names = schema.names
        encodings = {each: found for each in names if (found := _encoding(schema.field(each)))}
        try:
            # Arrow's own file: a Python file would cost a copy of every byte.
            self._file = pa.OSFile(self._hidden, "wb")
            self._writer = pq.ParquetWriter(
                self._file,
                schema,
                compression=compression,
                use_dictionary=[each for each in names if each not in PLAIN_COLUMNS],
                column_encoding=encodings,
                write_statistics=[each for each in names if each not in COLUMNS_WITHOUT_STATISTICS],
            )
        except OSError as error:
            self._abandon()
            raise storage_error("write", self._hidden, error) from error
        except BaseException:
            self._abandon()
            raise

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows, as a row group of their own: give many at a time."""
        if rows.num_rows == 0:
            return
        try:
            if isinstance(rows, pa.Table):
                self._writer.write_table(rows)
            else:
                self._writer.write_batch(rows)
        except OSError as error:
            raise storage_error("write", self._hidden, error) from error
        self.rows += rows.num_rows

    def land(self) -> Landed:
        """Make the file visible under its name, replacing an older one, after all of it is on stable storage."""
        try:
            self._writer.close()
            if self._file is not None:
                self._file.close()
            os.fsync(self._fd)
            size = os.fstat(self._fd).st_size
        except OSError as error:
            raise storage_error("write", self._hidden, error) from error
        try:
            os.rename(self._hidden, self.path)
        except OSError as error:
            raise storage_error("rename", self._hidden, error) from error
        self._done = True
        os.close(self._fd)
        sync_path(self.directory)
        return Landed(self.path, self.rows, size)

    def discard(self) -> None:
        """Remove the hidden file; a landed one stays. Never raises: a file that cannot be removed is hidden and
        ignored.
        """
        if self._done:
            return
        # A garbage-collected writer closes itself and writes a footer; the file is removed by then.
        with contextlib.suppress(Exception):
            self._writer.close()
        self._abandon()

    def _abandon(self) -> None:
        self._done = True
        with contextlib.suppress(OSError):
            os.unlink(self._hidden)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        os.close(self._fd)

    def __enter__(self) -> Landing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def write_file(path: str | Path, content: bytes, *, temporary: str | Path | None = None) -> None:
    """Replace a small file's content atomically; it is on stable storage on return.

    temporary: as for Landing. Raises: StorageError.
    """
    directory, name = os.path.split(os.fspath(path))
    hidden = os.path.join(str(temporary or directory), _hidden_name(name))
    try:
        with open(hidden, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(hidden, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise storage_error("write", os.fspath(path), error) from error
    sync_path(directory)


def make_directories(path: str | Path) -> None:
    """Create a directory with its parents, durably. Raises: StorageError."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise storage_error("create", each, NotADirectoryError(20, "Not a directory")) from None
        except OSError as error:
            raise storage_error("create", each, error) from error
        sync_path(os.path.dirname(each))


def sync_path(path: str | Path) -> None:
    """Sync a file, or the names in a directory, to stable storage. Raises: StorageError."""
    try:
        fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error("sync", os.fspath(path), error) from error


def local_path(text: str) -> str:
    """Return the path that a user named, which may be a file: URL. Raises: ValueError for other schemes."""
    if not _SCHEME.match(text):
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError(f"{text}: only paths of file systems can be written to, not {parts.scheme}:// locations")
    return unquote(parts.path)


def not_shared(path: str) -> str:
    """Return the error for a directory that the driver has created and a task does not find."""
    return f"{path} is not there on {socket.gethostname()}, where a task ran: executors and driver have to share it"


def uri_of(path: str) -> str:
    """Return a path for Spark with its scheme: without one it lies in HDFS if that is the default, as
    mostly on YARN.
    """
    return f"file://{os.path.abspath(path)}"


def partition_directory(values: Sequence[tuple[str, str]]) -> str:
    """Return the directory of a partition as Spark writes it: [("topic", "a#b")] is topic=a%23b."""
    return os.path.join(*(f"{name}={escape(value)}" for name, value in values))


# Characters that Spark escapes in the names of partitions, and decodes when it reads them.
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"#%\'*/:=?\\{}\[\]^]')


def escape(value: str) -> str:
    """Return a value as a part of a file name, by Spark's rules for partitions."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def _encoding(field: pa.Field) -> str | None:
    if field.name in LENGTHS_APART and (pa.types.is_binary(field.type) or pa.types.is_string(field.type)):
        return "DELTA_LENGTH_BYTE_ARRAY"
    if field.name in DIFFERENCES and pa.types.is_integer(field.type):
        return "DELTA_BINARY_PACKED"
    return None


def _hidden_name(name: str) -> str:
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
