"""Commits of the journal written without a thread, where the system can: see pyx/aio.pyx."""

import errno
import logging
import os
from collections.abc import Callable
from typing import Any

from pyqd.diskqueue.journal import Place
from pyqd.hot.aio import AsyncWriter
from pyqd.primitives.errors import storage_error

READ_EVENT = 1
NOT_YET = -1

Done = Callable[[Any, BaseException | None], None]


def nothing() -> None:
    """There is no write under way."""


logger = logging.getLogger(__name__)


class AfterPoll:
    """Calls functions when the loop has looked at its sockets and run what they are watched for."""

    def __init__(self, hub: Any) -> None:
        self._watcher = hub.loop.idle()
        self._functions: list[Callable[[], None]] = []

    def call(self, function: Callable[[], None]) -> None:
        """Call a function then, once."""
        self._functions.append(function)
        self._watcher.start(self._run)

    def _run(self) -> None:
        self._watcher.stop()
        functions, self._functions = self._functions, []
        for function in functions:
            function()


class DirectWriter:
    """Writes one commit at a time on the hub's loop."""

    def __init__(self, hub: Any) -> None:
        self._writer: AsyncWriter | None = None
        self._done: Done | None = None
        self._in_thread: Callable[[], None] = nothing
        self._path = ""
        try:
            self._writer = AsyncWriter()
        except OSError as error:
            logger.info("DISKQUEUE: commits of the journal are written by a thread - %s", error.strerror)
            return
        self._watcher = hub.loop.io(self._writer.fileno, READ_EVENT)
        self._watcher.start(self._on_event)

    def write(self, place: Place, done: Done, in_thread: Callable[[], None]) -> None:
        """Start to write a commit; done(None, error) is called on the loop. in_thread: does the same by a thread."""
        fd = place.file.direct_fd
        if self._writer is None or fd < 0 or not self._writer.submit(fd, place.content, place.offset):
            in_thread()
            return
        self._done, self._in_thread, self._path = done, in_thread, place.file.path

    def stop(self) -> None:
        """Wait for the write under way, and tell nobody of its end."""
        if self._writer is not None:
            self._watcher.stop()
            self._watcher.close()
            self._writer.close()
            self._writer = self._done = None

    def _on_event(self) -> None:
        assert self._writer is not None
        failed = self._writer.collect()
        if failed == NOT_YET or self._done is None:
            return
        done, self._done = self._done, None
        if failed == errno.EAGAIN:
            # Somewhere on its way to the disk it would have had to wait.
            self._in_thread()
            return
        error = storage_error("write", self._path, OSError(failed, os.strerror(failed))) if failed else None
        done(None, error)
