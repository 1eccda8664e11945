"""Ends of output files: each is completed and moved to a free name in the output directory.

Files are written in the work directory. Those that a killed instance has left there are finished at the next start.
"""

from __future__ import annotations

import glob
import logging
import os
from dataclasses import dataclass

from pyqd.tools.to_file import disk
from pyqd.tools.to_file.disk import FileStorageError, InUseError
from pyqd.tools.to_file.encodings import Lines
from pyqd.tools.to_file.naming import REVISION_MAX, FileNames

logger = logging.getLogger("pyqd.tools.to_file")


@dataclass(frozen=True)
class Places:
    """Places of one topic's files. subject: begins the log lines."""

    names: FileNames
    encoding: Lines
    output_dir: str
    work_dir: str
    subject: str

    def target(self, name: str, revision: int) -> str:
        return os.path.join(self.output_dir, self.names.revised(name, revision))

    def working(self, name: str, revision: int) -> str:
        return os.path.join(self.work_dir, self.encoding.working_name(self.names.revised(name, revision)))

    def is_taken(self, name: str, revision: int) -> bool:
        """Return whether a file that is to be written would find its place taken. Raises: FileStorageError."""
        target = self.target(name, revision)
        if target == self.working(name, revision):
            return False
        disk.make_parent(target)
        with disk.doing("examine", target):
            try:
                os.lstat(target)
            except FileNotFoundError:
                return False
        logger.warning("%s output file already exists: %s", self.subject, target)
        return True

    def finish(self, descriptor: int, path: str, name: str, revision: int) -> None:
        """Complete a file, move it to a free name and close it. It is locked until then. Raises: FileStorageError."""
        try:
            if os.fstat(descriptor).st_size == 0:
                # Tools take a compressed file of no bytes for damaged.
                disk.write_all(descriptor, self.encoding.encode(()), path)
                disk.sync(descriptor, path)
            descriptor = self.encoding.complete(descriptor, path)
            if path != self.target(name, revision):
                self._move(path, name, revision)
        finally:
            os.close(descriptor)

    def _move(self, path: str, name: str, first_revision: int) -> None:
        for revision in range(first_revision, REVISION_MAX + 1):
            target = self.target(name, revision)
            logger.info("%s moving finished file %s to %s", self.subject, path, target)
            try:
                disk.move(path, target)
                return
            except FileExistsError:
                logger.warning("%s destination file already exists: %s", self.subject, target)
        raise FileStorageError(f"cannot move {path}: all revisions of {name} exist in {self.output_dir}")

    def recover(self) -> None:
        """Finish the files that killed instances have left in the work directory. Raises: FileStorageError."""
        pattern = os.path.join(glob.escape(self.work_dir), self.encoding.working_name(self.names.wildcard()))
        for path in sorted(glob.glob(pattern)):
            relative = self.encoding.final_name(os.path.relpath(path, self.work_dir))
            found = self.names.parse(relative)
            if found is None or path == os.path.join(self.output_dir, relative):
                continue
            try:
                descriptor = disk.open_locked(path, creates=False)
            except (InUseError, FileNotFoundError):
                continue
            logger.info("%s finishing %s, which an instance has left", self.subject, path)
            if self.encoding.is_plain:
                disk.end_last_line(descriptor, path)
            self.finish(descriptor, path, *found)
