"""HTTP client of the commands that steer a running pyqd: `pyqd drain`, `pyqd restart`."""

import http.client
import ipaddress
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyqd.primitives.addresses import UnixAddress, is_ip_address, split_address
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.http_client import HttpAddress, HttpClientConnection

TIMEOUT_S = 30.0
TOKEN_VARIABLE = "PYQD_TOKEN"


class DaemonRefusedError(Exception):
    """Answer of the daemon that is no success; str() of it is the daemon's text."""


class LocalDaemon:
    """HTTP API of one daemon. address: as --http-address has it. Raises: ValueError for an invalid one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._place = split_address(address)
        token = os.environ.get(TOKEN_VARIABLE)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def is_here(self) -> bool:
        """True if the address tells that the daemon runs on this machine."""
        place = self._place
        if isinstance(place, UnixAddress) or place.host in ("", "localhost"):
            return True
        return is_ip_address(place.host) and ipaddress.ip_address(place.host).is_loopback

    def connect(self, timeout_s: float = TIMEOUT_S) -> HttpClientConnection:
        """Return an open connection. Raises: OSError."""
        place = self._place
        if isinstance(place, UnixAddress):
            address = HttpAddress("localhost", 0, False, place.path)
        else:
            address = HttpAddress(place.host or "127.0.0.1", place.port, False)
        connection = HttpClientConnection(address, timeout_s=timeout_s)
        connection.open()
        return connection

    def ask(self, method: str, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the JSON of an answer. Raises: OSError, http.client.HTTPException, DaemonRefusedError."""
        with self.connect(timeout_s) as connection:
            return self.ask_on(connection, method, path)

    def ask_on(self, connection: HttpClientConnection, method: str, path: str) -> Any:
        """Return the JSON of an answer on a connection, which stays open. Raises as `ask` does."""
        reply = connection.exchange(method, path, headers=self._headers)
        if reply.status != 200:
            raise DaemonRefusedError(f"{method} {path}: {reply.status} {reply.body.decode(errors='replace').strip()}")
        return json.loads(reply.body)


def parser_for(prog: str, description: str) -> CommandParser:
    """Return a parser with the flag that finds the daemon."""
    parser = CommandParser(prog=prog, description=description)
    parser.add_argument(
        "--http-address",
        default="127.0.0.1:4151",
        help="of the daemon: <addr>:<port>, or the path of a unix socket (default: %(default)s); a login token is taken"
        f" from {TOKEN_VARIABLE}",
    )
    return parser


def with_daemon(prog: str, address: str, run: Callable[[LocalDaemon], int]) -> int:
    """Run a command on a daemon, and report an error in one line. Returns: the exit code."""
    try:
        return run(LocalDaemon(address))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        print(f"{prog}: cannot reach pyqd at {address}: {reason}; --http-address names another", file=sys.stderr)
    except (DaemonRefusedError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
    return 1
