"""With --sync-every=1: a publisher's OK waits for the sync that covers it, and all that wait share one.

A publish comes, its record is in the log's mapping at once; then its connection waits here. The first to come starts a
round, at the end of the loop's pass, so that everyone of the same pass is in it. While a round's sync runs in a thread,
those who come gather for the next one. So the cost is per sync and not per message, and grows with nobody's number.

What a round writes: the logs of its topics, and the parked logs of their channels, which lets the messages deferred
meanwhile be finished in the topics' logs. Ledgers can wait: what they lose is delivered twice. Consuming needs no sync.
Names that changed since a completed sync are written as well, with the ledgers that are new: a topic whose state says
that its messages were handed out must not come back without the channels that have them.

Invariant: whoever waits is woken, and the next round begins, whatever goes wrong in this one.

Source: docs/reliability.md; the idea is as old as group commit in databases (DeWitt et al., 1984).
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from gevent.event import AsyncResult

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.primitives.errors import StorageError
from pyqd.services.syncer import Job, no_bug_handler, not_timed

logger = logging.getLogger(__name__)


class Round:
    """Those who wait for one sync."""

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        self.outcome: AsyncResult[BaseException | None] = AsyncResult()


class GroupCommit:
    """Makes topics durable for whoever waits, one sync at a time.

    in_background: runs (job, done), the job in a thread and done(result, error) on the loop. soon: calls a function at
    the end of the loop's pass. on_timed: is told how many seconds each sync took. on_bug: is called with what went
    wrong where that is no StorageError.
    """

    def __init__(
        self,
        broker: Broker,
        in_background: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._broker = broker
        self.on_timed: Callable[[float], None] = not_timed
        self.on_bug: Callable[[BaseException], None] = no_bug_handler
        self._in_background = in_background
        self._soon = soon
        self._gathering: Round | None = None
        self._running = False
        self._failure: str | None = None

    def wait(self, topics: Iterable[Topic]) -> None:
        """Return when all that the topics have accepted is on stable storage. Switches: yes.

        Raises: StorageError; and what else ended the round, which is a bug.
        """
        if self._gathering is None:
            self._gathering = Round()
            if not self._running:
                self._running = True
                self._soon(self._start)
        self._gathering.topics.update(dict.fromkeys(topics))
        error = self._gathering.outcome.get()
        if error is not None:
            raise error

    def _start(self) -> None:
        gathered = self._gathering
        assert gathered is not None, "a round without anyone in it"
        self._gathering = None
        try:
            job = self._job(list(gathered.topics))

            def done(_result: Any, error: BaseException | None) -> None:
                self._finish(gathered, error or self._note(job))

            self._in_background(lambda: job.run(self._broker.syncs), done)
        except Exception as error:
            self._finish(gathered, error)

    def _note(self, job: Job) -> Exception | None:
        """Note that a job is done. Returns: what went wrong in that."""
        try:
            job.note(whole=False)
            self.on_timed(job.took_s)
            # What the syncer failed at is not good yet for what is written here.
            if self._broker.failed_sync is self._failure:
                self._broker.note_synced()
        except Exception as error:
            return error
        return None

    def _finish(self, finished: Round, error: BaseException | None) -> None:
        """Wake those who wait for a round, and begin the next."""
        if finished.outcome.ready():
            return
        finished.outcome.set(error)
        if self._gathering is None:
            self._running = False
        else:
            self._soon(self._start)
        if error is None:
            return
        self._broker.note_failed_sync(error)
        self._failure = self._broker.failed_sync
        if not isinstance(error, StorageError):
            logger.critical("a group commit went wrong", exc_info=error)
            self.on_bug(error)

    def _job(self, topics: list[Topic]) -> Job:
        """Gather what is dirty of the topics."""
        job = Job()
        for topic in topics:
            if topic.exiting or topic.directory is None:
                continue
            job.add_topic(topic)
            for channel in topic.parking:
                job.add_parked(channel, with_ledgers=False)
            job.add_names(topic)
        return job
