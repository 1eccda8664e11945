"""Current output file of one topic: opened under a free name, rotated, flushed, and moved to its place.

All methods block, and one thread calls them at a time. A failure of the disk is a FileStorageError, after which the
messages that are not flushed must not be finished.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyqd.client.message import Message
from pyqd.primitives.durations import SECOND_NS, format_duration
from pyqd.tools.to_file import disk
from pyqd.tools.to_file.disk import FileStorageError, InUseError
from pyqd.tools.to_file.naming import REVISION_MAX
from pyqd.tools.to_file.places import Places

logger = logging.getLogger("pyqd.tools.to_file")


class Clock(NamedTuple):
    """Wall clock, for names, and monotonic clock, for ages; both in seconds."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Limits:
    """Limits of a file; 0 for none. size_bytes: of the messages, before compression."""

    size_bytes: int = 0
    age_s: float = 0.0


@dataclass
class OpenFile:
    """File that is written. name: with <REV>. size_bytes: of the messages, before compression.

    pending: messages that the next flush encodes.
    """

    descriptor: int
    path: str
    name: str
    revision: int
    opened_s: float
    size_bytes: int
    pending: list[Message] = field(default_factory=list)
    is_synced: bool = True


class FileOutput:
    """Files of one topic, one at a time."""

    def __init__(self, places: Places, limits: Limits, clock: Clock | None = None) -> None:
        self._places = places
        self._names = places.names
        self._encoding = places.encoding
        self._subject = places.subject
        self._limits = limits
        self._clock = clock or Clock()
        self._file: OpenFile | None = None
        # Of the last file.
        self._name = ""
        self._revision = 0
        # Name at a second of the wall clock.
        self._current = ""
        self._current_s = -1

    # Rotation.

    def needs_rotation(self) -> bool:
        file = self._file
        if file is None:
            return True
        name = self._current_name()
        if name != file.name:
            logger.info("%s new filename %s, rotating...", self._subject, name)
            return True
        age_s = self._clock.monotonic() - file.opened_s
        if 0 < self._limits.age_s < age_s:
            age = format_duration(round(age_s * SECOND_NS))
            logger.info("%s %s since last open, rotating...", self._subject, age)
            return True
        return self._is_too_large(file)

    def _is_too_large(self, file: OpenFile) -> bool:
        limit = self._limits.size_bytes
        if limit <= 0 or file.size_bytes <= limit:
            return False
        logger.info("%s %s currently %d bytes (> %d), rotating...", self._subject, file.path, file.size_bytes, limit)
        return True

    def _current_name(self) -> str:
        """Return the name at present; it is formatted once a second."""
        now_s = int(self._clock.wall())
        if now_s != self._current_s:
            self._current_s, self._current = now_s, self._names.at(now_s)
        return self._current

    def rotate(self) -> None:
        """Close the file, and open the next one under a free name. Raises: FileStorageError."""
        self.close()
        name = self._current_name()
        is_next = name == self._name and self._names.keeps_revision
        first = self._revision + 1 if is_next else 0
        for revision in range(first, REVISION_MAX + 1):
            file = self._open(name, revision)
            if file is not None:
                self._file, self._name, self._revision = file, name, revision
                return
            if not self._names.has_revision:
                break
        raise FileStorageError(f"no file name is free for {name}: other instances need another <HOST>, <PID> or <REV>")

    def _open(self, name: str, revision: int) -> OpenFile | None:
        if self._places.is_taken(name, revision):
            return None
        path = self._places.working(name, revision)
        disk.make_parent(path)
        try:
            descriptor = self._open_locked(path)
        except FileExistsError:
            logger.warning("%s working file already exists: %s", self._subject, path)
            return None
        except InUseError:
            logger.warning("%s another instance writes %s", self._subject, path)
            return None
        logger.info("%s opening %s", self._subject, path)
        file = OpenFile(descriptor, path, name, revision, self._clock.monotonic(), os.fstat(descriptor).st_size)
        if self._is_too_large(file):
            os.close(descriptor)
            return None
        return file

    def _open_locked(self, path: str) -> int:
        if self._encoding.is_plain and self._limits.age_s <= 0:
            descriptor = disk.open_locked(path, creates=True)
            disk.end_last_line(descriptor, path)
            return descriptor
        descriptor = disk.create_locked(path)
        head = self._encoding.head()
        if head:
            disk.write_all(descriptor, head, path)
        return descriptor

    # Messages.

    def write(self, messages: Sequence[Message]) -> int:
        """Take messages into the current file, and return their number: those that belong to it, from the first on.

        Raises: FileStorageError.
        """
        file = self._file
        assert file is not None, "rotate() opens a file"
        count = self._fitting(file, messages)
        taken = messages if count == len(messages) else messages[:count]
        if self._encoding.is_plain:
            disk.write_all(file.descriptor, self._encoding.encode(taken), file.path)
        else:
            file.pending += taken
        file.is_synced = False
        return count

    def _fitting(self, file: OpenFile, messages: Sequence[Message]) -> int:
        """Count the messages up to the one that makes the file too large, and add their bytes to its size."""
        limit = self._limits.size_bytes
        if limit <= 0:
            return len(messages)
        for count, message in enumerate(messages):
            if file.size_bytes > limit:
                return count
            file.size_bytes += len(message.body) + 1
        return len(messages)

    def flush(self) -> None:
        """Write and sync all messages. Raises: FileStorageError."""
        file = self._file
        if file is None or file.is_synced:
            return
        if file.pending:
            disk.write_all(file.descriptor, self._encoding.encode(file.pending), file.path)
            file.pending = []
        disk.sync(file.descriptor, file.path)
        file.is_synced = True

    def close(self) -> None:
        """Flush and close the file, and give it its name in the output directory. Raises: FileStorageError."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            self._places.finish(file.descriptor, file.path, file.name, file.revision)
