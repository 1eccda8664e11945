"""Read a file from front to back in pieces, without mapping it or keeping it open."""

from pyqd.diskqueue.files import Files

WINDOW_BYTES = 256 << 10


class Window:
    """A stretch of a file in memory, moved along as it is read.

    Thousands of files can be read side by side: each costs its window, and none a descriptor. Raises: StorageError.
    """

    def __init__(self, files: Files, path: str, window_bytes: int = WINDOW_BYTES) -> None:
        self.path = path
        self._files = files
        self._window_bytes = window_bytes
        self._start = 0
        self._content = b""

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from an offset, fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + count > len(self._content):
            self._content = self._files.read_range(self.path, offset, max(count, self._window_bytes))
            self._start = offset
            at = 0
        return self._content[at : at + count]
