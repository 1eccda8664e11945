"""Sockets, timers and threads of one producer or consumer: carries bytes between sockets and connection cores.

A selector with many users is driven by one thread at a time, the driver. A thread that waits for an answer or a message
becomes the driver itself, because a hand-over to another thread and back costs more than the exchange with the broker.
Other threads that wait sleep until the driver has their result or leaves the role to one of them.

If all threads of the user are busy elsewhere, the stand-in drives: a thread of the engine that answers heartbeats,
touches messages, and reconnects. It takes the role after LINGER_S without a driver and gives it back at once if a
user's thread wants it. In an asyncio program the event loop drives, through the selector's own descriptor; the
stand-in only looks whether the loop is stuck.

Invariants, all under `lock`:
1. At most one thread is the driver (`_driver` is its identity).
2. Handlers and timers are called with the lock held. They never wait.
3. The lock is released while the driver sleeps in the selector, and only there.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from pyqd.client.core.connection import ConnectionCore, Event
from pyqd.client.errors import ClientError, NotConnectedError, UnansweredError
from pyqd.primitives.addresses import Address, UnixAddress

LINGER_S: Final = 0.05
# An asyncio loop that has not driven for this long is taken to be stuck in a handler.
STUCK_S: Final = 0.25
RECEIVE_BYTES: Final = 1 << 18
# Commands that wait for the driver; more are sent by the thread that queues them.
FLUSH_COUNT: Final = 128
# Reads from a connection that has failed; more than the answers to a pipeline fit.
LAST_READS: Final = 16
# Pause of the stand-in after an internal error, so that it does not repeat the error in a busy loop.
ERROR_PAUSE_S: Final = 1.0

logger = logging.getLogger("pyqd.client")


class LinkHandler(Protocol):
    """Owner of links. All methods are called with the engine's lock held."""

    def link_events(self, link: Link, events: list[Event]) -> None: ...

    def link_lost(self, link: Link, error: Exception) -> None:
        """Called once for each link that fails or is closed by the broker. error: a ClientError."""


class Link:
    """Connection to one broker: a non-blocking socket and its core."""

    def __init__(
        self,
        engine: Engine,
        address: Address,
        core: ConnectionCore,
        handler: LinkHandler,
        local: tuple[str, int] | None = None,
    ) -> None:
        self.address = address
        self.broker = str(address)
        self.core = core
        self.heard_s = time.monotonic()
        self.is_open = True
        self.was_ready = False
        self._engine = engine
        self._handler = handler
        self._local = local
        self._socket: socket.socket | None = None
        self._targets: list[tuple[int, Any]] = []
        self._is_connecting = True
        self._unsent: bytes | memoryview = b""
        self._is_dirty = False

    def send_now(self, command: bytes) -> None:
        """Send a command without waiting for the driver."""
        self.core.send(command)
        self.flush()

    def send(self, command: bytes, *, soon: bool = False) -> None:
        """Queue a command. The driver sends it; without a driver the next one, or the stand-in when it takes over.

        soon: have the stand-in take over at once.
        """
        if self.core.send(command) >= FLUSH_COUNT:
            self.flush()
        elif not self._is_dirty:
            self._is_dirty = True
            self._engine.note_dirty(self, soon)

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it. Errors are handled as a loss of the link."""
        self._is_dirty = False
        # While the socket is full, ready() goes on; what is queued meanwhile stays in the core.
        if self._is_connecting or not self.is_open or self._unsent:
            return
        try:
            data = self.core.take_output()
            if data:
                self._transmit(data)
        except OSError as error:
            self._fail_after_reading(error)
        except ClientError as error:
            self.fail(error)

    def _transmit(self, data: bytes | memoryview) -> None:
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            if not self._unsent:
                self._engine.watch(self._socket, self, writes=True)
            self._unsent = memoryview(data)[sent:]
        elif self._unsent:
            self._unsent = b""
            self._engine.watch(self._socket, self, writes=False)

    def _continue_sending(self) -> None:
        try:
            self._transmit(self._unsent)
        except OSError as error:
            self._fail_after_reading(error)
            return
        self.flush()

    def _fail_after_reading(self, error: OSError) -> None:
        """Take in what the broker said before it closed the connection, such as why, and fail.

        A broker that refuses a large body does not read it: sending breaks before its error frame is read.
        """
        for _ in range(LAST_READS):
            try:
                data = self._socket.recv(RECEIVE_BYTES) if self._socket is not None else b""
            except OSError:
                break
            if not data:
                break
            self._take_in(data)
        self.fail(error)

    def open_socket(self, targets: list[tuple[int, Any]]) -> None:
        """Begin to connect to the first of the targets that takes a connection: family, and address of that family."""
        if not self.is_open:
            return
        self._targets = targets[1:]
        family, target = targets[0]
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            if family != socket.AF_UNIX:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._local is not None:
                    # A port that is given must be free again at once for the next connection.
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    self._socket.bind(self._local)
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(target)
            self._engine.watch(self._socket, self, writes=True, is_new=True)
        except OSError as error:
            self._connect_failed(error)

    def _connect_failed(self, error: OSError) -> None:
        if not self._targets:
            self.fail(error)
            return
        self._drop_socket()
        self.open_socket(self._targets)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._engine.unwatch(self._socket)
            self._socket.close()
            self._socket = None

    def ready(self, readable: bool, writable: bool) -> None:
        """Handle the readiness of the socket."""
        if self._is_connecting:
            self._finish_connect()
            return
        if writable and self._unsent:
            self._continue_sending()
        if readable and self.is_open:
            self._receive()

    def _finish_connect(self) -> None:
        assert self._socket is not None
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0 and self._is_own_socket():
            number = errno.ECONNREFUSED
        if number:
            self._connect_failed(ConnectionError(number, os.strerror(number)))
            return
        self._is_connecting = False
        self.heard_s = time.monotonic()
        self._engine.watch(self._socket, self, writes=False)
        self.flush()

    def _is_own_socket(self) -> bool:
        """Whether the connection has reached itself, as may happen on a port without a listener in the range of ports
        for clients.
        """
        assert self._socket is not None
        try:
            return self._socket.family != socket.AF_UNIX and self._socket.getsockname() == self._socket.getpeername()
        except OSError:
            return False

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(error)
            return
        if not data:
            self.fail(ConnectionResetError("the broker closed the connection"))
            return
        self.heard_s = time.monotonic()
        self._take_in(data)
        if not self._is_dirty:
            # NOPs and answers of the set-up are queued by the core itself.
            self.flush()

    def _take_in(self, data: bytes) -> None:
        """Handle received bytes."""
        try:
            events = self.core.receive(data)
        except ClientError as error:
            self.fail(error)
            return
        if events:
            self.was_ready = True
            self._handler.link_events(self, events)

    def fail(self, error: Exception) -> None:
        """Close the link and tell the handler, once."""
        if self.is_open:
            self.close()
            if not isinstance(error, ClientError):
                kind = NotConnectedError if not self.core.is_ready else UnansweredError
                text = f"{self.broker}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
                wrapped = kind(text)
                wrapped.__cause__ = error
                error = wrapped
            self._handler.link_lost(self, error)

    def close(self) -> None:
        """Close the socket; the handler is not told. What is queued is sent if the socket takes it."""
        if self.is_open:
            if self.core.is_ready:
                self._flush_last()
            self.is_open = False
            self._drop_socket()

    def disown(self) -> None:
        """In the child of a fork: close this process's copy of the socket, without a word to the broker."""
        self.is_open = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _flush_last(self) -> None:
        with contextlib.suppress(OSError, ClientError):
            assert self._socket is not None
            data = bytes(self._unsent) + self.core.take_output()
            if data:
                self._socket.send(data)


class Timer:
    """Callback at a time of the monotonic clock; cancel() makes it do nothing."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Awaited(Protocol):
    """Result that one thread may wait for."""

    waiter: Waiter | None


class Waiter:
    """Thread that sleeps until it is woken."""

    __slots__ = ("_lock", "is_woken")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_woken = False

    def wake(self) -> None:
        if not self.is_woken:
            self.is_woken = True
            self._lock.release()

    def sleep(self, timeout_s: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


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
        self._setup()
        ENGINES.add(self)

    def _setup(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_ids = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._outside: deque[Callable[[], None]] = deque()
        self._dirty: list[Link] = []
        self._driver = 0
        self._is_asleep = False
        self._waiters: deque[Waiter] = deque()
        self._left_s = time.monotonic()
        self._stand_in: threading.Thread | None = None
        # The stand-in's sleep: until the driver leaves, or for a while.
        self._resting: Waiter | None = None
        self._rests_until_left = False
        self._is_urgent = False
        self._loop_drives = False
        # Called by note_dirty() in an asyncio program: asks the loop for a run.
        self.on_dirty: Callable[[], None] | None = None

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
            self._resolve(link, address.host, address.port)
        self.ensure_stand_in()
        return link

    def _check_connected(self, link: Link, timeout_s: float) -> None:
        if link.is_open and not link.core.is_ready:
            link.fail(TimeoutError(f"no connection within {timeout_s:g} s"))

    def _resolve(self, link: Link, host: str, port: int) -> None:
        """Look the host up; names in a thread, because that may take seconds."""
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                socket.inet_pton(family, host)
                self.post(partial(link.open_socket, [(family, (host, port))]))
                return

        def look_up() -> Callable[[], None]:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                return partial(link.fail, OSError(f"cannot look up {host}: {error}"))
            return partial(link.open_socket, [(entry[0], entry[4]) for entry in found])

        self.run_aside(look_up, "lookup")

    def run_aside(self, work: Callable[[], Callable[[], None]], name: str) -> None:
        """Run work in a thread of its own, and the function that it returns in the driver, with the lock held."""

        def run() -> None:
            self.post(work())

        threading.Thread(target=run, name=f"{self.name}: {name}", daemon=True).start()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back in delay_s seconds, with the lock held."""
        timer = Timer(callback)
        due_s = time.monotonic() + delay_s
        is_first = not self._timers or due_s < self._timers[0][0]
        heapq.heappush(self._timers, (due_s, next(self._timer_ids), timer))
        if is_first and self._is_asleep:
            self._wake()
        if is_first and self.on_dirty is not None and not self.is_driven_here():
            self.on_dirty()
        return timer

    def post(self, callback: Callable[[], None]) -> None:
        """Have the driver call back with the lock held. Called from any thread, with the lock or without."""
        self._posted.append(callback)
        self._wake()
        self.ensure_stand_in()

    def note_dirty(self, link: Link, soon: bool) -> None:
        """Have the driver flush a link. soon: start the stand-in if there is no driver."""
        if not self._dirty or soon:
            if self._is_asleep:
                self._wake()
            elif self.on_dirty is not None:
                if not self.is_driven_here():
                    self.on_dirty()
            elif soon and self._driver == 0 and self._resting is not None:
                self._is_urgent = True
                self._resting.wake()
        self._dirty.append(link)

    def flush(self) -> None:
        """Send what all links have queued."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                link.flush()

    def watch(self, sock: socket.socket, link: Link, *, writes: bool, is_new: bool = False) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        (self._selector.register if is_new else self._selector.modify)(sock, events, link)

    def unwatch(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    # Driving. The caller holds the lock.

    def wait(
        self, is_done: Callable[[], object], deadline_s: float | None = None, result: Awaited | None = None
    ) -> bool:
        """Wait until is_done() is true; return False if the deadline (monotonic) came first. The caller holds the lock.

        The calling thread drives if no other one does. is_done is called with the lock held. result: gets the waiter
        that is woken for it; without one, wake_waiters() does.
        """
        try:
            while not is_done():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if self.is_closed or (left_s is not None and left_s <= 0):
                    return False
                # A callback of a future may wait in the thread that drives.
                if self._driver == 0 or self.is_driven_here():
                    self._drive(is_done, deadline_s)
                else:
                    self._sleep(left_s, result)
            return True
        finally:
            # This thread may have been woken for the role, and have its result already.
            if self._driver == 0:
                self._offer_role()

    def _drive(self, is_done: Callable[[], object], deadline_s: float | None) -> None:
        is_nested = self._driver != 0
        self._driver = threading.get_ident()
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
        self._driver = 0
        self._left_s = time.monotonic()
        if self.is_closed:
            self._release()
        self._offer_role()

    def _offer_role(self) -> None:
        """Wake a thread that waits, or the stand-in if there is none, to become the driver."""
        if self._waiters:
            self._waiters[0].wake()
        elif self._resting is not None and self._rests_until_left:
            self._resting.wake()

    def _sleep(self, timeout_s: float | None, result: Awaited | None) -> None:
        """Sleep until the driver wakes this thread, because of a result or of the role."""
        waiter = Waiter()
        self._waiters.append(waiter)
        if result is not None:
            result.waiter = waiter
        if self._driver == self._stand_in_ident():
            self._wake()
        self.lock.release()
        try:
            waiter.sleep(timeout_s)
        finally:
            self.lock.acquire()
            self._waiters.remove(waiter)

    def wake_waiters(self) -> None:
        """Have all threads that wait look at their condition again."""
        for waiter in self._waiters:
            waiter.wake()

    def step(self, timeout_s: float | None) -> None:
        """Flush, sleep until something happens or timeout_s is over, handle it. timeout_s 0: do not sleep."""
        self.flush()
        if self._posted or self._outside or (self._timers and timeout_s != 0):
            timeout_s = self._timeout(timeout_s)
        self._is_asleep = timeout_s is None or timeout_s > 0
        self.lock.release()
        try:
            ready = self._selector.select(timeout_s)
        finally:
            self.lock.acquire()
            self._is_asleep = False
        if self.is_closed:
            return
        for key, mask in ready:
            if key.data is None:
                self._drain_wakes()
            elif key.data.is_open:
                key.data.ready(bool(mask & selectors.EVENT_READ), bool(mask & selectors.EVENT_WRITE))
        while self._posted:
            self._posted.popleft()()
        if self._timers:
            self._run_timers()
        self.flush()
        if self._outside:
            self.lock.release()
            try:
                self.run_outside()
            finally:
                self.lock.acquire()

    def call_outside(self, callback: Callable[[], None]) -> None:
        """Call back soon without the lock: for a user's functions, which may call the client."""
        self._outside.append(callback)
        if self._is_asleep:
            self._wake()

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
                logger.exception("a callback failed")

    def _timeout(self, timeout_s: float | None) -> float | None:
        if self._posted or self._outside:
            return 0.0
        until_s = max(0.0, self._timers[0][0] - time.monotonic())
        return until_s if timeout_s is None else min(timeout_s, until_s)

    def _run_timers(self) -> None:
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"w")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_read.recv(4096)

    # The event loop of asyncio as the driver.

    def fileno(self) -> int:
        """Return the descriptor that is readable if step() has something to do; not with gevent's selectors."""
        descriptor: int = self._selector.fileno()
        return descriptor

    def let_loop_drive(self, on_dirty: Callable[[], None]) -> None:
        """The caller calls run_ready() from now on: if fileno() is readable, on_dirty was called, a timer is due."""
        self._loop_drives = True
        self.on_dirty = on_dirty

    def run_ready(self) -> float | None:
        """Do what is to do without sleeping; return the time of the next timer. Takes the lock itself."""
        with self.lock:
            if not self.is_closed and self._driver == 0:
                self._driver = threading.get_ident()
                try:
                    self.step(0.0)
                finally:
                    self._leave()
            return self._timers[0][0] if self._timers else None

    def is_driven_here(self) -> bool:
        """Whether the calling thread is the driver."""
        return self._driver == threading.get_ident()

    # The thread that stands in.

    def _stand_in_ident(self) -> int:
        return self._stand_in.ident or 0 if self._stand_in is not None else 0

    def ensure_stand_in(self) -> None:
        if self._stand_in is None and not self.is_closed:
            self._stand_in = threading.Thread(target=stand_in, args=(weakref.ref(self),), name=self.name, daemon=True)
            self._stand_in.start()

    def stand_in_once(self) -> tuple[Waiter, float | None] | None:
        """Drive for one step if no other thread does; otherwise return how to sleep."""
        with self.lock:
            self._resting = None
            if self.is_closed:
                return None
            idle_s = time.monotonic() - self._left_s
            if self._loop_drives:
                if self._driver == 0 and idle_s > STUCK_S:
                    self._step_as_stand_in(0.0)
                self._resting = Waiter()
                self._rests_until_left = False
                return self._resting, STUCK_S
            if self._driver == 0 and not self._waiters and (self._is_urgent or idle_s >= LINGER_S):
                self._is_urgent = False
                self._step_as_stand_in(None)
                return None
            self._resting = Waiter()
            # A thread that takes and leaves the role often must not wake the stand-in each time: after one such wake
            # it rests for a while.
            is_driven = self._driver != 0 or bool(self._waiters)
            self._rests_until_left = is_driven and not self._rests_until_left
            return self._resting, None if self._rests_until_left else LINGER_S

    def _step_as_stand_in(self, timeout_s: float | None) -> None:
        """Drive for one step, without noting it as a user's."""
        left_s = self._left_s
        self._driver = threading.get_ident()
        try:
            self.step(timeout_s)
        finally:
            self._leave()
            self._left_s = left_s

    # The end.

    def close(self) -> None:
        """End all waits; the owner has closed the links. The caller holds the lock. May be repeated."""
        if self.is_closed:
            return
        self.is_closed = True
        self._wake()
        self.wake_waiters()
        if self._resting is not None:
            self._resting.wake()

    def join(self) -> None:
        """Wait for the stand-in to end, and release the descriptors. The caller does not hold the lock."""
        thread = self._stand_in
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self.lock:
            # A thread that sleeps in a closed selector would sleep for ever: the last one that leaves closes it.
            if self._driver == 0:
                self._release()

    def _release(self) -> None:
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def abandon(self, close: Callable[[], None]) -> None:
        """Have the stand-in close everything. For the finalizer of an owner: takes no lock, does not wait."""
        if self._stand_in is None or not self._stand_in.is_alive():
            close()
            self._release()
        else:
            self._posted.append(close)
            self._wake()

    def after_fork(self) -> None:
        """In the child of a fork: begin with nothing. The parent's connections stay as they are."""
        self.lock = threading.Lock()
        if self.is_closed:
            return
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.disown()
        self._release()
        self._setup()
        owner = self.owner()
        if owner is not None:
            owner._after_fork()


def stand_in(reference: weakref.ref[Engine]) -> None:
    """Thread of an engine. It holds no reference while it sleeps, so that a forgotten producer ends it."""
    while True:
        engine = reference()
        if engine is None or engine.is_closed:
            return
        try:
            sleep = engine.stand_in_once()
        except Exception:
            logger.exception("%s: internal error", engine.name)
            sleep = Waiter(), ERROR_PAUSE_S
        del engine
        if sleep is not None:
            waiter, pause_s = sleep
            waiter.sleep(pause_s)


ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(ENGINES):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _close_all() -> None:
    """Close what the program has left open, before the interpreter stops the stand-ins."""
    for engine in iterate_engines():
        owner = engine.owner()
        if owner is not None:
            owner._at_exit()


atexit.register(_close_all)


def iterate_engines() -> Iterator[Engine]:
    """Yield the engines of this process that are not closed."""
    yield from (engine for engine in list(ENGINES) if not engine.is_closed)
