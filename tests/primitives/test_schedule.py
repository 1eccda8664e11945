"""Tests of pyqd.hot.primitives.schedule, through channels and topics that schedule wakes."""

import pytest

from pyqd.hot.primitives.clock import mono, wall
from pyqd.hot.primitives.schedule import Scheduled, Scheduler
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from tests.support.invariants import check_topic
from tests.support.storage import broker_on, consumer_on, frames_of


@pytest.fixture
def broker(tmp_path):
    broker = broker_on(tmp_path)
    broker.topic("t").channel("c")
    broker.scheduler.run_wakes()
    return broker


def test_an_idle_scheduler_runs_nothing_and_has_no_timer():
    scheduler = Scheduler()
    assert scheduler.run_wakes() == 0
    assert scheduler.run_timers(2**62) is None


def test_a_wake_that_is_requested_many_times_is_run_once_with_a_turn_for_the_channel(broker):
    asked = []
    broker.scheduler.on_wake_wanted = lambda: asked.append(1)
    for _ in range(10):
        broker.topic("t").publish_body(b"x", wall())
    assert asked == [1]
    assert broker.scheduler.run_wakes() == 2
    assert broker.scheduler.run_wakes() == 0
    broker.topic("t").publish_body(b"x", wall())
    assert asked == [1, 1]


def test_only_an_earlier_time_is_announced(broker):
    told: list[int] = []
    broker.scheduler.on_timer_wanted = told.append
    topic = broker.topic("t")
    channels = [topic.channel(name) for name in ("c", "d", "e")]
    topic.publish_body(b"x", wall())
    starts = []
    for channel, timeout_ns in zip(channels, (3 * MINUTE_NS, MINUTE_NS, 2 * MINUTE_NS), strict=True):
        starts.append(mono())
        channel.take_message(consumer_on(channel, timeout_ns))
    assert len(told) == 2
    for due_ns, start, timeout_ns in zip(told, starts, (3 * MINUTE_NS, MINUTE_NS), strict=False):
        assert start <= due_ns - timeout_ns <= mono()


def test_each_run_returns_the_due_time_of_the_next(broker):
    topic = broker.topic("t")
    channels = [topic.channel(name) for name in ("c", "d")]
    topic.publish_body(b"x", wall())
    for channel, timeout_ns in zip(channels, (MINUTE_NS, 2 * MINUTE_NS), strict=True):
        channel.take_message(consumer_on(channel, timeout_ns))
    now_ns = mono()
    first_ns = broker.scheduler.run_timers(now_ns)
    assert now_ns < first_ns <= now_ns + MINUTE_NS
    second_ns = broker.scheduler.run_timers(first_ns)
    assert first_ns < second_ns <= now_ns + 2 * MINUTE_NS
    assert [channel.timeout_count for channel in channels] == [1, 0]
    assert broker.scheduler.run_timers(second_ns) is None
    assert [channel.timeout_count for channel in channels] == [1, 1]


def test_a_time_requested_after_all_have_passed_is_announced_again(broker):
    told: list[int] = []
    broker.scheduler.on_timer_wanted = told.append
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel, SECOND_NS)
    for count in range(1, 4):
        broker.topic("t").publish_body(b"x", wall())
        assert channel.take_message(consumer) is not None
        assert len(told) == count
        assert broker.scheduler.run_timers(mono() + MINUTE_NS) is None


def test_many_timers_come_in_order_and_their_slots_are_used_again(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t#ephemeral")
    channels = [topic.channel(f"c{index}") for index in range(200)]
    for _ in range(2):
        topic.publish_body(b"x", wall())
        start = mono()
        for index, channel in enumerate(channels):
            channel.take_message(consumer_on(channel, (1 + index * 37 % 200) * MINUTE_NS))
        for minutes in (0, 1, 50, 199, 200):
            broker.scheduler.run_timers(start + minutes * MINUTE_NS + SECOND_NS)
            assert sum(channel.in_flight_count for channel in channels) == 200 - minutes
        for channel in channels:
            channel.empty()


def test_an_exception_of_a_wake_goes_to_the_listener_and_the_other_wakes_still_run(tmp_path):
    broker = broker_on(tmp_path)
    for name in ("a", "b"):
        topic = broker.topic(name)
        # This consumer cannot deliver: it is no connection.
        consumer_on(topic.channel("c")).rdy = 1
        topic.publish_body(b"x", wall())
    errors: list[Exception] = []
    broker.scheduler.on_error = errors.append
    broker.scheduler.run_wakes()
    assert [str(error) for error in errors] == ["a plain consumer takes messages only when it is asked to"] * len(
        errors
    )
    assert len(errors) >= 2


def test_an_error_without_a_listener_is_raised():
    with pytest.raises(KeyError):
        Scheduler().report(KeyError("x"))


def test_slots_of_timers_are_given_back():
    scheduler, item = Scheduler(), Scheduled()
    slots = [scheduler.take_slot(item) for _ in range(100)]
    assert slots == list(range(100))
    scheduler.release_slot(42, item)
    assert scheduler.take_slot(item) == 42


def in_flight(broker, name, count, timeout_ns):
    """Return a channel with so many messages in flight at one consumer, and the consumer."""
    topic = broker.topic(name)
    channel = topic.channel("c")
    topic.publish_frames(frames_of([b"x"] * count), wall())
    consumer = consumer_on(channel, timeout_ns)
    for _ in range(count):
        channel.take_message(consumer)
    return channel, consumer


def test_a_mass_of_timeouts_is_taken_back_over_several_turns(broker):
    channel, consumer = in_flight(broker, "many", 30_000, MINUTE_NS)
    later_ns = mono() + 2 * MINUTE_NS
    broker.scheduler.run_timers(later_ns)
    left = channel.in_flight_count
    assert 0 < left < 30_000
    assert consumer.in_flight == left
    turns = 1
    while channel.in_flight_count:
        broker.scheduler.run_timers(later_ns + turns)
        turns += 1
        assert turns < 100
    assert (consumer.in_flight, channel.timeout_count, channel.depth) == (0, 30_000, 30_000)


def test_a_timeout_that_finds_no_work_left_is_the_first_of_the_next_turn(broker):
    channels = [in_flight(broker, f"t{index}", 10_000, MINUTE_NS)[0] for index in range(3)]
    later_ns = mono() + 2 * MINUTE_NS
    due_ns = broker.scheduler.run_timers(later_ns)
    assert due_ns <= later_ns
    assert [channel.timeout_count > 0 for channel in channels] == [True, False, False]
    broker.scheduler.run_timers(later_ns)
    assert channels[1].timeout_count > 0


def test_a_turn_begins_no_portion_of_its_work_after_its_time(broker):
    channel, consumer = in_flight(broker, "many", 10_000, MINUTE_NS)
    later_ns = mono() + 2 * MINUTE_NS
    broker.scheduler.time_max_ns = 1
    broker.scheduler.run_timers(later_ns)
    at_first = channel.timeout_count
    assert 0 < at_first < 1000
    broker.scheduler.time_max_ns = HOUR_NS
    broker.scheduler.run_timers(later_ns + 1)
    assert channel.timeout_count > at_first + 4000
    broker.scheduler.time_max_ns = 1
    turns = 2
    while channel.in_flight_count:
        broker.scheduler.run_timers(later_ns + turns)
        turns += 1
        assert turns < 100
    assert (consumer.in_flight, channel.timeout_count, channel.depth) == (0, 10_000, 10_000)


def test_an_object_cut_off_by_the_time_limit_comes_first_in_the_next_run(broker):
    broker.scheduler.time_max_ns = 1
    topic = broker.topic("t")
    channels = [in_flight(broker, f"t{index}", 1000, MINUTE_NS)[0] for index in range(3)]
    later_ns = mono() + 2 * MINUTE_NS
    for index in range(20):
        broker.scheduler.run_timers(later_ns + index)
        broker.scheduler.run_wakes()
    assert [channel.timeout_count for channel in channels] == [1000] * 3
    check_topic(topic)
