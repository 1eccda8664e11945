"""After a power failure: what the journal holds is put back into the logs, before they are opened.

A file of the journal is read from its start up to the first commit that is not whole, or is of another use of the file.
The last commit of all tells from which generation on they count. The entries of a topic are applied in order: bytes go
to where they lay in the segment's file.

    the file is missing     made anew, if the entry holds the segment's beginning: its name was not on stable storage.
                            Else it was removed, as all in it was finished
    another segment is in   a later one: passed over, as the file was used anew. An earlier one, or none: the segment's
                            beginning takes its place; an entry without that is passed over
    the same one is in      the bytes behind its header are written

It may be done twice, as after a kill in the middle: bytes that are there already are written once more. The page cache
has them then; the journal stays until the first sync is complete.

Source: docs/storage.md, "Journal".
"""

import errno
import logging
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyqd.diskqueue.damage import BAD
from pyqd.diskqueue.file_headers import SEGMENT_HEADER_BYTES, SegmentHeader, parse_segment_header
from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.diskqueue.journal import BLOCK_SIZE, CHECKED_FROM, ENTRY_SIZE, FORMAT_MAGIC, FORMAT_VERSION, HEADER_SIZE
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

READ_AT_ONCE_BYTES = 1 << 20

_HEADER = struct.Struct("<QIIQQQQq")
_ENTRY = struct.Struct("<IHH7Q")
# A topic's state begins with the field that distinguishes it from earlier topics of its name.
_IDENTITY = struct.Struct("<q")

logger = logging.getLogger(__name__)


class Commit(NamedTuple):
    """One commit: the fields of its header, and its entries."""

    generation: int
    oldest: int
    latest_created_ns: int
    start: int
    entries: bytes


class Entry(NamedTuple):
    """One entry, with the journal file and the offset of the segment's bytes."""

    state: bytes
    file_number: int
    segment_number: int
    first_seq: int
    first_number: int
    file_bytes: int
    start: int
    length: int
    path: str
    at: int

    @property
    def identity(self) -> int:
        """The time at which the topic was made, which no other topic of its name has."""
        return int(_IDENTITY.unpack_from(self.state)[0])


def read_readable(files: Files, path: str) -> bytes:
    """Return the content of a file up to its first unreadable block. Raises: StorageError for anything but EIO."""
    parts: list[bytes] = []
    at = 0
    while True:
        try:
            part = files.read_range(path, at, READ_AT_ONCE_BYTES)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            logger.error("%s; the journal is not read after offset %d: acknowledged messages may be missing", error, at)
            break
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def commits_in(content: bytes, path: str) -> Iterator[Commit]:
    """Yield the commits of one use of a file. Raises: LaterFormatError."""
    at, generation = 0, 0
    while at + HEADER_SIZE <= len(content):
        magic, version, checksum, found, oldest, offset, size, created = _HEADER.unpack_from(content, at)
        if magic != FORMAT_MAGIC or offset != at or not HEADER_SIZE <= size <= len(content) - at:
            return
        if version > FORMAT_VERSION:
            raise LaterFormatError(path, at + 8, f"journal format version {version}; this pyqd reads {FORMAT_VERSION}")
        if generation not in (0, found) or checksum != crc32c.value(
            memoryview(content)[at + CHECKED_FROM : at + size], version
        ):
            return
        generation = found
        yield Commit(found, oldest, created, at + HEADER_SIZE, content[at + HEADER_SIZE : at + size])
        at += -(-size // BLOCK_SIZE) * BLOCK_SIZE


def entries_of(commit: Commit, path: str) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a commit, each with its topic's name. path: the file of the journal."""
    at = 0
    while at < len(commit.entries):
        size, name_bytes, state_bytes, *numbers = _ENTRY.unpack_from(commit.entries, at)
        name_at = at + ENTRY_SIZE
        state_at = name_at + -(-name_bytes // 8) * 8
        data_at = state_at + -(-state_bytes // 8) * 8
        name = commit.entries[name_at : name_at + name_bytes].decode()
        state = commit.entries[state_at : state_at + state_bytes]
        # mypy counts the numbers as one: there are seven.
        yield name, Entry(state, *numbers, path, commit.start + data_at)  # type: ignore[call-arg]
        at += size


class Content(NamedTuple):
    """Commits in a file of the journal, without the bytes of segments. generation: 0 if there is no commit.

    unreadable: not even its first block can be read.
    """

    generation: int
    oldest: int
    latest_created_ns: int
    path: str
    entries: list[tuple[str, Entry]]
    unreadable: bool


def content_of(files: Files, path: str) -> Content:
    """Read a file of the journal. Memory: that of one file, as there may be many. Raises: StorageError."""
    generation = oldest = latest_created_ns = 0
    entries: list[tuple[str, Entry]] = []
    content = read_readable(files, path)
    for commit in commits_in(content, path):
        generation, oldest = commit.generation, commit.oldest
        latest_created_ns = max(latest_created_ns, commit.latest_created_ns)
        entries += entries_of(commit, path)
    unreadable = not content and files.size_of(path) > 0
    return Content(generation, oldest, latest_created_ns, path, entries, unreadable)


class Redo:
    """Commits that an earlier run has left in a journal. directory: of it. Raises: StorageError, LaterFormatError."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        # Generation and path of the files that count, in order.
        self.former: list[tuple[int, str]] = []
        self.latest_created_ns = 0
        self._entries_of: dict[str, list[Entry]] = {}
        self._read(directory)

    def _read(self, directory: str) -> None:
        """Find and read the files."""
        found: list[Content] = []
        for name in self.files.list_directory(directory) if self.files.exists(directory) else []:
            path = os.path.join(directory, name)
            if not name.isdigit():
                logger.warning("skipping %s in %s: not a file of the journal", name, directory)
                continue
            found.append(content_of(self.files, path))
        found.sort(key=lambda content: content.generation)
        oldest = found[-1].oldest if found else 0
        for content in found:
            if content.unreadable:
                # The disk may be able to read it later, and no other file has its content.
                aside = f"{directory}-{os.path.basename(content.path)}{BAD}"
                self.files.rename(content.path, aside)
                logger.error(
                    "journal file %s cannot be read and is kept as %s: acknowledged messages may be missing",
                    content.path,
                    aside,
                )
                continue
            if content.generation == 0 or content.generation < oldest:
                self.files.remove(content.path)
                continue
            self.former.append((content.generation, content.path))
            self.latest_created_ns = max(self.latest_created_ns, content.latest_created_ns)
            for name, entry in content.entries:
                self._entries_of.setdefault(name, []).append(entry)

    def apply(self, name: str, log_directory: str, created_ns: int, state_lost: bool) -> bytes | None:
        """Restore a topic's records. created_ns: of its state; 0 if there is none. state_lost: it was damaged.

        Returns: the journal's copy of the state; None if there is none. Raises: StorageError.
        """
        entries = self._entries_of.pop(name, [])
        identity = created_ns
        if state_lost and entries:
            # The last topic of that name that has published. Without a written state nothing of the topic had to be
            # durable, and the journal's entries belong to an earlier one.
            identity = entries[-1].identity
        entries = [entry for entry in entries if entry.identity == identity]
        if not entries:
            return None
        self.files.make_directory(log_directory)
        first_number = entries[-1].first_number
        for entry in entries:
            if entry.segment_number >= first_number:
                self._put_back(entry, os.path.join(log_directory, f"{entry.file_number}{SUFFIX}"))
        return entries[-1].state

    def _put_back(self, entry: Entry, path: str) -> None:
        """Write the bytes of one entry, if the file is to have them."""
        there = self.files.exists(path)
        header = self._header_of(path) if there else None
        mine = (entry.segment_number, entry.first_seq)
        theirs = (0, 0) if header is None else (header.number, header.first_seq)
        if theirs > mine or (theirs < mine and entry.start != 0):
            return
        if not there:
            self.files.new_mapped(path, entry.file_bytes, False)
        skipped = SEGMENT_HEADER_BYTES if theirs == mine and entry.start == 0 else 0
        content = self.files.read_range(entry.path, entry.at + skipped, entry.length - skipped)
        try:
            self.files.overwrite(path, entry.start + skipped, content)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            self._put_back_by_page(path, entry.start + skipped, content)

    def _put_back_by_page(self, path: str, start: int, content: bytes) -> None:
        """Write all but the parts of pages that cannot be read, as one of those fails a write of all pages."""
        at = 0
        while at < len(content):
            length = PAGE_BYTES - (start + at) % PAGE_BYTES
            part = content[at : at + length]
            try:
                self.files.overwrite(path, start + at, part)
            except StorageError as error:
                if error.errno != errno.EIO or self._is_readable(path, start + at):
                    # The next start tries it again, with the same journal.
                    raise
                # As with any page that cannot be read: the log finds the damage.
                logger.error("%s; %d bytes of acknowledged messages are not restored", error, len(part))
            at += length

    def _is_readable(self, path: str, at: int) -> bool:
        """Say whether the page with the byte at an offset can be read. Raises: StorageError for anything but EIO."""
        try:
            self.files.read_range(path, at // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True

    def _header_of(self, path: str) -> SegmentHeader | None:
        """Return the header of the segment in a file; None if there is none that can be believed."""
        try:
            return parse_segment_header(self.files.read_range(path, 0, SEGMENT_HEADER_BYTES), path)
        except CorruptionError:
            return None
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            return None
