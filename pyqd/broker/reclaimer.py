"""Reclaims the space of one topic: segments that few messages keep, and large segments after a burst.

Finished segments go by themselves (`trim_finished`), unless retention keeps them. Three kinds need work. A segment that
only a few unfinished messages keep is rewritten without the others (pyqd/broker/segment_rewriter.py). One of a parked
log goes once its messages are moved to that log's end. The large segment of a burst goes once its topic is drained and
quiet.

Source: docs/space.md.
"""

import logging
import os
from functools import partial
from typing import Any

from pyqd.broker.segment_rewriter import rewrite_old_segments
from pyqd.broker.topic import Topic
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN
from pyqd.hot.broker.compaction import (
    move_parked,
    stopped_growing_ns,
    trim_parked,
    unfinished_parked,
)
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StorageError

QUIET_NS = 30 * SECOND_NS
MOVED_PER_RUN = 1000
COMPACTED_AGE_NS = 10 * SECOND_NS
COMPACTED_LOG_BYTES_MIN = 1 << 20
# A parked log is compacted if less than one in this many of its records is unfinished: that copies a third of the space
# it frees.
PARKED_SHARE = 4

logger = logging.getLogger(__name__)


def reclaim(topic: Topic, now_ns: int) -> None:
    """Reclaim a bounded amount of a topic's space if there is any; called every few seconds. now_ns: monotonic."""
    quota = topic.quota
    if topic.log.first is not topic.log.active:
        if topic.retention_time_ns:
            topic.trim_finished()
        rewrite_old_segments(topic)
    compact_parked(topic, MOVED_PER_RUN)
    if topic.log.end != topic.quiet_end:
        topic.quiet_end = topic.log.end
        topic.quiet_since_ns = now_ns
    if quota.refusal is not None:
        for log in topic.logs():
            log.pool.drop_spares()
    shrink(topic, now_ns - topic.quiet_since_ns)
    if quota.refusal is not None:
        quota.recheck()


def compact_parked(topic: Topic, count_max: int) -> None:
    """Move unfinished messages to the end of parked logs that hold few of them, so that the old segments can go."""
    for channel in topic.channels_by_name.values():
        parked = channel.parked
        if parked is None or parked.log.first is parked.log.active:
            continue
        unfinished, kept = unfinished_parked(parked)
        if unfinished * PARKED_SHARE >= kept or parked.log.size_bytes() < COMPACTED_LOG_BYTES_MIN:
            continue
        if wall() - stopped_growing_ns(parked.log.first) < COMPACTED_AGE_NS:
            continue
        try:
            with topic.quota.lifted():
                move_parked(channel, count_max)
        except StorageError as error:
            logger.warning(
                "TOPIC(%s): cannot compact the parked log of channel %s: %s; its space is not reclaimed",
                topic.name,
                channel.name,
                error,
            )


def shrink(topic: Topic, quiet_ns: int) -> None:
    """Reclaim the large segments of a drained topic once it has been quiet, or at once if publishing is refused."""
    if quiet_ns < QUIET_NS and topic.quota.refusal is None:
        return
    # Parked logs first, which needs no access to a ledger: that of an idle topic may not be mapped.
    for channel in topic.channels_by_name.values():
        parked = channel.parked
        if parked is not None and not is_smallest(parked.log) and parked.ledger.oldest == parked.log.end:
            shrink_log(topic, parked.log, partial(trim_parked, parked))
    if is_smallest(topic.log):
        return
    drained = topic.end == topic.log.end and all(
        channel.ledger.oldest == topic.log.end for channel in topic.channels_by_name.values()
    )
    if drained and topic.retention_bytes == 0 and quiet_ns >= topic.retention_time_ns:
        shrink_log(topic, topic.log, topic.trim_finished)


def shrink_log(topic: Topic, log: Log, trim: Any) -> None:
    """Continue in a small segment; the large one and the spares go once the small one is on stable storage."""
    log.pool.drop_spares()
    if log.active.file_bytes <= SEGMENT_BYTES_MIN:
        return
    try:
        log.shrink()
    except StorageError as error:
        logger.warning(
            "TOPIC(%s): cannot replace a drained segment by a small one: %s; its space is not reclaimed",
            topic.name,
            error,
        )
        return
    mapping, syncs = log.active.mapping, topic.broker.syncs

    def sync() -> StorageError | None:
        try:
            syncs.sync(mapping, 0, SEGMENT_BYTES_MIN)
            if mapping.path is not None:
                syncs.files.sync_directory(os.path.dirname(mapping.path))
        except StorageError as error:
            return error
        return None

    def done(failed: StorageError | None, error: BaseException | None) -> None:
        # If the sync failed, the next trim lets the old segment go; the syncer reports such a disk.
        if failed is None and error is None:
            trim()
            log.pool.drop_spares()

    topic.broker.in_background(sync, done)


def is_smallest(log: Log) -> bool:
    """Return whether a log has one segment of the smallest size and no spare."""
    return log.first is log.active and log.active.capacity_bytes <= SEGMENT_BYTES_MIN and not log.pool.spares
