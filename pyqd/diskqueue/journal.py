"""The journal: with --sync-every=1 the new bytes of all logs go there with one flush, before their publishers' OKs.

    journal/1    | commit | commit | ... | not used yet, or of an earlier use |
    journal/2    | commit | ...                                               |

Its files have one size and all their blocks, written once, so that a commit changes no metadata and costs what the disk
takes for one write. Each use of a file has a *generation*, which its commits tell. When the syncer has made durable all
that there was when it began, what the journal holds of that is not needed any more: the syncer begins with `cut`, after
which commits go to another file, and ends with `release`. Every commit tells the oldest generation that still counts.

When no file is free, or a write has failed, commits are refused; the caller syncs the logs themselves then. After a
failed write nothing is written here until everything was synced otherwise, as a start reads a file only up to the first
commit that is not whole.

What a killed process has left stays until the first sync of its successor is complete.

Invariants: 1. one commit is under way at a time. 2. a file is written to only by the generation that it was given.

Source: docs/storage.md, "Journal".
"""

import errno
import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from pyqd.diskqueue.files import Files, JournalFile
from pyqd.hot.diskqueue.journal import BLOCK_SIZE, CommitBuffer
from pyqd.primitives.errors import StorageError

FILE_BYTES = 32 << 20
# One is written to, one waits for the syncer, and one is free.
FILES_KEPT = 3
# More are made while the syncer is slow, up to so many; then commits wait for it.
FILES_MAX = 16
# Of a file system that does not know such files or writes; other reasons may pass.
CANNOT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)

logger = logging.getLogger(__name__)

InBackground = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]


class Place(NamedTuple):
    """Place in a file for the commit under way, with the blocks to write there."""

    file: JournalFile
    offset: int
    content: memoryview


class Used(NamedTuple):
    """A file with commits that count."""

    generation: int
    file: JournalFile


def nobody_waits() -> None:
    """Do nothing if the journal wants a sync."""


class Journal:
    """The journal of one data directory.

    directory: holds its files. in_background: runs a blocking job in a thread. file_bytes: of each file.
    """

    def __init__(self, files: Files, directory: str, in_background: InBackground, file_bytes: int = FILE_BYTES) -> None:
        self.files = files
        self.directory = directory
        self.file_bytes = file_bytes
        # Called when the files run out: a sync would set some free.
        self.on_sync_wanted: Callable[[], None] = nobody_waits
        # When the newest topic was made. It tells a topic from one of its name before, so it never goes back.
        self.latest_created_ns = 0
        self._in_background = in_background
        self._commit = CommitBuffer()
        self._used: list[Used] = []
        self._free: list[JournalFile] = []
        # Of an earlier run, with their generations: they count until everything was synced once.
        self._former: list[tuple[int, str]] = []
        self._generation = 0
        self._offset = 0
        self._last_number = 0
        self._file_count = 0
        self._making = False
        self._started = False
        # Why the last file could not be made; and that none can be here.
        self._refusal = ""
        self._useless = False
        # The file that a commit is being written to.
        self._busy: JournalFile | None = None
        # A write has failed: no commit goes here before all was synced otherwise.
        self._failed = False

    def take_up(self, former: list[tuple[int, str]], latest_created_ns: int) -> None:
        """Keep the files of an earlier run until the first sync. former: generation and path, in order."""
        self._former = former
        self.latest_created_ns = latest_created_ns
        self._generation = max((generation for generation, _ in former), default=0)
        numbers = [int(os.path.basename(path)) for _, path in former]
        self._last_number = max(numbers, default=0)

    def start(self) -> None:
        """Take commits as soon as there is a file. Nothing fails here: without a file logs are synced themselves."""
        self._started = True
        self._want_file()

    def begin(self) -> CommitBuffer | None:
        """Return the buffer for the next commit; None if the journal takes none now."""
        if self._failed or not self._started or not (self._used or self._free):
            return None
        self._commit.begin()
        return self._commit

    def place(self) -> Place | None:
        """Return the place of the gathered commit; None if there is no space."""
        size_bytes = self._commit.whole_bytes
        if size_bytes > self.file_bytes:
            return None
        if not self._used or self._offset + size_bytes > self.file_bytes:
            begun = self._next_file()
            if not begun or (not self._free and len(self._used) >= FILES_KEPT - 1):
                # Before the last file is full. The first one is followed by another, which is being made.
                self.on_sync_wanted()
            if not begun:
                return None
        generation, file = self._used[-1]
        assert self._busy is None, "two commits at a time"
        self._busy = file
        place = Place(
            file,
            self._offset,
            self._commit.finish(generation, self.oldest, self._offset, self.latest_created_ns),
        )
        self._offset += size_bytes
        return place

    @property
    def oldest(self) -> int:
        """The generation of the oldest file that counts."""
        return self._former[0][0] if self._former else self._used[0].generation

    def note_written(self) -> None:
        """Tell the logs that the commit under way is on stable storage."""
        self._busy = None
        self._commit.note_durable()

    def note_failed(self) -> None:
        """Refuse commits until all that is in the journal was synced otherwise."""
        self._busy = None
        self._failed = True
        self.on_sync_wanted()

    def give_up(self) -> None:
        """Write nothing of the commit under way, if there is one: something went wrong before."""
        if self._busy is not None:
            self.note_failed()

    def cut(self) -> int:
        """Have the commits to come go to another file. Returns: the first generation that a sync from now on leaves."""
        if self._failed or (self._used and self._offset > 0 and not self._next_file()):
            # The last file in use stays in use, unless its content is to be dropped.
            return self._generation + self._failed
        return self._generation

    def release(self, kept: int) -> None:
        """Drop everything written before a `cut`, because all of it is on stable storage. kept: the result of the
        `cut`.
        """
        former, self._former = self._former, []
        for _, path in former:
            self._remove(path)
        while self._used and self._used[0].generation < kept:
            file = self._used.pop(0).file
            if len(self._used) + len(self._free) < FILES_KEPT or file is self._busy:
                self._free.append(file)
            else:
                self._give_up(file)
        if self._failed and not self._used:
            self._failed = False
        self._want_file()

    def close(self) -> None:
        """Remove all files: a clean stop has everything on stable storage. Raises: StorageError."""
        self._started = False
        for file in [*self._free, *(used.file for used in self._used)]:
            # A number that is closed may be given to another file.
            if file is not self._busy:
                file.close()
        self._free, self._used, self._former = [], [], []
        self.files.remove_tree(self.directory)

    def _next_file(self) -> bool:
        """Begin another generation in a free file. Returns: whether there was one."""
        if not self._free:
            self._want_file()
            return False
        self._generation += 1
        self._used.append(Used(self._generation, self._free.pop()))
        self._offset = 0
        self._want_file()
        return True

    def _want_file(self) -> None:
        """Have another file made in a thread, if none is free."""
        if not self._started or self._making or self._free or self._useless or self._file_count >= FILES_MAX:
            return
        self._making = True
        self._last_number += 1
        path = os.path.join(self.directory, str(self._last_number))

        def make() -> JournalFile | StorageError:
            try:
                self.files.make_directory(self.directory)
                made = self.files.new_journal_file(path, self.file_bytes)
                self.files.sync_directory(self.directory)
                self.files.sync_directory(os.path.dirname(self.directory))
            except StorageError as error:
                return error
            return made

        def done(made: JournalFile | StorageError | None, error: BaseException | None) -> None:
            self._making = False
            if not self._started:
                # A stop has removed it.
                return
            if isinstance(made, JournalFile):
                self._free.append(made)
                self._file_count += 1
                self._refusal = ""
                return
            self._useless = isinstance(made, StorageError) and made.errno in CANNOT
            reason = str(made.strerror if isinstance(made, StorageError) else error)
            if self._refusal != reason:
                self._refusal = reason
                logger.warning(
                    "DISKQUEUE: cannot create a journal file: %s; each log is synced by itself, more slowly",
                    made or error,
                )

        self._in_background(make, done)

    def _give_up(self, file: JournalFile) -> None:
        self._file_count -= 1
        file.close()
        self._remove(file.path)

    def _remove(self, path: str) -> None:
        try:
            self.files.remove(path)
        except StorageError as error:
            # It is found by the next start, which goes by the generations.
            logger.warning("DISKQUEUE: cannot remove a journal file: %s; the next start removes it", error)


assert FILE_BYTES % BLOCK_SIZE == 0
