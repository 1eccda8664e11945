"""The lock on a data directory: one daemon at a time."""

import fcntl
import os

from pyqd.primitives.errors import StartupError


class DirectoryLock:
    """Holds flock(2) on a directory until `release`. held_fd: a descriptor that has the lock already, or None.

    The lock belongs to the open file: it ends when the last process that has inherited the descriptor closes it.

    Raises: StartupError when the directory is missing, no directory, or locked by another process.
    Source: docs/nsq/broker-semantics.md, "Data directory lock".
    """

    def __init__(self, path: str, held_fd: int | None = None) -> None:
        if held_fd is not None:
            if is_directory(path, held_fd):
                os.set_inheritable(held_fd, False)
                self.fd = held_fd
                return
            # The flags name another directory since: this one is the predecessor's alone.
            os.close(held_fd)
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
        """Release the lock on the directory."""
        os.close(self.fd)


def is_directory(path: str, fd: int) -> bool:
    """Return whether a path names the directory that is open as fd."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
