"""Connection of a broker to a lookup daemon: commands and their answers, with a bound on every wait and size.

The far end may be anything that accepts connections: an answer is read only if its size is plausible, and each failure
names its cause and what the operator can do.

Source: docs/nsq/lookupd.md, "TCP protocol" and "Connections from nsqd".
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gevent
import gevent.socket
from gevent.event import Event

from pyqd.lookupd.protocol import MAGIC
from pyqd.net.slice_queue import READ_EVENT
from pyqd.primitives.addresses import TcpAddress, check_host, split_address
from pyqd.primitives.errors import reason_of
from pyqd.primitives.goquote import go_quote
from pyqd.primitives.peer_json import json_text

CONNECT_S: Final = 5.0
# Time for all answers to the commands of one exchange.
ANSWERS_S: Final = 5.0
# A reply to IDENTIFY has some hundred bytes, every other answer fewer.
ANSWER_BYTES_MAX: Final = 64 * 1024
SHOWN_BYTES_MAX: Final = 128

CHECK_ADDRESS: Final = "--lookupd-tcp-address must name the TCP port of a lookup daemon, 4160 by default"
CHECK_DAEMON: Final = "check that the lookup daemon runs, and that --lookupd-tcp-address names its TCP port"
CLOSED: Final = "the lookup daemon closed the connection"
CHECK_IDENTITY: Final = (
    "a lookup daemon needs --broadcast-address, and ports that are not 0: set --broadcast-tcp-port and "
    "--broadcast-http-port if this broker does not listen on both"
)
# First bytes of an answer that is no answer of a lookup daemon.
NSQD_ERROR: Final = b"\x00\x00\x00\x01E_BAD_PROTOCOL"
HTTP_START: Final = b"HTTP"

_SIZE: Final = struct.Struct(">i")
_OK: Final = b"OK"


class PeerError(Exception):
    """Failure of a connection to a lookup daemon. cause: of the failure; remedy: for the operator."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")


@dataclass(frozen=True, slots=True)
class LookupInfo:
    """Reply of a lookup daemon to IDENTIFY. broadcast_address is empty and http_port 0 if the reply lacks them."""

    broadcast_address: str
    http_port: int
    version: str

    @property
    def http_address(self) -> TcpAddress | None:
        """Address of the HTTP API; None if the reply lacks it."""
        if not self.broadcast_address or not self.http_port:
            return None
        return TcpAddress(self.broadcast_address, self.http_port)


def identify_command(identity: Mapping[str, Any]) -> bytes:
    """Return IDENTIFY with its body."""
    body = json.dumps(identity, separators=(",", ":"), sort_keys=True).encode()
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def info_of(answer: bytes) -> LookupInfo:
    """Return the reply to IDENTIFY. Raises: PeerError."""
    try:
        found = json.loads(json_text(answer))
        if not isinstance(found, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise unexpected("IDENTIFY", answer) from None
    address, port, version = (found.get(key) for key in ("broadcast_address", "http_port", "version"))
    return LookupInfo(
        address if isinstance(address, str) else "",
        port if isinstance(port, int) and 0 < port < 1 << 16 else 0,
        version if isinstance(version, str) else "",
    )


def unexpected(command: str, answer: bytes) -> PeerError:
    """Return the error for an answer that a lookup daemon gives to no command, or with which it refuses this one."""
    if answer == NSQD_ERROR:
        return PeerError("the address is that of a broker, not of a lookup daemon", CHECK_ADDRESS)
    shown = go_quote(answer[:SHOWN_BYTES_MAX]).decode()
    remedy = CHECK_IDENTITY if answer.startswith(b"E_BAD_BODY") else CHECK_ADDRESS
    return PeerError(f"{command} was answered with {shown}", remedy)


def broken(error: OSError) -> PeerError:
    """Return the error for a connection that cannot be used any more."""
    # The error depends on what was under way when the far end closed.
    is_closed = isinstance(error, (ConnectionResetError, BrokenPipeError))
    return PeerError(CLOSED if is_closed else f"the connection broke: {reason_of(error)}", CHECK_DAEMON)


def unsolicited(data: bytes) -> PeerError:
    """Return the error for bytes that answer no command."""
    return PeerError(f"{go_quote(data[:SHOWN_BYTES_MAX]).decode()} came without a command", CHECK_ADDRESS)


class PeerConnection:
    """Connection to one lookup daemon, for one greenlet. Every method but `close` may raise PeerError.

    address: <host>:<port>, IPv6 in brackets. hub: of the calling thread. Switches: yes.
    """

    def __init__(self, address: str, hub: Any) -> None:
        self._socket = connected_socket(address)
        self._received = b""
        self._watcher = hub.loop.io(self._socket.fileno(), READ_EVENT)

    def close(self) -> None:
        """Close the connection; the lookup daemon then forgets the broker. Switches: no."""
        self._watcher.stop()
        self._watcher.close()
        self._socket.close()

    def identify(self, identity: Mapping[str, Any]) -> LookupInfo:
        """Introduce the broker. Returns: the reply."""
        (answer,) = self._ask(MAGIC + identify_command(identity), 1)
        return info_of(answer)

    def exchange(self, commands: Sequence[bytes]) -> None:
        """Send commands without bodies, and read an OK for each."""
        answers = self._ask(b"".join(commands), len(commands))
        for command, answer in zip(commands, answers, strict=True):
            if answer != _OK:
                raise unexpected(command.decode().rstrip("\n"), answer)

    def wait(self, wake: Event, timeout_s: float) -> None:
        """Wait for an event, at most some seconds. Nothing may arrive meanwhile: there is no command to answer."""
        self._watcher.start(wake.set)
        try:
            wake.wait(timeout_s)
        finally:
            self._watcher.stop()
        self._socket.settimeout(0.0)
        try:
            data = self._receive()
        except BlockingIOError:
            return
        finally:
            self._socket.settimeout(None)
        raise unsolicited(data)

    def _ask(self, commands: bytes, answer_count: int) -> list[bytes]:
        """Send commands and return their answers."""
        late = PeerError(f"no answer within {ANSWERS_S:g} s", CHECK_DAEMON)
        with gevent.Timeout(ANSWERS_S, late):
            try:
                self._socket.sendall(commands)
            except OSError as error:
                raise broken(error) from error
            answers = [self._answer() for _ in range(answer_count)]
        if self._received:
            raise unsolicited(self._received)
        return answers

    def _answer(self) -> bytes:
        """Return the next answer."""
        while len(self._received) < _SIZE.size:
            self._received += self._receive()
        (size,) = _SIZE.unpack_from(self._received)
        if not 0 <= size <= ANSWER_BYTES_MAX:
            if self._received.startswith(HTTP_START):
                raise PeerError(
                    "the address is that of an HTTP server, not of a lookup daemon's TCP port", CHECK_ADDRESS
                )
            raise PeerError(f"an answer of {size} bytes, {ANSWER_BYTES_MAX} are allowed", CHECK_ADDRESS)
        end = _SIZE.size + size
        while len(self._received) < end:
            self._received += self._receive()
        answer, self._received = self._received[_SIZE.size : end], self._received[end:]
        return answer

    def _receive(self) -> bytes:
        """Return some received bytes. Raises: BlockingIOError if the socket does not wait."""
        try:
            data: bytes = self._socket.recv(ANSWER_BYTES_MAX)
        except BlockingIOError:
            raise
        except OSError as error:
            raise broken(error) from error
        if not data:
            raise PeerError(CLOSED, CHECK_DAEMON)
        return data


def connected_socket(address: str) -> gevent.socket.socket:
    """Return a socket that is connected. Raises: PeerError. Switches: yes."""
    try:
        place = split_address(address)
        if not isinstance(place, TcpAddress):
            raise ValueError(f"address {address}: missing port in address")
    except ValueError as error:
        # Without the example that the error ends with: its port is a broker's.
        raise PeerError(f"cannot connect: {str(error).partition(';')[0]}", CHECK_ADDRESS) from None
    late = PeerError(f"cannot connect within {CONNECT_S:g} s", CHECK_DAEMON)
    with gevent.Timeout(CONNECT_S, late):
        try:
            check_host(place.host)
            return gevent.socket.create_connection((place.host, place.port))
        except OSError as error:
            raise PeerError(f"cannot connect: {reason_of(error)}", CHECK_DAEMON) from error
