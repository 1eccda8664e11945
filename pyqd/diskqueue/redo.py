"""Records that an earlier run has left in the journal: read at a start, and restored to the logs after a power failure.

A file of the journal is read from its beginning up to the first commit that is torn or belongs to an earlier use of the
file. The last commit of all determines the generation from which on files count. The entries of a topic are applied in
order, before its log is opened. The bytes of an entry return to their offset in the segment's file:

    found                           action
    the file is missing             create it, if the entry holds the segment's beginning: the name was not durable, and
                                    the file's space is free again. If less is free, it gets as much as its entries
                                    need. Otherwise, and if there is no space although a later file is there, it was
                                    removed, because all of its records were finished
    the file is in damaged/         nothing: an earlier start moved it there, and later records took its ordinals
    a rewritten file has its place  nothing: the file had all of the segment when it was made, and was synced
    a later segment                 nothing: the file was reused
    an earlier segment, or none     write the segment's beginning; an entry without the beginning is skipped
    the same segment                write the bytes after its header

Restoring can be repeated, as after a kill in the middle: bytes that are there already are written again. They are in
the page cache then; the journal stays until the first sync is complete.

After a kill nothing is restored. The journal then states how many bytes of a log are on stable storage, and whose
entries it holds if the topic's state is damaged.

Source: docs/storage.md, "Journal".
"""

import errno
import logging
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyqd.diskqueue.damage import BAD, damaged_directory
from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.diskqueue.journal import BLOCK_SIZE, CHECKED_FROM, ENTRY_SIZE, FORMAT_MAGIC, FORMAT_VERSION, HEADER_SIZE
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.diskqueue.segment import SEGMENT_HEADER_SIZE, rewritten_numbers, segment_identity
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import DiskFull, LaterFormatError, StorageError

READ_AT_ONCE_BYTES = 1 << 20

_HEADER = struct.Struct("<QIIQQQQqQ")
_ENTRY = struct.Struct("<IHBB7Q")
# A topic's state begins with the field that distinguishes it from earlier topics of its name.
_IDENTITY = struct.Struct("<q")

logger = logging.getLogger(__name__)


class Commit(NamedTuple):
    """One commit: the fields of its header, and its entries."""

    generation: int
    oldest: int
    latest_created_ns: int
    number: int
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


def read_used(files: Files, path: str) -> bytes:
    """Return the beginning of a file with all of its commits, up to the first unreadable block.

    Most of a file is not in use, and it is not in the page cache, which commits bypass.
    Raises: StorageError for anything but EIO.
    """
    content = bytearray()
    at = generation = 0
    while True:
        try:
            part = files.read_range(path, len(content), READ_AT_ONCE_BYTES)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            logger.error(
                "%s; the journal is not read after offset %d: acknowledged messages may be missing", error, len(content)
            )
            break
        if not part:
            break
        content += part
        while at + HEADER_SIZE <= len(content):
            magic, _, _, found, _, offset, size, *_ = _HEADER.unpack_from(content, at)
            if magic != FORMAT_MAGIC or offset != at or size < HEADER_SIZE or generation not in (0, found):
                return bytes(content)
            generation = found
            at += blocks_of(size)
    return bytes(content)


def blocks_of(size_bytes: int) -> int:
    """Return a size rounded up to whole blocks."""
    return -(-size_bytes // BLOCK_SIZE) * BLOCK_SIZE


def commits_in(content: bytes, path: str) -> Iterator[Commit]:
    """Yield the commits of one use of a file. Raises: LaterFormatError."""
    at, generation = 0, 0
    while at + HEADER_SIZE <= len(content):
        magic, version, checksum, found, oldest, offset, size, created, number = _HEADER.unpack_from(content, at)
        if magic != FORMAT_MAGIC or offset != at or not HEADER_SIZE <= size <= len(content) - at:
            return
        # The version too: if only that is damaged, the checksum tells the right one.
        is_sound = checksum == crc32c.value(memoryview(content)[at + CHECKED_FROM : at + size], FORMAT_VERSION)
        if version > FORMAT_VERSION and not is_sound:
            raise LaterFormatError(path, at + 8, f"journal format version {version}; this pyqd reads {FORMAT_VERSION}")
        if generation not in (0, found) or not is_sound:
            return
        generation = found
        yield Commit(found, oldest, created, number, at + HEADER_SIZE, content[at + HEADER_SIZE : at + size])
        at += blocks_of(size)


def entries_of(commit: Commit, path: str) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a commit, each with its topic's name. path: of the journal. Raises: LaterFormatError."""
    at = 0
    while at < len(commit.entries):
        size, name_bytes, state_words, kind, *numbers = _ENTRY.unpack_from(commit.entries, at)
        if kind != 0:
            raise LaterFormatError(path, commit.start + at + 7, f"journal entry of kind {kind}; this pyqd reads kind 0")
        name_at = at + ENTRY_SIZE
        state_at = name_at + -(-name_bytes // 8) * 8
        data_at = state_at + 8 * state_words
        name = commit.entries[name_at : name_at + name_bytes].decode()
        state = commit.entries[state_at:data_at]
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
    last_number: int
    path: str
    entries: list[tuple[str, Entry]]
    unreadable: bool


def content_of(files: Files, path: str) -> Content:
    """Read a file of the journal. Memory: that of one file, as there may be many. Raises: StorageError."""
    generation = oldest = latest_created_ns = last_number = 0
    entries: list[tuple[str, Entry]] = []
    content = read_used(files, path)
    for commit in commits_in(content, path):
        generation, oldest, last_number = commit.generation, commit.oldest, commit.number
        latest_created_ns = max(latest_created_ns, commit.latest_created_ns)
        entries += entries_of(commit, path)
    unreadable = not content and files.size_of(path) > 0
    return Content(generation, oldest, latest_created_ns, last_number, path, entries, unreadable)


class JournaledTopic:
    """Entries of one topic in the journal of an earlier run: one or more, in order."""

    def __init__(self, files: Files, entries: list[Entry]) -> None:
        assert len({entry.identity for entry in entries}) == 1, "entries of one topic, at least one"
        self._files = files
        self._entries = entries

    @property
    def state(self) -> bytes:
        """The journal's copy of the topic's state, of the last commit."""
        return self._entries[-1].state

    def ends(self) -> dict[tuple[int, int], int]:
        """Return the ends of the journaled bytes, as offsets, by segment number and first sequence number."""
        return {(entry.segment_number, entry.first_seq): entry.start + entry.length for entry in self._entries}

    def is_of(self, log_directory: str) -> bool:
        """Return whether a file of an entry is in a log's directory. File names are never used twice."""
        numbers = {entry.file_number for entry in self._entries}
        return any(self._files.exists(os.path.join(log_directory, f"{number}{SUFFIX}")) for number in numbers)

    def restore(self, log_directory: str) -> None:
        """Write the bytes to the segments, after a power failure. Raises: StorageError."""
        self._files.make_directory(log_directory)
        first_number = self._entries[-1].first_number
        for entry in self._entries:
            if entry.segment_number >= first_number:
                self._put_back(entry, os.path.join(log_directory, f"{entry.file_number}{SUFFIX}"))

    def _put_back(self, entry: Entry, path: str) -> None:
        """Write the bytes of one entry, unless the file has a later segment, is set aside, or none can be begun."""
        there = self._files.exists(path)
        if not there and (self._is_set_aside(path) or self._is_rewritten(entry, os.path.dirname(path))):
            return
        mine = (entry.segment_number, entry.first_seq)
        theirs = self._identity_at(path) if there else (0, 0)
        if theirs[0] == 0:
            # A spare is overwritten whatever it held.
            theirs = (0, 0)
        if theirs > mine or (theirs < mine and entry.start != 0):
            return
        if not there:
            try:
                self._create(entry, path)
            except DiskFull:
                if not self._was_removed(entry, os.path.dirname(path)):
                    raise
                logger.warning("%s is not restored: there is no space, and all of its messages were finished", path)
                return
        skipped = SEGMENT_HEADER_SIZE if theirs == mine and entry.start == 0 else 0
        content = self._files.read_range(entry.path, entry.at + skipped, entry.length - skipped)
        try:
            self._files.overwrite(path, entry.start + skipped, content)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            self._put_back_by_page(path, entry.start + skipped, content)

    def _create(self, entry: Entry, path: str) -> None:
        """Make a missing file again, as large as it was or as its entries need. Raises: StorageError."""
        try:
            self._files.new_mapped(path, entry.file_bytes, False)
        except DiskFull:
            end = max(each.start + each.length for each in self._entries if each.file_number == entry.file_number)
            needed = -(-end // PAGE_BYTES) * PAGE_BYTES
            if needed >= entry.file_bytes:
                raise
            # What others have taken meanwhile, such as a file that was set aside, may be less than the segment's rest.
            self._files.new_mapped(path, needed, False)

    def _put_back_by_page(self, path: str, start: int, content: bytes) -> None:
        """Write page by page, except to unreadable pages: one of these fails a write of all pages."""
        at = 0
        while at < len(content):
            length = PAGE_BYTES - (start + at) % PAGE_BYTES
            part = content[at : at + length]
            try:
                self._files.overwrite(path, start + at, part)
            except StorageError as error:
                page = (start + at) // PAGE_BYTES * PAGE_BYTES
                if error.errno != errno.EIO or self._readable(path, page, PAGE_BYTES) is not None:
                    # The start is refused; the next one retries with the same journal.
                    raise
                # The log finds and bridges the damage, as with any unreadable page.
                logger.error("%s; %d bytes of acknowledged messages are not restored", error, len(part))
            at += length

    def _was_removed(self, entry: Entry, log_directory: str) -> bool:
        """Return whether a missing file was removed, and not lost with its name. Raises: StorageError.

        Names in a directory become durable in the order in which they were made. So the name was durable if a file that
        was made later is there. Two threads may make files against the order of their numbers by milliseconds: the
        one with the later number is then used at once, and has the earlier segment. A spare tells the segment that it
        was last.
        """
        for name in self._files.list_directory(log_directory):
            number = name.removesuffix(SUFFIX)
            if number.isdigit() and int(number) > entry.file_number:
                segment_number, first_seq = self._identity_at(os.path.join(log_directory, name))
                if segment_number > entry.segment_number or (segment_number == 0 and first_seq > entry.first_seq):
                    return True
        return False

    def _is_rewritten(self, entry: Entry, log_directory: str) -> bool:
        """Return whether a rewritten file has the place of a segment, and with it the bytes of the entry."""
        for name in self._files.list_directory(log_directory):
            if name.endswith(SUFFIX):
                content = self._readable(os.path.join(log_directory, name), 0, SEGMENT_HEADER_SIZE)
                numbers = rewritten_numbers(content or b"")
                if numbers is not None and numbers[0] <= entry.segment_number <= numbers[1]:
                    return True
        return False

    def _is_set_aside(self, path: str) -> bool:
        """Return whether an earlier start has moved a segment out of the log as damaged.

        Segments written since then may have its number and ordinals: they would be taken for duplicates of it.
        """
        directory, name = os.path.split(path)
        return self._files.exists(os.path.join(damaged_directory(directory), name))

    def _readable(self, path: str, start: int, length: int) -> bytes | None:
        """Return a range of a file; None if the disk cannot read it. Raises: StorageError for any other error."""
        try:
            return self._files.read_range(path, start, length)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            return None

    def _identity_at(self, path: str) -> tuple[int, int]:
        """Return the identity of the segment in a file; (0, 0) if it has none. Raises: StorageError, except EIO."""
        return segment_identity(self._readable(path, 0, SEGMENT_HEADER_SIZE) or b"")


class Redo:
    """Commits that an earlier run has left in a journal. directory: of it. Raises: StorageError, LaterFormatError."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        # Generation and path of the files that count, in order.
        self.former: list[tuple[int, str]] = []
        self.latest_created_ns = 0
        self.commit_number = 0
        self._entries_of: dict[str, list[Entry]] = {}
        self._read(directory)

    def _read(self, directory: str) -> None:
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
            self.commit_number = max(self.commit_number, content.last_number)
            for name, entry in content.entries:
                self._entries_of.setdefault(name, []).append(entry)

    def take(self, name: str, created_ns: int, state_lost: bool) -> JournaledTopic | None:
        """Return the entries of a topic, once; None if there are none.

        created_ns: of its state; 0 if there is none. state_lost: it was damaged.
        """
        entries = self._entries_of.pop(name, [])
        identity = created_ns
        if state_lost and entries:
            # The last topic of that name that has published. Without a written state nothing of the topic had to be
            # durable, and the journal's entries belong to an earlier one.
            identity = entries[-1].identity
        entries = [entry for entry in entries if entry.identity == identity]
        return JournaledTopic(self.files, entries) if entries else None
