"""HTTP clients of brokers and lookup daemons: topics, positions, pages of records. Needs only the standard library.

A request that fails on the way is retried on a new connection for `retry_timeout_s`, so a reader outlasts a broker's
restart. A refusal by the broker raises an error at once. A client belongs to one thread.

Source: docs/http.md, "Reading a topic by position"; docs/nsq/lookupd.md, "HTTP API".
"""

import errno
import http.client
import json
import logging
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from pyqd_spark.options import Connection
from pyqd_spark.tls import TlsOptionError, context_of, wrong_for_good

FORMAT: Final = 1
ORDINAL_BITS: Final = 48
# The broker copies this much in one slice of its loop; larger pages cost it more for each record.
PAGE_BYTES: Final = 1 << 20
RETRY_FIRST_S: Final = 0.05
RETRY_LONGEST_S: Final = 2.0
# A connection that was idle for longer is not reused: the other side may be closing it.
IDLE_LONGEST_S: Final = 5.0
# Status codes that a retry may cure. All others are answers.
PASSING_STATUS: Final = (429, 500, 502, 503, 504)

logger = logging.getLogger(__name__)


class BrokerError(Exception):
    """Error answer of a broker or lookup daemon, or no answer. The text names its address."""


class UnreachableError(BrokerError):
    """No answer, or only answers about passing trouble, until the time for retries was over."""


class TlsError(BrokerError):
    """TLS with an address is impossible, and a retry does not help: certificates, files, a port without TLS."""


class TopicNotFoundError(BrokerError):
    """A broker does not have the requested topic."""


class PositionGoneError(BrokerError):
    """The record is no longer kept. earliest: the position of the first kept one."""

    def __init__(self, text: str, earliest: int) -> None:
        super().__init__(text)
        self.earliest = earliest


class PositionBeyondEndError(BrokerError):
    """No record has that position yet. next: the position of the next record."""

    def __init__(self, text: str, next_position: int) -> None:
        super().__init__(text)
        self.next = next_position


class OtherNodeError(BrokerError):
    """The address now belongs to another node, with another data directory."""


class Segment(NamedTuple):
    """A stretch of a topic's log: the position of its first record, its number of records, and their bytes."""

    first: int
    records: int
    bytes: int


class Positions(NamedTuple):
    """Readable part of a topic at a broker. node: permanent id of the data directory. next: position after the newest.

    created: creation time of the topic in ns, or 0; a topic created at another time has positions of its own. at: the
    position at the requested time. floors: by channel, the first unfinished message.
    """

    topic: str
    node: str
    created: int
    address: str
    earliest: int
    next: int
    at: int | None
    segments: tuple[Segment, ...]
    floors: Mapping[str, int]


class Page(NamedTuple):
    """Records in the format of the log.

    created: as in Positions. next: position after the page. end: position after the newest record. records: their
    number.
    """

    node: str
    created: int
    first: int
    next: int
    end: int
    records: int
    data: bytes


class Reply(NamedTuple):
    """An answer: status, headers with lower-case names, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """One connection to one address, kept open between requests and reconnected when it breaks.

    address: `host:port`, or a URL of http or https. Raises: UnreachableError, TlsError, BrokerError.
    """

    def __init__(self, address: str, connection: Connection) -> None:
        self.address = address
        self.connection = connection
        parts = urlsplit(address if "://" in address else f"//{address}", scheme="https" if connection.tls else "http")
        self.host, self.port, self.secure = parts.hostname or "", parts.port or 80, parts.scheme == "https"
        self._open: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> "HttpClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        *,
        retry: bool = True,
    ) -> Reply:
        """Send a request and return the answer, whatever its status.

        retry: retry after a failure on the way; only for requests that may be repeated. Raises: UnreachableError,
        TlsError.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        deadline_s = time.monotonic() + (self.connection.retry_timeout_s if retry else 0)
        wait_s = RETRY_FIRST_S
        while True:
            try:
                reply = self._once(method, target, body)
                if reply.status not in PASSING_STATUS or not retry:
                    return reply
                failure = f"answered {reply.status} {message_of(reply)}"
            except TlsOptionError as error:
                raise TlsError(f"{self.address}: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                wrong = wrong_for_good(error, self.connection)
                if wrong is not None:
                    raise TlsError(f"{self.address}: {wrong}") from error
                failure = f"{type(error).__name__}: {error}"
                if isinstance(error, http.client.RemoteDisconnected) and not self.secure:
                    failure += " (so does a port that speaks TLS; is it tls=true?)"
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                tried = f", tried for {self.connection.retry_timeout_s:g} s" if retry else ""
                raise UnreachableError(f"{self.address}: {method} {path}: {failure}{tried}")
            logger.info("%s: %s %s: %s; trying again", self.address, method, path, failure)
            time.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, RETRY_LONGEST_S)

    def _once(self, method: str, target: str, body: bytes | None) -> Reply:
        if time.monotonic() - self._used_s > IDLE_LONGEST_S:
            self.close()
        if self._open is None:
            self._open = self._connect()
            self._open.connect()
            refuse_own(self._open.sock)
        headers = {"Authorization": f"Bearer {self.connection.token}"} if self.connection.token else {}
        self._open.request(method, target, body=body, headers=headers)
        answer = self._open.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        self._used_s = time.monotonic()
        return reply

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = self.connection.request_timeout_s
        if not self.secure:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        context = context_of(self.connection)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def json(self, path: str, **query: object) -> Any:
        """Send a GET and return the answer's JSON. Raises: TopicNotFoundError, BrokerError, UnreachableError."""
        reply = self.request("GET", path, query)
        if reply.status != 200:
            raise self.refusal(path, query, reply)
        return self.parsed(path, reply)

    def parsed(self, path: str, reply: Reply) -> Any:
        """Return the JSON of an answer. Raises: BrokerError if it is not JSON."""
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise BrokerError(f"{self.address}: GET {path}: the answer is no JSON: {error}") from None

    def refusal(self, path: str, query: Mapping[str, object], reply: Reply) -> BrokerError:
        """Return the error for an answer with a status other than 200."""
        code = message_of(reply)
        asked = f"{self.address}: {path}?{urlencode(query)}: {reply.status} {code}"
        if reply.status == 404 and code == "TOPIC_NOT_FOUND":
            return TopicNotFoundError(f"{self.address}: topic {query.get('topic')} does not exist")
        if reply.status == 404 and path.startswith("/topic/"):
            return BrokerError(f"{asked}; reading topics by position needs pyqd's own daemon")
        if code == "TLS_REQUIRED":
            port = self.parsed(path, reply).get("https_port")
            return TlsError(f"{asked}: it takes HTTPS only, at port {port}: give that port, and tls=true")
        if reply.status == 400 and b"HTTP request to an HTTPS server" in reply.body:
            return TlsError(f"{asked}: a port that speaks TLS; is it tls=true?")
        if reply.status in (401, 403):
            return BrokerError(f"{asked}; is the option token right, and has it the right to do this?")
        if code == "POSITION_GONE":
            return PositionGoneError(asked, int(self.parsed(path, reply)["earliest"]))
        if code == "POSITION_BEYOND_END":
            return PositionBeyondEndError(asked, int(self.parsed(path, reply)["next"]))
        return BrokerError(asked)


def message_of(reply: Reply) -> str:
    """Return the error in an answer: the code in its JSON, or the beginning of its body."""
    try:
        return str(json.loads(reply.body)["message"])
    except (ValueError, KeyError, TypeError):
        return reply.body[:200].decode(errors="replace")


class BrokerClient(HttpClient):
    """Client of a broker: its topics, their positions, pages of records, publishing."""

    def __enter__(self) -> "BrokerClient":
        return self

    def topics(self) -> list[str]:
        """Return the names of the broker's topics."""
        stats = self.json("/stats", format="json", include_clients="false", include_mem="false")
        return sorted(str(topic["topic_name"]) for topic in stats.get("topics") or [])

    def info(self) -> dict[str, Any]:
        """Return the fields of GET /info: version, broadcast_address, hostname, tcp_port, http_port."""
        return dict(self.json("/info"))

    def tcp_address(self) -> tuple[str, int]:
        """Return host and port of the TCP protocol, as the broker announces them."""
        info = self.info()
        return str(info["broadcast_address"]), int(info["tcp_port"])

    def positions(self, topic: str, time_ns: int | None = None) -> Positions:
        """Return the readable part of a topic, and the position at a time.

        time_ns: since 1970. Raises: TopicNotFoundError, BrokerError, UnreachableError.
        """
        asked = {} if time_ns is None else {"time": f"{time_ns}ns"}
        shown = self.json("/topic/positions", topic=topic, **asked)
        check_format(self.address, shown.get("format"))
        return Positions(
            topic=topic,
            node=shown["node"],
            created=shown.get("created", 0),
            address=self.address,
            earliest=shown["earliest"],
            next=shown["next"],
            at=shown.get("at"),
            segments=tuple(Segment(row["first"], row["records"], row["bytes"]) for row in shown["segments"]),
            floors={row["channel"]: row["floor"] for row in shown["channels"]},
        )

    def page(self, topic: str, first: int, stop: int, bytes_max: int = PAGE_BYTES) -> Page:
        """Return records from position `first` to before `stop`: at least one if there is one.

        Raises: TopicNotFoundError, PositionGoneError, PositionBeyondEndError, BrokerError, UnreachableError.
        """
        query = {"topic": topic, "from": first, "to": stop, "max_bytes": bytes_max}
        reply = self.request("GET", "/topic/log", query)
        if reply.status != 200:
            raise self.refusal("/topic/log", query, reply)
        headers = reply.headers
        check_format(self.address, headers.get("x-pyqd-format"))
        return Page(
            node=headers["x-pyqd-node"],
            created=int(headers.get("x-pyqd-created", 0)),
            first=int(headers["x-pyqd-from"]),
            next=int(headers["x-pyqd-next"]),
            end=int(headers["x-pyqd-end"]),
            records=int(headers["x-pyqd-count"]),
            data=reply.body,
        )

    def pages(self, topic: str, node: str, first: int, stop: int, bytes_max: int = PAGE_BYTES) -> Iterator[Page]:
        """Yield the pages of a range, one request each; an empty page is the last. Each request begins at the end of
        the page before, even after a restart of the broker in between.

        Raises: as `page`; OtherNodeError.
        """
        while first < stop:
            page = self.page(topic, first, stop, bytes_max)
            if page.node != node:
                raise OtherNodeError(f"{self.address} is served by node {page.node}, and no longer by {node}")
            yield page
            if page.next <= first:
                return
            first = page.next

    def publish(self, topic: str, body: bytes, *, retry: bool = False) -> Reply:
        """Publish messages in the binary form of POST /mpub; the answer names their ids.

        retry: retry if there was no answer; the messages may then be published twice. Raises: BrokerError if the broker
        refuses them, UnreachableError.
        """
        query = {"topic": topic, "binary": "true"}
        reply = self.request("POST", "/mpub", query, body, retry=retry)
        if reply.status != 200:
            raise self.refusal("/mpub", query, reply)
        return reply


def check_format(address: str, found: object) -> None:
    """Check the format of records. Raises: BrokerError for an unknown format."""
    if str(found) != str(FORMAT):
        raise BrokerError(
            f"{address}: records have format {found}, this connector reads {FORMAT}: install the broker's version"
        )


def refuse_own(connection: socket.socket) -> None:
    """Close a connection that has reached its own socket, so that its port is free at once. Raises: OSError.

    If no process listens on a port from the range for clients, the system may give that very port to the connecting
    socket. It then receives its own bytes, and keeps the port from the broker that is to start.
    """
    if connection.getsockname() != connection.getpeername():
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, "no process listens: the connection has reached its own socket")


class Lookup(NamedTuple):
    """Result of a look-up. addresses: HTTP addresses of brokers. failures: errors of the daemons that did
    not answer.
    """

    addresses: list[str]
    failures: list[BrokerError]


def find_brokers(connection: Connection, topic: str | None = None) -> Lookup:
    """Return the given brokers, or those that the lookup daemons know: all, or the ones with a topic.

    Raises: UnreachableError if no lookup daemon answers. If only some answer, `failures` has the others.
    """
    if connection.nsqd:
        return Lookup(list(connection.nsqd), [])
    found: dict[str, None] = {}
    failures: list[BrokerError] = []
    for address in connection.lookupd:
        try:
            with HttpClient(address, connection) as client:
                found.update(dict.fromkeys(producers(client, topic)))
        except BrokerError as error:
            failures.append(error)
    if len(failures) == len(connection.lookupd):
        raise UnreachableError("no lookup daemon answers: " + "; ".join(map(str, failures)))
    return Lookup(list(found), failures)


def producers(client: HttpClient, topic: str | None) -> list[str]:
    """Return the HTTP addresses of the brokers that one lookup daemon knows; none for an unknown topic."""
    try:
        shown = client.json("/nodes") if topic is None else client.json("/lookup", topic=topic)
        https_port = client.connection.https_port if client.connection.tls else None
        return [host_and_port(row["broadcast_address"], https_port or row["http_port"]) for row in shown["producers"]]
    except TopicNotFoundError:
        return []
    except (KeyError, TypeError) as error:
        raise BrokerError(f"{client.address}: not the answer of a lookup daemon: {error!r}") from None


def topics_known(connection: Connection) -> tuple[set[str], list[BrokerError]]:
    """Return the names of all topics of the lookup daemons or given brokers, and the errors of those that did not
    answer.

    Raises: UnreachableError if none answers.
    """
    names: set[str] = set()
    failures: list[BrokerError] = []
    for address in connection.nsqd or connection.lookupd:
        try:
            with BrokerClient(address, connection) as client:
                names.update(client.topics() if connection.nsqd else client.json("/topics")["topics"])
        except (BrokerError, KeyError, TypeError) as error:
            failures.append(error if isinstance(error, BrokerError) else BrokerError(f"{address}: {error!r}"))
    if len(failures) == len(connection.nsqd or connection.lookupd):
        raise UnreachableError("cannot list the topics, no server answers: " + "; ".join(map(str, failures)))
    return names, failures


def host_and_port(host: str, port: int) -> str:
    """Return an address as text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def epoch_of(position: int) -> int:
    """Return the epoch of a position. The epoch grows when a power failure may have removed records."""
    return position >> ORDINAL_BITS


def ordinal_of(position: int) -> int:
    """Return the ordinal of a position. Records of a log are numbered densely, across epochs too."""
    return position & ((1 << ORDINAL_BITS) - 1)
