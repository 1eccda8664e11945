"""Engine of one producer or consumer: has links, timers and callbacks, and one thread at a time that drives them.

A selector with many users is driven by one thread at a time, the driver. A thread that waits for an answer or a message
becomes the driver itself, because a hand-over to another thread and back costs more than the exchange with the broker.
Other threads that wait sleep until the driver has their result or leaves the role to one of them.

If all threads of the user are busy elsewhere, the stand-in drives: a thread of the engine that answers heartbeats,
touches messages, and reconnects. In an asyncio program the event loop drives, through the selector's own descriptor.

Invariants, all under `lock`:
1. At most one thread is the driver (`role.holder` is its identity).
2. Handlers and timers are called with the lock held. They never wait.
3. The lock is released while the driver sleeps in the selector, and only there.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from pyqd.client.core.connection import ConnectionCore
from pyqd.client.engine.link import Link, LinkHandler
from pyqd.client.engine.poller import SocketPoller
from pyqd.client.engine.role import Awaited, DriverRole
from pyqd.client.engine.stand_in import StandIn
from pyqd.client.engine.timers import Timer, Timers
from pyqd.primitives.addresses import Address, UnixAddress

# The interpreter may miss a signal that comes just before a thread falls asleep; its handler runs after this time.
SLEEP_S_MAX: Final = 5.0

logger = logging.getLogger("pyqd.client")


class Owner(Protocol):
    """Producer or consumer that an engine belongs to."""

    def _after_fork(self) -> None:
        """Begin without connections, in the child of a fork."""

    def _at_exit(self) -> None:
        """Close, because the interpreter ends."""


class Engine:
    """Driver of the links and timers of one producer or consumer, its owner. name: of its thread."""

    def __init__(self, name: str, owner: Owner) -> None:
        self.lock = threading.Lock()
        self.name = name
        self.is_closed = False
        # Weak, so that an owner without users is collected, which ends the thread.
        self.owner = weakref.ref(owner)
        self._set_up()
        ENGINES.add(self)

    def _set_up(self) -> None:
        self.role = DriverRole()
        self.stand_in = StandIn()
        self.is_driven_by_loop = False
        # Called in an asyncio program: asks the loop for a run.
        self._ask_loop: Callable[[], None] | None = None
        self.poller = SocketPoller()
        self._timers = Timers()
        self._posted: deque[Callable[[], None]] = deque()
        self._outside: deque[Callable[[], None]] = deque()
        self._dirty: list[Link] = []
        self._is_asleep = False

    # Links and timers. The caller holds the lock.

    def connect(
        self,
        address: Address,
        core: ConnectionCore,
        handler: LinkHandler,
        timeout_s: float,
        local: tuple[str, int] | None = None,
    ) -> Link:
        """Return a link that connects. handler.link_lost() is called if that takes longer than timeout_s.

        local: host and port of this machine to connect from.
        """
        link = Link(self, address, core, handler, local)
        self.call_later(timeout_s, lambda: self._check_connected(link, timeout_s))
        if isinstance(address, UnixAddress):
            # Via post(): the caller does not have the link yet when an error is reported.
            self.post(partial(link.open_socket, [(socket.AF_UNIX, address.path)]))
        else:
            self._resolve(link, address.host, address.port, timeout_s)
        self.ensure_stand_in()
        return link

    def _check_connected(self, link: Link, timeout_s: float) -> None:
        if link.is_open and not link.core.is_ready:
            link.fail(TimeoutError(f"no connection within {timeout_s:g} s"))

    def _resolve(self, link: Link, host: str, port: int, timeout_s: float) -> None:
        """Look the host up; names in a thread, because that may take seconds."""
        for family in (socket.AF_INET, socket.AF_INET6):
            # ValueError: a text with NUL, or one that cannot be encoded.
            with contextlib.suppress(OSError, ValueError):
                socket.inet_pton(family, host)
                self.post(partial(link.open_socket, [(family, (host, port))]))
                return

        def look_up() -> Callable[[], None]:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:
                return partial(link.fail, OSError(f"cannot look up {host}: {error}"))
            targets: list[tuple[int, Any]] = [(entry[0], entry[4]) for entry in found]
            return partial(link.open_socket, targets, timeout_s / (len(targets) + 1))

        self.run_aside(look_up, "lookup")

    def run_aside(self, work: Callable[[], Callable[[], None]], name: str) -> None:
        """Run work in a thread of its own, and the function that it returns in the driver, with the lock held."""

        def run() -> None:
            self.post(work())

        try:
            threading.Thread(target=run, name=f"{self.name}: {name}", daemon=True).start()
        except RuntimeError:
            # There is no other thread, at a container's limit or because the interpreter ends: the driver waits.
            self.post(lambda: work()())

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back in delay_s seconds, with the lock held."""
        former_s = self._timers.next_s
        timer = self._timers.add(delay_s, callback)
        if self._timers.next_s < former_s:
            if self._is_asleep:
                self.poller.wake()
            if self._ask_loop is not None and not self.role.is_held_here():
                self._ask_loop()
        return timer

    def post(self, callback: Callable[[], None]) -> None:
        """Have the driver call back with the lock held. Called from any thread, with the lock or without."""
        self._posted.append(callback)
        self.poller.wake()
        self.ensure_stand_in()

    def call_outside(self, callback: Callable[[], None]) -> None:
        """Call back soon without the lock: for a user's functions, which may call the client."""
        self._outside.append(callback)
        if self._is_asleep:
            self.poller.wake()
        elif self._ask_loop is not None and not self.role.is_held_here():
            self._ask_loop()

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Log a line soon, without the lock: a handler of `logging` may publish the line by this very producer."""
        if logger.isEnabledFor(level):
            self.call_outside(partial(logger.log, level, text, *arguments))

    def note_dirty(self, link: Link, soon: bool) -> None:
        """Have the driver flush a link. soon: start the stand-in if there is no driver."""
        if not self._dirty or soon:
            if self._is_asleep:
                self.poller.wake()
            elif self._ask_loop is not None:
                if not self.role.is_held_here():
                    self._ask_loop()
            elif soon and self.role.holder == 0:
                self.stand_in.hurry()
        self._dirty.append(link)

    @property
    def has_unsent(self) -> bool:
        """True if commands wait for the driver to send them."""
        return bool(self._dirty)

    def flush(self) -> None:
        """Send the queued bytes of all links."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                link.flush()

    # Driving. The caller holds the lock.

    def receive_from(self, link: Link) -> None:
        """Drive by waiting for bytes of one link, for a short time, if nothing else is to do and no thread drives.

        Without the selector an exchange with a broker takes a third less CPU time.
        """
        role = self.role
        if role.holder or not link.can_wait or self._posted or self._dirty or self._outside:
            return
        role.holder = threading.get_ident()
        try:
            link.receive_waiting(self.lock)
            if self._posted or self._dirty or self._outside or self._timers.next_s <= link.heard_s:
                self._do_duties()
        finally:
            self._leave()

    def wait(
        self, is_done: Callable[[], object], deadline_s: float | None = None, result: Awaited | None = None
    ) -> bool:
        """Wait until is_done() is true; return False if the deadline (monotonic) came first. The caller holds the lock.

        The calling thread drives if no other one does. is_done is called with the lock held. result: gets the waiter
        that is woken for it; without one, wake_waiters() does.
        """
        role = self.role
        try:
            while not is_done():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if self.is_closed or (left_s is not None and left_s <= 0):
                    return False
                # A callback of a future may wait in the thread that drives.
                if role.holder == 0 or role.is_held_here():
                    self._drive(is_done, deadline_s)
                else:
                    if self.stand_in.is_driving(role):
                        self.poller.wake()
                    role.sleep(self.lock, SLEEP_S_MAX if left_s is None else min(left_s, SLEEP_S_MAX), result)
            return True
        finally:
            # This thread may have been woken for the role, and have its result already.
            if role.holder == 0:
                self._offer_role()

    def _drive(self, is_done: Callable[[], object], deadline_s: float | None) -> None:
        is_nested = self.role.holder != 0
        self.role.take()
        try:
            while not is_done() and not self.is_closed:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self.step(left_s)
        finally:
            if not is_nested:
                self._leave()

    def _leave(self) -> None:
        """Give up the role of the driver, to a thread that waits if there is one."""
        role = self.role
        role.holder = 0
        role.left_s = time.monotonic()
        if self.is_closed:
            self.poller.release()
        if role.waiters or self.stand_in.rests_until_left:
            self._offer_role()

    def _offer_role(self) -> None:
        """Wake a thread that waits, or the stand-in if there is none, to become the driver."""
        if self.role.waiters:
            self.role.waiters[0].wake()
        elif self.stand_in.rests_until_left:
            self.stand_in.wake()

    def wake_waiters(self) -> None:
        """Have all waiting threads evaluate their conditions again."""
        for waiter in self.role.waiters:
            waiter.wake()

    def step(self, timeout_s: float | None) -> None:
        """Flush, sleep until something happens or timeout_s is over, handle it. timeout_s 0: do not sleep."""
        self.flush()
        if timeout_s != 0:
            timeout_s = self._sleep_s(timeout_s)
        if timeout_s is None or timeout_s > SLEEP_S_MAX:
            timeout_s = SLEEP_S_MAX
        self._is_asleep = timeout_s > 0
        self.lock.release()
        try:
            ready = self.poller.select(timeout_s)
        finally:
            self.lock.acquire()
            self._is_asleep = False
        if not self.is_closed:
            self.poller.handle(ready)
        self._do_duties()

    def _do_duties(self) -> None:
        """Do the work that no socket announces: timers, callbacks, links to flush."""
        if self.is_closed:
            return
        while self._posted:
            self._posted.popleft()()
        self._timers.run()
        self.flush()
        if self._outside:
            self.lock.release()
            try:
                self.run_outside()
            finally:
                self.lock.acquire()

    def _sleep_s(self, timeout_s: float | None) -> float | None:
        """Return the time to sleep: until the next timer, at most timeout_s."""
        if self._posted or self._outside:
            return 0.0
        if self._timers.next_s == float("inf"):
            return timeout_s
        until_s = max(0.0, self._timers.next_s - time.monotonic())
        return until_s if timeout_s is None else min(timeout_s, until_s)

    def run_outside(self) -> None:
        """Run the callbacks of call_outside(). The caller does not hold the lock."""
        while True:
            try:
                callback = self._outside.popleft()
            except IndexError:
                return
            try:
                callback()
            except Exception:
                logger.exception("%s: internal error in a callback", self.name)

    def ensure_stand_in(self) -> None:
        """Start the thread that stands in, once."""
        if not self.is_closed:
            self.stand_in.start(self)

    def step_as_stand_in(self, timeout_s: float | None) -> None:
        """Drive for one step. role.left_s, the last time at which a thread of the user drove, stays as it is."""
        left_s = self.role.left_s
        self.role.take()
        try:
            self.step(timeout_s)
        finally:
            self._leave()
            self.role.left_s = left_s

    # The event loop of asyncio as the driver.

    def let_loop_drive(self, ask: Callable[[], None]) -> None:
        """The caller calls run_ready() from now on: if the poller is readable, `ask` was called, a timer is due."""
        self.is_driven_by_loop = True
        self._ask_loop = ask

    def run_ready(self, *, is_readable: bool) -> float:
        """Handle everything that is ready without sleeping; return the time of the next timer. Takes the lock itself.

        is_readable: whether the poller's descriptor is readable.
        """
        with self.lock:
            role = self.role
            if not self.is_closed and role.holder == 0:
                role.holder = threading.get_ident()
                try:
                    # The selector need not say which link has bytes if there is only one.
                    link = self.poller.only_link
                    if not is_readable:
                        self._do_duties()
                    elif link is None or not link.receive():
                        self.step(0.0)
                    elif self._posted or self._dirty or self._outside or self._timers.next_s <= link.heard_s:
                        self._do_duties()
                finally:
                    self._leave()
            return self._timers.next_s

    # The end.

    def close(self) -> None:
        """End all waits; the owner has closed the links. The caller holds the lock. May be repeated."""
        if self.is_closed:
            return
        self.is_closed = True
        self.poller.wake()
        self.wake_waiters()
        self.stand_in.wake()

    def join(self) -> None:
        """Wait for the stand-in to end, and release the descriptors. The caller does not hold the lock."""
        self.stand_in.join()
        with self.lock:
            # A thread that sleeps in a closed selector would sleep for ever: the last one that leaves closes it.
            if self.role.holder == 0:
                self.poller.release()

    def abandon(self, close: Callable[[], None]) -> None:
        """Have the stand-in close everything. For the finalizer of an owner: takes no lock, does not wait."""
        if self.stand_in.is_alive():
            self._posted.append(close)
            self.poller.wake()
        else:
            close()
            self.run_outside()
            self.poller.release()

    def after_fork(self) -> None:
        """In the child of a fork: begin with nothing. The parent's connections stay as they are."""
        self.lock = threading.Lock()
        if self.is_closed:
            return
        self.poller.disown()
        self._set_up()
        owner = self.owner()
        if owner is not None:
            owner._after_fork()


ENGINES: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(ENGINES):
        engine.after_fork()


def _close_all() -> None:
    """Close the producers and consumers that the program has left open, before the interpreter stops the stand-ins."""
    for engine in list(ENGINES):
        owner = None if engine.is_closed else engine.owner()
        if owner is not None:
            owner._at_exit()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
