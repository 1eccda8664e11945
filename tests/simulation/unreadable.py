"""Unreadable pages of stored files, and the messages that may be missing because of them.

A page becomes unreadable between two lives, when the page cache is dropped, and only if it is on stable storage. A call
that reads it fails with EIO; `unreadable.c` describes a load from the mapping, and a store. A page that is written as a
whole, or whose file is removed, is sound again.
"""

import contextlib
import dataclasses
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cffi import FFI

from pyqd.diskqueue.files import PAGE_BYTES
from pyqd.diskqueue.redo import commits_in, entries_of
from tests.simulation.deaths import compiled, pointer
from tests.simulation.model import GRAVEYARD
from tests.simulation.segments import is_spare, log_of, numbers_behind_end, numbers_in

if TYPE_CHECKING:
    from pyqd.hot.diskqueue.mapping import Mapping
    from tests.simulation.disk import Disk, Inode

SOURCE = Path(__file__).with_name("unreadable.c")
PAGES_AT_ONCE = (1, 1, 1, 2, 3, 8)

_ffi = FFI()
_ffi.cdef(
    """
    void unreadable_forget(void);
    int unreadable_touched(void);
    long unreadable_page(int index);
    char *unreadable_address(int index);
    int unreadable_pages(void);
    int unreadable_within(const char *base, size_t size);
    int unreadable_add(char *at, int fd, long offset);
    """
)


class UnreadablePages:
    """The unreadable pages of the files that one process has mapped."""

    def __init__(self) -> None:
        self._library: Any = compiled(SOURCE, _ffi)
        self._library.unreadable_forget()
        self._path_of: list[str] = []

    def cover(self, mapping: "Mapping", inode: "Inode", path: str) -> None:
        """Make the unreadable pages of a file unreadable in a mapping of it."""
        for page in inode.unreadable:
            if self._library.unreadable_add(pointer(mapping.address + page), inode.fd, page) != 0:
                raise RuntimeError("more unreadable pages than the simulator knows of")
            self._path_of.append(path)

    def are_within(self, mapping: "Mapping", start_bytes: int, length_bytes: int) -> bool:
        """Return whether a range of a mapping has a page that cannot be read."""
        return bool(self._path_of) and bool(
            self._library.unreadable_within(pointer(mapping.address + start_bytes), length_bytes)
        )

    def touched(self) -> list[str]:
        """Return the pages at which a real process would have ended by SIGBUS."""
        if not self._path_of or self._library.unreadable_touched() == 0:
            return []
        pages = [self._library.unreadable_page(index) for index in range(self._library.unreadable_pages())]
        return [f"{path}:{page}" for path, page in zip(self._path_of, pages, strict=True) if page >= 0]


def spoil(disk: "Disk", rng: random.Random, spares_only: bool) -> list[tuple[str, "Inode", list[int]]]:
    """Make some pages of one or two files unreadable. Returns: path, file and pages of each."""
    found = []
    candidates = [(path, inode) for path, inode in disk.files() if not spares_only or is_spare(path, inode.now())]
    for _ in range(rng.choice((1, 1, 2))):
        # Records that only the journal has would be lost, as with any log on a single disk.
        files = [
            (path, inode, pages)
            for path, inode in candidates
            if "/journal/" not in path and (pages := list(stored_pages(inode)))
        ]
        if not files:
            break
        path, inode, pages = rng.choice(files)
        chosen = rng.sample(pages, min(len(pages), rng.choice(PAGES_AT_ONCE)))
        for page in chosen:
            inode.unreadable[page] = inode.now(page, page + PAGE_BYTES)
        found.append((path, inode, sorted(inode.unreadable)))
    return found


def stored_pages(inode: "Inode") -> Iterator[int]:
    """Yield the pages with content that are on stable storage as they are; others were never written to the disk."""
    content = inode.now()
    for page in range(0, inode.size_bytes, PAGE_BYTES):
        part = content[page : page + PAGE_BYTES]
        if part == inode.durable[page : page + PAGE_BYTES] and any(part) and page not in inode.unreadable:
            yield page


@dataclasses.dataclass
class Excuses:
    """Messages that may be missing, or may come again, after a start for which pages have become unreadable.

    lost: of (topic, channel), or of (topic, "") for the topic's log, the numbers of messages whose records cannot be
    read. hidden: of the same, the numbers of messages whose records lie behind the log's end, if that is unreadable:
    the walk may go on with them. ledgers: of (topic, channel) whose ledger, and (topic, "") whose state cannot be read.
    notes: of channels whose notes cannot all be read: attempts, and due times of the channel's own, may be forgotten.
    node: whether node.json cannot be read.
    """

    lost: dict[tuple[str, str], set[int]] = dataclasses.field(default_factory=dict)
    hidden: dict[tuple[str, str], set[int]] = dataclasses.field(default_factory=dict)
    ledgers: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    notes: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    topics: set[str] = dataclasses.field(default_factory=set)
    node: bool = False

    def add(self, disk: "Disk", path: str, inode: "Inode", pages: list[int]) -> None:
        """Record the messages that the unreadable pages of a file excuse."""
        if path.endswith("/node.json"):
            self.node = True
        if "/topics/" not in path:
            return
        topic, _, rest = path.partition("/topics/")[2].partition(".topic/")
        channel, _, file = rest.rpartition(".channel/")
        self.topics.add(topic)
        log = log_of(path)
        if log is not None:
            content = with_journal(disk, path, inode.now())
            self.lost.setdefault(log, set()).update(numbers_in(content, pages))
            self.hidden.setdefault(log, set()).update(numbers_behind_end(content, pages))
        elif file.startswith("notes/"):
            self.notes.add((topic, channel))
        elif file in ("ledger", "cancelled.ledger", "state"):
            self.ledgers.add((topic, channel))

    def numbers(self, topic: str, channel: str) -> set[int]:
        """Return the numbers of the messages that may be missing in a channel."""
        return self.lost.get((topic, ""), set()) | self.lost.get((topic, channel), set())

    def numbers_behind(self, topic: str, *channels: str) -> set[int]:
        """Return the numbers of the messages that may come again in a topic's log, or in its channels."""
        return set().union(*(self.hidden.get((topic, channel), ()) for channel in ("", *channels)))

    def letters(self) -> set[int]:
        """Return the numbers of the dead letters that may be missing in the topic of dead letters."""
        return {number for (topic, _), lost in self.lost.items() if topic == GRAVEYARD for number in lost}


def with_journal(disk: "Disk", path: str, content: bytes) -> bytes:
    """Return the content of a segment of a topic's log after a start has restored the journal's records."""
    topic = path.partition("/topics/")[2].partition(".topic/")[0]
    number = path.rpartition("/")[2].removesuffix(".seg")
    changed = bytearray(content)
    for journal, inode in sorted(disk.files()):
        for commit in commits_in(inode.now(), journal) if "/journal/" in journal else ():
            for name, entry in entries_of(commit, journal):
                if (name, str(entry.file_number)) == (topic, number):
                    changed[entry.start : entry.start + entry.length] = inode.now(entry.at, entry.at + entry.length)
    return bytes(changed)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Discard the messages of compiled code on unreadable pages on standard error, for the time of a schedule."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
