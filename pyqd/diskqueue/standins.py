"""Files that a start misses and the disk has no room for: kept in memory until there is room, then written.

A power failure may leave a directory with a durable name and without the files that were made in it. A start makes such
a file again. On a full disk it must not be refused for that, or the broker could not be drained. So the file's bytes
lie in anonymous memory, its *stand-in*, and the daemon works with them. `settle` writes each stand-in to a file as soon
as the disk has room and maps that file at the same address, so nobody has to know. A directory stands in as well: it is
made later.

A stand-in does not survive the process. Until it is settled, a kill leaves what the power failure had left: the file is
missing, and the next start makes it again, as if it had been damaged. So no message is lost, but messages come again.

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


class StandIn(NamedTuple):
    """One missing file, or directory if mapping is None. on_settled: called when it is on the disk."""

    mapping: Mapping | None
    on_settled: Callable[[], object]


class StandIns:
    """The stand-ins of a data directory, by the paths of the files that they stand for."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: dict[str, StandIn] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def paths(self) -> list[str]:
        """The files and directories that are missing on the disk."""
        return list(self._waiting)

    def map(self, path: str, size_bytes: int, on_settled: Callable[[], object]) -> Mapping:
        """Return memory of zeros that stands for a file. Raises: StorageError."""
        mapping = self._files.new_mapped(None, size_bytes, False)
        self._add(path, StandIn(mapping, on_settled))
        return mapping

    def make_directory(self, path: str, on_settled: Callable[[], object]) -> bool:
        """Create a missing directory, now or later. Returns: whether it is there. Raises: StorageError."""
        try:
            self._files.make_directory(path)
        except DiskFull:
            self._add(path, StandIn(None, on_settled))
            return False
        return True

    def _add(self, path: str, stand_in: StandIn) -> None:
        self._waiting[path] = stand_in
        logger.error(
            "cannot create %s: the disk is full; it is kept in memory until space is free; after a kill before that,"
            " messages finished since the start are delivered again",
            path,
        )

    def forget(self, path: str) -> None:
        """Drop the stand-in of a path, if there is one, and those of all that lies below it."""
        for each in [each for each in self._waiting if each == path or each.startswith(path + os.sep)]:
            del self._waiting[each]

    def settle(self) -> bool:
        """Write the stand-ins for which the disk has space. Returns: whether nothing is missing any more. Blocks:
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
