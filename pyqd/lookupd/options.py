"""Flags of `pyqlookupd`: names, defaults and meanings of nsqlookupd 1.3, and pyqd's own.

Source: docs/nsq/config.md, "nsqlookupd".
"""

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any, Final

from pyqd.config.options import TLS_VERSION, TLS_VERSIONS
from pyqd.config.program_options import ProgramOptions, declare_http_allow_host, declare_http_allow_origin
from pyqd.config.settings import Program
from pyqd.primitives.addresses import require_host
from pyqd.primitives.durations import MINUTE_NS, SECOND_NS
from pyqd.primitives.goflags import DURATION, STRING, declare_field, declared_flags

PROGRAM: Final = "pyqlookupd"
SYNOPSIS: Final = """\
pyqlookupd [flags]                          the lookup daemon; its flags are below
pyqlookupd --check-config [flags]           print the settings in force, or all errors; starts nothing
pyqlookupd --help                           this text
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions(ProgramOptions):
    """Settings of the lookup daemon."""

    config: str = declare_field("", "path of a configuration file, TOML with nsqlookupd's keys", key=None)
    log_prefix: str = declare_field("[pyqlookupd] ", "text before each log line")
    tcp_address: str = declare_field("0.0.0.0:4160", "<addr>:<port> for brokers")
    http_address: str = declare_field("0.0.0.0:4161", "<addr>:<port> for HTTP clients; empty for none")
    https_address: str = declare_field("0.0.0.0:4162", "<addr>:<port> for HTTPS, if TLS is set up; empty for none")
    http_allow_host: tuple[str, ...] = declare_http_allow_host()
    http_allow_origin: tuple[str, ...] = declare_http_allow_origin()
    broadcast_address: str = declare_field(
        socket.gethostname,
        "address of this lookup daemon in its answers to brokers, without a port",
        kind=STRING,
        default_text="the host name",
        require=require_host,
    )
    tls_cert: str = declare_field("", "path of the TLS certificate for HTTPS, with its chain")
    tls_key: str = declare_field("", "path of the TLS key")
    tls_client_auth_policy: str = declare_field(
        "", "client certificates: require (any), or require-verify (one of --tls-root-ca-file); implies --tls-required"
    )
    tls_root_ca_file: str = declare_field("", "path of the certificates of authorities that check client certificates")
    tls_required: bool = declare_field(False, "refuse HTTP clients without TLS; brokers have none")
    tls_min_version: int = declare_field(
        TLS_VERSIONS["tls1.2"], "lowest TLS version: tls1.0, tls1.1, tls1.2 or tls1.3", kind=TLS_VERSION
    )
    http_auth_token_file: str = declare_field("", "path of the file of tokens for the HTTP API")
    inactive_producer_timeout_ns: int = declare_field(
        5 * MINUTE_NS, "time after the last PING of a broker until lookups omit it", kind=DURATION, minimum=1
    )
    tombstone_lifetime_ns: int = declare_field(
        45 * SECOND_NS, "time for which a tombstone hides a broker", kind=DURATION, minimum=1
    )
    max_connections: int = declare_field(
        0, "maximum number of brokers; 0 is what the limit of open files allows", minimum=0
    )
    max_http_connections: int = declare_field(1000, "maximum number of HTTP connections; 0 is no limit", minimum=0)


# Keyed by the first flag of the group.
GROUPS: Final = {
    "version": "General",
    "tcp-address": "Addresses",
    "tls-cert": "TLS and login",
    "inactive-producer-timeout": "Registrations",
    "max-connections": "Limits on connections",
}


def options_of(given: Mapping[str, Any], notices: tuple[str, ...]) -> LookupOptions:
    """Return the options for values by attribute. Client certificates imply TLS."""
    values = dict(given)
    if values.get("tls_client_auth_policy"):
        values["tls_required"] = True
    return LookupOptions(**values, notices=notices)


LOOKUP_DAEMON: Final = Program(PROGRAM, declared_flags(LookupOptions, GROUPS), SYNOPSIS, options_of)
