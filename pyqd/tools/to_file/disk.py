"""Files with the guarantees that the output needs: locked, never overwritten, moved in one step, synced.

A lock (flock) marks a file that an instance writes. It ends with the process, so that after a kill the file is free.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final

FILE_MODE: Final = 0o666
DIRECTORY_MODE: Final = 0o770
RENAME_NOREPLACE: Final = 1
# Errors of file systems without locks, such as some network file systems.
NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Errors of file systems, or kernels, that cannot rename without replacing.
NO_NOREPLACE: Final = (errno.EINVAL, errno.ENOSYS)
# A file may be moved away between its opening and its locking, each time by another instance.
OPEN_ATTEMPTS: Final = 100

logger = logging.getLogger("pyqd.tools.to_file")


class FileStorageError(Exception):
    """The disk refuses an operation. The text names the operation, the file and the cause."""


class InUseError(Exception):
    """Another instance writes the file."""


@contextlib.contextmanager
def doing(operation: str, path: str, expected: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Turn an OSError into a FileStorageError: cannot OPERATION PATH. expected: an error that the caller handles."""
    try:
        yield
    except expected:
        raise
    except OSError as error:
        raise FileStorageError(f"cannot {operation} {path}: {error.strerror or error}") from error


def make_parent(path: str) -> None:
    """Create the directory of a file and those above it if they are missing, and sync their names.

    Raises: FileStorageError.
    """
    directory = os.path.dirname(path) or os.curdir
    missing: list[str] = []
    above = directory
    while above and not os.path.exists(above):
        missing.append(above)
        above = os.path.dirname(above)
    with doing("create directory", directory):
        for made in reversed(missing):
            # Another instance may be faster.
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, DIRECTORY_MODE)
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    for made in reversed(missing):
        sync_directory(made)


def sync_directory(path: str) -> None:
    """Sync the directory of a file, so that its name survives a power failure. Raises: FileStorageError."""
    directory = os.path.dirname(path) or os.curdir
    with doing("sync directory", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # A file system that does not sync directories.
                raise
        finally:
            os.close(descriptor)


def create_locked(path: str) -> int:
    """Create a file; return its locked descriptor. Raises: FileExistsError, FileStorageError."""
    with doing("create", path, FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, FILE_MODE)
        lock(descriptor)
    sync_directory(path)
    return descriptor


def open_locked(path: str, *, creates: bool) -> int:
    """Open a file for appending; return its locked descriptor. creates: create a missing file.

    Raises: InUseError, FileStorageError; FileNotFoundError without `creates`.
    """
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if creates else 0)
    for _ in range(OPEN_ATTEMPTS):
        with doing("open", path, FileNotFoundError if not creates else ()):
            is_new = not os.path.exists(path)
            descriptor = os.open(path, flags, FILE_MODE)
            try:
                lock(descriptor)
                is_named = names(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        if is_named:
            if is_new:
                sync_directory(path)
            return descriptor
        os.close(descriptor)
    raise InUseError(path)


def lock(descriptor: int) -> None:
    """Lock a file for this process. Raises: InUseError, OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def names(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_all(descriptor: int, data: bytes | memoryview, path: str) -> None:
    """Append bytes to a file. If the disk takes only a part, that part is removed again. Raises: FileStorageError."""
    start = os.fstat(descriptor).st_size
    view = memoryview(data)
    written = 0
    try:
        while written < len(view):
            written += os.write(descriptor, view[written:])
    except OSError as error:
        with contextlib.suppress(OSError):
            # Unless another program has appended meanwhile.
            if written and os.fstat(descriptor).st_size == start + written:
                os.ftruncate(descriptor, start)
        raise FileStorageError(f"cannot write to {path}: {error.strerror or error}") from error


def sync(descriptor: int, path: str) -> None:
    """Sync a file. Raises: FileStorageError."""
    with doing("sync", path):
        os.fsync(descriptor)


def end_last_line(descriptor: int, path: str) -> None:
    """End the last line of a file that a killed instance has left incomplete. Raises: FileStorageError."""
    with doing("read", path):
        size = os.fstat(descriptor).st_size
        last = os.pread(descriptor, 1, size - 1) if size else b"\n"
    if last != b"\n":
        logger.warning("the last record of %s is incomplete; its line is ended", path)
        write_all(descriptor, b"\n", path)


def move(source: str, target: str) -> None:
    """Give a file another name in one step. Both directories are synced. Raises: FileExistsError, FileStorageError."""
    make_parent(target)
    with doing("move", f"{source} to {target}", FileExistsError):
        try:
            rename_new(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            copy_new(source, target)
    sync_directory(target)
    sync_directory(source)


def rename_new(source: str, target: str) -> None:
    """Rename a file unless the new name exists. Raises: FileExistsError, OSError."""
    rename = renameat2()
    if rename is not None:
        if rename(os.fsencode(source), os.fsencode(target)) == 0:
            return
        number = ctypes.get_errno()
        if number not in NO_NOREPLACE:
            raise OSError(number, os.strerror(number))
    # Steps of their own: a kill in between leaves the file under both names, a power failure under one at least.
    os.link(source, target)
    sync_directory(target)
    os.unlink(source)


@functools.cache
def renameat2() -> Callable[[bytes, bytes], int] | None:
    """Return the system's renameat2 with RENAME_NOREPLACE, or None if there is none. Source: rename(2)."""
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    at_current = -100
    return lambda source, target: int(function(at_current, source, at_current, target, RENAME_NOREPLACE))


def copy_new(source: str, target: str) -> None:
    """Move a file to another file system: a hidden copy, synced, and renamed. Raises: FileExistsError, OSError."""
    directory, name = os.path.split(target)
    copy = os.path.join(directory, f".{name}.{os.getpid()}.copy")
    try:
        shutil.copyfile(source, copy)
        with open(copy, "rb") as file:
            os.fsync(file.fileno())
        rename_new(copy, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
    # A power failure must not find the file under neither name.
    sync_directory(target)
    os.unlink(source)
