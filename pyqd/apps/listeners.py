"""Flags about listeners as values of the layers `net` and `http`, which know no flags."""

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from pyqd.config.options import PROGRAM, Options
from pyqd.http.messages import header_lines
from pyqd.http.reader import HttpSettings
from pyqd.net.tls import TlsConfigError, TlsServer, TlsSettings
from pyqd.primitives.addresses import Address, UnixAddress, split_address
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StartupError
from pyqd.primitives.goflags import Flag
from pyqd.primitives.nsq_compat import API_VERSION_HEADER
from pyqd.primitives.sites import Sites

if TYPE_CHECKING:
    from pyqd.lookupd.options import LookupOptions

DaemonOptions: TypeAlias = "Options | LookupOptions"

# Every response names the version of NSQ's API.
API_SETTINGS: Final = HttpSettings(common_headers=header_lines([API_VERSION_HEADER]))


class ListeningAddresses:
    """Addresses of the listeners; None for no listener. https: TLS is set up. Raises: StartupError."""

    def __init__(self, options: DaemonOptions, *, https: bool) -> None:
        mode = options.unix_socket_mode
        self.tcp = parse_address(options.tcp_address, mode)
        self.http = parse_address(options.http_address, mode) if options.http_address else None
        self.https = parse_https_address(options.https_address) if https and options.https_address else None

    def by_name(self) -> dict[str, Address]:
        """Return the addresses of the listeners that there are, by `tcp`, `http` and `https`."""
        every = {"tcp": self.tcp, "http": self.http, "https": self.https}
        return {name: address for name, address in every.items() if address is not None}


def check_addresses(options: DaemonOptions) -> None:
    """Raise StartupError for an invalid address. Without a certificate there is no listener for HTTPS."""
    ListeningAddresses(options, https=bool(options.tls_cert))


# Flags that `check_addresses` depends on.
ADDRESS_FLAGS: Final = ("tcp-address", "http-address", "https-address", "tls-cert")


def parse_address(text: str, mode: int | None = None) -> Address:
    """Return the address that a flag names. mode: of a unix socket. Raises: StartupError with nsqd's text."""
    try:
        address = split_address(text)
        return dataclasses.replace(address, mode=mode) if isinstance(address, UnixAddress) else address
    except ValueError as error:
        raise StartupError(f"listen ({text}) failed - listen tcp: {error}") from error


def parse_https_address(text: str) -> Address:
    """Return the address that --https-address names. Raises: StartupError, also for a path: HTTPS is TCP only."""
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        raise StartupError(f"listen ({text}) failed - listen tcp: address {text}: missing port in address")
    return address


def tls_server(options: DaemonOptions, program: str = PROGRAM) -> TlsServer:
    """Return the source of TLS connections of a program. Raises: StartupError if flags or their files are invalid."""
    settings = TlsSettings(
        certificate_path=options.tls_cert,
        key_path=options.tls_key,
        client_auth_policy=options.tls_client_auth_policy,
        root_ca_file=options.tls_root_ca_file,
        min_version=options.tls_min_version,
        required=bool(options.tls_required),
    )
    try:
        return TlsServer(settings)
    except TlsConfigError as error:
        raise StartupError(f"failed to instantiate {program} - {error}") from error


def tls_flags(flags: Iterable[Flag]) -> tuple[str, ...]:
    """Return the names of the flags that `tls_server` depends on."""
    return tuple(flag.name for flag in flags if flag.name.startswith("tls-"))


def http_settings(options: Options) -> HttpSettings:
    return dataclasses.replace(
        API_SETTINGS,
        idle_s=timeout_s(options.http_idle_timeout_ns),
        header_s=timeout_s(options.http_header_timeout_ns),
        body_s=timeout_s(options.http_body_timeout_ns),
        write_s=timeout_s(options.http_write_timeout_ns),
        header_bytes_max=options.max_http_header_size,
    )


def accepted_sites(options: DaemonOptions) -> Sites:
    return Sites(options.broadcast_address, options.http_allow_host, options.http_allow_origin)


def timeout_s(time_ns: int) -> float:
    """Return a timeout in seconds; 0 is no limit."""
    return time_ns / SECOND_NS if time_ns else math.inf
