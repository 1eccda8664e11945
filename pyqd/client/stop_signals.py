"""SIGTERM and SIGINT for consumers whose run() is under way: the first one stops them all, a second one acts as before.

A program may run several consumers: tasks of one event loop, or threads. Python has one handler for each signal, so
that the consumers share it.
"""

from __future__ import annotations

import contextlib
import logging
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

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call a function at the first signal, in the main thread between any two of its instructions."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._enter()
        self._stops.append(stop)
        if self._has_come:
            stop()
        try:
            yield
        finally:
            self._stops.remove(stop)
            if is_main:
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

    def _stop_all(self, number: int, _frame: FrameType | None) -> None:
        logger.info("%s: draining", signal.Signals(number).name)
        self._has_come = True
        self._restore()
        for stop in list(self._stops):
            stop()


STOP_SIGNALS: Final = StopSignals()
