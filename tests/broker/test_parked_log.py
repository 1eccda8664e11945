"""Tests of pyqd.hot.broker.parked, through a channel."""

import struct

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.broker.parked_log import ParkedLog
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_channel
from tests.support.storage import broker_on, consumer_on

SOON_NS = 1


@pytest.fixture
def topic(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    return topic


def counts(channel):
    check_channel(channel)
    return channel.depth, channel.in_flight_count, channel.deferred_count


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
    topic.broker.scheduler.run_timers(mono())
    assert counts(channel) == (0, 1, 1)


def test_due_messages_are_delivered_by_due_time_with_their_ids_and_attempts(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    guids = {}
    for body, due_ns in ((b"third", 30), (b"first", 10), (b"second", 20)):
        topic.publish_body(body, 5, due_ns)
        guids[body] = topic.guids.last_id
    assert counts(channel) == (0, 0, 3)
    topic.broker.scheduler.run_timers(mono())
    assert counts(channel) == (3, 0, 0)
    for body in (b"first", b"second", b"third"):
        assert channel.take_message(consumer) == (guids[body], 1, 5, body)
        assert channel.finish_message(consumer, guids[body]) == 0
    assert counts(channel) == (0, 0, 0)
    assert channel.parked.ledger.floor == channel.parked.log.end == 3


def test_a_message_requeued_with_a_delay_keeps_its_attempts(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"again", 5)
    for attempts in range(1, 6):
        guid, found, timestamp, body = channel.take_message(consumer)
        assert (found, timestamp, body) == (attempts, 5, b"again")
        assert channel.requeue_message(consumer, guid, SOON_NS) == 0
        assert counts(channel) == (0, 0, 1)
        topic.broker.scheduler.run_timers(mono() + 1)
        assert counts(channel) == (1, 0, 0)
    assert (channel.ledger.floor, channel.parked, channel.notes.count) == (0, None, 1)
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
    topic.broker.scheduler.run_timers(mono())
    assert counts(channel) == (1, 0, 2)
    consumer = consumer_on(channel)
    assert channel.take_message(consumer)[1:] == (1, 5, b"soon")


@pytest.mark.parametrize("closed", [False, True])
def test_a_parked_message_in_flight_comes_again_after_a_restart(topic, tmp_path, closed):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"x", 5, 17)
    for _ in range(3):
        topic.broker.scheduler.run_timers(mono() + 1)
        guid, attempts, *_ = channel.take_message(consumer)
        channel.requeue_message(consumer, guid, 0)
    channel.take_message(consumer)
    assert attempts == 3
    topic = again(topic, tmp_path, closed)
    channel = topic.channel("c")
    assert counts(channel) == (1, 0, 0)
    assert channel.take_message(consumer_on(channel)) == (guid, 5, 5, b"x")


def test_a_finished_parked_message_does_not_come_again(topic, tmp_path):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for _ in range(4):
        topic.publish_body(b"x", 5, 17)
    topic.broker.scheduler.run_timers(mono())
    for _ in range(2):
        channel.finish_message(consumer, channel.take_message(consumer)[0])
    topic = again(topic, tmp_path, False)
    assert counts(topic.channel("c")) == (0, 0, 2)


def test_parked_segments_are_trimmed_while_others_are_in_flight(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    bodies = {bytes([65 + index]) * 20_000: index for index in range(20)}
    for body in bodies:
        topic.publish_body(body, 5, 17)
    topic.broker.scheduler.run_timers(mono())
    taken = [channel.take_message(consumer) for _ in range(20)]
    size_before = channel.parked.log.size_bytes()
    stuck = taken.pop(7)
    for guid, *_ in taken:
        assert channel.finish_message(consumer, guid) == 0
    for _ in range(30):
        topic.publish_body(b"w" * 20_000, 5, 17)
        topic.broker.scheduler.run_timers(mono() + 1)
        channel.finish_message(consumer, channel.take_message(consumer)[0])
    assert channel.requeue_message(consumer, stuck[0], 0) == 0
    assert channel.take_message(consumer) == (stuck[0], 2, *stuck[2:])
    channel.finish_message(consumer, stuck[0])
    assert channel.parked.log.first is channel.parked.log.active
    assert channel.parked.log.size_bytes() <= size_before
    channel.parked.log.check()


def test_thousands_of_parked_messages_come_once_each(topic, tmp_path):
    channel = topic.channel("c")
    count = 3000
    for index in range(count):
        topic.publish_body(struct.pack("<Q", index), 5, 2 + 2 * (index * 7919 % count))
    topic = again(topic, tmp_path, False)
    channel = topic.channel("c")
    assert counts(channel) == (0, 0, count)
    topic.broker.scheduler.run_timers(mono())
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
    topic.broker.scheduler.run_timers(mono())
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


def test_emptying_drops_parked_messages(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for due_ns in (17, 17, wall() + HOUR_NS):
        topic.publish_body(b"x", 5, due_ns)
    topic.broker.scheduler.run_timers(mono())
    guid, *_ = channel.take_message(consumer)
    channel.empty()
    assert counts(channel) == (0, 0, 0)
    assert channel.finish_message(consumer, guid) == 1
    assert channel.parked.ledger.floor == channel.parked.log.end
    topic.publish_body(b"y", 5, 17)
    topic.broker.scheduler.run_timers(mono() + 1)
    assert channel.take_message(consumer)[3] == b"y"


def test_a_damaged_record_of_a_parked_log_counts_as_finished(tmp_path):
    files = Files()
    log = Log(files, str(tmp_path / "log"), 1)
    for guid in range(1, 6):
        log.append_message(guid, b"x" * 16, 5, 17)
    ledger = Ledger(files, str(tmp_path / "ledger"))
    ParkedLog(log, ledger)
    assert (ledger.floor, ledger.cursor) == (0, 5)
    ledger.note_finished(1)
    ledger.note_finished(4)
    log.active.mapping.view()[128 + 3 * 64] ^= 1
    log = Log(files, str(tmp_path / "log"), 1)
    ledger = Ledger(files, str(tmp_path / "ledger"))
    ParkedLog(log, ledger)
    ledger.check()
    assert (ledger.floor, ledger.cursor, ledger.finished_count) == (0, 5, 3)
    assert list(ledger.unfinished(5)) == [0, 2]
