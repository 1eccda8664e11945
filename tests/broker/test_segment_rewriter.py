"""Tests of pyqd.broker.segment_rewriter: a few unfinished messages do not keep the space of the others."""

import logging
import os
from pathlib import Path

import pytest

from pyqd.broker import message_lookup, peek, replay, segment_rewriter
from pyqd.broker.segment_rewriter import rewrite_old_segments
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import StorageError
from tests.support.invariants import check_topic
from tests.support.rewritten import chain, rewritten
from tests.support.storage import (
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    FullFiles,
    Jobs,
    broker_on,
    consumer_on,
    number_in,
    publish,
    take_all,
)

BODY_BYTES = 8 << 10
PER_SEGMENT = 7
COUNT = 8 * PER_SEGMENT


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_AGE_NS", 0)
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_LOG_BYTES_MIN", 0)


class Bench:
    """A topic whose eight segments a channel has been given, with a few messages not finished."""

    def __init__(self, path, *unfinished, name="c", files=None, jobs=None, count=COUNT, restarts=False):
        self.broker = broker_on(path, files)
        if jobs is not None:
            self.broker.in_background = jobs.submit
        self.topic = self.broker.topic("t")
        self.channel = self.topic.channel(name)
        self.consumer = consumer_on(self.channel)
        publish(self.topic, count, BODY_BYTES)
        self.topic.scheduler.run_wakes()
        if restarts:
            self.broker.close()
            self.broker = broker_on(path, files)
            self.topic = self.broker.topic("t")
            self.channel = self.topic.channel(name)
            self.consumer = consumer_on(self.channel)
        self.messages = take_all(self.channel, self.consumer)
        self.finish(*(number for number in range(count) if number not in unfinished))

    def finish(self, *numbers):
        for number in numbers:
            assert self.channel.finish_message(self.consumer, self.messages[number][0]) == 0
        self.topic.scheduler.run_wakes()

    def rewrite(self):
        """Rewrite what can be, after a sync of the names."""
        self.topic.note_given(self.topic.end)
        rewrite_old_segments(self.topic)

    def segments(self):
        return chain(self.topic.log)

    def check(self):
        check_topic(self.topic)
        paths = [segment.mapping.path for segment in self.segments()]
        directory = self.topic.log.directory
        if directory is not None:
            spares = [spare.mapping.path for spare in self.topic.log.pool.spares]
            found = sorted(f"{directory}/{name}" for name in os.listdir(directory))
            assert found == sorted(paths + spares)


def kept(log):
    return [record[0] for record in log.records()]


@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
def test_unfinished_messages_stay_in_place_and_the_others_leave_gaps(tmp_path, name):
    bench = Bench(tmp_path, 1, 3, 9, name=name)
    topic, channel, consumer = bench.topic, bench.channel, bench.consumer
    in_flight, waiting = bench.messages[1], bench.messages[3]
    assert channel.requeue_message(consumer, waiting[0], 0) == 0
    used = topic.log.size_bytes()
    bench.rewrite()
    bench.check()
    # The first two have three messages in less than 64 KiB, the other ones none.
    assert (topic.log.first.rewrites > 0, topic.log.size_bytes() < used // 2) == (True, True)
    assert [number for number in kept(topic.log) if number < 49] == [1, 3, 9]
    assert (channel.depth, channel.in_flight_count) == (1, 2)
    again = channel.take_message(consumer)
    assert again == (waiting[0], 2, *waiting[2:])
    assert channel.touch_message(consumer, in_flight[0]) == 0
    bench.finish(1, 3, 9)
    assert (channel.depth, channel.in_flight_count) == (0, 0)
    assert channel.take_message(consumer) is None
    assert len(bench.segments()) == 1
    bench.check()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_requeued_with_a_delay_is_found_in_a_rewritten_segment(tmp_path, restarts):
    bench = Bench(tmp_path, 1, 3, 9, 30)
    for number in (3, 9, 30):
        bench.channel.requeue_message(bench.consumer, bench.messages[number][0], HOUR_NS + number)
    bench.rewrite()
    assert bench.topic.log.first.rewrites > 0
    bench.check()
    channel, consumer, topic = bench.channel, bench.consumer, bench.topic
    if restarts:
        topic = broker_on(tmp_path).topic("t")
        channel = topic.channel("c")
        consumer = consumer_on(channel)
        assert channel.take_message(consumer)[0] == bench.messages[1][0]
    page = peek.page_of_channel(topic, channel, peek.DEFERRED, peek.Cursor(), 10, 100, lambda: None)
    assert [number_in(row.body) for row in page.rows] == [3, 9, 30]
    change = message_lookup.reschedule_to(topic, wall())
    for number in (9, 3, 30):
        message_lookup.change_message(topic, [channel], bench.messages[number][0], change, lambda: None)
    topic.broker.scheduler.run_timers(mono() + SECOND_NS)
    check_topic(topic)
    found = {number_in(message[3]): message[1] for message in take_all(channel, consumer)}
    assert found == {3: 2, 9: 2, 30: 2}
    for number in (1, 3, 9, 30):
        assert channel.finish_message(consumer, bench.messages[number][0]) == 0
    check_topic(topic)
    assert channel.notes.count == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_that_is_far_from_due_does_not_hold_a_long_log(tmp_path, restarts):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    (deferred,) = publish(topic, 1, BODY_BYTES, due_ns=wall() + HOUR_NS)
    publish(topic, COUNT, BODY_BYTES, 1)
    for guid, *_ in take_all(channel, consumer):
        assert channel.finish_message(consumer, guid) == 0
    topic.note_given(topic.end)
    rewrite_old_segments(topic)
    rewrite_old_segments(topic)
    assert topic.log.size_bytes() < 3 * SEGMENT_BYTES_MIN
    check_topic(topic)
    if restarts:
        topic = broker_on(tmp_path).topic("t")
        channel = topic.channel("c")
        consumer = consumer_on(channel)
    assert (channel.depth, channel.deferred_count) == (0, 1)
    change = message_lookup.reschedule_to(topic, wall())
    message_lookup.change_message(topic, [channel], deferred, change, lambda: None)
    topic.broker.scheduler.run_timers(mono() + 1)
    assert [(message[0], message[1], number_in(message[3])) for message in take_all(channel, consumer)] == [
        (deferred, 1, 0)
    ]
    check_topic(topic)


def test_the_file_is_the_one_that_the_manual_describes(tmp_path):
    bench = Bench(tmp_path, 1)
    first, *_ = bench.segments()
    expected = rewritten([Path(first.mapping.path).read_bytes()], {1})
    bench.rewrite()
    assert Path(bench.topic.log.first.mapping.path).read_bytes() == expected
    bench.check()


def test_a_message_that_stays_keeps_one_small_file(tmp_path):
    bench = Bench(tmp_path, 0)
    bench.rewrite()
    bench.rewrite()
    first, *others = bench.segments()
    assert (first.file_bytes, first.count, len(others)) == (12 << 10, COUNT - PER_SEGMENT, 1)
    bench.check()


def test_a_rewritten_message_outlives_a_kill(tmp_path):
    bench = Bench(tmp_path, 2)
    bench.rewrite()
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    assert (channel.depth, channel.in_flight_count) == (1, 0)
    guid, attempts, timestamp, body = channel.take_message(consumer_on(channel))
    assert (guid, attempts, timestamp, body) == (bench.messages[2][0], 2, *bench.messages[2][2:])
    check_topic(topic)


def test_messages_that_time_out_and_dead_letters_point_to_the_new_file(tmp_path):
    bench = Bench(tmp_path, 0, 1, 2)
    channel = bench.channel
    channel.requeue_message(bench.consumer, bench.messages[1][0], 0)
    channel.limit_attempts(1)
    assert channel.dead_letters_pending == 1
    bench.rewrite()
    bench.check()
    bench.topic.scheduler.run_timers(mono() + 2 * MINUTE_NS)
    assert channel.dead_letters_pending == 3
    channel.limit_attempts(0)
    taken = take_all(channel, bench.consumer)
    assert [number_in(message[3]) for message in taken] == [1, 0, 2]
    bench.check()


def test_a_queue_is_not_rewritten(tmp_path):
    bench = Bench(tmp_path)
    other = bench.topic.channel("late")
    publish(bench.topic, COUNT, BODY_BYTES)
    consumer = consumer_on(other)
    for _ in range(2):
        other.finish_message(consumer, other.take_message(consumer)[0])
    bench.messages = take_all(bench.channel, bench.consumer)
    bench.finish(*range(1, COUNT))
    bench.rewrite()
    assert [segment.rewrites for segment in bench.segments()] == [0] * len(bench.segments())


def test_what_any_channel_has_not_finished_stays(tmp_path):
    bench = Bench(tmp_path)
    other = bench.topic.channel("other")
    consumer = consumer_on(other)
    publish(bench.topic, COUNT, BODY_BYTES)
    bench.messages = take_all(bench.channel, bench.consumer)
    bench.finish(*range(1, COUNT))
    for number, message in enumerate(take_all(other, consumer)):
        if number != 15:
            other.finish_message(consumer, message[0])
    bench.rewrite()
    bench.check()
    start = bench.topic.log.first.first_ordinal
    assert {number for number in kept(bench.topic.log) if number < bench.segments()[-1].first_ordinal} == {
        COUNT,
        COUNT + 15,
    }
    assert start <= COUNT


def test_a_segment_that_is_mostly_unfinished_stays_as_it_is(tmp_path):
    bench = Bench(tmp_path, 0, 1, 2, 3, *range(PER_SEGMENT, 2 * PER_SEGMENT))
    bench.rewrite()
    assert [segment.rewrites for segment in bench.segments()[:3]] == [0, 0, 1]
    bench.finish(0)
    bench.rewrite()
    assert [segment.rewrites > 0 for segment in bench.segments()[:3]] == [True, False, True]
    bench.check()


def test_messages_of_a_channel_whose_name_is_not_durable_stay(tmp_path):
    bench = Bench(tmp_path, 0)
    rewrite_old_segments(bench.topic)
    assert not any(segment.rewrites for segment in bench.segments())


def test_retention_keeps_finished_messages(tmp_path):
    bench = Bench(tmp_path, 0)
    bench.topic.quota.set_own(retention_time_ns=HOUR_NS)
    bench.rewrite()
    assert not any(segment.rewrites for segment in bench.segments())


def test_readers_by_position_see_no_gap(tmp_path):
    bench = Bench(tmp_path, 0, 20)
    bench.rewrite()
    topic = bench.topic
    earliest = topic.log.earliest
    assert earliest == 49
    shown = replay.positions(topic, None, replay.no_pause)
    assert (shown["earliest"], shown["records"]) == (49, 7)
    assert replay.find(topic, replay.LogPlace(time_ns=1), replay.no_pause) == 49
    with pytest.raises(replay.PositionGone):
        replay.find(topic, replay.LogPlace(position=48), replay.no_pause)
    replay.move(topic, bench.channel, replay.LogPlace(earliest=True), replay.no_pause)
    assert bench.channel.depth == 7
    bench.topic.scheduler.run_wakes()
    assert topic.log.first.first_ordinal == 49
    bench.check()


# Jobs in threads.


def test_a_seek_meanwhile_keeps_the_old_file(tmp_path):
    jobs = Jobs()
    bench = Bench(tmp_path, 0, jobs=jobs)
    bench.rewrite()
    assert len(jobs.waiting) == 1
    replay.move(bench.topic, bench.channel, replay.LogPlace(position=3), replay.no_pause)
    take_all(bench.channel, bench.consumer)
    jobs.run()
    assert not any(segment.rewrites for segment in bench.segments())
    assert bench.channel.in_flight_count == COUNT - 3
    bench.check()


def test_what_is_finished_meanwhile_stays_until_the_next_time(tmp_path):
    jobs = Jobs()
    bench = Bench(tmp_path, 0, 1, jobs=jobs)
    bench.rewrite()
    bench.finish(1)
    jobs.run()
    assert kept(bench.topic.log)[:2] == [0, 1]
    check_topic(bench.topic)


def test_a_segment_that_is_finished_and_removed_meanwhile_does_not_come_back(tmp_path):
    jobs = Jobs()
    bench = Bench(tmp_path, 0, jobs=jobs)
    bench.rewrite()
    bench.finish(0)
    jobs.run()
    assert len(bench.segments()) == 1
    bench.check()


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_a_deletion_meanwhile(tmp_path, what):
    jobs = Jobs()
    bench = Bench(tmp_path, 0, jobs=jobs)
    bench.rewrite()
    bench.channel.close_consumers()
    if what == "topic":
        bench.broker.delete_topic("t")
    else:
        bench.topic.delete_channel("c")
        bench.topic.scheduler.run_wakes()
    jobs.run()
    assert list(tmp_path.glob("**/*.making")) == []
    if what == "channel":
        bench.check()


def test_the_jobs_follow_one_another(tmp_path):
    jobs = Jobs()
    bench = Bench(tmp_path, 0, jobs=jobs)
    bench.rewrite()
    bench.rewrite()
    assert len(jobs.waiting) == 1
    jobs.run()
    assert all(segment.rewrites for segment in bench.segments()[:-1])
    bench.check()


# Failures.


class RefusingFiles(FullFiles):
    """Files whose syncs of a log's directory fail, if that is asked for."""

    refuses = False

    def sync_directory(self, path):
        if self.refuses and path.endswith("/log"):
            raise StorageError("sync", path, 5, "Input/output error")
        super().sync_directory(path)


def test_the_old_file_stays_until_the_name_of_the_new_one_is_durable(tmp_path):
    files = RefusingFiles()
    bench = Bench(tmp_path, 0, files=files)
    files.refuses = True
    former = bench.topic.log.first.mapping.path
    for _ in range(2):
        bench.rewrite()
        assert os.path.exists(former)
    assert [segment.rewrites for segment in bench.segments()] == [1, *[0] * 7]
    files.refuses = False
    bench.rewrite()
    assert not os.path.exists(former)
    bench.check()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_is_left_is_not_taken_for_the_end_of_the_log(tmp_path, restarts):
    files = RefusingFiles()
    bench = Bench(tmp_path, 0, COUNT - 1, files=files)
    files.refuses = True
    bench.rewrite()
    topic = bench.topic
    # Each start is one after a kill.
    if restarts:
        topic = broker_on(tmp_path, files).topic("t")
    topic.channel("c").empty()
    topic.trim_finished()
    assert len(topic.log.replaced_files) == 1
    topic = broker_on(tmp_path, files).topic("t")
    assert (topic.log.damage.found_count, topic.log.end) == (0, COUNT)
    files.refuses = False
    rewrite_old_segments(topic)
    assert (topic.log.replaced_files, len(chain(topic.log))) == ([], 1)
    check_topic(topic)


def test_a_full_disk_is_logged_once_and_tried_again(tmp_path, caplog):
    files = FullFiles()
    bench = Bench(tmp_path, 0, files=files)
    files.room = 0
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bench.rewrite()
    assert caplog.text.count("cannot rewrite segment 1 without its finished messages") == 1
    assert not any(segment.rewrites for segment in bench.segments())
    files.room = None
    bench.rewrite()
    assert bench.topic.log.first.rewrites > 0
    bench.check()


@pytest.mark.parametrize("is_later_run", [True, False])
def test_a_damaged_record_is_reported_and_none_counts_as_finished_for_it(tmp_path, caplog, is_later_run):
    bench = Bench(tmp_path, 0, restarts=is_later_run)
    with open(bench.topic.log.first.mapping.path, "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + 3 * (RECORD_HEADER_BYTES + BODY_BYTES) + 500)
        file.write(b"damage")
    for _ in range(2):
        bench.rewrite()
    assert caplog.text.count("cannot rewrite segment 1") == 1
    # A segment that was written in this run is left alone.
    assert bench.topic.log.damage.lost_count == is_later_run
    assert bool(bench.topic.log.first.rewrites) == is_later_run
    assert kept(bench.topic.log)[0] == 0
    bench.finish(0)
    assert len(bench.segments()) == 1


# Ledgers that are older than the rewriting.


def test_a_lost_ledger_gets_its_finished_messages_back_from_the_gaps(tmp_path):
    bench = Bench(tmp_path, 1, 15)
    bench.rewrite()
    (tmp_path / "topics" / "t.topic" / "c.channel" / "ledger").unlink()
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    last = topic.log.active.first_ordinal
    assert channel.depth == 2 + COUNT - last
    check_topic(topic)
    taken = take_all(channel, consumer_on(channel))
    assert [number_in(message[3]) for message in taken] == [1, 15, *range(last, COUNT)]
    check_topic(topic)


@pytest.mark.parametrize("cursor", [0, 2, 20, 48])
def test_the_cursor_of_an_older_ledger_passes_over_gaps(tmp_path, cursor):
    bench = Bench(tmp_path, count=0)
    publish(bench.topic, COUNT, BODY_BYTES)
    bench.messages = [bench.channel.take_message(bench.consumer) for _ in range(cursor)]
    bench.finish(*range(cursor))
    ledger = Path(bench.channel.ledger.path)
    older = ledger.read_bytes()
    bench.messages += take_all(bench.channel, bench.consumer)
    bench.finish(*(number for number in range(cursor, COUNT) if number not in (1, 15)))
    bench.rewrite()
    last = bench.topic.log.active.first_ordinal
    ledger.write_bytes(older)
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    taken = take_all(channel, consumer_on(channel))
    wanted = [number for number in (1, 15) if number >= cursor] + list(range(last, COUNT))
    assert [number_in(message[3]) for message in taken] == wanted
    check_topic(topic)
    assert channel.depth == 0


def test_deferred_messages_are_left_where_they_are(tmp_path):
    bench = Bench(tmp_path, 5)
    channel = bench.channel
    assert channel.requeue_message(bench.consumer, bench.messages[5][0], 30 * SECOND_NS) == 0
    publish(bench.topic, 1, BODY_BYTES)
    bench.rewrite()
    bench.topic.scheduler.run_timers(mono() + 60 * SECOND_NS)
    check_topic(bench.topic)
    assert channel.deferred_count in (0, 1)
