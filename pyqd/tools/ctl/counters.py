"""Counters of topics and channels, summed over brokers, and rates between two readings.

Keys are those of GET /stats: docs/nsq/http-api.md, "GET /stats"; docs/http.md, "Limits of a channel".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from pyqd.client.errors import ProtocolError
from pyqd.primitives.quantities import format_size
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.table import STATE, Fitted, Row, TableColumn, names, number, per_second

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


def read_stats(
    broker: AskedBroker, topic: str | None = None, channel: str | None = None, *, clients: bool = False
) -> NodeStats:
    """Return the counters of a broker. clients: with those of each channel's clients. Raises: ClientError."""
    with_clients = "true" if clients else "false"
    stats = broker.get(
        "/stats", format="json", topic=topic, channel=channel, include_clients=with_clients, include_mem="false"
    )
    if "topics" not in stats:
        raise ProtocolError(f"{broker.address}: GET /stats: not the answer of a broker")
    return NodeStats(broker.address, stats["topics"] or (), stats)


def topic_rows(read: Iterable[NodeStats], pattern: str = "*", *, by_node: bool = False) -> list[Row]:
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
    row["nodes"].append(node)
    if counted["paused"]:
        row["paused_nodes"].append(node)


def add(row: Row, counted: Mapping[str, Any], keys: Sequence[str]) -> None:
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


def node_column(by_node: bool, rank: int) -> TableColumn:
    """Return the column with the broker's address, or with the number of brokers."""
    return TableColumn("Node", "nodes", names) if by_node else number("Nodes", "node_count", rank)


def topics_table(rows: Sequence[Row], by_node: bool = False) -> Fitted:
    columns = (
        TableColumn("Topic", "topic", style="bold"),
        node_column(by_node, 5),
        number("Channels", "channel_count", 4),
        number("Depth", "depth"),
        number("In channels", "channel_depth"),
        number("In flight", "channel_in_flight_count", 1),
        number("Deferred", "channel_deferred_count", 2),
        number("Messages", "message_count", 3),
        TableColumn("Bytes", "message_bytes", format_size, is_number=True, rank=6),
        STATE,
    )
    return Fitted(columns, [counted(row) for row in rows])


def channels_table(rows: Sequence[Row], by_node: bool = False) -> Fitted:
    """Return the table of channels. Limits and dead letters have columns if any channel has them."""
    columns = [
        TableColumn("Topic", "topic", style="bold"),
        TableColumn("Channel", "channel", style="bold"),
        node_column(by_node, 6),
        number("Depth", "depth"),
        number("In flight", "in_flight_count", 1),
        number("Deferred", "deferred_count", 2),
        number("Messages", "message_count", 5),
        number("Requeued", "requeue_count", 7),
        number("Timed out", "timeout_count", 8),
        number("Clients", "client_count", 3),
    ]
    if any(row["limits"] for row in rows):
        columns += [
            per_second("Rate/s", "rate", 9),
            number("Attempts", "max_attempts", 10),
            number("Dead letters", "dead_letter_count", 4),
        ]
    return Fitted([*columns, STATE], [{**(row["limits"] or {}), **counted(row)} for row in rows])


def counted(row: Row) -> Row:
    return {**row, "node_count": len(row["nodes"]), "state": paused_text(row)}


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
