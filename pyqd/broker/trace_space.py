"""Limit on the space of trace events: a number of bytes, and a disk that is far from full.

Events must not take the space that messages need. So no segment is made for them while less than twice the floor of the
disk reserve would stay free; the events are lost instead, and publishing goes on until the floor is reached.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN, DiskReserve, SpaceLimit
from pyqd.hot.diskqueue.log import Log
from pyqd.primitives.errors import DiskFull

SEGMENT_BYTES_MAX = 8 << 20
SEGMENTS_MIN = 16
# Beside the segments with events: one under way to be reused, and one that is made meanwhile.
SEGMENTS_SPARE = 2


class TraceSpace(SpaceLimit):
    """Limit on the space of the log of events. bytes_max: returns the limit that counts now."""

    def __init__(self, reserve: DiskReserve, bytes_max: Callable[[], int]) -> None:
        self._reserve = reserve
        self._bytes_max = bytes_max
        self.log: Log | None = None

    def segment_bytes(self) -> int:
        """Return the size of a segment, so that there are many: they are overwritten one by one."""
        return max(SEGMENT_BYTES_MIN, min(self._bytes_max() // SEGMENTS_MIN, SEGMENT_BYTES_MAX))

    def chain_bytes_max(self) -> int:
        """Return the bytes that segments with events may take."""
        return max(self._bytes_max() - SEGMENTS_SPARE * self.segment_bytes(), SEGMENT_BYTES_MIN)

    def chain_bytes(self) -> int:
        """Return the bytes that segments with events take."""
        return 0 if self.log is None else self.log.size_bytes() - self.log.pool.spare_bytes()

    def used_bytes(self) -> int:
        """Return the bytes that all segments take."""
        return 0 if self.log is None else self.log.size_bytes() + self.log.pool.retiring_bytes

    def is_short(self, need_bytes: int) -> bool:
        """Return whether the disk has too little space for a segment."""
        return self._reserve.available_bytes() < need_bytes + self._reserve.floor_bytes

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int, on_disk: bool = True) -> Iterator[int]:
        """Keep space for a segment until it is made. Yields: its size. Raises: DiskFull, StorageError."""
        if on_disk and self.is_short(need_bytes):
            least_bytes = 2 * self._reserve.floor_bytes
            raise DiskFull(
                "reserve", "trace events", errno.ENOSPC, f"less than {least_bytes} bytes would be left free on the disk"
            )
        with self._reserve.claim(need_bytes, want_bytes, on_disk) as size_bytes:
            yield size_bytes

    def spare_bytes(self, want_bytes: int) -> int:
        """Return the size that a spare segment may be made with now; 0 for none."""
        return 0 if self.is_short(want_bytes) or self.used_bytes() + want_bytes > self._bytes_max() else want_bytes

    def allows_spare(self, size_bytes: int) -> bool:
        """Return whether a segment that was made or drained may be kept as a spare."""
        return self.used_bytes() + size_bytes <= self._bytes_max()
