"""Quota of one topic: limits of the space that its log, its due times and its channels' notes take.

Two limits are checked when a log is about to use another segment, not per message: the topic's quota, and through it
the disk reserve. Both refuse publishing before the disk does, because consuming takes space too: a ledger grows, a
note is stored, a segment is rewritten. The reserve leaves that space.

Invariant: with a quota, a segment is a quarter of it at most, so that consuming frees parts of it on the way.

Source: docs/space.md.
"""

import errno
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from pyqd.broker.owners import OwningTopic
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN, SpaceLimit
from pyqd.primitives.errors import DiskFull, StorageError

SEGMENTS_PER_QUOTA = 4
# Stays free whatever --min-free-bytes says: ledgers grow, and a drained topic begins a new segment before the old goes.
RESERVE_BYTES = 256 << 10


class TopicQuota(SpaceLimit):
    """Limit on the space of one topic.

    refusal: reason why the last publish that needed space was refused, while that lasts; None if there is space.
    """

    def __init__(self, topic: OwningTopic) -> None:
        # No cycle: a deleted topic must go without a full collection.
        self.topic: OwningTopic = weakref.proxy(topic)
        self.refusal: str | None = None
        self._lifted = False
        self.apply()

    def apply(self) -> None:
        """Put the daemon's flags and the topic's own limits in force."""
        options = self.topic.broker.options
        retention_bytes, retention_time_ns, bytes_max = self.topic.own_limits
        self.topic.retention_bytes = options.retention_bytes if retention_bytes is None else retention_bytes
        self.topic.retention_time_ns = options.retention_time_ns if retention_time_ns is None else retention_time_ns
        bytes_max = options.max_topic_bytes if bytes_max is None else bytes_max
        self.bytes_max = max(bytes_max, SEGMENTS_PER_QUOTA * SEGMENT_BYTES_MIN) if bytes_max else 0
        if self.bytes_max and self.bytes_used() > self.bytes_max:
            self.topic.log.pool.drop_spares()

    def set_own(self, **limits: int | None) -> None:
        """Change the topic's own limits, at once and over restarts; None: the daemon's flag counts.

        limits: any of retention_bytes, retention_time_ns, bytes_max.
        """
        names = ("retention_bytes", "retention_time_ns", "bytes_max")
        assert limits.keys() <= set(names)
        now = dict(zip(names, self.topic.own_limits, strict=True)) | limits
        self.topic.own_limits = (now["retention_bytes"], now["retention_time_ns"], now["bytes_max"])
        self.apply()
        self.topic.trim_finished()
        self.recheck()

    def bytes_used(self) -> int:
        """Return the bytes of all segments, including those that are spare or become so, of due times and of notes.

        Cost: O(segments and channels).
        """
        log = self.topic.log
        return log.size_bytes() + log.pool.retiring_bytes + self.topic.notes_bytes()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Set no limit meanwhile: a stop stores the attempts of messages."""
        assert not self._lifted
        self._lifted = True
        try:
            yield
        finally:
            self._lifted = False

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int, on_disk: bool = True) -> Iterator[int]:
        """Keep space for a segment until it is made. Yields: its size. Raises: DiskFull, StorageError."""
        if self._lifted:
            yield need_bytes
            return
        size_bytes = self._within_quota(need_bytes, want_bytes)
        reserve = self.topic.broker.reserve
        with ExitStack() as stack:
            try:
                size_bytes = stack.enter_context(reserve.claim(need_bytes, size_bytes, on_disk))
            except DiskFull:
                self._refuse(errno.ENOSPC, reserve.reason())
            yield size_bytes

    def spare_bytes(self, want_bytes: int) -> int:
        """Return the size of at most `want_bytes` that a spare may have within the quota; 0 for none."""
        if not self.bytes_max:
            return want_bytes
        available_bytes = self.bytes_max - self.bytes_used()
        if available_bytes < SEGMENT_BYTES_MIN:
            return 0
        return min(want_bytes, available_bytes, max(SEGMENT_BYTES_MIN, self.bytes_max // SEGMENTS_PER_QUOTA))

    def allows_spare(self, size_bytes: int) -> bool:
        """Return whether the quota has space for one more spare of that size."""
        return not self.bytes_max or self.bytes_used() + size_bytes <= self.bytes_max

    def check_spare(self, size_bytes: int) -> None:
        """Check that a log may continue in a spare of that size. Raises: DiskFull."""
        if self._lifted or not self.bytes_max:
            return
        # Other spares, or copies of unfinished messages, may take more than the quota: no reason to refuse.
        log = self.topic.log
        unspared_bytes = log.size_bytes() - log.pool.spare_bytes() + self.topic.notes_bytes()
        if unspared_bytes + size_bytes > self.bytes_max:
            self._within_quota(0, 0)

    def recheck(self) -> bool:
        """Check again whether there is space after a refusal. Returns: whether there is."""
        log = self.topic.log
        if self.refusal is not None:
            try:
                if log.pool.spares:
                    # A spare has its space already.
                    self.check_spare(max(spare.capacity_bytes for spare in log.pool.spares))
                else:
                    with self.claim(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN, on_disk=log.directory is not None):
                        pass
            except StorageError:
                return False
            self.refusal = None
        self.topic.broker.short_of_room.discard(self.topic.name)
        return True

    def _within_quota(self, need_bytes: int, want_bytes: int) -> int:
        """Return the size that a segment may have, from `need_bytes` (0: it exists already) to `want_bytes`.

        Raises: DiskFull if even `need_bytes` is too much.
        """
        if not self.bytes_max:
            return want_bytes
        available_bytes = self.bytes_max - self.bytes_used()
        if need_bytes > available_bytes or available_bytes < 0:
            self._refuse(errno.EDQUOT, f"the topic's limit of {self.bytes_max} bytes is reached")
        return max(need_bytes, min(want_bytes, available_bytes, self.bytes_max // SEGMENTS_PER_QUOTA))

    def _refuse(self, error_number: int, reason: str) -> NoReturn:
        """Record the refusal of space. Raises: DiskFull."""
        self.refusal = reason
        self.topic.broker.short_of_room.add(self.topic.name)
        raise DiskFull("store in", f"topic {self.topic.name}", error_number, reason)
