"""Limits on the space of segments: one interface, by which a topic's quota and the disk reserve say yes or no.

A `SegmentPool` asks its limit before it makes, uses or keeps a segment. Three kinds exist: `SpaceLimit` itself, which
allows everything; `DiskReserve`, the floor of free bytes of the file system; and `TopicQuota` (pyqd/broker), the limit
of one topic, which asks the disk reserve too.

Segments are reserved on the event loop and, for several logs at once, in threads. Reading the number of free bytes and
reserving some of them are two calls, so two callers could find the same bytes free and pass the floor together. The
bytes that a caller is about to reserve are therefore *claimed* until they are reserved. A claim counts twice while its
blocks are being taken. So a caller that finds too little space beside a claim waits until that claim has ended, which
takes as long as one fallocate(2), before it gives up.

Invariant: free bytes less the claims of others are at least the floor when a claim is made.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.primitives.errors import DiskFull

SEGMENT_BYTES_MIN = 64 << 10


class SpaceLimit:
    """Limit on the space that segments may take; this one allows everything."""

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int, on_disk: bool = True) -> Iterator[int]:  # noqa: ARG002
        """Keep space for one segment until the body of the with statement has made it.

        on_disk: whether the segment becomes a file. Yields: its size, from `need_bytes` to `want_bytes`.
        Raises: DiskFull, StorageError.
        """
        yield max(need_bytes, want_bytes)

    def spare_bytes(self, want_bytes: int) -> int:
        """Return the size of at most `want_bytes` that a spare segment may be made with now; 0 for none."""
        return want_bytes

    def allows_spare(self, size_bytes: int) -> bool:  # noqa: ARG002
        """Return whether a segment of that size, which has been made already, may be kept as a spare."""
        return True

    def check_spare(self, size_bytes: int) -> None:
        """Check that a log may continue in a spare of that size. Raises: DiskFull."""


class DiskReserve(SpaceLimit):
    """Floor of free bytes of one file system, for all threads. path: lies in it. floor_bytes: always stay free."""

    def __init__(self, files: Files, path: str, floor_bytes: int) -> None:
        self._files = files
        self._path = path
        self.floor_bytes = floor_bytes
        self._claimed_bytes = 0
        self._changed = threading.Condition()

    def available_bytes(self) -> int:
        """Return the bytes that may still be taken; negative if less than the floor is free. Raises: StorageError."""
        return self._files.free_bytes(self._path) - self.floor_bytes - self._claimed_bytes

    def is_short(self) -> bool:
        """Return whether less is free than the floor. Raises: StorageError."""
        return self._files.free_bytes(self._path) < self.floor_bytes

    def reason(self) -> str:
        """Return the reason for refusing a claim, for error messages."""
        return f"less than {self.floor_bytes} bytes would be left free on the disk"

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int, on_disk: bool = True) -> Iterator[int]:
        """Keep space for one segment until it is reserved. Yields: its size in whole pages.

        Waits for the claims of other threads before it gives up. Raises: DiskFull, StorageError.
        """
        assert need_bytes >= 0
        if not on_disk:
            yield max(need_bytes, want_bytes)
            return
        need_bytes = -(-need_bytes // PAGE_BYTES) * PAGE_BYTES
        with self._changed:
            while (available_bytes := self.available_bytes()) < need_bytes:
                if self._claimed_bytes == 0:
                    raise DiskFull("reserve", self._path, errno.ENOSPC, self.reason())
                self._changed.wait()
            size_bytes = max(need_bytes, min(want_bytes, available_bytes) // PAGE_BYTES * PAGE_BYTES)
            self._claimed_bytes += size_bytes
        try:
            yield size_bytes
        finally:
            with self._changed:
                assert self._claimed_bytes >= size_bytes
                self._claimed_bytes -= size_bytes
                self._changed.notify_all()

    def spare_bytes(self, want_bytes: int) -> int:
        """Return `want_bytes`, halved until there is space for it, but the smallest size at least."""
        while want_bytes > max(self.available_bytes(), SEGMENT_BYTES_MIN):
            want_bytes //= 2
        return max(want_bytes, SEGMENT_BYTES_MIN)
