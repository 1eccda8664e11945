"""Discovery of brokers through lookup daemons: addresses, queries, answers, and the schedule of polls.

There are no sockets here: the caller sends the GET request and gives back status, headers and body.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import random
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from pyqd.client.errors import LookupFailedError, SettingError
from pyqd.primitives.backoff import Backoff

log = logging.getLogger("pyqd.client")

# Headers of a request. Without the first one nsqlookupd of before 1.0 wraps its answer.
LOOKUP_MEDIA_TYPE = "application/vnd.nsq; version=1.0"
CONTENT_TYPE = "nsq; version=1.0"
LOOKUP_PATH = "/lookup"
NODES = "nodes"
PORT_MAX = 65535
TRIES_MAX = 3
# Polls that lost connections ask for are at least this far apart, and a poll without an answer is repeated after it.
GAP_S = 1.0
EXCERPT_BYTES = 80
WARNINGS_KNOWN_MAX = 256
# Answers of other HTTP servers, such as a broker's, to a query for brokers.
UNKNOWN_PATH = (400, 404, 405)
ADDRESS_HINT = "is this a lookup daemon's HTTP address, port 4161 by default?"


class TopicUnknownError(LookupFailedError):
    """The lookup daemon works, but no broker has registered the topic with it yet."""


class BrokerAddress(NamedTuple):
    """A broker that a lookup daemon names. http_port is 0 if the broker has none."""

    host: str
    tcp_port: int
    http_port: int
    hostname: str
    version: str


# Addresses of lookup daemons.


def parse_lookup_addresses(values: Iterable[str]) -> tuple[str, ...]:
    """Return the URLs of lookup daemons, without duplicates, in order.

    values: host:port, or http and https URLs with a port. A URL without a path gets /lookup.
    Raises: SettingError.
    """
    return tuple(dict.fromkeys(_lookup_base(text) for text in values))


def _lookup_base(text: str) -> str:
    stripped = text.strip()
    try:
        parts = urlsplit(stripped if "://" in stripped else f"http://{stripped}")
        port = parts.port
    except ValueError as error:
        raise SettingError(f"lookup address {text!r}: {error}") from None
    host = parts.hostname
    if parts.scheme not in ("http", "https"):
        raise SettingError(f"lookup address {text!r}: scheme {parts.scheme!r}; use http or https")
    if not host or any(character.isspace() for character in stripped):
        raise SettingError(f"lookup address {text!r}: missing host; write for example 127.0.0.1:4161")
    if port is None:
        raise SettingError(f"lookup address {text!r}: missing port; lookup daemons listen on 4161 by default")
    if port == 0:
        raise SettingError(f"lookup address {text!r}: port 0")
    if parts.username is not None:
        raise SettingError("lookup address with a user or password: use the option for a secret")
    path = parts.path if parts.path not in ("", "/") else LOOKUP_PATH
    shown = f"[{host}]" if ":" in host else host
    return SplitResult(parts.scheme, f"{shown}:{port}", path, parts.query, "").geturl()


def lookup_url(address: str, topic: str | None) -> str:
    """Return the URL of a query for the brokers of a topic; for all brokers if it is None.

    address: as parse_lookup_addresses() returns it.
    """
    parts = urlsplit(address)
    if topic is None:
        return parts._replace(path=f"{parts.path.rpartition('/')[0]}/{NODES}").geturl()
    query = f"topic={quote(topic, safe='')}"
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query).geturl()


# Answers.


def parse_lookup_answer(status: int, headers: Mapping[str, str], body: bytes) -> list[BrokerAddress]:
    """Return the brokers of an answer, each once. Broker entries that nobody could connect to are logged and left out.

    Raises: TopicUnknownError, and LookupFailedError for any other answer than brokers.
    """
    if status != 200:
        text = _excerpt(body)
        if status == 404 and "TOPIC_NOT_FOUND" in text:
            raise TopicUnknownError(f"lookup daemon answered {status}: {text}")
        hint = f"; {ADDRESS_HINT}" if status in UNKNOWN_PATH else ""
        raise LookupFailedError(f"lookup daemon answered {status}: {text}{hint}")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        text = f"answer of a lookup daemon is not JSON: {error}: {_excerpt(body)}; {ADDRESS_HINT}"
        raise LookupFailedError(text) from None
    if not isinstance(answer, dict):
        raise LookupFailedError(f"answer of a lookup daemon is not an object: {_excerpt(body)}")
    if not any(name.lower() == "x-nsq-content-type" and value == CONTENT_TYPE for name, value in headers.items()):
        answer = _unwrapped(answer)
    # Go writes null for an empty list.
    producers = [] if answer.get("producers", 0) is None else answer.get("producers")
    if not isinstance(producers, list):
        raise LookupFailedError(f"answer of a lookup daemon has no list of producers: {_excerpt(body)}")
    brokers: dict[tuple[str, int], BrokerAddress] = {}
    for entry in producers:
        broker = _broker(entry)
        if broker is not None:
            brokers.setdefault((broker.host, broker.tcp_port), broker)
    return list(brokers.values())


def _unwrapped(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the object inside of the answer of nsqlookupd before 1.0: {"status_code", "status_txt", "data"}."""
    if "status_code" not in answer:
        # Proxies drop headers they do not know.
        return answer
    if answer["status_code"] != 200:
        text = str(answer.get("status_txt"))
        error = TopicUnknownError if "TOPIC_NOT_FOUND" in text else LookupFailedError
        raise error(f"lookup daemon answered {answer['status_code']}: {text}")
    data = answer.get("data")
    if not isinstance(data, dict):
        raise LookupFailedError("answer of a lookup daemon has no data")
    return data


def _broker(entry: object) -> BrokerAddress | None:
    """Return the broker of an entry, or None if nobody could connect to it."""
    if not isinstance(entry, dict):
        raise LookupFailedError(f"entry of a broker in the answer of a lookup daemon is not an object: {entry!r:.80}")
    host = _text(entry, "broadcast_address")
    tcp_port = _number(entry, "tcp_port")
    # 0.0.0.0 would lead to this machine instead of the broker; the lookup daemon saw where the broker is.
    usable = _text(entry, "remote_address").rpartition(":")[0].strip("[]") if _is_wildcard(host) else host
    if not _is_host(usable) or not 0 < tcp_port <= PORT_MAX:
        _warn_of(host, tcp_port)
        return None
    return BrokerAddress(
        usable, tcp_port, _number(entry, "http_port"), _text(entry, "hostname"), _text(entry, "version")
    )


@lru_cache(WARNINGS_KNOWN_MAX)
def _warn_of(host: str, tcp_port: int) -> None:
    """Log that a broker cannot be used: once, as each poll names it again."""
    log.warning("cannot use a broker of a lookup daemon's answer: address %r, port %d", host, tcp_port)


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise LookupFailedError(f"{name} of a broker in the answer of a lookup daemon is not text: {value!r:.80}")
    return value


def _number(entry: dict[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    if type(value) is not int:
        raise LookupFailedError(f"{name} of a broker in the answer of a lookup daemon is no number: {value!r:.80}")
    return value


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_host(text: str) -> bool:
    """Return whether the functions that look up hosts take a text: they raise errors for NUL and lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return bool(text) and not any(unicodedata.category(character) == "Cc" for character in text)


def _excerpt(body: bytes) -> str:
    text = body[:EXCERPT_BYTES].decode(errors="replace")
    return text + "..." if len(body) > EXCERPT_BYTES else text


# Schedule.


class LookupSchedule:
    """Decides when to ask which lookup daemon. A poll asks one of them, and the next ones after an error.

    The first poll is due at once, the following ones every interval_s, shifted once by a random part of jitter x
    interval_s. A poll that got no answer is repeated after 1, 2, 4, ... seconds, at most interval_s.
    A request is made so: at the time of next_poll_s() begin(), then either succeeded() or failed(). A request that is
    never reported is forgotten by the next begin().
    """

    def __init__(self, addresses: Sequence[str], interval_s: float, jitter: float, rng: random.Random) -> None:
        self._addresses = tuple(addresses)
        self._interval_s = interval_s
        # A broker that accepts and closes connections must not make the client ask without pause.
        self._gap_s = min(GAP_S, interval_s)
        self._delays = Backoff(self._gap_s, interval_s, rng=rng)
        self._shift_s = interval_s * jitter * rng.random()
        self._position = 0
        self._due_at = float("-inf") if self._addresses else float("inf")
        self._began_at = float("-inf")
        self._is_asking = False
        self._is_wanted = False
        self._try_count = 0

    def next_poll_s(self, now: float) -> float:
        """Return the time of the next begin(); infinite without addresses. Not for use while a request is under way."""
        return max(now, self._due_at)

    def poll_now(self, now: float) -> None:
        """Ask for a poll as soon as possible: a connection is lost. Several calls cause one poll."""
        if self._is_asking:
            self._is_wanted = True
        elif self._addresses:
            self._due_at = min(self._due_at, max(now, self._began_at + self._gap_s))

    def begin(self, now: float) -> str:
        """Return the address to ask now."""
        self._is_asking = True
        if self._try_count == 0:
            self._began_at = now
        address = self._addresses[self._position]
        self._position = (self._position + 1) % len(self._addresses)
        return address

    def succeeded(self, now: float) -> None:
        """Take a valid answer: the poll is over."""
        self._delays.reset()
        self._end_poll(now, self._began_at + self._interval_s + self._shift_s)
        self._shift_s = 0.0

    def failed(self, now: float) -> None:
        """Take an error: the next address is asked at once, but a poll asks at most 3."""
        self._is_asking = False
        self._try_count += 1
        if self._try_count < min(TRIES_MAX, len(self._addresses)):
            self._due_at = now
            return
        self._end_poll(now, now + self._delays.next_s())

    def _end_poll(self, now: float, due_at: float) -> None:
        self._is_asking = False
        self._try_count = 0
        self._due_at = max(due_at, now)
        if self._is_wanted:
            self._is_wanted = False
            self.poll_now(now)
