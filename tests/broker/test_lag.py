"""Channels that park deferred messages in slices: counts, order, kills and changes in between."""

import random
from typing import Any

import pytest

from pyqd.broker import message_lookup, peek, replay
from pyqd.broker import topic as topic_module
from pyqd.broker.broker import Broker
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.durability.syncer import Syncer
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StorageError
from tests.support.invariants import check_topic
from tests.support.storage import Jobs, body_of, broker_on, consumer_on, frames_of, options_for, run_all_wakes

# More than one turn parks, on any channel.
MANY = 20_000
# A few of these are one turn's work.
LARGE_BYTES = 60_000


@pytest.fixture
def topic(tmp_path):
    return broker_on(tmp_path).topic("t")


def defer(topic, count, start=0, size_bytes=16):
    topic.publish_frames(
        frames_of([body_of(start + index, size_bytes) for index in range(count)]), wall(), wall() + HOUR_NS
    )


def parked_count(channel):
    """Return how many messages are in the channel's parked log."""
    return 0 if channel.parked is None else channel.parked.log.end


def test_deferred_messages_count_as_such_before_they_are_parked(topic):
    channels = [topic.channel(name) for name in "abc"]
    defer(topic, MANY)
    assert [channel.deferred_count for channel in channels] == [MANY] * 3
    assert [channel.depth for channel in channels] == [0] * 3
    assert sum(map(parked_count, channels)) < 3 * MANY
    topic.broker.scheduler.run_wakes()
    assert 0 < sum(map(parked_count, channels)) < 3 * MANY
    assert [channel.deferred_count for channel in channels] == [MANY] * 3
    run_all_wakes(topic.broker)
    assert [parked_count(channel) for channel in channels] == [MANY] * 3
    assert [channel.deferred_count for channel in channels] == [MANY] * 3
    check_topic(topic)


def test_messages_published_meanwhile_are_parked_once_and_behind_them(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    topic.broker.scheduler.run_wakes()
    topic.publish_body(b"now", wall())
    topic.publish_body(b"later", wall(), wall() + HOUR_NS)
    assert (channel.depth, channel.deferred_count) == (1, MANY + 1)
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count, parked_count(channel)) == (1, MANY + 1, MANY + 1)
    assert channel.take_message(consumer_on(channel))[3] == b"now"


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_kill_between_two_slices_loses_nothing_and_doubles_nothing(topic, tmp_path, turns):
    names = ("a", "b")
    for name in names:
        topic.channel(name)
    defer(topic, MANY)
    for _ in range(turns):
        topic.broker.scheduler.run_wakes()
    topic = broker_on(tmp_path).topic("t")
    channels = [topic.channels_by_name[name] for name in names]
    assert [(channel.depth, channel.deferred_count) for channel in channels] == [(0, MANY)] * 2
    run_all_wakes(topic.broker)
    topic = broker_on(tmp_path).topic("t")
    assert [(channel.depth, channel.deferred_count) for channel in topic.channels_by_name.values()] == [(0, MANY)] * 2


def test_the_first_channel_of_a_topic_counts_its_deferred_messages_at_once(topic):
    defer(topic, MANY)
    topic.publish_body(b"now", wall())
    channel = topic.channel("c")
    assert (channel.depth, channel.deferred_count) == (1, MANY)
    assert parked_count(channel) < MANY
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count, parked_count(channel)) == (1, MANY, MANY)


def test_deferred_messages_of_a_paused_topic_are_parked_after_the_pause(topic):
    channels = [topic.channel(name) for name in "ab"]
    topic.publish_body(b"before", wall(), wall() + HOUR_NS)
    topic.pause(True)
    defer(topic, MANY)
    assert [channel.deferred_count for channel in channels] == [1, 1]
    topic.pause(False)
    assert [(channel.depth, channel.deferred_count) for channel in channels] == [(0, MANY + 1)] * 2
    run_all_wakes(topic.broker)
    assert [parked_count(channel) for channel in channels] == [MANY + 1] * 2


def test_a_seek_shows_all_deferred_messages_behind_its_place_as_deferred(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    topic.publish_body(b"now", wall())
    run_all_wakes(topic.broker)
    replay.move(topic, channel, replay.LogPlace(position=100), replay.no_pause)
    assert (channel.depth, channel.deferred_count) == (1, MANY - 100)
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count) == (1, MANY - 100)
    check_topic(topic)


def test_a_seek_of_a_lagging_channel_ends_its_lag(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    topic.broker.scheduler.run_wakes()
    replay.move(topic, channel, replay.LogPlace(), replay.no_pause)
    assert (channel.depth, channel.deferred_count) == (0, 0)
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count) == (0, 0)


def test_a_message_is_cancelled_or_put_off_before_it_is_parked(topic):
    channel = topic.channel("c")
    defer(topic, MANY)
    last = topic.guids.last_id
    for guid, action in ((last, message_lookup.cancel), (last - 1, message_lookup.reschedule_to(topic, wall()))):
        (outcome,) = message_lookup.change_message(topic, [channel], guid, action, replay.no_pause)
        assert (outcome.status, outcome.was) == (message_lookup.DONE, peek.DEFERRED)
    run_all_wakes(topic.broker)
    assert channel.deferred_count + channel.depth == MANY - 1
    check_topic(topic)


@pytest.mark.slow
def test_deferred_messages_without_space_wait_in_the_queue_until_there_is_space(topic):
    channel = topic.channel("c")
    defer(topic, 1)
    defer(topic, 200, start=1, size_bytes=LARGE_BYTES)

    class FullDisk(SegmentJobs):
        def make(self, pool, need_bytes, want_bytes):
            raise StorageError("create", "a segment", 28, "No space left on device")

    log = channel.parked.log
    jobs, log.pool.jobs = log.pool.jobs, FullDisk()
    log.pool.drop_spares()
    run_all_wakes(topic.broker)
    parked = channel.deferred_count
    assert 0 < parked < 201
    assert channel.depth == 201 - parked
    log.pool.jobs = jobs
    topic.broker.scheduler.run_timers(2**62)
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count) == (0, 201)


@pytest.mark.slow
def test_a_channel_emptied_while_there_is_no_room_to_park_parks_what_comes_afterwards(topic):
    channel = topic.channel("c")
    defer(topic, 1)
    defer(topic, 200, start=1, size_bytes=LARGE_BYTES)

    class FullDisk(SegmentJobs):
        def make(self, pool, need_bytes, want_bytes):
            raise StorageError("create", "a segment", 28, "No space left on device")

    log = channel.parked.log
    jobs, log.pool.jobs = log.pool.jobs, FullDisk()
    log.pool.drop_spares()
    run_all_wakes(topic.broker)
    assert channel.depth != 0
    channel.empty()
    log.pool.jobs = jobs
    parked_before = parked_count(channel)
    for number in range(3):
        defer(topic, MANY, start=201 + MANY * number)
    run_all_wakes(topic.broker)
    assert (channel.depth, channel.deferred_count) == (0, 3 * MANY)
    assert parked_count(channel) == parked_before + 3 * MANY


@pytest.mark.slow
def test_origins_are_settled_in_slices_after_a_sync(topic):
    topic.broker.parks_durably = True
    channel = topic.channel("c")
    for _ in range(5):
        defer(topic, MANY)
    run_all_wakes(topic.broker)
    channel.settle(parked_count(channel))
    assert 0 < channel.parked.settled < 5 * MANY
    run_all_wakes(topic.broker)
    assert channel.parked.settled == 5 * MANY
    assert channel.ledger.floor == 5 * MANY
    assert channel.depth == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_between_slices_each_message_is_delivered_or_deferred_once(topic, seed):
    chance = random.Random(seed)
    channels = [topic.channel(name) for name in "ab"]
    consumers = [consumer_on(channel) for channel in channels]
    sent = deferred = 0
    taken = [0, 0]
    for _ in range(60):
        action = chance.choice(["defer", "publish", "take", "turn", "pause", "unpause"])
        if action == "defer":
            count = chance.randrange(1, 30)
            defer(topic, count, size_bytes=chance.choice([16, LARGE_BYTES]))
            deferred += count
        elif action == "publish":
            topic.publish_body(body_of(sent), wall())
            sent += 1
        elif action == "take":
            index = chance.randrange(2)
            taken[index] += channels[index].take_message(consumers[index]) is not None
        elif action == "turn":
            topic.broker.scheduler.run_wakes()
        else:
            topic.pause(action == "pause")
        if not topic.paused:
            assert [channel.deferred_count for channel in channels] == [deferred] * 2
            assert [channel.depth for channel in channels] == [sent - count for count in taken]
    topic.pause(False)
    run_all_wakes(topic.broker)
    assert [parked_count(channel) for channel in channels] == [deferred] * 2
    assert [channel.depth + count for channel, count in zip(channels, taken, strict=True)] == [sent] * 2
    check_topic(topic)


def test_the_first_deferred_message_of_many_channels_opens_their_parked_logs_over_several_turns(topic):
    channels = [topic.channel(f"c{index}") for index in range(40)]
    defer(topic, 1)
    assert sum(channel.parked is not None for channel in channels) < 40
    assert [channel.deferred_count for channel in channels] == [1] * 40
    topic.broker.scheduler.run_wakes()
    assert 0 < sum(channel.parked is not None for channel in channels) < 40
    run_all_wakes(topic.broker)
    assert [parked_count(channel) for channel in channels] == [1] * 40


# More than the ring of a new ledger has bits.
BEYOND_RING = 40_000


@pytest.fixture
def jobs(topic, monkeypatch):
    """Return the jobs of a topic whose ledgers grow in them."""
    jobs = Jobs()
    monkeypatch.setattr(topic.broker, "in_background", jobs.submit)
    return jobs


def defer_beyond_ring(topic):
    """Defer messages behind a queued one, which keeps the ledger from forgetting those that are parked."""
    topic.publish_body(b"now", wall())
    defer(topic, BEYOND_RING)
    run_all_wakes(topic.broker)


def test_the_loop_does_not_wait_for_the_sync_of_a_ledger_that_must_grow_to_park(topic, jobs):
    channel = topic.channel("c")
    defer_beyond_ring(topic)
    assert 0 < parked_count(channel) < BEYOND_RING
    assert channel.grows
    assert (channel.depth, channel.deferred_count) == (1, BEYOND_RING)
    assert channel.take_message(consumer_on(channel))[3] == b"now"
    while channel.grows:
        jobs.run()
        run_all_wakes(topic.broker)
    assert (parked_count(channel), channel.deferred_count) == (BEYOND_RING, BEYOND_RING)
    check_topic(topic)


@pytest.mark.slow
def test_messages_parked_at_once_after_the_cursor_has_parked_the_others_are_not_parked_again(tmp_path):
    broker: Any = Broker(options_for(tmp_path), Files())
    jobs = Jobs()
    # Until a sync covers a parked record, the ledger does not say that the one in the topic's log is finished.
    syncer = Syncer(broker)
    broker.load()
    broker.in_background = jobs.submit
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    defer(topic, MANY)
    topic.publish_body(b"now", wall())
    assert parked_count(channel) < MANY
    assert channel.take_message(consumer)[3] == b"now"
    assert channel.take_message(consumer) is None
    assert parked_count(channel) == MANY
    check_topic(topic)
    topic.broker.scheduler.run_wakes()
    defer(topic, 7, MANY)
    assert parked_count(channel) == MANY + 7
    defer(topic, BEYOND_RING, MANY + 7)
    run_all_wakes(topic.broker)
    while channel.grows:
        jobs.run()
        run_all_wakes(topic.broker)
    assert (parked_count(channel), channel.deferred_count) == (MANY + 7 + BEYOND_RING,) * 2
    check_topic(topic)
    assert syncer.sync_all()
    assert channel.deferred_count == MANY + 7 + BEYOND_RING


@pytest.mark.slow
def test_a_ledger_whose_growth_fails_in_the_background_grows_when_it_must(topic, jobs):
    channel = topic.channel("c")
    defer_beyond_ring(topic)
    assert channel.grows
    jobs.run(StorageError("sync", "ledger", 5, "Input/output error"))
    run_all_wakes(topic.broker)
    assert (parked_count(channel), channel.grows) == (BEYOND_RING, False)
    check_topic(topic)


def test_a_channel_deleted_while_its_ledger_grows_takes_the_file_along(topic, jobs):
    assert not topic.channel("c").grows
    defer_beyond_ring(topic)
    assert topic.channel("c").grows
    topic.delete_channel("c")
    topic.channel("c")
    jobs.run()
    run_all_wakes(topic.broker)
    channel = topic.channels_by_name["c"]
    assert (channel.depth, channel.deferred_count, channel.ledger.capacity_bits) == (0, 0, 32768)
    check_topic(topic)


def test_a_topic_deleted_while_a_ledger_grows_touches_no_file_of_the_next_one(topic, jobs, monkeypatch):
    channel = topic.channel("c")
    defer_beyond_ring(topic)
    # Of many channels, most are dropped in later runs.
    monkeypatch.setattr(topic_module, "CHANNELS_DROPPED_AT_ONCE", 0)
    topic.broker.delete_topic("t")
    path = channel.ledger.path + ".growing"
    topic.broker.topic("t").channel("c")
    with open(path, "wb") as file:
        file.write(b"of the next one")
    jobs.run()
    with open(path, "rb") as file:
        assert file.read() == b"of the next one"


@pytest.mark.slow
def test_a_stop_while_a_ledger_grows_leaves_nothing_of_it(topic, jobs, tmp_path):
    channel = topic.channel("c")
    defer_beyond_ring(topic)
    assert [path.name for path in tmp_path.rglob("*.growing")] == ["ledger.growing"]
    topic.broker.close()
    assert not [path.name for path in tmp_path.rglob("*.growing")]
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channels_by_name["c"]
    assert (channel.depth, channel.deferred_count) == (1, BEYOND_RING)


def test_an_emptied_topic_finds_the_ledgers_large_enough_that_grew_in_the_background(topic, jobs):
    channel, other = topic.channel("c"), topic.channel("d")
    topic.pause(True)
    topic.publish_frames(frames_of([b"x"] * BEYOND_RING), wall())
    ended = []
    for each in (channel, other):
        each.grow_ledger(topic.log.end - 1, lambda each=each: ended.append(each))
    topic.delete_channel("d")
    other.grow_ledger(topic.log.end - 1, lambda: ended.append("deleted"))
    assert (ended, channel.grows) == (["deleted"], True)
    while len(ended) < 3:
        jobs.run()
    assert (channel.grows, channel.ledger.capacity_bits) == (False, 65536)
    channel.grow_ledger(topic.log.end - 1, lambda: ended.append("again"))
    assert ended[3:] == ["again"]
    assert len(list(topic.prepare_to_empty())) == 1
    topic.empty()
    run_all_wakes(topic.broker)
    assert (channel.depth, topic.depth) == (0, 0)
    check_topic(topic)


def test_a_ledger_does_not_grow_for_messages_that_another_request_has_dropped_meanwhile(topic, jobs):
    channels = [topic.channel(name) for name in "ab"]
    topic.pause(True)
    topic.publish_frames(frames_of([b"x"] * BEYOND_RING), wall())
    end = topic.log.end
    list(topic.prepare_to_empty())
    topic.empty()
    run_all_wakes(topic.broker)
    ended = []
    for channel in channels:
        channel.grow_ledger(end - 1, lambda: ended.append(True))
    assert (len(ended), [channel.grows for channel in channels]) == (2, [False, False])


def test_a_ledger_without_a_file_does_not_grow_in_the_background(topic, jobs):
    memory = topic.broker.topic("u#ephemeral")
    channel = memory.channel("c")
    ended = []
    channel.grow_ledger(10 * BEYOND_RING, lambda: ended.append(True))
    assert (ended, channel.grows, jobs.waiting) == ([True], False, [])


def test_deferred_messages_wait_for_a_growth_whose_reason_is_another_one(topic, jobs):
    channel = topic.channel("c")
    topic.publish_body(b"now", wall())
    channel.grow_ledger(BEYOND_RING, lambda: None)
    defer(topic, BEYOND_RING)
    run_all_wakes(topic.broker)
    assert channel.grows
    while channel.grows:
        jobs.run()
        run_all_wakes(topic.broker)
    assert (parked_count(channel), channel.deferred_count) == (BEYOND_RING, BEYOND_RING)
    check_topic(topic)
