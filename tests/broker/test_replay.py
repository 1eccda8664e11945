"""Tests of pyqd.hot.broker.replay and pyqd.broker.replay: channels are moved, ranges are read."""

import errno
import json

import pytest

from pyqd.broker import message_lookup, replay
from pyqd.broker.replay import LogPlace, PositionBeyondEnd, PositionGone, no_pause
from pyqd.fallback import records
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StorageError
from tests.support.invariants import check_channel, check_topic
from tests.support.storage import CountedFiles, Jobs, broker_on, consumer_on, number_in, publish

DONE, NOT_IN_FLIGHT = range(2)
RING_BITS_MIN = 8 * 4096
EARLIEST, LATEST = LogPlace(earliest=True), LogPlace()


@pytest.fixture
def topic(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    return topic


def publish_next(topic, count, size_bytes=16, due_ns=0):
    publish(topic, count, size_bytes, topic.log.end, due_ns)


def take_all(channel, consumer, finish=True):
    numbers = []
    while (message := channel.take_message(consumer)) is not None:
        guid, attempts, _, body = message
        numbers.append((number_in(body), attempts))
        if finish:
            assert channel.finish_message(consumer, guid) == DONE
    return numbers


def once(numbers):
    return [(number, 1) for number in numbers]


def move(topic, channel, place):
    foreseen = replay.preview(topic, channel, place, no_pause)
    done = replay.move(topic, channel, place, no_pause)
    assert done == foreseen
    assert channel.depth + channel.deferred_count == done["depth"]
    check_channel(channel)
    check_topic(topic)
    return done


def hold(topic):
    """Make a channel that holds the whole log."""
    return topic.channel("holder")


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("size_bytes", [16, 5000])
@pytest.mark.parametrize("target", [0, 1, 70, 199, 200])
def test_a_channel_that_is_moved_back_gets_everything_since_once_more(topic, target, size_bytes, finish):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 200, size_bytes)
    assert take_all(channel, consumer, finish) == once(range(200))
    done = move(topic, channel, LogPlace(position=target))
    assert (done["from"], done["to"]) == (200, target)
    assert (done["redeliver"], done["finished"]) == (200 - target, 200 - target if finish else 0)
    assert (done["skip"], done["in_flight"]) == (0, 0) if finish else (target, 200)
    assert (consumer.in_flight, channel.in_flight_count) == (0, 0)
    publish_next(topic, 10, size_bytes)
    assert take_all(channel, consumer) == once(range(target, 210))
    assert channel.depth == 0


def test_a_channel_moved_forward_skips_the_messages_between(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 300, 1000)
    guid = channel.take_message(consumer)[0]
    done = move(topic, channel, LogPlace(position=250))
    assert (done["redeliver"], done["skip"], done["depth"]) == (0, 250, 50)
    assert channel.finish_message(consumer, guid) == NOT_IN_FLIGHT
    assert take_all(channel, consumer) == once(range(250, 300))
    topic.broker.scheduler.run_wakes()
    assert topic.log.first.first_ordinal > 0


def test_latest_leaves_nothing_and_earliest_gives_all_that_is_kept(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 50)
    move(topic, channel, LATEST)
    assert take_all(channel, consumer) == []
    publish_next(topic, 5)
    move(topic, channel, EARLIEST)
    assert take_all(channel, consumer) == once(range(55))


def test_a_seek_to_a_time_delivers_exactly_the_messages_published_since(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 40)
    time_ns = wall() + 1
    while wall() <= time_ns:
        pass
    publish_next(topic, 20)
    assert take_all(channel, consumer) == once(range(60))
    move(topic, channel, LogPlace(time_ns=time_ns))
    assert take_all(channel, consumer) == once(range(40, 60))


def test_a_dry_run_changes_nothing(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 20)
    for _ in range(10):
        guid = channel.take_message(consumer)[0]
    channel.finish_message(consumer, guid)
    shown = replay.preview(topic, channel, LogPlace(position=5), no_pause)
    assert shown == {
        "topic": "t", "channel": "c", "from": 10, "to": 5,
        "redeliver": 5, "finished": 1, "skip": 5, "in_flight": 9, "deferred": 0, "depth": 15,
    }  # fmt: skip
    assert (channel.in_flight_count, channel.depth, consumer.in_flight) == (9, 10, 9)


@pytest.mark.slow
def test_finished_in_any_order_and_far_ahead_is_forgotten_by_a_seek(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 3 * RING_BITS_MIN)
    first = channel.take_message(consumer)[0]
    assert len(take_all(channel, consumer)) == 3 * RING_BITS_MIN - 1
    for target in (5, 2 * RING_BITS_MIN, 0):
        done = move(topic, channel, LogPlace(position=target))
        assert channel.depth == 3 * RING_BITS_MIN - target
        assert done["depth"] == channel.depth
    assert take_all(channel, consumer) == once(range(3 * RING_BITS_MIN))
    assert channel.finish_message(consumer, first) == NOT_IN_FLIGHT


def test_deferred_messages_since_the_target_are_deferred_again_and_those_before_are_gone(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 10)
    publish_next(topic, 5, due_ns=wall() + HOUR_NS)
    publish_next(topic, 10)
    publish_next(topic, 5, due_ns=wall() + HOUR_NS)
    publish_next(topic, 10)
    assert len(take_all(channel, consumer)) == 30
    assert channel.deferred_count == 10
    done = move(topic, channel, LogPlace(position=20))
    assert (channel.deferred_count, channel.depth, done["deferred"]) == (5, 15, 10)
    assert take_all(channel, consumer) == once([*range(20, 25), *range(30, 40)])
    for _ in range(2):
        move(topic, channel, EARLIEST)
        assert (channel.deferred_count, channel.depth) == (10, 30)
    publish_next(topic, 1, due_ns=wall() + HOUR_NS)
    assert len(take_all(channel, consumer)) == 30
    assert channel.deferred_count == 11


def test_deferred_messages_of_an_earlier_run_are_deferred_again_once(topic, tmp_path):
    hold(topic)
    publish_next(topic, 3)
    publish_next(topic, 3, due_ns=wall() + HOUR_NS)
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    assert (channel.deferred_count, channel.depth) == (3, 3)
    for _ in range(2):
        move(topic, channel, EARLIEST)
        assert (channel.deferred_count, channel.depth) == (3, 3)
        assert take_all(channel, consumer_on(channel)) == once(range(3))
    again = broker_on(tmp_path).topic("t").channel("c")
    assert (again.deferred_count, again.depth) == (3, 0)


def test_a_deferred_message_that_was_due_meanwhile_comes_again(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 2)
    publish_next(topic, 2, due_ns=1)
    publish_next(topic, 2)
    topic.broker.scheduler.run_timers(mono() + HOUR_NS)
    assert sorted(take_all(channel, consumer)) == once(range(6))
    move(topic, channel, LogPlace(position=1))
    topic.broker.scheduler.run_timers(mono() + HOUR_NS)
    assert sorted(take_all(channel, consumer)) == once(range(1, 6))


def test_after_a_seek_requeued_messages_are_delivered_from_the_log_again(topic):
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish_next(topic, 3)
    for _ in range(3):
        assert channel.requeue_message(consumer, channel.take_message(consumer)[0], HOUR_NS) == DONE
    move(topic, channel, LogPlace(position=1))
    assert (channel.deferred_count, channel.depth) == (0, 2)
    assert take_all(channel, consumer) == once([1, 2])


def test_a_seek_outlives_the_process(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    hold(topic)
    channel = topic.channel("c")
    publish_next(topic, 100)
    publish_next(topic, 3, due_ns=wall() + HOUR_NS)
    take_all(channel, consumer_on(channel))
    move(topic, channel, LogPlace(position=60))
    again = broker_on(tmp_path).topic("t")
    assert (again.channel("c").depth, again.channel("c").deferred_count) == (40, 3)
    assert take_all(again.channel("c"), consumer_on(again.channel("c"))) == once(range(60, 100))


def test_a_paused_topic_holds_messages_of_no_channel(topic):
    channel = topic.channel("c")
    publish_next(topic, 10)
    topic.pause(True)
    publish_next(topic, 10)
    assert replay.move(topic, channel, LATEST, no_pause)["to"] == 10
    assert channel.depth == 0
    topic.pause(False)
    assert take_all(channel, consumer_on(channel)) == once(range(10, 20))


def test_a_channel_moved_over_a_missing_segment_continues_after_it(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    publish_next(topic, 300, 1000)
    missing = topic.log.first.next
    gone = range(missing.first_ordinal, missing.next.first_ordinal)
    path = missing.mapping.path
    del topic, channel, missing
    (tmp_path / path).unlink()
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    kept = [number for number in range(300) if number not in gone]
    assert [number for number, _ in take_all(channel, consumer, finish=False)] == kept
    for target in (gone[0] - 1, gone[3], 0):
        done = move(topic, channel, LogPlace(position=target))
        expected = [number for number in kept if number >= target]
        assert done["redeliver"] == done["depth"] == len(expected)
        assert take_all(channel, consumer, finish=False) == once(expected)


def test_places_that_are_not_there_are_refused_with_the_nearest(topic):
    publish_next(topic, 400, 1000)
    channel = topic.channel("c")
    take_all(channel, consumer_on(channel))
    topic.broker.scheduler.run_wakes()
    earliest = topic.log.first.first_ordinal
    assert earliest > 0
    for place in (LogPlace(position=0), LogPlace(position=earliest - 1)):
        with pytest.raises(PositionGone) as gone:
            replay.move(topic, channel, place, no_pause)
        assert gone.value.earliest == earliest
        with pytest.raises(PositionGone):
            replay.read_range(topic, place, replay.POSITION_MAX, 1 << 20, no_pause)
    for position in (401, 1 << 48):
        with pytest.raises(PositionBeyondEnd) as beyond:
            replay.read_range(topic, LogPlace(position=position), replay.POSITION_MAX, 1 << 20, no_pause)
        assert beyond.value.next == 400
    assert replay.find(topic, LogPlace(time_ns=0), no_pause) == earliest


def test_a_range_is_read_in_turns_while_the_log_grows_and_is_trimmed(topic):
    publish_next(topic, 3000, 1000)
    log = topic.log

    def pause():
        publish_next(topic, 1000, 1000)
        log.trim_below(log.end - 100)

    found = replay.read_range(topic, EARLIEST, replay.POSITION_MAX, 4 << 20, pause)
    read = [record.position for record in records.decode(found.data)]
    assert read == list(range(found.first, found.first + found.records))
    assert (found.first, found.next) == (0, found.records)
    assert found.next < log.first.first_ordinal


def test_a_range_ends_at_its_bytes_its_end_and_the_log_s(topic):
    publish_next(topic, 100, 16)
    for stop, bytes_max, count in [(50, 1 << 20, 50), (500, 1 << 20, 100), (100, 640, 10), (100, 700, 10), (90, 1, 1)]:
        found = replay.read_range(topic, LogPlace(position=0), stop, bytes_max, no_pause)
        assert (found.first, found.next, found.end, found.records) == (0, count, 100, count)
    for start, stop in [(100, 200), (50, 50), (50, 20)]:
        found = replay.read_range(topic, LogPlace(position=start), stop, 1 << 20, no_pause)
        assert found == replay.RecordRange(start, start, 100, 0, b"")


def test_a_range_read_in_one_step_does_not_pause(topic):
    publish_next(topic, 3000, 1000)

    def pause():
        raise AssertionError("there is nothing left to read")

    first = 0
    while first < 3000:
        found = replay.read_range(topic, LogPlace(position=first), replay.POSITION_MAX, 1 << 20, pause)
        assert found.next > first
        first = found.next


def test_reading_holds_nothing_and_moves_no_channel(topic):
    channel = topic.channel("c")
    publish_next(topic, 500, 1000)
    for start in range(0, 500, 25):
        replay.read_range(topic, LogPlace(position=start), replay.POSITION_MAX, 10_000, no_pause)
    assert (channel.depth, channel.ledger.floor, channel.ledger.cursor) == (500, 0, 0)
    take_all(channel, consumer_on(channel))
    topic.broker.scheduler.run_wakes()
    assert topic.log.first.first_ordinal > 0


def test_a_channel_without_clients_holds_the_log_for_a_reader_until_it_is_moved(topic):
    channel = topic.channel("c")
    reader = topic.channel("reader")
    publish_next(topic, 500, 1000)
    take_all(channel, consumer_on(channel))
    at = 0
    while at < 500:
        found = replay.read_range(topic, LogPlace(position=at), replay.POSITION_MAX, 100_000, no_pause)
        at = found.next
        move(topic, reader, LogPlace(position=at))
        topic.broker.scheduler.run_wakes()
        shown = replay.positions(topic, None, no_pause)
        assert shown["channels"][1] == {"channel": "reader", "floor": at, "next": at}
        assert shown["earliest"] <= at
    assert topic.log.first is topic.log.active


def test_with_a_sync_for_every_message_only_synced_messages_are_listed(tmp_path):
    topic = broker_on(tmp_path, sync_every=1).topic("t")
    topic.channel("c")
    publish_next(topic, 10)
    topic.log.mark_synced(*topic.log.dirty_ranges())
    publish_next(topic, 5)
    found = replay.read_range(topic, EARLIEST, replay.POSITION_MAX, 1 << 20, no_pause)
    assert (found.records, found.next, found.end) == (10, 10, 10)
    assert replay.read_range(topic, LogPlace(position=12), 15, 1 << 20, no_pause).next == 12
    shown = replay.positions(topic, LogPlace(time_ns=wall()), no_pause)
    assert (shown["next"], shown["records"], shown["at"]) == (10, 10, 10)


def test_positions_show_the_readable_range(topic):
    assert replay.positions(topic, None, no_pause) == {
        "topic": "t", "node": topic.broker.node_name, "created": topic.created_ns, "format": 2, "earliest": 0,
        "next": 0, "earliest_timestamp": None, "newest_timestamp": None, "records": 0, "bytes": 0, "segments": [],
        "channels": [{"channel": "c", "floor": 0, "next": 0}],
    }  # fmt: skip
    assert abs(topic.created_ns - wall()) < HOUR_NS
    publish_next(topic, 400, 1000)
    shown = replay.positions(topic, LogPlace(time_ns=0), no_pause)
    stamps = [record[2] for record in topic.log.records()]
    assert (shown["earliest"], shown["next"], shown["records"], shown["at"]) == (0, 400, 400, 0)
    assert shown["bytes"] == 400 * 1048
    assert (shown["earliest_timestamp"], shown["newest_timestamp"]) == (stamps[0], stamps[-1])
    for segment in shown["segments"]:
        assert segment["first_timestamp"] == stamps[segment["first"]]
        assert abs(segment["created"] - segment["first_timestamp"]) < HOUR_NS


def test_the_node_keeps_its_name(tmp_path):
    name = broker_on(tmp_path).node_name
    assert len(name) == 32
    assert broker_on(tmp_path).node_name == name
    node = json.loads((tmp_path / "node.json").read_text())
    assert node.pop("node") == name
    (tmp_path / "node.json").write_text(json.dumps(node))
    assert broker_on(tmp_path).node_name not in ("", name)


def cancel(topic, channel, guid):
    (outcome,) = message_lookup.change_message(topic, [channel], guid, message_lookup.cancel, lambda: None)
    assert outcome.status == message_lookup.DONE


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
def test_a_cancelled_message_stays_cancelled_when_the_channel_is_moved_back(tmp_path, name, killed):
    if killed and name != "c":
        pytest.skip("an ephemeral channel does not outlive a kill")
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel(name)
    consumer = consumer_on(channel)
    bodies = [b"finished", b"returned", b"queued", b"deferred", b"requeued", b"last"]
    guids = {}
    for body in bodies:
        due_ns = wall() + HOUR_NS if body == b"deferred" else 0
        guids[body] = topic.publish_body(body, wall(), due_ns)
    taken = [channel.take_message(consumer) for _ in range(2)]
    assert channel.finish_message(consumer, taken[0][0]) == 0
    assert channel.requeue_message(consumer, taken[1][0], 0) == 0
    for body in (b"returned", b"queued", b"deferred"):
        cancel(topic, channel, guids[body])
    assert channel.depth == 2
    if killed:
        broker = broker_on(tmp_path)
        topic = broker.topic("t")
        channel = topic.channel(name)
    foreseen = replay.preview(topic, channel, LogPlace(earliest=True), lambda: None)
    done = replay.move(topic, channel, LogPlace(earliest=True), lambda: None)
    assert foreseen == done
    assert (done["redeliver"], done["finished"], done["depth"]) == (1, 1, 3)
    if killed:
        broker = broker_on(tmp_path)
        topic = broker.topic("t")
        channel = topic.channel(name)
    consumer = consumer_on(channel)
    found = [message[3] for message in iter(lambda: channel.take_message(consumer), None)]
    assert found == [b"finished", b"requeued", b"last"]
    assert channel.deferred_count == 0
    check_topic(topic)


@pytest.fixture
def cancelled_far_ahead(tmp_path, short_ring):
    """Return a channel whose ledger does not reach from the log's beginning to a cancelled message; and its jobs."""
    broker = broker_on(tmp_path, CountedFiles())
    topic = broker.topic("t")
    hold(topic)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for _ in range(4):
        publish_next(topic, short_ring // 2)
        take_all(channel, consumer)
    cancel(topic, channel, topic.publish_body(b"cancelled", wall()))
    publish_next(topic, 1)
    assert channel.ledger.capacity_bits == short_ring
    jobs = Jobs()
    broker.in_background = jobs.submit
    return channel, jobs


def test_a_seek_back_from_a_cancelled_message_grows_the_ledger_beside_the_loop(cancelled_far_ahead, short_ring):
    channel, jobs = cancelled_far_ahead
    files = channel.topic.broker.files
    before, in_jobs = files.syncs, []

    def wait():
        jobs.run()
        in_jobs.append(files.syncs - before)

    assert replay.move(channel.topic, channel, EARLIEST, no_pause, wait)["depth"] == 2 * short_ring + 1
    assert files.syncs - before == in_jobs[-1] == 1
    assert channel.ledger.capacity_bits == 4 * short_ring
    check_channel(channel)
    numbers = [number for number, _ in take_all(channel, consumer_on(channel))]
    assert numbers == [*range(2 * short_ring), 2 * short_ring + 1]


def test_a_seek_ends_although_more_is_published_during_each_sync_than_a_segment_holds(tmp_path):
    jobs = Jobs()
    broker = broker_on(tmp_path, sync_fin=True, retention_bytes=1 << 30)
    topic = broker.topic("t")
    channel = topic.channel("c")
    broker.in_background = jobs.submit
    publish_next(topic, 100, 1000, wall() + HOUR_NS)
    sync_count = 0

    def wait():
        nonlocal sync_count
        sync_count += 1
        assert sync_count < 10, "the seek begins again and again"
        publish_next(topic, 200, 1000, wall() + HOUR_NS)
        jobs.run()

    assert replay.move(topic, channel, EARLIEST, no_pause, wait)["depth"] == 100 + 200 * sync_count
    jobs.run()
    assert channel.depth + channel.deferred_count == topic.log.end
    check_channel(channel)


def test_a_seek_changes_nothing_if_the_larger_ledger_cannot_take_its_place(
    cancelled_far_ahead, short_ring, monkeypatch
):
    channel, jobs = cancelled_far_ahead
    files = channel.topic.broker.files
    rename = files.rename

    def fail(path, target):
        if target == channel.ledger.path:
            raise StorageError("rename", path, errno.EIO, "Input/output error")
        rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(files, "rename", fail)
        with pytest.raises(StorageError):
            replay.move(channel.topic, channel, EARLIEST, no_pause, jobs.run)
    assert (channel.depth, channel.ledger.capacity_bits, channel.grows) == (1, short_ring, False)
    check_channel(channel)
    assert replay.move(channel.topic, channel, EARLIEST, no_pause, jobs.run)["depth"] == 2 * short_ring + 1


def test_a_seek_reports_messages_that_were_dropped_ahead_of_the_cursor(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    guids = [topic.publish_body(b"%d" % number, wall()) for number in range(4)]
    for due_ns in (wall() + HOUR_NS, wall()):
        (outcome,) = message_lookup.change_message(
            topic, [channel], guids[2], message_lookup.reschedule_to(topic, due_ns), lambda: None
        )
        assert outcome.status == message_lookup.DONE
    topic.broker.scheduler.run_timers(mono() + 1)
    consumer = consumer_on(channel)
    taken = [channel.take_message(consumer)[0] for _ in range(2)]
    channel.finish_message(consumer, guids[2])
    assert set(taken) == {guids[0], guids[2]}
    done = replay.move(topic, channel, LogPlace(earliest=True), lambda: None)
    assert (done["redeliver"], done["finished"], done["depth"], channel.depth) == (2, 1, 4, 4)
    check_topic(topic)
