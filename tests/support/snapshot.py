"""All statistics of a broker at once; the daemon makes them in slices."""

from collections.abc import Callable, Iterable

from pyqd.broker.broker import Broker
from pyqd.broker.stats import Selection, StatsDict, head_stats, shown_producers, topic_stats, topics_shown
from pyqd.primitives.memory import memory_stats

ALL = Selection()


def snapshot(
    broker: Broker,
    start_time_s: int,
    producers: Callable[[], Iterable[StatsDict]],
    selection: Selection = ALL,
) -> StatsDict:
    """Return the requested statistics. start_time_s: Unix. producers: the clients that have published."""
    topics = topics_shown(broker, selection)
    found = None if topics is None else [topic_stats(topic, selection) for topic in topics]
    stats = head_stats(broker, start_time_s)
    stats["topics"] = None if found is None else [topic for topic in found if topic is not None]
    if selection.include_mem:
        stats["memory"] = memory_stats()
    wanted = selection.include_clients and topics is not None
    stats["producers"] = shown_producers(producers(), selection) if wanted else None
    return stats
