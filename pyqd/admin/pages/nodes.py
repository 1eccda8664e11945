"""Pages of brokers: the list of all, and one broker with its process, topics, channels and clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from flask import request

from pyqd.admin.access.roles import UserRole
from pyqd.admin.cluster import ClusterNode, Stats
from pyqd.admin.health import mark
from pyqd.admin.pages.consumers import CLIENT_COLUMNS_OF_NODE, CONNECTION_COLUMNS, client_text
from pyqd.admin.pages.tables import Filter, PageColumn, PageTable, sorted_by, table_of
from pyqd.admin.site import Site
from pyqd.admin.stats import ProcessStats, TopicStats
from pyqd.admin.upstream import Collected

COLUMNS: Final = (
    PageColumn("hostname", "Host", lambda row: row.hostname),
    PageColumn("address", "Address", lambda row: row.http_address),
    PageColumn("tcp_port", "TCP", lambda row: row.tcp_port, is_number=True),
    PageColumn("http_port", "HTTP", lambda row: row.http_port, is_number=True),
    PageColumn("version", "Version", lambda row: row.version),
    PageColumn("region", "Region", lambda row: row.region),
    PageColumn("zone", "Zone", lambda row: row.zone),
    PageColumn("lookupds", "Lookup daemons", lambda row: len(row.remote_addresses or ()), is_number=True),
    PageColumn("topics", "Topics", lambda row: len(row.topics), is_number=True),
)
TOPIC_DEPTH: Final = PageColumn(
    "depth",
    "Depth",
    lambda row: row.waiting,
    is_number=True,
    has_sum=True,
    help=mark("waiting in the topic and in its channels"),
)
TOPIC_IN_FLIGHT: Final = PageColumn(
    "in_flight", "In flight", lambda row: row.channel_sum("in_flight_count"), is_number=True, has_sum=True
)
TOPIC_DEFERRED: Final = PageColumn(
    "deferred", "Deferred", lambda row: row.channel_sum("deferred_count"), is_number=True, has_sum=True
)
TOPIC_COLUMNS: Final = (
    PageColumn("topic", "Topic and channel", lambda row: row.topic),
    TOPIC_DEPTH,
    PageColumn("place", "Memory + disk", lambda row: row.whole("backend_depth"), is_number=True),
    TOPIC_IN_FLIGHT,
    TOPIC_DEFERRED,
    PageColumn("requeued", "Requeued", lambda row: row.channel_sum("requeue_count"), is_number=True, has_sum=True),
    PageColumn("timed_out", "Timed out", lambda row: row.channel_sum("timeout_count"), is_number=True, has_sum=True),
    PageColumn("messages", "Messages", lambda row: row.sums["message_count"], is_number=True, has_sum=True),
    PageColumn("rate", "Rate /s", None, is_number=True, has_sum=True),
    PageColumn("clients", "Clients", lambda row: row.channel_sum("client_count"), is_number=True, has_sum=True),
)
CLIENTS: Final = "clients"
CONNECTION_FILTERS: Final = (
    Filter("consumers", "Consumers", lambda row: bool(row["channel"])),
    Filter("publishers", "Publishers", lambda row: bool(row["published"])),
)


class NodeViews:
    """Views of brokers. show: renders a template, or its live part."""

    def __init__(self, site: Site, show: Callable[..., str]) -> None:
        self.site = site
        self.show = show

    def nodes(self) -> str:
        found = self.site.cluster.nodes()
        lookupds = self.site.cluster.lookupds
        table = table_of(found.value, COLUMNS, text_of=text_of, sort="hostname", filters=filters_of(lookupds))
        return self.show("nodes.html", table=table, failures=found.failures, lookupds=lookupds)

    def node(self, node: str) -> str | tuple[str, int]:
        """Show one broker: its topics, or its clients if the URL asks for these."""
        cluster = self.site.cluster
        nodes = cluster.nodes()
        found = next((each for each in nodes.value if each.http_address == node), None)
        if found is None:
            return self.show("missing.html", node=node), 404
        stats = cluster.stats([found], clients=True)
        topics = [topic for topic in stats.value.topics if self.site.may(UserRole.VIEW, topic.topic)]
        shows_clients = request.args.get("view") == CLIENTS
        return self.show(
            "node.html",
            node=found,
            process=stats.value.processes.get(node, ProcessStats()),
            topic_count=len(topics),
            message_count=sum(topic.sums["message_count"] for topic in topics),
            client_count=sum(topic.channel_sum("client_count") for topic in topics),
            shows_clients=shows_clients,
            table=clients_of(topics) if shows_clients else self._topics(node, topics),
            failures=nodes.failures + stats.failures,
            hidden=[topic for topic, is_hidden in found.topics if is_hidden and self.site.may(UserRole.VIEW, topic)],
            # The charts are of all topics.
            has_charts=self.site.sees_all(),
        )

    def connections(self) -> str:
        """Show the clients of all brokers: those that consume, and those that publish."""
        nodes = self.site.cluster.nodes()
        stats = self.site.cluster.stats(nodes.value, clients=True) if nodes.value else Collected(Stats([]), [])
        rows = connections_of(stats.value, lambda topic: self.site.may(UserRole.VIEW, topic))
        table = table_of(rows, CONNECTION_COLUMNS, text_of=client_text, sort="client", filters=CONNECTION_FILTERS)
        return self.show("connections.html", table=table, failures=nodes.failures + stats.failures)

    def _topics(self, node: str, topics: Sequence[TopicStats]) -> PageTable:
        rates = self.site.poller.history.node_rates.get(node, {})
        columns = sorted_by(TOPIC_COLUMNS, "rate", lambda row: rates.get((row.topic,), 0.0))
        return table_of(topics, columns, text_of=topic_text, sort="topic")


def filters_of(lookupds: Sequence[str]) -> list[Filter]:
    found = [
        Filter("older", "Older version", lambda row: row.out_of_date),
        Filter("tombstones", "With tombstones", lambda row: any(hidden for _topic, hidden in row.topics)),
    ]
    if lookupds:
        count = len(lookupds)
        found.append(
            Filter("partly", "Not in every lookup daemon", lambda row: len(row.remote_addresses or ()) != count)
        )
    return found


def connections_of(stats: Stats, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return a row for each connection. A client that consumes and publishes has one; may_see: tells of each topic."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for topic in stats.topics:
        for channel in topic.channels if may_see(topic.topic) else ():
            for client in channel.clients:
                names = {"topic": topic.topic, "channel": channel.channel, "published": {}}
                rows[client["node"], client["remote_address"]] = {**client, **names}
    for client in stats.publishers:
        published = {name: count for name, count in client["published"].items() if may_see(name)}
        if published:
            unread = {**client, "topic": "", "channel": ""}
            rows.setdefault((client["node"], client["remote_address"]), unread)["published"] = published
    return list(rows.values())


def clients_of(topics: Sequence[TopicStats]) -> PageTable:
    rows = [
        {**client, "topic": topic.topic, "channel": channel.channel}
        for topic in topics
        for channel in topic.channels
        for client in channel.clients
    ]
    return table_of(rows, CLIENT_COLUMNS_OF_NODE, text_of=client_text, sort="channel")


def text_of(node: ClusterNode) -> str:
    """Return the text of a broker that a search looks at."""
    return f"{node.hostname} {node.http_address} {node.version} {node.region} {node.zone}"


def topic_text(topic: TopicStats) -> str:
    """Return the text of a topic that a search looks at: its name and those of its channels."""
    return " ".join([topic.topic, *(channel.channel for channel in topic.channels)])
