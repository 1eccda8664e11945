"""Tests of pyqd.hot.broker.topic and pyqd.broker.topic."""

import pytest

from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import DiskFull
from tests.support.invariants import check_topic
from tests.support.storage import (
    FullFiles,
    body_of,
    broker_on,
    consumer_on,
    finish_all,
    frames_of,
    publish,
    run_all_wakes,
)


@pytest.fixture
def topic(tmp_path):
    return broker_on(tmp_path, FullFiles()).topic("t")


def numbers(channel):
    found = finish_all(channel)
    check_topic(channel.topic)
    return found


def again(topic, tmp_path, closed):
    if closed:
        topic.broker.close()
    return broker_on(tmp_path).topic("t")


def test_the_first_channel_gets_held_messages_and_later_ones_only_new_messages(topic):
    publish(topic, 5)
    assert topic.depth == 5
    first = topic.channel("first")
    assert (topic.depth, first.depth, first.message_count) == (0, 5, 5)
    second = topic.channel("second")
    publish(topic, 2, start=5)
    assert (first.message_count, second.message_count) == (7, 2)
    assert numbers(first) == list(range(7))
    assert numbers(second) == [5, 6]


def test_a_topic_counts_messages_and_bytes_over_restarts(topic, tmp_path):
    publish(topic, 3, 100)
    topic.publish_frames(frames_of([b"x" * 10, b"y" * 7]), wall())
    assert (topic.message_count, topic.message_bytes) == (5, 317)
    topic = again(topic, tmp_path, False)
    assert (topic.message_count, topic.message_bytes, topic.depth) == (5, 317, 5)


def test_ids_grow_over_restarts(topic, tmp_path):
    last = 0
    for _ in range(3):
        publish(topic, 3)
        topic.publish_frames(frames_of([b"x"] * 3), wall())
        assert topic.guids.last_id > last
        last = topic.guids.last_id
        topic = again(topic, tmp_path, False)
    topic.publish_body(b"x", 0)
    assert topic.guids.last_id > last


def test_empty_messages_are_refused(topic):
    with pytest.raises(ValueError, match="at least one byte"):
        topic.publish_body(b"", wall())
    assert (topic.depth, topic.message_count) == (0, 0)


def test_a_batch_is_published_in_order(topic):
    channel = topic.channel("c")
    for start in range(0, 3000, 1000):
        topic.publish_frames(frames_of([body_of(number, 100) for number in range(start, start + 1000)]), wall())
    assert numbers(channel) == list(range(3000))


@pytest.mark.parametrize("closed", [True, False])
def test_a_paused_topic_holds_published_messages_over_a_restart(topic, tmp_path, closed):
    channel = topic.channel("c")
    publish(topic, 2)
    topic.pause(True)
    publish(topic, 3, start=2)
    topic.publish_body(body_of(77), wall(), wall() + HOUR_NS)
    topic.publish_body(body_of(5), 5, 17)
    assert (topic.depth, channel.depth, channel.deferred_count) == (5, 2, 0)
    topic = again(topic, tmp_path, closed)
    channel = topic.channel("c")
    assert topic.paused
    assert (topic.depth, channel.depth, channel.deferred_count) == (5, 2, 0)
    late = topic.channel("late")
    topic.pause(False)
    assert (topic.depth, channel.depth, channel.deferred_count) == (0, 5, 2)
    assert (late.depth, late.deferred_count) == (3, 2)
    run_all_wakes(topic.broker)
    topic.broker.scheduler.run_timers(mono())
    assert (channel.depth, channel.deferred_count) == (6, 1)
    assert sorted(numbers(channel)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("closed", [True, False])
def test_messages_of_a_topic_without_channels_outlive_a_restart_with_their_due_times(topic, tmp_path, closed):
    publish(topic, 200, 500)
    topic.publish_body(body_of(500), wall(), wall() + HOUR_NS)
    topic = again(topic, tmp_path, closed)
    assert topic.depth == 201
    channel = topic.channel("c")
    assert (channel.depth, channel.deferred_count) == (200, 1)
    assert numbers(channel) == list(range(200))


def test_emptying_a_topic_drops_messages_of_no_channel(topic):
    channel = topic.channel("c")
    publish(topic, 2)
    topic.pause(True)
    publish(topic, 300, 500, 100)
    topic.publish_body(body_of(77), wall(), wall() + HOUR_NS)
    topic.empty()
    assert (topic.depth, channel.depth, channel.message_count) == (0, 2, 2)
    topic.pause(False)
    publish(topic, 2, start=10)
    assert (channel.depth, channel.deferred_count, channel.message_count) == (4, 0, 4)
    assert numbers(channel) == [0, 1, 10, 11]
    topic.broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active


@pytest.mark.slow
def test_an_emptied_topic_lets_go_of_all_its_full_segments_in_one_pass(topic, tmp_path):
    channels = [topic.channel(name) for name in "ab"]
    topic.pause(True)
    for start in range(0, 30_000, 1000):
        publish(topic, 1000, 8, start)
    list(topic.prepare_to_empty())
    topic.empty()
    publish(topic, 3, start=30_000)
    topic.pause(False)
    topic.broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active
    check_topic(topic)
    topic = again(topic, tmp_path, False)
    for channel in channels:
        channel = topic.channel(channel.name)
        assert (channel.depth, channel.message_count) == (3, 3)
        assert numbers(channel) == [30_000, 30_001, 30_002]


def test_emptying_a_topic_without_channels_gives_its_space_back(topic, tmp_path):
    publish(topic, 300, 500)
    topic.empty()
    topic.broker.scheduler.run_wakes()
    assert topic.depth == 0
    assert topic.log.first is topic.log.active
    publish(topic, 1, start=9)
    assert numbers(again(topic, tmp_path, False).channel("c")) == [9]


def test_the_log_shrinks_when_its_slowest_channel_is_deleted(topic):
    fast = topic.channel("fast")
    topic.channel("slow")
    publish(topic, 500, 500)
    assert len(numbers(fast)) == 500
    topic.broker.scheduler.run_wakes()
    assert topic.log.first.first_ordinal == 0
    assert topic.delete_channel("slow")
    assert not topic.delete_channel("slow")
    topic.broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active
    publish(topic, 500, 500)
    assert numbers(fast) == list(range(500))


def test_a_re_created_channel_has_nothing_of_its_deleted_predecessor(topic, tmp_path):
    channel = topic.channel("c")
    publish(topic, 3)
    topic.publish_body(b"deferred", wall(), wall() + HOUR_NS)
    channel.pause(True)
    topic.delete_channel("c")
    publish(topic, 2, start=3)
    assert topic.depth == 2
    channel = topic.channel("c")
    assert (channel.depth, channel.deferred_count, channel.paused) == (2, 0, False)
    topic = again(topic, tmp_path, False)
    assert numbers(topic.channel("c")) == [3, 4]


def test_an_ephemeral_topic_keeps_no_more_than_the_memory_queue_and_counts_all(tmp_path):
    topic = broker_on(tmp_path, mem_queue_size=3).topic("t#ephemeral")
    publish(topic, 10)
    assert (topic.depth, topic.backend_depth, topic.message_count) == (3, 0, 10)
    topic.publish_frames(frames_of([b"x" * 8] * 5), wall())
    assert (topic.depth, topic.message_count, topic.message_bytes) == (3, 15, 200)
    channel = topic.channel("c")
    assert (topic.depth, channel.depth) == (0, 3)
    assert numbers(channel) == [0, 1, 2]


@pytest.mark.parametrize("due_ns", [0, 17])
def test_an_ephemeral_topic_keeps_the_part_of_a_batch_that_fits_and_counts_all(tmp_path, due_ns):
    topic = broker_on(tmp_path, mem_queue_size=3).topic("t#ephemeral")
    for _ in range(3):
        topic.publish_frames(frames_of([b"one", b"two"]), 5, due_ns)
    assert (topic.depth, topic.message_count, topic.message_bytes) == (3, 6, 18)
    check_topic(topic)


def test_an_ephemeral_topic_goes_with_its_last_channel(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t#ephemeral")
    topic.channel("c")
    topic.channel("d")
    topic.delete_channel("c")
    assert "t#ephemeral" in broker.topics
    topic.delete_channel("d")
    assert broker.topics == {}


def test_messages_beyond_the_memory_queue_count_as_backend_depth(tmp_path):
    topic = broker_on(tmp_path, mem_queue_size=4).topic("t")
    publish(topic, 10)
    assert (topic.depth, topic.backend_depth) == (10, 6)
    channel = topic.channel("c")
    assert (topic.backend_depth, channel.depth, channel.backend_depth) == (0, 10, 6)


@pytest.mark.parametrize("due", [0, 1])
def test_a_full_disk_refuses_a_message_and_accepts_the_next_after_space_is_freed(topic, tmp_path, due):
    channels = [topic.channel(name) for name in ("c", "d")]
    topic.log.pool.jobs = SegmentJobs()
    publish(topic, 2, 30_000)
    topic.files.room = 0
    due_ns = due and wall() + HOUR_NS

    def counts():
        check_topic(topic)
        return [(topic.depth, topic.message_count, topic.message_bytes, topic.log.end)] + [
            (channel.depth, channel.deferred_count, channel.message_count) for channel in channels
        ]

    before = counts()
    for room in (0, 1):
        with pytest.raises(DiskFull):
            topic.publish_body(b"x" * 30_000, wall(), due_ns)
        assert counts() == before
        with pytest.raises(DiskFull):
            topic.publish_frames(frames_of([b"x" * 20_000] * 10), wall())
        assert counts() == before
        topic.files.room = room if due else 0
    topic.files.room = None
    topic.publish_body(body_of(2, 30_000), wall(), due_ns)
    for channel in channels:
        assert (channel.depth, channel.deferred_count) == (2, 1) if due else (3, 0)
    topic = again(topic, tmp_path, False)
    check_topic(topic)
    for name in ("c", "d"):
        assert numbers(topic.channel(name)) == ([0, 1] if due else [0, 1, 2])


def test_a_refused_deferred_message_keeps_no_segment_that_all_channels_have_finished(topic):
    topic.channel("c")
    publish(topic, 1, size_bytes=50_000)
    assert finish_all(topic.channel("c")) == [0]
    run_all_wakes(topic.broker)
    finished = topic.log.first
    topic.broker.files.room = 0
    with pytest.raises(DiskFull):
        topic.publish_body(body_of(1, 50_000), wall(), wall() + HOUR_NS)
    assert topic.log.active is not finished
    run_all_wakes(topic.broker)
    assert topic.log.first is topic.log.active


def test_the_error_of_one_channel_keeps_no_message_from_the_others(topic):
    channels = [topic.channel(name) for name in ("a", "b", "c")]
    scheduler = topic.scheduler
    scheduler.run_wakes()
    errors: list[BaseException] = []
    scheduler.on_error = errors.append
    # A plain consumer fails if it is to deliver, so each error tells of a channel that was woken.
    for channel in channels:
        consumer_on(channel).rdy = 1
    publish(topic, 1)
    while scheduler.run_wakes():
        pass
    assert [type(error) for error in errors] == [AssertionError] * 3


def test_an_invalid_state_is_set_aside_and_re_created(topic, tmp_path):
    publish(topic, 3)
    path = tmp_path / "topics" / "t.topic" / "state"
    path.write_bytes(b"\x77" + path.read_bytes()[1:])
    topic = broker_on(tmp_path).topic("t")
    assert (topic.depth, topic.message_count) == (3, 3)
    assert path.with_suffix(".bad").exists()


def test_a_state_of_a_later_version_is_set_aside_with_the_reason(topic, tmp_path):
    publish(topic, 3)
    path = tmp_path / "topics" / "t.topic" / "state"
    path.write_bytes(path.read_bytes()[:8] + b"\x77" + path.read_bytes()[9:])
    broker = broker_on(tmp_path)
    assert broker.topic("t").depth == 3
    ((topic_name, channel_name, reason),) = broker.set_aside
    assert (topic_name, channel_name) == ("t", None)
    assert "format version 119" in reason


def test_a_state_that_was_made_and_not_filled_in_is_a_new_topic(topic, tmp_path):
    path = tmp_path / "topics" / "t.topic" / "state"
    path.write_bytes(bytes(4096))
    topic = broker_on(tmp_path).topic("t")
    assert (topic.depth, topic.message_count) == (0, 0)
    publish(topic, 1)
    assert topic.depth == 1


def test_a_topic_re_created_in_the_same_run_is_unaffected_by_work_of_the_former(topic, tmp_path):
    broker = topic.broker
    topic.channel("c")
    publish(topic, 500, 500)
    topic.publish_body(b"deferred", wall(), wall() + HOUR_NS)
    former = {path.name for path in (tmp_path / "topics" / "t.topic" / "log").iterdir()}
    assert broker.delete_topic("t")
    topic = broker.topic("t")
    topic.channel("c")
    publish(topic, 500, 500)
    topic.publish_body(b"deferred", wall(), wall() + HOUR_NS)
    broker.scheduler.run_wakes()
    assert not former & {path.name for path in (tmp_path / "topics" / "t.topic" / "log").iterdir()}
    topic = again(topic, tmp_path, False)
    channel = topic.channel("c")
    assert (channel.depth, channel.deferred_count) == (500, 1)
    assert numbers(channel) == list(range(500))


@pytest.mark.parametrize("channels", [(), ("c",), ("c", "d")])
def test_segments_left_untrimmed_by_a_kill_are_removed_at_the_next_start(topic, tmp_path, channels):
    publish(topic, 300, 500)
    for name in channels:
        topic.channel(name).empty()
    topic.empty()
    topic = again(topic, tmp_path, False)
    topic.broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active
