"""Placeholders of files that are missing on a full disk: kept in memory until there is space, then written.

A power failure may leave a directory with a durable name and without the files that were made in it. A start makes such
a file again. On a full disk it must not be refused for that, or the broker could not be drained. So the file's bytes
lie in anonymous memory, its *placeholder*, and the daemon works with them. `settle` writes each placeholder to a file
as soon as the disk has space, and maps that file at the same address. A directory can have a placeholder as well: it is
made later.

A placeholder does not survive the process. Until it is settled, a kill leaves what the power failure had left: the file
is missing, and the next start makes it again, as if it had been damaged. So no message is lost, but messages come
again.

Sources: docs/storage.md, "Recovery"; mmap(2), MAP_FIXED.
"""

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import DiskFull, StorageError

logger = logging.getLogger(__name__)


class Placeholder(NamedTuple):
    """One missing file, or directory if mapping is None. on_settled: called when it is on the disk."""

    mapping: Mapping | None
    on_settled: Callable[[], object]


class Placeholders:
    """The placeholders of a data directory, by the paths of the missing files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: dict[str, Placeholder] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def paths(self) -> list[str]:
        """The files and directories that are missing on the disk."""
        return list(self._waiting)

    def map(self, path: str, size_bytes: int, on_settled: Callable[[], object]) -> Mapping:
        """Return memory of zeros that stands for a file. Raises: StorageError."""
        mapping = self._files.new_mapped(None, size_bytes, False)
        self._add(path, Placeholder(mapping, on_settled))
        return mapping

    def make_directory(self, path: str, on_settled: Callable[[], object]) -> bool:
        """Create a missing directory, now or later. Returns: whether it is there. Raises: StorageError."""
        try:
            self._files.make_directory(path)
        except DiskFull:
            self._add(path, Placeholder(None, on_settled))
            return False
        return True

    def _add(self, path: str, stand_in: Placeholder) -> None:
        assert path not in self._waiting, "a missing file has two placeholders"
        self._waiting[path] = stand_in
        logger.error(
            "cannot create %s: the disk is full; it is kept in memory until space is free; after a kill before that,"
            " messages finished since the start are delivered again",
            path,
        )

    def forget(self, path: str) -> None:
        """Drop the placeholder of a path, if there is one, and those of all that lies below it."""
        for each in [each for each in self._waiting if each == path or each.startswith(path + os.sep)]:
            del self._waiting[each]

    def settle(self) -> bool:
        """Write the placeholders for which the disk has space. Returns: whether nothing is missing any more. Blocks:
        fsync(2).
        """
        for path, stand_in in list(self._waiting.items()):
            try:
                if stand_in.mapping is None:
                    self._files.make_directory(path)
                else:
                    self._files.write_mapped(stand_in.mapping, path)
            except StorageError:
                continue
            del self._waiting[path]
            stand_in.on_settled()
            logger.info("%s is on the disk now", path)
        return not self._waiting
