"""Addresses to listen on or connect to: TCP, or the path of a unix socket; and their text form."""

import dataclasses
import ipaddress
import re
import socket
from typing import Final

PORT_MAX: Final = 65535
# In the error for an address without a port: the port of nsqd.
EXAMPLE_PORT: Final = 4150
_HOST_FAULTS: Final = (
    (re.compile(r"^\s*$"), "it is blank"),
    (re.compile(r"[\s\x00-\x1f\x7f]"), "it contains white space"),
    (re.compile(r"://"), "it is a URL"),
    (re.compile(r"[\[\]]"), "it has brackets, which only an IPv6 address with a port needs"),
    (re.compile(r":"), "it has a colon, so it has a port or is an invalid IPv6 address"),
    (re.compile(r"""[/?#@\\"'<>|,;%&=\ud800-\udfff]"""), "it contains a character that no host name has"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host, empty for every interface, and a port, 0 for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a unix socket. mode: of its file; None: as the process makes files.

    Raises: ValueError on a system without unix sockets.
    """

    path: str
    mode: int | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise ValueError(f"address {self.path}: Python has no unix sockets on this system; write host:port")

    def __str__(self) -> str:
        return self.path


def is_ip_address(text: str) -> bool:
    """Return whether text is an IPv4 or IPv6 address, without brackets."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class HostNameError(OSError):
    """No host can have this name, so that another attempt would fail, too."""


def check_host(host: str) -> None:
    """Raise HostNameError if no host can have this name.

    The functions of the socket module raise UnicodeError then, and gevent's also log it with a traceback.
    """
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise HostNameError(f"{host!r} is no host name: {error}") from None


def require_host(text: str) -> None:
    """Raise ValueError, "must ...", if text is not a host name or an IP address alone."""
    if is_ip_address(text):
        return
    for pattern, fault in _HOST_FAULTS:
        if pattern.search(text):
            raise ValueError(f"must be a host name or an IP address, such as broker.example or ::1; {fault}")


Address = TcpAddress | UnixAddress


def reaches_itself(connection: socket.socket) -> bool:
    """Return True if a connection has reached its own socket. Raises: OSError.

    If no process listens on a port from the range for clients, the system may give that very port to the connecting
    socket. It then receives its own bytes, and keeps the port from the broker that is to start.
    """
    return bool(connection.getsockname() == connection.getpeername())


def split_address(text: str) -> Address:
    """Return the address of a text: TCP if it splits into host and port, else the path of a unix socket.

    An IPv6 host stands in brackets: [::1]:4150. A port may be a number, a service name, or empty for 0.
    Raises: ValueError for an empty text, an invalid port, and a port or an IP address alone. nsqd takes the last two
    for the path of a unix socket, which is never intended.
    """
    if not text:
        raise ValueError("missing address")
    head, colon, port = text.rpartition(":")
    if head.startswith("["):
        host = head[1:-1]
        splits = head.endswith("]") and not any(bracket in host + port for bracket in "[]")
    else:
        host = head
        splits = bool(colon) and not any(char in host for char in ":[]") and not any(char in port for char in "[]")
    if splits:
        return TcpAddress(host, _port_number(port))
    _refuse_half_an_address(text)
    return UnixAddress(text)


def _refuse_half_an_address(text: str) -> None:
    if text.isascii() and text.isdigit():
        raise ValueError(f"address {text}: missing colon before the port; write :{text}, or 127.0.0.1:{text}")
    host = text[1:-1] if text[0] == "[" and text[-1] == "]" else text
    if is_ip_address(host):
        example = TcpAddress(host, EXAMPLE_PORT)
        raise ValueError(f"address {text}: missing port in address; write for example {example}")


def _port_number(port: str) -> int:
    if not port:
        return 0
    if port.isascii() and port.isdigit():
        if len(port) > 5 or int(port) > PORT_MAX:
            raise ValueError(f"address {port}: invalid port")
        return int(port)
    try:
        return socket.getservbyname(port, "tcp")
    except (OSError, UnicodeError):
        raise ValueError(f"lookup tcp/{port}: unknown port") from None
