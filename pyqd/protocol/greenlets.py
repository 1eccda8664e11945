"""Greenlets whose native stack ends where they do, see `pyqd.hot.outermost`: what profilers need to tell them apart."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import gevent
from gevent.threadpool import ThreadPool
from greenlet import greenlet

from pyqd.hot.outermost import outermost

_R = TypeVar("_R")


def spawn(function: Callable[..., _R], *args: Any) -> "gevent.Greenlet[..., _R]":
    """Return a greenlet that is to run function(*args)."""
    return gevent.spawn(outermost, function, *args)


def start_raw(hub: Any, function: Callable[[], object]) -> Any:
    """Return a plain greenlet, a child of the hub, that runs function() from the loop's next callbacks on."""
    started = greenlet(outermost, hub)
    hub.loop.run_callback(started.switch, function)
    return started


class Worker(ThreadPool._WorkerGreenlet):  # type: ignore[misc, name-defined]
    """What runs in a thread of the pool."""

    @property
    def run(self) -> Callable[[], None]:
        """What the greenlet runs."""
        return partial(outermost, super().run)


class Pool(ThreadPool):
    """gevent's pool of threads."""

    _WorkerGreenlet = Worker


def end_stacks(hub: Any) -> None:
    """Let the stacks of a hub and of its threads end where they do. hub: one that has not begun to run."""
    hub.run = partial(outermost, hub.run)
    hub.threadpool = Pool(hub.threadpool_size, hub=hub)
