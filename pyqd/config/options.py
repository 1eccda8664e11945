"""The daemon's options: one table of flags with defaults, ranges and meanings, and the class that the flags fill.

Names, defaults and meanings follow nsqd 1.3; each flag is declared here once, when it works. Durations are held in
nanoseconds (`_ns`), sizes in bytes. The value of an option comes from its flag on the command line, else from its key
in the configuration file, else from its default.
"""

import dataclasses
import hashlib
import os
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyqd.config.program_options import (
    LEVEL,
    ProgramOptions,
    declare_http_allow_host,
    declare_http_allow_origin,
)
from pyqd.config.settings import Program
from pyqd.primitives.addresses import PORT_MAX, require_host
from pyqd.primitives.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS, parse_bool
from pyqd.primitives.goflags import DURATION, INT, STRING, FlagType, declare_field, declared_flags
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.loglines import DEFAULT_PREFIX, LogLevel

PROGRAM: Final = "pyqd"
SYNOPSIS: Final = """\
pyqd [flags]                                the daemon; its flags are below
pyqd --check-config [flags]                 print the settings in force, or all errors; starts nothing
pyqd --help                                 this text
pyqd up [--no-trace] [flags]                daemon, lookup daemon and web admin together, on loopback
pyqd import [--dry-run] DIR                 take over the data directory of a stopped nsqd
pyqd export [--from DATA_DIR] DIR           write the data of a stopped pyqd as a data directory of nsqd
pyqd inspect [--verify] [--json] DIR        list the queues of a data directory; changes nothing
pyqd drain [--timeout=30s]                  have a running pyqd finish its messages in flight, and stop
pyqd restart [--http-address=ADDR]          have a running pyqd hand over to a new process; no connection is refused
"""
NODE_ID_COUNT: Final = 1024
DEFAULT_TCP_PORT: Final = 4150
TRACE_BODY_BYTES_MAX: Final = 8192
# A due time is at most this much after now, and is an int64.
DEFER_NS_MAX: Final = 100 * 365 * 24 * HOUR_NS

TLS_NOT_REQUIRED: Final = 0
TLS_REQUIRED_EXCEPT_HTTP: Final = 1
TLS_REQUIRED: Final = 2
# The numbers of the TLS protocol.
TLS_VERSIONS: Final = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}
TOPOLOGY_AWARE_CONSUMPTION: Final = "topology-aware-consumption"

Percentiles = tuple[float, ...]


def parse_tls_required(text: str) -> int:
    """Return one of the TLS_REQUIRED numbers for a value of --tls-required. Raises: ValueError."""
    if text.lower() == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    try:
        return TLS_REQUIRED if parse_bool(text.lower()) else TLS_NOT_REQUIRED
    except ValueError:
        raise ValueError("must be true, false or tcp-https") from None


def read_tls_required(found: Any) -> int:
    """Return one of the TLS_REQUIRED numbers for a boolean or string of a configuration file. Raises: ValueError."""
    if isinstance(found, bool):
        return TLS_REQUIRED if found else TLS_NOT_REQUIRED
    if not isinstance(found, str):
        raise ValueError('must be true, false or "tcp-https"')
    return parse_tls_required(found)


def parse_tls_version(text: str) -> int:
    """Return the TLS version number for a value of --tls-min-version; empty is the default. Raises: ValueError."""
    number = TLS_VERSIONS.get(text.lower() or "tls1.2")
    if number is None:
        raise ValueError(f"unknown tlsVersionOption {go_quote_str(text.lower())} ({', '.join(TLS_VERSIONS)})")
    return number


def show_tls_version(number: int) -> str:
    return next(name for name, known in TLS_VERSIONS.items() if known == number)


TLS_NEED: Final = FlagType(
    "", parse_tls_required, ("false", "tcp-https", "true").__getitem__, is_boolean=True, read=read_tls_required
)
TLS_VERSION: Final = FlagType("version", parse_tls_version, show_tls_version)


# One of the 2**32 fingerprints of message ids: a smaller rate would choose no message.
RATE_MIN: Final = 2.0**-32

_DECIMAL = re.compile(r"-?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def parse_rate(text: str) -> float:
    """Return a fraction from 0 to 1. Raises: ValueError."""
    # float() takes spaces, underscores and the digits of all scripts as well.
    if not _DECIMAL.fullmatch(text):
        raise ValueError("must be a number such as 0.25")
    rate = float(text)
    check_rate(rate)
    return rate


def read_rate(found: Any) -> float:
    """Return a fraction in a configuration file. Raises: ValueError."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        raise ValueError("must be a number from 0 to 1")
    return parse_rate(str(found))


def check_rate(rate: float) -> None:
    """Raise ValueError if a number is no fraction."""
    if not 0 <= rate <= 1:
        raise ValueError("must be from 0 to 1")
    if 0 < rate < RATE_MIN:
        raise ValueError("must be 0, or at least 2.4e-10: no message would be chosen")


# A fraction of messages.
RATE: Final = FlagType("rate", parse_rate, lambda rate: f"{rate:g}", check=check_rate, read=read_rate)


def require_statsd_name(text: str) -> None:
    """Raise ValueError, "must ...", if text would spoil the lines that it begins: <name>:<value>|<type>."""
    # Also lone surrogates: bytes of a command line that are not UTF-8.
    if re.search(r"[\s\x00-\x1f\x7f:|\ud800-\udfff]", text):
        raise ValueError("must be text without white space, colons and bars, at which statsd divides a line")


def parse_percentiles(text: str) -> Percentiles:
    """Return the numbers of a comma-separated list, highest first. Raises: ValueError."""
    return tuple(sorted(numbers_of(text), reverse=True))


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a comma-separated list in its order. Raises: ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_DECIMAL.fullmatch, parts)):
        raise ValueError("must be numbers with commas, such as 0.99,0.5")
    return [float(part) for part in parts]


def read_percentiles(found: Any) -> Percentiles:
    """Return the numbers of a configuration file, an array or a comma-separated string, in their order there.

    Raises: ValueError.
    """
    if isinstance(found, str):
        found = numbers_of(found) if found else []
    if not isinstance(found, list) or not all(type(item) in (int, float) for item in found):
        raise ValueError("must be an array of numbers, or a string with commas")
    return tuple(map(float, found))


def check_percentiles(percentiles: Percentiles) -> None:
    """Raise ValueError with nsqd's text if a number is not a percentile."""
    for percentile in percentiles:
        if not 0 < percentile <= 1:
            raise ValueError(f"invalid E2E processing latency percentile: {percentile:g}")


def show_percentiles(percentiles: Percentiles) -> str:
    return ",".join(f"{percentile:g}" for percentile in percentiles)


def joined_percentiles(former: Percentiles, more: Percentiles) -> Percentiles:
    return tuple(sorted((*former, *more), reverse=True))


# Percentiles of --e2e-processing-latency-percentile: fractions above 0 and up to 1. Several flags are joined and sorted
# from the highest; those of a configuration file keep their order.
PERCENTILES: Final = FlagType(
    "value",
    parse_percentiles,
    show_percentiles,
    joined=joined_percentiles,
    check=check_percentiles,
    read=read_percentiles,
)
NO_PERCENTILES: Final[Percentiles] = ()


def default_node_id() -> int:
    """Return nsqd's default node id: crc32 of the md5 of the host name, modulo 1024."""
    digest = hashlib.md5(os.fsencode(socket.gethostname()), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_ID_COUNT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProgramOptions):
    """Options of the daemon. A change at run time replaces the whole object (dataclasses.replace)."""

    config: str = declare_field("", "path of a configuration file, TOML with nsqd's keys", key=None)
    log_level: LogLevel = declare_field(  # noqa: RUF009 - makes a field, and an enum member is immutable
        LogLevel.INFO, "least level to log: debug, info, warn, error or fatal", kind=LEVEL, live=True
    )
    log_prefix: str = declare_field(DEFAULT_PREFIX, "text before each log line")
    node_id: int = declare_field(
        default_node_id,
        "unique part of this daemon's message ids, 0 to 1023",
        kind=INT,
        key="id",
        minimum=0,
        maximum=NODE_ID_COUNT - 1,
        range_text=f"must be [0,{NODE_ID_COUNT})",
        default_text="from the host name",
    )
    worker_id: bool = declare_field(False, "deprecated, has no effect; use --node-id", key=None, without_effect=True)

    tcp_address: str = declare_field(
        f"0.0.0.0:{DEFAULT_TCP_PORT}", "<addr>:<port>, or path of a unix socket, for TCP clients"
    )
    http_address: str = declare_field(
        "0.0.0.0:4151", "<addr>:<port>, or path of a unix socket, for HTTP; empty for none"
    )
    https_address: str = declare_field("0.0.0.0:4152", "<addr>:<port> for HTTPS, if TLS is set up; empty for none")
    http_allow_host: tuple[str, ...] = declare_http_allow_host()
    http_allow_origin: tuple[str, ...] = declare_http_allow_origin()
    broadcast_address: str = declare_field(
        socket.gethostname,
        "address of this daemon for other hosts, without a port",
        kind=STRING,
        default_text="the host name",
        require=require_host,
    )
    broadcast_tcp_port: int = declare_field(
        0, "TCP port for other hosts; 0 is the real one", minimum=0, maximum=PORT_MAX
    )
    broadcast_http_port: int = declare_field(
        0, "HTTP port for other hosts; 0 is the real one", minimum=0, maximum=PORT_MAX
    )

    lookupd_tcp_address: tuple[str, ...] = declare_field(
        (),
        "<addr>:<port> of a lookup daemon to register with over TCP; may be given several times",
        key="nsqlookupd_tcp_addresses",
        live=True,
    )

    topology_region: str = declare_field("", "region of the daemon, for clients")
    topology_zone: str = declare_field("", "zone of the daemon, for clients")

    enable_experiment: tuple[str, ...] = declare_field(
        (), f"turn on an experiment (may be given more than once): {TOPOLOGY_AWARE_CONSUMPTION}"
    )

    tls_cert: str = declare_field("", "path of the TLS certificate, with its chain")
    tls_key: str = declare_field("", "path of the TLS key")
    tls_client_auth_policy: str = declare_field(
        "", "client certificates: require (any), or require-verify (one of --tls-root-ca-file); implies --tls-required"
    )
    tls_root_ca_file: str = declare_field("", "path of the certificates of authorities that check client certificates")
    tls_required: int = declare_field(
        TLS_NOT_REQUIRED, "refuse clients without TLS: true, false, or tcp-https for TCP only", kind=TLS_NEED
    )
    tls_min_version: int = declare_field(
        TLS_VERSIONS["tls1.2"], "lowest TLS version: tls1.0, tls1.1, tls1.2 or tls1.3", kind=TLS_VERSION
    )

    auth_http_address: tuple[str, ...] = declare_field(
        (),
        "<addr>:<port>, or full URL, of a server to ask what clients that AUTH may do; may be given several times",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = declare_field("get", "HTTP method for requests to auth servers: get or post")
    http_auth: bool = declare_field(False, "ask the auth servers for logins to the HTTP API too")
    http_auth_token_file: str = declare_field("", "path of the file of tokens for the HTTP API")
    http_client_connect_timeout_ns: int = declare_field(
        2 * SECOND_NS, "time to connect to an HTTP server; 0 is no limit", kind=DURATION
    )
    http_client_request_timeout_ns: int = declare_field(
        5 * SECOND_NS, "time for a request to an HTTP server; 0 is no limit", kind=DURATION
    )

    data_path: str = declare_field("", "directory of the data, which must exist; empty is the current one")
    mem_queue_size: int = declare_field(10_000, "messages per topic and channel to keep in memory", minimum=0)
    max_bytes_per_file: int = declare_field(
        100 * 1024 * 1024, "bytes in one file of the disk queue before the next", minimum=1
    )
    retention_bytes: int = declare_field(
        0, "bytes of finished messages to keep per topic; 0 is none", minimum=0, live=True
    )
    retention_time_ns: int = declare_field(
        0, "time to keep finished messages for; 0 is none", kind=DURATION, minimum=0, live=True
    )
    max_topic_bytes: int = declare_field(
        0, "bytes on disk per topic, beyond which publishing fails; 0 is no limit", minimum=0, live=True
    )
    min_free_bytes: int = declare_field(
        64 * 1024 * 1024,
        "bytes to leave free on the disk; publishing fails instead of using them",
        minimum=0,
        live=True,
    )
    trace_topic: tuple[str, ...] = declare_field(
        (),
        "pattern of topics whose messages are traced, such as 'orders*'; may be given several times",
        key="trace_topics",
        live=True,
    )
    trace_rate: float = declare_field(
        1.0, "fraction of their messages that is traced, from 0 to 1", kind=RATE, live=True
    )
    trace_body_bytes: int = declare_field(
        0,
        "bytes of each traced message's body to keep in its trace",
        minimum=0,
        maximum=TRACE_BODY_BYTES_MAX,
        live=True,
    )
    trace_retention_bytes: int = declare_field(
        1024 * 1024 * 1024, "bytes of trace events to keep; the oldest are overwritten", minimum=1024 * 1024, live=True
    )
    trace_retention_time_ns: int = declare_field(
        0, "time to keep trace events for; 0 is no limit", kind=DURATION, minimum=0, live=True
    )
    # nsqd reads 0 as "sync always" in some places and as "never" in others, so 0 is refused.
    sync_every: int = declare_field(2500, "operations of the disk queue per fsync", minimum=1)
    sync_timeout_ns: int = declare_field(
        2 * SECOND_NS, "longest time between two fsyncs of the disk queue", kind=DURATION, minimum=1, live=True
    )
    sync_fin: bool = declare_field(
        False, "count a finished message against its consumer's RDY until the FIN is on disk"
    )
    queue_scan_worker_pool_max: int = declare_field(4, "has no effect; timeouts are exact", without_effect=True)
    queue_scan_selection_count: int = declare_field(20, "has no effect; timeouts are exact", without_effect=True)

    msg_timeout_ns: int = declare_field(
        MINUTE_NS, "time a client has for a message before it is requeued", kind=DURATION, minimum=1
    )
    max_msg_timeout_ns: int = declare_field(
        15 * MINUTE_NS, "longest time a client may have for a message", kind=DURATION, minimum=1
    )
    deflate: bool = declare_field(True, "compress with deflate for clients that ask for it")
    snappy: bool = declare_field(True, "compress with snappy for clients that ask for it")
    max_deflate_level: int = declare_field(
        6, "highest compression level a client may ask for, 1 to 9", minimum=1, maximum=9, range_text="must be [1,9]"
    )
    max_msg_size: int = declare_field(1024 * 1024, "maximum bytes of one message", minimum=1)
    max_req_timeout_ns: int = declare_field(
        HOUR_NS, "longest delay of a requeued or deferred message", kind=DURATION, minimum=0
    )
    max_defer_ns: int = declare_field(
        0, "longest time a message may be deferred; 0 is the value of --max-req-timeout", kind=DURATION, minimum=0
    )
    max_body_size: int = declare_field(5 * 1024 * 1024, "maximum bytes of one command body", minimum=1)

    max_heartbeat_interval_ns: int = declare_field(
        MINUTE_NS, "longest heartbeat interval a client may ask for", kind=DURATION, minimum=0
    )
    max_rdy_count: int = declare_field(2500, "largest RDY count of a client", minimum=0)
    max_output_buffer_size: int = declare_field(
        64 * 1024, "largest output buffer, in bytes, a client may ask for", minimum=0
    )
    max_output_buffer_timeout_ns: int = declare_field(
        30 * SECOND_NS, "longest flush interval a client may ask for", kind=DURATION, minimum=0
    )
    min_output_buffer_timeout_ns: int = declare_field(
        25 * MILLISECOND_NS, "shortest flush interval a client may ask for", kind=DURATION, minimum=0
    )
    output_buffer_timeout_ns: int = declare_field(
        250 * MILLISECOND_NS, "flush interval of a client that asks for none", kind=DURATION, minimum=1
    )
    max_channel_consumers: int = declare_field(
        0, "maximum number of consumers of one channel; 0 is no limit", minimum=0, live=True
    )

    max_connections: int = declare_field(
        0, "TCP clients at once; 0 is as many as the limit of open files allows", minimum=0, live=True
    )
    max_http_connections: int = declare_field(
        0, "connections over HTTP and HTTPS at once; 0 is no limit", minimum=0, live=True
    )
    max_connections_per_address: int = declare_field(
        0, "connections from one address at once, over TCP and over HTTP each; 0 is no limit", minimum=0, live=True
    )
    max_mapped_files: int = declare_field(
        0, "maximum number of files mapped at a time; 0 is as many as vm.max_map_count allows", minimum=0
    )
    max_topics: int = declare_field(0, "maximum number of topics; 0 is no limit", minimum=0, live=True)
    max_channels_per_topic: int = declare_field(
        0, "maximum number of channels of one topic; 0 is no limit", minimum=0, live=True
    )
    max_buffer_bytes: int = declare_field(
        1024 * 1024 * 1024,
        "memory for what all connections have half received or not sent yet; beyond it those with the most are closed;"
        " 0 is no limit",
        minimum=0,
    )
    drain_timeout_ns: int = declare_field(
        0,
        "time that SIGTERM gives consumers to finish their messages in flight; 0 stops at once",
        kind=DURATION,
        minimum=0,
        live=True,
    )
    first_command_timeout_ns: int = declare_field(
        MINUTE_NS,
        "time from connecting to the end of a client's first command; 0 is no limit",
        kind=DURATION,
        minimum=0,
    )
    command_timeout_ns: int = declare_field(
        2 * MINUTE_NS,
        "time for the rest of a command and its body after its first part has arrived; 0 is no limit",
        kind=DURATION,
        minimum=0,
    )
    http_header_timeout_ns: int = declare_field(
        30 * SECOND_NS, "time for the headers of a request; 0 is no limit", kind=DURATION, minimum=0
    )
    http_body_timeout_ns: int = declare_field(
        MINUTE_NS,
        "time for the body of a request, and a second more for each KiB received; 0 is no limit",
        kind=DURATION,
        minimum=0,
    )
    http_idle_timeout_ns: int = declare_field(
        5 * MINUTE_NS, "time between two requests; 0 is no limit", kind=DURATION, minimum=0
    )
    http_write_timeout_ns: int = declare_field(
        MINUTE_NS, "time for a peer to read more of an answer; 0 is no limit", kind=DURATION, minimum=0
    )
    max_http_header_size: int = declare_field(64 * 1024, "maximum bytes of the headers of one request", minimum=1024)

    statsd_address: str = declare_field(
        "", "<addr>:<port> of a statsd server to send statistics to over UDP; empty for none"
    )
    statsd_prefix: str = declare_field(
        "nsq.%s",
        "text before each statsd key; %s is the broadcast address with its HTTP port",
        require=require_statsd_name,
    )
    statsd_interval_ns: int = declare_field(MINUTE_NS, "time between two sends to statsd", kind=DURATION, minimum=1)
    statsd_mem_stats: bool = declare_field(True, "send statistics of memory to statsd too")
    statsd_udp_packet_size: int = declare_field(508, "maximum bytes of a UDP packet to statsd", minimum=1)
    statsd_exclude_ephemeral: bool = declare_field(False, "omit ephemeral topics and channels from statsd")
    metrics_max_series: int = declare_field(
        100_000,
        "maximum number of time series of topics and channels in /metrics, the rest as a sum; 0 is no limit",
        minimum=0,
    )
    e2e_processing_latency_percentile: Percentiles = declare_field(  # noqa: RUF009 - makes a field, of a tuple
        NO_PERCENTILES,
        "percentile of the time from publishing to FIN to report, above 0 and up to 1; several with commas or flags",
        kind=PERCENTILES,
        key="e2e_processing_latency_percentiles",
        repeatable=False,
    )
    e2e_processing_latency_window_time_ns: int = declare_field(
        10 * MINUTE_NS, "time window of these percentiles", kind=DURATION, minimum=1
    )

    def defer_ns_max(self) -> int:
        """Return the longest time by which a message may be deferred."""
        return min(self.max_defer_ns or self.max_req_timeout_ns, DEFER_NS_MAX)


# Keyed by the first flag of the group.
GROUPS: Final = {
    "version": "General",
    "tcp-address": "Addresses",
    "topology-region": "Topology",
    "tls-cert": "TLS",
    "auth-http-address": "Authorisation",
    "data-path": "Data",
    "msg-timeout": "Messages and commands",
    "max-heartbeat-interval": "Limits on client settings",
    "max-connections": "Limits on connections",
    "statsd-address": "Statistics",
}
FLAGS: Final = declared_flags(Options, GROUPS)


def options_of(given: Mapping[str, Any], notices: tuple[str, ...]) -> Options:
    """Return the options for values by attribute. Client certificates imply TLS."""
    values = dict(given)
    if values.get("tls_client_auth_policy") and not values.get("tls_required"):
        values["tls_required"] = TLS_REQUIRED
    return Options(**values, notices=notices)


DAEMON: Final = Program(PROGRAM, FLAGS, SYNOPSIS, options_of)


def build(given: Mapping[str, Any]) -> Options:
    """Return the options for a command line's values, by flag name. Raises: StartupError."""
    return DAEMON.settings_of(given).options()


def parse_args(argv: Sequence[str]) -> Options:
    """Return the options of a command line, as `Program.parse_settings` reads it. Raises: StartupError."""
    return DAEMON.parse_settings(argv).options()
