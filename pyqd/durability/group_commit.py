"""With --sync-every=1: a publisher's OK waits for the sync that covers it, and all that wait share one.

A publish comes, its record is in the log's mapping at once; then its connection waits here. The first to come starts a
round, at the end of the loop's pass, so that everyone of the same pass is in it. While a round's sync runs in a thread,
those who come gather for the next one. So the cost is per sync and not per message, and grows with nobody's number.

What a round writes: to the journal what the logs of its topics have got since the round before, all with one flush.

Where the journal cannot take it, or names of a topic changed since a completed sync, the files of the topic are synced:
its log, and the parked logs of its channels, which lets the messages deferred meanwhile be finished in the topic's log;
the names, with the ledgers that are new, as a topic whose state says that its messages were handed out must not come
back without the channels that have them. Ledgers can wait: what they lose is delivered twice. Consuming needs no sync.

Invariant: whoever waits is woken, and the next round begins, whatever goes wrong in this one.

Source: docs/reliability.md; the idea is as old as group commit in databases (DeWitt et al., 1984).
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from gevent.event import AsyncResult

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.diskqueue.journal import Place
from pyqd.diskqueue.syncs import Syncs
from pyqd.durability.syncer import Job, ignore_duration, ignore_internal_error
from pyqd.primitives.errors import StorageError

# What of an average the newest value is.
NEWEST_SHARE = 0.2
# So many times what it takes to tell a round's end, those who were told need to publish again and be read.
GATHERED_WHILE_TOLD = 4.0

Done = Callable[[Any, BaseException | None], None]

logger = logging.getLogger(__name__)


def in_thread_always(_place: Place, _done: Done, in_thread: Callable[[], None]) -> None:
    """Leave each commit to a thread."""
    in_thread()


class Round:
    """Those who wait for one sync: greenlets for its outcome, and connections to be told on the loop."""

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        # Made for the first greenlet that waits: connections need none.
        self.outcome: AsyncResult[BaseException | None] | None = None
        self.told: list[Callable[[BaseException | None], None]] = []
        self.ended = False


class Work:
    """Writes of one round. place: of its commit in the journal, if it has one. job: syncs of single files, if any."""

    def __init__(self, place: Place | None, job: Job | None) -> None:
        self.place = place
        self.job = job
        self.started_s = time.perf_counter()

    def run(self, syncs: Syncs) -> None:
        """Write all to stable storage. Blocks; touches nothing of the loop's. Raises: StorageError."""
        if self.job is not None:
            self.job.run(syncs)
        if self.place is not None:
            self.place.file.write(self.place.offset, self.place.content)


class GroupCommit:
    """Makes topics durable for whoever waits, one sync at a time.

    in_background: runs (job, done), the job in a thread and done(result, error) on the loop. write: starts to write a
    commit and calls done likewise, or has it written in a thread. soon: calls a function at the end of the loop's pass;
    after_poll: when the loop has looked at all sockets once more, by default the same. on_timed: is told how many
    seconds each sync took. on_bug: is called with what went wrong where that is no StorageError.
    """

    def __init__(
        self,
        broker: Broker,
        in_background: Callable[[Callable[[], Any], Done], None],
        soon: Callable[[Callable[[], None]], object],
        write: Callable[[Place, Done, Callable[[], None]], None] = in_thread_always,
        after_poll: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._broker = broker
        self.on_timed: Callable[[float], None] = ignore_duration
        self.on_bug: Callable[[BaseException], None] = ignore_internal_error
        self._in_background = in_background
        self._soon = soon
        self._write = write
        self._after_poll = after_poll or soon
        # How long a flush takes, and to tell those who wait for it; of the last few rounds.
        self._flush_s = 0.0
        self._tell_s = 0.0
        self._gathering: Round | None = None
        self._running = False
        self._failure: str | None = None

    def wait(self, topics: Iterable[Topic]) -> None:
        """Return when all that the topics have accepted is on stable storage. Switches: yes.

        Raises: StorageError; and what else ended the round, which is a bug.
        """
        joined = self._join(topics)
        if joined.outcome is None:
            joined.outcome = AsyncResult()
        error = joined.outcome.get()
        if error is not None:
            raise error

    def tell(self, topics: Iterable[Topic], told: Callable[[BaseException | None], None]) -> None:
        """Call told(error) when `wait` would return, or raise that error. Switches: no. told: raises nothing."""
        self._join(topics).told.append(told)

    def _join(self, topics: Iterable[Topic]) -> Round:
        """Return the round that is gathering, with the topics in it."""
        joined = self._gathering
        if joined is None:
            joined = self._gathering = Round()
            if not self._running:
                self._running = True
                self._soon(self._start)
        for topic in topics:
            joined.topics[topic] = None
        return joined

    def _start(self) -> None:
        gathered = self._gathering
        assert gathered is not None, "a round without anyone in it"
        self._gathering = None
        try:
            work = self._work(list(gathered.topics))

            def done(_result: Any, error: BaseException | None) -> None:
                if error is not None and work.place is not None:
                    self._broker.journal.note_failed()
                self._finish(gathered, error or self._note(work))

            def in_thread() -> None:
                self._in_background(lambda: work.run(self._broker.syncs), done)

            if work.job is not None or work.place is None:
                in_thread()
            else:
                self._write(work.place, done, in_thread)
        except Exception as error:
            self._broker.journal.give_up()
            self._finish(gathered, error)

    def _note(self, work: Work) -> Exception | None:
        """Note that all is on stable storage. Returns: what went wrong in that."""
        try:
            if work.place is not None:
                self._broker.journal.note_written()
            if work.job is not None:
                work.job.note(whole=False)
            took_s = time.perf_counter() - work.started_s
            self._flush_s += (took_s - self._flush_s) * NEWEST_SHARE
            self.on_timed(took_s)
            # What the syncer failed at is not good yet for what is written here.
            if self._broker.failed_sync is self._failure:
                self._broker.note_synced()
        except Exception as error:
            return error
        return None

    def _finish(self, finished: Round, error: BaseException | None) -> None:
        """Wake those who wait for a round, and begin the next."""
        if finished.ended:
            return
        finished.ended = True
        if self._gathering is None:
            self._running = False
            self._tell(finished, error)
        elif self._flush_s > GATHERED_WHILE_TOLD * self._tell_s:
            # Most of those who are told now publish again before the disk could have written for the others alone.
            self._tell(finished, error)
            self._after_poll(self._start)
        else:
            self._start()
            self._tell(finished, error)
        if error is None:
            return
        self._broker.note_failed_sync(error)
        self._failure = self._broker.failed_sync
        if not isinstance(error, StorageError):
            logger.critical("a group commit went wrong", exc_info=error)
            self.on_bug(error)

    def _tell(self, finished: Round, error: BaseException | None) -> None:
        """Wake those who wait for a round."""
        started_s = time.perf_counter()
        if finished.outcome is not None:
            finished.outcome.set(error)
        for told in finished.told:
            try:
                told(error)
            except Exception as failed:
                # The others, and the next round, do not wait for that.
                logger.critical("a publisher could not be told of its commit", exc_info=failed)
                self.on_bug(failed)
        self._tell_s += (time.perf_counter() - started_s - self._tell_s) * NEWEST_SHARE

    def _work(self, topics: list[Topic]) -> Work:
        """Gather what is new of the topics: into the journal, or what of them is dirty where that does not do."""
        journal = self._broker.journal
        commit = journal.begin()
        synced: list[Topic] = []
        for topic in topics:
            if topic.exiting or topic.directory is None:
                continue
            # A start puts nothing back into a directory that has no durable name, or whose state is in memory only.
            if (
                commit is None
                or topic.names
                or topic.mapping.path is None
                or not topic.journal_into(commit, topic.name.encode())
            ):
                synced.append(topic)
        place = None
        if commit is not None and commit.entry_count:
            place = journal.place()
            if place is None:
                synced = [topic for topic in topics if not topic.exiting and topic.directory is not None]
        return Work(place, self._job(synced) if synced else None)

    def _job(self, topics: list[Topic]) -> Job:
        """Gather what is dirty of the topics."""
        job = Job()
        for topic in topics:
            job.add_topic(topic)
            for channel in topic.parking:
                job.add_parked(channel, with_ledgers=False)
            job.add_names(topic)
        return job
