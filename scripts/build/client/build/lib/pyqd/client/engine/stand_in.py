"""Stand-in: the thread of an engine that drives if all threads of the user are busy elsewhere.

It takes the role after LINGER_S without a driver, and gives it back at once if a user's thread wants it. If an event
loop drives, it only looks whether the loop is stuck.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Final, Protocol

from pyqd.client.engine.role import DriverRole, Waiter

LINGER_S: Final = 0.05
# A thread that submits messages is likely to wait for them soon, and drives then. Two threads that run at a time would
# spend more time on waiting for each other than on their work. The time is the interpreter's own between two switches.
GRACE_S: Final = 0.005
# An asyncio loop that has not driven for this long is taken to be stuck in a handler.
STUCK_S: Final = 0.25
# Pause after an internal error, so that it is not repeated in a busy loop.
ERROR_PAUSE_S: Final = 1.0
# In the reason for which Python starts no thread when the interpreter ends. A program that publishes then waits itself.
SHUTDOWN: Final = "shutdown"

logger = logging.getLogger("pyqd.client")


class Driven(Protocol):
    """Engine, as its stand-in sees it."""

    name: str
    lock: threading.Lock
    is_closed: bool
    is_driven_by_loop: bool
    role: DriverRole
    stand_in: StandIn

    @property
    def has_unsent(self) -> bool: ...

    def step_as_stand_in(self, timeout_s: float | None) -> None: ...

    def log(self, level: int, text: str, *arguments: object) -> None: ...


class StandIn:
    """Thread that stands in, and its sleep between. Methods are called with the engine's lock held.

    rests_until_left: the driver that leaves wakes it, unless it leaves the role to another thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._resting: Waiter | None = None
        self.rests_until_left = False
        self._has_waited = False

    def start(self, engine: Driven) -> None:
        """Start the thread, once. Called with the lock or without.

        Without a thread, as at the limit of threads of a container, the next call tries again. Threads of the user that
        wait drive meanwhile.
        """
        if self._thread is not None:
            return
        self._thread = thread = threading.Thread(target=run, args=(weakref.ref(engine),), name=engine.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._thread = None
            if SHUTDOWN not in str(error):
                text = "%s: %s; heartbeats are answered only while the program waits for a broker"
                engine.log(logging.WARNING, text, engine.name, error)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def is_driving(self, role: DriverRole) -> bool:
        """Return whether the stand-in has the role."""
        return self._thread is not None and role.holder == self._thread.ident

    def hurry(self) -> None:
        """Check soon for commands that wait to be sent: see GRACE_S."""
        if self._resting is not None and not self._has_waited:
            self._resting.wake()

    def wake(self) -> None:
        """End its sleep."""
        if self._resting is not None:
            self._resting.wake()

    def join(self) -> None:
        """Wait for the thread to end. The caller does not hold the lock."""
        thread = self._thread
        # Without an ident the thread was not started: a signal handler may have raised an error meanwhile.
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join()

    def look(self, engine: Driven) -> tuple[Waiter, float | None] | None:
        """Drive for one step if no other thread does; otherwise return how to sleep."""
        self._resting = None
        if engine.is_closed:
            return None
        role = engine.role
        idle_s = time.monotonic() - role.left_s
        if engine.is_driven_by_loop:
            if role.holder == 0 and idle_s > STUCK_S:
                engine.step_as_stand_in(0.0)
            self._resting = Waiter()
            self.rests_until_left = False
            return self._resting, STUCK_S
        is_free = not role.is_wanted
        if is_free and (self._has_waited or idle_s >= LINGER_S):
            self._has_waited = False
            engine.step_as_stand_in(None)
            return None
        self._resting = Waiter()
        self._has_waited = is_free and engine.has_unsent
        if self._has_waited:
            self.rests_until_left = False
            return self._resting, GRACE_S
        # A thread that takes and leaves the role often must not wake the stand-in each time: after one such wake it
        # rests for a while.
        self.rests_until_left = role.is_wanted and not self.rests_until_left
        return self._resting, None if self.rests_until_left else LINGER_S


def run(reference: weakref.ref[Driven]) -> None:
    """Thread of an engine. It holds no reference while it sleeps, so that a forgotten producer ends it."""
    while True:
        engine = reference()
        if engine is None or engine.is_closed:
            return
        try:
            with engine.lock:
                sleep = engine.stand_in.look(engine)
        except Exception:
            logger.exception("%s: internal error", engine.name)
            sleep = Waiter(), ERROR_PAUSE_S
        del engine
        if sleep is not None:
            waiter, pause_s = sleep
            waiter.sleep(pause_s)
