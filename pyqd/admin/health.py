"""Health of the cluster: what is wrong, how bad it is, and what to do about it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyqd.admin.poller import Snapshot
    from pyqd.admin.site import Site

# A channel without clients and with this many messages is most likely forgotten.
ABANDONED_DEPTH: Final = 1
# Growth over the last hour that is worth a look.
GROWTH_MIN: Final = 1000
BAD: Final = "bad"
WARN: Final = "warn"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. level: BAD or WARN. remedy: the next step. topic, channel, node: its place."""

    level: str
    text: str
    remedy: str
    topic: str = ""
    channel: str = ""
    node: str = ""


def mark(text: str) -> str:
    """Return a text, which is translated where it is shown."""
    return text


def findings_of(site: Site) -> list[Finding]:
    """Return what is wrong, the worst first."""
    snapshot = site.poller.snapshot
    found = [
        *unreachable(snapshot),
        *registrations(site, snapshot),
        *versions(snapshot),
        *channels(site, snapshot),
        *topics_without_channels(snapshot),
    ]
    return sorted(found, key=lambda finding: finding.level)


def unreachable(snapshot: Snapshot) -> list[Finding]:
    remedy = mark("Check that the process runs, and that this machine can reach its HTTP port.")
    return [Finding(BAD, failure, remedy) for failure in snapshot.failures]


def registrations(site: Site, snapshot: Snapshot) -> list[Finding]:
    """Return the brokers that not every lookup daemon knows."""
    expected = len(site.cluster.lookupds)
    return [
        Finding(
            WARN,
            f"{node.http_address} is known to {len(node.remote_addresses or ())} of {expected} lookup daemons.",
            mark(
                "Give the broker each lookup daemon with --lookupd-tcp-address, and a --broadcast-address of its own."
            ),
            node=node.http_address,
        )
        for node in snapshot.nodes
        if expected and len(node.remote_addresses or ()) != expected
    ]


def versions(snapshot: Snapshot) -> list[Finding]:
    return [
        Finding(
            WARN,
            f"{node.http_address} runs version {node.version}, older than others.",
            mark("Update it when convenient."),
            node=node.http_address,
        )
        for node in snapshot.nodes
        if node.out_of_date
    ]


def channels(site: Site, snapshot: Snapshot) -> list[Finding]:
    """Return the channels that nobody reads, that are paused with messages, or that grow."""
    found = []
    for topic in snapshot.topics.values():
        for channel in topic.channels:
            place = {"topic": topic.topic, "channel": channel.channel}
            depth = channel.sums["depth"]
            name = f"{topic.topic}/{channel.channel}"
            if channel.paused and depth:
                found.append(
                    Finding(WARN, f"{name} is paused, and {depth:,} messages wait.", mark("Unpause it."), **place)
                )
            elif not channel.sums["client_count"] and depth >= ABANDONED_DEPTH:
                text = f"{name} has no client, and {depth:,} messages wait."
                remedy = mark("Start a consumer; or delete the channel, if no program reads it any more.")
                found.append(Finding(WARN, text, remedy, **place))
            else:
                values = [
                    value for value in site.poller.history.values("depth", (topic.topic, channel.channel)) if value >= 0
                ]
                if values and depth - min(values) >= GROWTH_MIN and depth >= 2 * min(values) and depth == max(values):
                    text = f"{name} has grown from {min(values):,.0f} to {depth:,} messages within the last hour."
                    remedy = mark("Add consumers, or find out what slows them down; see its requeues and time-outs.")
                    found.append(Finding(WARN, text, remedy, **place))
    return found


def topics_without_channels(snapshot: Snapshot) -> list[Finding]:
    return [
        Finding(
            WARN,
            f"{topic.topic} has no channel, and {topic.sums['depth']:,} messages wait.",
            mark("Start a consumer: its first channel gets them all."),
            topic=topic.topic,
        )
        for topic in snapshot.topics.values()
        if not topic.channels and topic.sums["depth"]
    ]
