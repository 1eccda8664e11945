"""Rewrites old segments of a topic's log that few unfinished messages keep: one at a time, in threads.

The compiled half finds the segments and puts the new file in their place (pyx/broker/compaction.pyx). This half runs
the jobs, removes the files that were replaced, and logs a failure, once for each reason.

Source: docs/space.md.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pyqd.broker.topic import Topic
from pyqd.diskqueue.segment_jobs import log_failure
from pyqd.hot.broker.compaction import next_rewrite, replace_segments
from pyqd.hot.diskqueue.rewrite import Rewrite
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import CorruptionError, StorageError, reason_of

REWRITTEN_AGE_NS = 10 * SECOND_NS
REWRITTEN_LOG_BYTES_MIN = 1 << 20

logger = logging.getLogger(__name__)


def rewrite_old_segments(topic: Topic) -> None:
    """Rewrite the segments that few messages keep, one after the other, as long as each job succeeds."""
    while not topic.rewriting and not topic.exiting:
        if topic.log.replaced_files:
            is_done = remove_replaced(topic)
        else:
            is_done = rewrite_next(topic)
        if not is_done:
            return


def run_job(topic: Topic, job: Callable[[], Any], end: Callable[[BaseException | None], bool]) -> bool:
    """Run a blocking job in a thread, and `end` with its failure on the loop.

    Returns: what `end` has returned; False if it is still to come, and calls `rewrite_old_segments` if it returns True.
    """
    is_late = is_done = False
    topic.rewriting = True

    def attempt() -> BaseException | None:
        try:
            job()
        except (StorageError, CorruptionError) as error:
            return error
        return None

    def done(failed: BaseException | None, error: BaseException | None) -> None:
        nonlocal is_done
        topic.rewriting = False
        is_done = end(failed or error)
        if is_late and is_done:
            rewrite_old_segments(topic)

    topic.broker.in_background(attempt, done)
    is_late = True
    return is_done


def rewrite_next(topic: Topic) -> bool:
    """Rewrite the next segments that few messages keep. Returns: as `run_job`; False also if there are none."""
    if topic.log.size_bytes() < REWRITTEN_LOG_BYTES_MIN:
        return False
    rewrite, topic.rewritten_below = next_rewrite(
        topic, topic.rewritten_below, topic.retained_from(), wall() - REWRITTEN_AGE_NS, topic.not_rewritable
    )
    if rewrite is None:
        return False
    syncs = topic.broker.syncs
    return run_job(topic, lambda: rewrite.make(syncs), partial(end_rewrite, topic, rewrite))


def end_rewrite(topic: Topic, rewrite: Rewrite, failed: BaseException | None) -> bool:
    """Put the new file in the place of the old ones, or remove it. Returns: whether to look for more segments."""
    is_replaced = False
    is_current = not topic.exiting and rewrite.is_current()
    try:
        if is_current and failed is None:
            is_replaced = replace_segments(topic, rewrite, topic.retained_from())
    except StorageError as error:
        failed = error
    if not is_replaced:
        try:
            rewrite.discard()
        except StorageError as error:
            log_failure(None, error)
    if is_current and failed is not None:
        note_refusal(topic, rewrite, failed)
        return False
    topic.rewrite_refusal = ""
    return is_replaced


def note_refusal(topic: Topic, rewrite: Rewrite, error: BaseException) -> None:
    """Mend damaged segments of an earlier run, and log why segments were not rewritten, once for each reason.

    Other damaged segments are not rewritten any more.
    """
    for segment in rewrite.segments if isinstance(error, CorruptionError) else ():
        if not segment.unverified:
            topic.not_rewritable.add(segment.number)
        topic.log.ready(segment)
    # Without the name of the new file, which is another one each time.
    reason = error.strerror if isinstance(error, StorageError) and error.strerror else reason_of(error)
    if reason != topic.rewrite_refusal:
        topic.rewrite_refusal = reason
        logger.warning(
            "TOPIC(%s): cannot rewrite segment %d without its finished messages: %s; its space is not reclaimed",
            topic.name,
            rewrite.segments[-1].number,
            reason,
        )


def remove_replaced(topic: Topic) -> bool:
    """Remove replaced files, once the names of the new ones are on stable storage. Returns: as `run_job`."""
    log, files, directory = topic.log, topic.broker.files, topic.log.directory
    paths = list(log.replaced_files)
    assert directory is not None, "there are no files in memory"

    def remove() -> None:
        files.sync_directory(directory)
        for path in paths:
            files.remove(path)

    def end(failed: BaseException | None) -> bool:
        # If the topic is deleted, its files go with it.
        if failed is not None and not topic.exiting:
            log_failure(None, failed)
            return False
        del log.replaced_files[: len(paths)]
        if not topic.exiting:
            topic.trim_finished()
        return True

    return run_job(topic, remove, end)
