"""The cluster as its lookup daemons or its brokers describe it, and calls to all of its members.

Each method that reads returns a `Collected`: the value, and a text for each member that failed. All methods raise
UpstreamError if no member answered.

Source: docs/nsq/admin-and-tools.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from pyqd.admin.stats import ChannelStats, ProcessStats, TopicStats, client_row, publisher_row
from pyqd.admin.upstream import Collected, Upstream, UpstreamError
from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.nsq_compat import unwrapped_answer

VERSION_PART: Final = re.compile(r"\d+")
LOOKUPD: Final = "nsqlookupd"
NSQD: Final = "nsqd"
# Fields of a broker that have the same names in NSQ's answers and in nsqadmin's.
TOLD: Final = ("hostname", "broadcast_address", "tcp_port", "http_port", "version")


@dataclasses.dataclass(slots=True)
class ClusterNode:
    """A broker. remote_addresses: one for each lookup daemon that knows it, None without lookup daemons.

    topics: names, and whether the lookup daemon hides this broker for the topic.
    """

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    remote_address: str = ""
    remote_addresses: list[str] | None = None
    region: str = ""
    zone: str = ""
    topics: list[tuple[str, bool]] = dataclasses.field(default_factory=list)
    out_of_date: bool = False

    @classmethod
    def of_answer(cls, found: Mapping[str, Any]) -> ClusterNode:
        """Return the broker in an answer of GET /nodes, /lookup or /info."""
        tombstones = found.get("tombstones") or ()
        topics = found.get("topics") or ()
        return cls(
            hostname=str(found.get("hostname") or ""),
            broadcast_address=str(found.get("broadcast_address") or ""),
            tcp_port=int(found.get("tcp_port") or 0),
            http_port=int(found.get("http_port") or 0),
            version=str(found.get("version") or ""),
            remote_address=str(found.get("remote_address") or ""),
            region=str(found.get("topology_region") or ""),
            zone=str(found.get("topology_zone") or ""),
            topics=sorted(
                (str(topic), bool(number < len(tombstones) and tombstones[number]))
                for number, topic in enumerate(topics)
            ),
        )

    @property
    def http_address(self) -> str:
        return str(TcpAddress(self.broadcast_address, self.http_port))

    @property
    def tcp_address(self) -> str:
        return str(TcpAddress(self.broadcast_address, self.tcp_port))

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("remote_addresses", "remote_address", *TOLD)}
        if self.zone:
            shown["topology_zone"] = self.zone
        if self.region:
            shown["topology_region"] = self.region
        shown["topics"] = [{"topic": topic, "tombstoned": hidden} for topic, hidden in self.topics] or None
        shown["out_of_date"] = self.out_of_date
        return shown


@dataclasses.dataclass(slots=True)
class Stats:
    """Numbers of topics, one row per topic and broker, sorted by the broker's hostname. processes: by HTTP address.

    publishers: clients that have published, if clients were asked for.
    """

    topics: list[TopicStats]
    processes: dict[str, ProcessStats] = dataclasses.field(default_factory=dict)
    publishers: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def channel(self, name: str) -> ChannelStats | None:
        """Return the sum of a channel over brokers, if these are numbers of one topic that has it."""
        parts = [channel for topic in self.topics for channel in topic.channels if channel.channel == name]
        return ChannelStats.total(parts) if parts else None


class Cluster:
    """The members of a cluster. lookupds, nsqds: HTTP addresses; without lookup daemons the brokers are the nsqds."""

    def __init__(self, upstream: Upstream, lookupds: Sequence[str] = (), nsqds: Sequence[str] = ()) -> None:
        self.upstream = upstream
        self.lookupds = tuple(lookupds)
        self.nsqds = tuple(nsqds)

    def topics(self) -> Collected:
        if not self.lookupds:
            nodes = self.nodes()
            return Collected(sorted({topic for node in nodes.value for topic, _ in node.topics}), nodes.failures)
        return self._names("topics")

    def inactive_topics(self, active: Collection[str] = ()) -> Collected:
        """Return topics that no broker has, by name, with the channels that lookup daemons know.

        active: topics that a broker is known to have; each other one costs a request.
        """
        if not self.lookupds:
            return Collected({}, [])
        topics = self.topics()
        failures = list(topics.failures)
        inactive: dict[str, list[str]] = {}
        for topic in (each for each in topics.value if each not in active):
            producers = self.lookup(topic)
            if not producers.value:
                channels = self._names("channels", {"topic": topic})
                failures += channels.failures
                inactive[topic] = channels.value
            failures += producers.failures
        return Collected(inactive, list(dict.fromkeys(failures)))

    def _names(self, field: str, query: Mapping[str, str] | None = None) -> Collected:
        """Return the names that GET /FIELD of the lookup daemons tells, sorted."""

        def ask(address: str) -> list[str]:
            answer = unwrapped_answer(self.upstream.get(address, f"/{field}", query))
            return [str(name) for name in answer.get(field) or ()]

        found = self._ask(LOOKUPD, self.lookupds, ask)
        return Collected(sorted({name for names in found.value for name in names}), found.failures)

    def nodes(self) -> Collected:
        """Return the brokers; those of lookup daemons are sorted by hostname."""
        if not self.lookupds:
            return self._ask(NSQD, self.nsqds, self._describe)
        answers, failures = self._ask(
            LOOKUPD, self.lookupds, lambda address: (address, producers_in(self.upstream.get(address, "/nodes")))
        )
        nodes: dict[str, ClusterNode] = {}
        for address, found in answers:
            for each in found:
                node = nodes.setdefault(each.tcp_address, each)
                remote = each.remote_address or "N/A"
                node.remote_addresses = [*(node.remote_addresses or ()), f"{address}/{remote}"]
        newest = max((version_key(node.version) for node in nodes.values()), default=((), True))
        for node in nodes.values():
            node.out_of_date = version_key(node.version) < newest
        return Collected(sorted(nodes.values(), key=lambda node: node.hostname), failures)

    def producers_of(self, topic: str) -> Collected:
        if self.lookupds:
            return self.lookup(topic)
        answers, failures = self._ask(NSQD, self.nsqds, lambda address: self._describe(address, topic))
        return Collected([node for node in answers if any(name == topic for name, _ in node.topics)], failures)

    def lookup(self, topic: str) -> Collected:
        """Return the brokers that have a topic, by the lookup daemons."""
        answers, failures = self._ask(
            LOOKUPD,
            self.lookupds,
            lambda address: producers_in(self.upstream.get(address, "/lookup", {"topic": topic})),
        )
        nodes: dict[str, ClusterNode] = {}
        for found in answers:
            for node in found:
                nodes.setdefault(node.http_address, node)
        return Collected(list(nodes.values()), failures)

    def describe(self, address: str) -> Collected:
        """Return the one broker at an HTTP address, in a list."""
        return self._ask(NSQD, [address], self._describe)

    def stats(
        self, nodes: Sequence[ClusterNode], topic: str = "", channel: str = "", *, clients: bool = False
    ) -> Collected:
        """Return the `Stats` of brokers. topic, channel: only these. clients: with the clients of each channel."""
        query = {"format": "json"}
        if topic:
            query["topic"] = topic
        if topic and channel:
            query["channel"] = channel
        if not clients:
            query["include_clients"] = "false"

        def ask(node: ClusterNode) -> tuple[str, list[TopicStats], ProcessStats, list[dict[str, Any]]]:
            answer = unwrapped_answer(self.upstream.get(node.http_address, "/stats", query))
            rows = [
                TopicStats.of_broker(node.http_address, node.hostname, row)
                for row in answer.get("topics") or ()
                if not topic or row["topic_name"] == topic
            ]
            for row in rows:
                for each in row.channels:
                    each.clients = [
                        client_row(client, node.http_address, node.region, node.zone) for client in each.clients
                    ]
            publishers = [
                publisher_row(client, node.http_address, node.region, node.zone)
                for client in answer.get("producers") or ()
            ]
            return node.http_address, rows, ProcessStats.of_broker(answer), publishers

        answers, failures = self._ask(NSQD, nodes, ask)
        topics = [row for _address, rows, _process, _publishers in answers for row in rows]
        processes = {address: process for address, _rows, process, _publishers in answers}
        publishers = [row for _address, _rows, _process, found in answers for row in found]
        return Collected(Stats(sorted(topics, key=lambda row: row.hostname), processes, publishers), failures)

    def stats_of(self, topic: str, channel: str = "", *, clients: bool = False) -> Collected:
        """Return the `Stats` of the brokers that have a topic; parameters as for `stats`."""
        producers = self.producers_of(topic)
        stats = self.stats(producers.value, topic, channel, clients=clients)
        return Collected(stats.value, producers.failures + stats.failures)

    def post_to_nodes(self, nodes: Iterable[ClusterNode], path: str, query: Mapping[str, str]) -> list[str]:
        return self.post_to([node.http_address for node in nodes], path, query)

    def post_to(self, addresses: Iterable[str], path: str, query: Mapping[str, str]) -> list[str]:
        """Send a POST to each address, in order. Returns: the failures."""
        failures = []
        for address in addresses:
            try:
                self.upstream.post(address, path, query)
            except UpstreamError as error:
                failures.append(str(error))
        return failures

    def _ask(self, kind: str, members: Sequence[Any], call: Callable[[Any], Any]) -> Collected:
        """Call for all members at once. Raises: UpstreamError if all fail, and if there is none to ask."""
        answers, failures = self.upstream.for_each(members, call)
        if len(failures) == len(members):
            raise UpstreamError(f"failed to query any {kind}: " + "\n".join(failures))
        return Collected(answers, failures)

    def _describe(self, address: str, topic: str = "") -> ClusterNode:
        """Return the broker at an address, with the names of its topics; of one topic only, if it is given."""
        info = self.upstream.get(address, "/info")
        query = {"format": "json", "include_clients": "false"} | ({"topic": topic} if topic else {})
        answer = self.upstream.get(address, "/stats", query)
        topics = [row["topic_name"] for row in unwrapped_answer(answer).get("topics") or ()]
        node = ClusterNode.of_answer({**info, "topics": topics})
        host, _, port = address.rpartition("://")[2].rpartition(":")
        # Old brokers do not tell their address.
        if not node.broadcast_address:
            node.broadcast_address, node.http_port = host, int(port)
        node.hostname = node.hostname or host
        if address in self.nsqds:
            # A broker of a lookup daemon could name itself like another one.
            self.upstream.note_given(node.http_address, address)
        return node


def producers_in(answer: Any) -> list[ClusterNode]:
    return [ClusterNode.of_answer(found) for found in unwrapped_answer(answer).get("producers") or ()]


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Return the sort key of a version: its three numbers; a pre-release comes before the release."""
    release, _, rest = version.partition("-")
    return tuple(int(part) for part in VERSION_PART.findall(release)[:3]), not rest
