"""Connection to one broker: carries bytes between a socket and a connection core.

All methods are called with the engine's lock held. Only receive_waiting() waits, without the lock.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyqd.client.core.connection import ConnectionCore, Event
from pyqd.client.errors import ClientError, NotConnectedError, UnansweredError
from pyqd.primitives.addresses import Address, TcpAddress, reaches_itself

if TYPE_CHECKING:
    from pyqd.client.engine.engine import Engine

# glibc maps larger blocks of memory again each time, which costs more than to call recv() several times.
RECEIVE_BYTES: Final = 1 << 16
# Bytes of a receive_waiting(), which waits for few answers; the rest is received by the next call.
WAITED_BYTES: Final = 1 << 14
# Commands that wait for the driver; more are sent by the thread that queues them.
FLUSH_COUNT: Final = 128
# Reads from a connection that has failed; more than the answers to a pipeline fit.
LAST_READS: Final = 16
# Flag of send() and recv() that do not wait, though recv() may. On a system without it the socket is non-blocking.
DONT_WAIT: Final = getattr(socket, "MSG_DONTWAIT", 0)
# Longest wait in recv(). It ends neither for timers nor for other threads and links, which a broker's answer in time
# does not delay.
RECEIVE_S: Final = 0.005


class LinkHandler(Protocol):
    """Owner of links. All methods are called with the engine's lock held."""

    def link_events(self, link: Link, events: list[Event]) -> None: ...

    def link_lost(self, link: Link, error: Exception) -> None:
        """Called once for each link that fails or is closed by the broker. error: a ClientError."""


def let_wait(sock: socket.socket) -> bool:
    """Have recv() wait, RECEIVE_S at most; return whether the socket can do so.

    A socket of gevent stays non-blocking: its thread must not sleep in the kernel, as other greenlets would with it.
    """
    if not DONT_WAIT:
        return False
    sock.setblocking(True)
    if os.get_blocking(sock.fileno()):
        with contextlib.suppress(OSError):
            seconds, rest = divmod(RECEIVE_S, 1.0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), int(rest * 1e6)))
            return True
    sock.setblocking(False)
    return False


class Link:
    """Connection to one broker: a socket and its core. can_wait: whether receive_waiting() may be called."""

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
        self.can_wait = False
        self._engine = engine
        self._handler = handler
        self._local = local
        self._socket: socket.socket | None = None
        self._targets: list[tuple[int, Any]] = []
        self._each_s = math.inf
        self._is_connecting = True
        self._unsent: bytes | memoryview = b""
        self._is_dirty = False

    def send_now(self, command: bytes) -> None:
        """Send a command without waiting for the driver."""
        core = self.core
        if core.queued or not core.is_plain or self._unsent or not self.is_open:
            core.send(command)
            self.flush()
            return
        assert self._socket is not None
        try:
            sent = self._socket.send(command, DONT_WAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail_after_reading(error)
            return
        if sent < len(command):
            self._keep(memoryview(command)[sent:])

    def send(self, command: bytes, *, soon: bool = False) -> None:
        """Queue a command. The driver sends it; without a driver the next one, or the stand-in when it takes over.

        soon: have the stand-in take over at once.
        """
        queued = self.core.queued
        queued.append(command)
        if len(queued) >= FLUSH_COUNT:
            self.flush()
        elif not self._is_dirty:
            self._is_dirty = True
            self._engine.note_dirty(self, soon)

    def flush(self) -> None:
        """Send the queued bytes, as far as the socket takes them. Errors are handled as a loss of the link."""
        self._is_dirty = False
        # While the socket is full, ready() goes on; bytes queued meanwhile stay in the core.
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
            sent = self._socket.send(data, DONT_WAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._keep(memoryview(data)[sent:])
        elif self._unsent:
            self._unsent = b""
            self._engine.poller.watch(self._socket, self, writes=False)

    def _keep(self, unsent: memoryview) -> None:
        """Keep bytes until the socket takes them."""
        assert self._socket is not None
        if not self._unsent:
            self._engine.poller.watch(self._socket, self, writes=True)
        self._unsent = unsent

    def _continue_sending(self) -> None:
        try:
            self._transmit(self._unsent)
        except OSError as error:
            self._fail_after_reading(error)
            return
        self.flush()

    def _fail_after_reading(self, error: OSError) -> None:
        """Read the last words of the broker, such as the reason why it closed the connection, and fail.

        A broker that refuses a large body does not read it: sending breaks before its error frame is read.
        """
        for _ in range(LAST_READS):
            try:
                data = self._socket.recv(RECEIVE_BYTES, DONT_WAIT) if self._socket is not None else b""
            except OSError:
                break
            if not data:
                break
            self._received(data)
        self.fail(error)

    def open_socket(self, targets: list[tuple[int, Any]], each_s: float = math.inf) -> None:
        """Begin to connect to the first of the targets that takes a connection: family, and address of that family.

        each_s: time for one target, if there are more.
        """
        if not self.is_open:
            return
        self._targets = targets[1:]
        self._each_s = each_s
        family, target = targets[0]
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            if isinstance(self.address, TcpAddress):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._local is not None:
                    # A port that is given must be free again at once for the next connection.
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    self._socket.bind(self._local)
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(target)
            self._engine.poller.watch(self._socket, self, writes=True, is_new=True)
        except OSError as error:
            self._connect_failed(error)
            return
        if self._targets:
            self._engine.call_later(each_s, partial(self._try_next, self._socket))

    def _try_next(self, tried: socket.socket) -> None:
        """Try the next target if this one has not answered, such as IPv6 in a network that drops its packets."""
        if self._is_connecting and self._socket is tried:
            self._connect_failed(TimeoutError("no answer"))

    def _connect_failed(self, error: OSError) -> None:
        if not self._targets:
            self.fail(error)
            return
        self._drop_socket()
        self.open_socket(self._targets, self._each_s)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._engine.poller.unwatch(self._socket)
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
            self.receive()

    def _finish_connect(self) -> None:
        assert self._socket is not None
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        with contextlib.suppress(OSError):
            if number == 0 and isinstance(self.address, TcpAddress) and reaches_itself(self._socket):
                number = errno.ECONNREFUSED
        if number:
            self._connect_failed(ConnectionError(number, os.strerror(number)))
            return
        self._is_connecting = False
        self.heard_s = time.monotonic()
        self.can_wait = let_wait(self._socket)
        self._engine.poller.watch(self._socket, self, writes=False)
        self.flush()

    def receive(self) -> bool:
        """Receive and handle the bytes that have arrived; return False if there are none."""
        if self._is_connecting:
            return False
        assert self._socket is not None
        try:
            data = self._socket.recv(RECEIVE_BYTES, DONT_WAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            self.fail(error)
            return True
        self._received(data)
        # NOPs and answers of the set-up are queued by the core itself.
        if self.core.queued or not self.core.is_plain:
            self.flush()
        return True

    def receive_waiting(self, lock: threading.Lock) -> None:
        """Wait for bytes, RECEIVE_S at most, and handle them. The lock is released meanwhile."""
        sock = self._socket
        assert sock is not None
        data, failure = None, None
        lock.release()
        try:
            data = sock.recv(WAITED_BYTES)
        except BlockingIOError:
            pass
        except OSError as error:
            failure = error
        finally:
            lock.acquire()
        # Another thread may have closed the link meanwhile.
        if not self.is_open:
            return
        if data is not None:
            self._received(data)
            if self.core.queued or not self.core.is_plain:
                self.flush()
        elif failure is not None:
            self.fail(failure)

    def _received(self, data: bytes) -> None:
        if not data:
            self.fail(ConnectionResetError("the broker closed the connection"))
            return
        self.heard_s = time.monotonic()
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
        """Close the socket; the handler is not told. Queued bytes are sent if the socket takes them."""
        if self.is_open:
            if self.core.is_ready:
                self._flush_last()
            self.is_open = self.can_wait = False
            self._drop_socket()

    def disown(self) -> None:
        """In the child of a fork: close this process's copy of the socket, without a word to the broker."""
        self.is_open = self.can_wait = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _flush_last(self) -> None:
        with contextlib.suppress(OSError, ClientError):
            assert self._socket is not None
            data = bytes(self._unsent) + self.core.take_output()
            if data:
                self._socket.send(data, DONT_WAIT)
