"""Future of a published message, for blocking code: a concurrent.futures.Future that costs little until it is used.

A lock and a condition for each message would cost more than the rest of its publication, and most futures are only
asked for their result. The state of the base class is therefore made by its first use: a callback, wait(),
as_completed().
"""

from __future__ import annotations

import concurrent.futures
import time
from concurrent.futures import Future
from typing import Any

from pyqd.client.engine.engine import Engine
from pyqd.client.errors import ClientError
from pyqd.client.outgoing import published_id
from pyqd.client.publishing import DONE, Publication


class PublishFuture(Future[str | None]):
    """Future of one publication. It cannot be cancelled, as its message may have been sent.

    A thread that asks for the result drives the engine, as publish() does.
    """

    _has_begun = False

    # Without a call of Future.__init__(), which __getattr__() makes up for.
    def __init__(self, engine: Engine, publication: Publication) -> None:
        self.engine = engine
        self.publication = publication

    def done(self) -> bool:
        """Return whether the broker has answered, or the publication has failed."""
        return self.publication.progress == DONE

    def running(self) -> bool:
        """Return whether the answer is not there yet."""
        return not self.done()

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def cancel(self) -> bool:
        """Return False: the message may have been sent."""
        return False

    def result(self, timeout: float | None = None) -> str | None:
        """Return the id; None if the broker returns no ids. Raises: as Producer.publish(); TimeoutError."""
        publication = self.publication
        if publication.progress != DONE:
            self._wait(timeout)
        if publication.error is not None:
            raise publication.error
        return published_id(publication.answer)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Return the error of the publication; None if there is none. Raises: TimeoutError."""
        try:
            self._wait(timeout)
            self.result()
        except ClientError as error:
            return error
        return None

    def _wait(self, timeout_s: float | None) -> None:
        publication, engine = self.publication, self.engine
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with engine.lock:
            if not engine.wait(publication.is_done, deadline_s, publication):
                raise concurrent.futures.TimeoutError

    def __getattr__(self, name: str) -> Any:
        """Make the state of the base class, whose methods and functions have found it missing."""
        if self._has_begun:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self.engine.lock:
            is_first = not self._has_begun
            is_done = self.done()
            if is_first:
                super().__init__()
                self._has_begun = True
                if not is_done:
                    self.publication.on_done = self._settle_outside
        # Without the lock: wait() of another thread may have the condition already, and need the lock for the next one
        # of its futures.
        if is_first and is_done:
            self._settle()
        return getattr(self, name)

    def _settle_outside(self, _: Publication) -> None:
        # Callbacks may use the producer, whose lock is held here.
        self.engine.call_outside(self._settle)

    def _settle(self) -> None:
        """Give the base class the result, so that it calls the callbacks and wakes its own waiters."""
        try:
            self.set_result(self.result())
        except ClientError as error:
            self.set_exception(error)
