"""Role of the driver: the thread that has it, and the threads that wait for it or for a result."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol


class Waiter:
    """Thread that sleeps until it is woken. other: another one, which waits for the same result, and is woken too."""

    __slots__ = ("_lock", "is_woken", "other")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_woken = False
        self.other: Waiter | None = None

    def wake(self) -> None:
        waiter: Waiter | None = self
        while waiter is not None:
            if not waiter.is_woken:
                waiter.is_woken = True
                waiter._lock.release()
            waiter = waiter.other

    def sleep(self, timeout_s: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class Awaited(Protocol):
    """Result that threads may wait for. waiter: the last one of them."""

    waiter: Waiter | None


def forget(result: Awaited, waiter: Waiter) -> None:
    """Remove a waiter from those that wait for a result."""
    if result.waiter is waiter:
        result.waiter = waiter.other
        return
    other = result.waiter
    while other is not None:
        if other.other is waiter:
            other.other = waiter.other
            return
        other = other.other


class DriverRole:
    """Role of the driver of an engine. Methods are called with the engine's lock held.

    holder: identity of the thread that has the role; 0 without one. left_s: time at which the last one left it.
    """

    def __init__(self) -> None:
        self.holder = 0
        self.left_s = time.monotonic()
        self.waiters: deque[Waiter] = deque()

    @property
    def is_wanted(self) -> bool:
        """True if a thread has the role, or waits for it."""
        return self.holder != 0 or bool(self.waiters)

    def is_held_here(self) -> bool:
        """Return whether the calling thread has the role."""
        return self.holder == threading.get_ident()

    def take(self) -> None:
        self.holder = threading.get_ident()

    def sleep(self, lock: threading.Lock, timeout_s: float, result: Awaited | None) -> None:
        """Sleep, without the lock, until the role is offered to this thread or its result is there."""
        waiter = Waiter()
        self.waiters.append(waiter)
        if result is not None:
            waiter.other = result.waiter
            result.waiter = waiter
        lock.release()
        try:
            waiter.sleep(timeout_s)
        finally:
            lock.acquire()
            self.waiters.remove(waiter)
            if result is not None:
                # A thread that asks again and again, for a short time each, must not leave a waiter each time.
                forget(result, waiter)

    def wake_all(self) -> None:
        """Have all sleeping threads evaluate their conditions again."""
        for waiter in self.waiters:
            waiter.wake()
