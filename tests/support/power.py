"""Disk that can show its content after a power failure at any time.

On stable storage are the bytes of a file as of each completed sync, and the names of a directory as of its sync. The
kernel may write back more at any time, page by page and in any order, and names as well: `write_back` does it at random
and permanently, `cut` once more for the copy it makes. A new file consists of zeros until it is synced.
"""

import os
import random
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from pyqd.broker.broker import BOOT_ID
from pyqd.diskqueue.files import NO_CLAIM, PAGE_BYTES, Files, JournalFile, no_rest
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import StorageError

Names = dict[str, int]
# A file's inode and the offset of a page, or a directory's inode and a name in it.
Change = tuple[int, int | str]


class PowerJournalFile(JournalFile):
    """A file of the journal on such a disk, written by a thread."""

    def __init__(self, files: "PowerFiles", file: JournalFile, number: int) -> None:
        self._files = files
        self._file = file
        self._number = number
        self.path = file.path

    @property
    def fileno(self) -> int:
        return -1

    def write(self, offset: int, content: memoryview) -> None:
        self._files.write_through(self._number, offset, content, self.path)

    def close(self) -> None:
        self._file.close()


class PowerFiles(Files):
    """Files under `root`, which is taken as it is found: all of it is on stable storage.

    boot: the machine's boot id. chance: of each page and directory to be written back without being asked to.
    on_sync: called before each sync. failing: syncs fail.
    """

    def __init__(self, root: Path, boot: str, seed: int = 0, chance: float = 0.5) -> None:
        self.root = root
        self.boot = boot
        self.chance = chance
        self.random = random.Random(seed)
        self.failing = False
        self.on_sync: Callable[[], object] = lambda: None
        self.sync_count = 0
        # Open descriptors keep the numbers of removed files from being reused.
        self._descriptors: dict[int, int] = {}
        self._durable: dict[int, bytearray] = {}
        self._names: dict[int, Names] = {}
        self._mapped: dict[int, int] = {}
        self._lock = threading.RLock()
        self._adopt(str(root))

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _adopt(self, path: str) -> None:
        number = self._know(path)
        if number in self._names:
            self._names[number] = self._names_now(path)
            for name in self._names[number]:
                self._adopt(os.path.join(path, name))
        else:
            self._durable[number][:] = Path(path).read_bytes()

    def _know(self, path: str) -> int:
        found = os.stat(path)
        if found.st_ino not in self._descriptors:
            self._descriptors[found.st_ino] = os.open(path, os.O_RDONLY)
            if stat.S_ISDIR(found.st_mode):
                self._names[found.st_ino] = {}
            else:
                self._durable[found.st_ino] = bytearray(found.st_size)
        return found.st_ino

    def _names_now(self, path: str | int) -> Names:
        names = {}
        for entry in os.scandir(path):
            number = entry.inode()
            if number not in self._descriptors:
                self._know(entry.path if isinstance(path, str) else f"/proc/self/fd/{path}/{entry.name}")
            names[entry.name] = number
        return names

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        with self._lock:
            mapping = super().new_mapped(path, size_bytes, populate)
            if path is not None:
                self._mapped[mapping.address] = self._know(path)
        return mapping

    def open_mapped(self, path: str) -> Mapping:
        with self._lock:
            mapping = super().open_mapped(path)
            self._mapped[mapping.address] = self._know(path)
        return mapping

    def new_journal_file(
        self,
        path: str,
        size_bytes: int,
        reserving: AbstractContextManager[object] = NO_CLAIM,
        rest: Callable[[int], None] = no_rest,
    ) -> JournalFile:
        with self._lock:
            made = super().new_journal_file(path, size_bytes, reserving, rest)
            return PowerJournalFile(self, made, self._know(path))

    def write_through(self, number: int, offset: int, content: memoryview, path: str) -> None:
        """Write to a file, and to stable storage."""
        self._begin_sync(path)
        with self._lock, open(f"/proc/self/fd/{self._descriptors[number]}", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), content, offset)
            self._durable[number][offset : offset + len(content)] = content

    def read(self, path: str) -> bytes:
        return self.boot.encode() if path == BOOT_ID else super().read(path)

    def write(self, path: str, content: bytes) -> None:
        with self._lock:
            super().write(path, content)
            self._durable[self._know(path)][:] = content

    def _begin_sync(self, path: str) -> None:
        self.sync_count += 1
        self.on_sync()
        if self.failing:
            raise StorageError("sync", path, 5, "Input/output error")

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        if mapping.path is None or length_bytes <= 0:
            return
        self._begin_sync(mapping.path)
        end = -(-(start_bytes + length_bytes) // PAGE_BYTES) * PAGE_BYTES
        with self._lock:
            self._durable[self._mapped[mapping.address]][start_bytes:end] = mapping.view()[start_bytes:end]

    def sync_file_system(self, path: str) -> bool:
        return False

    def sync_directory(self, path: str) -> None:
        self._begin_sync(path)
        super().sync_directory(path)
        with self._lock:
            self._names[self._know(path)] = self._names_now(path)

    def write_back(self) -> None:
        """Let the kernel write some dirty pages and names by itself."""
        with self._lock:
            for number in list(self._durable):
                self._durable[number][:] = self._mixed(number)
            for number, directory in list(self._descriptors.items()):
                if number in self._names and self.random.random() < self.chance:
                    self._names[number] = self._names_now(directory)

    def changes(self) -> list[Change]:
        """Return the changes that are not on stable storage: pages of files, and names of directories."""
        found: list[Change] = []
        with self._lock:
            self._discover()
            for number in list(self._durable):
                durable, now = self._durable[number], self._content_now(number)
                pages = range(0, len(now), PAGE_BYTES)
                found += [(number, at) for at in pages if durable[at : at + PAGE_BYTES] != now[at : at + PAGE_BYTES]]
            for number in list(self._names):
                before, after = self._names[number], self._names_now(self._descriptors[number])
                names = sorted(before.keys() | after.keys())
                found += [(number, name) for name in names if before.get(name) != after.get(name)]
        return found

    def _discover(self) -> None:
        """Get to know files that were made otherwise than by a mapping, and directories in new directories."""
        count = -1
        while count != len(self._descriptors):
            count = len(self._descriptors)
            for number in list(self._names):
                self._names_now(self._descriptors[number])

    def pages_of(self, mapping: Mapping) -> set[Change]:
        """Return the pages of a mapped file, as `changes` names them."""
        return {(self._mapped[mapping.address], at) for at in range(0, mapping.size_bytes, PAGE_BYTES)}

    def write_changes(self, changes: Iterable[Change]) -> None:
        """Have the simulated kernel write these changes without a sync."""
        with self._lock:
            for number, place in changes:
                if isinstance(place, int):
                    page = slice(place, place + PAGE_BYTES)
                    self._durable[number][page] = self._content_now(number)[page]
                else:
                    entry = self._names_now(self._descriptors[number]).get(place)
                    if entry is None:
                        self._names[number].pop(place, None)
                    else:
                        self._names[number][place] = entry

    def _content_now(self, number: int) -> bytes:
        return os.pread(self._descriptors[number], len(self._durable[number]), 0)

    def _mixed(self, number: int) -> bytearray:
        content = bytearray(self._durable[number])
        now = self._content_now(number)
        for at in range(0, len(now), PAGE_BYTES):
            page = slice(at, at + PAGE_BYTES)
            if content[page] != now[page] and self.random.random() < self.chance:
                content[page] = now[page]
        return content

    def cut(self, target: Path, written: Iterable[Change] = ()) -> None:
        """Build the content after a power failure now, in a new directory.

        written: changes that the kernel has written out by then. The disk itself does not change.
        """
        with self._lock:
            durable = {number: bytearray(content) for number, content in self._durable.items()}
            names = {number: dict(entries) for number, entries in self._names.items()}
            self.write_changes(written)
            self._restore(os.stat(self.root).st_ino, target)
            self._durable.update(durable)
            self._names.update(names)

    def _restore(self, number: int, target: Path) -> None:
        if number in self._names:
            target.mkdir()
            for name, entry in self._names[number].items():
                self._restore(entry, target / name)
        else:
            target.write_bytes(self._mixed(number))
