"""Changes of the cluster, in the order of calls that nsqadmin makes.

Each function returns the failures of single members, and raises UpstreamError if no member could be found or asked.

Source: docs/nsq/admin-and-tools.md, "Write API".
"""

from __future__ import annotations

from typing import Final

from pyqd.admin.cluster import Cluster, Node

ACTIONS: Final = ("pause", "unpause", "empty")


def create(cluster: Cluster, topic: str, channel: str = "") -> list[str]:
    """Create a topic, and a channel on the brokers that have the topic."""
    failures = cluster.post_to_lookupds("/topic/create", {"topic": topic})
    if not channel:
        return failures
    query = {"topic": topic, "channel": channel}
    failures += cluster.post_to_lookupds("/channel/create", query)
    # Without lookup daemons there is nobody to ask: nsqadmin refuses too.
    producers = cluster.lookup(topic)
    return failures + producers.failures + cluster.post_to_nodes(producers.value, "/channel/create", query)


def delete_topic(cluster: Cluster, topic: str) -> list[str]:
    """Delete a topic from lookup daemons and brokers."""
    # Afterwards the lookup daemons would name no broker.
    producers = cluster.producers_of(topic)
    query = {"topic": topic}
    failures = producers.failures + cluster.post_to_lookupds("/topic/delete", query)
    return failures + cluster.post_to_nodes(producers.value, "/topic/delete", query)


def delete_channel(cluster: Cluster, topic: str, channel: str) -> list[str]:
    """Delete a channel from lookup daemons and brokers."""
    producers = cluster.producers_of(topic)
    query = {"topic": topic, "channel": channel}
    failures = producers.failures + cluster.post_to_lookupds("/channel/delete", query)
    return failures + cluster.post_to_nodes(producers.value, "/channel/delete", query)


def change(cluster: Cluster, action: str, topic: str, channel: str = "") -> list[str]:
    """Pause, unpause or empty a topic or a channel. action: one of ACTIONS."""
    assert action in ACTIONS
    producers = cluster.producers_of(topic)
    kind, query = ("channel", {"topic": topic, "channel": channel}) if channel else ("topic", {"topic": topic})
    return producers.failures + cluster.post_to_nodes(producers.value, f"/{kind}/{action}", query)


def tombstone(cluster: Cluster, topic: str, node: str) -> list[str]:
    """Hide a broker's topic in the lookup daemons, and delete the topic there. node: broadcast host:HTTP port."""
    query = {"topic": topic}
    failures = cluster.post_to_lookupds("/topic/tombstone", {**query, "node": node})
    nodes: list[Node] = cluster.describe(node).value
    return failures + cluster.post_to_nodes(nodes, "/topic/delete", query)
