"""Changes of the cluster, in the order of calls that nsqadmin makes, and the log line and notification of each.

Source: docs/nsq/admin-and-tools.md, "Write API".
"""

from __future__ import annotations

from typing import Final

from pyqd.admin.cluster import Cluster, ClusterNode
from pyqd.admin.notifications import failed
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError

ACTIONS: Final = ("pause", "unpause", "empty")


def perform(site: Site, action: str, topic: str, channel: str = "", node: str = "") -> list[str]:
    """Do a change, and return the failures of single members. action: create, delete, tombstone, or one of ACTIONS.

    node: broadcast host:HTTP port of a tombstone. Raises: UpstreamError if no member could be found or asked.
    """
    name = f"{action}_channel" if channel else f"{action}_topic"
    if action == "tombstone":
        name = "tombstone_topic_producer"
    place = {"topic": topic, "channel": channel, "node": node}
    try:
        failures = change(site.cluster, action, topic, channel, node)
    except UpstreamError:
        # The change may have taken effect at some members. nsqadmin notifies of it in these three cases only.
        tell = site.notify if action in ACTIONS else site.audit
        tell(name, **place, details="failed")
        raise
    if action == "create" and channel:
        site.notify("create_topic", topic=topic, details=failed(failures))
    site.notify(name, **place, details=failed(failures))
    return failures


def change(cluster: Cluster, action: str, topic: str, channel: str, node: str) -> list[str]:
    if action == "create":
        return create(cluster, topic, channel)
    if action == "tombstone":
        return tombstone(cluster, topic, node)
    kind, query = ("channel", {"topic": topic, "channel": channel}) if channel else ("topic", {"topic": topic})
    path = f"/{kind}/{action}"
    # After a deletion the lookup daemons would name no broker.
    producers = cluster.producers_of(topic)
    failures = cluster.post_to(cluster.lookupds, path, query) if action == "delete" else []
    return producers.failures + failures + cluster.post_to_nodes(producers.value, path, query)


def create(cluster: Cluster, topic: str, channel: str) -> list[str]:
    """Create a topic, and a channel on the brokers that have the topic."""
    failures = cluster.post_to(cluster.lookupds, "/topic/create", {"topic": topic})
    if not channel:
        return failures
    query = {"topic": topic, "channel": channel}
    failures += cluster.post_to(cluster.lookupds, "/channel/create", query)
    # Without lookup daemons there is nobody to ask: nsqadmin refuses too.
    producers = cluster.lookup(topic)
    return failures + producers.failures + cluster.post_to_nodes(producers.value, "/channel/create", query)


def tombstone(cluster: Cluster, topic: str, node: str) -> list[str]:
    """Hide a broker's topic in the lookup daemons, and delete the topic there."""
    query = {"topic": topic}
    failures = cluster.post_to(cluster.lookupds, "/topic/tombstone", {**query, "node": node})
    nodes: list[ClusterNode] = cluster.describe(node).value
    return failures + cluster.post_to_nodes(nodes, "/topic/delete", query)
