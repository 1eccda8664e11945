"""Simulated disk with the semantics of ext4, in memory, for a broker that stores through mapped files.

A file's page cache is a memfd, so that mappings, pwrite(2) and several openings of a file agree as they do on a real
disk; beside it lie the bytes that are on stable storage. Dirty pages are found by comparison, so a store of compiled
code counts without being announced.

- A *kill* keeps the page cache and all names. It may come at any call and at any store (`deaths`).
- A *power cut* keeps the bytes on stable storage and any subset of the dirty pages. Of the names it keeps, for each
  directory, its changes up to some point; a rename between two directories is there whole or not at all.
- msync makes a range durable, fsync of a directory its names. Neither does what the other does.
- A page that could not be written back is taken for clean, as Linux does, until something is stored there.
- A page that cannot be read is an error of a call and a signal of a mapping: see `unreadable`.
- A full disk refuses files, directories and small writes; what is reserved can be stored to.
- A small file is written in parts (`in_parts`): an error or a death may come when a part of it is there.

Faults are planned for the nth call of a kind from now on; see `Fault`.
"""

import contextlib
import dataclasses
import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from pyqd.broker.broker import BOOT_ID
from pyqd.diskqueue.files import MAKING, NO_CLAIM, PAGE_BYTES, Files, JournalFile, _pinned, no_rest
from pyqd.hot.diskqueue.mapping import Mapping, map_file
from pyqd.primitives.errors import CorruptionError, StorageError, storage_error
from tests.simulation import deaths
from tests.simulation.deaths import pointer
from tests.simulation.mirror import ROOT, Mirror
from tests.simulation.unreadable import UnreadablePages

WITHOUT_LIMIT = 1 << 40
ABSENT_CHANCE = 0.3
SPACE, SYNC, OPEN, MAP, READ = "space", "sync", "open", "map", "read"
# In the middle of writing a small file; at calls that change or list names.
REST, BROKEN, NAMES = "rest", "broken", "names"
# When a file is mapped again.
AGAIN = "again"
ERRNO_OF = {SPACE: errno.ENOSPC, SYNC: errno.EIO, OPEN: errno.EMFILE, MAP: errno.ENOMEM, READ: errno.EIO}
ERRNO_OF |= {REST: errno.ENOSPC, BROKEN: errno.EIO, NAMES: errno.EIO, AGAIN: errno.ENOMEM}


@dataclasses.dataclass
class Fault:
    """Failure of the calls of a kind: the `skipped` next ones go well, then `times` fail."""

    kind: str
    skipped: int
    times: int = 1
    fired: int = 0


class Inode:
    """One file: its page cache, and the bytes on stable storage."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("pyqd-simulation", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self.number = os.fstat(self.fd).st_ino
        self.durable = bytearray(size_bytes)
        # Pages that the kernel takes for written though they are not, with the bytes that they had then.
        self.forgotten: dict[int, bytes] = {}
        # Pages that cannot be read from the disk, with the bytes that they had.
        self.unreadable: dict[int, bytes] = {}

    def __del__(self) -> None:
        os.close(self.fd)

    def now(self, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of the page cache."""
        return os.pread(self.fd, (self.size_bytes if end is None else end) - start, start)

    def is_readable(self, start: int = 0, end: int = WITHOUT_LIMIT) -> bool:
        """Return whether a range can be read, as all pages can that were written since they could not be."""
        for page, content in list(self.unreadable.items()):
            if self.now(page, page + PAGE_BYTES) != content:
                del self.unreadable[page]
        return not any(start < page + PAGE_BYTES and page < end for page in self.unreadable)

    def dirty_pages(self) -> Iterator[tuple[slice, bytes]]:
        """Yield the pages that differ from stable storage, with their bytes."""
        content = self.now()
        if content == self.durable:
            return
        for at in range(0, self.size_bytes, PAGE_BYTES):
            page = slice(at, at + PAGE_BYTES)
            if content[page] != self.durable[page]:
                yield page, content[page]

    def write_back(self, start: int, end: int) -> None:
        """Put a range on stable storage, except for pages that the kernel takes for written."""
        content = self.now(start, end)
        kept = {page: self.durable[page : page + PAGE_BYTES] for page in self.forgotten if start <= page < end}
        self.durable[start:end] = content
        for page, durable in kept.items():
            if self.forgotten[page] == content[page - start : page - start + PAGE_BYTES]:
                self.durable[page : page + PAGE_BYTES] = durable
            else:
                del self.forgotten[page]

    def shorten(self, size_bytes: int) -> None:
        """Cut the file to a size."""
        self.size_bytes = size_bytes
        os.ftruncate(self.fd, size_bytes)
        del self.durable[size_bytes:]

    def forget(self, start: int, end: int) -> None:
        """Take the dirty pages of a range for written."""
        for page, content in self.dirty_pages():
            if start <= page.start < end:
                self.forgotten[page.start] = content

    @property
    def pages(self) -> int:
        """The pages that it takes of the disk."""
        return -(-self.size_bytes // PAGE_BYTES)


class Directory:
    """One directory: its names now, and those on stable storage."""

    pages = 1

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Inode | Directory
# Changes of one call: in a directory a name stands for a node, or for nothing.
Change = list[tuple[Directory, str, Node | None]]


class Disk:
    """The disk, over the lives of the processes that use it and over power cuts."""

    def __init__(self) -> None:
        self.root = Directory()
        self.pending: list[Change] = []
        self.boot_count = 1
        self.used_pages = 0
        self.limit_pages = WITHOUT_LIMIT
        # Files whose removal was not durable when the disk was filled.
        self.removed: set[Inode] = set()

    def fill(self, free_pages: int) -> None:
        """Let others take all of the space but so many pages.

        A file system gives blocks of a removed file to others only when the removal is durable. So where a power cut
        undoes the removal, the others have not taken these.
        """
        self.limit_pages = self.used_pages + free_pages
        self.removed = set(self.inodes(durable=True)) - set(self.inodes())

    def free(self) -> None:
        """Let others take no space."""
        self.limit_pages = WITHOUT_LIMIT
        self.removed.clear()

    @property
    def free_pages(self) -> int:
        """The pages that are free; never negative."""
        return max(0, self.limit_pages - self.used_pages)

    def change(self, *changes: tuple[Directory, str, Node | None]) -> None:
        """Change names in the cache, to be durable together."""
        for directory, name, node in changes:
            former = directory.entries.pop(name, None)
            if node is not None:
                directory.entries[name] = node
                self.used_pages += node.pages
            if former is not None:
                self.used_pages -= former.pages
        self.pending.append(list(changes))

    def sync_names(self, directory: Directory) -> None:
        """Put the names of a directory on stable storage, and names of others that changed together with them or
        before.
        """
        wanted = {directory}
        chosen = []
        for change in reversed(self.pending):
            if any(each in wanted for each, _, _ in change):
                chosen.append(change)
                wanted.update(each for each, _, _ in change)
        for change in reversed(chosen):
            self._apply(change)

    def _apply(self, change: Change) -> None:
        self.pending.remove(change)
        for directory, name, node in change:
            directory.durable.pop(name, None)
            if node is not None:
                directory.durable[name] = node

    def inodes(self, directory: Directory | None = None, durable: bool = False) -> Iterator[Inode]:
        """Yield the files below a directory."""
        directory = directory or self.root
        for node in list((directory.durable if durable else directory.entries).values()):
            if isinstance(node, Directory):
                yield from self.inodes(node, durable)
            else:
                yield node

    def write_back(self, rng: random.Random, chance: float) -> None:
        """Put a part of the dirty pages on stable storage, as the kernel does by itself."""
        held_back: set[Directory] = set()
        for change in list(self.pending):
            if rng.random() < chance and not any(each in held_back for each, _, _ in change):
                self._apply(change)
            else:
                held_back.update(each for each, _, _ in change)
        for inode in self.inodes():
            for page, content in inode.dirty_pages():
                if rng.random() < chance and inode.forgotten.get(page.start) != content:
                    inode.durable[page] = content

    def cut(self, rng: random.Random, chance: float) -> None:
        """Cut the power: the bytes on stable storage remain, and a part of the dirty ones."""
        self.write_back(rng, chance)
        self.pending.clear()
        self.boot_count += 1
        self._restore(self.root)
        self.used_pages = 0
        self._count(self.root)
        self.limit_pages += sum(inode.pages for inode in self.removed.intersection(self.inodes()))
        self.removed.clear()

    def _restore(self, directory: Directory) -> None:
        directory.entries = dict(directory.durable)
        for node in directory.entries.values():
            if isinstance(node, Directory):
                self._restore(node)
                continue
            node.forgotten.clear()
            for page, _ in list(node.dirty_pages()):
                os.pwrite(node.fd, node.durable[page], page.start)

    def _count(self, directory: Directory) -> None:
        for node in directory.entries.values():
            self.used_pages += node.pages
            if isinstance(node, Directory):
                self._count(node)

    def lose(self, *names: str, directory: Directory | None = None) -> None:
        """Lose all directories of some names, with all in them."""
        directory = directory or self.root
        for entries in (directory.entries, directory.durable):
            for name in names:
                entries.pop(name, None)
            for node in entries.values():
                if isinstance(node, Directory):
                    self.lose(*names, directory=node)
        self.pending = [[each for each in change if each[1] not in names] for change in self.pending]
        self.used_pages = 0
        self._count(self.root)

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return [path for path, _ in self.files()]

    def files(self, directory: Directory | None = None, prefix: str = ROOT) -> Iterator[tuple[str, Inode]]:
        """Yield path and content of all files."""
        for name, node in (directory or self.root).entries.items():
            path = f"{prefix}/{name}"
            if isinstance(node, Directory):
                yield from self.files(node, path)
            else:
                yield path, node


class SimulatedFiles(Files):
    """Files of one process. After its death nothing that it does changes the disk.

    library: of `deaths`. fault: the planned failure. die_at: the call, counted from 1, before which the process dies.
    in_parts: small files are written in two calls of write(2), and the file of a failed write is removed.
    """

    def __init__(self, disk: Disk, library: Any, in_parts: bool = False) -> None:
        self.in_parts = in_parts
        # Files are mapped in the broker's arena.
        self.mirror: Mirror | None = None
        self.disk = disk
        self.deaths = library
        self.fault: Fault | None = None
        self.calls = 0
        self.die_at = 0
        self.mappings: dict[int, tuple[Mapping, Inode, str]] = {}
        self.unreadable = UnreadablePages()
        # Decides which pages are not in memory; None: all are.
        self.absent: random.Random | None = None
        library.deaths_forget()

    @property
    def dead(self) -> bool:
        """Return True if the process is dead."""
        return bool(self.deaths.deaths_dead())

    def _call(self, operation: str, path: str, *kinds: str) -> None:
        self.calls += 1
        if self.calls == self.die_at:
            self.deaths.deaths_die()
        if self.dead:
            raise self._refuse(operation, path, errno.EIO)
        fault = self.fault
        if fault is not None and fault.kind in kinds:
            if fault.skipped > 0:
                fault.skipped -= 1
            elif fault.fired < fault.times:
                fault.fired += 1
                failed = ERRNO_OF[fault.kind]
                raise storage_error(operation, path, OSError(failed, os.strerror(failed)))

    def _refuse(self, operation: str, path: str, failed: int) -> StorageError:
        return storage_error(operation, path, OSError(failed, os.strerror(failed)))

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.disk.root
        for name in path[len(ROOT) + 1 :].split("/") if path != ROOT else ():
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def _parent(self, operation: str, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        node = self._find(directory)
        if not isinstance(node, Directory):
            raise self._refuse(operation, path, errno.ENOENT)
        return node, name

    def _file(self, operation: str, path: str) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise self._refuse(operation, path, errno.ENOENT)
        return node

    def _take(self, operation: str, path: str, pages: int) -> None:
        if self.disk.free_pages < pages:
            raise self._refuse(operation, path, errno.ENOSPC)

    def _truncate(self, directory: Directory, name: str) -> None:
        """Free the blocks of a file that an earlier process has left, as open(2) with O_TRUNC does."""
        if name in directory.entries:
            self.disk.change((directory, name, None))

    def _require_readable(self, inode: Inode, path: str, start: int = 0, end: int = WITHOUT_LIMIT) -> None:
        if not inode.is_readable(start, end):
            raise self._refuse("read", path, errno.EIO)

    def _map(self, inode: Inode, path: str) -> Mapping:
        if self.mirror is None and inode.is_readable():
            mapping = Mapping(deaths.map_shared(inode.fd, inode.size_bytes), inode.size_bytes, path)
        else:
            try:
                mapping = map_file(inode.fd, inode.size_bytes, path)
            finally:
                self.deaths.deaths_again()
        if not inode.is_readable():
            # The handler of SIGBUS knows the files of the arena only. It would read the pages if it mapped them again.
            mapping.hold()
            self.unreadable.cover(mapping, inode, path)
        self._watch(mapping, inode, path)
        return mapping

    def _watch(self, mapping: Mapping, inode: Inode, path: str) -> None:
        self.mappings[mapping.address] = (mapping, inode, path)
        if self.deaths.deaths_add(pointer(mapping.address), inode.size_bytes, inode.fd) != 0:
            raise RuntimeError("more mappings than the simulator knows of")

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        if path is None:
            self._call("map", "memory", MAP)
            return super().new_mapped(None, size_bytes, populate)
        self._call("create", path, OPEN)
        directory, name = self._parent("create", path)
        inode = Inode(size_bytes)
        self._truncate(directory, name + MAKING)
        self._take("reserve", path, inode.pages)
        self.disk.change((directory, name + MAKING, inode))
        try:
            self._call("reserve", path, SPACE)
            self._call("map", path, MAP)
            self._call("rename", path, NAMES)
            mapping = self._map(inode, path)
        except StorageError:
            if not self.dead:
                self.disk.change((directory, name + MAKING, None))
            raise
        self.disk.change((directory, name + MAKING, None), (directory, name, inode))
        if self.mirror is not None:
            self.mirror.link(inode, path)
        return mapping

    def write_mapped(self, mapping: Mapping, path: str) -> None:
        self._call("create", path, OPEN)
        directory, name = self._parent("create", path)
        inode = Inode(mapping.size_bytes)
        self._truncate(directory, name + MAKING)
        self._take("reserve", path, inode.pages)
        self.disk.change((directory, name + MAKING, inode))
        try:
            self._call("reserve", path, SPACE)
            self._fill(inode, bytes(mapping.view()), path)
            self._call("sync", path, SYNC)
            inode.write_back(0, inode.size_bytes)
            self._call("map", path, MAP)
            self._call("rename", path, NAMES)
        except StorageError:
            if not self.dead:
                self.disk.change((directory, name + MAKING, None))
            raise
        self.disk.change((directory, name + MAKING, None), (directory, name, inode))
        mapping.replace_by_file(inode.fd, path)
        self._watch(mapping, inode, path)

    def populate(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Nothing but to see whether the pages can be read: a simulated page fault takes no time."""
        with _pinned(mapping):
            if self.unreadable.are_within(mapping, start_bytes, length_bytes):
                raise self._refuse("read", mapping.path or "memory", errno.EIO)

    def is_present(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> bool:
        return self.absent is None or self.absent.random() >= ABSENT_CHANCE

    def read_in(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Nothing: pages that cannot be read are left to the load that meets them."""

    def check_reserving(self, directory: str) -> None:
        self._call("create", directory, OPEN)

    def open_mapped(self, path: str) -> Mapping:
        self._call("open", path, OPEN)
        self._call("map", path, MAP)
        inode = self._file("open", path)
        if inode.size_bytes == 0:
            raise CorruptionError(path, 0, "the file is empty")
        mapping = self._map(inode, path)
        mapping.failed_syncs = int(self.distrusted)
        return mapping

    def open_for_writing(self, path: str) -> int:
        self._call("open", path, OPEN)
        inode = self._file("open", path)
        fd = os.open(f"/proc/self/fd/{inode.fd}", os.O_WRONLY | os.O_CLOEXEC)
        self.deaths.deaths_add_writer(fd, inode.number)
        return fd

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        if mapping.path is None or length_bytes <= 0:
            return
        assert start_bytes % PAGE_BYTES == 0, "msync(2) wants a page"
        _, inode, path = self.mappings[mapping.address]
        end = min(-(-(start_bytes + length_bytes) // PAGE_BYTES) * PAGE_BYTES, inode.size_bytes)
        with _pinned(mapping) as found:
            if not found:
                return
            try:
                self._call("sync", path, SYNC)
            except StorageError:
                if not self.dead:
                    inode.forget(start_bytes, end)
                raise
            inode.write_back(start_bytes, end)

    def write_out(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        """Do nothing: the kernel may write dirty pages at any time."""

    def dirty_again(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        if mapping.path is None or length_bytes <= 0 or self.dead:
            return
        if self.unreadable.are_within(mapping, start_bytes, length_bytes):
            for at_bytes, piece_bytes in self.readable_pieces(mapping, start_bytes, length_bytes):
                mapping.dirty_again(at_bytes, piece_bytes)
        _, inode, _ = self.mappings[mapping.address]
        with _pinned(mapping):
            for page in [page for page in inode.forgotten if start_bytes <= page < start_bytes + length_bytes]:
                del inode.forgotten[page]

    def sync_file_system(self, path: str) -> bool:
        try:
            self._call("sync", path, SYNC)
        except StorageError:
            for inode in () if self.dead else self.disk.inodes():
                inode.forget(0, inode.size_bytes)
            raise
        for inode in self.disk.inodes():
            inode.write_back(0, inode.size_bytes)
        for _, inode, _ in self.mappings.values():
            inode.write_back(0, inode.size_bytes)
        while self.disk.pending:
            self.disk._apply(self.disk.pending[0])
        return True

    def sync_directory(self, path: str) -> None:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise self._refuse("sync", path, errno.ENOENT)
        self._call("sync", path, SYNC)
        self.disk.sync_names(node)

    def make_directory(self, path: str) -> None:
        if self._find(path) is not None:
            return
        self._call("create", path, SPACE, NAMES)
        directory, name = self._parent("create", path)
        self._take("create", path, Directory.pages)
        self.disk.change((directory, name, Directory()))
        if self.mirror is not None:
            os.mkdir(path)

    def list_directory(self, path: str) -> list[str]:
        self._call("list", path, OPEN, NAMES)
        node = self._find(path)
        if not isinstance(node, Directory):
            raise self._refuse("list", path, errno.ENOENT)
        return list(node.entries)

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def free_bytes(self, path: str) -> int:
        return self.disk.free_pages * PAGE_BYTES

    def exists(self, path: str) -> bool:
        return path == BOOT_ID or self._find(path) is not None

    def read(self, path: str) -> bytes:
        if path == BOOT_ID:
            return b"boot-%d\n" % self.disk.boot_count
        self._call("read", path, OPEN, READ)
        inode = self._file("read", path)
        self._require_readable(inode, path)
        return inode.now()

    def size_of(self, path: str) -> int:
        return self._file("read", path).size_bytes

    def read_range(self, path: str, start_bytes: int, length_bytes: int) -> bytes:
        self._call("read", path, OPEN, READ)
        inode = self._file("read", path)
        self._require_readable(inode, path, start_bytes, start_bytes + length_bytes)
        return inode.now(start_bytes, start_bytes + length_bytes)

    def _fill(self, inode: Inode, content: bytes, path: str, grows: bool = False) -> None:
        """Write a small file from its start on: a first part, and the rest unless the process dies or it fails.

        grows: it has no more bytes than were written.
        """
        if not self.in_parts:
            os.pwrite(inode.fd, content, 0)
            return
        # Any place, which is the same one whenever the schedule is played.
        part = (self.calls * 2654435761 >> 7) % (len(content) + 1)
        os.pwrite(inode.fd, content[:part], 0)
        try:
            self._call("write", path, REST, BROKEN)
        except StorageError:
            if grows:
                self.disk.used_pages -= inode.pages
                inode.shorten(part)
                self.disk.used_pages += inode.pages
            raise
        os.pwrite(inode.fd, content[part:], part)

    def append(self, path: str, content: bytes) -> None:
        raise AssertionError("no broker appends to a small file")

    def write(self, path: str, content: bytes) -> None:
        beside = path + ".new"
        directory, name = self._parent("write", path)
        inode = Inode(len(content))
        try:
            self._call("write", path, OPEN, SPACE)
            if name + ".new" not in directory.entries:
                self._take("write", path, inode.pages)
        except StorageError:
            if not self.dead:
                # What an earlier process has left goes with it.
                self._truncate(directory, name + ".new")
            raise
        self.disk.change((directory, name + ".new", inode))
        try:
            self._fill(inode, content, path, grows=True)
            self._call("write", beside, SYNC)
            inode.durable[:] = content
            self._call("rename", beside, NAMES)
        except StorageError:
            if self.in_parts:
                with contextlib.suppress(StorageError):
                    self._call("remove", beside, NAMES)
                    self.disk.change((directory, name + ".new", None))
            raise
        self.disk.change((directory, name + ".new", None), (directory, name, inode))

    def write_in_place(self, path: str, content: bytes) -> None:
        inode = self._file("write", path)
        self._call("write", path, OPEN)
        content = content.ljust(PAGE_BYTES)
        self._fill(inode, content, path)
        inode.size_bytes = len(content)
        inode.unreadable.clear()
        self._call("write", path, SYNC)
        inode.write_back(0, inode.size_bytes)

    def new_journal_file(
        self,
        path: str,
        size_bytes: int,
        reserving: AbstractContextManager[object] = NO_CLAIM,
        rest: Callable[[int], None] = no_rest,
    ) -> "SimulatedJournalFile":
        self._call("create", path, OPEN)
        directory, name = self._parent("create", path)
        inode = Inode(size_bytes)
        with reserving:
            self._take("reserve", path, inode.pages)
        self.disk.change((directory, name, inode))
        try:
            self._call("reserve", path, SPACE)
            self._call("write", path, SYNC)
        except StorageError:
            if not self.dead:
                self.disk.change((directory, name, None))
            raise
        return SimulatedJournalFile(self, inode, path)

    def overwrite(self, path: str, start_bytes: int, content: bytes) -> None:
        self._call("write", path, OPEN, BROKEN)
        inode = self._file("write", path)
        end = start_bytes + len(content)
        for at in {start_bytes // PAGE_BYTES * PAGE_BYTES, (end - 1) // PAGE_BYTES * PAGE_BYTES}:
            # The part of a page that is not written is read first.
            if not start_bytes <= at <= at + PAGE_BYTES <= end:
                self._require_readable(inode, path, at, at + PAGE_BYTES)
        # A death may come when a part of it is there.
        part = (self.calls * 2654435761 >> 7) % (len(content) + 1)
        os.pwrite(inode.fd, content[:part], start_bytes)
        self._call("write", path)
        os.pwrite(inode.fd, content[part:], start_bytes + part)

    def rename(self, source: str, target: str) -> None:
        self._call("rename", source, NAMES)
        node = self._find(source)
        if node is None:
            raise self._refuse("rename", source, errno.ENOENT)
        old, new = self._parent("rename", source), self._parent("rename", target)
        self.disk.change((*old, None), (*new, node))
        if self.mirror is not None:
            self.mirror.rename(source, target)

    def remove(self, path: str) -> None:
        if self._find(path) is None:
            return
        self._call("remove", path, NAMES)
        self.disk.change((*self._parent("remove", path), None))
        if self.mirror is not None:
            self.mirror.remove(path)

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, Directory):
            for name in list(node.entries):
                self.remove_tree(f"{path}/{name}")
        self.remove(path)


class SimulatedJournalFile(JournalFile):
    """A file whose writes are on stable storage when they return. After an error or a death a part of the blocks is."""

    def __init__(self, files: SimulatedFiles, inode: Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self.path = path

    def write(self, offset: int, content: memoryview) -> None:
        """Write whole blocks, the first ones of them before the call that may fail."""
        assert offset % PAGE_BYTES == 0 == len(content) % PAGE_BYTES, "O_DIRECT wants whole blocks"
        assert offset + len(content) <= self._inode.size_bytes
        if self._files.dead:
            raise self._files._refuse("write", self.path, errno.EIO)
        pages = len(content) // PAGE_BYTES
        part = (self._files.calls * 2654435761 >> 7) % (pages + 1) * PAGE_BYTES
        self._put(offset, bytes(content[:part]))
        self._files._call("write", self.path, SYNC)
        self._put(offset + part, bytes(content[part:]))

    @property
    def fileno(self) -> int:
        """None: a job writes."""
        return -1

    def _put(self, offset: int, content: bytes) -> None:
        os.pwrite(self._inode.fd, content, offset)
        self._inode.durable[offset : offset + len(content)] = content

    def close(self) -> None:
        """Nothing."""
