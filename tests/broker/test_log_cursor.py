"""Tests of pyqd.hot.broker.log_cursor: what a channel does about messages that are not in memory."""

import os

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.errors import StorageError
from tests.support.invariants import check_topic
from tests.support.storage import (
    AbsentFiles,
    Jobs,
    broker_on,
    consumer_on,
    drop_from_cache,
    frames_of,
    number_in,
    publish,
    run_all_wakes,
    take_all,
)

MIB = 1 << 20
TAKEN_AT_ONCE_BYTES = 4 * MIB


@pytest.fixture
def files():
    return AbsentFiles()


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture
def channel(tmp_path, files, jobs):
    """Return a channel that reads pages in `jobs`."""
    broker = broker_on(tmp_path, files)
    broker.read_in_background = jobs.submit
    return broker.topic("t").channel("c")


def test_messages_that_are_not_in_memory_are_delivered_after_they_were_read_beside_the_loop(channel, files, jobs):
    consumer = consumer_on(channel)
    publish(channel.topic, 10)
    assert channel.take_message(consumer) is None
    assert channel.take_message(consumer) is None
    assert (channel.depth, len(jobs.waiting), files.ranges) == (10, 1, [])
    jobs.run()
    run_all_wakes(channel.topic.broker)
    assert [number_in(message[3]) for message in take_all(channel, consumer)] == list(range(10))
    [(_, start, end)] = files.ranges
    assert (start, end % 4096) == (0, 0)


def test_a_read_that_fails_does_not_hold_messages_back(channel, files, jobs):
    consumer = consumer_on(channel)
    publish(channel.topic, 10)
    assert channel.take_message(consumer) is None
    jobs.run(StorageError("map", "x", 12, "Cannot allocate memory"))
    assert len(take_all(channel, consumer)) == 10


def test_messages_are_delivered_at_once_where_jobs_are_done_on_the_spot(tmp_path, files):
    channel = broker_on(tmp_path, files).topic("t").channel("c")
    publish(channel.topic, 10)
    assert len(take_all(channel, consumer_on(channel))) == 10
    assert len(files.ranges) == 1


def test_all_of_a_message_that_is_larger_than_what_is_asked_for_is_read(channel, files, jobs):
    consumer = consumer_on(channel)
    body = os.urandom(6 * MIB)
    channel.topic.publish_body(body, wall())
    assert channel.take_message(consumer) is None
    jobs.run()
    assert channel.take_message(consumer) is None
    jobs.run()
    assert channel.take_message(consumer)[3] == body
    assert files.ranges[-1][2] - files.ranges[-1][1] >= len(body)


def test_a_backlog_is_read_some_mib_at_a_time(channel, files, jobs):
    consumer = consumer_on(channel)
    for _ in range(10):
        channel.topic.publish_body(bytes(MIB - 100), wall())
    taken = 0
    while taken < 10:
        messages = take_all(channel, consumer)
        taken += len(messages)
        assert sum(len(message[3]) for message in messages) <= TAKEN_AT_ONCE_BYTES
        jobs.run()
    assert len(files.ranges) > 2
    check_topic(channel.topic)


def test_a_seek_while_pages_are_read_does_not_take_other_pages_for_read(channel, files, jobs):
    consumer = consumer_on(channel)
    publish(channel.topic, 10)
    assert channel.take_message(consumer) is None
    channel.empty()
    files.ranges.clear()
    publish(channel.topic, 5)
    (job, done), jobs.waiting = jobs.waiting[0], []
    job()
    done(None, None)
    run_all_wakes(channel.topic.broker)
    jobs.run()
    assert len(take_all(channel, consumer)) == 5


def test_the_end_of_a_read_changes_nothing_for_a_channel_that_was_deleted(channel, jobs):
    publish(channel.topic, 10)
    consumer = consumer_on(channel)
    assert channel.take_message(consumer) is None
    channel.remove_consumer(consumer)
    channel.topic.delete_channel("c")
    jobs.run()
    run_all_wakes(channel.topic.broker)
    assert channel.topic.channels_by_name == {}


@pytest.fixture
def written(channel, files):
    """Return the channel with 20 MiB that were written by pwrite(2), as no page was prepared."""
    files.is_cold = False
    segment_jobs = channel.topic.broker.segment_jobs
    segment_jobs.in_background = segment_jobs.prompt_in_background = Jobs().submit
    for _ in range(20):
        channel.topic.publish_frames(frames_of([bytes(1000)] * 1000), wall())
    return channel


def test_a_backlog_written_by_pwrite_is_put_into_the_page_table_ahead_of_its_reader(written, files, jobs):
    consumer = consumer_on(written)
    waited = taken = 0
    while taken < 20_000:
        if written.take_message(consumer) is None:
            waited += 1
        else:
            taken += 1
        jobs.run()
    # Once at the beginning, as the first pages were not asked for ahead.
    assert waited == 1
    assert sum(end - start for _, start, end in files.ranges) > 10 * MIB


def test_messages_are_not_waited_for_soon_after_they_were_written(written, files, jobs):
    consumer = consumer_on(written)
    while written.depth:
        written.take_message(consumer)
        jobs.run()
    files.ranges.clear()
    for _ in range(20):
        written.topic.publish_frames(frames_of([bytes(1000)] * 100), wall())
        assert len(take_all(written, consumer)) == 100
    assert files.ranges == []


def test_a_file_that_was_dropped_from_memory_is_absent_until_it_is_read_in(tmp_path):
    files = Files()
    path = str(tmp_path / "file")
    mapping = files.new_mapped(path, MIB, True)
    assert files.is_present(mapping, 0, MIB)
    assert files.is_present(mapping, 4096, 0)
    files.sync(mapping, 0, MIB)
    del mapping
    if not drop_from_cache(tmp_path):
        pytest.skip("this file system keeps all files in memory")
    mapping = files.open_mapped(path)
    assert not files.is_present(mapping, 0, MIB)
    assert not files.is_present(mapping, MIB - 4096, 4096)
    files.read_in(mapping, 0, MIB)
    assert files.is_present(mapping, 0, MIB)


def test_memory_counts_as_present_and_a_removed_file_can_be_asked_for_and_read_in(tmp_path):
    files = Files()
    assert files.is_present(files.new_mapped(None, MIB, False), 0, MIB)
    mapping = files.new_mapped(str(tmp_path / "file"), MIB, False)
    mapping.file_removed()
    files.read_in(mapping, 0, MIB)
    assert files.is_present(mapping, 0, MIB)
