"""Runs blocking jobs in threads of its own, never waiting for a free one."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from pyqd.net.greenlets import Pool

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]

logger = logging.getLogger(__name__)


def no_handler(_error: BaseException) -> None:
    """Leave it at the log."""


def outcome_of(job: Job) -> tuple[Any, BaseException | None]:
    """Return a job's result and error. The pool would write an error that it sees to standard error, with traceback."""
    try:
        return job(), None
    except Exception as error:
        return None, error


class Background:
    """A queue before a pool of threads that nobody else uses; a thread is made when the first job needs it.

    The pool's own `spawn` waits when all threads are busy, and nothing that runs in a turn of the loop may wait. Those
    of the hub's pool may all be taken by others, for whom waiting is right.
    """

    def __init__(self, hub: Any, thread_count: int) -> None:
        self.hub = hub
        self.pool = Pool(thread_count, hub=hub)
        self.thread_count = thread_count
        self.free_threads = thread_count
        self.waiting: deque[tuple[Job, Done]] = deque()
        self.stopped = False
        # Called with an error that ends a job's `done`: its flags may be left as they were.
        self.on_failure: Callable[[BaseException], None] = no_handler

    def run(self, job: Job, done: Done) -> None:
        """Run job() in a thread, then done(result, error) on the loop; neither once it is stopped. Switches: no."""
        if self.stopped:
            return
        self.waiting.append((job, done))
        self.start_some()

    def start_some(self) -> None:
        """Give waiting jobs to free threads."""
        while self.waiting and self.free_threads > 0:
            job, done = self.waiting.popleft()
            self.free_threads -= 1
            try:
                # The pool gives a slot back before it tells a job's end: where a thread is free here, one is there.
                started = self.pool.spawn(partial(outcome_of, job))
            except Exception as error:
                # No thread can be started: one that runs takes the job when it is free.
                self.free_threads += 1
                if self.free_threads < self.thread_count:
                    self.waiting.appendleft((job, done))
                    return
                logger.error("cannot start a thread for a background job - %s", error)
                self.hub.loop.run_callback(self.tell, done, None, error)
            else:
                started.rawlink(partial(self.finish, done))

    def finish(self, done: Done, finished: Any) -> None:
        """Pass a job's end on, and start the next."""
        self.free_threads += 1
        try:
            result, error = finished.value or (None, finished.exception)
            self.tell(done, result, error)
        finally:
            self.start_some()

    def tell(self, done: Done, result: Any, error: BaseException | None) -> None:
        """Pass a job's end on to whoever gave it."""
        try:
            done(result, error)
        except Exception as failed:
            logger.critical("internal error: the end of a background job - %s", failed, exc_info=failed)
            self.on_failure(failed)

    def stop(self) -> None:
        """Drop what waits, wait for what runs, end the threads. Switches: yes."""
        self.stopped = True
        self.waiting.clear()
        self.pool.kill()
