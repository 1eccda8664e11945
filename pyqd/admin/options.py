"""Flags of `pyqadmin`: names, defaults and meanings of nsqadmin 1.3, and pyqd's own.

Source: docs/nsq/config.md, "nsqadmin".
"""

import dataclasses
import ipaddress
import posixpath
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pyqd.config.program_options import ProgramOptions, declare_http_allow_host, declare_http_allow_origin
from pyqd.config.settings import Program
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import DURATION, declare_field, declared_flags

PROGRAM: Final = "pyqadmin"
SYNOPSIS: Final = """\
pyqadmin [flags]                            the web admin; its flags are below
pyqadmin user add|list|remove [flags]       users of --users-file; `pyqadmin user --help` tells more
pyqadmin --check-config [flags]             print the settings in force, or all errors; starts nothing
pyqadmin --help                             this text
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ProgramOptions):
    """Settings of the web admin."""

    config: str = declare_field("", "path of a configuration file, TOML with nsqadmin's keys", key=None)
    log_prefix: str = declare_field("[pyqadmin] ", "text before each log line")
    http_address: str = declare_field("0.0.0.0:4171", "<addr>:<port> for browsers and HTTP clients")
    http_allow_host: tuple[str, ...] = declare_http_allow_host()
    http_allow_origin: tuple[str, ...] = declare_http_allow_origin()
    base_path: str = declare_field("/", "path that all URLs begin with, behind a proxy")
    dev_static_dir: str = declare_field("", "serve static files from this directory")
    lookupd_http_address: tuple[str, ...] = declare_field(
        (),
        "HTTP address of a lookup daemon, <addr>:<port> or https://<addr>:<port>; repeatable",
        key="nsqlookupd_http_addresses",
        live=True,
    )
    nsqd_http_address: tuple[str, ...] = declare_field(
        (), "HTTP address of a broker, <addr>:<port> or https://<addr>:<port>; repeatable", key="nsqd_http_addresses"
    )
    http_client_connect_timeout_ns: int = declare_field(
        2 * SECOND_NS, "timeout of connecting to a broker", kind=DURATION, minimum=1
    )
    http_client_request_timeout_ns: int = declare_field(
        5 * SECOND_NS, "timeout of a request to a broker", kind=DURATION, minimum=1
    )
    http_client_tls_insecure_skip_verify: bool = declare_field(False, "do not check certificates of brokers")
    http_client_tls_root_ca_file: str = declare_field("", "path of the certificates of authorities that check brokers")
    http_client_tls_cert: str = declare_field("", "path of the certificate shown to brokers")
    http_client_tls_key: str = declare_field("", "path of the key of this certificate")
    http_client_token_file: str = declare_field("", "path of a file with the token for the HTTP API of the brokers")
    trusted_broker: tuple[str, ...] = declare_field(
        (),
        "host, host:port, *.domain or network of brokers that get the token; those given by flags do; repeatable",
        key="trusted_brokers",
    )
    allow_config_from_cidr: str = declare_field("127.0.0.1/8", "network that may use /config; empty for all")
    acl_http_header: str = declare_field("X-Forwarded-User", "header in which a proxy names the user")
    trusted_proxy: tuple[str, ...] = declare_field(
        (),
        "network of proxies in front: their X-Forwarded-For names the client; without it, everybody may send the other"
        " headers of proxies; repeatable",
        key="trusted_proxies",
    )
    admin_user: tuple[str, ...] = declare_field(
        (),
        "user who may change things, as in --acl-http-header; repeatable; without it everybody may",
        key="admin_users",
    )
    max_http_connections: int = declare_field(1000, "maximum number of connections; 0 is no limit", minimum=0)
    trace_database: str = declare_field(
        "", "URL of the database that `pyq_trace ship` writes, for the lives of messages"
    )
    users_file: str = declare_field("", "path of the file of users, made by `pyqadmin user add`; then all need a login")
    session_timeout_ns: int = declare_field(
        12 * HOUR_NS, "time after which a login ends", kind=DURATION, minimum=MINUTE_NS
    )
    session_key_file: str = declare_field(
        "", "path of a file with a secret of 32 bytes or more that signs logins; without it they end with the process"
    )
    oidc_issuer: str = declare_field("", "URL of an OpenID Connect issuer for logins")
    oidc_client_id: str = declare_field("", "name of pyqadmin at the issuer")
    oidc_client_secret_file: str = declare_field("", "path of a file with the secret that the issuer gave to pyqadmin")
    oidc_claim: str = declare_field("groups", "claim whose values give roles")
    oidc_role: tuple[str, ...] = declare_field(
        (),
        "VALUE=ROLE[:TOPIC,...]: the role for a value of the claim, for topics by pattern; repeatable",
        key="oidc_roles",
    )
    tls_cert: str = declare_field("", "path of the certificate for HTTPS, with its chain")
    tls_key: str = declare_field("", "path of its key")
    notification_http_endpoint: str = declare_field("", "URL that gets a POST for each change")
    graphite_url: str = declare_field("", "URL of Graphite, for links to graphs")
    proxy_graphite: bool = declare_field(False, "forward /render to Graphite")
    prometheus_url: str = declare_field("", "URL of Prometheus, for links to graphs of pyqd's metrics")
    statsd_counter_format: str = declare_field(
        "stats.counters.%s.count", "names of counters in Graphite; empty for plain"
    )
    statsd_gauge_format: str = declare_field("stats.gauges.%s", "names of gauges in Graphite; empty for plain")
    statsd_prefix: str = declare_field("nsq.%s", "prefix of the brokers' names in Graphite, %s for the host")
    statsd_interval_ns: int = declare_field(
        MINUTE_NS, "interval at which the brokers send to statsd", kind=DURATION, minimum=SECOND_NS
    )


# Keyed by the first flag of the group.
GROUPS: Final = {
    "version": "General",
    "http-address": "Addresses",
    "http-client-connect-timeout": "Requests to brokers",
    "allow-config-from-cidr": "Access",
    "notification-http-endpoint": "Notifications and graphs",
}


def options_of(given: Mapping[str, Any], notices: tuple[str, ...]) -> AdminOptions:
    """Return the options for values by attribute. The base path begins with a slash, and does not end with one."""
    values = dict(given)
    values["base_path"] = posixpath.normpath("/" + values.get("base_path", "/").strip("/"))
    return AdminOptions(**values, notices=notices)


def check_options(options: AdminOptions) -> None:
    """Check the options together, as no flag can by itself. Raises: StartupError."""
    for problem in problems_of(options):
        raise StartupError(f"failed to instantiate {PROGRAM} - {problem}")


def problems_of(options: AdminOptions) -> list[str]:
    """Return texts that say why options are invalid, in nsqadmin's order."""
    found = []
    if not options.nsqd_http_address and not options.lookupd_http_address:
        found.append("--nsqd-http-address or --lookupd-http-address required")
    if options.nsqd_http_address and options.lookupd_http_address:
        found.append("use --nsqd-http-address or --lookupd-http-address not both")
    for given, needed in (("cert", "key"), ("key", "cert")):
        if getattr(options, f"http_client_tls_{given}") and not getattr(options, f"http_client_tls_{needed}"):
            found.append(f"--http-client-tls-{needed} must be specified with --http-client-tls-{given}")
    if bool(options.tls_cert) is not bool(options.tls_key):
        found.append("--tls-cert and --tls-key must be given together")
    for flag in ("lookupd-http-address", "nsqd-http-address"):
        for address in getattr(options, flag.replace("-", "_")):
            reason = address_problem(address)
            if reason:
                found.append(f"failed to resolve --{flag} ({address}) - {reason}")
    graphs = (
        ("graphite-url", options.proxy_graphite, options.graphite_url),
        ("prometheus-url", bool(options.prometheus_url), options.prometheus_url),
    )
    found += [
        f"failed to parse --{flag} ({url}) - expected http://host:port"
        for flag, is_needed, url in graphs
        if is_needed and not urlsplit(url).netloc
    ]
    networks = [("allow-config-from-cidr", options.allow_config_from_cidr)] if options.allow_config_from_cidr else []
    networks += [("trusted-proxy", text) for text in options.trusted_proxy]
    for flag, cidr in networks:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            found.append(f"failed to parse --{flag} ({cidr}) - invalid CIDR address: {cidr}")
    return found


def address_problem(address: str) -> str:
    """Return why text is neither host:port nor https://host:port; empty if it is."""
    address = address.removeprefix("https://")
    if "://" in address:
        return "expected host:port, or https:// before it"
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        return f"address {address}: missing port in address" if not colon else f"address {address}: invalid port"
    return "" if host.strip("[]") else f"address {address}: missing host"


ADMIN: Final = Program(PROGRAM, declared_flags(AdminOptions, GROUPS), SYNOPSIS, options_of)
