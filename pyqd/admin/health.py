"""Health of the cluster: what is wrong, how bad it is, and what to do about it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pyqd.admin.durability import Durability, full_in_s

if TYPE_CHECKING:
    from pyqd.admin.poller import Snapshot
    from pyqd.admin.site import Site

# A channel without clients and with this many messages is most likely forgotten.
ABANDONED_DEPTH: Final = 1
# Growth over the last hour that is worth a look.
GROWTH_MIN: Final = 1000
# Time to the end of a disk's space.
DISK_WARN_S: Final = 86_400.0
DISK_BAD_S: Final = 3_600.0
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
        *durability(site, snapshot),
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


def durability(site: Site, snapshot: Snapshot) -> list[Finding]:
    """Return the brokers whose disk fails, was damaged, or is full soon."""
    found = []
    for state in snapshot.durability.values():
        if state.is_known:
            left_s = full_in_s(site.poller.history.values("disk_free", (state.node,)), state.room_bytes)
            found += [Finding(*parts, node=state.node) for parts in failures_of(state, left_s)]
    return found


def failures_of(state: Durability, left_s: float | None) -> list[tuple[str, str, str]]:
    """Return level, text and remedy of all that is wrong with one broker. left_s: until its disk is full."""
    found = []
    if state.health != "OK":
        text = f"{state.node} is not healthy: {state.health.removeprefix('NOK - ')}"
        found.append((BAD, text, mark("The health changes by itself when its cause is gone; see the broker's log.")))
    if state.sync_failures or state.write_failures:
        text = f"{state.node} has had {state.sync_failures:,} failed syncs and {state.write_failures:,} failed writes."
        found.append((WARN, text, mark("Check the disk and its space; see the broker's log.")))
    if state.damage.get("count"):
        places, lost = state.damage["count"], state.damage["records_lost"]
        text = f"{state.node} has found {places:,} damaged places on its disk; {lost:,} messages are lost."
        found.append((WARN, text, mark("Check the disk. The page Durability names the topics.")))
    if left_s is not None and 0 < left_s < DISK_WARN_S:
        text = f"The disk of {state.node} is full in {left_s / 3600:,.1f} h at the rate of the last hour."
        level = BAD if left_s < DISK_BAD_S else WARN
        found.append((level, text, mark("Add consumers, delete topics, set a quota or a shorter retention.")))
    return found


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
