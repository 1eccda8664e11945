"""Options of the Spark formats: a table of known options, which are parsed and checked at once.

Spark passes options as text, under case-insensitive names. Each format has a table. An unknown option is refused, and
the error names the nearest one: a misspelt limit that is ignored would be noticed too late.
"""

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pyqd.client.http import HTTP_PORT, HTTPS_PORT
from pyqd.client.trust import TrustedBrokers

LOOKUPD_HTTP_PORT: Final = 4161

REQUEST_TIMEOUT_MS: Final = 30_000
RETRY_TIMEOUT_MS: Final = 60_000

_told: set[str] = set()

logger = logging.getLogger(__name__)


class OptionError(ValueError):
    """An option is unknown, missing, contradicts another one, or has an invalid value. The text names it."""


@dataclass(frozen=True)
class Option:
    """One option. parse: turns its text into a value; raises ValueError, whose text describes valid values."""

    name: str
    parse: Callable[[str], Any]
    default: Any = None


def parse_options(source: str, given: Mapping[str, str | None], known: Iterable[Option]) -> dict[str, Any]:
    """Return the value of each known option by its name, defaults included.

    source: name of the format, for errors. given: from Spark; None counts as not given. Raises: OptionError.
    """
    option_of = {option.name.lower(): option for option in known}
    values = {option.name: option.default for option in option_of.values()}
    for name, text in given.items():
        option = option_of.get(name.lower())
        if option is None:
            raise OptionError(f'{source}: no option "{name}"{nearest(name, option_of.values())}')
        if text is None:
            continue
        try:
            values[option.name] = option.parse(str(text).strip())
        except ValueError as error:
            raise OptionError(f"{source}: option {option.name}={text!r}: {error}") from None
    return values


def nearest(name: str, known: Iterable[Option]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, else all known ones."""
    names = {option.name.lower(): option.name for option in known}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{names[close[0]]}"?'
    return "; there are " + ", ".join(sorted(names.values(), key=str.lower))


def exactly_one(source: str, values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the one given option of these. Raises: OptionError if not exactly one is given."""
    names = list(names)
    found = [name for name in names if values[name] is not None]
    if len(found) != 1:
        said = " and ".join(found) + " are given" if found else "none is given"
        raise OptionError(f"{source}: exactly one of {', '.join(names)} is needed; {said}")
    return found[0]


def text_of(value: object) -> str | None:
    """Return the text of an option with a value, lists with commas; None if it is not given."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value)
    return None if value is None else str(value)


def parse_flag(text: str) -> bool:
    """Return the boolean of `true` or `false`. Raises: ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def parse_text(text: str) -> str:
    """Return the text. Raises: ValueError if it is empty."""
    if not text:
        raise ValueError("expected some text")
    return text


def count_from(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers within these bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
            bound = f"from {least} on" if most == 2**63 - 1 else f"from {least} to {most}"
            raise ValueError(f"expected a whole number {bound}")
        return int(text)

    return parse


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once, in order. Raises: ValueError if there is none."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("expected a list of names, separated by commas")
    return names


def addresses_with(default_port: int) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of HTTP addresses, separated by commas: `host:port`, `host`, or a URL of http or https."""

    def parse(text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(parse_address(entry, default_port) for entry in parse_names(text)))

    return parse


def parse_address(text: str, default_port: int) -> str:
    """Return an address as `host:port`, with `https://` or `http://` before it if given.

    Raises: ValueError.
    """
    scheme, _, rest = text.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ValueError(f"expected host:port, or a URL of http or https, not {text!r}")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address: {error}") from None
    if not host or parts.path.strip("/") or parts.query or parts.username is not None:
        raise ValueError(f"expected host:port, not {text!r}")
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port or default_port}" if scheme else f"{shown}:{port or default_port}"


def parse_trusted(text: str) -> tuple[str, ...]:
    """Return brokers that get the token, separated by commas. Raises: ValueError."""
    names = parse_names(text)
    TrustedBrokers(names)
    return names


# Options of the connection to brokers; part of the table of every format.
CONNECTION: Final = (
    Option("nsqd", addresses_with(HTTP_PORT)),
    Option("lookupd", addresses_with(LOOKUPD_HTTP_PORT)),
    Option("token", parse_text),
    Option("trustedBrokers", parse_trusted, ()),
    Option("tls", parse_flag, False),
    Option("tlsRootCaFile", parse_text),
    Option("tlsCert", parse_text),
    Option("tlsKey", parse_text),
    Option("tlsInsecureSkipVerify", parse_flag, False),
    Option("httpsPort", count_from(1, 65535), HTTPS_PORT),
    Option("requestTimeoutMs", count_from(1, 3_600_000), REQUEST_TIMEOUT_MS),
    Option("retryTimeoutMs", count_from(0, 86_400_000), RETRY_TIMEOUT_MS),
)

ADDRESSES: Final = ("nsqd", "lookupd")
# Times, in milliseconds as options and in seconds as fields.
TIMEOUTS: Final = ("request_timeout", "retry_timeout")


def field_of(option: Option) -> str:
    """Return the name that an option has in BrokerOptions: tls_root_ca_file for tlsRootCaFile."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", option.name)


@dataclass(frozen=True)
class BrokerOptions:
    """Settings of the connection to brokers, as sent to the executors.

    nsqd, lookupd: HTTP addresses; one of the two is empty. token: sent as `Authorization: Bearer` to these, and to
    those of the brokers from lookup daemons that trusted_brokers names. tls: addresses without a scheme use HTTPS;
    brokers from lookup daemons use https_port, because the daemons know the HTTP port only.
    request_timeout_s: of one request, without progress. retry_timeout_s: time for retries of a failing request.
    """

    nsqd: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = ()
    token: str | None = None
    trusted_brokers: tuple[str, ...] = ()
    tls: bool = False
    tls_root_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_insecure_skip_verify: bool = False
    https_port: int = HTTPS_PORT
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000
    retry_timeout_s: float = RETRY_TIMEOUT_MS / 1000

    @classmethod
    def of(cls, source: str, values: Mapping[str, Any]) -> "BrokerOptions":
        """Return the settings of a connection from the values of its options, by name. Raises: OptionError."""
        exactly_one(source, values, ADDRESSES)
        if values["tlsKey"] is not None and values["tlsCert"] is None:
            raise OptionError(f"{source}: option tlsKey needs tlsCert")
        check_tls_is_used(source, values)
        fields = {field_of(option): values[option.name] for option in CONNECTION}
        for name in ADDRESSES:
            fields[name] = fields[name] or ()
        for name in TIMEOUTS:
            fields[f"{name}_s"] = fields.pop(f"{name}_ms") / 1000
        return cls(**fields)

    def given(self) -> dict[str, str]:
        """Return the options that these settings come from, for a format."""
        values = {f"{name}_ms": int(getattr(self, f"{name}_s") * 1000) for name in TIMEOUTS} | vars(self)
        texts = {option.name: text_of(values[field_of(option)]) for option in CONNECTION}
        return {name: text for name, text in texts.items() if text}

    def token_for(self, address: str) -> str | None:
        """Return the token for an address; None if it may not have secrets."""
        return self.token if self.token is not None and self.may_have_secrets(address) else None

    def may_have_secrets(self, address: str) -> bool:
        """Return whether the options name an address: a lookup daemon takes registrations from everybody."""
        if address in (*self.nsqd, *self.lookupd) or TrustedBrokers(self.trusted_brokers).has(address):
            return True
        if address not in _told:
            _told.add(address)
            logger.warning(
                "%s gets neither token nor secret: only a lookup daemon names it; option trustedBrokers may too",
                address,
            )
        return False


def check_tls_is_used(source: str, values: Mapping[str, Any]) -> None:
    """Check that TLS options are given only if some connection uses TLS. Raises: OptionError."""
    addresses = (*(values["nsqd"] or ()), *(values["lookupd"] or ()))
    if values["tls"] or any(address.startswith("https://") for address in addresses):
        return
    for name in ("tlsRootCaFile", "tlsCert", "tlsInsecureSkipVerify"):
        if values[name]:
            raise OptionError(
                f"{source}: option {name} is given and TLS is not: set tls=true, or write https:// before the addresses"
            )
