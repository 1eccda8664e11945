"""The lock on a data directory: one daemon at a time."""

import fcntl
import os

from pyqd.primitives.errors import StartupError


class DirectoryLock:
    """Holds flock(2) on a directory for the life of the object.

    Raises: StartupError when the directory is missing, no directory, or locked by another process.
    Source: docs/nsq/broker-semantics.md, "Data directory lock".
    """

    def __init__(self, path: str) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartupError(f"cannot open data directory {path} - {reason}") from error
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.fd)
            reason = (error.strerror or str(error)).lower()
            raise StartupError(
                f"failed to instantiate pyqd - failed to lock data-path: cannot flock directory {path} - {reason}"
                " (possibly in use by another instance of pyqd)"
            ) from error

    def release(self) -> None:
        """Give the directory up."""
        os.close(self.fd)
