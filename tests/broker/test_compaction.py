"""Tests of the messages that move to the end of a parked log, so that a few messages do not keep a long one."""

import pytest

from pyqd.broker import reclaimer
from pyqd.hot.broker.compaction import move_parked
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from tests.support.storage import body_of, broker_on, consumer_on, publish, run_all_wakes

BODY_BYTES = 8 << 10
PER_SEGMENT = 7
DUE = 1


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(reclaimer, "COMPACTED_AGE_NS", 0)
    monkeypatch.setattr(reclaimer, "COMPACTED_LOG_BYTES_MIN", 0)


def park(topic, count, due_ns, start=0):
    publish(topic, count, BODY_BYTES, start, due_ns)
    run_all_wakes(topic.broker)


def work_off(channel, consumer):
    """Take and finish all that is due. Returns: how many."""
    channel.topic.scheduler.run_timers(mono() + SECOND_NS)
    count = 0
    while (taken := channel.take_message(consumer)) is not None:
        assert channel.finish_message(consumer, taken[0]) == 0
        count += 1
    channel.topic.scheduler.run_wakes()
    return count


def segment_count(log):
    count, segment = 1, log.first
    while segment is not log.active:
        segment = segment.next
        count += 1
    return count


@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
def test_a_message_that_is_far_from_due_does_not_hold_a_long_log(tmp_path, name):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel(name)
    consumer = consumer_on(channel)
    due_ns = wall() + HOUR_NS
    park(topic, 1, due_ns)
    park(topic, 8 * PER_SEGMENT, DUE, 1)
    assert work_off(channel, consumer) == 8 * PER_SEGMENT
    log = channel.parked.log
    assert segment_count(log) > 8
    reclaimer.reclaim(topic, mono())
    assert segment_count(log) == 1
    assert channel.deferred_count == 1
    ((_, _, _, due, attempts, body),) = [
        record for record in log.records() if not channel.parked.ledger.has_finished(record[0])
    ]
    assert (due, attempts, body) == (due_ns, 0, body_of(0, BODY_BYTES))
    topic.check()
    if name == "c":
        channel = broker_on(tmp_path).topic("t").channel("c")
        assert (channel.depth, channel.deferred_count) == (0, 1)


def test_a_log_whose_oldest_segments_are_all_unfinished_becomes_compact(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    park(topic, 2 * PER_SEGMENT, wall() + HOUR_NS)
    park(topic, 14 * PER_SEGMENT, DUE, 2 * PER_SEGMENT)
    work_off(channel, consumer)
    assert segment_count(channel.parked.log) == 16
    for _ in range(4):
        reclaimer.reclaim(topic, mono())
    assert segment_count(channel.parked.log) <= 4
    assert channel.deferred_count == 2 * PER_SEGMENT


def test_a_log_that_is_mostly_unfinished_is_not_copied(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    park(topic, 4 * PER_SEGMENT, wall() + HOUR_NS)
    park(topic, 4 * PER_SEGMENT, DUE, 4 * PER_SEGMENT)
    work_off(channel, consumer_on(channel))
    end = channel.parked.log.end
    reclaimer.reclaim(topic, mono())
    assert channel.parked.log.end == end


def test_a_moved_message_stays_in_flight_at_its_consumer(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    park(topic, 3, DUE)
    channel.topic.scheduler.run_timers(mono() + SECOND_NS)
    flying, again, ringed = [channel.take_message(consumer) for _ in range(3)]
    assert channel.requeue_message(consumer, again[0], 0) == 0
    park(topic, 8 * PER_SEGMENT, DUE, 3)
    channel.topic.scheduler.run_timers(mono() + SECOND_NS)
    assert channel.requeue_message(consumer, ringed[0], 0) == 0
    assert move_parked(channel, 1000) == PER_SEGMENT
    topic.check()
    assert channel.touch_message(consumer, flying[0]) == 0
    taken = [channel.take_message(consumer) for _ in range(8 * PER_SEGMENT + 2)]
    assert {message[0]: message[1] for message in taken if message[1] > 1} == {again[0]: 2, ringed[0]: 2}
    for message in [flying, *taken]:
        assert channel.finish_message(consumer, message[0]) == 0
    assert (channel.depth, channel.in_flight_count) == (0, 0)
    assert channel.take_message(consumer) is None


def test_a_moved_message_that_was_in_flight_at_a_kill_comes_with_its_attempts(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    park(topic, 1, DUE)
    channel.topic.scheduler.run_timers(mono() + SECOND_NS)
    for _ in range(3):
        (guid, attempts, *_) = channel.take_message(consumer)
        channel.topic.scheduler.run_timers(mono() + 2 * MINUTE_NS)
    assert attempts == 3
    park(topic, PER_SEGMENT, wall() + HOUR_NS, 1)
    assert move_parked(channel, 1000) == PER_SEGMENT
    channel = broker_on(tmp_path).topic("t").channel("c")
    assert channel.take_message(consumer_on(channel))[:2] == (guid, 4)


def test_copies_count_when_they_are_on_stable_storage(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    park(topic, 1, wall() + HOUR_NS)
    park(topic, 8 * PER_SEGMENT, DUE, 1)
    work_off(channel, consumer_on(channel))
    channel.parking.durable = True
    log = channel.parked.log
    end = log.end
    for _ in range(2):
        reclaimer.reclaim(topic, mono())
        assert log.end == end + 1
        assert segment_count(log) > 8
    channel.settle(log.end)
    channel.parked.note_settled(log.end)
    assert segment_count(log) == 1
    assert channel.deferred_count == 1


def test_a_bounded_number_is_moved_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(reclaimer, "MOVED_PER_RUN", 3)
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    park(topic, PER_SEGMENT, wall() + HOUR_NS)
    park(topic, 8 * PER_SEGMENT, DUE, PER_SEGMENT)
    work_off(channel, consumer_on(channel))
    end = channel.parked.log.end
    reclaimer.reclaim(topic, mono())
    assert channel.parked.log.end == end + 3
    reclaimer.reclaim(topic, mono())
    reclaimer.reclaim(topic, mono())
    assert channel.parked.log.end == end + PER_SEGMENT
    assert segment_count(channel.parked.log) < 4
