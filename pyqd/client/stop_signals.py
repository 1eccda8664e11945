"""SIGTERM and SIGINT for consumers whose run() is under way: the first one stops them all, a second one acts as before.

A program may run several consumers: tasks of one event loop, or threads. Python has one handler for each signal, so
that the consumers share it. The child of a fork inherits the handler, but runs no consumer: there the signals act as
before run(), so that terminate() of multiprocessing ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("pyqd.client")


class StopSignals:
    """Handler of the signals, as long as the main thread runs a consumer. Other threads cannot install one."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []
        self._former: dict[signal.Signals, Any] = {}
        self._main_count = 0
        self._has_come = False
        # Of threads that fork, by their identities.
        self._masks: dict[int, set[int | signal.Signals]] = {}

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call a function at the first signal, in the main thread between any two of its instructions."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._enter()
        stops = self._stops
        stops.append(stop)
        if self._has_come:
            stop()
        try:
            yield
        finally:
            stops.remove(stop)
            # The block may end in the child of a fork, which has a new list.
            if is_main and stops is self._stops:
                self._leave()

    def _enter(self) -> None:
        self._main_count += 1
        if self._main_count == 1:
            self._former = {number: signal.getsignal(number) for number in SIGNALS}
            for number in SIGNALS:
                signal.signal(number, self._stop_all)

    def _leave(self) -> None:
        self._main_count -= 1
        if self._main_count == 0:
            self._has_come = False
            self._restore()

    def _restore(self) -> None:
        for number, former in self._former.items():
            # The program may have its own handler by now.
            if signal.getsignal(number) == self._stop_all:
                # None: a handler that was not installed from Python, and cannot be from there.
                signal.signal(number, signal.SIG_DFL if former is None else former)

    def before_fork(self) -> None:
        """Hold the signals back in the thread that forks: Python drops one that the child gets before after_fork()."""
        if self._main_count:
            self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def after_fork(self) -> None:
        """Let the signals through again, in the parent or child of a fork."""
        mask = self._masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def after_fork_in_child(self) -> None:
        """Begin without consumers."""
        self._restore()
        self._stops = []
        self._main_count = 0
        self._has_come = False
        self.after_fork()

    def _stop_all(self, number: int, _frame: FrameType | None) -> None:
        logger.info("%s: draining", signal.Signals(number).name)
        self._has_come = True
        self._restore()
        for stop in list(self._stops):
            stop()


STOP_SIGNALS: Final = StopSignals()
# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=STOP_SIGNALS.before_fork,
        after_in_parent=STOP_SIGNALS.after_fork,
        after_in_child=STOP_SIGNALS.after_fork_in_child,
    )
