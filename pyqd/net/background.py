"""Pool of threads for blocking jobs; the caller never waits for a free thread."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gevent.event import Event

from pyqd.net.greenlets import WorkerPool

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]

logger = logging.getLogger(__name__)


def outcome_of(job: Job) -> tuple[Any, BaseException | None]:
    """Return a job's result and error. If the pool saw the error it would print it to standard error with
    a traceback.
    """
    try:
        return job(), None
    except Exception as error:
        return None, error


class Background:
    """A queue in front of a private pool of threads; a thread is created when the first job needs it.

    The pool's own `spawn` waits when all threads are busy, and a callback of the event loop must not wait. The threads
    of the hub's pool may all be taken by callers that may wait.

    on_failure: called if a job's `done` raises: the caller's state may then be inconsistent.
    """

    def __init__(
        self,
        hub: Any,
        thread_count: int,
        pool_type: type[WorkerPool] = WorkerPool,
        on_failure: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self.hub = hub
        self.pool = pool_type(thread_count, hub=hub)
        self.thread_count = thread_count
        self.free_threads = thread_count
        self.waiting: deque[tuple[Job, Done]] = deque()
        self.stopped = False
        self.ends: set[Event] = set()  # those that `run_and_wait` waits for
        self.on_failure = on_failure

    def run(self, job: Job, done: Done) -> None:
        """Run job() in a thread, then done(result, error) on the loop; neither after `stop`. Switches: no."""
        if self.stopped:
            return
        self.waiting.append((job, done))
        self.start_some()

    def run_and_wait(self, job: Job) -> None:
        """Run job() in a thread and return when it has ended, in whatever way; `stop` ends the wait. Switches: yes."""
        if self.stopped:
            return
        ended = Event()
        self.ends.add(ended)
        try:
            self.run(job, lambda _result, _error: ended.set())
            ended.wait()
        finally:
            self.ends.discard(ended)

    def start_some(self) -> None:
        while self.waiting and self.free_threads > 0:
            job, done = self.waiting.popleft()
            self.free_threads -= 1
            try:
                # The pool frees its slot before it reports a job's end, so a thread that is free here is free in the
                # pool.
                started = self.pool.spawn(partial(outcome_of, job))
            except Exception as error:
                # The pool has no thread. It has not queued the job.
                self.free_threads += 1
                logger.error("cannot start a thread for a background job: %s; the job fails", error)
                self.hub.loop.run_callback(self.report, done, None, error)
            else:
                started.rawlink(partial(self.finish, done))

    def finish(self, done: Done, finished: Any) -> None:
        self.free_threads += 1
        try:
            result, error = finished.value or (None, finished.exception)
            self.report(done, result, error)
        finally:
            self.start_some()

    def report(self, done: Done, result: Any, error: BaseException | None) -> None:
        try:
            done(result, error)
        except Exception as failed:
            logger.critical("internal error when reporting the end of a background job - %s", failed, exc_info=failed)
            self.on_failure(failed)

    def stop(self) -> None:
        """Drop the waiting jobs, wait for the running ones, end the threads. Switches: yes."""
        self.stopped = True
        self.waiting.clear()
        self.pool.kill()
        # Nobody waits for a dropped job, or one whose end is not reported any more.
        for ended in list(self.ends):
            ended.set()
