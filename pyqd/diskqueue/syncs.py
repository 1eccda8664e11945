"""Syncs that may be believed on a disk that fails now and then.

Where a page cannot be written back, Linux takes it for clean from then on, and tells of the error once for each open
file. So the sync that is tried again finds nothing to write and succeeds, and so does one beside the one that took the
error. Therefore one sync of a mapping runs at a time; a mapping counts its failures; and until a sync has succeeded
that was asked for after the last of them, the pages of every range are made dirty again before they are synced.

syncfs(2) does not tell whose pages were lost. After a first failure each file is synced by itself, for good: that tells
of an error which the file had while others were written.

The process that comes next on the same boot must not believe clean pages either. The empty directory SYNC_FAILED in the
data path tells it.

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


class Range(NamedTuple):
    """Bytes of a mapping, from a page's start. failures: those the mapping had counted when they were gathered."""

    mapping: Mapping
    start_bytes: int
    length_bytes: int
    failures: int


def dirty_range(mapping: Mapping, start_bytes: int, length_bytes: int) -> Range:
    """Return all of a mapping that is dirty as a range, gathered now."""
    return Range(mapping, start_bytes, length_bytes, mapping.failed_syncs)


class Syncs:
    """Writes mappings to stable storage, for all threads. path: the data directory."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self._path = path
        self._by_file = False
        self._whole = threading.Lock()
        self._busy: set[Mapping] = set()
        self._changed = threading.Condition()

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int, failures: int = -1) -> None:
        """Write a page-aligned range to stable storage; blocks, with the interpreter's lock released.

        failures: those of the mapping when all that was dirty of it was gathered as this range; -1: it may be a part.
        Raises: StorageError.
        """
        with self._alone(mapping):
            failed = mapping.failed_syncs
            try:
                if failed != mapping.healed_syncs:
                    self.files.dirty_again(mapping, start_bytes, length_bytes)
                self.files.sync(mapping, start_bytes, length_bytes)
            except StorageError:
                mapping.failed_syncs += 1
                self.tell_next_process()
                raise
            if failures == failed:
                mapping.healed_syncs = failed

    def sync_file_system(self, ranges: Sequence[Range]) -> bool:
        """Write all of the file system to stable storage; blocks. Raises: StorageError.

        Returns: whether the ranges are there now; False where they have to be synced one by one.
        """
        with self._whole:
            if self._by_file or not self._are_sound(ranges):
                return False
            try:
                done = self.files.sync_file_system(self._path)
            except StorageError:
                self._by_file = True
                for mapping in {each.mapping for each in ranges}:
                    with self._alone(mapping):
                        mapping.failed_syncs += 1
                self.tell_next_process()
                raise
        return done and self._are_sound(ranges)

    def tell_next_process(self) -> None:
        """Leave a mark for the process that comes next: a sync has failed."""
        with suppress(StorageError):
            self.files.make_directory(os.path.join(self._path, SYNC_FAILED))

    def _are_sound(self, ranges: Sequence[Range]) -> bool:
        """Say whether no sync of the ranges' files has failed since they were gathered, nor is one under way."""
        with self._changed:
            return all(
                each.mapping not in self._busy
                and each.failures == each.mapping.failed_syncs == each.mapping.healed_syncs
                for each in ranges
            )

    @contextmanager
    def _alone(self, mapping: Mapping) -> Iterator[None]:
        """Keep others from syncing a mapping."""
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
