"""The seam to the operating system: reserve, map, populate, sync, rename, remove.

Everything the disk queue asks of the system goes through one `Files` object, so that a test can give one that runs out
of space, tears or forgets. The calls the standard library lacks, or makes while holding the interpreter's lock, go
through cffi, which releases it: they run in threads.

Sources: mmap(2), madvise(2), msync(2), syncfs(2), fallocate(2).
"""

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from cffi import FFI

from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.loadahead import LoadAhead
from pyqd.hot.diskqueue.mapping import Mapping, map_existing, map_file
from pyqd.primitives.errors import CorruptionError, DiskFull, StorageError, storage_error

PAGE_BYTES = 4096
# Pages of the kernel: 16 or 64 KiB on some machines with arm64. Its calls take ranges that begin with one.
KERNEL_PAGE_BYTES = mmap.PAGESIZE
STAT_BLOCK_BYTES = 512
MAKING = ".making"
NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Commits wait behind each of these writes.
ZEROS_AT_ONCE_BYTES = 128 << 10
WRITTEN_OUT_AT_ONCE_BYTES = 1 << 20
# SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER.
WRITE_OUT_AND_WAIT = 1 | 2 | 4
RESERVING = "reserving"
REMOVAL_TRIES = 100
NO_CLAIM: AbstractContextManager[object] = contextlib.nullcontext()
PROT_READ_WRITE = 0x1 | 0x2
MAP_PRIVATE = 0x02
MAP_ANONYMOUS = 0x20
MADV_WILLNEED = 3
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
MS_SYNC = 4
# Not among the constants of Python 3.11.
EHWPOISON = 133

_ffi = FFI()
_ffi.cdef(
    """
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
    int madvise(void *address, size_t length, int advice);
    int msync(void *address, size_t length, int flags);
    int syncfs(int fd);
    int fallocate(int fd, int mode, long offset, long length);
    int sync_file_range(int fd, long offset, long length, unsigned int flags);
    """
)
_libc: Any = _ffi.dlopen(None)
_MAP_FAILED = 2 ** (8 * _ffi.sizeof("size_t")) - 1


def map_memory(size_bytes: int) -> Mapping:
    """Return a mapping of anonymous memory, zeros. Raises: StorageError."""
    address = _libc.mmap(_ffi.NULL, size_bytes, PROT_READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    number = int(_ffi.cast("uintptr_t", address))
    if number == _MAP_FAILED:
        raise storage_error("map", "memory", refused())
    return Mapping(number, size_bytes)


@contextlib.contextmanager
def reporting(operation: str, path: str) -> Iterator[None]:
    """Raise what the system refuses within as a StorageError. operation: one word for it. path: what it is done to."""
    try:
        yield
    except OSError as error:
        raise storage_error(operation, path, error) from error


def refused() -> OSError:
    """Return the error of a call into the C library that has just failed."""
    return OSError(_ffi.errno, os.strerror(_ffi.errno))


@contextlib.contextmanager
def opened(operation: str, path: str, flags: int, suffix: str = "") -> Iterator[int]:
    """Open a file for the body of the with statement. Yields: its descriptor. Raises: StorageError.

    suffix: of the name that a new file has until it is whole; an error names the path without it.
    """
    with reporting(operation, path):
        fd = os.open(path + suffix, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _pinned(mapping: Mapping) -> Iterator[bool]:
    """Keep a mapping's range mapped for a system call. Yields: False if its file is gone. Raises: StorageError."""
    found = mapping.pin()
    try:
        yield found
    finally:
        if found:
            mapping.unpin()


def _reserve(fd: int, size_bytes: int, path: str) -> None:
    """Reserve the blocks of a file; existing blocks stay as they are.

    Not posix_fallocate(3): on a file system without support it writes a byte to each block, and one that compresses or
    copies on writing may lack the space for later stores.
    """
    while _libc.fallocate(fd, 0, 0, size_bytes) != 0:
        failed = _ffi.errno
        if failed == errno.EINTR:
            continue
        reason = os.strerror(failed)
        if failed in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            reason += " (the file system cannot reserve blocks: fallocate(2); use another data-path)"
        raise storage_error("reserve", path, OSError(failed, reason))


def _reserve_missing(fd: int, path: str) -> int:
    """Reserve the missing blocks of a file, as of one restored with holes. Returns: its bytes.

    Raises: CorruptionError for an empty file.
    """
    found = os.fstat(fd)
    if found.st_size == 0:
        raise CorruptionError(path, 0, "the file is empty")
    try:
        _reserve(fd, found.st_size, path)
    except DiskFull:
        # Some file systems demand space for the whole range, although no block of it is missing.
        if found.st_blocks * STAT_BLOCK_BYTES < found.st_size:
            raise
    return found.st_size


def _map_step_by_step(path: str) -> Mapping:
    """Map an existing file by calls of which each says why it fails. Raises: as `Files.open_mapped`."""
    with opened("open", path, os.O_RDWR) as fd:
        return map_file(fd, _reserve_missing(fd, path), path)


def _write_first_page(fd: int, size_bytes: int, path: str) -> None:
    """Bring the first page of a reserved file into the cache.

    The first store to a missing page makes the kernel read ahead, up to a MiB of blocks that were never written.
    """
    with reporting("write", path):
        os.pwrite(fd, bytes(min(PAGE_BYTES, size_bytes)), 0)


def _write_whole(fd: int, content: memoryview, path: str) -> None:
    """Write the content of a file from its start on, and sync it."""
    offset = 0
    with reporting("write", path):
        while offset < len(content):
            offset += os.pwrite(fd, content[offset:], offset)
        os.fsync(fd)


def _whole_pages(mapping: Mapping, start_bytes: int, length_bytes: int) -> tuple[Any, int]:
    """Return the address of the kernel's page with a start, and the length from there."""
    before_bytes = start_bytes % KERNEL_PAGE_BYTES
    return _ffi.cast("void *", mapping.address + start_bytes - before_bytes), length_bytes + before_bytes


def _populate(mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
    if _libc.madvise(*_whole_pages(mapping, start_bytes, length_bytes), MADV_POPULATE_WRITE) != 0:
        failed = _ffi.errno
        if failed in (errno.EFAULT, EHWPOISON):
            raise storage_error("read", mapping.path or "memory", OSError(errno.EIO, os.strerror(errno.EIO)))
        # Kernels before 5.14 do not know the advice. Pages that are read are there as well, if not writable yet.
        view = mapping.view()
        for offset in range(start_bytes, start_bytes + length_bytes, PAGE_BYTES):
            _ = view[offset]


def no_rest(_written_bytes: int) -> None:
    """Do not rest between two writes."""


def no_preparation() -> None:
    """Prepare nothing for the load of a directory."""


def _fill_with_zeros(fd: int, size_bytes: int, path: str, rest: Callable[[int], None]) -> None:
    """Fill a file with zeros and sync it, so that later writes change only its content, not its metadata.

    rest: called after each write with the number of bytes written.
    """
    # Anonymous memory, as writes past the page cache want whole pages.
    with reporting("write", path), mmap.mmap(-1, ZEROS_AT_ONCE_BYTES) as memory, memoryview(memory) as zeros:
        for offset in range(0, size_bytes, ZEROS_AT_ONCE_BYTES):
            with zeros[: size_bytes - offset] as part:
                os.pwrite(fd, part, offset)
                rest(offset + len(part))
        os.fsync(fd)
        # Written like a commit: if that fails, the file is useless.
        with zeros[:PAGE_BYTES] as page:
            os.pwritev(fd, [page], 0, os.RWF_DSYNC)


class JournalFile:
    """A file of fixed size whose writes are on stable storage when they return.

    fd: owned.
    """

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    @property
    def fileno(self) -> int:
        """The file's descriptor, for writers other than this class; -1: they may not write."""
        return self._fd

    def write(self, offset: int, content: memoryview) -> None:
        """Write whole blocks at a multiple of a block; blocks, with the interpreter's lock released.

        content: begins at a multiple of a block in memory. Raises: StorageError (any part of it may be there).
        """
        done = 0
        with reporting("write", self.path):
            while done < len(content):
                # The flush with each call, and not for the file: it stands in a trace then.
                done += os.pwritev(self._fd, [content[done:]], offset + done, os.RWF_DSYNC)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Files:
    """Files of a data directory. Every method raises StorageError, or DiskFull if space or quota is missing.

    distrusted: syncs of an earlier process have failed, so the kernel may take unwritten pages for written.
    """

    distrusted = False

    def note_damage(self, text: str) -> None:
        """Take note of damage that a log has found; the log has reported it."""

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        """Make a file of that size with all its blocks reserved, map it shared and, if asked, populate its pages.

        Blocks are reserved before mapping: a full disk must be an error here and not SIGBUS at a store. The file gets
        its name when it is whole, so a kill leaves none of a lesser size under it. On failure no file is left.
        path None: anonymous memory.
        """
        if path is None:
            return map_memory(size_bytes)
        making = path + MAKING
        with opened("create", path, NEW, MAKING) as fd:
            try:
                _reserve(fd, size_bytes, path)
                _write_first_page(fd, size_bytes, path)
                mapping = map_file(fd, size_bytes, path)
                self.rename(making, path)
            except StorageError:
                # The file is gone if its directory was moved away meanwhile, like that of a deleted topic. If it stays
                # for another reason, the first error counts, and the next start removes the file.
                with contextlib.suppress(OSError):
                    os.unlink(making)
                raise
        if populate:
            self.populate(mapping, 0, size_bytes)
        return mapping

    def write_mapped(self, mapping: Mapping, path: str) -> None:
        """Write a mapping in memory to a file, sync it, and map the file in its place, at the same address.

        On failure the mapping is as it was, and no file is left. Nothing may be stored there meanwhile.
        """
        if mapping.path is not None:
            raise ValueError("only memory can be put into a file")
        making = left = path + MAKING
        with opened("create", path, NEW, MAKING) as fd:
            try:
                _reserve(fd, mapping.size_bytes, path)
                _write_whole(fd, mapping.view(), path)
                self.rename(making, path)
                left = path
                mapping.replace_by_file(fd, path)
            except StorageError:
                with contextlib.suppress(OSError):
                    os.unlink(left)
                raise

    def populate(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Populate a page-aligned range of a mapping, so that no store in it waits for the file system.

        Blocks, with the interpreter's lock released. Bytes stored there meanwhile stay.
        """
        with _pinned(mapping) as found:
            if found:
                _populate(mapping, start_bytes, length_bytes)

    def is_present(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> bool:
        """Return whether a page-aligned range is in memory, so that no load of it waits for the disk."""
        return mapping.is_present(start_bytes, length_bytes)

    def read_in(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Bring a page-aligned range into memory before it is read; blocks, with the interpreter's lock released.

        Pages that cannot be read are left to the load that meets them. Kernels before 5.14 only begin to read.
        """
        with _pinned(mapping) as found:
            if found:
                pages = _whole_pages(mapping, start_bytes, length_bytes)
                # In one piece also where the mapping is read page by page.
                _libc.madvise(*pages, MADV_WILLNEED)
                _libc.madvise(*pages, MADV_POPULATE_READ)

    def check_reserving(self, directory: str) -> None:
        """Check that the file system can reserve blocks. A full disk is not an error here. Raises: StorageError."""
        path = os.path.join(directory, RESERVING)
        try:
            fd = os.open(path, NEW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            failure = storage_error("create", path, error)
            if isinstance(failure, DiskFull):
                return
            raise failure from error
        try:
            _reserve(fd, PAGE_BYTES, path)
        except DiskFull:
            return
        finally:
            os.close(fd)
            self.remove(path)

    def open_mapped(self, path: str) -> Mapping:
        """Map an existing file, shared, whole, for writing: no store into it can lack space.

        Raises: CorruptionError for an empty one, DiskFull if it has holes and there is no space for them.
        """
        mapping = map_existing(path) or _map_step_by_step(path)
        mapping.failed_syncs = int(self.distrusted)
        return mapping

    def open_for_writing(self, path: str) -> int:
        """Return a descriptor of an existing file, for writing to it; the caller's to close."""
        with reporting("open", path):
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Write a page-aligned range of a mapping to stable storage; blocks, with the interpreter's lock released."""
        if mapping.path is None or length_bytes <= 0:
            return
        with _pinned(mapping) as found:
            if found and _libc.msync(*_whole_pages(mapping, start_bytes, length_bytes), MS_SYNC) != 0:
                raise storage_error("sync", mapping.path, refused())

    def write_out(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Write most of a range before it is synced, in slices; blocks, with the lock released.

        A sync gives the disk all of it at once, and other writers wait behind that. Nothing is promised: an error is
        left to the sync, because the kernel reports it to each open file. Source: sync_file_range(2).
        """
        if mapping.path is None:
            return
        end_bytes = start_bytes + length_bytes
        with contextlib.suppress(StorageError), opened("open", mapping.path, os.O_RDONLY) as fd:
            for at_bytes in range(start_bytes, end_bytes, WRITTEN_OUT_AT_ONCE_BYTES):
                piece_bytes = min(WRITTEN_OUT_AT_ONCE_BYTES, end_bytes - at_bytes)
                if _libc.sync_file_range(fd, at_bytes, piece_bytes, WRITE_OUT_AND_WAIT) != 0:
                    return

    def dirty_again(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Make a page-aligned range dirty, so that the next sync writes it even if it counts as clean; blocks."""
        if mapping.path is not None and length_bytes > 0:
            with _pinned(mapping) as found:
                if found:
                    for at_bytes, piece_bytes in self.readable_pieces(mapping, start_bytes, length_bytes):
                        mapping.dirty_again(at_bytes, piece_bytes)

    def readable_pieces(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> list[tuple[int, int]]:
        """Return (start, length) of the readable parts of a page-aligned range: a store to the rest ends the
        process.
        """
        try:
            self.populate(mapping, start_bytes, length_bytes)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            if length_bytes <= PAGE_BYTES:
                return []
            middle_bytes = -(-length_bytes // (2 * PAGE_BYTES)) * PAGE_BYTES
            return self.readable_pieces(mapping, start_bytes, middle_bytes) + self.readable_pieces(
                mapping, start_bytes + middle_bytes, length_bytes - middle_bytes
            )
        return [(start_bytes, length_bytes)]

    def sync_file_system(self, path: str) -> bool:
        """Write all of a path's file system to stable storage; blocks, with the lock released.

        Returns: whether it did; False if only single files can be synced. Source: syncfs(2).
        """
        with opened("sync", path, os.O_RDONLY) as fd:
            if _libc.syncfs(fd) != 0:
                raise storage_error("sync", path, refused())
        return True

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        with reporting("sync", path), opened("sync", path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def make_directory(self, path: str) -> None:
        """Create a directory if it is missing; its parent exists."""
        with reporting("create", path), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory."""
        with reporting("list", path):
            return os.listdir(path)

    def entries_of(self, path: str) -> list[str] | None:
        """Return the names in a directory; None if the path names none."""
        try:
            return self.list_directory(path)
        except StorageError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def load_ahead(self, _directory: str, _entries: list[str]) -> AbstractContextManager[Callable[[], object]]:
        """Prepare to load entries of a directory, which are directories themselves, in the order given.

        Yields: a function that the caller calls before it loads the next entry. Within, only the load of an entry
        changes the files of this entry.
        """
        return contextlib.nullcontext(no_preparation)

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this user may still use in a path's file system. Source: statvfs(3)."""
        with reporting("stat", path):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        """Return whether a path names a directory."""
        return os.path.isdir(path)

    def read(self, path: str) -> bytes:
        """Return the whole content of a small file."""
        with reporting("read", path), open(path, "rb") as file:
            return file.read()

    def size_of(self, path: str) -> int:
        """Return the bytes of a file."""
        with reporting("read", path):
            return os.stat(path).st_size

    def read_range(self, path: str, start_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes of a file from an offset on; fewer than requested at its end."""
        with reporting("read", path), opened("read", path, os.O_RDONLY) as fd:
            return os.pread(fd, length_bytes, start_bytes)

    def append(self, path: str, content: bytes) -> None:
        """Write at the end of a file, made if missing, and sync it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with reporting("write", path), open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file's content, whole or not at all: written beside it, synced, renamed over it."""
        beside = path + ".new"
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise storage_error("write", path, error) from error

    def write_in_place(self, path: str, content: bytes) -> None:
        """Overwrite a small file in the block that it has, padded with spaces, and sync it: works on a full disk.

        The whole block is written. For a part, the kernel would first read the block, and the disk may fail to.
        A kill leaves the old content or the new. So does a power failure for content of up to 512 bytes, because disks
        write whole sectors.
        """
        assert len(content) <= PAGE_BYTES, "a block takes one page"
        with opened("write", path, os.O_RDWR) as fd:
            _write_whole(fd, memoryview(content.ljust(PAGE_BYTES)), path)

    def new_journal_file(
        self,
        path: str,
        size_bytes: int,
        reserving: AbstractContextManager[object] = NO_CLAIM,
        rest: Callable[[int], None] = no_rest,
    ) -> JournalFile:
        """Create a file of that size, all of it written, whose writes are on stable storage when they return.

        They bypass the page cache if the file system can (O_DIRECT). reserving: entered while blocks are reserved, for
        a claim on the space. rest: called between the writes that fill the file, with the number of bytes written. On
        failure no file is left.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with reporting("create", path):
            try:
                fd = os.open(path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                fd = os.open(path, flags, 0o600)
        try:
            with reserving:
                _reserve(fd, size_bytes, path)
            _fill_with_zeros(fd, size_bytes, path, rest)
        except StorageError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return JournalFile(fd, path)

    def overwrite(self, path: str, start_bytes: int, content: bytes) -> None:
        """Write bytes into a file that has them; they are in the page cache then."""
        view = memoryview(content)
        with reporting("write", path), opened("write", path, os.O_RDWR) as fd:
            while view:
                written = os.pwrite(fd, view, start_bytes)
                view, start_bytes = view[written:], start_bytes + written

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing the file that had it."""
        with reporting("rename", source):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is fine."""
        with reporting("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it; one that is gone already is fine.

        Other threads may create and remove files in it meanwhile.
        """
        for tries_left in reversed(range(REMOVAL_TRIES)):
            try:
                shutil.rmtree(path)
                return
            except OSError as error:
                if error.errno == errno.ENOENT and not os.path.lexists(path):
                    return
                # A file in it came or went between two calls.
                if tries_left == 0 or error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise storage_error("remove", path, error) from error


class FilesAhead(Files):
    """Files whose `load_ahead` opens the files of the next topics while one topic is loaded.

    A call for a path that the thread has not found, because it failed there or did not come to it, is the one of
    `Files`. So errors are reported, and missing blocks reserved, as without the thread.
    """

    def __init__(self) -> None:
        self._ahead: LoadAhead | None = None

    @contextlib.contextmanager
    def load_ahead(self, directory: str, entries: list[str]) -> Iterator[Callable[[], object]]:
        """Like `Files.load_ahead`, with a thread if there is an arena, in which a start needs few mappings."""
        assert self._ahead is None, "one load at a time"
        if not arena.is_reserved():
            yield no_preparation
            return
        try:
            ahead = LoadAhead(directory, entries)
        except OSError:
            # No thread or no descriptor: the load goes on without.
            yield no_preparation
            return
        self._ahead = ahead
        try:
            yield ahead.begin_next
        finally:
            self._ahead = None
            ahead.close()

    def list_directory(self, path: str) -> list[str]:
        names = None if self._ahead is None else self._ahead.take_names(path)
        return super().list_directory(path) if names is None else names

    def open_mapped(self, path: str) -> Mapping:
        mapping = None if self._ahead is None else self._ahead.take_mapping(path)
        if mapping is None:
            return super().open_mapped(path)
        mapping.failed_syncs = int(self.distrusted)
        return mapping
