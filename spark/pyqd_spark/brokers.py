"""HTTP clients of brokers and lookup daemons: topics, positions, pages of records.

Requests, retries and their errors are those of pyqd.client.http. A client belongs to one thread.

Source: docs/http.md, "Reading a topic by position"; docs/nsq/lookupd.md, "HTTP API".
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

from pyqd.client.errors import AuthenticationError, ClientError, NotConnectedError
from pyqd.client.http import HttpClient, Reply, message_of
from pyqd.fallback.records import FORMAT, ORDINAL_BITS, ORDINAL_MASK
from pyqd_spark.options import BrokerOptions
from pyqd_spark.tls import context_of, names_of

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


class LogSegment(NamedTuple):
    """A stretch of a topic's log: the position of its first record, its number of records, and their bytes."""

    first: int
    records: int
    bytes: int


class Positions(NamedTuple):
    """Readable part of a topic at a broker. node: permanent id of the data directory. next: position after the newest.

    created: creation time of the topic in ns, or 0; a topic created at another time has positions of its own. at: the
    position at the requested time.
    """

    topic: str
    node: str
    created: int
    address: str
    earliest: int
    next: int
    at: int | None
    segments: tuple[LogSegment, ...]


class LogPage(NamedTuple):
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


class BrokerClient(HttpClient):
    """Client of a broker or a lookup daemon: topics, their positions, pages of records.

    All requests raise UnreachableError, TlsError, BrokerError.
    """

    def __init__(self, address: str, connection: BrokerOptions) -> None:
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

    def topics(self) -> list[str]:
        stats = self.json("/stats", format="json", include_clients="false", include_mem="false")
        return sorted(str(topic["topic_name"]) for topic in stats.get("topics") or [])

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
            segments=tuple(LogSegment(row["first"], row["records"], row["bytes"]) for row in shown["segments"]),
        )

    def page(self, topic: str, first: int, stop: int, bytes_max: int = LOG_PAGE_BYTES) -> LogPage:
        """Return records from position `first` to before `stop`: at least one if there is one.

        Raises: TopicNotFoundError, PositionGoneError, PositionBeyondEndError, BrokerError, UnreachableError.
        """
        query = {"topic": topic, "from": first, "to": stop, "max_bytes": bytes_max}
        reply = self.request("GET", "/topic/log", query)
        if reply.status != 200:
            raise self.refusal("/topic/log", query, reply)
        headers = reply.headers
        check_format(self.address, headers.get("x-pyqd-format"))
        return LogPage(
            node=headers["x-pyqd-node"],
            created=int(headers.get("x-pyqd-created", 0)),
            first=int(headers["x-pyqd-from"]),
            next=int(headers["x-pyqd-next"]),
            end=int(headers["x-pyqd-end"]),
            records=int(headers["x-pyqd-count"]),
            data=reply.body,
        )

    def pages(self, topic: str, node: str, first: int, stop: int, bytes_max: int = LOG_PAGE_BYTES) -> Iterator[LogPage]:
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


def check_format(address: str, found: object) -> None:
    """Check the format of records. Raises: BrokerError for an unknown format."""
    if str(found) != str(FORMAT):
        raise BrokerError(
            f"{address}: records have format {found}, this connector reads {FORMAT}: install the broker's version"
        )


class FoundBrokers(NamedTuple):
    """Result of a look-up. addresses: HTTP addresses of brokers. failures: errors of the daemons that did
    not answer.
    """

    addresses: list[str]
    failures: list[BrokerError]


def find_brokers(connection: BrokerOptions, topic: str | None = None) -> FoundBrokers:
    """Return the given brokers, or those that the lookup daemons know: all, or the ones with a topic.

    Raises: UnreachableError if no lookup daemon answers. If only some answer, `failures` has the others.
    """
    if connection.nsqd:
        return FoundBrokers(list(connection.nsqd), [])
    found: dict[str, None] = {}
    failures: list[BrokerError] = []
    for address in connection.lookupd:
        try:
            with BrokerClient(address, connection) as client:
                found.update(dict.fromkeys(producers(client, topic)))
        except BrokerError as error:
            failures.append(error)
    if len(failures) == len(connection.lookupd):
        raise UnreachableError("no lookup daemon answers: " + "; ".join(map(str, failures)))
    return FoundBrokers(list(found), failures)


def producers(client: BrokerClient, topic: str | None) -> list[str]:
    """Return the HTTP addresses of the brokers that one lookup daemon knows; none for an unknown topic."""
    try:
        shown = client.json("/nodes") if topic is None else client.json("/lookup", topic=topic)
        https_port = client.connection.https_port if client.connection.tls else None
        return [host_and_port(row["broadcast_address"], https_port or row["http_port"]) for row in shown["producers"]]
    except TopicNotFoundError:
        return []
    except (KeyError, TypeError) as error:
        raise BrokerError(f"{client.address}: not the answer of a lookup daemon: {error!r}") from None


def topics_known(connection: BrokerOptions) -> tuple[set[str], list[BrokerError]]:
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
