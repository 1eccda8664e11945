"""Tests of pyqd.hot.broker.deferral, through channels: order, counts, restarts, slices, clocks and full disks."""

import struct

import pytest

from pyqd.broker import message_lookup, peek, replay
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from pyqd.primitives.errors import DiskFull
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_channel, check_topic
from tests.support.storage import FullFiles, body_of, broker_on, consumer_on, frames_of, run_all_wakes, take_all

SOON_NS = 1
# More than a channel sees in one run.
MANY = 50_000


@pytest.fixture
def topic(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    return topic


def counts(channel):
    check_channel(channel)
    return channel.depth, channel.in_flight_count, channel.deferred_count


def release(topic):
    """Let the channels see the deferred messages, and return those that are due."""
    run_all_wakes(topic.broker)
    topic.broker.scheduler.run_timers(mono() + 1)


def again(topic, tmp_path, closed):
    if closed:
        topic.broker.close()
    return broker_on(tmp_path).topic("t")


def test_a_deferred_message_waits_for_its_time(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"later", wall(), wall() + HOUR_NS)
    topic.publish_body(b"now", wall())
    assert counts(channel) == (1, 0, 1)
    assert channel.take_message(consumer)[3] == b"now"
    assert channel.take_message(consumer) is None
    release(topic)
    assert counts(channel) == (0, 1, 1)


def test_due_messages_are_delivered_by_due_time_with_their_ids_and_attempts(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    guids = {}
    for body, due_ns in ((b"third", 30), (b"first", 10), (b"second", 20)):
        topic.publish_body(body, 5, due_ns)
        guids[body] = topic.guids.last_id
    assert counts(channel) == (0, 0, 3)
    release(topic)
    assert counts(channel) == (3, 0, 0)
    for body in (b"first", b"second", b"third"):
        assert channel.take_message(consumer) == (guids[body], 1, 5, body)
        assert channel.finish_message(consumer, guids[body]) == 0
    assert counts(channel) == (0, 0, 0)
    assert channel.ledger.floor == 3


def test_a_message_requeued_with_a_delay_keeps_its_attempts(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"again", 5)
    for attempts in range(1, 6):
        guid, found, timestamp, body = channel.take_message(consumer)
        assert (found, timestamp, body) == (attempts, 5, b"again")
        assert channel.requeue_message(consumer, guid, SOON_NS) == 0
        assert counts(channel) == (0, 0, 1)
        release(topic)
        assert counts(channel) == (1, 0, 0)
    assert (channel.ledger.floor, topic.log.end, channel.notes.count) == (0, 1, 1)
    assert (channel.requeue_count, consumer.in_flight) == (5, 0)


@pytest.mark.parametrize("closed", [False, True])
def test_due_times_outlive_the_process(topic, tmp_path, closed):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"deferred", 5, wall() + HOUR_NS)
    topic.publish_body(b"requeued", 5)
    guid, *_ = channel.take_message(consumer)
    channel.requeue_message(consumer, guid, HOUR_NS)
    topic.publish_body(b"soon", 5, 17)
    assert counts(channel) == (0, 0, 3)
    topic = again(topic, tmp_path, closed)
    channel = topic.channel("c")
    assert counts(channel) == (0, 0, 3)
    release(topic)
    assert counts(channel) == (1, 0, 2)
    consumer = consumer_on(channel)
    assert channel.take_message(consumer)[1:] == (1, 5, b"soon")


@pytest.mark.parametrize("closed", [False, True])
def test_a_deferred_message_in_flight_comes_again_after_a_restart(topic, tmp_path, closed):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"x", 5, 17)
    for _ in range(3):
        release(topic)
        guid, attempts, *_ = channel.take_message(consumer)
        channel.requeue_message(consumer, guid, 0)
    channel.take_message(consumer)
    assert attempts == 3
    topic = again(topic, tmp_path, closed)
    channel = topic.channel("c")
    assert counts(channel) == (1, 0, 0)
    assert channel.take_message(consumer_on(channel)) == (guid, 5, 5, b"x")


def test_a_finished_deferred_message_does_not_come_again(topic, tmp_path):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for _ in range(4):
        topic.publish_body(b"x", 5, 17)
    release(topic)
    for _ in range(2):
        channel.finish_message(consumer, channel.take_message(consumer)[0])
    topic = again(topic, tmp_path, False)
    assert counts(topic.channel("c")) == (0, 0, 2)


def test_thousands_of_deferred_messages_come_once_each(topic, tmp_path):
    channel = topic.channel("c")
    count = 3000
    for index in range(count):
        topic.publish_body(struct.pack("<Q", index), 5, 6 + 2 * (index * 7919 % count))
    topic = again(topic, tmp_path, False)
    channel = topic.channel("c")
    assert counts(channel) == (0, 0, count)
    release(topic)
    consumer = consumer_on(channel)
    taken = [channel.take_message(consumer) for _ in range(count)]
    assert [struct.unpack("<Q", body)[0] * 7919 % count for *_, body in taken] == list(range(count))
    assert counts(channel) == (0, count, 0)


def returned(topic, consumer, body, delay_ns):
    """Publish a message and requeue it with a delay."""
    channel = topic.channel("c")
    topic.publish_body(body, wall())
    guid, *_, taken = channel.take_message(consumer)
    assert taken == body
    assert channel.requeue_message(consumer, guid, delay_ns) == 0


def due_bodies(topic, consumer):
    """Run the timers, and finish what is due. Returns: the bodies."""
    release(topic)
    messages = list(iter(lambda: topic.channel("c").take_message(consumer), None))
    assert [topic.channel("c").finish_message(consumer, guid) for guid, *_ in messages] == [0] * len(messages)
    return [body for *_, body in messages]


@pytest.mark.parametrize("jump_ns", [-HOUR_NS, HOUR_NS, -SECOND_NS // 10, SECOND_NS // 10])
def test_the_delay_of_a_requeue_passes_whatever_happens_to_the_wall_clock(tmp_path, jump_ns):
    with HeldClock() as clock:
        topic = broker_on(tmp_path).topic("t")
        consumer = consumer_on(topic.channel("c"))
        returned(topic, consumer, b"before", 4 * SECOND_NS)
        clock.jump(jump_ns)
        # Each sets the channel's timer again.
        returned(topic, consumer, b"after", 5 * SECOND_NS)
        topic.publish_body(b"far", wall(), wall() + 5 * HOUR_NS)
        clock.advance(4 * SECOND_NS - 1)
        assert due_bodies(topic, consumer) == []
        clock.jump(-2 * jump_ns)
        clock.advance(2)
        assert due_bodies(topic, consumer) == [b"before"]
        clock.advance(SECOND_NS)
        assert due_bodies(topic, consumer) == [b"after"]
        assert counts(topic.channel("c")) == (0, 0, 1)


def test_a_published_due_time_follows_the_wall_clock_past_requeues(tmp_path):
    with HeldClock() as clock:
        topic = broker_on(tmp_path).topic("t")
        consumer = consumer_on(topic.channel("c"))
        topic.publish_body(b"at a time", wall(), wall() + HOUR_NS)
        returned(topic, consumer, b"after a delay", 2 * HOUR_NS)
        clock.jump(HOUR_NS)
        clock.advance(11 * SECOND_NS)
        assert due_bodies(topic, consumer) == [b"at a time"]
        clock.advance(2 * HOUR_NS)
        assert due_bodies(topic, consumer) == [b"after a delay"]


def test_emptying_drops_deferred_messages(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for due_ns in (17, 17, wall() + HOUR_NS):
        topic.publish_body(b"x", 5, due_ns)
    release(topic)
    guid, *_ = channel.take_message(consumer)
    channel.empty()
    assert counts(channel) == (0, 0, 0)
    assert channel.finish_message(consumer, guid) == 1
    assert channel.ledger.floor == topic.log.end
    topic.publish_body(b"y", 5, 17)
    release(topic)
    assert channel.take_message(consumer)[3] == b"y"


def test_a_deferred_message_that_damage_has_taken_counts_as_finished_when_it_is_due(topic, tmp_path):
    for number in range(5):
        topic.publish_body(body_of(number), 5, 17)
    path = topic.log.first.mapping.path
    topic.broker.close()
    with open(path, "r+b") as file:
        file.seek(file.read().index(body_of(3)))
        file.write(b"damaged!")
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    assert counts(channel) == (0, 0, 5)
    release(topic)
    assert counts(channel) == (4, 0, 0)
    for guid, *_ in take_all(channel, consumer):
        assert channel.finish_message(consumer, guid) == 0
    assert channel.ledger.floor == 5


def defer(topic, count):
    topic.publish_frames(frames_of([body_of(number) for number in range(count)]), wall(), wall() + HOUR_NS)


def counts_of(topic):
    """Return (depth, deferred) of each channel."""
    check_topic(topic)
    return [(channel.depth, channel.deferred_count) for channel in topic.channels_by_name.values()]


@pytest.fixture
def two(topic):
    topic.channel("d")
    return topic


def test_deferred_messages_count_at_once_and_are_taken_up_in_several_runs(two):
    defer(two, MANY)
    two.publish_body(b"now", wall())
    two.publish_body(b"later", wall(), wall() + HOUR_NS)
    run_count = 0
    assert counts_of(two) == [(1, MANY + 1)] * 2
    while two.broker.scheduler.run_wakes():
        assert counts_of(two) == [(1, MANY + 1)] * 2
        run_count += 1
    assert run_count > 2
    consumer = consumer_on(two.channel("c"))
    # The cursor passes over some deferred messages at a time.
    (taken,) = filter(None, (two.channel("c").take_message(consumer) for _ in range(MANY // 500)))
    assert taken[3] == b"now"


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_a_kill_between_two_runs_loses_nothing_and_doubles_nothing(two, tmp_path, runs):
    defer(two, MANY)
    for _ in range(runs):
        two.broker.scheduler.run_wakes()
    for _ in range(2):
        two = broker_on(tmp_path).topic("t")
        assert counts_of(two) == [(0, MANY)] * 2
        run_all_wakes(two.broker)


@pytest.mark.parametrize("held_by", ["no channel", "a pause"])
def test_held_deferred_messages_count_as_soon_as_channels_get_them(tmp_path, held_by):
    topic = broker_on(tmp_path).topic("t")
    topic.pause(held_by == "a pause")
    if topic.paused:
        topic.channel("c")
    defer(topic, MANY)
    topic.publish_body(b"now", wall())
    assert (topic.depth, counts_of(topic)) == (MANY + 1, [(0, 0)] if topic.paused else [])
    topic.pause(False)
    topic.channel("c")
    assert counts_of(topic) == [(1, MANY)]
    run_all_wakes(topic.broker)
    assert counts_of(topic) == [(1, MANY)]


def test_a_seek_counts_the_deferred_messages_since_its_place_whether_they_were_seen_or_not(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    topic.publish_body(b"now", wall())
    for place, left in ((replay.LogPlace(position=100), MANY - 100), (replay.LogPlace(), 0)):
        replay.move(topic, channel, place, replay.no_pause)
        assert counts_of(topic) == [(int(left != 0), left)]
        run_all_wakes(topic.broker)
        assert counts_of(topic) == [(int(left != 0), left)]


def test_an_unseen_message_is_cancelled_or_rescheduled_by_its_id(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    last = topic.guids.last_id
    for guid, action in ((last, message_lookup.cancel), (last - 1, message_lookup.reschedule_to(topic, wall()))):
        (outcome,) = message_lookup.change_message(topic, [channel], guid, action, replay.no_pause)
        assert (outcome.status, outcome.was) == (message_lookup.DONE, peek.DEFERRED)
    release(topic)
    assert counts(channel) == (1, 0, MANY - 2)
    assert channel.take_message(consumer_on(channel))[:2] == (last - 1, 1)


def test_a_deferred_message_makes_no_file_in_any_of_many_channels(topic, tmp_path):
    for number in range(40):
        topic.channel(f"c{number}")
    before = sorted(tmp_path.rglob("*.channel/*"))
    defer(topic, 1)
    run_all_wakes(topic.broker)
    assert counts_of(topic) == [(0, 1)] * 41
    assert sorted(tmp_path.rglob("*.channel/*")) == before


def test_a_deferred_message_is_refused_while_there_is_no_space_for_its_due_time(tmp_path):
    topic = broker_on(tmp_path, files := FullFiles()).topic("t")
    channel = topic.channel("c")
    topic.publish_body(b"now", wall())
    files.room = 0
    for _ in range(2):
        with pytest.raises(DiskFull):
            topic.publish_body(b"later", wall(), wall() + HOUR_NS)
        with pytest.raises(DiskFull):
            defer(topic, 3)
        assert (topic.message_count, counts(channel)) == (1, (1, 0, 0))
    topic.publish_body(b"at once", wall())
    files.room = None
    defer(topic, 3)
    assert counts(channel) == (2, 0, 3)
    topic = broker_on(tmp_path).topic("t")
    assert counts(topic.channel("c")) == (2, 0, 3)
