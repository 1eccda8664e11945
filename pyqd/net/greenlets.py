"""Greenlets whose native stacks end at their first frame, so that profilers do not mix them: `native_stack`."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import gevent
from gevent.threadpool import ThreadPool
from greenlet import greenlet

from pyqd.hot.net.native_stack import call_at_root

RESTART_S = 1.0
STARTED_WITHIN_S = 1.0

_R = TypeVar("_R")

logger = logging.getLogger(__name__)


def spawn(function: Callable[..., _R], *args: Any) -> "gevent.Greenlet[..., _R]":
    """Start a greenlet that runs function(*args), and return it."""
    return gevent.spawn(call_at_root, function, *args)


def spawn_service(
    name: str, function: Callable[[], None], on_failure: Callable[[BaseException], None] | None = None
) -> "gevent.Greenlet[..., None]":
    """Start a greenlet that runs function() until it is killed, and return it.

    If the function raises or returns, the failure is logged and on_failure is called with the error. After a
    MemoryError, or if on_failure is None, the function is run again after RESTART_S.
    """
    return spawn(_run_service, name, function, on_failure)


def _run_service(name: str, function: Callable[[], None], on_failure: Callable[[BaseException], None] | None) -> None:
    while True:
        error: BaseException
        try:
            function()
            error = RuntimeError("it returned")
        except Exception as failed:
            error = failed
        logger.critical("internal error: the %s ended - %s", name, error, exc_info=error)
        if on_failure is not None and not isinstance(error, MemoryError):
            on_failure(error)
            return
        gevent.sleep(RESTART_S)


def start_raw(hub: Any, function: Callable[[], object]) -> Any:
    """Start a plain greenlet, a child of the hub, that runs function() with the loop's next callbacks. Return the
    greenlet.
    """
    started = greenlet(call_at_root, hub)
    hub.loop.run_callback(started.switch, function)
    return started


class Worker(ThreadPool._WorkerGreenlet):  # type: ignore[misc, name-defined]
    """Greenlet that runs in a thread of the pool."""

    @property
    def run(self) -> Callable[[], None]:
        """Function of the greenlet."""
        return partial(call_at_root, _run_in_batch, super().run)


def _run_in_batch(run: Callable[[], None]) -> None:
    # A job that the loop has just handed over would otherwise take the loop's core at once, for 5 ms and more, if there
    # is no other. It keeps its share of the core: syncs must go on. See sched(7).
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    run()


class WorkerPool(ThreadPool):
    """gevent's thread pool with isolated native stacks, and threads that do not preempt the loop when they wake.

    If no more threads can be started, a job waits for a thread of the pool.
    """

    _WorkerGreenlet = Worker

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run func(*args, **kwargs) in a thread and return an AsyncResult. Switches: if all threads are busy.

        Raises: RuntimeError, MemoryError if the pool has no thread and none can be started; func is not run then.
        """
        # Before the job is in the queue: gevent leaves it there after an error, and the next thread would run it.
        if self.size == 0:
            self.size = 1
        return super().spawn(func, *args, **kwargs)

    def adjust(self) -> None:
        """Start threads for the queued jobs, as far as the system allows."""
        with contextlib.suppress(RuntimeError, MemoryError):
            super().adjust()


class PromptWorker(ThreadPool._WorkerGreenlet):  # type: ignore[misc, name-defined]
    """Greenlet that runs in a thread of a prompt pool."""

    @property
    def run(self) -> Callable[[], None]:
        """Function of the greenlet."""
        return partial(call_at_root, super().run)


class PromptPool(WorkerPool):
    """Pool whose threads preempt the loop when they wake: for short jobs that the loop soon needs the result of."""

    _WorkerGreenlet = PromptWorker


def start_threads(pool: ThreadPool, count: int) -> None:
    """Start threads of a pool before they are needed, and wait until they are free again. Switches: yes.

    A thread takes 72 MiB of addresses for stack and heap. One that cannot be started now may be started for a job.
    """
    barrier = threading.Barrier(count + 1)
    meetings = []
    with contextlib.suppress(threading.BrokenBarrierError, RuntimeError):
        for _ in range(count):
            meetings.append(pool.spawn(_meet, barrier))
        barrier.wait(STARTED_WITHIN_S)
    # The hub has to run once: the pool counts a thread as busy until then, and the next `spawn` would switch.
    gevent.wait(meetings, STARTED_WITHIN_S)


def _meet(barrier: threading.Barrier) -> None:
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(STARTED_WITHIN_S)


def isolate_native_stacks(hub: Any) -> None:
    """Isolate the native stacks of a hub and of its threads. hub: one that has not begun to run."""
    hub.run = partial(call_at_root, hub.run)
    hub.threadpool = WorkerPool(hub.threadpool_size, hub=hub)
