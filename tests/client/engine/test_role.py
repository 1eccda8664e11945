"""Threads that wait for the role of the driver, or for a result."""

from __future__ import annotations

import threading
from itertools import pairwise

from pyqd.client.engine.role import DriverRole, Waiter

DEEPER_THAN_THE_STACK = 5000


class Result:
    """Result that threads wait for."""

    def __init__(self) -> None:
        self.waiter: Waiter | None = None


def count(result: Result) -> int:
    """Count the waiters of a result."""
    found, waiter = 0, result.waiter
    while waiter is not None:
        found, waiter = found + 1, waiter.other
    return found


def test_a_thread_that_asks_again_and_again_leaves_no_waiter() -> None:
    role, lock, result = DriverRole(), threading.Lock(), Result()
    with lock:
        for _ in range(100):
            role.sleep(lock, 0, result)
    assert (count(result), len(role.waiters)) == (0, 0)


def test_a_thread_that_ends_its_wait_leaves_the_waiters_of_others() -> None:
    role, lock, result = DriverRole(), threading.Lock(), Result()
    for others in ([], [Waiter()], [Waiter(), Waiter()]):
        for before, after in pairwise(others):
            before.other = after
        result.waiter = others[0] if others else None
        with lock:
            role.sleep(lock, 0, result)
        assert count(result) == len(others)


def test_a_waiter_below_another_is_taken_out() -> None:
    role, lock, result = DriverRole(), threading.Lock(), Result()
    later = Waiter()

    class Late:
        """Lock of the engine; while it is released, another thread begins to wait for the result."""

        def release(self) -> None:
            later.other, result.waiter = result.waiter, later
            lock.release()

        def acquire(self) -> None:
            lock.acquire()

    lock.acquire()
    role.sleep(Late(), 0, result)  # type: ignore[arg-type]
    assert (result.waiter, later.other) == (later, None)


def test_any_number_of_waiters_is_woken() -> None:
    waiters = [Waiter() for _ in range(DEEPER_THAN_THE_STACK)]
    for waiter, other in pairwise(waiters):
        waiter.other = other
    waiters[0].wake()
    assert all(waiter.is_woken for waiter in waiters)
