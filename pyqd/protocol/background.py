"""Runs blocking jobs in gevent's threadpool, never waiting for a free thread."""

from collections import deque
from collections.abc import Callable
from typing import Any

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class Background:
    """A queue before the threadpool of a hub.

    The pool's own `spawn` waits when all threads are busy, and nothing that runs in a turn of the loop may wait.
    """

    def __init__(self, hub: Any, thread_count: int) -> None:
        self.pool = hub.threadpool
        self.free_threads = min(thread_count, self.pool.maxsize)
        self.waiting: deque[tuple[Job, Done]] = deque()

    def run(self, job: Job, done: Done) -> None:
        """Run job() in a thread, then done(result, error) on the loop."""
        self.waiting.append((job, done))
        self.start_some()

    def start_some(self) -> None:
        """Give waiting jobs to free threads."""
        while self.waiting and self.free_threads > 0:
            job, done = self.waiting.popleft()
            self.free_threads -= 1
            self.pool.spawn(job).rawlink(lambda finished, done=done: self.finish(finished, done))

    def finish(self, finished: Any, done: Done) -> None:
        """Pass a job's end on, and start the next."""
        self.free_threads += 1
        try:
            done(finished.value, finished.exception)
        finally:
            self.start_some()
