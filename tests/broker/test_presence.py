"""Tests of pyqd.hot.diskqueue.presence and its users: the event loop's thread does not read messages from the disk.

The thread that runs a test stands for the event loop. Its major page faults are counted while pages of the logs are on
the disk only.
"""

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from pyqd.broker import message_lookup, peek, replay
from pyqd.broker.broker import Broker
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.storage import (
    AbsentFiles,
    Jobs,
    broker_on,
    consumer_on,
    drop_from_cache,
    options_for,
    publish,
    run_all_wakes,
)

BODY_BYTES = 4000
COUNT = 2500
# More than fit into one segment of the trace.
TRACED_COUNT = 150_000
PAGE_BYTES = 4096
KNOWN_S = 1.0
MADV_DONTNEED = 4
# Code and ledgers may have left memory too. The messages, read ahead by the kernel, would take 80.
OTHER_FAULTS_MAX = 4

ffi = FFI()
ffi.cdef("int madvise(void *address, size_t length, int advice);")
libc: Any = ffi.dlopen(None)


class ThreadJobs(Jobs):
    """Jobs that a thread runs, one by one."""

    def __init__(self, thread):
        super().__init__()
        self.thread = thread

    def submit(self, job, done):
        super().submit(lambda: self.run_and_wait(job), done)

    def run_and_wait(self, job):
        return self.thread.submit(job).result()

    def run_now(self, job, done):
        done(self.run_and_wait(job), None)


@pytest.fixture
def jobs():
    with ThreadPoolExecutor(1) as thread:
        yield ThreadJobs(thread)


@pytest.fixture
def topic(tmp_path, jobs):
    options = options_for(tmp_path, max_bytes_per_file=1 << 20, retention_bytes=1 << 30)
    broker = Broker(options, in_background=jobs.run_now)
    broker.load()
    broker.read_in_background = jobs.submit
    broker.read_and_wait = jobs.run_and_wait
    yield broker.topic("t")
    broker.close()


class Loop:
    """Stand-in for the event loop: counts the pages that its thread has read from the disk."""

    def __init__(self, directory: Path):
        self.directory = directory

    def cool(self, was_read: bool = False) -> None:
        """Leave all pages of the logs on the disk only, but those of the headers. was_read: in the last second."""
        if was_read:
            time.sleep(KNOWN_S)
        drop_from_cache(self.directory)
        with open("/proc/self/maps") as maps:
            places = [line.split() for line in maps if str(self.directory) in line]
        for span, _, offset, _, _, path in places:
            start, end = (int(address, 16) for address in span.split("-"))
            if path.endswith(".seg") and int(offset, 16) == 0 and end - start > PAGE_BYTES:
                address = ffi.cast("void *", start + PAGE_BYTES)
                assert libc.madvise(address, end - start - PAGE_BYTES, MADV_DONTNEED) == 0
        for each in self.directory.rglob("*.seg"):
            with each.open("rb") as file:
                os.posix_fadvise(file.fileno(), PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)
        self.faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        self.read_before = bytes_read()

    def fault_count(self) -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - self.faults

    def read_bytes(self) -> int:
        """Return the bytes that the thread has read from the disk, also if it has asked the kernel to."""
        return bytes_read() - self.read_before


def bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(counts["read_bytes"])


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "any").write_bytes(bytes(1))
    if not drop_from_cache(tmp_path):
        pytest.skip("this file system keeps all files in memory")
    return Loop(tmp_path)


def pause():
    """Yield to nothing. Functions that are given this may switch."""


def test_a_load_of_a_page_that_is_on_the_disk_counts(topic, loop):
    publish(topic, COUNT, BODY_BYTES)
    loop.cool()
    replay.read_range(topic, replay.LogPlace(position=0), replay.POSITION_MAX, 64 << 20, replay.no_pause)
    assert loop.fault_count() > OTHER_FAULTS_MAX


def test_reading_by_position_leaves_the_disk_to_a_thread(topic, loop):
    publish(topic, COUNT, BODY_BYTES)
    loop.cool()
    for place in (
        replay.LogPlace(earliest=True),
        replay.LogPlace(position=COUNT // 2),
        replay.LogPlace(time_ns=wall() - 1),
    ):
        replay.read_range(topic, place, replay.POSITION_MAX, 64 << 20, pause)
    replay.positions(topic, replay.LogPlace(time_ns=0), pause)
    assert loop.fault_count() <= OTHER_FAULTS_MAX


def test_a_page_of_queued_messages_leaves_the_disk_to_a_thread(topic, loop):
    channel = topic.channel("c")
    publish(topic, COUNT, BODY_BYTES)
    loop.cool()
    cursor, seen = peek.Cursor(), 0
    while True:
        page = peek.page_of_channel(topic, channel, peek.READY, cursor, 300, BODY_BYTES, pause)
        seen += len(page.rows)
        if page.after is None:
            break
        cursor = peek.parse_cursor(page.after, peek.READY)
    assert seen == COUNT
    assert loop.fault_count() <= OTHER_FAULTS_MAX


def test_pages_of_deferred_messages_and_searches_for_one_leave_the_disk_to_a_thread(topic, loop):
    channel = topic.channel("c")
    ids = publish(topic, COUNT, BODY_BYTES, due_ns=wall() + HOUR_NS)
    run_all_wakes(topic.broker)
    loop.cool()
    page = peek.page_of_channel(topic, channel, peek.DEFERRED, peek.Cursor(), 1000, BODY_BYTES, pause)
    assert [row.guid for row in page.rows] == ids[:1000]
    loop.cool(was_read=True)
    for guid in ids[::100]:
        [outcome] = message_lookup.change_message(topic, [channel], guid, message_lookup.cancel, pause)
        assert outcome.status == message_lookup.DONE
    assert loop.fault_count() <= OTHER_FAULTS_MAX


def deliver_all(topic, consumer, jobs):
    """Let the channels deliver, as the loop does. Returns: the ids."""
    [channel] = topic.channels_by_name.values()
    ids = []
    while True:
        topic.broker.scheduler.run_timers(mono() + 1)
        run_all_wakes(topic.broker)
        while (message := channel.take_message(consumer)) is not None:
            ids.append(message[0])
        if not channel.reads_in:
            return ids
        jobs.run()


def test_all_of_a_large_message_is_read_before_it_is_rescheduled(tmp_path):
    topic = broker_on(tmp_path, files := AbsentFiles()).topic("t")
    channel = topic.channel("c")
    guid = topic.publish_body(os.urandom(1 << 20), wall())
    change = message_lookup.reschedule_to(topic, wall() + HOUR_NS)
    [outcome] = message_lookup.change_message(topic, [channel], guid, change, pause)
    assert outcome.status == message_lookup.DONE
    assert max(end - start for _, start, end in files.ranges) > 1 << 20


def test_only_the_message_is_read_to_reschedule_one_of_an_earlier_run(tmp_path, loop, jobs):
    broker = broker_on(tmp_path, max_bytes_per_file=16 << 20)
    broker.topic("t").channel("c")
    ids = publish(broker.topic("t"), COUNT, BODY_BYTES)
    broker.close()
    topic = broker_on(tmp_path, max_bytes_per_file=16 << 20).topic("t")
    topic.broker.read_and_wait = jobs.run_and_wait
    # The index of its segment is there.
    replay.read_range(topic, replay.LogPlace(position=COUNT * 2 // 3), replay.POSITION_MAX, 1, pause)
    loop.cool(was_read=True)
    reschedule_all(topic, ids[COUNT * 3 // 5 :][:1], wall() + HOUR_NS)
    assert loop.read_bytes() < 512 << 10
    topic.broker.close()


def test_reading_the_trace_leaves_the_disk_to_a_thread(tmp_path, loop, jobs):
    options = options_for(tmp_path, trace_topic=("*",), trace_max_bytes=16 << 20, max_bytes_per_file=1 << 20)
    broker = Broker(options, in_background=jobs.run_now)
    broker.load()
    broker.read_and_wait = jobs.run_and_wait
    for _ in range(TRACED_COUNT):
        broker.topic("t").publish_body(b"x", 1)
    # The open block is sealed, which writes.
    broker.tracing.read(replay.POSITION_MAX, 1, pause)
    loop.cool()
    position, page_count = 0, 0
    while (page := broker.tracing.read(position, 1 << 20, pause)).data:
        position, page_count = page.next, page_count + 1
    assert page_count > 2
    assert loop.fault_count() <= OTHER_FAULTS_MAX
    broker.close()


def test_due_and_returned_messages_wait_for_a_thread_that_reads_them(topic, loop, jobs):
    consumer = consumer_on(topic.channel("c"))
    due_ns = wall() + SECOND_NS
    ids = publish(topic, COUNT, BODY_BYTES, due_ns=due_ns)
    run_all_wakes(topic.broker)
    time.sleep(max(0, due_ns - wall()) / SECOND_NS)
    loop.cool()
    assert sorted(deliver_all(topic, consumer, jobs)) == ids
    for guid in ids:
        topic.channel("c").requeue_message(consumer, guid, 0)
    assert loop.fault_count() <= OTHER_FAULTS_MAX
    loop.cool(was_read=True)
    assert sorted(deliver_all(topic, consumer, jobs)) == ids
    assert loop.fault_count() <= OTHER_FAULTS_MAX


def test_deferring_and_a_seek_over_deferred_messages_leave_the_disk_to_a_thread(topic, loop, jobs):
    publish(topic, COUNT, BODY_BYTES, due_ns=wall() + HOUR_NS)
    loop.cool()
    channel = topic.channel("c")
    deliver_all(topic, consumer_on(channel), jobs)
    assert channel.deferred_count == COUNT
    loop.cool(was_read=True)
    replay.move(topic, channel, replay.LogPlace(earliest=True), pause)
    deliver_all(topic, consumer_on(channel), jobs)
    assert channel.deferred_count == COUNT
    assert loop.fault_count() <= OTHER_FAULTS_MAX


@pytest.fixture
def unreadable(tmp_path):
    """Return a topic whose pages are never in memory, and cannot be read by a thread either."""
    files = AbsentFiles()
    files.fails = True
    broker = broker_on(tmp_path, files, max_bytes_per_file=1 << 20, retention_bytes=1 << 30)
    yield broker.topic("t")
    broker.close()


def reschedule_all(topic, ids, due_ns):
    change = message_lookup.reschedule_to(topic, due_ns)
    for guid in ids:
        [outcome] = message_lookup.change_message(topic, [topic.channel("c")], guid, change, pause)
        assert outcome.status == message_lookup.DONE


def test_pages_that_a_thread_cannot_read_hold_nothing_back(unreadable):
    channel = unreadable.channel("c")
    ids = publish(unreadable, 1000, BODY_BYTES)
    found = replay.read_range(unreadable, replay.LogPlace(time_ns=0), replay.POSITION_MAX, 64 << 20, pause)
    assert found.records == 1000
    page = peek.page_of_channel(unreadable, channel, peek.READY, peek.Cursor(), 1000, 0, pause)
    assert [row.guid for row in page.rows] == ids
    reschedule_all(unreadable, ids, wall() + HOUR_NS)
    page = peek.page_of_channel(unreadable, channel, peek.DEFERRED, peek.Cursor(), 1000, 0, pause)
    assert sorted(row.guid for row in page.rows) == ids
    reschedule_all(unreadable, ids, wall())
    assert sorted(deliver_all(unreadable, consumer_on(channel), Jobs())) == ids
    assert replay.move(unreadable, channel, replay.LogPlace(earliest=True), pause)["depth"] == 1000


def test_a_message_is_not_changed_after_the_stop_that_comes_while_it_is_searched(tmp_path):
    class Stopping(AbsentFiles):
        has_stopped = False

        def read_in(self, mapping, start_bytes, length_bytes):
            super().read_in(mapping, start_bytes, length_bytes)
            if not self.has_stopped:
                self.has_stopped = True
                broker.close()

    broker = broker_on(tmp_path, files := Stopping())
    topic = broker.topic("t")
    channel = topic.channel("c")
    files.is_cold = False
    ids = publish(topic, 10, due_ns=wall() + HOUR_NS)
    run_all_wakes(topic.broker)
    files.is_cold = True
    with pytest.raises(replay.TopicGone):
        message_lookup.change_message(topic, [channel], ids[3], message_lookup.cancel, pause)
    assert topic.exiting
    assert broker_on(tmp_path).topic("t").channel("c").deferred_count == 10


class Forgotten(AbsentFiles):
    """Pages leave memory before the reader comes to them. read_bytes: those read in."""

    read_bytes = 0

    def is_present(self, mapping, start_bytes, length_bytes):
        present = super().is_present(mapping, start_bytes, length_bytes)
        self.ranges.clear()
        return present

    def read_in(self, mapping, start_bytes, length_bytes):
        super().read_in(mapping, start_bytes, length_bytes)
        self.read_bytes += length_bytes


def test_reading_behind_damage_reads_a_segment_once(tmp_path):
    broker = broker_on(tmp_path, max_bytes_per_file=16 << 20)
    log = broker.topic("t").log
    publish(broker.topic("t"), COUNT, BODY_BYTES)
    segment = log.first
    while segment.next is not log.active:
        segment = segment.next
    path, tail = segment.mapping.path, segment.tail
    assert tail > 2 << 20
    place = replay.LogPlace(position=broker.topic("t").reader.position_of(log.active.first_ordinal - 5))
    broker.close()
    with open(path, "r+b") as file:
        file.seek(tail * 3 // 4)
        file.write(bytes(2 * BODY_BYTES))
    topic = broker_on(tmp_path, files := Forgotten(), max_bytes_per_file=16 << 20).topic("t")
    replay.read_range(topic, place, replay.POSITION_MAX, 1, pause)
    time.sleep(KNOWN_S)
    files.read_bytes = 0
    replay.read_range(topic, place, replay.POSITION_MAX, 1, pause)
    assert files.read_bytes < 1 << 20


def test_a_channel_may_be_emptied_while_a_page_of_it_is_read(tmp_path):
    class Emptying(AbsentFiles):
        def read_in(self, mapping, start_bytes, length_bytes):
            super().read_in(mapping, start_bytes, length_bytes)
            channel.empty()

    topic = broker_on(tmp_path, files := Emptying()).topic("t")
    channel = topic.channel("c")
    files.is_cold = False
    publish(topic, 100, due_ns=wall() + HOUR_NS)
    run_all_wakes(topic.broker)
    assert channel.deferred_count == 100
    files.is_cold = True
    page = peek.page_of_channel(topic, channel, peek.DEFERRED, peek.Cursor(), 100, 0, pause)
    assert page.rows == []
