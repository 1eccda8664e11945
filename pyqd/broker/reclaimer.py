"""Reclaims the space of one topic: segments that few messages keep, and large segments after a burst.

Finished segments go by themselves (`trim_finished`), unless retention keeps them. Two kinds need work. A segment that
only a few unfinished messages keep is rewritten without the others (pyqd/broker/segment_rewriter.py). The large segment
of a burst goes once its topic is drained and quiet.

Source: docs/space.md.
"""

import logging
import os

from pyqd.broker.segment_rewriter import rewrite_old_segments
from pyqd.broker.topic import Topic
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN
from pyqd.hot.diskqueue.log import Log
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StorageError

QUIET_NS = 30 * SECOND_NS

logger = logging.getLogger(__name__)


def reclaim(topic: Topic, now_ns: int) -> None:
    """Reclaim a bounded amount of a topic's space if there is any; called every few seconds. now_ns: monotonic."""
    quota = topic.quota
    if topic.log.first is not topic.log.active:
        if topic.retention_time_ns:
            topic.trim_finished()
        rewrite_old_segments(topic)
    if topic.log.end != topic.quiet_end:
        topic.quiet_end = topic.log.end
        topic.quiet_since_ns = now_ns
    if quota.refusal is not None:
        topic.log.pool.drop_spares()
    shrink(topic, now_ns - topic.quiet_since_ns)
    if quota.refusal is not None:
        quota.recheck()


def shrink(topic: Topic, quiet_ns: int) -> None:
    """Reclaim the large segments of a drained topic once it has been quiet, or at once if publishing is refused."""
    if quiet_ns < QUIET_NS and topic.quota.refusal is None:
        return
    if is_smallest(topic.log):
        return
    drained = topic.end == topic.log.end and all(
        channel.ledger.oldest == topic.log.end for channel in topic.channels_by_name.values()
    )
    if drained and topic.retention_bytes == 0 and quiet_ns >= topic.retention_time_ns:
        shrink_log(topic)


def shrink_log(topic: Topic) -> None:
    """Continue in a small segment; the large one and the spares go once the small one is on stable storage."""
    log = topic.log
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
            topic.trim_finished()
            log.pool.drop_spares()

    topic.broker.in_background(sync, done)


def is_smallest(log: Log) -> bool:
    """Return whether a log has one segment of the smallest size and no spare."""
    return log.first is log.active and log.active.capacity_bytes <= SEGMENT_BYTES_MIN and not log.pool.spares
