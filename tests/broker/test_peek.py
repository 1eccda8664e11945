"""Pages of messages, near the beginning and far behind."""

import random
from typing import Any

import pytest

from pyqd.broker import message_lookup, peek
from pyqd.broker.channel_settings import ChannelSettings
from pyqd.broker.replay import no_pause
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.storage import body_of, broker_on, consumer_on, frames_of, publish, run_all_wakes

COUNT = 12_000


@pytest.fixture
def topic(tmp_path):
    broker = broker_on(tmp_path, max_bytes_per_file=1 << 20)
    yield broker.topic("t")
    broker.close()


def page(topic: Any, state: str, after: str | None, limit: int) -> peek.ListedPage:
    cursor = peek.Cursor() if after is None else peek.parse_cursor(after, state)
    return peek.page_of_channel(topic, topic.channel("c"), state, cursor, limit, 8, no_pause)


def all_pages(topic: Any, state: str, limit: int, after: str | None = None) -> list[peek.ListedMessage]:
    rows: list[peek.ListedMessage] = []
    while True:
        found = page(topic, state, after, limit)
        assert len(found.rows) <= limit
        rows += found.rows
        if found.after is None:
            return rows
        after = found.after


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5, COUNT])
@pytest.mark.parametrize("limit", [700, 1000])
def test_deferred_messages_are_shown_once_and_in_order_however_many_have_one_due_time(topic, times, limit):
    topic.channel("c")
    chance = random.Random(times)
    # Channels order messages by even times.
    start_ns = wall() + HOUR_NS & ~1
    dues = {}
    for number in range(COUNT):
        dues[number] = start_ns + 2 * chance.randrange(times)
        topic.publish_body(body_of(number), wall(), dues[number])
    run_all_wakes(topic.broker)
    rows = all_pages(topic, peek.DEFERRED, limit)
    assert [row.due_ns for row in rows] == sorted(dues.values())
    assert {int.from_bytes(row.body, "little"): row.due_ns for row in rows} == dues


@pytest.mark.slow
def test_deferred_messages_that_stay_are_shown_while_others_come_and_go(topic):
    channel = topic.channel("c")
    start_ns = wall() + HOUR_NS
    for number in range(COUNT):
        topic.publish_body(body_of(number), wall(), start_ns + number % 50)
    run_all_wakes(topic.broker)
    seen: dict[int, int] = {}
    gone: set[int] = set()
    after = None
    while True:
        found = page(topic, peek.DEFERRED, after, 500)
        for row in found.rows:
            seen[row.guid] = seen.get(row.guid, 0) + 1
        for row in found.rows[::7]:
            gone.add(row.guid)
            message_lookup.change_message(topic, [channel], row.guid, message_lookup.cancel, no_pause)
            topic.publish_body(body_of(COUNT), wall(), start_ns - 1)
        if found.after is None:
            break
        after = found.after
    assert len(seen) == COUNT
    assert set(seen.values()) == {1}


@pytest.mark.slow
def test_a_long_run_of_cancelled_messages_is_skipped(topic):
    channel = topic.channel("c")
    topic.publish_frames(frames_of([body_of(number) for number in range(COUNT)]), wall())
    ids = [row.guid for row in all_pages(topic, peek.READY, 1000)]
    assert len(ids) == COUNT
    first = page(topic, peek.READY, None, 10)
    for guid in ids[5:-3]:
        message_lookup.change_message(topic, [channel], guid, message_lookup.cancel, no_pause)
    assert [row.guid for row in all_pages(topic, peek.READY, 6)] == ids[:5] + ids[-3:]
    assert [row.guid for row in all_pages(topic, peek.READY, 6, first.after)] == ids[-3:]


def test_messages_are_found_by_id_in_every_segment_and_no_others(topic):
    topic.channel("c")
    ids = publish(topic, 3000, 1500)
    reader = topic.reader
    for ordinal in range(0, 3000, 97):
        while not reader.prepare_guid(ids[ordinal]):
            pass
        assert reader.ordinal_of_guid(ids[ordinal]) == ordinal
    assert reader.ordinal_of_guid(ids[0] - 1) is None
    assert reader.ordinal_of_guid(ids[-1] + 1) is None
    assert reader.ordinal_of_guid(0) is None
    assert all(reader.ordinal_of_guid(guid) == ordinal for ordinal, guid in enumerate(ids))


def test_bodies_beyond_4_mib_end_a_page_early(topic):
    topic.channel("c")
    publish(topic, 60, 100_000)
    cursor, pages = peek.Cursor(), []
    while True:
        found = peek.page_of_channel(topic, topic.channel("c"), peek.READY, cursor, 1000, 100_000, no_pause)
        pages.append(len(found.rows))
        if found.after is None:
            break
        cursor = peek.parse_cursor(found.after, peek.READY)
    assert pages == [42, 18]


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_dead_letters_that_cannot_be_published_are_shown_in_their_order(topic, limit):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    ids = publish(topic, 6, 8)
    for guid in [channel.take_message(consumer)[0] for _ in range(5)]:
        channel.requeue_message(consumer, guid, 0)
    # The topic of the dead letters does not exist.
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    rows = all_pages(topic, peek.DEAD_LETTER, limit)
    assert [(row.guid, row.attempts, row.body) for row in rows] == [
        (guid, 1, body_of(number, 8)) for number, guid in enumerate(ids[:5])
    ]
    assert [row.guid for row in all_pages(topic, peek.READY, limit)] == ids[5:]
    assert channel.depth == 6


@pytest.mark.parametrize("limit", [1, 2])
def test_a_requeued_message_is_shown_among_the_deferred_ones_by_due_time(topic, limit):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 3)
    for delay_ns in (2 * HOUR_NS, 4 * HOUR_NS, 1):
        guid, *_ = channel.take_message(consumer)
        channel.requeue_message(consumer, guid, delay_ns)
    for number, hours in ((10, 1), (11, 3), (12, 5)):
        topic.publish_body(body_of(number), wall(), wall() + hours * HOUR_NS)
    run_all_wakes(topic.broker)
    rows = all_pages(topic, peek.DEFERRED, limit)
    assert [int.from_bytes(row.body, "little") for row in rows] == [2, 10, 0, 11, 1, 12]
    assert [row.attempts for row in rows] == [1, 0, 1, 0, 1, 0]
    assert [row.position for row in rows] == [2, 3, 0, 4, 1, 5]
