"""Journal of one data directory: with --sync-every=1, the new bytes of all logs go there before their publishers' OKs.

    journal/1    | commit | commit | ... | not used yet, or of an earlier use |
    journal/2    | commit | ...                                               |

One write with one flush makes a commit durable. The files have one size and all their blocks, written once, so that a
commit changes no metadata. Each use of a file has a *generation*, which its commits state. A sync of everything begins
with `rotate`, after which commits go to another file, and ends with `release`: the bytes of the files before that are
not needed any more. Every commit states the oldest generation that still counts.

If no file is free, or a write has failed, commits are refused, and the caller syncs the logs themselves. After a failed
write nothing is written here until everything was synced otherwise, because a start reads a file only up to the first
torn commit.

Files of a killed process stay until the first sync of its successor is complete.

Invariants: 1. one commit is under way at a time. 2. a file is written to only by the generation that it was given.

Source: docs/storage.md, "Journal".
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pyqd.diskqueue.files import Files, JournalFile
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.journal import BLOCK_SIZE, CommitBuffer
from pyqd.primitives.errors import StorageError

FILE_BYTES = 32 << 20
# One file is written to, one waits for the syncer, and one is free.
FILES_KEPT = 3
# While the syncer is slow, more files are made, up to this number; then commits go to the logs.
FILES_MAX = 16
# Commits wait behind the writes that fill another file with zeros. So there is a rest after each, unless the file is no
# further filled than the one that takes the commits, and this much.
ZEROS_AHEAD_BYTES = 8 << 20
ZEROS_REST_S = 0.008
# Errors of a file system that does not support such files or writes; other errors may pass.
CANNOT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)

logger = logging.getLogger(__name__)

InBackground = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]


class CommitPlace(NamedTuple):
    """Place in a file for the commit under way, with the blocks to write there."""

    file: JournalFile
    offset: int
    content: memoryview


class UsedFile(NamedTuple):
    """File with commits that count."""

    generation: int
    file: JournalFile


def do_nothing() -> None:
    """Ignore the journal's request for a sync, or the end of a removal."""


class Journal:
    """The journal of one data directory.

    directory: holds its files. in_background: runs a blocking job in a thread. file_bytes: size of each file. limit:
    says whether another file may be made.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        in_background: InBackground,
        file_bytes: int = FILE_BYTES,
        limit: SpaceLimit | None = None,
    ) -> None:
        self.files = files
        self.limit = limit or SpaceLimit()
        self.directory = directory
        self.file_bytes = file_bytes
        self.on_sync_wanted: Callable[[], None] = do_nothing
        # Creation time of the newest topic. It distinguishes topics of one name, so it never goes back.
        self.latest_created_ns = 0
        self._in_background = in_background
        self._commit = CommitBuffer()
        self._used: list[UsedFile] = []
        self._free: list[JournalFile] = []
        # Files of an earlier run with their generations; they count until everything was synced once.
        self._former: list[tuple[int, str]] = []
        self._generation = 0
        self._commits = 0
        self._offset = 0
        self._last_number = 0
        self._file_count = 0
        self._making = False
        self._started = False
        # Reason why the last file could not be made, and whether no file can be made here at all.
        self._refusal = ""
        self._useless = False
        # The file that a commit is being written to.
        self._busy: JournalFile | None = None
        # A write has failed: commits are refused until everything was synced otherwise.
        self._failed = False

    def keep_former(self, former: list[tuple[int, str]], latest_created_ns: int, commit_number: int) -> None:
        """Keep the files of an earlier run until the first sync. former: generation and path, in order."""
        self._former = former
        self.latest_created_ns = latest_created_ns
        self._commits = commit_number
        self._generation = max((generation for generation, _ in former), default=0)
        numbers = [int(os.path.basename(path)) for _, path in former]
        self._last_number = max(numbers, default=0)

    @property
    def has_former(self) -> bool:
        """True if there are files of an earlier run, which the first complete sync removes."""
        return bool(self._former)

    def start(self, on_sync_wanted: Callable[[], None] = do_nothing) -> None:
        """Start making the journal's file, which takes commits once it exists.

        Never fails: without a file the logs are synced. on_sync_wanted: called when the files run out, because a sync
        would release some.
        """
        self.on_sync_wanted = on_sync_wanted
        self._started = True
        self._want_file()

    def begin(self) -> CommitBuffer | None:
        """Return the buffer for the next commit; None if the journal takes none now."""
        if self._failed or not self._started or not (self._used or self._free):
            return None
        assert self._busy is None, "the buffer belongs to the commit under way"
        self._commit.begin()
        return self._commit

    def place(self) -> CommitPlace | None:
        """Return the place of the gathered commit; None if there is no space."""
        size_bytes = self._commit.whole_bytes
        if size_bytes > self.file_bytes:
            return None
        if not self._used or self._offset + size_bytes > self.file_bytes:
            begun = self._next_file()
            if not begun or (not self._free and len(self._used) >= FILES_KEPT - 1):
                # Requested before the last file is full. While the first file is in use, the second is being made.
                self.on_sync_wanted()
            if not begun:
                return None
        generation, file = self._used[-1]
        assert self._busy is None, "two commits at a time"
        self._busy = file
        self._commits += 1
        content = self._commit.finish(generation, self.oldest, self._offset, self.latest_created_ns, self._commits)
        place = CommitPlace(file, self._offset, content)
        self._offset += size_bytes
        return place

    @property
    def oldest(self) -> int:
        """The generation of the oldest file that counts."""
        return self._former[0][0] if self._former else self._used[0].generation

    def note_written(self) -> None:
        """Tell the logs that the commit under way is on stable storage."""
        assert self._busy is not None, "no commit is under way"
        self._busy = None
        self._commit.note_durable()

    def note_failed(self) -> None:
        """Refuse commits until the syncer has synced the logs of all commits in the journal."""
        self._busy = None
        self._failed = True
        self.on_sync_wanted()

    def give_up(self) -> None:
        """Drop the commit under way, if there is one, because its round has failed before the write."""
        if self._busy is not None:
            self.note_failed()

    def rotate(self) -> int:
        """Direct later commits to another file. Returns: the oldest generation that a sync from now on must keep."""
        if self._failed or (self._used and self._offset > 0 and not self._next_file()):
            # There is no other file. The one in use is kept, unless a write to it has failed.
            return self._generation + self._failed
        return self._generation

    def release(self, kept: int) -> None:
        """Drop everything written before a `cut`, because all of it is on stable storage. kept: the result of the
        `rotate`.
        """
        assert kept <= self._generation + 1, "kept is the result of `rotate`"
        former, self._former = self._former, []
        for _, path in former:
            self._remove(path, do_nothing)
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
            # A closed descriptor's number may be given to another file while the write is under way.
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
        self._used.append(UsedFile(self._generation, self._free.pop()))
        self._offset = 0
        self._want_file()
        return True

    def _want_file(self) -> None:
        if not self._started or self._making or self._free or self._useless or self._file_count >= FILES_MAX:
            return
        self._making = True
        self._last_number += 1
        path = os.path.join(self.directory, str(self._last_number))

        def make() -> JournalFile | StorageError:
            try:
                self.files.make_directory(self.directory)
                claim = self.limit.claim(self.file_bytes, self.file_bytes)
                made = self.files.new_journal_file(path, self.file_bytes, claim, self._rest)
                self.files.sync_directory(self.directory)
                self.files.sync_directory(os.path.dirname(self.directory))
            except StorageError as error:
                return error
            return made

        def done(made: JournalFile | StorageError | None, error: BaseException | None) -> None:
            self._making = False
            if not self._started:
                # The stop has removed the file with the directory.
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

    def _rest(self, written_bytes: int) -> None:
        """Let commits write, unless they will soon need the new file. In a thread. written_bytes: of that file."""
        if self._started and self._used and written_bytes > self._offset + ZEROS_AHEAD_BYTES:
            time.sleep(ZEROS_REST_S)

    def _give_up(self, file: JournalFile) -> None:
        """Close and remove a file in a thread. Until then it counts, because it has a descriptor."""

        def closed() -> None:
            self._file_count -= 1
            self._want_file()

        self._remove(file.path, closed, file)

    def _remove(self, path: str, removed: Callable[[], None], file: JournalFile | None = None) -> None:
        """Remove a file in a thread, because freeing its blocks takes up to 100 ms. file: is closed before.

        removed: called afterwards, also if the removal has failed.
        """

        def remove() -> StorageError | None:
            if file is not None:
                file.close()
            try:
                self.files.remove(path)
            except StorageError as error:
                return error
            return None

        def done(failed: StorageError | None, error: BaseException | None) -> None:
            if failed or error:
                # The next start finds the file by its generation.
                logger.warning(
                    "DISKQUEUE: cannot remove a journal file: %s; the next start removes it", failed or error
                )
            removed()

        self._in_background(remove, done)


assert FILE_BYTES % BLOCK_SIZE == 0
