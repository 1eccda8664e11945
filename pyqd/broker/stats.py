"""Snapshots of the counters, as plain dictionaries in nsqd's shape and order of keys.

Clients describe themselves: a channel's consumers have a method `stats()` that returns a dictionary in nsqd's shape,
with all its `pub_counts`; publishing clients come in as such dictionaries too. Nothing here waits; callers walk
thousands of topics, channels and clients in slices. Functions call `step` after each channel and client. It may yield
to the event loop (`Steps`): channels deleted and clients gone meanwhile are left out.

Source: docs/nsq/http-api.md, "GET /stats".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyqd import __version__
from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.channel_settings import NO_LIMITS, limits_to_dict
from pyqd.broker.owners import OwningBroker
from pyqd.broker.replay import no_pause
from pyqd.broker.topic import Topic
from pyqd.diskqueue.damage import DamageCount
from pyqd.hot.broker.latency import LatencyBuffer
from pyqd.primitives.nsq_compat import NSQ_VERSION, PYQD_VERSION

StatsDict = dict[str, Any]

# Channels and clients: some half a millisecond.
STEPS_PER_PAUSE = 64

Step = Callable[[], None]


class Steps:
    """Step function of a long walk. pause: called in every STEPS_PER_PAUSE-th step; yields to the event loop."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count == STEPS_PER_PAUSE:
            self._count = 0
            self._pause()


class Selection(NamedTuple):
    """Requested part of the statistics. topic, channel: this name only; empty for all."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_mem: bool = True


def topics_shown(broker: Broker, selection: Selection) -> Iterable[Topic] | None:
    """Return the topics asked for, in the order of their names; None if the one asked for does not exist."""
    if selection.topic:
        topic = broker.topics.get(selection.topic)
        return None if topic is None else [topic]
    return broker.topics_by_name()


def topic_stats(topic: Topic, selection: Selection, step: Step = no_pause) -> StatsDict | None:
    """Return a topic's counters and those of its channels; None if it lacks the requested channel."""
    if selection.channel:
        if selection.channel not in topic.channels_by_name:
            return None
        channels = [topic.channels_by_name[selection.channel]]
    else:
        channels = [channel for _, channel in sorted(topic.channels_by_name.items())]
    shown_channels: list[StatsDict] = []
    stats = {
        "topic_name": topic.name,
        "channels": shown_channels,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": latency_stats(topic.broker, list(topic.channels_by_name.values()), step),
    }
    stats = with_damage(stats, topic.log.damage)
    for channel in channels:
        shown = None if channel.exiting else channel_stats(channel, selection, step)
        if shown is not None:
            shown_channels.append(shown)
        step()
    return stats


def channel_stats(channel: Channel, selection: Selection, step: Step = no_pause) -> StatsDict | None:
    """Return a channel's counters and, if requested, those of its clients; None if it is deleted meanwhile."""
    clients = None
    if selection.include_clients:
        clients = client_stats(channel, selection, step)
        if channel.exiting:
            return None
    stats = {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **delivered_counts(channel),
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": latency_stats(channel.topic.broker, [channel]),
    }
    if channel.limits != NO_LIMITS or channel.dead_letter_count:
        stats["limits"] = limits_to_dict(channel, channel.limits)
    return stats


def client_stats(channel: Channel, selection: Selection, step: Step) -> list[StatsDict]:
    """Return the counters of a channel's clients."""
    clients = []
    for consumer in list(channel.consumers):
        if consumer.client is not None:
            clients.append(shown_client(consumer.client.stats(), selection))
        step()
    return clients


def delivered_counts(channel: Channel) -> dict[str, int]:
    """Return the deliveries to clients of the daemon's zone, of its region and to others; without those that are 0."""
    zone_local, region_local = channel.zone_local_count, channel.region_local_count
    counts = {
        "zone_local_msg_count": zone_local,
        "region_local_msg_count": region_local,
        "global_msg_count": channel.delivered_count - zone_local - region_local,
    }
    return {name: count for name, count in counts.items() if count}


def with_damage(stats: StatsDict, damage: DamageCount) -> StatsDict:
    """Return the counters with the damage found, if there was any: otherwise the keys are nsqd's alone."""
    return {**stats, "damage": damage.as_dict()} if damage.found_count else stats


def latency_stats(broker: OwningBroker, channels: Sequence[Channel], step: Step = no_pause) -> StatsDict:
    """Return the percentiles of the end-to-end latency of the channels together; none if they are not measured."""
    if all(channel.latency is None for channel in channels):
        return {"count": 0, "percentiles": None}
    from pyqd.broker.latency import latency_of

    return latency_of(latencies(channels, step), broker.options.e2e_processing_latency_percentile)


def latencies(channels: Sequence[Channel], step: Step) -> Iterator[LatencyBuffer]:
    """Yield the latencies of each channel that is not deleted."""
    for channel in channels:
        if channel.latency is not None and not channel.exiting:
            yield channel.latency
        step()


def shown_client(client: StatsDict, selection: Selection) -> StatsDict:
    """Return a client's dictionary with the one pub_count that nsqd shows: of the selected topic, else of any."""
    counts = client.get("pub_counts")
    if counts is None:
        return client
    shown = [count for count in counts if selection.topic in ("", count["topic"])][:1]
    # In its place: the order of keys is part of the shape.
    items = {**client, "pub_counts": shown}
    if not shown:
        del items["pub_counts"]
    return items


def shown_producers(
    producers: Iterable[StatsDict], selection: Selection, step: Step = no_pause
) -> list[StatsDict] | None:
    """Return the clients that have published, in nsqd's form; None if there are none."""
    shown = []
    for client in producers:
        shown.append(shown_client(client, selection))
        step()
    return shown or None


def head_stats(broker: Broker, start_time_s: int) -> StatsDict:
    """Return the fields before the topics."""
    head = {
        "version": NSQ_VERSION,
        "health": broker.health(),
        "start_time": start_time_s,
        PYQD_VERSION: __version__,
    }
    return with_damage(head, broker.damage)
