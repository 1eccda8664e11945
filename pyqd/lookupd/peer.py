"""A broker's registration with one lookup daemon, in a greenlet of its own: so none delays another, or the broker.

    connect, IDENTIFY      then, from here on, changes queue up
    burst                  REGISTER for all topics and channels, in exchanges of BURST_COMMANDS
    changes                REGISTER and UNREGISTER in the order of the changes, PING every PING_S
    failure                all of it again after a delay of 100 ms, which doubles up to 15 s

A change during the burst is queued, and the burst reads the names as they are when it comes to them. So a name may be
registered twice, which has no effect, and the last command for a name is always the one that counts.

The queue has at most CHANGES_MAX commands: beyond that the connection is closed, as the next burst has all of them.
While there is no connection nothing is queued.

Source: docs/nsq/lookupd.md, "Connections from nsqd".
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import gevent
from gevent.event import Event

from pyqd.lookupd.peer_connection import LookupInfo, PeerConnection, PeerError
from pyqd.net.greenlets import spawn_service
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.backoff import Backoff

PING_S: Final = 15.0
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 15.0
# A connection that lasted for so long is no sign of a lookup daemon that fails at once.
STABLE_S: Final = 15.0
# An exchange takes about half a millisecond of the loop.
BURST_COMMANDS: Final = 256
CHANGES_MAX: Final = 20_000

PING: Final = b"PING\n"
REGISTER: Final = b"REGISTER "

logger = logging.getLogger(__name__)


class LookupPeer:
    """Registration with the lookup daemon at an address.

    identity: returns the body of IDENTIFY. registrations: returns REGISTER for all topics and channels, read lazily.
    info: the last reply to IDENTIFY; None before the first one.
    """

    def __init__(
        self,
        address: str,
        identity: Callable[[], Mapping[str, Any]],
        registrations: Callable[[], Iterator[bytes]],
    ) -> None:
        self.address = address
        self.info: LookupInfo | None = None
        self.is_connected = False
        self.last_error = ""
        self.connection_count = 0
        self.registration_count = 0
        # Set at the end of the first attempt to connect and IDENTIFY.
        self.tried = Event()
        self._identity = identity
        self._registrations = registrations
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        self._changes: deque[bytes] = deque()
        self._wake = Event()
        self._has_overflowed = False
        self._is_failure_logged = False
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        """Connect in the background, and stay connected. Switches: no."""
        self._greenlet = spawn_service(f"registration with lookup daemon {self.address}", self._run)

    def stop(self) -> None:
        """Close the connection with the next callbacks of the loop. Switches: no."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def stats(self) -> dict[str, Any]:
        """Return the state in the form of /stats."""
        return {
            "address": self.address,
            "connected": self.is_connected,
            "last_error": self.last_error,
            "reconnect_count": max(0, self.connection_count - 1),
            "registration_count": self.registration_count,
        }

    def change(self, command: bytes) -> None:
        """Send a command if there is a connection, after those before it. Switches: no."""
        if not self.is_connected:
            return
        if len(self._changes) >= CHANGES_MAX:
            self.overflow()
        elif not self._has_overflowed:
            self._changes.append(command)
            self._wake.set()

    def overflow(self) -> None:
        """Drop the queued commands: the connection will be closed, and everything registered again. Switches: no."""
        if self.is_connected:
            self._changes.clear()
            self._has_overflowed = True
            self._wake.set()

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                self._register()
            except PeerError as error:
                self._note_failure(error)
            if time.monotonic() - began_s >= STABLE_S:
                self._backoff.reset()
            gevent.sleep(self._backoff.next_s())

    def _register(self) -> None:
        """Connect, register everything, and keep it up to date. Raises: PeerError."""
        connection = PeerConnection(self.address, gevent.get_hub())
        try:
            self.info = connection.identify(self._identity())
            self.is_connected = True
            self.connection_count += 1
            self.tried.set()
            count = self._send_all(connection)
            self._note_success(count)
            self._send_changes(connection)
        finally:
            self.is_connected = self._has_overflowed = False
            self._changes.clear()
            connection.close()

    def _send_all(self, connection: PeerConnection) -> int:
        """Register all topics and channels. Returns: the number of commands. Raises: PeerError."""
        count = 0
        commands = self._registrations()
        while batch := list(islice(commands, BURST_COMMANDS)):
            self._exchange(connection, batch)
            count += len(batch)
            yield_to_loop()
        return count

    def _send_changes(self, connection: PeerConnection) -> None:
        """Send changes as they come, and PING. Raises: PeerError, in the end always."""
        ping_s = time.monotonic() + PING_S
        while True:
            self._check_overflow()
            if self._changes:
                count = min(len(self._changes), BURST_COMMANDS)
                self._exchange(connection, [self._changes.popleft() for _ in range(count)])
                yield_to_loop()
            if time.monotonic() >= ping_s:
                self._exchange(connection, [PING])
                ping_s = time.monotonic() + PING_S
            self._wake.clear()
            if not self._changes and not self._has_overflowed:
                connection.wait(self._wake, max(0.0, ping_s - time.monotonic()))

    def _exchange(self, connection: PeerConnection, commands: list[bytes]) -> None:
        connection.exchange(commands)
        self.registration_count += sum(command.startswith(REGISTER) for command in commands)
        self._check_overflow()

    def _check_overflow(self) -> None:
        if self._has_overflowed:
            raise PeerError(
                "topics and channels changed faster than the lookup daemon answered",
                "all are registered again after reconnecting",
            )

    def _note_success(self, count: int) -> None:
        info = self.info
        assert info is not None
        self._is_failure_logged = False
        logger.info(
            "LOOKUPD(%s): connected, lookup daemon version %s; sent %d registrations", self.address, info.version, count
        )
        if info.http_address is None:
            logger.warning(
                "LOOKUPD(%s): no broadcast address or HTTP port in the reply to IDENTIFY, so the lookup daemon is not "
                "asked for the channels of new topics; set its --broadcast-address and --http-address",
                self.address,
            )

    def _note_failure(self, error: PeerError) -> None:
        """Log the first of equal failures."""
        self.tried.set()
        if not self._is_failure_logged or str(error) != self.last_error:
            self._is_failure_logged = True
            self.last_error = str(error)
            logger.error("LOOKUPD(%s): not registered: %s", self.address, self.last_error)
