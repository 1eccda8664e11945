"""Syncs to stable storage whose success can be believed on a disk that fails now and then.

If a page cannot be written back, Linux marks it clean all the same, and reports the error once per open file. A
repeated sync then finds nothing to write and succeeds, and so does a sync beside the one that got the error. Therefore
one sync of a mapping runs at a time, and a mapping counts its failures. Until a sync has succeeded that was requested
after the last failure, the pages of every range are made dirty again before they are synced.

syncfs(2) does not report whose pages were lost. After its first failure each file is synced by itself, for good: that
reports an error of the file's pages even if they were written by another call.

The next process on the same boot must not believe clean pages either. The empty directory SYNC_FAILED in the data path
says so. It is made beforehand under another name, as the disk may be full when a sync fails, and a rename takes no
space.

Invariant: when `sync` returns, the bytes that the range had at its call are on stable storage, whatever failed before.

Sources: msync(2); errseq in the kernel's documentation of the VFS.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import StorageError

SYNC_FAILED = "sync-failed"
RESERVED = "sync-failed.reserved"


class DirtyRange(NamedTuple):
    """Range of a mapping, from a page's start. failures: the mapping's count when the range was gathered."""

    mapping: Mapping
    start_bytes: int
    length_bytes: int
    failures: int


def dirty_range(mapping: Mapping, start_bytes: int, length_bytes: int) -> DirtyRange:
    """Return the dirty part of a mapping as a range, gathered now."""
    return DirtyRange(mapping, start_bytes, length_bytes, mapping.failed_syncs)


class ReliableSync:
    """Writes mappings to stable storage, for all threads. path: the data directory."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self._note = os.path.join(path, SYNC_FAILED)
        self._reserved = os.path.join(path, RESERVED)
        self._path = path
        # Syncs that have ended, also those that failed.
        self.done_count = 0
        self._by_file = False
        self._whole = threading.Lock()
        self._busy: set[Mapping] = set()
        self._changed = threading.Condition()

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int, failures: int = -1) -> None:
        """Write a page-aligned range to stable storage; blocks, with the interpreter's lock released.

        failures: the mapping's count when all its dirty bytes were gathered as this range; -1: the range may be a part.
        Raises: StorageError.
        """
        with self._exclusively(mapping):
            failed = mapping.failed_syncs
            try:
                if failed != mapping.healed_syncs:
                    self.files.dirty_again(mapping, start_bytes, length_bytes)
                self.files.sync(mapping, start_bytes, length_bytes)
            except StorageError:
                mapping.failed_syncs += 1
                self.leave_failure_note()
                raise
            finally:
                self.done_count += 1
            if failures == failed:
                mapping.healed_syncs = failed

    def sync_file_system(self, ranges: Sequence[DirtyRange]) -> bool:
        """Write all of the file system to stable storage; blocks. Raises: StorageError.

        Returns: whether the ranges are there now; if False, they have to be synced one by one.
        """
        with self._whole:
            if self._by_file or not self._are_sound(ranges):
                return False
            try:
                done = self.files.sync_file_system(self._path)
            except StorageError:
                self._by_file = True
                for mapping in {each.mapping for each in ranges}:
                    with self._exclusively(mapping):
                        mapping.failed_syncs += 1
                self.leave_failure_note()
                raise
            finally:
                self.done_count += 1
        return done and self._are_sound(ranges)

    def leave_failure_note(self) -> None:
        """Leave a note for the next process that a sync has failed."""
        if self.has_failure_note():
            return
        with suppress(StorageError):
            self.files.rename(self._reserved, self._note)
            return
        with suppress(StorageError):
            self.files.make_directory(self._note)

    def has_failure_note(self) -> bool:
        """Return whether a sync has failed since the last clean stop."""
        return self.files.exists(self._note)

    def reserve_failure_note(self) -> None:
        """Make the note beforehand, if the disk has space for it."""
        with suppress(StorageError):
            self.files.make_directory(self._reserved)

    def withdraw_failure_note(self) -> None:
        """Take the note back, at a clean stop. Raises: StorageError."""
        if not self.has_failure_note():
            return
        if self.files.exists(self._reserved):
            self.files.remove_tree(self._note)
        else:
            self.files.rename(self._note, self._reserved)

    def _are_sound(self, ranges: Sequence[DirtyRange]) -> bool:
        """Return whether no sync of the ranges' files has failed since they were gathered and none is under way."""
        with self._changed:
            return all(
                each.mapping not in self._busy
                and each.failures == each.mapping.failed_syncs == each.mapping.healed_syncs
                for each in ranges
            )

    @contextmanager
    def _exclusively(self, mapping: Mapping) -> Iterator[None]:
        with self._changed:
            while mapping in self._busy:
                self._changed.wait()
            self._busy.add(mapping)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(mapping)
                self._changed.notify_all()
