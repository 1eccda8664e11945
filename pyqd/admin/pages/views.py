"""The pages of nsqadmin and their URLs: streams, topic, channel, nodes, node, lookup, counter; overview, and health."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from flask import Blueprint, Response, render_template

from pyqd.admin.access.roles import UserRole
from pyqd.admin.cluster import ClusterNode, Stats
from pyqd.admin.durability import full_in_s
from pyqd.admin.health import Finding
from pyqd.admin.pages.consumers import CLIENT_COLUMNS, client_text
from pyqd.admin.pages.nodes import TOPIC_DEFERRED, TOPIC_DEPTH, TOPIC_IN_FLIGHT, NodeViews
from pyqd.admin.pages.tables import Filter, PageColumn, sorted_by, table_of
from pyqd.admin.poller import depth_of_nodes
from pyqd.admin.site import Site
from pyqd.admin.stats import ChannelStats, TopicStats
from pyqd.admin.upstream import Collected, UpstreamError


def pages(site: Site) -> Blueprint:
    routes = Blueprint("pages", __name__)
    views = Views(site)
    nodes = NodeViews(site, views.show)
    for rule, name, view in (
        # As nsqadmin, the base path has no slash at its end.
        ("/" if site.options.base_path == "/" else "", "home", views.home),
        ("/topics", "streams", views.streams),
        ("/topics/<topic>", "topic", views.topic),
        ("/topics/<topic>/<channel>", "channel", views.channel),
        ("/nodes", "nodes", nodes.nodes),
        ("/nodes/<node>", "node", nodes.node),
        ("/connections", "connections", nodes.connections),
        ("/lookup", "lookup", views.lookup),
        ("/counter", "counter", views.counter),
        ("/health", "health", views.health),
        ("/durability", "durability", views.durability),
    ):
        routes.add_url_rule(rule, name, view, methods=["GET"])
    routes.add_url_rule("/live", "live", views.live)
    routes.register_error_handler(UpstreamError, views.unreachable)
    return routes


TOPIC_COLUMNS = (
    PageColumn("topic", "Topic", lambda row: row.topic),
    TOPIC_DEPTH,
    TOPIC_IN_FLIGHT,
    TOPIC_DEFERRED,
    PageColumn("messages", "Messages", lambda row: row.sums["message_count"], is_number=True, has_sum=True),
    PageColumn("rate", "Rate /s", None, is_number=True, has_sum=True),
    PageColumn("hour", "Depth, last hour"),
    PageColumn("channels", "Channels", lambda row: len(row.channels), is_number=True, has_sum=True),
    PageColumn("nodes", "Nodes", lambda row: len(row.nodes), is_number=True),
)
CHANNEL_COLUMNS = (
    PageColumn("channel", "Channel", lambda row: row.channel),
    PageColumn("depth", "Depth", lambda row: row.sums["depth"], is_number=True, has_sum=True),
    PageColumn("place", "Memory + disk", lambda row: row.sums["backend_depth"], is_number=True),
    PageColumn("in_flight", "In flight", lambda row: row.sums["in_flight_count"], is_number=True, has_sum=True),
    PageColumn("deferred", "Deferred", lambda row: row.sums["deferred_count"], is_number=True, has_sum=True),
    PageColumn("requeued", "Requeued", lambda row: row.sums["requeue_count"], is_number=True, has_sum=True),
    PageColumn("timed_out", "Timed out", lambda row: row.sums["timeout_count"], is_number=True, has_sum=True),
    PageColumn("messages", "Messages", lambda row: row.sums["message_count"], is_number=True, has_sum=True),
    PageColumn("rate", "Rate /s", None, is_number=True, has_sum=True),
    PageColumn("hour", "Depth, last hour"),
    PageColumn("clients", "Clients", lambda row: row.sums["client_count"], is_number=True, has_sum=True),
)
# Only of brokers that measure it.
LATENCY_COLUMN = PageColumn("latency", "Latency", is_number=True)
TOPIC_FILTERS = (
    Filter("waiting", "With messages", lambda row: row.waiting > 0),
    Filter("paused", "Paused", lambda row: row.paused or any(each.paused for each in row.channels)),
    Filter("idle", "Without clients", lambda row: not row.channel_sum("client_count")),
    Filter("homeless", "Without a broker", lambda row: not row.nodes),
)
CHANNEL_FILTERS = (
    Filter("waiting", "With messages", lambda row: row.sums["depth"] > 0),
    Filter("paused", "Paused", lambda row: row.paused),
    Filter("idle", "Without clients", lambda row: not row.sums["client_count"]),
)

# Counts of messages that stayed in the broker's zone or region.
NEAR = ("zone_local_msg_count", "region_local_msg_count")
# More than this many are not read, and would make the page slow.
FINDINGS_MAX = 200


class Views:
    """Views of the pages. Each shows a template, or only its live part if the script asks for a fragment."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def show(self, template: str, **values: Any) -> str:
        snapshot = self.site.poller.snapshot
        return render_template(
            template,
            snapshot=snapshot,
            history=self.site.poller.history,
            now_s=time.time(),
            **values,
        )

    def streams(self) -> str:
        snapshot = self.site.poller.snapshot
        rows = [*snapshot.topics.values()]
        rows += [TopicStats.total(name, []) for name in snapshot.names if name not in snapshot.topics]
        rows = [row for row in rows if self.site.may(UserRole.VIEW, row.topic)]
        table = table_of(
            rows,
            self._with_rate(TOPIC_COLUMNS),
            text_of=lambda row: str(row.topic),
            sort="topic",
            filters=TOPIC_FILTERS,
        )
        return self.show("streams.html", table=table)

    def home(self) -> str:
        """Show the cluster at a glance: rates, depths, disks, health, brokers, and charts of the last hour."""
        poller = self.site.poller
        snapshot, rates = poller.snapshot, poller.history.rates
        topics = [topic for topic in snapshot.topics.values() if self.site.may(UserRole.VIEW, topic.topic)]
        channels = [channel for topic in topics for channel in topic.channels]
        disks = [state for state in snapshot.durability.values() if state.disk_free_bytes is not None]
        return self.show(
            "overview.html",
            topics=topics,
            channels=channels,
            rate_in=sum(rates.get((topic.topic,), 0.0) for topic in topics),
            rate_out=sum(rates.get((channel.topic, channel.channel), 0.0) for channel in channels),
            depth=sum(topic.waiting for topic in topics),
            sums={
                name: sum(channel.sums[name] for channel in channels)
                for name in ("in_flight_count", "deferred_count", "client_count")
            },
            disk=min(disks, key=lambda state: state.disk_free_bytes or 0, default=None),
            findings=self._findings(),
            node_rates={
                node: sum(rate for key, rate in found.items() if len(key) == 1)
                for node, found in poller.history.node_rates.items()
            },
            node_depths={node: depth for (node,), depth in depth_of_nodes(snapshot).items()},
            # The numbers of brokers, and the charts, are of all topics.
            sees_all=self.site.sees_all(),
        )

    def _findings(self) -> list[Finding]:
        findings = self.site.findings()
        return findings if self.site.sees_all() else [without_reason(each) for each in findings]

    def topic(self, topic: str) -> str | tuple[str, int]:
        self.site.require(UserRole.VIEW, topic)
        producers = self._producers_of(topic)
        if producers is None:
            return self.show("missing.html", topic=topic), 404
        stats = self._stats(producers.value, topic)
        total = TopicStats.total(topic, stats.value.topics)
        has_latency = bool(total.latency.percentiles) or any(each.latency.percentiles for each in total.channels)
        columns = [*self._with_rate(CHANNEL_COLUMNS), *([LATENCY_COLUMN] if has_latency else [])]
        table = table_of(
            total.channels, columns, text_of=lambda row: str(row.channel), sort="channel", filters=CHANNEL_FILTERS
        )
        failures = producers.failures + stats.failures
        return self.show(
            "topic.html",
            topic=topic,
            stats=total,
            table=table,
            failures=failures,
            is_nsq=self._is_nsq(total.nodes),
            has_latency=has_latency,
        )

    def channel(self, topic: str, channel: str) -> str | tuple[str, int]:
        self.site.require(UserRole.VIEW, topic)
        producers = self._producers_of(topic) or Collected([], [])
        stats = self._stats(producers.value, topic, channel)
        found = stats.value.channel(channel)
        if found is None:
            return self.show("missing.html", topic=topic, channel=channel), 404
        table = table_of(found.clients, CLIENT_COLUMNS, text_of=client_text, sort="node")
        failures = producers.failures + stats.failures
        return self.show(
            "channel.html",
            topic=topic,
            channel=channel,
            stats=found,
            table=table,
            failures=failures,
            is_nsq=self._is_nsq(found.nodes),
            has_latency=bool(found.latency.percentiles),
            # Without a topology all messages go elsewhere.
            has_locality=any(found.sums[name] for name in NEAR),
        )

    def lookup(self) -> str:
        nodes = self.site.poller.snapshot.nodes
        active = {topic for node in nodes for topic, is_hidden in node.topics if not is_hidden}
        found = self.site.cluster.inactive_topics(active)
        inactive = {topic: channels for topic, channels in found.value.items() if self.site.may(UserRole.VIEW, topic)}
        lookupds = self.site.cluster.lookupds
        return self.show("lookup.html", lookupds=lookupds, inactive=inactive, failures=found.failures)

    def counter(self) -> str:
        topics = self.site.poller.snapshot.topics.values()
        visible = [topic for topic in topics if self.site.may(UserRole.VIEW, topic.topic)]
        rates = self.site.poller.history.rates
        return self.show(
            "counter.html",
            total=sum(topic.sums["message_count"] for topic in visible),
            rate=sum(rates.get((topic.topic,), 0.0) for topic in visible),
            # The charts are of all topics.
            has_charts=self.site.sees_all(),
        )

    def health(self) -> str:
        findings = self._findings()
        return self.show("health.html", findings=findings[:FINDINGS_MAX], more=max(0, len(findings) - FINDINGS_MAX))

    def durability(self) -> str:
        """Show how safe the messages are, broker by broker, and when disks are full."""
        poller = self.site.poller
        rows = [
            (each, full_in_s(poller.history.values("disk_free", (each.node,)), each.room_bytes))
            for each in poller.snapshot.durability.values()
        ]
        damaged = [
            (state, found)
            for state, _ in rows
            for found in state.damaged_topics
            if self.site.may(UserRole.VIEW, found["topic"])
        ]
        return self.show("durability.html", rows=rows, damaged=damaged, has_reasons=self.site.sees_all())

    def live(self) -> Response:
        """Send the number of each poll as a server-sent event, until the browser goes away."""
        poller = self.site.poller

        def events() -> Any:
            number = -1
            while not self.site.is_closing:
                number = poller.wait_newer(number, LIVE_KEEPALIVE_S).number
                yield f"event: poll\ndata: {number}\n\n"

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Response(events(), content_type="text/event-stream", headers=headers)

    def unreachable(self, error: UpstreamError) -> tuple[str, int]:
        return self.show("unreachable.html", error=str(error)), 502

    def _producers_of(self, topic: str) -> Collected | None:
        """Return the brokers that have a topic; None if no broker and no lookup daemon knows it."""
        try:
            found = self.site.cluster.producers_of(topic)
        except UpstreamError as error:
            if "TOPIC_NOT_FOUND" not in str(error):
                raise
            return None
        return found if found.value or self.site.cluster.lookupds else None

    def _stats(self, nodes: list[ClusterNode], topic: str, channel: str = "") -> Collected:
        if not nodes:
            return Collected(Stats([]), [])
        return self.site.cluster.stats(nodes, topic, channel, clients=bool(channel))

    def _is_nsq(self, rows: Sequence[TopicStats] | Sequence[ChannelStats]) -> bool:
        """Return whether all brokers of a topic or channel are NSQ's own, as far as they have been asked."""
        known = self.site.poller.snapshot.durability
        return bool(rows) and all(row.node in known and known[row.node].is_absent for row in rows)

    def _with_rate(self, columns: tuple[PageColumn, ...]) -> list[PageColumn]:
        """Return columns whose rate sorts by the rates of the last poll."""
        rates = self.site.poller.history.rates
        return sorted_by(
            columns,
            "rate",
            lambda row: rates.get((row.topic, row.channel) if isinstance(row, ChannelStats) else (row.topic,), 0.0),
        )


# The browser takes a silent connection for a dead one.
LIVE_KEEPALIVE_S = 15.0


def without_reason(finding: Finding) -> Finding:
    """Return a finding for a user of some topics: reasons of brokers name files of any topic."""
    hidden = {name: "NOK" if name == "reason" else value for name, value in finding.values.items()}
    return dataclasses.replace(finding, values=hidden)
