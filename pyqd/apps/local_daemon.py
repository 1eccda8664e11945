"""HTTP client of the commands that steer a running pyqd: `pyqd drain`, `pyqd restart`."""

import contextlib
import http.client
import ipaddress
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyqd.client.http import UnixConnection
from pyqd.primitives.addresses import UnixAddress, is_ip_address, split_address
from pyqd.primitives.command_line import CommandParser

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

    def connect(self, timeout_s: float = TIMEOUT_S) -> http.client.HTTPConnection:
        """Return a connection, which the first request opens."""
        place = self._place
        if isinstance(place, UnixAddress):
            return UnixConnection(place.path, timeout_s)
        return http.client.HTTPConnection(place.host or "127.0.0.1", place.port, timeout=timeout_s)

    def ask(self, method: str, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the JSON of an answer. Raises: OSError, http.client.HTTPException, DaemonRefusedError."""
        with contextlib.closing(self.connect(timeout_s)) as connection:
            return self.ask_on(connection, method, path)

    def ask_on(self, connection: http.client.HTTPConnection, method: str, path: str) -> Any:
        """Return the JSON of an answer on a connection, which stays open. Raises as `ask` does."""
        connection.request(method, path, headers=self._headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise DaemonRefusedError(f"{method} {path}: {answer.status} {body.decode(errors='replace').strip()}")
        return json.loads(body)


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
