"""Journal commits on a dedicated thread, and callbacks after the next poll: see pyx/diskqueue/writethread.pyx."""

import os
from collections.abc import Callable
from typing import Any

from pyqd.diskqueue.journal import CommitPlace
from pyqd.diskqueue.segment_jobs import Done
from pyqd.hot.diskqueue.writethread import WriteThread
from pyqd.net.slice_queue import READ_EVENT
from pyqd.primitives.errors import storage_error

NOT_YET = -1


def do_nothing() -> None:
    """Do nothing; an active idle watcher keeps the loop from waiting."""


class AfterPoll:
    """Callbacks that run after the loop has polled its sockets once more and run the watchers of those that are ready.

    The loop's idle state is no substitute: a loop that always finds a socket ready is never idle.
    """

    def __init__(self, hub: Any) -> None:
        self._before_poll = hub.loop.prepare()
        # While this watcher is active, the loop polls its sockets without waiting.
        self._awake = hub.loop.idle()
        self._functions: list[Callable[[], None]] = []
        self._polled = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function once after the next poll."""
        self._functions.append(function)
        self._polled = False
        self._awake.start(do_nothing)
        self._before_poll.start(self._run)

    def _run(self) -> None:
        if not self._polled:
            self._polled = True
            return
        self._before_poll.stop()
        self._awake.stop()
        functions, self._functions = self._functions, []
        for function in functions:
            function()


class DirectWriter:
    """Writer of journal commits on a thread of its own, one commit at a time."""

    def __init__(self, hub: Any) -> None:
        self._thread = WriteThread()
        self._done: Done | None = None
        self._path = ""
        self._stopped = False
        self._watcher = hub.loop.io(self._thread.fileno, READ_EVENT)
        self._watcher.start(self._on_event)

    def write(self, place: CommitPlace, done: Done, in_thread: Callable[[], None]) -> None:
        """Begin to write a commit; done(None, error) is called on the loop. in_thread: writes the commit in another
        way.
        """
        fd = place.file.fileno
        if fd < 0 or self._stopped:
            in_thread()
            return
        assert self._done is None, "one commit at a time"
        self._done, self._path = done, place.file.path
        self._thread.submit(fd, place.content, place.offset)

    def stop(self) -> None:
        """Wait for the running write, and drop its report."""
        if self._stopped:
            return
        self._stopped = True
        self._watcher.stop()
        self._watcher.close()
        self._done = None
        self._thread.close()

    def _on_event(self) -> None:
        failed = self._thread.collect()
        if failed == NOT_YET or self._done is None:
            return
        done, self._done = self._done, None
        error = storage_error("write", self._path, OSError(failed, os.strerror(failed))) if failed else None
        done(None, error)
