"""Durable FINs with --sync-fin: a FIN counts against its consumer's RDY until it is on stable storage.

A FIN sets a bit in a ledger at once and registers its channel here. The consumer gets no message in its place before a
sync of the channel's files is complete. The first registered channel starts a round at the end of the loop's pass.
While a round's sync runs in a thread, further channels gather for the next round. Rounds of publishers (group_commit)
run independently.

A round writes the ledgers of its channels. New names are written too, because a ledger without a durable name does not
exist. A finished dead letter must not be published again. So if originals of a topic's dead letters wait for a sync,
the round first syncs the topic's log and then the ledgers of the originals.

If a sync fails, its FINs stand in memory only, health is bad, and their consumers get no messages in their place. The
syncer's next pass retries each of these channels by itself, so that one bad file does not hold up other channels.

Invariant: after any failure, the FINs of a round are either on stable storage or wait for another round.

Source: docs/reliability.md.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.diskqueue.segment_jobs import Done
from pyqd.durability.syncer import Job, ignore
from pyqd.hot.broker.consumer import Consumer
from pyqd.primitives.errors import StorageError

logger = logging.getLogger(__name__)


class FinRound:
    """Channels whose ledgers one sync covers, with the consumers and their numbers of waiting FINs."""

    def __init__(self, channels: Iterable[Channel]) -> None:
        self.covered: dict[Channel, list[tuple[Consumer, int]]] = {
            channel: channel.unsynced_fins.begin_sync() for channel in channels if not channel.exiting
        }
        self.dead_letter_sources = {source for channel in self.covered for source in channel.topic.dead_letter_sources}


class FinSync:
    """Syncs of FINs, one at a time.

    in_background: runs (job, done), the job in a thread and done(result, error) on the loop. soon: calls a function at
    the end of the loop's pass. on_timed: is called with the seconds of each sync. on_internal_error: is called with an
    error that is not a StorageError.
    """

    def __init__(
        self,
        broker: Broker,
        in_background: Callable[[Callable[[], Any], Done], None],
        soon: Callable[[Callable[[], None]], object],
        *,
        on_timed: Callable[[float], None] = ignore,
        on_internal_error: Callable[[BaseException], None] = ignore,
    ) -> None:
        self._on_timed = on_timed
        self._on_internal_error = on_internal_error
        self._broker = broker
        self._in_background = in_background
        self._soon = soon
        self._waiting: dict[Channel, None] = {}
        self._failed: dict[Channel, None] = {}
        # Failed channels that are due for a retry.
        self._again: list[Channel] = []
        self._running = False
        self._failure: str | None = None

    def note(self, channel: Channel) -> None:
        """Register a channel with new FINs for the next round. Switches: no."""
        self._waiting[channel] = None
        self._begin()

    def retry(self) -> None:
        """Retry the syncs of the channels whose last sync failed, one channel at a time."""
        self._again, self._failed = list({**dict.fromkeys(self._again), **self._failed}), {}
        if self._again:
            self._begin()

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._soon(self._start)

    def _start(self) -> None:
        if self._waiting:
            channels, self._waiting = list(self._waiting), {}
        else:
            channels = [self._again.pop()]
        try:
            gathered = self._gather(channels)
        except Exception as error:
            # The FINs taken from the channels would wait forever, so the error is fatal.
            logger.critical("internal error when gathering a sync of FINs", exc_info=error)
            self._on_internal_error(error)
            raise
        if not gathered.covered:
            self._begin_next()
            return
        self._write(gathered, gathered.covered, self._sync_originals if gathered.dead_letter_sources else self._finish)

    def _gather(self, channels: list[Channel]) -> FinRound:
        return FinRound(channels)

    def _write(
        self,
        gathered: FinRound,
        channels: Iterable[Channel],
        done: Callable[[FinRound, BaseException | None], None],
    ) -> None:
        try:
            job = job_of(channels)

            def written(_result: Any, error: BaseException | None) -> None:
                done(gathered, error or self._note(job))

            self._in_background(lambda: job.run(self._broker.syncs), written)
        except Exception as error:
            self._finish(gathered, error)

    def _note(self, job: Job) -> Exception | None:
        """Record that a job is on stable storage. Returns: the error of doing so, or None."""
        try:
            job.note()
            self._on_timed(job.took_s)
        except Exception as error:
            return error
        return None

    def _sync_originals(self, gathered: FinRound, error: BaseException | None) -> None:
        """Make the originals of dead letters durable. The sync of the letters has allowed them to be finished."""
        originals = [
            channel for channel in gathered.dead_letter_sources if not channel.exiting and channel.directory is not None
        ]
        if error is not None or not originals:
            self._finish(gathered, error)
        else:
            self._write(gathered, originals, self._finish)

    def _finish(self, gathered: FinRound, error: BaseException | None) -> None:
        for channel, covered in gathered.covered.items():
            if error is None:
                channel.end_fin_sync(covered)
            else:
                channel.unsynced_fins.fail_sync(covered)
                self._failed[channel] = None
        self._begin_next()
        if error is None:
            # This sync says nothing about the files of an earlier failure of another sync.
            if self._broker.failed_sync is self._failure:
                self._broker.note_synced()
            return
        self._broker.note_failed_sync(error)
        self._failure = self._broker.failed_sync
        if not isinstance(error, StorageError):
            logger.critical("internal error in a sync of FINs - %s", error, exc_info=error)
            self._on_internal_error(error)

    def _begin_next(self) -> None:
        if self._waiting or self._again:
            self._soon(self._start)
        else:
            self._running = False


def job_of(channels: Iterable[Channel]) -> Job:
    """Gather all dirty bytes that the FINs of these channels depend on."""
    job = Job()
    durable = [channel for channel in channels if not channel.exiting]
    for topic in dict.fromkeys(channel.topic for channel in durable):
        if topic.names or topic.dead_letter_sources:
            job.add_topic(topic)
            job.add_names(topic)
    job.add_channels(durable)
    return job
