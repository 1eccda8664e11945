"""Group commit with --sync-every=1: a publisher's OK waits for the sync that covers it, and waiting publishers share
one.

A publish puts its record into the log's mapping at once; then its connection waits here. The first one starts a round
at the end of the loop's pass, so that all publishes of the same pass are in it. While a round's sync runs in a thread,
further publishes gather for the next round. Cost is one sync per round, independent of the number of waiting
publishers.

A round writes the records that the logs of its topics got since the round before to the journal, all with one flush.

If the journal cannot take them, or names of a topic changed since a completed sync, the files of the topic are synced
instead. These are its log and due times, and new names with their new ledgers. A topic whose state says that its
messages were given to channels must not come back without those channels. Other ledgers can wait: a FIN they lose means
one more delivery. Consuming needs no sync.

Invariant: after any failure of a round, its waiting publishers are woken and the next round begins.

Source: docs/reliability.md; the idea is as old as group commit in databases (DeWitt et al., 1984).
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from gevent.event import AsyncResult

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.diskqueue.journal import CommitPlace
from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.diskqueue.segment_jobs import Done
from pyqd.durability.syncer import Job, ignore
from pyqd.hot.broker.topic import journal_topics
from pyqd.primitives.errors import StorageError

# Weight of the newest value in an average.
NEWEST_SHARE = 0.2
# After a round's end is reported, its publishers need this many times the reporting time to publish again and be read.
GATHERED_WHILE_TOLD = 4.0

logger = logging.getLogger(__name__)


def in_thread_always(_place: CommitPlace, _done: Done, in_thread: Callable[[], None]) -> None:
    in_thread()


class Round:
    """Publishers that wait for one sync: greenlets for its outcome, connections for a call on the loop."""

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        # Created for the first waiting greenlet; connections need none.
        self.outcome: AsyncResult[BaseException | None] | None = None
        self.callbacks: list[Callable[[BaseException | None], None]] = []
        self.ended = False


class Work:
    """Writes of one round. place: of its commit in the journal, if it has one. job: syncs of single files, if any."""

    def __init__(self, place: CommitPlace | None, job: Job | None) -> None:
        self.place = place
        self.job = job
        self.started_s = time.perf_counter()

    def run(self, syncs: ReliableSync) -> None:
        """Sync the files, then write the commit. Blocks; touches no object of the loop. Raises: StorageError."""
        if self.job is not None:
            self.job.run(syncs)
        if self.place is not None:
            self.place.file.write(self.place.offset, self.place.content)


class GroupCommit:
    """Group commits of topics, one sync at a time.

    in_background: runs (job, done), the job in a thread and done(result, error) on the loop. write: starts to write a
    commit and calls done likewise, or has the commit written in a thread. soon: calls a function at the end of the
    loop's pass; after_poll: after the loop has polled all sockets once more, by default the same. on_timed: is called
    with the seconds of each sync. on_internal_error: is called with an error that is not a StorageError.
    """

    def __init__(
        self,
        broker: Broker,
        in_background: Callable[[Callable[[], Any], Done], None],
        soon: Callable[[Callable[[], None]], object],
        write: Callable[[CommitPlace, Done, Callable[[], None]], None] = in_thread_always,
        after_poll: Callable[[Callable[[], None]], object] | None = None,
        *,
        on_timed: Callable[[float], None] = ignore,
        on_internal_error: Callable[[BaseException], None] = ignore,
    ) -> None:
        self._broker = broker
        self._on_timed = on_timed
        self._on_internal_error = on_internal_error
        self._in_background = in_background
        self._soon = soon
        self._write = write
        self._after_poll = after_poll or soon
        # Averages over the last few rounds: the time of a flush, and the time to report it to the waiting publishers.
        self._flush_s = 0.0
        self._tell_s = 0.0
        self._gathering: Round | None = None
        self._running = False
        self._failure: str | None = None

    def wait(self, topics: Iterable[Topic]) -> None:
        """Return when all messages that the topics have accepted are on stable storage. Switches: yes.

        Raises: StorageError, and any other error that ended the round, which is an internal error.
        """
        joined = self._join(topics)
        if joined.outcome is None:
            joined.outcome = AsyncResult()
        error = joined.outcome.get()
        if error is not None:
            raise error

    @property
    def is_idle(self) -> bool:
        """True if no publisher waits for a sync."""
        return not self._running

    def notify(self, topics: Iterable[Topic], callback: Callable[[BaseException | None], None]) -> None:
        """Call callback(error) when `wait` would return or raise that error. Switches: no. callback: must not raise."""
        self._join(topics).callbacks.append(callback)

    def _join(self, topics: Iterable[Topic]) -> Round:
        joined = self._gathering
        if joined is None:
            joined = self._gathering = Round()
            if not self._running:
                self._running = True
                self._soon(self._start)
        joined.topics.update(dict.fromkeys(topics))
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
        """Record that all is on stable storage. Returns: the error of doing so, or None."""
        try:
            if work.place is not None:
                self._broker.journal.note_written()
            if work.job is not None:
                work.job.note()
            took_s = time.perf_counter() - work.started_s
            self._flush_s += (took_s - self._flush_s) * NEWEST_SHARE
            self._on_timed(took_s)
            # This sync says nothing about the files of an earlier failure of the syncer.
            if self._broker.failed_sync is self._failure:
                self._broker.note_synced()
        except Exception as error:
            return error
        return None

    def _finish(self, finished: Round, error: BaseException | None) -> None:
        if finished.ended:
            return
        finished.ended = True
        if self._gathering is None:
            self._running = False
            self._report(finished, error)
        elif self._flush_s > GATHERED_WHILE_TOLD * self._tell_s:
            # Most of the publishers that get their OK now publish again before the disk could have written for the
            # others alone.
            self._report(finished, error)
            self._after_poll(self._start)
        else:
            self._start()
            self._report(finished, error)
        if error is None:
            return
        self._broker.note_failed_sync(error)
        self._failure = self._broker.failed_sync
        if not isinstance(error, StorageError):
            logger.critical("internal error in a group commit", exc_info=error)
            self._on_internal_error(error)

    def _report(self, finished: Round, error: BaseException | None) -> None:
        started_s = time.perf_counter()
        if finished.outcome is not None:
            finished.outcome.set(error)
        for callback in finished.callbacks:
            try:
                callback(error)
            except Exception as failed:
                # The other publishers, and the next round, must not wait for one failed callback.
                logger.critical("internal error when waking a publisher after its commit", exc_info=failed)
                self._on_internal_error(failed)
        self._tell_s += (time.perf_counter() - started_s - self._tell_s) * NEWEST_SHARE

    def _work(self, topics: list[Topic]) -> Work:
        """Gather the new records of the topics into the journal, or their dirty bytes if the journal cannot
        take them.
        """
        journal = self._broker.journal
        commit = journal.begin()
        place = None
        if commit is not None:
            synced = journal_topics(commit, topics)
            place = journal.place() if commit.entry_count else None
        if commit is None or (commit.entry_count and place is None):
            synced = [topic for topic in topics if not topic.exiting and topic.directory is not None]
        return Work(place, self._job(synced) if synced else None)

    def _job(self, topics: list[Topic]) -> Job:
        job = Job()
        for topic in topics:
            job.add_topic(topic)
            job.add_names(topic)
        return job
