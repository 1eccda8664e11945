"""Runs blocking jobs in threads of its own, never waiting for a free one."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from pyqd.protocol.greenlets import Pool

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class Background:
    """A queue before a pool of threads that nobody else uses; a thread is made when the first job needs it.

    The pool's own `spawn` waits when all threads are busy, and nothing that runs in a turn of the loop may wait. Those
    of the hub's pool may all be taken by others, for whom waiting is right.
    """

    def __init__(self, hub: Any, thread_count: int) -> None:
        self.pool = Pool(thread_count, hub=hub)
        self.thread_count = thread_count
        self.free_threads = thread_count
        self.waiting: deque[tuple[Job, Done]] = deque()
        self.stopped = False

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
            # The pool gives a slot back before it tells a job's end: where a thread is free here, one is there.
            self.pool.spawn(job).rawlink(partial(self.finish, done))

    def finish(self, done: Done, finished: Any) -> None:
        """Pass a job's end on, and start the next."""
        self.free_threads += 1
        try:
            done(finished.value, finished.exception)
        finally:
            self.start_some()

    def stop(self) -> None:
        """Drop what waits, wait for what runs, end the threads. Switches: yes."""
        self.stopped = True
        self.waiting.clear()
        self.pool.kill()
