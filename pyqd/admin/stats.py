"""Numbers of topics and channels: of one broker, and summed over brokers.

Source: docs/nsq/admin-and-tools.md, "Read API".
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.nsq_compat import PYQD_VERSION

# Sums over brokers, by the names in GET /stats.
TOPIC_SUMS: Final = (
    "depth",
    "backend_depth",
    "message_count",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
)
CHANNEL_SUMS: Final = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
    "client_count",
)
LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
# The fields of a client, with the values of brokers that do not have them.
CLIENT_FIELDS: Final = {
    "remote_address": "",
    "version": "",
    "client_id": "",
    "hostname": "",
    "user_agent": "",
    "connect_ts": 0,
    "in_flight_count": 0,
    "ready_count": 0,
    "finish_count": 0,
    "requeue_count": 0,
    "message_count": 0,
    "sample_rate": 0,
    "deflate": False,
    "snappy": False,
    "authed": False,
    "auth_identity": "",
    "auth_identity_url": "",
    "tls": False,
    "tls_cipher_suite": "",
    "tls_version": "",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
}
TOPOLOGY_FIELDS: Final = ("node_topology_region", "node_topology_zone", "topology_region", "topology_zone")
ALL_NODES: Final = "*"

Json = dict[str, Any]


class EndToEndLatency:
    """Percentiles of the latency from publishing to FIN, of one broker or combined from several. Values in ns."""

    __slots__ = ("count", "percentiles")

    def __init__(self, count: int = 0, percentiles: Iterable[Json] = ()) -> None:
        self.count = count
        self.percentiles = list(percentiles)

    @classmethod
    def of_broker(cls, found: Mapping[str, Any] | None) -> EndToEndLatency:
        found = found or {}
        count = int(found.get("count") or 0)
        rows = [
            {
                "quantile": number(row["quantile"]),
                "value": number(row["value"]),
                "min": row["value"],
                "max": row["value"],
                "average": row["value"],
                "count": count,
            }
            for row in found.get("percentiles") or ()
        ]
        return cls(count, rows)

    def add(self, other: EndToEndLatency) -> None:
        """Add the latencies of another broker: least and greatest value, and average weighted by count."""
        self.count += other.count
        by_quantile = {row["quantile"]: row for row in self.percentiles}
        for row in other.percentiles:
            mine = by_quantile.get(row["quantile"])
            if mine is None:
                self.percentiles.append({name: value for name, value in row.items() if name != "value"})
                continue
            count = mine["count"] + row["count"]
            if count:
                mine["average"] = (mine["average"] * mine["count"] + row["average"] * row["count"]) / count
            mine["min"] = min(mine["min"], row["min"])
            mine["max"] = max(mine["max"], row["max"])
            mine["count"] = count

    def to_dict(self, topic: str, channel: str, node: str) -> Json:
        """Return the object of nsqadmin's API, which names the place of sums only."""
        if node != ALL_NODES:
            topic = channel = node = ""
        return {
            "count": self.count,
            "percentiles": self.percentiles or None,
            "topic": topic,
            "channel": channel,
            "host": node,
        }


@dataclasses.dataclass(slots=True)
class PlaceStats:
    """A topic or a channel on one broker, or on all of them (node is then `*`). channel: empty for a topic."""

    names: ClassVar[tuple[str, ...]]

    topic: str
    channel: str
    node: str
    hostname: str = ""
    sums: dict[str, int] = dataclasses.field(default_factory=dict)
    paused: bool = False
    latency: EndToEndLatency = dataclasses.field(default_factory=EndToEndLatency)
    nodes: list[Any] = dataclasses.field(default_factory=list)

    @classmethod
    def place_of(cls, topic: str, channel: str, node: str, hostname: str, found: Mapping[str, Any]) -> Any:
        sums = {name: int(found.get(name) or 0) for name in cls.names}
        latency = EndToEndLatency.of_broker(found.get("e2e_processing_latency"))
        return cls(topic, channel, node, hostname, sums, bool(found.get("paused")), latency)

    @classmethod
    def total_of(cls, topic: str, channel: str, parts: Iterable[PlaceStats]) -> Any:
        parts = sorted(parts, key=lambda part: part.hostname)
        sums = {name: sum(part.sums[name] for part in parts) for name in cls.names}
        whole = cls(topic, channel, ALL_NODES, "", sums, any(part.paused for part in parts), nodes=parts)
        for part in parts:
            whole.latency.add(part.latency)
        return whole

    @property
    def memory_depth(self) -> int:
        return self.sums["depth"] - self.sums["backend_depth"]

    def shown(self, inner: Json) -> Json:
        """Return the object of nsqadmin's API, without zeros of localities. inner: the lists below this place."""
        shown: Json = {"node": self.node, "hostname": self.hostname, "topic_name": self.topic}
        if self.channel:
            shown["channel_name"] = self.channel
        shown |= {name: self.sums[name] for name in self.names if name not in LOCALITIES}
        shown["memory_depth"] = self.memory_depth
        delivered = sum(self.sums[name] for name in LOCALITIES)
        if delivered or not self.channel:
            shown["delivery_msg_count"] = delivered
        shown |= {name: self.sums[name] for name in LOCALITIES if self.sums[name]}
        return {
            **shown,
            "nodes": [part.to_dict() for part in self.nodes] or None,
            **inner,
            "paused": self.paused,
            "e2e_processing_latency": self.latency.to_dict(self.topic, self.channel, self.node),
        }


@dataclasses.dataclass(slots=True)
class ChannelStats(PlaceStats):
    names: ClassVar[tuple[str, ...]] = CHANNEL_SUMS

    clients: list[Json] = dataclasses.field(default_factory=list)

    @classmethod
    def of_broker(cls, topic: str, node: str, hostname: str, found: Mapping[str, Any]) -> ChannelStats:
        row: ChannelStats = cls.place_of(topic, str(found["channel_name"]), node, hostname, found)
        row.clients = list(found.get("clients") or ())
        # Before nsqd 1.2.1 only the list told how many.
        row.sums["client_count"] = int(found.get("client_count", len(row.clients)))
        return row

    @classmethod
    def total(cls, parts: Sequence[ChannelStats]) -> ChannelStats:
        whole: ChannelStats = cls.total_of(parts[0].topic, parts[0].channel, parts)
        clients = [client for part in whole.nodes for client in part.clients]
        whole.clients = sorted(clients, key=lambda client: str(client["hostname"]))
        return whole

    def to_dict(self) -> Json:
        return self.shown({"clients": self.clients or None})


@dataclasses.dataclass(slots=True)
class TopicStats(PlaceStats):
    names: ClassVar[tuple[str, ...]] = TOPIC_SUMS

    channels: list[ChannelStats] = dataclasses.field(default_factory=list)

    @classmethod
    def of_broker(cls, node: str, hostname: str, found: Mapping[str, Any]) -> TopicStats:
        topic = str(found["topic_name"])
        row: TopicStats = cls.place_of(topic, "", node, hostname, found)
        row.channels = [ChannelStats.of_broker(topic, node, hostname, each) for each in found.get("channels") or ()]
        return row

    @classmethod
    def total(cls, topic: str, parts: Iterable[TopicStats]) -> TopicStats:
        whole: TopicStats = cls.total_of(topic, "", parts)
        by_name: dict[str, list[ChannelStats]] = {}
        for part in whole.nodes:
            for channel in part.channels:
                by_name.setdefault(channel.channel, []).append(channel)
        whole.channels = [ChannelStats.total(channels) for channels in by_name.values()]
        return whole

    @property
    def waiting(self) -> int:
        """Number of messages that wait in the topic and in its channels."""
        return self.whole("depth")

    def channel_sum(self, name: str) -> int:
        return sum(channel.sums[name] for channel in self.channels)

    def whole(self, name: str) -> int:
        """Return the number of the topic itself and of its channels, added."""
        return self.sums[name] + self.channel_sum(name)

    def to_dict(self) -> Json:
        return self.shown({"channels": [channel.to_dict() for channel in self.channels] or None})


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessStats:
    """The process of one broker, as GET /stats tells it. started_s: seconds since 1970, 0 if it does not tell.

    memory: numbers by their names in the answer. pyqd_version: empty for an nsqd.
    """

    health: str = ""
    started_s: int = 0
    memory: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pyqd_version: str = ""

    @classmethod
    def of_broker(cls, found: Mapping[str, Any]) -> ProcessStats:
        memory = {name: int(value) for name, value in (found.get("memory") or {}).items()}
        pyqd_version = str(found.get(PYQD_VERSION) or "")
        return cls(str(found.get("health") or ""), int(found.get("start_time") or 0), memory, pyqd_version)

    @property
    def in_use_bytes(self) -> int | None:
        """Bytes of memory in use; None if the broker does not tell."""
        return self.memory.get("heap_in_use_bytes")


def number(value: Any) -> int | float:
    """Return a number of an answer. Raises: TypeError for any other value."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value


def client_row(found: Mapping[str, Any], node: str, region: str, zone: str) -> Json:
    """Return one client with the fields of nsqadmin. node: of the broker, with its topology."""
    row: Json = {"node": node, **{name: found.get(name, default) for name, default in CLIENT_FIELDS.items()}}
    # The broker's clock may be ahead of this one.
    row["connected"] = max(0, int(time.time()) - int(row["connect_ts"])) * SECOND_NS
    for name, value in zip(
        TOPOLOGY_FIELDS,
        (region, zone, found.get("topology_region"), found.get("topology_zone")),
        strict=True,
    ):
        if value:
            row[name] = value
    return row


def topology_order(client: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the key that sorts clients by broker, and those of the broker's zone and region first."""
    region, zone = client.get("topology_region", ""), client.get("topology_zone", "")
    same_region = region == client.get("node_topology_region", "")
    same_zone = same_region and zone == client.get("node_topology_zone", "")
    return (client["node"], not same_zone, not same_region, region, zone)
