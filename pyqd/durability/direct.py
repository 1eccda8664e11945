"""Commits of the journal on their way to the disk and back: see pyx/diskqueue/writethread.pyx."""

import os
from collections.abc import Callable
from typing import Any

from pyqd.diskqueue.journal import Place
from pyqd.hot.diskqueue.writethread import WriteThread
from pyqd.primitives.errors import storage_error

READ_EVENT = 1
NOT_YET = -1

Done = Callable[[Any, BaseException | None], None]


def stay_awake() -> None:
    """Keep the loop from waiting."""


class AfterPoll:
    """Calls functions when the loop has looked at its sockets once more and run what they are watched for.

    Not when the loop is idle: one that always finds a socket ready never is.
    """

    def __init__(self, hub: Any) -> None:
        self._before_poll = hub.loop.prepare()
        # While it is active, the loop looks at its sockets without waiting.
        self._awake = hub.loop.idle()
        self._functions: list[Callable[[], None]] = []
        self._polled = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function then, once."""
        self._functions.append(function)
        self._polled = False
        self._awake.start(stay_awake)
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
    """Has commits written by a thread that is there for nothing else, one at a time."""

    def __init__(self, hub: Any) -> None:
        self._thread = WriteThread()
        self._done: Done | None = None
        self._path = ""
        self._stopped = False
        self._watcher = hub.loop.io(self._thread.fileno, READ_EVENT)
        self._watcher.start(self._on_event)

    def write(self, place: Place, done: Done, in_thread: Callable[[], None]) -> None:
        """Begin to write a commit; done(None, error) is called on the loop. in_thread: does it some other way."""
        fd = place.file.fileno
        if fd < 0 or self._stopped:
            in_thread()
            return
        self._done, self._path = done, place.file.path
        self._thread.submit(fd, place.content, place.offset)

    def stop(self) -> None:
        """Wait for the write under way, and tell nobody of its end."""
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
