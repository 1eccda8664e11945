"""Settings of producers and consumers, and the addresses and URLs that name brokers and lookup daemons.

Source: docs/client.md, "Settings"; docs/nsq/tcp-protocol.md, "IDENTIFY".
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pyqd import __version__
from pyqd.client.core.discovery import parse_lookup_addresses
from pyqd.client.errors import SettingError
from pyqd.primitives.addresses import Address, TcpAddress, UnixAddress, is_ip_address, split_address

TCP_PORT: Final = 4150
URL_SCHEMES: Final = ("nsq", "pyqd")
TRUE_TEXTS: Final = frozenset({"1", "true", "yes", "on"})
File = str | os.PathLike[str]
FALSE_TEXTS: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options that producers and consumers share; each is also a keyword of theirs. Times are in seconds.

    None means the broker's own value.
    """

    client_id: str | None = None
    """Name of this client in the broker's statistics; the host name up to its first dot by default."""
    hostname: str | None = None
    user_agent: str = f"pyqd-client/{__version__}"
    connect_timeout: float = 5.0
    """Time for connecting, TLS and IDENTIFY together."""
    heartbeat_interval: float = 30.0
    """The broker sends a heartbeat this often."""
    silence_timeout: float | None = None
    """A connection without any bytes for this time is closed; None for twice heartbeat_interval."""
    not_connected_timeout: float | None = None
    """A publish fails after this time without a connection to any broker; None for the timeout of the publish."""
    local_address: str | None = None
    """Address of this machine to connect from, such as `10.0.0.5` or `10.0.0.5:0`; None for the system's choice."""
    msg_timeout: float | None = None
    """Time after which the broker gives an unanswered message to another consumer."""
    sample_rate: int = 0
    """Percentage of the channel's messages that this consumer wants; 0 for all."""
    output_buffer_size: int | None = None
    output_buffer_timeout: float | None = None
    tls: bool | ssl.SSLContext = False
    tls_ca: File | None = None
    """File of certificates to trust instead of the system's."""
    tls_cert: File | None = None
    tls_key: File | None = None
    tls_key_password: str | None = dataclasses.field(default=None, repr=False)
    """Password of tls_key, if the file is encrypted."""
    tls_verify: bool = True
    tls_server_name: str | None = None
    """Name to expect in the broker's certificate; the host of the address by default."""
    compression: Literal["snappy", "deflate"] | None = None
    deflate_level: int = 6
    auth_secret: str | None = dataclasses.field(default=None, repr=False)
    topology_region: str | None = None
    topology_zone: str | None = None
    lookupd_poll_interval: float = 60.0
    lookupd_poll_jitter: float = 0.3
    lookupd_timeout: float = 10.0
    lookupd_token: str | None = dataclasses.field(default=None, repr=False)
    reconnect_first: float = 0.1
    reconnect_max: float = 15.0
    http: str | Iterable[str] | None = None
    """Addresses of the brokers' HTTP API, for cancel() and reschedule(); port 4151 of each broker by default."""
    http_token: str | None = dataclasses.field(default=None, repr=False)
    trusted_brokers: str | Iterable[str] | None = None
    """Brokers of lookup daemons that get http_token: hosts, `host:port`, `*.domain` or networks."""

    def __post_init__(self) -> None:
        for name, field in NAMES.items():
            kinds = TEXT_KINDS.get(str(field.type))
            if kinds is not None and not isinstance(getattr(self, name), kinds):
                # The value may be a secret.
                raise SettingError(f"{name}: expected text, not {type(getattr(self, name)).__name__}")
        check_range("sample_rate", self.sample_rate, 0, 99)
        check_range("deflate_level", self.deflate_level, 1, 9)
        check_range("lookupd_poll_jitter", self.lookupd_poll_jitter, 0.0, 1.0)
        for name in TIMES:
            check_range(name, getattr(self, name), 0.001, 1e9)
        if self.silence_timeout is not None:
            check_range("silence_timeout", self.silence_timeout, self.heartbeat_interval, 1e9)
        if self.not_connected_timeout is not None:
            check_range("not_connected_timeout", self.not_connected_timeout, 0.001, 1e9)
        if self.local_address is not None:
            self.local_endpoint()
        check_range("reconnect_first", self.reconnect_first, 0.001, self.reconnect_max)
        for name in ("msg_timeout", "output_buffer_size", "output_buffer_timeout"):
            if getattr(self, name) is not None:
                # -1: a broker without a buffer.
                check_range(name, getattr(self, name), -1 if name == "output_buffer_size" else 0, 1e9)
        if self.compression not in (None, "snappy", "deflate"):
            raise SettingError(f"compression={self.compression!r}: expected 'snappy', 'deflate' or None")
        self._check_tls()

    def _check_tls(self) -> None:
        """Refuse options of TLS that would have no effect: a user who gives them expects TLS."""
        if not isinstance(self.tls, (bool, ssl.SSLContext)):
            raise SettingError(f"tls={self.tls!r}: expected True, False or an ssl.SSLContext")
        given = [name for name in TLS_OPTIONS if getattr(self, name) is not None]
        if given and self.tls is False:
            raise SettingError(f"{given[0]} is given, but TLS is off: add tls=True")
        if isinstance(self.tls, ssl.SSLContext) and given not in ([], ["tls_server_name"]):
            raise SettingError(f"{given[0]} and an ssl.SSLContext are given: load the files into the context")
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise SettingError("tls_cert and tls_key are given together")

    def local_endpoint(self) -> tuple[str, int] | None:
        """Return host and port to connect from; None for the system's choice. Raises: SettingError."""
        text = self.local_address
        if text is None:
            return None
        if is_ip_address(text.strip("[]")):
            return text.strip("[]"), 0
        try:
            address = split_address(text)
        except ValueError as error:
            raise SettingError(f"local_address: {error}") from None
        if not isinstance(address, TcpAddress) or not is_ip_address(address.host):
            raise SettingError(f"local_address={text!r}: expected an IP address, or an IP address and a port")
        return address.host, address.port

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without TLS. Raises: SettingError for the files."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise SettingError(f"tls_ca={self.tls_ca}: {error}") from error
        if self.tls_cert is not None:
            self._load_certificate(context, self.tls_cert)
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _load_certificate(self, context: ssl.SSLContext, path: File) -> None:
        def password() -> str:
            # Without this function OpenSSL would ask on the terminal.
            if self.tls_key_password is None:
                raise SettingError(f"tls_key={self.tls_key} is encrypted: give tls_key_password=")
            return self.tls_key_password

        try:
            context.load_cert_chain(path, self.tls_key, password)
        except OSError as error:
            hint = "" if self.tls_key_password is None else "; is tls_key_password right?"
            raise SettingError(f"tls_cert={path}, tls_key={self.tls_key}: {error}{hint}") from error

    def identity(self) -> dict[str, object]:
        """Return the fields of IDENTIFY."""
        hostname = self.hostname or socket.gethostname()
        client_id = self.client_id or hostname.split(".", 1)[0]
        fields: dict[str, object] = {
            "client_id": client_id,
            "hostname": hostname,
            "short_id": client_id,
            "long_id": hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "message_ids": True,
            "heartbeat_interval": round(self.heartbeat_interval * 1000),
            "tls_v1": bool(self.tls),
            "snappy": self.compression == "snappy",
            "deflate": self.compression == "deflate",
        }
        if self.compression == "deflate":
            fields["deflate_level"] = self.deflate_level
        optional = {
            "sample_rate": self.sample_rate or None,
            "msg_timeout": _to_ms(self.msg_timeout),
            "output_buffer_size": self.output_buffer_size,
            # On the wire 0 means the broker's own value, and -1 no timeout.
            "output_buffer_timeout": -1 if self.output_buffer_timeout == 0 else _to_ms(self.output_buffer_timeout),
            "topology_region": self.topology_region,
            "topology_zone": self.topology_zone,
        }
        return fields | {name: value for name, value in optional.items() if value is not None}


# Types of the values of fields with these annotations.
TEXT_KINDS: Final = {
    "str": (str,),
    "str | None": (str, type(None)),
    "File | None": (str, os.PathLike, type(None)),
}
# Parameters that are not settings, for advice about wrong names.
PARAMETERS: Final = {
    "nsqd": "Consumer and Producer",
    "lookupd": "Consumer and Producer",
    "codec": "Consumer and Producer",
    "timeout": "Producer",
    "max_pending_bytes": "Producer",
    "retry_unanswered": "Producer",
    "max_in_flight": "Consumer",
    "retry": "Consumer",
    "auto_touch": "Consumer",
    "backoff": "Consumer",
}
# Names of other client libraries.
OTHER_NAMES: Final = {
    "nsqd_tcp_addresses": "nsqd",
    "lookupd_http_addresses": "lookupd",
    "tls_v1": "tls",
    "snappy": "compression",
    "deflate": "compression",
    "max_tries": "retry",
    "max_backoff_duration": "backoff",
}
NAMES: Final = {field.name: field for field in dataclasses.fields(Settings)}
TIMES: Final = (
    "connect_timeout",
    "heartbeat_interval",
    "lookupd_poll_interval",
    "lookupd_timeout",
    "reconnect_first",
    "reconnect_max",
)
TLS_OPTIONS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_key_password", "tls_server_name")


class BrokerTargets(NamedTuple):
    """Brokers and lookup daemons to work with, and the settings that URLs gave. timeout: of producers, in seconds."""

    brokers: tuple[Address, ...]
    lookupd: tuple[str, ...]
    settings: Mapping[str, Any]
    timeout: float | None = None


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings with these values. Raises: SettingError, which names the nearest option."""
    check_names(given)
    return Settings(**given)


def check_names(given: Iterable[str]) -> None:
    """Check the names of options. Raises: SettingError, which names the nearest option."""
    for name in given:
        if name not in NAMES:
            raise SettingError(f"unknown option {name}{_hint(name)}")


def _hint(name: str) -> str:
    """Return advice about an unknown option."""
    if name in PARAMETERS:
        return f": it is a parameter of {PARAMETERS[name]}"
    import difflib

    near = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, (*NAMES, *PARAMETERS), 1)), None)
    return f"; did you mean {near}?" if near else ""


def parse_targets(nsqd: str | Iterable[Any] | None, lookupd: str | Iterable[str] | None) -> BrokerTargets:
    """Return the brokers, lookup daemons and settings that addresses and URLs name. Raises: SettingError.

    nsqd: `host:4150`, `host`, `[::1]:4150`, a path of a unix socket, or a URL such as
    `nsq://host:4150,host2?lookupd=host3:4161&tls=true`; several of them separated by commas, or in a list.
    """
    brokers: list[Address] = []
    daemons = _flatten(lookupd)
    settings: dict[str, Any] = {}
    timeout: float | None = None
    for text in _flatten(nsqd):
        if "://" not in text:
            brokers += [parse_address(part.strip()) for part in text.split(",") if part.strip()]
            continue
        found = _parse_url(text)
        brokers += found.brokers
        daemons += found.lookupd
        settings |= found.settings
        timeout = timeout if found.timeout is None else found.timeout
    daemons = [part.strip() for text in daemons for part in text.split(",") if part.strip()]
    if not brokers and not daemons:
        raise SettingError("no broker is named: give nsqd='host:4150', or lookupd='host:4161'")
    return BrokerTargets(tuple(dict.fromkeys(brokers)), parse_lookup_addresses(daemons), settings, timeout)


def parse_address(text: str) -> Address:
    """Return a broker's address; its port is 4150 if none is given. Raises: SettingError."""
    if text.startswith(("/", "./", "../")):
        return unix_address(text)
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" not in host or is_ip_address(host):
        _check_host(host, text)
        return TcpAddress(host, TCP_PORT)
    try:
        address = split_address(text)
    except ValueError as error:
        raise SettingError(f"{error}, in {text!r}") from None
    if not isinstance(address, TcpAddress) or not 1 <= address.port <= 65535:
        raise SettingError(f"address {text!r}: expected host:port, such as 127.0.0.1:4150")
    _check_host(address.host, text)
    return address


def unix_address(path: str) -> UnixAddress:
    """Return the address of a unix socket. Raises: SettingError on a system without them."""
    try:
        return UnixAddress(path)
    except ValueError as error:
        raise SettingError(str(error)) from None


def _check_host(host: str, text: str) -> None:
    # Digits alone are a port without a host.
    if not host or host.isdigit() or any(char.isspace() or char in "/@" for char in host):
        raise SettingError(f"address {text!r}: expected host:port, such as 127.0.0.1:4150")


def _flatten(values: object) -> list[str]:
    """Return the texts in a text, a list of texts, or a list of lists. Raises: SettingError."""
    if values is None:
        return []
    if isinstance(values, str):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (bytes, bytearray)):
        raise SettingError(f"address {values!r}: expected text such as '127.0.0.1:4150'")
    return [text for value in values for text in _flatten(value)]


def _parse_url(text: str) -> BrokerTargets:
    shown = re.sub("//.*@", "//...@", text)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise SettingError(f"{shown!r}: {error}") from None
    if parts.scheme not in URL_SCHEMES:
        hint = "; the client uses the broker's TCP port" if parts.scheme in ("http", "https") else ""
        raise SettingError(f"{shown!r}: expected a URL such as nsq://host:4150,host2?lookupd=host3:4161{hint}")
    netloc = parts.netloc
    settings: dict[str, Any] = {}
    if "@" in netloc:
        secret, _, netloc = netloc.rpartition("@")
        settings["auth_secret"] = unquote(secret.rpartition(":")[2])
    brokers = [parse_address(host) for host in netloc.split(",") if host]
    if not netloc and parts.path.strip("/"):
        brokers = [unix_address(unquote(parts.path))]
    elif parts.path.strip("/"):
        raise SettingError(f"{shown!r}: a URL with a host has no path")
    daemons: list[str] = []
    timeout: float | None = None
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "lookupd":
            daemons.append(value)
        elif name == "timeout":
            timeout = _parse_value(name, "float", value)
            check_timeout(timeout)
        elif name in NAMES:
            settings[name] = _parse_value(name, str(NAMES[name].type), value)
        else:
            make_settings({name: value})
    return BrokerTargets(tuple(brokers), tuple(daemons), settings, timeout)


def _parse_value(name: str, kind: str, text: str) -> Any:
    """Return the value of an option in a URL. kind: the type of its field. Raises: SettingError."""
    try:
        if "bool" in kind:
            if text.lower() in TRUE_TEXTS | FALSE_TEXTS:
                return text.lower() in TRUE_TEXTS
            raise ValueError
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
    except ValueError:
        raise SettingError(
            f"option {name}={text!r}: expected {'true or false' if 'bool' in kind else 'a number'}"
        ) from None
    return text


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def check_timeout(timeout: object) -> None:
    """Check the timeout of a producer. Raises: SettingError."""
    check_range("timeout", timeout, 0.001, 1e9)


def check_range(name: str, value: object, least: float, most: float) -> None:
    """Check a number. Raises: SettingError."""
    if not isinstance(value, (int, float)) or not least <= value <= most:
        raise SettingError(f"{name}={value!r}: expected a number from {least:g} to {most:g}")
