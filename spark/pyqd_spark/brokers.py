"""HTTP clients of brokers and lookup daemons: topics, positions, pages of records.

Requests, retries and their errors are those of pyqd.client.http. A client belongs to one thread.

Source: docs/http.md, "Reading a topic by position"; docs/nsq/lookupd.md, "HTTP API".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pyqd.client import http
from pyqd.client.errors import AuthenticationError, ClientError, NotConnectedError
from pyqd.client.http import Reply, message_of
from pyqd.fallback.records import ORDINAL_BITS, ORDINAL_MASK
from pyqd_spark.options import Connection
from pyqd_spark.tls import context_of, names_of

FORMAT: Final = 1
# The broker copies this much in one slice of its loop; larger pages cost it more for each record.
LOG_PAGE_BYTES: Final = 1 << 20

# Error answer of a broker or lookup daemon, or no answer. The text names its address.
BrokerError = ClientError
# No answer, or only answers about passing trouble, until the time for retries was over.
UnreachableError = NotConnectedError


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


class HttpClient(http.HttpClient):
    """HTTP client with the options of Spark. Raises: UnreachableError, TlsError, BrokerError."""

    def __init__(self, address: str, connection: Connection) -> None:
        super().__init__(
            address,
            tls=connection.tls,
            new_context=lambda: context_of(connection),
            token=connection.token_for(address),
            timeout_s=connection.request_timeout_s,
            retry_timeout_s=connection.retry_timeout_s,
        )
        self.connection = connection
        self.names = names_of(connection)

    def refusal(self, path: str, query: Mapping[str, object], reply: Reply) -> ClientError:
        """Return the error for an answer with a status other than 200."""
        code = message_of(reply)
        request = f"{path}?{urlencode(query)}: {reply.status}"
        asked = f"{self.address}: {request} {code}"
        if reply.status == 404 and code == "TOPIC_NOT_FOUND":
            return TopicNotFoundError(f"{self.address}: topic {query.get('topic')} does not exist")
        if reply.status == 404 and path.startswith("/topic/"):
            return BrokerError(f"{asked}; reading topics by position needs pyqd's own daemon")
        if code == "POSITION_GONE":
            return PositionGoneError(asked, int(self.parsed(path, reply)["earliest"]))
        if code == "POSITION_BEYOND_END":
            return PositionBeyondEndError(asked, int(self.parsed(path, reply)["next"]))
        if reply.status in (401, 403) and code != "TLS_REQUIRED":
            hint = "is the option token right, and has it the right to do this?"
            return AuthenticationError(f"{code} ({hint})", self.address, request)
        return super().refusal(path, query, reply)


class BrokerClient(HttpClient):
    """Client of a broker: its topics, their positions, pages of records, publishing."""

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

    def page(self, topic: str, first: int, stop: int, bytes_max: int = LOG_PAGE_BYTES) -> Page:
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

    def pages(self, topic: str, node: str, first: int, stop: int, bytes_max: int = LOG_PAGE_BYTES) -> Iterator[Page]:
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
    return position & ORDINAL_MASK
