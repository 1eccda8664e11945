"""Blocking work on segment files for a `SegmentPool`: make, populate, sync and remove them.

`SegmentJobs` works on the spot and makes nothing ahead: for importers, and for logs that are being closed.
`BackgroundJobs` works in threads; one object serves all logs of a broker. It reports results on
the event loop, by the pool's methods `offer_spare`, `note_retired` and `note_pages`.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.diskqueue.placeholders import Placeholders
from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN, SpaceLimit
from pyqd.primitives.errors import StorageError, reason_of

if TYPE_CHECKING:
    from pyqd.hot.diskqueue.segment import Segment
    from pyqd.hot.diskqueue.segmentpool import SegmentPool

PAGES_FIRST_BYTES = 256 << 10
PAGES_AT_ONCE_BYTES = 64 << 10
PAGES_REST_S = 0.001

logger = logging.getLogger(__name__)

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class SegmentJobs:
    """Work on segment files, on the spot. prepares_ahead: whether spares and pages are made ahead of need."""

    prepares_ahead = False

    def make(self, pool: "SegmentPool", need_bytes: int, want_bytes: int) -> "Segment":
        """Make a segment while the caller waits, of `want_bytes` if there is space. Raises: StorageError."""
        need_bytes = max(need_bytes, SEGMENT_BYTES_MIN)
        with pool.limit.claim(need_bytes, max(need_bytes, want_bytes), pool.directory is not None) as size_bytes:
            return pool.new_segment(size_bytes)

    def prepare_spare(self, pool: "SegmentPool", size_bytes: int) -> None:
        """Make a segment ahead of need, and offer it to the pool; not called unless `prepares_ahead`."""

    def prepare_pages(self, pool: "SegmentPool", segment: "Segment", start_bytes: int, length_bytes: int) -> None:
        """Make pages of a segment present before they are written; not called unless `prepares_ahead`."""

    def retire(self, pool: "SegmentPool", segment: "Segment", *, populates: bool) -> None:  # noqa: ARG002
        """Make durable that a segment holds no record any more. Here: the next start does."""
        pool.note_retired(segment)

    def remove(self, pool: "SegmentPool", segment: "Segment") -> None:
        """Remove the file of a segment. Raises: StorageError."""
        if segment.mapping.path is not None:
            pool.files.remove(segment.mapping.path)


class BackgroundJobs(SegmentJobs):
    """Work on segment files, in threads.

    in_background: runs (job, done) with the job in a thread and done(result, error) on the event loop;
    prompt_in_background: the same for short jobs whose result the log soon needs. reserve: limits the space of files
    that are made in a thread. placeholders: directories that do not exist on the disk yet.
    """

    prepares_ahead = True

    def __init__(
        self,
        files: Files,
        syncs: ReliableSync,
        reserve: SpaceLimit,
        placeholders: Placeholders,
        in_background: Callable[[Job, Done], None],
        prompt_in_background: Callable[[Job, Done], None],
    ) -> None:
        self.files = files
        self.syncs = syncs
        self.reserve = reserve
        self.placeholders = placeholders
        self.in_background = in_background
        self.prompt_in_background = prompt_in_background

    def make(self, pool: "SegmentPool", need_bytes: int, want_bytes: int) -> "Segment":
        """Make a segment while the caller waits, of `want_bytes` if there is space. Raises: StorageError."""
        if self.placeholders:
            # The log's directory may be one of them.
            self.placeholders.settle()
        return super().make(pool, need_bytes, want_bytes)

    def new_spare(self, pool: "SegmentPool", size_bytes: int) -> "Segment":
        """Make a segment of that size, or of a smaller one if the disk has no space for it. Raises: StorageError."""
        if pool.directory is None:
            return pool.new_segment(size_bytes)
        with self.reserve.claim(SEGMENT_BYTES_MIN, self.reserve.spare_bytes(size_bytes)) as claimed_bytes:
            segment = pool.new_segment(claimed_bytes)
        if pool.populates:
            # The pool asks for more as the log comes to it.
            segment.prepared = min(PAGES_FIRST_BYTES, segment.mapping.size_bytes)
            # No page is urgent: the log does not use the segment yet.
            self.populate_resting(segment, 0, segment.prepared, lambda _at_bytes: False)
        return segment

    def populate_resting(
        self, segment: "Segment", start_bytes: int, end_bytes: int, is_urgent: Callable[[int], bool]
    ) -> None:
        """Populate pages, a few at a time with a rest in between.

        In the kernel a thread does not yield for up to a tick, and the event loop may have only this core. is_urgent:
        says of the place reached whether the log needs the next pages at once.
        """
        at_bytes = start_bytes
        while at_bytes < end_bytes:
            piece_bytes = min(PAGES_AT_ONCE_BYTES, end_bytes - at_bytes)
            self.files.populate(segment.mapping, at_bytes, piece_bytes)
            at_bytes += piece_bytes
            if at_bytes < end_bytes and not is_urgent(at_bytes):
                time.sleep(PAGES_REST_S)

    def prepare_spare(self, pool: "SegmentPool", size_bytes: int) -> None:
        """Make a segment in a thread, and offer it to the pool; None if that failed."""

        def job() -> "Segment | StorageError":
            try:
                return self.new_spare(pool, size_bytes)
            except StorageError as error:
                # No reason for an alarm: the next user of the segment gets the error, if the space is still missing.
                return error

        def done(made: "Segment | StorageError | None", error: BaseException | None) -> None:
            failure = made if isinstance(made, StorageError) else error
            pool.offer_spare(None if isinstance(made, StorageError) else made)
            if failure is not None and not pool.abandoned:
                logger.warning(
                    "DISKQUEUE: cannot prepare a segment ahead: %s; it is created when a message needs it", failure
                )

        self.in_background(job, done)

    def prepare_pages(self, pool: "SegmentPool", segment: "Segment", start_bytes: int, length_bytes: int) -> None:
        """Populate pages in a thread, while the log comes to them."""
        end_bytes = start_bytes + length_bytes

        def job() -> None:
            self.populate_resting(
                segment, start_bytes, end_bytes, lambda at_bytes: at_bytes - segment.tail <= PAGES_AT_ONCE_BYTES
            )

        def done(_result: None, error: BaseException | None) -> None:
            if error is not None:
                # A page that was used before cannot be read from the disk any more.
                pool.leave(segment)
            pool.note_pages(segment, end_bytes)
            log_failure(None, error)

        self.prompt_in_background(job, done)

    def retire(self, pool: "SegmentPool", segment: "Segment", *, populates: bool) -> None:
        """Make durable in a thread that a segment holds no record any more; the pool keeps it as a spare then.

        populates: its used pages also become writable, so that the next records can be stored without page faults.
        """
        path = segment.mapping.path
        assert path is not None, "memory needs no sync"
        assert segment.number == 0, "the segment has been drained"

        def job() -> None:
            try:
                self.syncs.sync(segment.mapping, 0, PAGE_BYTES)
            except StorageError:
                self.files.remove(path)
                raise
            if populates:
                self.files.populate(segment.mapping, 0, min(segment.prepared, segment.mapping.size_bytes))

        def done(_result: None, error: BaseException | None) -> None:
            pool.note_retired(segment, error is not None)
            log_failure(None, error)

        self.prompt_in_background(job, done)

    def remove(self, pool: "SegmentPool", segment: "Segment") -> None:  # noqa: ARG002
        """Remove the file of a segment in a thread; a failure is logged."""
        path = segment.mapping.path
        if path is not None:
            self.in_background(lambda: self.files.remove(path), log_failure)


def log_failure(_result: Any, error: BaseException | None) -> None:
    """Log the failure of a background job that no other work waits for."""
    if error is not None:
        logger.warning("DISKQUEUE: %s", reason_of(error))
