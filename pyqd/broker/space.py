"""What a topic may take of the disk, what it keeps, and how it gives room back.

Two limits, looked at where a log is about to take a new segment, not per message: a quota per topic, and a floor of
free bytes of the file system. Both refuse publishing before the disk does, because going on consuming takes room too: a
ledger grows, a message is parked, stragglers are copied. That room is what the floor leaves.

Room comes back when segments go: finished ones, unless retention holds them; those that only a few stragglers hold,
once these are moved; and the large segment that a burst left behind, once its topic is drained and quiet.

Invariant: with a quota, a segment is a quarter of it at most, so that consuming frees parts of it as it goes.

Source: docs/space.md.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pyqd.hot.broker.stragglers import (
    move_parked,
    move_stragglers,
    stopped_growing_ns,
    trim_parked,
    unfinished_below,
    unfinished_parked,
)
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.segment import Segment
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import DiskFull, StorageError

if TYPE_CHECKING:
    from pyqd.broker.topic import Topic

SEGMENT_BYTES_MIN = 64 << 10
SEGMENTS_PER_QUOTA = 4
# Kept free whatever --min-free-bytes says: ledgers grow, and a drained topic begins a new segment before the old goes.
RESERVE_BYTES = 256 << 10

QUIET_NS = 30 * SECOND_NS
STRAGGLERS_PER_TURN = 1000
STRAGGLER_AGE_NS = 10 * SECOND_NS
STRAGGLER_LOG_BYTES_MIN = 1 << 20
# A segment with less than one in so many messages unfinished is cleared, and any that so many others follow.
STRAGGLER_SHARE = 10
SEGMENTS_BEHIND_MAX = 4
# A parked log with less than one in so many records unfinished is compacted: that copies a third of what it frees.
PARKED_SHARE = 4

logger = logging.getLogger(__name__)


class Space:
    """The room of one topic: its log and its channels' parked logs.

    refusal: why the last publish that wanted room got none, while that lasts; None when there is room.
    """

    def __init__(self, topic: "Topic") -> None:
        self.topic = topic
        self.refusal: str | None = None
        self._making_room = False
        # Drained segments that are to be spares once that is on stable storage: in no log's chain nor among its spares.
        self._retiring_bytes = 0
        self._quiet_end = -1
        self._quiet_since_ns = 0
        self.apply()

    def apply(self) -> None:
        """Put in force what the daemon's flags and the topic's own limits say."""
        options = self.topic.broker.options
        retention_bytes, retention_time_ns, bytes_max = self.topic.own_limits
        self.topic.retention_bytes = options.retention_bytes if retention_bytes is None else retention_bytes
        self.topic.retention_time_ns = options.retention_time_ns if retention_time_ns is None else retention_time_ns
        bytes_max = options.max_topic_bytes if bytes_max is None else bytes_max
        self.bytes_max = max(bytes_max, SEGMENTS_PER_QUOTA * SEGMENT_BYTES_MIN) if bytes_max else 0
        if self.bytes_max and self.bytes_used() > self.bytes_max:
            for log in self.topic.logs():
                log.drop_spares()

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
        self.look_again()

    def watch(self, log: Log) -> None:
        """Let a log of the topic take room within the limits only."""
        log.on_growing = self.check_quota
        log.on_segment_wanted = self.new_segment
        log.on_spare_wanted = self.prepare_spare
        log.on_retired = self.retire_segment

    def bytes_used(self) -> int:
        """Return the bytes of all segments, also of those that are spare or about to be. Cost: O(segments)."""
        return self._retiring_bytes + sum(log.size_bytes() for log in self.topic.logs())

    def new_segment(self, log: Log, need_bytes: int, want_bytes: int) -> Segment:
        """Make a segment, of `want_bytes` if there is room. Raises: DiskFull where even `need_bytes` is too much."""
        need_bytes = max(need_bytes, SEGMENT_BYTES_MIN)
        if self.topic.broker.stand_ins:
            # The log's directory may be among them.
            self.topic.broker.stand_ins.settle()
        with self.claimed(need_bytes, max(need_bytes, want_bytes), on_disk=log.directory is not None) as size_bytes:
            return log.new_segment(size_bytes)

    @contextmanager
    def claimed(self, need_bytes: int, want_bytes: int, on_disk: bool) -> Iterator[int]:
        """Keep room for a segment until it is made. Yields: its size. Raises: DiskFull."""
        if self._making_room:
            yield need_bytes
            return
        want_bytes = self.within_quota(need_bytes, want_bytes)
        if not on_disk:
            yield want_bytes
            return
        with ExitStack() as stack:
            try:
                want_bytes = stack.enter_context(self.topic.broker.room.claim(need_bytes, want_bytes))
            except DiskFull:
                self.refuse(errno.ENOSPC, self.topic.broker.room.reason())
            yield want_bytes

    def check_quota(self, log: Log) -> None:
        """See whether the topic may go on in another segment. Raises: DiskFull."""
        if self._making_room or not self.bytes_max:
            return
        if log.spares:
            # What is over the quota may be other spares, or copies of stragglers: they are no reason to refuse.
            spare_bytes = [spare.capacity_bytes for each in self.topic.logs() for spare in each.spares]
            unspared_bytes = self.bytes_used() - self._retiring_bytes - sum(spare_bytes)
            if unspared_bytes + max(spare.capacity_bytes for spare in log.spares) <= self.bytes_max:
                return
        self.within_quota(0, 0)

    def within_quota(self, need_bytes: int, want_bytes: int) -> int:
        """Return how large a new segment may be, from `need_bytes` (0: one is there already) to `want_bytes`.

        Raises: DiskFull where even `need_bytes` is too much.
        """
        if not self.bytes_max:
            return want_bytes
        room = self.bytes_max - self.bytes_used()
        if need_bytes > room or room < 0:
            self.refuse(errno.EDQUOT, f"the topic's limit of {self.bytes_max} bytes is reached")
        return max(need_bytes, min(want_bytes, room, self.bytes_max // SEGMENTS_PER_QUOTA))

    def refuse(self, error_number: int, reason: str) -> NoReturn:
        """Note that there is no room. Raises: DiskFull."""
        self.refusal = reason
        self.topic.broker.short_of_room.add(self.topic.name)
        raise DiskFull("store in", f"topic {self.topic.name}", error_number, reason)

    def look_again(self) -> bool:
        """See whether there is room where there was none. Returns: whether there is."""
        log = self.topic.log
        if self.refusal is not None:
            try:
                # A spare is room that is taken already.
                if log.spares:
                    self.check_quota(log)
                else:
                    with self.claimed(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN, on_disk=log.directory is not None):
                        pass
            except StorageError:
                return False
            self.refusal = None
        self.topic.broker.short_of_room.discard(self.topic.name)
        return True

    def prepare_spare(self, log: Log, size_bytes: int) -> None:
        """Have a log's next segment prepared, of the size that the quota allows; none where it allows none."""
        if self.bytes_max:
            room = self.bytes_max - self.bytes_used()
            if room < SEGMENT_BYTES_MIN:
                log.offer_spare(None)
                return
            size_bytes = min(size_bytes, room, max(SEGMENT_BYTES_MIN, self.bytes_max // SEGMENTS_PER_QUOTA))
        self.topic.broker.prepare_spare(log, size_bytes, self.take_spare)

    def take_spare(self, log: Log, segment: Segment | None) -> None:
        """Give a log the spare that was prepared for it, unless the quota is used up since."""
        if segment is not None and self.bytes_max and self.bytes_used() + segment.capacity_bytes > self.bytes_max:
            log.drop(segment)
            segment = None
        log.offer_spare(segment)

    def retire_segment(self, log: Log, segment: Segment) -> None:
        """Have a drained segment kept as a spare; let it go where the quota would leave no room for one meanwhile."""
        size_bytes = segment.capacity_bytes
        wanted_bytes = 0 if log.spares else size_bytes
        if self.bytes_max and self.bytes_used() + size_bytes + wanted_bytes > self.bytes_max:
            log.offer_spare(None)
            log.drop(segment)
            return
        self._retiring_bytes += size_bytes

        def offer(log: Log, kept: Segment | None) -> None:
            self._retiring_bytes -= size_bytes
            self.take_spare(log, kept)

        self.topic.broker.retire_segment(log, segment, offer)

    def tend(self, now_ns: int) -> None:
        """Give room back where there is some to be had; bounded, called every few seconds. now_ns: monotonic."""
        topic = self.topic
        if topic.log.first is not topic.log.active:
            if topic.retention_time_ns:
                topic.trim_finished()
            self.clear_old_segments()
        self.compact_parked(STRAGGLERS_PER_TURN)
        if topic.log.end != self._quiet_end:
            self._quiet_end = topic.log.end
            self._quiet_since_ns = now_ns
        if self.refusal is not None:
            for log in topic.logs():
                log.drop_spares()
        self.shrink(now_ns - self._quiet_since_ns)
        if self.refusal is not None:
            self.look_again()

    def clear_old_segments(self) -> None:
        """Move what little is unfinished out of the oldest segments."""
        left = STRAGGLERS_PER_TURN
        while left > 0:
            moved = self.clear_first_segment(left)
            if moved == 0:
                return
            left -= moved

    def clear_first_segment(self, count_max: int) -> int:
        """Move the stragglers out of the oldest segment, if that is worth it. Returns: how many were moved."""
        topic, log, segment = self.topic, self.topic.log, self.topic.log.first
        end = segment.first_ordinal + segment.count
        if segment is log.active or log.size_bytes() < STRAGGLER_LOG_BYTES_MIN:
            return 0
        if wall() - stopped_growing_ns(segment) < STRAGGLER_AGE_NS or topic.retained_from() < end:
            return 0
        holders = [channel for channel in topic.channel_of.values() if channel.ledger.floor < end]
        if any(channel.ledger.cursor < end for channel in holders):
            return 0
        unfinished = [unfinished_below(channel, end) for channel in holders]
        few = max(unfinished, default=0) * STRAGGLER_SHARE < segment.count
        if not few and segments_behind(segment) < SEGMENTS_BEHIND_MAX:
            return 0
        moved = 0
        self._making_room = True
        try:
            for channel in holders:
                moved += move_stragglers(channel, segment, count_max - moved)
        except StorageError as error:
            logger.warning(
                "TOPIC(%s): cannot move unfinished messages out of segment %d: %s; its space is not reclaimed",
                topic.name,
                segment.number,
                error,
            )
            return 0
        finally:
            self._making_room = False
        topic.trim_finished()
        return moved

    def compact_parked(self, count_max: int) -> None:
        """Move what is unfinished to the end of parked logs that keep little but finished messages."""
        for channel in self.topic.channel_of.values():
            parked = channel.parked
            if parked is None or parked.log.first is parked.log.active:
                continue
            unfinished, kept = unfinished_parked(parked)
            if unfinished * PARKED_SHARE >= kept or parked.log.size_bytes() < STRAGGLER_LOG_BYTES_MIN:
                continue
            if wall() - stopped_growing_ns(parked.log.first) < STRAGGLER_AGE_NS:
                continue
            self._making_room = True
            try:
                move_parked(channel, count_max)
            except StorageError as error:
                logger.warning(
                    "TOPIC(%s): cannot compact the parked log of channel %s: %s; its space is not reclaimed",
                    self.topic.name,
                    channel.name,
                    error,
                )
            finally:
                self._making_room = False

    def shrink(self, quiet_ns: int) -> None:
        """Give up the large segments of a drained topic once it has been quiet, or sooner where room is short."""
        topic = self.topic
        if quiet_ns < QUIET_NS and self.refusal is None:
            return
        # First what needs no look at a ledger: of thousands of idle topics none may be mapped.
        for channel in topic.channel_of.values():
            parked = channel.parked
            if parked is not None and not is_smallest(parked.log) and parked.ledger.floor == parked.log.end:
                self.shrink_log(parked.log, partial(trim_parked, parked))
        if is_smallest(topic.log):
            return
        drained = topic.end == topic.log.end and all(
            channel.ledger.floor == topic.log.end for channel in topic.channel_of.values()
        )
        if drained and topic.retention_bytes == 0 and quiet_ns >= topic.retention_time_ns:
            self.shrink_log(topic.log, topic.trim_finished)

    def shrink_log(self, log: Log, trim: Any) -> None:
        """Go on in a small segment, and let the large one and the spares go once the small one is on stable storage."""
        log.drop_spares()
        if log.active.file_bytes <= SEGMENT_BYTES_MIN:
            return
        try:
            log.shrink()
        except StorageError as error:
            logger.warning(
                "TOPIC(%s): cannot replace a drained segment by a small one: %s; its space is not reclaimed",
                self.topic.name,
                error,
            )
            return
        mapping, syncs = log.active.mapping, self.topic.broker.syncs

        def sync() -> StorageError | None:
            try:
                syncs.sync(mapping, 0, SEGMENT_BYTES_MIN)
                if mapping.path is not None:
                    syncs.files.sync_directory(os.path.dirname(mapping.path))
            except StorageError as error:
                return error
            return None

        def done(failed: StorageError | None, error: BaseException | None) -> None:
            # Where the sync failed the next trim lets the old segment go: the syncer reports such a disk.
            if failed is None and error is None:
                trim()
                log.drop_spares()

        self.topic.broker.in_background(sync, done)


def is_smallest(log: Log) -> bool:
    """Say whether a log has one segment of the smallest size and no spare."""
    return log.first is log.active and log.active.capacity_bytes <= SEGMENT_BYTES_MIN and not log.spares


def segments_behind(segment: Any) -> int:
    """Count the segments that follow one in its log, up to SEGMENTS_BEHIND_MAX."""
    count = 0
    while segment.next is not None and count < SEGMENTS_BEHIND_MAX:
        segment = segment.next
        count += 1
    return count
