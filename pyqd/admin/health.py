"""Health of the cluster: findings, each with a level and a remedy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyqd.admin.durability import DurabilityState, full_in_s

if TYPE_CHECKING:
    from pyqd.admin.poller import ClusterPoller, Snapshot
    from pyqd.admin.stats import ChannelStats

# A channel without clients and with this many messages is most likely forgotten.
ABANDONED_DEPTH: Final = 1
# Growth over the last hour that is worth a look.
GROWTH_MIN: Final = 1000
ROUNDING: Final = 1e-6
# Time to the end of a disk's space.
DISK_WARN_S: Final = 86_400.0
DISK_BAD_S: Final = 3_600.0
BAD: Final = "bad"
WARN: Final = "warn"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. level: BAD or WARN. remedy: the next step. topic, channel, node: its place.

    text: is translated where it is shown, and gets its values then.
    """

    level: str
    text: str
    remedy: str
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    topic: str = ""
    channel: str = ""
    node: str = ""
    # Among findings of one level those about brokers come first, then the deepest channels.
    weight: float = math.inf


def mark(text: str) -> str:
    """Return a text, which is translated where it is shown."""
    return text


def findings_of(poller: ClusterPoller) -> list[Finding]:
    """Return the findings by the newest poll, the worst first."""
    snapshot = poller.snapshot
    found = [
        *unreachable(snapshot),
        *registrations(poller, snapshot),
        *without_token(poller, snapshot),
        *versions(snapshot),
        *durability(poller, snapshot),
        *channels(poller, snapshot),
        *topics_without_channels(snapshot),
    ]
    return sorted(found, key=lambda finding: (finding.level, -finding.weight))


def unreachable(snapshot: Snapshot) -> list[Finding]:
    remedy = mark("Check that the process runs, and that this machine can reach its HTTP port.")
    return [Finding(BAD, "%(failure)s", remedy, {"failure": failure}) for failure in snapshot.failures]


def of_node(node: str, level: str, text: str, remedy: str, **values: str) -> Finding:
    """Return a finding about one broker."""
    return Finding(level, text, remedy, {"node": node, **values}, node=node)


def registrations(poller: ClusterPoller, snapshot: Snapshot) -> list[Finding]:
    """Return the brokers that not every lookup daemon knows."""
    expected = len(poller.cluster.lookupds)
    text = mark("%(node)s is known to %(count)s of %(expected)s lookup daemons.")
    remedy = mark(
        "Give the broker each lookup daemon with --lookupd-tcp-address, and a --broadcast-address of its own."
    )
    known = [(node.http_address, len(node.remote_addresses or ())) for node in snapshot.nodes]
    return [
        of_node(address, WARN, text, remedy, count=str(count), expected=str(expected))
        for address, count in known
        if expected and count != expected
    ]


def without_token(poller: ClusterPoller, snapshot: Snapshot) -> list[Finding]:
    """Return the brokers that are asked without the token."""
    text = mark("%(node)s is asked without the token: %(reason)s.")
    remedy = mark("Name the broker with --trusted-broker if it is yours, and give it HTTPS if pyqadmin has TLS flags.")
    found = [(node.http_address, poller.cluster.upstream.withheld(node.http_address)) for node in snapshot.nodes]
    return [of_node(address, WARN, text, remedy, reason=reason) for address, reason in found if reason]


def versions(snapshot: Snapshot) -> list[Finding]:
    text, remedy = mark("%(node)s runs version %(version)s, older than others."), mark("Update it when convenient.")
    nodes = [node for node in snapshot.nodes if node.out_of_date]
    return [of_node(node.http_address, WARN, text, remedy, version=node.version) for node in nodes]


def durability(poller: ClusterPoller, snapshot: Snapshot) -> list[Finding]:
    """Return the brokers whose disk fails, was damaged, or is full soon."""
    found = []
    for state in snapshot.durability.values():
        if state.is_known:
            left_s = full_in_s(poller.history.values("disk_free", (state.node,)), state.room_bytes)
            found += failures_of(state, left_s)
    return found


def failures_of(state: DurabilityState, left_s: float | None) -> list[Finding]:
    """Return the findings about one broker. left_s: seconds until its disk is full."""
    found = []

    def add(level: str, text: str, remedy: str, **values: str) -> None:
        found.append(of_node(state.node, level, text, remedy, **values))

    if state.health != "OK":
        text = mark("%(node)s is not healthy: %(reason)s")
        remedy = mark("The health changes by itself when its cause is gone; see the broker's log.")
        add(BAD, text, remedy, reason=state.health.removeprefix("NOK - "))
    if state.sync_failures or state.write_failures:
        text = mark("%(node)s has had %(syncs)s failed syncs and %(writes)s failed writes.")
        remedy = mark("Check the disk and its space; see the broker's log.")
        add(WARN, text, remedy, syncs=f"{state.sync_failures:,}", writes=f"{state.write_failures:,}")
    if state.damage.get("count"):
        text = mark("%(node)s has found %(places)s damaged places on its disk; %(lost)s messages are lost.")
        remedy = mark("Check the disk. The page Durability names the topics.")
        places, lost = state.damage["count"], state.damage["records_lost"]
        add(WARN, text, remedy, places=f"{places:,}", lost=f"{lost:,}")
    if left_s is not None and 0 < left_s < DISK_WARN_S:
        text = mark("The disk of %(node)s is full in %(hours)s h at the rate of the last hour.")
        remedy = mark("Add consumers, set a quota or a shorter retention; deleting a topic loses its messages.")
        add(BAD if left_s < DISK_BAD_S else WARN, text, remedy, hours=f"{left_s / 3600:,.1f}")
    return found


def channels(poller: ClusterPoller, snapshot: Snapshot) -> list[Finding]:
    """Return the channels that nobody reads, that are paused with messages, or that grow."""
    found = []
    for topic in snapshot.topics.values():
        for channel in topic.channels:
            # Of a thousand topics, few have enough messages to be looked at.
            is_deep = channel.sums["depth"] >= GROWTH_MIN
            depths = poller.history.values("depth", (topic.topic, channel.channel)) if is_deep else ()
            found += findings_of_channel(channel, depths)
    return found


def findings_of_channel(channel: ChannelStats, depths: Sequence[float]) -> list[Finding]:
    """Return the finding about a channel, one at most. depths: of the last hour, NaN for a missing one."""
    depth = channel.sums["depth"]
    least = min((value for value in depths if value >= 0), default=depth)
    # The history rounds to seven digits.
    is_greatest = not any(value > depth * (1 + ROUNDING) for value in depths)
    if channel.paused and depth:
        text, remedy = mark("%(name)s is paused; messages that wait: %(depth)s."), mark("Unpause it.")
    elif not channel.sums["client_count"] and depth >= ABANDONED_DEPTH:
        text = mark("%(name)s has no client; messages that wait: %(depth)s.")
        remedy = mark("Start a consumer; or delete the channel, which loses these messages.")
    elif depth - least >= GROWTH_MIN and depth >= 2 * least and is_greatest:
        text = mark("%(name)s has grown from %(least)s to %(depth)s messages within the last hour.")
        remedy = mark("Add consumers, or find out what slows them down; see its requeues and time-outs.")
    else:
        return []
    values = {"name": f"{channel.topic}/{channel.channel}", "depth": f"{depth:,}", "least": f"{least:,.0f}"}
    return [Finding(WARN, text, remedy, values, topic=channel.topic, channel=channel.channel, weight=depth)]


def topics_without_channels(snapshot: Snapshot) -> list[Finding]:
    return [
        Finding(
            WARN,
            mark("%(name)s has no channel; messages that wait: %(depth)s."),
            mark("Start a consumer: its first channel gets them all."),
            {"name": topic.topic, "depth": f"{topic.sums['depth']:,}"},
            topic=topic.topic,
            weight=topic.sums["depth"],
        )
        for topic in snapshot.topics.values()
        if not topic.channels and topic.sums["depth"]
    ]
