"""The room that segments may take of the disk: what is free, less the floor and what is being reserved at the moment.

Segments are reserved on the loop and, for several logs at once, in threads. Looking at what is free and reserving are
two calls, so two of them could find the same bytes free and pass the floor together. What one is about to reserve is
therefore *claimed* until it is reserved; a claim counts twice while blocks are being taken, so whoever finds too little
beside a claim waits for its end, which is as long as one fallocate(2), before it takes that for an answer.

Invariant: free bytes less the claims of others are at least the floor when a claim is made.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.primitives.errors import DiskFull


class Room:
    """What is left of one file system, for all threads. path: lies in it. floor_bytes: are left free."""

    def __init__(self, files: Files, path: str, floor_bytes: int) -> None:
        self._files = files
        self._path = path
        self.floor_bytes = floor_bytes
        self._claimed_bytes = 0
        self._changed = threading.Condition()

    def left_bytes(self) -> int:
        """Return what may still be taken; negative where too little is free already. Raises: StorageError."""
        return self._files.free_bytes(self._path) - self.floor_bytes - self._claimed_bytes

    def is_short(self) -> bool:
        """Say whether less is free than the floor. Raises: StorageError."""
        return self._files.free_bytes(self._path) < self.floor_bytes

    def reason(self) -> str:
        """Return the reason for refusing what would take too much."""
        return f"less than {self.floor_bytes} bytes would be left free on the disk"

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int) -> Iterator[int]:
        """Keep room for one segment until it is reserved, which the body of the with statement does.

        Yields: its size, `need_bytes` to `want_bytes`, whole pages. Raises: DiskFull, StorageError.
        """
        need_bytes = -(-need_bytes // PAGE_BYTES) * PAGE_BYTES
        with self._changed:
            while (left_bytes := self.left_bytes()) < need_bytes:
                if self._claimed_bytes == 0:
                    raise DiskFull("reserve", self._path, errno.ENOSPC, self.reason())
                self._changed.wait()
            size_bytes = max(need_bytes, min(want_bytes, left_bytes) // PAGE_BYTES * PAGE_BYTES)
            self._claimed_bytes += size_bytes
        try:
            yield size_bytes
        finally:
            with self._changed:
                self._claimed_bytes -= size_bytes
                self._changed.notify_all()
