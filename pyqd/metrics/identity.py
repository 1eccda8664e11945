"""Identity of the daemon for /info, /stats, statsd and lookup daemons."""

import dataclasses
import ipaddress
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Any

from pyqd.broker.stats import StatsDict
from pyqd.config.options import Options
from pyqd.primitives.addresses import TcpAddress, UnixAddress
from pyqd.primitives.nsq_compat import NSQ_VERSION


@dataclasses.dataclass(kw_only=True)
class Identity:
    """Facts that are known once the daemon listens.

    start_ns: Unix time. begun_ns: the same by the monotonic clock. tcp_port, http_port, https_port: the real ones, -1
    for a unix socket, 0 without a listener. producers: returns the clients that have published, in the shape of
    `pyqd.broker.stats`. lookup_daemons: returns the states of the connections to lookup daemons.
    """

    hostname: str
    start_ns: int
    begun_ns: int = dataclasses.field(default_factory=time.monotonic_ns)
    tcp_port: int = 0
    http_port: int = 0
    https_port: int = 0
    producers: Callable[[], Iterable[StatsDict]] = tuple
    lookup_daemons: Callable[[], Iterable[StatsDict]] = tuple


def lookupd_identity(options: Options, identity: Identity) -> dict[str, Any]:
    """Return the body of IDENTIFY for lookup daemons. A port is 0 without a TCP listener."""
    return {
        "broadcast_address": options.broadcast_address,
        "hostname": identity.hostname,
        "http_port": options.broadcast_http_port or max(identity.http_port, 0),
        "tcp_port": options.broadcast_tcp_port or max(identity.tcp_port, 0),
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
        "version": NSQ_VERSION,
    }


def first_command(http: TcpAddress | UnixAddress) -> str:
    """Return a command line for this machine that publishes a message over HTTP."""
    if isinstance(http, UnixAddress):
        return f"curl --unix-socket {shlex.quote(http.path)} -d hello 'http://localhost/pub?topic=greetings'"
    every = ipaddress.ip_address(http.host).is_unspecified
    reached = TcpAddress("127.0.0.1" if every else http.host, http.port)
    return f"curl -d hello 'http://{reached}/pub?topic=greetings'"


def port_of(address: TcpAddress | UnixAddress) -> int:
    """Return the port in the form of /info."""
    return address.port if isinstance(address, TcpAddress) else -1
