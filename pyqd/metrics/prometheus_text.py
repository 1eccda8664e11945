"""Time series of topics and channels as Prometheus' text.

Thousands of topics make tens of thousands of lines. prometheus_client takes some ten microseconds for each and makes
all in one go, which would block the loop for half a second at 1,000 topics with 5 channels. This module makes them in
slices of about a millisecond and yields in between; each topic is read when its slice comes. Names of topics and
channels contain no character that needs an escape.

The number of series is bounded. Topics have series of their own as long as they fit, in the order of their creation, so
that a series does not come and go. The rest are shown as their sum, under the name OTHER, which is not a valid name.

Source: the documentation of Prometheus, "Exposition formats", "Metric and label naming".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.stats import latency_stats
from pyqd.broker.topic import Topic
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import SECOND_NS

CHANNELS_PER_SLICE = 64
OTHER = "(other)"
LATENCY = "pyqd_channel_processing_latency_seconds"
LATENCY_HELP = "Time from publishing to FIN, by configured quantiles, over the last half to whole window."

Number = int | float | bool


class Family(NamedTuple):
    """One metric: its value for a topic or channel. kind: counter or gauge. Values can be summed."""

    name: str
    kind: str
    help: str
    value: Callable[[Any], Number]


def damage_sum(topic: Topic, field: str) -> int:
    count: int = getattr(topic.log.damage, field)
    return count


TOPIC_FAMILIES: Sequence[Family] = (
    Family("pyqd_topic_depth", "gauge", "Messages that no channel has received.", lambda t: t.depth),
    Family(
        "pyqd_topic_backend_depth", "gauge", "Part of the depth beyond --mem-queue-size.", lambda t: t.backend_depth
    ),
    Family("pyqd_topic_messages_total", "counter", "Messages accepted.", lambda t: t.message_count),
    Family(
        "pyqd_topic_message_bytes_total",
        "counter",
        "Bytes of the bodies of accepted messages.",
        lambda t: t.message_bytes,
    ),
    Family("pyqd_topic_paused", "gauge", "1 while the topic is paused.", lambda t: t.paused),
    Family(
        "pyqd_topic_disk_bytes",
        "gauge",
        "Bytes of the segments of the topic and its channels, including spares.",
        lambda t: t.quota.bytes_used(),
    ),
    Family(
        "pyqd_topic_refusing",
        "gauge",
        "1 while publishing is refused for lack of space.",
        lambda t: t.quota.refusal is not None,
    ),
    Family(
        "pyqd_topic_damage_total",
        "counter",
        "Places found damaged on disk, since the start.",
        lambda t: damage_sum(t, "found_count"),
    ),
    Family(
        "pyqd_topic_damage_lost_total",
        "counter",
        "Messages lost to damage on disk, since the start.",
        lambda t: damage_sum(t, "lost_count"),
    ),
)

CHANNEL_FAMILIES: Sequence[Family] = (
    Family("pyqd_channel_depth", "gauge", "Messages that could be delivered now.", lambda c: c.depth),
    Family(
        "pyqd_channel_backend_depth",
        "gauge",
        "Part of the depth beyond --mem-queue-size.",
        lambda c: c.backend_depth,
    ),
    Family("pyqd_channel_in_flight", "gauge", "Messages delivered and not finished.", lambda c: c.in_flight_count),
    Family("pyqd_channel_deferred", "gauge", "Messages that wait for their due time.", lambda c: c.deferred_count),
    Family("pyqd_channel_messages_total", "counter", "Messages received by the channel.", lambda c: c.message_count),
    Family("pyqd_channel_finished_total", "counter", "Messages finished by FIN.", lambda c: c.finish_count),
    Family("pyqd_channel_requeued_total", "counter", "Messages requeued by REQ.", lambda c: c.requeue_count),
    Family("pyqd_channel_timed_out_total", "counter", "Messages that timed out in flight.", lambda c: c.timeout_count),
    Family(
        "pyqd_channel_dead_letters_total",
        "counter",
        "Messages moved to the dead-letter topic.",
        lambda c: c.dead_letter_count,
    ),
    Family(
        "pyqd_channel_dead_letters_waiting",
        "gauge",
        "Dead letters that cannot be published: no space, or no dead-letter topic; part of the depth.",
        lambda c: c.dead_letters_pending,
    ),
    Family("pyqd_channel_clients", "gauge", "Clients subscribed.", lambda c: len(c.consumers)),
    Family("pyqd_channel_paused", "gauge", "1 while the channel is paused.", lambda c: c.paused),
)


def selected(topics: Iterable[Topic], series_max: int, series_per_channel: int) -> tuple[list[Topic], list[Topic]]:
    """Return the topics that fit, in their order, and those shown as their sum. series_max: 0 is no limit."""
    own: list[Topic] = []
    summed: list[Topic] = []
    # Series for the sums are always reserved. Otherwise the last topic would lose its series to the sums later.
    left = series_max - len(TOPIC_FAMILIES) - len(CHANNEL_FAMILIES)
    for topic in topics:
        cost = len(TOPIC_FAMILIES) + len(topic.channels_by_name) * series_per_channel
        if topic.exiting:
            continue
        if cost <= left or series_max == 0:
            left -= cost
            own.append(topic)
        else:
            summed.append(topic)
    return own, summed


class SeriesWriter:
    """Writer of the lines of one scrape. pause: yields to the loop."""

    def __init__(self, broker: Broker, pause: Callable[[], None] = yield_to_loop) -> None:
        self._pause = pause
        self._quantiles = broker.options.e2e_processing_latency_percentile
        self._series_max = broker.options.metrics_max_series
        self._broker = broker
        self._done = 0
        self.series_count = 0
        self.summed_count = 0
        self._lines: dict[str, list[str]] = {family.name: [] for family in (*TOPIC_FAMILIES, *CHANNEL_FAMILIES)}
        self._lines[LATENCY] = []
        # Lines of the finished slices, by the family's name; `_lines` holds those of the current slice.
        self._pieces: dict[str, list[bytes]] = {name: [] for name in self._lines}

    def write(self) -> Iterator[bytes]:
        """Yield the text in slices. Switches: yes."""
        series_per_channel = len(CHANNEL_FAMILIES) + len(self._quantiles)
        own, summed = selected(self._broker.topics.values(), self._series_max, series_per_channel)
        self.summed_count = len(summed)
        for topic in own:
            if topic.exiting:
                continue
            self.add(TOPIC_FAMILIES, f'topic="{topic.name}"', topic)
            self._count()
            for channel in list(topic.channels_by_name.values()):
                if not channel.exiting:
                    self.add_channel(channel)
                self._count()
        if summed:
            self.add_sums(summed)
        self._end_slice()
        for family in (*TOPIC_FAMILIES, *CHANNEL_FAMILIES):
            yield from self.family_text(family.name, family.kind, family.help)
        if self._quantiles:
            yield from self.family_text(LATENCY, "summary", LATENCY_HELP)

    def family_text(self, name: str, kind: str, help_text: str) -> Iterator[bytes]:
        yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n".encode()
        yield from self._pieces.pop(name)

    def _count(self) -> None:
        """Count a topic or channel, whose lines cost about the same, and end the slice after some of them."""
        self._done += 1
        if self._done % CHANNELS_PER_SLICE == 0:
            self._end_slice()

    def _end_slice(self) -> None:
        """Join the lines of this slice, and yield to the loop."""
        for name, lines in self._lines.items():
            self.series_count += len(lines)
            self._pieces[name].append("".join(lines).encode())
            lines.clear()
        self._pause()

    def add(self, families: Iterable[Family], labels: str, of: Topic | Channel) -> None:
        for family in families:
            self._lines[family.name].append(f"{family.name}{{{labels}}} {family.value(of):d}\n")

    def add_channel(self, channel: Channel) -> None:
        labels = f'topic="{channel.topic.name}",channel="{channel.name}"'
        self.add(CHANNEL_FAMILIES, labels, channel)
        if self._quantiles:
            latency = latency_stats(self._broker, [channel])
            for percentile in latency["percentiles"] or ():
                value = percentile["value"] / SECOND_NS if latency["count"] else "NaN"
                line = f'{LATENCY}{{{labels},quantile="{float(percentile["quantile"])}"}} {value}\n'
                self._lines[LATENCY].append(line)

    def add_sums(self, topics: Iterable[Topic]) -> None:
        """Add the summed lines of all topics without series of their own, and of their channels."""
        topic_sums = [0] * len(TOPIC_FAMILIES)
        channel_sums = [0] * len(CHANNEL_FAMILIES)
        done = 0
        for topic in topics:
            if topic.exiting:
                continue
            add_values(topic_sums, TOPIC_FAMILIES, [topic])
            add_values(channel_sums, CHANNEL_FAMILIES, topic.channels_by_name.values())
            done += 1 + len(topic.channels_by_name)
            if done >= CHANNELS_PER_SLICE:
                done = 0
                self._pause()
        for families, sums, labels in (
            (TOPIC_FAMILIES, topic_sums, f'topic="{OTHER}"'),
            (CHANNEL_FAMILIES, channel_sums, f'topic="{OTHER}",channel="{OTHER}"'),
        ):
            for family, value in zip(families, sums, strict=True):
                self._lines[family.name].append(f"{family.name}{{{labels}}} {value}\n")


def add_values(sums: list[int], families: Sequence[Family], of: Iterable[Topic | Channel]) -> None:
    for each in of:
        for index, family in enumerate(families):
            sums[index] += int(family.value(each))
