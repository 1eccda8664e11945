"""View that clients of a data directory would have after a start."""

from pathlib import Path
from typing import Any, NamedTuple

from pyqd.broker.peek import DEFERRED, Cursor, page_of_channel, parse_cursor
from pyqd.broker.replay import no_pause
from pyqd.hot.primitives.clock import mono
from tests.support.invariants import check_topic
from tests.support.storage import broker_on, consumer_on


class View(NamedTuple):
    """One channel: bodies with the attempts they come with, bodies with the time before which they do not come."""

    queued: tuple[tuple[bytes, int], ...]
    deferred: tuple[tuple[bytes, int], ...]
    paused: bool


def counts_of(channel: Any) -> tuple[int, int, int]:
    return channel.message_count, channel.requeue_count, channel.timeout_count


def deferred_in(channel: Any) -> list[tuple[bytes, int]]:
    """Return body and due time of the deferred messages."""
    found, cursor = [], Cursor()
    while True:
        page = page_of_channel(channel.topic, channel, DEFERRED, cursor, 1000, 1 << 30, no_pause)
        found += [(row.body, row.due_ns) for row in page.rows]
        if page.after is None:
            return sorted(found)
        cursor = parse_cursor(page.after, DEFERRED)


def view_of(channel: Any) -> View:
    """Take and finish the messages of a channel; deferred ones stay."""
    consumer = consumer_on(channel)
    paused = channel.paused
    queued = []
    channel.topic.broker.scheduler.run_timers(mono() + 1)
    depth = channel.depth
    while (taken := channel.take_message(consumer)) is not None:
        guid, attempts, _, body = taken
        queued.append((body, attempts))
        assert channel.finish_message(consumer, guid) == 0
        check_topic(channel.topic)
    assert len(queued) == depth
    deferred = deferred_in(channel)
    assert len(deferred) == channel.deferred_count
    return View(tuple(sorted(queued)), tuple(deferred), paused)


def views_in(directory: Path) -> dict[str, Any]:
    """Start on a directory. Returns: channel names with their View, and the messages held by the topic itself."""
    broker = broker_on(directory)
    found: dict[str, Any] = {"places damaged": broker.damage.found_count}
    for topic in broker.topics.values():
        check_topic(topic)
        broker.scheduler.run_wakes()
        check_topic(topic)
        found[f"{topic.name} paused"] = topic.paused
        found[f"{topic.name} depth"] = topic.depth
        found[f"{topic.name} messages"] = topic.message_count
        found[f"{topic.name} channels"] = sorted(topic.channels_by_name)
        for name, channel in topic.channels_by_name.items():
            found[f"{name} counts"] = counts_of(channel)
            found[name] = view_of(channel)
    return found
