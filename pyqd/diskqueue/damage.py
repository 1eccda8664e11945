"""Reports of damaged data on disk: one ERROR line each, counts for /stats, and copies of the damaged bytes.

The copies go to `damaged/` beside the log; a whole segment or small file keeps its name there. The number and size of
copies are limited, so that a failing disk is not filled with them. The damaged range itself stays where it is, except
for the headers that bridge it, until its segment is drained.
"""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyqd.hot.diskqueue.segment import SEGMENT_HEADER_SIZE
from pyqd.primitives.errors import CorruptionError, DiskFull, StorageError

if TYPE_CHECKING:
    from pyqd.diskqueue.files import Files
    from pyqd.hot.diskqueue.mapping import Mapping

DAMAGED_DIRECTORY = "damaged"
BAD = ".bad"
COPY_BYTES_MAX = 16 << 20
COPIES_MAX = 64

Report = Callable[[int, int, int, str], None]

logger = logging.getLogger(__name__)


class SetAside(NamedTuple):
    """File of a topic, or of a channel of it, that a start could not use, and the reason. channel: None for a topic."""

    topic: str
    channel: str | None
    reason: str


class DamageCount:
    """Counts of damage found since the start: places, records lost, bytes.

    total: another count to which all of this is added too.
    """

    def __init__(self) -> None:
        self.found_count = 0
        self.lost_count = 0
        self.damaged_bytes = 0
        self.total: DamageCount | None = None

    def add(self, found_count: int, lost_count: int, damaged_bytes: int) -> None:
        """Count some more."""
        self.found_count += found_count
        self.lost_count += lost_count
        self.damaged_bytes += damaged_bytes
        if self.total is not None:
            self.total.add(found_count, lost_count, damaged_bytes)

    def count_into(self, total: "DamageCount") -> None:
        """Add this log's counts, present and future, to a total."""
        assert self.total is None, "counted once"
        total.add(self.found_count, self.lost_count, self.damaged_bytes)
        self.total = total

    def as_dict(self) -> dict[str, int]:
        """Return the numbers as the statistics show them."""
        return {"count": self.found_count, "records_lost": self.lost_count, "bytes": self.damaged_bytes}


class DamageReport(DamageCount):
    """Damage found in one log since it was opened. directory: of the log; None for one in memory."""

    def __init__(self, files: Any, directory: str | None) -> None:
        super().__init__()
        self._files: Files = files
        self._directory = directory

    def reporter(self, path: str | None) -> Report:
        """Return the function that takes reports about one segment."""
        return lambda offset, size, lost, detail: self.report(path, offset, size, lost, detail)

    def report(self, path: str | None, offset: int, size_bytes: int, lost_count: int, detail: str) -> None:
        """Keep a damaged range aside, count it and log it."""
        self.add(1, lost_count, size_bytes)
        is_record = size_bytes and offset >= SEGMENT_HEADER_SIZE
        self._files.note_damage(f"{path}: damaged record at offset {offset}" if is_record else f"{path}: {detail}")
        kept = self._keep(path, offset, size_bytes) if path is not None and size_bytes else "no copy kept"
        logger.error(
            "DISKQUEUE(%s): %s - %d bytes at offset %d, records lost: %d - %s",
            path,
            detail,
            size_bytes,
            offset,
            lost_count,
            kept,
        )

    def file_set_aside(self, path: str, error: Exception) -> None:
        """Move a file that cannot be read as a segment out of the log; its records show as missing."""
        self.add(1, 0, 0)
        self._files.note_damage(str(error))
        kept = "the file could not be moved"
        try:
            target = self._target(os.path.basename(path))
            self._files.rename(path, target)
            kept = f"kept as {target}"
        except StorageError as failure:
            logger.warning("DISKQUEUE: cannot move the file aside: %s", failure)
        logger.error("DISKQUEUE(%s): %s - its records are missing; %s", path, error, kept)

    def missing(self, start: int, end: int) -> None:
        """Count and log the records of an ordinal range that no segment has."""
        self.add(1, end - start, 0)
        self._files.note_damage(f"{self._directory}: records {start} to {end - 1} are missing")
        logger.error("DISKQUEUE(%s): records %d to %d are missing", self._directory, start, end - 1)

    def _target(self, name: str) -> str:
        assert self._directory is not None, "a log in memory has no files"
        directory = damaged_directory(self._directory)
        self._files.make_directory(directory)
        return free_name(self._files, os.path.join(directory, name))

    def _keep(self, path: str, offset: int, size_bytes: int) -> str:
        try:
            target = self._target(f"{os.path.basename(path)}.{offset}")
            if len(self._files.list_directory(os.path.dirname(target))) >= COPIES_MAX:
                return f"no copy kept: {os.path.dirname(target)} has the maximum of {COPIES_MAX} copies"
            self._files.write(target, self._files.read_range(path, offset, min(size_bytes, COPY_BYTES_MAX)))
        except OSError as error:
            return f"no copy kept: {error}"
        return f"kept in {target}"


def damaged_directory(log_directory: str) -> str:
    """Return the directory for the damaged data of a log."""
    return os.path.join(os.path.dirname(log_directory), DAMAGED_DIRECTORY)


def free_name(files: "Files", path: str) -> str:
    """Return the path, with a number after it if the path is taken."""
    number, free = 1, path
    while files.exists(free):
        number += 1
        free = f"{path}.{number}"
    return free


def set_aside(files: "Files", path: str, error: Exception, consequence: str) -> str:
    """Rename an unusable file to `.bad`, and log the consequence.

    Returns: its new path. Raises: StorageError.
    """
    target = free_name(files, path + BAD)
    files.rename(path, target)
    logger.error("DISKQUEUE(%s): %s - kept as %s; %s", path, error, target, consequence)
    return target


def reused(files: "Files", aside: str, path: str, size_bytes: int) -> "Mapping | None":
    """Turn a damaged file that was set aside into a new file of zeros: a full disk has no blocks for a second file.

    If the damaged file is unreadable or too small, it is removed, and a new file is made if its blocks suffice.
    Returns: the mapping of the new file; None if the disk has no space for it. Raises: StorageError.
    """
    try:
        mapping = files.open_mapped(aside)
        mapping.require_readable()
        if mapping.size_bytes < size_bytes:
            raise CorruptionError(aside, mapping.size_bytes, "the file is too small to be reused on a full disk")
        mapping.view()[:] = bytes(mapping.size_bytes)
        files.rename(aside, path)
        mapping.moved(path)
    except CorruptionError as error:
        # A store to a block that cannot be read would end the process.
        logger.error("DISKQUEUE: the disk is full; %s; the file is removed to make space for a new one", error)
        files.remove(aside)
        try:
            return files.new_mapped(path, size_bytes, True)
        except DiskFull:
            return None
    logger.error("DISKQUEUE(%s): the disk is full; the file is not kept, a new file uses its blocks", aside)
    return mapping
