"""Counters of topics and channels, summed over brokers, and rates between two readings.

Keys are those of GET /stats: docs/nsq/http-api.md, "GET /stats"; docs/http.md, "Limits of a channel".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from pyqd.client.errors import ProtocolError
from pyqd.tools.ctl.nodes import Broker

Row = dict[str, Any]

TOPIC_SUMS: Final = ("depth", "message_count", "message_bytes")
CHANNEL_SUMS: Final = (
    "depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "requeue_count",
    "timeout_count",
    "client_count",
)
LIMIT_SUMS: Final = ("dead_letter_count", "dead_letters_waiting")
# Messages that a channel holds in any state.
HELD: Final = ("depth", "in_flight_count", "deferred_count")


class NodeStats(NamedTuple):
    """Counters of one broker."""

    node: str
    topics: Sequence[Mapping[str, Any]]
    head: Mapping[str, Any]


def read_stats(broker: Broker, topic: str | None = None, channel: str | None = None) -> NodeStats:
    """Return the counters of a broker, without its clients. Raises: ClientError."""
    stats = broker.get(
        "/stats", format="json", topic=topic, channel=channel, include_clients="false", include_mem="false"
    )
    if "topics" not in stats:
        raise ProtocolError(f"{broker.address}: GET /stats: not the answer of a broker")
    return NodeStats(broker.address, stats["topics"] or (), stats)


def topic_rows(read: Iterable[NodeStats], pattern: str = "*", *, by_node: bool = False) -> list[Row]:
    """Return a row for each topic, sorted by name; by_node: for each topic and broker."""
    rows: dict[tuple[str, str], Row] = {}
    channels: dict[tuple[str, str], set[str]] = {}
    for stats in read:
        for topic in stats.topics:
            name = topic["topic_name"]
            if not fnmatchcase(name, pattern):
                continue
            key = (name, stats.node if by_node else "")
            row = rows.setdefault(key, {"topic": name, "nodes": [], "paused_nodes": []})
            note_node(row, stats.node, topic)
            add(row, topic, TOPIC_SUMS)
            for sum_key in HELD:
                total = sum(channel[sum_key] for channel in topic["channels"])
                row[f"channel_{sum_key}"] = row.get(f"channel_{sum_key}", 0) + total
            channels.setdefault(key, set()).update(channel["channel_name"] for channel in topic["channels"])
    for key, row in rows.items():
        row["channel_count"] = len(channels[key])
    return [rows[key] for key in sorted(rows)]


def channel_rows(
    read: Iterable[NodeStats], topic_pattern: str = "*", channel_pattern: str = "*", *, by_node: bool = False
) -> list[Row]:
    """Return a row for each channel, sorted by topic and name; by_node: for each channel and broker."""
    rows: dict[tuple[str, str, str], Row] = {}
    for stats in read:
        for topic in stats.topics:
            for channel in topic["channels"]:
                names = (topic["topic_name"], channel["channel_name"])
                if not fnmatchcase(names[0], topic_pattern) or not fnmatchcase(names[1], channel_pattern):
                    continue
                key = (*names, stats.node if by_node else "")
                row = rows.setdefault(
                    key, {"topic": names[0], "channel": names[1], "nodes": [], "paused_nodes": [], "limits": None}
                )
                note_node(row, stats.node, channel)
                add(row, channel, CHANNEL_SUMS)
                if "limits" in channel:
                    row["limits"] = merged_limits(row["limits"], channel["limits"])
    return [rows[key] for key in sorted(rows)]


def note_node(row: Row, node: str, counted: Mapping[str, Any]) -> None:
    """Record in a row the broker of added counters."""
    row["nodes"].append(node)
    if counted["paused"]:
        row["paused_nodes"].append(node)


def add(row: Row, counted: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Add counters to a row."""
    for key in keys:
        row[key] = row.get(key, 0) + counted[key]


def merged_limits(before: Row | None, limits: Mapping[str, Any]) -> Row:
    """Return the limits of a channel on several brokers: the first ones, with the sums of their counts."""
    if before is None:
        return dict(limits)
    return {**before, **{key: before[key] + limits[key] for key in LIMIT_SUMS}}


def paused_text(row: Row) -> str:
    """Return whether a topic or channel is paused, and on how many of its brokers."""
    paused, all_nodes = len(row["paused_nodes"]), len(row["nodes"])
    if not paused:
        return ""
    return "paused" if paused == all_nodes else f"paused on {paused} of {all_nodes}"


class Reading(NamedTuple):
    """Counters of all brokers at one time. at_s: of the monotonic clock."""

    at_s: float
    stats: Sequence[NodeStats]


class Totals(NamedTuple):
    """Growing counters of one channel of one broker, or of a topic: messages received, done, requeued, timed out."""

    received: int
    done: int
    requeued: int
    timed_out: int


def totals_of(reading: Reading) -> dict[tuple[str, str, str | None], Totals]:
    """Return the growing counters by broker, topic and channel; None as the channel stands for the topic itself."""
    found: dict[tuple[str, str, str | None], Totals] = {}
    for stats in reading.stats:
        for topic in stats.topics:
            found[(stats.node, topic["topic_name"], None)] = Totals(topic["message_count"], 0, 0, 0)
            for channel in topic["channels"]:
                received = channel["message_count"]
                done = received - sum(channel[key] for key in HELD)
                found[(stats.node, topic["topic_name"], channel["channel_name"])] = Totals(
                    received, done, channel["requeue_count"], channel["timeout_count"]
                )
    return found


def rates(before: Reading | None, now: Reading) -> dict[tuple[str, str | None], tuple[float, ...]]:
    """Return the rates per second of Totals between two readings, summed over brokers, by topic and channel.

    A broker that is in one of the readings only does not count, and a counter that has fallen, after a restart or a
    deletion, counts as unchanged.
    """
    if before is None or now.at_s <= before.at_s:
        return {}
    old = totals_of(before)
    found: dict[tuple[str, str | None], tuple[float, ...]] = {}
    for key, totals in totals_of(now).items():
        if key in old:
            grown = tuple(
                max(0, new - former) / (now.at_s - before.at_s) for new, former in zip(totals, old[key], strict=True)
            )
            sums = found.get(key[1:], (0.0,) * len(grown))
            found[key[1:]] = tuple(left + right for left, right in zip(sums, grown, strict=True))
    return found
