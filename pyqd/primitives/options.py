"""The daemon's options: one table of flags with their defaults, ranges and meanings, and the class they fill.

Names, defaults and meanings are those of nsqd 1.3; each flag is declared here once, when it works. Durations are held
in nanoseconds (`_ns`), sizes in bytes. The value of an option is that of its flag where the command line gives it, else
its default; `build` takes the given values by flag name, so that those of a file can be put under those of the command
line.
"""

import dataclasses
import hashlib
import os
import platform
import socket
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyqd import __version__
from pyqd.primitives.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import BOOL, DURATION, INT, STRING, FlagType, declare, declared_flags, parse_or_exit
from pyqd.primitives.loglines import DEFAULT_PREFIX, LogLevel, parse_level

PROGRAM: Final = "pyqd"
NODE_ID_COUNT: Final = 1024
PORT_MAX: Final = 65535
# A due time, which is this much after now at most, is an int64.
DEFER_NS_MAX: Final = 100 * 365 * 24 * HOUR_NS

LEVEL: Final = FlagType("level", parse_level, lambda level: level.name.lower())


def default_node_id() -> int:
    """Return nsqd's default node id: crc32 of the md5 of the host name, modulo 1024."""
    digest = hashlib.md5(os.fsencode(socket.gethostname()), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_ID_COUNT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the daemon is told; a change at run time replaces the whole (dataclasses.replace).

    notices: one line for each thing given that has no effect, to be logged as a warning once logging is set up.
    """

    version: bool = declare("version", BOOL, False, "print the version and exit", key=None)
    verbose: bool = declare(
        "verbose", BOOL, False, "deprecated, has no effect; use --log-level", key=None, without_effect=True
    )
    log_level: LogLevel = declare(  # noqa: RUF009 - makes a field, and an enum member is immutable
        "log-level", LEVEL, LogLevel.INFO, "least level to log: debug, info, warn, error or fatal"
    )
    log_prefix: str = declare("log-prefix", STRING, DEFAULT_PREFIX, "text before each log line")
    node_id: int = declare(
        "node-id",
        INT,
        default_node_id,
        "unique part of the message ids made here, 0 to 1023",
        key="id",
        minimum=0,
        maximum=NODE_ID_COUNT - 1,
        range_text=f"must be [0,{NODE_ID_COUNT})",
    )
    worker_id: bool = declare(
        "worker-id", BOOL, False, "deprecated, has no effect; use --node-id", key=None, without_effect=True
    )

    tcp_address: str = declare(
        "tcp-address", STRING, "0.0.0.0:4150", "<addr>:<port>, or path of a unix socket, for TCP clients"
    )
    http_address: str = declare(
        "http-address", STRING, "0.0.0.0:4151", "<addr>:<port>, or path of a unix socket, for HTTP; empty for none"
    )
    broadcast_address: str = declare(
        "broadcast-address", STRING, socket.gethostname, "address under which others reach this daemon"
    )
    broadcast_tcp_port: int = declare(
        "broadcast-tcp-port", INT, 0, "TCP port told to others; 0 is the real one", minimum=0, maximum=PORT_MAX
    )
    broadcast_http_port: int = declare(
        "broadcast-http-port", INT, 0, "HTTP port told to others; 0 is the real one", minimum=0, maximum=PORT_MAX
    )

    topology_region: str = declare("topology-region", STRING, "", "region that clients are told the daemon is in")
    topology_zone: str = declare("topology-zone", STRING, "", "zone that clients are told the daemon is in")

    data_path: str = declare(
        "data-path", STRING, "", "directory of the data, which must exist; empty is the current one"
    )
    mem_queue_size: int = declare(
        "mem-queue-size", INT, 10_000, "messages per topic and channel to keep in memory", minimum=0
    )
    max_bytes_per_file: int = declare(
        "max-bytes-per-file", INT, 100 * 1024 * 1024, "bytes in one file of the disk queue before the next", minimum=1
    )
    retention_bytes: int = declare(
        "retention-bytes", INT, 0, "bytes of finished messages to keep per topic; 0 is none", minimum=0
    )
    retention_time_ns: int = declare(
        "retention-time", DURATION, 0, "time to keep finished messages for; 0 is none", minimum=0
    )
    max_topic_bytes: int = declare(
        "max-topic-bytes", INT, 0, "bytes on disk per topic, beyond which publishing fails; 0 is no limit", minimum=0
    )
    min_free_bytes: int = declare(
        "min-free-bytes",
        INT,
        64 * 1024 * 1024,
        "bytes to leave free on the disk: publishing fails rather than take them",
        minimum=0,
    )
    # Of nsqd's readings of 0, sync always or never, neither is plain; it is refused.
    sync_every: int = declare("sync-every", INT, 2500, "operations of the disk queue per fsync", minimum=1)
    sync_timeout_ns: int = declare(
        "sync-timeout", DURATION, 2 * SECOND_NS, "longest time between two fsyncs of the disk queue", minimum=1
    )
    queue_scan_worker_pool_max: int = declare(
        "queue-scan-worker-pool-max", INT, 4, "has no effect; time-outs are exact", without_effect=True
    )
    queue_scan_selection_count: int = declare(
        "queue-scan-selection-count", INT, 20, "has no effect; time-outs are exact", without_effect=True
    )

    msg_timeout_ns: int = declare(
        "msg-timeout", DURATION, MINUTE_NS, "time a client has for a message before it is requeued", minimum=1
    )
    max_msg_timeout_ns: int = declare(
        "max-msg-timeout", DURATION, 15 * MINUTE_NS, "longest time a client may have for a message", minimum=1
    )
    deflate: bool = declare(
        "deflate", BOOL, True, "has no effect; compression is answered as not enabled", without_effect=True
    )
    snappy: bool = declare(
        "snappy", BOOL, True, "has no effect; compression is answered as not enabled", without_effect=True
    )
    max_deflate_level: int = declare(
        "max-deflate-level",
        INT,
        6,
        "compression level that clients are told is the highest, 1 to 9",
        minimum=1,
        maximum=9,
        range_text="must be [1,9]",
    )
    max_msg_size: int = declare("max-msg-size", INT, 1024 * 1024, "bytes in one message at most", minimum=1)
    max_req_timeout_ns: int = declare(
        "max-req-timeout", DURATION, HOUR_NS, "longest delay of a requeued or deferred message", minimum=0
    )
    max_defer_ns: int = declare(
        "max-defer", DURATION, 0, "longest time a message may be deferred; 0 is that of --max-req-timeout", minimum=0
    )
    max_body_size: int = declare("max-body-size", INT, 5 * 1024 * 1024, "bytes in one command body at most", minimum=1)

    max_heartbeat_interval_ns: int = declare(
        "max-heartbeat-interval", DURATION, MINUTE_NS, "longest heartbeat interval a client may ask for", minimum=0
    )
    max_rdy_count: int = declare("max-rdy-count", INT, 2500, "largest RDY count of a client", minimum=0)
    max_output_buffer_size: int = declare(
        "max-output-buffer-size", INT, 64 * 1024, "largest output buffer, in bytes, a client may ask for", minimum=0
    )
    max_output_buffer_timeout_ns: int = declare(
        "max-output-buffer-timeout", DURATION, 30 * SECOND_NS, "longest flush interval a client may ask for", minimum=0
    )
    min_output_buffer_timeout_ns: int = declare(
        "min-output-buffer-timeout",
        DURATION,
        25 * MILLISECOND_NS,
        "shortest flush interval a client may ask for",
        minimum=0,
    )
    output_buffer_timeout_ns: int = declare(
        "output-buffer-timeout",
        DURATION,
        250 * MILLISECOND_NS,
        "flush interval of a client that asks for none",
        minimum=1,
    )
    max_channel_consumers: int = declare(
        "max-channel-consumers", INT, 0, "consumers of one channel at most; 0 is no limit", minimum=0
    )

    notices: tuple[str, ...] = ()

    def defer_ns_max(self) -> int:
        """Return how long a message may be deferred."""
        return min(self.max_defer_ns or self.max_req_timeout_ns, DEFER_NS_MAX)


FLAGS: Final = declared_flags(Options)


def build(given: Mapping[str, Any]) -> Options:
    """Return options from the values given, by flag name, and the defaults of the others.

    Raises: StartupError for the first value out of its range.
    """
    values: dict[str, Any] = {}
    notices: list[str] = []
    for flag in FLAGS:
        if flag.name not in given:
            continue
        value = given[flag.name]
        try:
            flag.check(value)
        except ValueError as error:
            raise StartupError(f"failed to instantiate {PROGRAM} - {error}") from None
        values[flag.attribute] = value
        if flag.without_effect:
            notices.append(f"--{flag.name} {flag.help.removeprefix('deprecated, ')}")
    return Options(**values, notices=tuple(notices))


def parse_args(argv: Sequence[str]) -> Options:
    """Return the options of a command line, argv without the program's name; arguments after the flags are ignored.

    Leaves the process after --version (stdout, exit code 0), -h (usage on stderr, 0) and a wrong command line (2).
    Raises: StartupError for a value out of its range.
    """
    parsed = parse_or_exit(PROGRAM, FLAGS, argv)
    if parsed.values.get("version"):
        print(version_line(PROGRAM))
        raise SystemExit(0)
    return build(parsed.values)


def version_line(program: str) -> str:
    """Return what --version prints, in the form of NSQ's programs."""
    return f"{program} v{__version__} (built w/python{platform.python_version()})"


@dataclasses.dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where to listen or connect: host, empty for every interface, and port, 0 for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return self.path


def split_address(text: str) -> TcpAddress | UnixAddress:
    """Return the address text stands for: what splits into host and port is TCP, all else a unix socket's path.

    An IPv6 host stands in brackets: [::1]:4150. A port may be a number, a service name, or empty for 0.
    Raises: ValueError for empty text and for a port that is none.
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
    return TcpAddress(host, _port_number(port)) if splits else UnixAddress(text)


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
