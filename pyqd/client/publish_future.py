"""Future of a published message's id, for blocking code: a concurrent.futures.Future that makes its lock when needed.

A lock and a condition for each message would cost more than the rest of its publication, and most futures are looked at
only after they are done, if at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any


class PublishFuture(Future[str | None]):
    """Future that cannot be cancelled, as its message may have been sent.

    The attributes are those of Future, whose other methods, wait() and as_completed() are used as they are. A thread
    that wants to wait makes the condition before it looks at the state, and _finish() sets the state before it looks
    for a condition: so one of the two sees the other.
    """

    def __init__(self) -> None:
        # As Future.__init__(), without a condition.
        self._state = RUNNING
        self._result: str | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[str | None]], Any]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override] # an attribute there
        made: threading.Condition | None = self.__dict__.get("_made")
        if made is None:
            # Atomic: two threads get the same one.
            made = self.__dict__.setdefault("_made", threading.Condition())
        return made

    def done(self) -> bool:
        """Return whether the broker has answered, or the publication has failed."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> str | None:
        """Return the id; None if the broker returns no ids. Raises: as Producer.publish(); TimeoutError."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def set_result(self, result: str | None) -> None:
        """Set the id. Called once, by the producer."""
        self._result = result
        self._finish()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error. Called once, by the producer."""
        self._exception = exception
        self._finish()

    def _finish(self) -> None:
        self._state = FINISHED
        if "_made" not in self.__dict__:
            return
        with self._condition:
            for waiter in self._waiters:
                if self._exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined] # not in the stubs
