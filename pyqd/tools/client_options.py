"""Options of NSQ's Go client by name, for --consumer-opt and --producer-opt, as settings of pyqd.client.

Source: docs/nsq/client-behaviour.md; docs/tools/README.md, "Options of the client".
"""

from __future__ import annotations

import re
import ssl
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyqd.client.consumption import RetryPolicy
from pyqd.client.errors import SettingError
from pyqd.primitives.addresses import TcpAddress, is_ip_address, split_address
from pyqd.primitives.durations import (
    HOUR_NS,
    MILLISECOND_NS,
    MINUTE_NS,
    SECOND_NS,
    format_duration,
    parse_bool,
    parse_duration,
    parse_int,
)
from pyqd.primitives.goflags import FlagType, suggestion

# Go's client waits without end if a timeout is 0.
NO_TIMEOUT_S: Final = 86_400.0
REQUEUE_DELAY_S: Final = 90.0
REQUEUE_DELAY_MAX_S: Final = 900.0
BACKOFF_MAX_S: Final = 120.0
POLL_MIN_NS: Final = 10 * MILLISECOND_NS
TIMEOUT_MIN_NS: Final = 100 * MILLISECOND_NS
TIMEOUT_MAX_NS: Final = 5 * MINUTE_NS
READ_TIMEOUT_NS: Final = 60 * SECOND_NS
HEARTBEAT_NS: Final = 30 * SECOND_NS
TLS_VERSIONS: Final = {
    "ssl3.0": ssl.TLSVersion.MINIMUM_SUPPORTED,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
BACKOFF_STRATEGIES: Final = ("exponential", "full_jitter")

_INTEGER = re.compile(r"[+-]?[0-9]+")


def _duration_of(text: str) -> int:
    """Return a duration in ns; whole numbers are milliseconds."""
    return int(text) * MILLISECOND_NS if _INTEGER.fullmatch(text) else parse_duration(text)


def _address_of(text: str) -> str:
    address = split_address(text)
    if not isinstance(address, TcpAddress):
        raise ValueError(f"address {text}: missing port in address")
    if not is_ip_address(address.host):
        raise ValueError(f"address {text}: expected an IP address before the port")
    return text


def _file_of(text: str) -> str:
    try:
        with open(text, "rb"):
            return text
    except OSError as error:
        raise ValueError(f"cannot read {text}: {error.strerror}") from None


def _one_of(words: Iterable[str]) -> Callable[[str], str]:
    known = tuple(words)

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"expected {', '.join(known[:-1])} or {known[-1]}")
        return text

    return parse


BOOL: Final = FlagType("", parse_bool)
INT: Final = FlagType("", parse_int)
NUMBER: Final = FlagType("", float, lambda value: f"{value:g}")
DURATION: Final = FlagType("", _duration_of, format_duration)
TEXT: Final = FlagType("", str)
ADDRESS: Final = FlagType("", _address_of)
FILE: Final = FlagType("", _file_of)
STRATEGY: Final = FlagType("", _one_of(BACKOFF_STRATEGIES))
TLS_VERSION: Final = FlagType("", _one_of(TLS_VERSIONS))


class ClientOption(NamedTuple):
    """Option of Go's client. least, most: inclusive limits, None for none. setting: of pyqd.client with this value.

    Without a setting the option is handled by ClientOptions, or has no effect.
    """

    type: FlagType
    least: int | None = None
    most: int | None = None
    setting: str = ""


OPTIONS: Final[Mapping[str, ClientOption]] = {
    "dial_timeout": ClientOption(DURATION, 0),
    "read_timeout": ClientOption(DURATION, TIMEOUT_MIN_NS, TIMEOUT_MAX_NS, "silence_timeout"),
    "write_timeout": ClientOption(DURATION, TIMEOUT_MIN_NS, TIMEOUT_MAX_NS),
    "local_addr": ClientOption(ADDRESS, setting="local_address"),
    "lookupd_poll_interval": ClientOption(DURATION, POLL_MIN_NS, TIMEOUT_MAX_NS, "lookupd_poll_interval"),
    "lookupd_poll_jitter": ClientOption(NUMBER, 0, 1, "lookupd_poll_jitter"),
    "lookupd_poll_timeout": ClientOption(DURATION, 0),
    "max_requeue_delay": ClientOption(DURATION, 0, HOUR_NS),
    "default_requeue_delay": ClientOption(DURATION, 0, HOUR_NS),
    "backoff_strategy": ClientOption(STRATEGY),
    "max_backoff_duration": ClientOption(DURATION, 0, HOUR_NS, "backoff"),
    "backoff_multiplier": ClientOption(DURATION, 0, HOUR_NS, "backoff_first_s"),
    "max_attempts": ClientOption(INT, 0, 65535),
    "low_rdy_idle_timeout": ClientOption(DURATION, SECOND_NS, TIMEOUT_MAX_NS, "low_rdy_idle_s"),
    "low_rdy_timeout": ClientOption(DURATION, SECOND_NS, TIMEOUT_MAX_NS, "low_rdy_s"),
    "rdy_redistribute_interval": ClientOption(DURATION, MILLISECOND_NS, 5 * SECOND_NS),
    "client_id": ClientOption(TEXT, setting="client_id"),
    "hostname": ClientOption(TEXT, setting="hostname"),
    "user_agent": ClientOption(TEXT),
    "heartbeat_interval": ClientOption(DURATION, MILLISECOND_NS, setting="heartbeat_interval"),
    "sample_rate": ClientOption(INT, 0, 99, "sample_rate"),
    "tls_v1": ClientOption(BOOL),
    "tls_root_ca_file": ClientOption(FILE, setting="tls_ca"),
    "tls_cert": ClientOption(FILE, setting="tls_cert"),
    "tls_key": ClientOption(FILE, setting="tls_key"),
    "tls_insecure_skip_verify": ClientOption(BOOL),
    "tls_min_version": ClientOption(TLS_VERSION),
    "deflate": ClientOption(BOOL),
    "deflate_level": ClientOption(INT, 1, 9, "deflate_level"),
    "snappy": ClientOption(BOOL),
    "output_buffer_size": ClientOption(INT, -1, setting="output_buffer_size"),
    "output_buffer_timeout": ClientOption(DURATION, -MILLISECOND_NS),
    "max_in_flight": ClientOption(INT, 0),
    "msg_timeout": ClientOption(DURATION, 0),
    "auth_secret": ClientOption(TEXT),
    "skip_lookupd_authorization": ClientOption(BOOL),
    "topology_region": ClientOption(TEXT, setting="topology_region"),
    "topology_zone": ClientOption(TEXT, setting="topology_zone"),
}
CONSUMER_SETTINGS: Final = ("backoff", "backoff_first_s", "low_rdy_idle_s", "low_rdy_s")


def parse_client_option(text: str) -> tuple[str, Any]:
    """Return name and value of `name,value`, or of `name` for true. Raises: ValueError with the client's text."""
    name, comma, value_text = text.partition(",")
    name = name.replace("-", "_")
    option = OPTIONS.get(name)
    if option is None:
        raise ValueError(f"invalid option {name}{suggestion(name, OPTIONS)}")
    if not comma:
        value_text = "true"
    try:
        value = option.type.parse(value_text)
    except ValueError as error:
        raise ValueError(f"failed to coerce option {name} ({value_text}) - {error}") from None
    # Comparisons that are false for NaN.
    if option.least is not None and not value >= option.least:
        raise ValueError(f"invalid {name} ! {option.type.show(value)} < {option.type.show(option.least)}")
    if option.most is not None and not value <= option.most:
        raise ValueError(f"invalid {name} ! {option.type.show(value)} > {option.type.show(option.most)}")
    return name, value


CLIENT_OPTION: Final = FlagType("name,value", parse_client_option)


@dataclass(frozen=True)
class ClientOptions:
    """Options of a command line, by name; times in ns. user_agent: of the tool.

    max_in_flight and user_agent of the command line have no effect, because each tool sets both.
    """

    values: Mapping[str, Any]
    user_agent: str

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Any]], user_agent: str) -> ClientOptions:
        """Return the options of flag values; the last value of an option wins. Raises: SettingError."""
        values = dict(pairs)
        if values.get("heartbeat_interval", HEARTBEAT_NS) > values.get("read_timeout", READ_TIMEOUT_NS):
            raise SettingError("HeartbeatInterval must be less than ReadTimeout")
        if values.get("deflate") and values.get("snappy"):
            raise SettingError("cannot enable both deflate and snappy compression")
        return cls(values, user_agent)

    def producer_keywords(self) -> dict[str, Any]:
        """Return keywords of pyqd.client.aio.Producer. Raises: SettingError."""
        keywords = self._plain() | self._transport()
        return {name: value for name, value in keywords.items() if name not in CONSUMER_SETTINGS}

    def consumer_keywords(self) -> dict[str, Any]:
        """Return keywords of pyqd.client.aio.Consumer, except for max_in_flight. Raises: SettingError."""
        values = self.values
        keywords = {"backoff": BACKOFF_MAX_S, **self._plain(), **self._transport()}
        keywords["backoff_jitter"] = values.get("backoff_strategy") == "full_jitter"
        if "rdy_redistribute_interval" in values:
            keywords["redistribute_s"] = max(0.01, values["rdy_redistribute_interval"] / SECOND_NS)
        keywords["retry"] = RetryPolicy(
            delay=self._seconds("default_requeue_delay", REQUEUE_DELAY_S),
            max_delay=self._seconds("max_requeue_delay", REQUEUE_DELAY_MAX_S),
        )
        return keywords

    def _seconds(self, name: str, default_s: float) -> float:
        value_ns = self.values.get(name)
        return default_s if value_ns is None else value_ns / SECOND_NS

    def _plain(self) -> dict[str, Any]:
        """Return the settings that have the value of an option."""
        keywords: dict[str, Any] = {"user_agent": self.user_agent}
        for name, value in self.values.items():
            option = OPTIONS[name]
            if option.setting:
                keywords[option.setting] = value / SECOND_NS if option.type is DURATION else value
        return keywords

    def _transport(self) -> dict[str, Any]:
        values = self.values
        keywords: dict[str, Any] = {}
        for name, setting in (("dial_timeout", "connect_timeout"), ("lookupd_poll_timeout", "lookupd_timeout")):
            if name in values:
                keywords[setting] = min(NO_TIMEOUT_S, values[name] / SECOND_NS or NO_TIMEOUT_S)
        if values.get("output_buffer_timeout"):
            keywords["output_buffer_timeout"] = max(0.0, values["output_buffer_timeout"] / SECOND_NS)
        if values.get("msg_timeout"):
            keywords["msg_timeout"] = values["msg_timeout"] / SECOND_NS
        if values.get("deflate") or values.get("snappy"):
            keywords["compression"] = "snappy" if values.get("snappy") else "deflate"
        secret = values.get("auth_secret")
        if secret:
            keywords["auth_secret"] = secret
            # The option's name says the opposite of its effect in Go's client.
            if values.get("skip_lookupd_authorization", True):
                keywords["lookupd_token"] = secret
        return keywords | self._tls()

    def _tls(self) -> dict[str, Any]:
        values = self.values
        keywords: dict[str, Any] = {
            "tls": bool(values.get("tls_v1")),
            "tls_verify": not values.get("tls_insecure_skip_verify"),
        }
        version = values.get("tls_min_version")
        if version is not None and keywords["tls"]:
            keywords["tls"] = self._tls_context(TLS_VERSIONS[version])
        return keywords

    def _tls_context(self, minimum: ssl.TLSVersion) -> ssl.SSLContext:
        """Return a context with a minimum version of TLS. Raises: SettingError."""
        values = self.values
        try:
            context = ssl.create_default_context(cafile=values.get("tls_root_ca_file"))
            if "tls_cert" in values:
                context.load_cert_chain(values["tls_cert"], values.get("tls_key"))
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"tls_root_ca_file, tls_cert or tls_key: {error}") from error
        if values.get("tls_insecure_skip_verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        with warnings.catch_warnings():
            # Old brokers may have versions before 1.2.
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = minimum
        return context
