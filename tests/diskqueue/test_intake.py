"""Tests of pyqd.hot.broker.intake and pyqd.hot.diskqueue.batchwriter: large batches stored in slices."""

import os

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.broker.intake import enqueue_frames, must_queue, set_limits_for_tests
from pyqd.hot.primitives.clock import mono, wall
from pyqd.hot.primitives.guid import id_after
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from pyqd.primitives.errors import DiskFull
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_topic
from tests.support.storage import (
    FullFiles,
    body_of,
    broker_on,
    consumer_on,
    finish_all,
    frames_of,
    number_in,
    run_all_wakes,
)

SLICE_BYTES = 1000
# In a log; twelve of them are a slice.
MESSAGE_BYTES = 40


class Descriptors(FullFiles):
    """Files that note the descriptors with which segments are written."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []

    def open_for_writing(self, path: str) -> int:
        fd = Files.open_for_writing(self, path)
        self.opened.append(fd)
        return fd


@pytest.fixture(autouse=True)
def small_slices():
    former = set_limits_for_tests(4 * SLICE_BYTES, SLICE_BYTES)
    yield
    set_limits_for_tests(*former)


@pytest.fixture
def files():
    return Descriptors()


@pytest.fixture
def topic(tmp_path, files):
    return broker_on(tmp_path, files, max_bytes_per_file=1 << 20).topic("t")


def frames(start, count, size_bytes=MESSAGE_BYTES):
    return frames_of([body_of(number, size_bytes) for number in range(start, start + count)])


def numbers(topic):
    return [number_in(body) for *_, body in topic.log.records()]


def begun(topic, start=0, count=100, due_ns=0, size_bytes=MESSAGE_BYTES):
    """Queue a batch, and store a slice of it."""
    queued = enqueue_frames(topic, frames(start, count, size_bytes), wall(), due_ns)
    topic.broker.scheduler.run_wakes()
    assert topic.busy
    assert not queued.finished
    return queued


def reopened(tmp_path):
    """Return the topic as it is found after a kill."""
    return broker_on(tmp_path, max_bytes_per_file=1 << 20).topic("t")


def test_a_batch_is_stored_over_several_turns_and_seen_as_a_whole_after_the_last(topic):
    channel = topic.channel("c")
    topic.publish_body(body_of(500), wall())
    run_all_wakes(topic.broker)
    queued = enqueue_frames(topic, frames(0, 100), wall())
    turns = 0
    while not queued.finished:
        assert (topic.log.end, topic.message_count, channel.depth) == (1, 1, 1)
        check_topic(topic)
        topic.broker.scheduler.run_wakes()
        turns += 1
    assert turns >= 9
    assert queued.stored
    assert not topic.busy
    assert (topic.log.end, topic.message_count, topic.message_bytes) == (101, 101, 16 + 100 * MESSAGE_BYTES)
    run_all_wakes(topic.broker)
    assert finish_all(channel) == [500, *range(100)]


def test_the_ids_of_a_sliced_batch_are_consecutive_and_the_last_is_reported(topic):
    queued = begun(topic)
    run_all_wakes(topic.broker)
    guids = [guid for _, guid, *_ in topic.log.records()]
    assert guids == [id_after(queued.last_id, step) for step in range(-99, 1)]
    topic.publish_body(b"next", wall())
    assert topic.guids.last_id > queued.last_id


def test_a_small_batch_is_not_queued_unless_others_are(topic):
    assert not must_queue(topic, frames(0, 10))
    assert must_queue(topic, frames(0, 100))
    begun(topic)
    assert must_queue(topic, frames(0, 1))
    run_all_wakes(topic.broker)
    assert not must_queue(topic, frames(0, 1))


def test_messages_published_during_a_batch_follow_in_order_and_other_topics_do_not_wait(topic):
    other = topic.broker.topic("other")
    first = begun(topic)
    told = []
    for start in (200, 300, 400):
        queued = enqueue_frames(topic, frames(start, 1 if start != 300 else 50), wall())
        queued.on_done = lambda start=start: told.append(start)
    other.publish_body(b"x", wall())
    assert other.depth == 1
    assert not first.finished
    run_all_wakes(topic.broker)
    assert numbers(topic) == [*range(100), 200, *range(300, 350), 400]
    assert told == [200, 300, 400]
    assert not topic.busy


def test_large_batches_to_many_topics_share_the_work_of_a_turn(topic):
    set_limits_for_tests(100_000, 1 << 20)
    many = [topic.broker.topic(f"t{index}") for index in range(10)]
    batches = [enqueue_frames(each, frames(0, 400, 1000), wall()) for each in many]
    topic.broker.scheduler.run_wakes()
    assert 0 < sum(each.finished for each in batches) < 5
    run_all_wakes(topic.broker)
    assert all(each.stored for each in batches)
    assert all(each.depth == 400 for each in many)


@pytest.mark.parametrize("size_bytes", [MESSAGE_BYTES, 1000])
def test_a_kill_between_slices_keeps_none_of_the_batch_and_all_earlier_messages(topic, tmp_path, size_bytes):
    set_limits_for_tests(2000, 20_000)
    topic.publish_body(body_of(7), wall())
    begun(topic, 100, 500, size_bytes=size_bytes)
    found = reopened(tmp_path)
    assert numbers(found) == [7]
    assert (found.depth, found.message_count) == (1, 1)
    found.publish_body(body_of(8), wall())
    assert numbers(reopened(tmp_path)) == [7, 8]


def test_a_disk_that_fails_between_slices_refuses_the_whole_batch_and_leaves_nothing(topic, tmp_path, files):
    set_limits_for_tests(20_000, 100_000)
    # No page is there before it is written.
    topic.log.pool.jobs = SegmentJobs()
    topic.publish_body(body_of(7), wall())
    queued = begun(topic, 100, 400, size_bytes=1000)
    behind = enqueue_frames(topic, frames(900, 1), wall())
    [fd] = files.opened
    whole, full = os.dup(fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, fd)
    while not queued.finished:
        topic.broker.scheduler.run_wakes()
    assert isinstance(queued.error, DiskFull)
    assert not queued.stored
    os.dup2(whole, fd)
    for each in (whole, full):
        os.close(each)
    run_all_wakes(topic.broker)
    assert behind.stored
    assert numbers(topic) == numbers(reopened(tmp_path)) == [7, 900]
    assert (topic.depth, topic.message_count) == (2, 2)
    check_topic(topic)


def test_a_batch_without_space_for_its_segment_is_refused_and_the_next_one_is_stored(topic, files):
    files.room = 0
    queued = enqueue_frames(topic, frames(0, 2000, 1000), wall())
    behind = enqueue_frames(topic, frames(5000, 1), wall())
    run_all_wakes(topic.broker)
    assert isinstance(queued.error, DiskFull)
    assert behind.stored
    assert numbers(topic) == [5000]


def test_a_batch_restarts_if_the_log_continues_in_another_segment(topic):
    queued = begun(topic)
    topic.log.shrink()
    run_all_wakes(topic.broker)
    assert queued.stored
    assert numbers(topic) == list(range(100))
    assert topic.message_bytes == 100 * MESSAGE_BYTES
    check_topic(topic)


def test_a_batch_restarts_if_a_page_ahead_of_it_cannot_be_read(topic):
    queued = begun(topic)
    topic.log.pool.leave(topic.log.active)
    run_all_wakes(topic.broker)
    assert queued.stored
    assert numbers(topic) == list(range(100))


def test_a_cancelled_batch_leaves_nothing_and_the_next_one_is_stored(topic):
    queued = begun(topic)
    waiting = enqueue_frames(topic, frames(300, 2), wall())
    last = enqueue_frames(topic, frames(200, 2), wall())
    waiting.cancel()
    queued.cancel()
    assert queued.finished
    assert not queued.stored
    run_all_wakes(topic.broker)
    assert last.stored
    assert numbers(topic) == [200, 201]


def test_a_deleted_topic_refuses_its_queued_batches(topic):
    told = []
    batches = [begun(topic), enqueue_frames(topic, frames(200, 1), wall())]
    for queued in batches:
        queued.on_done = lambda: told.append(True)
    topic.broker.delete_topic("t")
    assert told == [True, True]
    for queued in batches:
        assert queued.finished
        assert not queued.stored
        assert queued.error is None
    run_all_wakes(topic.broker)
    again = topic.broker.topic("t")
    assert not again.busy
    assert again.depth == 0


def test_a_stop_between_slices_refuses_the_batch_and_is_clean(topic, tmp_path):
    topic.publish_body(body_of(7), wall())
    queued = begun(topic, 100)
    topic.broker.close()
    assert queued.finished
    assert not queued.stored
    assert numbers(reopened(tmp_path)) == [7]


def test_a_channel_made_between_slices_gets_the_whole_batch(topic):
    begun(topic)
    channel = topic.channel("c")
    run_all_wakes(topic.broker)
    assert finish_all(channel) == list(range(100))


@pytest.mark.parametrize("event", ["nothing", "channel", "pause", "unpause"])
def test_a_deferred_batch_is_deferred_whatever_happens_to_its_topic_between_slices(topic, event):
    if event != "channel":
        topic.channel("c")
    topic.pause(event == "unpause")
    queued = begun(topic, 0, 100, wall() + HOUR_NS)
    if event in ("pause", "unpause"):
        topic.pause(event == "pause")
    channel = topic.channel("c")
    run_all_wakes(topic.broker)
    assert queued.stored
    if event == "pause":
        assert (topic.depth, channel.deferred_count) == (100, 0)
        topic.pause(False)
        run_all_wakes(topic.broker)
    assert (topic.depth, channel.depth, channel.deferred_count) == (0, 0, 100)
    assert finish_all(channel) == []
    check_topic(topic)


def test_a_deferred_batch_without_space_for_its_due_times_is_refused(tmp_path):
    topic = broker_on(tmp_path, files := FullFiles()).topic("t")
    files.room = 0
    queued = enqueue_frames(topic, frames(0, 100), wall(), wall() + HOUR_NS)
    run_all_wakes(topic.broker)
    assert isinstance(queued.error, DiskFull)
    assert (topic.log.end, topic.message_count, topic.dues.end) == (0, 0, 0)
    check_topic(topic)


def test_a_deferred_batch_is_found_deferred_after_a_kill(topic, tmp_path):
    topic.channel("c")
    begun(topic, 0, 100, wall() + HOUR_NS)
    run_all_wakes(topic.broker)
    channel = reopened(tmp_path).channel("c")
    run_all_wakes(channel.topic.broker)
    assert channel.deferred_count == 100


def test_an_ephemeral_topic_without_a_channel_keeps_messages_up_to_its_memory_queue(tmp_path):
    topic = broker_on(tmp_path, mem_queue_size=30).topic("t#ephemeral")
    queued = begun(topic)
    run_all_wakes(topic.broker)
    assert queued.stored
    assert topic.depth == 30
    channel = topic.channel("c")
    begun(topic, 200)
    run_all_wakes(topic.broker)
    assert topic.message_count == 200
    assert finish_all(channel)[:30] == list(range(30))


def test_dead_letters_wait_while_their_topic_stores_a_batch(topic):
    source = topic.broker.topic("source")
    channel = source.channel("c")
    channel.set_limits(channel.limits._replace(max_attempts=1, dead_letter_topic="t"))
    consumer = consumer_on(channel)
    source.publish_body(body_of(900), wall())
    begun(topic)
    guid, *_ = channel.take_message(consumer)
    assert channel.requeue_message(consumer, guid, 0) == 0
    topic.broker.scheduler.run_wakes()
    assert channel.depth == 1
    run_all_wakes(topic.broker)
    assert numbers(topic) == list(range(100))
    with HeldClock() as clock:
        clock.advance(SECOND_NS)
        topic.broker.scheduler.run_timers(mono())
        run_all_wakes(topic.broker)
    assert numbers(topic) == [*range(100), 900]


def test_a_publish_for_which_memory_ends_is_not_queued(topic):
    scheduler = topic.broker.scheduler

    def fail():
        raise MemoryError

    scheduler.on_wake_wanted = fail
    with pytest.raises(MemoryError):
        enqueue_frames(topic, frames(0, 100), wall())
    assert not topic.busy
    scheduler.on_wake_wanted = None
    run_all_wakes(topic.broker)
    assert numbers(topic) == []
