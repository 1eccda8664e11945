"""Event loop of an asyncio program as the driver of an engine, and tasks that wait for a condition.

On a system whose selector has no descriptor, the stand-in drives, and the loop gets results from its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from pyqd.client.engine.engine import Engine
from pyqd.client.errors import SettingError

NO_LOOP = "no event loop runs: use it in a coroutine that asyncio.run() runs, or use the blocking one of pyqd.client"


class AsyncioDriver:
    """Lets an event loop drive an engine. An engine belongs to the loop that runs when it is first used."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._is_scheduled = False
        self._is_detached = False
        # Readable if the engine has work; None if the stand-in drives, on a system whose selector has none.
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Time of _timer; infinite without one.
        self._timer_s = float("inf")
        self._watchers: list[asyncio.Future[None]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises: SettingError without one, and if the engine belongs to another one."""
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                raise SettingError(NO_LOOP) from None
            self._thread = threading.get_ident()
            self._descriptor = self._engine.poller.fileno()
            if self._descriptor is not None:
                self._engine.let_loop_drive(self._schedule)
                self._loop.add_reader(self._descriptor, self._run_ready, True)
        loop = self._loop
        if threading.get_ident() != self._thread or loop.is_closed():
            raise SettingError("a producer or consumer belongs to the event loop in which it was first used")
        return loop

    def detach(self) -> None:
        """Drive no more. May be repeated."""
        if self._is_detached:
            return
        self._is_detached = True
        if self._descriptor is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        """Have the loop run the engine soon. Called from any thread."""
        if self._is_scheduled or self._loop is None:
            return
        self._is_scheduled = True
        if threading.get_ident() == self._thread and not self._loop.is_closed():
            self._loop.call_soon(self._run)
        else:
            self._call_threadsafe(self._run)

    def _call_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(callback, *args)

    def _run(self) -> None:
        self._is_scheduled = False
        self._run_ready(False)

    def _run_ready(self, is_readable: bool) -> None:
        if not self._engine.is_closed:
            timer_s = self._engine.run_ready(is_readable=is_readable)
            if timer_s < self._timer_s:
                self._arm(timer_s)

    def _arm(self, timer_s: float) -> None:
        """Have the loop run the engine at a time. An earlier timer stays: when it has run, the next one is set."""
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = timer_s
        self._timer = self._loop.call_later(max(0.0, timer_s - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        self._run()

    def call_in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back in the loop's thread: now, if this is the loop's thread. A closed loop has no more futures."""
        if self._loop is None or self._loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            callback(*args)
        else:
            self._call_threadsafe(callback, *args)

    def wake_watchers(self) -> None:
        """Have until() evaluate its condition again. Called in the loop's thread."""
        if not self._watchers:
            return
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def until(self, is_true: Callable[[], object], deadline_s: float | None = None) -> bool:
        """Wait until a condition is true, which wake_watchers() has evaluated; return False after the deadline."""
        loop = self.loop
        timer = None
        if deadline_s is not None:
            timer = loop.call_later(max(0.0, deadline_s - time.monotonic()), self.wake_watchers)
        try:
            while not is_true():
                if deadline_s is not None and time.monotonic() >= deadline_s:
                    return False
                watcher: asyncio.Future[None] = loop.create_future()
                self._watchers.append(watcher)
                try:
                    await watcher
                finally:
                    # Otherwise calls that are cancelled, as by asyncio.wait_for(), would pile up while nothing happens.
                    if watcher.cancelled():
                        with contextlib.suppress(ValueError):
                            self._watchers.remove(watcher)
            return True
        finally:
            if timer is not None:
                timer.cancel()
