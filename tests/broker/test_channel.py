"""Tests of pyqd.hot.broker.channel and pyqd.broker.channel."""

import contextlib
import errno
import itertools
import json
import os
from types import SimpleNamespace

import pytest

from pyqd.broker.channel_settings import NO_LIMITS, encode_settings
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import DiskFull, StorageError
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_channel, check_topic
from tests.support.storage import (
    SEGMENT_HEADER_BYTES,
    CountedFiles,
    FullFiles,
    Jobs,
    body_of,
    broker_on,
    consumer_on,
    frames_of,
    number_in,
    publish,
    run_all_wakes,
    take_all,
)
from tests.support.tracing import events_of

DONE, NOT_IN_FLIGHT, NOT_OWNER = range(3)
RING_BITS_MIN = 8 * 4096


@pytest.fixture(params=["t", "t#ephemeral"])
def topic(tmp_path, request):
    topic = broker_on(tmp_path).topic(request.param)
    topic.channel("c")
    return topic


@pytest.fixture
def kept(tmp_path):
    topic = broker_on(tmp_path, FullFiles()).topic("t")
    topic.channel("c")
    return topic


def counts(channel):
    check_topic(channel.topic)
    return channel.depth, channel.in_flight_count, channel.deferred_count


def number_of(message):
    return number_in(message[3])


def test_messages_come_in_order_each_once_with_one_attempt(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 100)
    assert counts(channel) == (100, 0, 0)
    taken = take_all(channel, consumer)
    assert [number_of(message) for message in taken] == list(range(100))
    assert {attempts for _, attempts, _, _ in taken} == {1}
    assert len({guid for guid, *_ in taken}) == 100
    assert counts(channel) == (0, 100, 0)
    assert (consumer.in_flight, consumer.message_count) == (100, 100)


def test_every_channel_gets_every_message(topic):
    channels = [topic.channel(name) for name in ("c", "d", "e")]
    publish(topic, 10)
    for channel in channels:
        assert [number_of(message) for message in take_all(channel, consumer_on(channel))] == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [16, 500, 30_000])
@pytest.mark.parametrize("backwards", [False, True])
def test_messages_finished_in_any_order_let_their_segments_go(topic, size_bytes, backwards):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for cycle in range(4):
        publish(topic, 150, size_bytes, 1000 * cycle)
        taken = take_all(channel, consumer)
        assert [number_of(message) for message in taken] == list(range(1000 * cycle, 1000 * cycle + 150))
        for guid, *_ in reversed(taken) if backwards else taken:
            assert channel.finish_message(consumer, guid) == DONE
        topic.broker.scheduler.run_wakes()
        assert counts(channel) == (0, 0, 0)
        assert topic.log.first is topic.log.active


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("size_bytes", [500, 30_000])
def test_a_channel_at_the_end_of_a_segment_reads_on_after_that_segment_was_recycled(topic, ahead, others, size_bytes):
    if not ahead:
        # Without spares made ahead the segment that was given up is the very next one.
        topic.log.pool.jobs = SegmentJobs()
    channels = [topic.channel("c"), *[topic.channel("d") for _ in range(others)]]
    consumers = [consumer_on(channel) for channel in channels]
    publish(topic, 300, size_bytes)
    for number in range(300):
        for channel, consumer in zip(channels, consumers, strict=True):
            message = channel.take_message(consumer)
            assert message[3] == body_of(number, size_bytes)
            assert channel.finish_message(consumer, message[0]) == DONE
            # Every segment is given up as soon as its last message is finished, before the next one is taken.
            topic.broker.scheduler.run_wakes()
        publish(topic, 1, size_bytes, 300 + number)
    assert topic.log.size_bytes() < (300 + 200) * (size_bytes + 60) + (1 << 18)


def test_results_distinguish_not_in_flight_from_owned_by_another_consumer(topic):
    channel = topic.channel("c")
    owner, other = consumer_on(channel), consumer_on(channel)
    publish(topic, 1)
    guid, *_ = channel.take_message(owner)
    for call in (channel.finish_message, channel.touch_message):
        assert call(other, guid) == NOT_OWNER
        assert call(owner, guid + 1) == NOT_IN_FLIGHT
    for delay_ns in (0, SECOND_NS):
        assert channel.requeue_message(other, guid, delay_ns) == NOT_OWNER
        assert channel.requeue_message(owner, guid + 1, delay_ns) == NOT_IN_FLIGHT
    assert channel.touch_message(owner, guid) == DONE
    assert channel.finish_message(owner, guid) == DONE
    assert channel.finish_message(owner, guid) == NOT_IN_FLIGHT
    assert (owner.in_flight, owner.finish_count, other.in_flight) == (0, 1, 0)
    assert counts(channel) == (0, 0, 0)


def test_a_requeued_message_comes_again_with_one_attempt_more(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 1)
    first = channel.take_message(consumer)
    for attempts in range(1, 5):
        assert channel.requeue_message(consumer, first[0], 0) == DONE
        assert counts(channel) == (1, 0, 0)
        assert channel.take_message(consumer) == (first[0], attempts + 1, *first[2:])
    assert (channel.requeue_count, consumer.requeue_count, consumer.in_flight) == (4, 4, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("full", "taken"), [(16, 3), (16, 13), (1 << 16, 1000), (1 << 16, 60_000)])
def test_a_ring_that_grows_while_it_is_wrapped_keeps_the_order(topic, full, taken):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, full + taken + 1)
    guids = [guid for guid, *_ in take_all(channel, consumer)]
    for guid in guids[:full]:
        channel.requeue_message(consumer, guid, 0)
    came = [channel.take_message(consumer)[0] for _ in range(taken)]
    # As many as were taken fill the ring up to its wrap, and one more lets it grow.
    for guid in guids[full:]:
        channel.requeue_message(consumer, guid, 0)
    assert came + [guid for guid, *_ in take_all(channel, consumer)] == guids
    assert counts(channel) == (0, full + taken + 1, 0)


def test_fresh_and_requeued_messages_alternate(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 8)
    for guid, *_ in [channel.take_message(consumer) for _ in range(4)]:
        channel.requeue_message(consumer, guid, 0)
    numbers = [number_of(message) for message in take_all(channel, consumer)]
    assert sorted(numbers) == list(range(8))
    assert [number for number in numbers if number < 4] == [0, 1, 2, 3]
    assert [number for number in numbers if number >= 4] == [4, 5, 6, 7]
    assert all((one < 4) != (other < 4) for one, other in itertools.pairwise(numbers))


def test_a_message_in_flight_beyond_its_timeout_returns_to_the_channel(topic):
    channel = topic.channel("c")
    slow, fast = consumer_on(channel, 2 * MINUTE_NS), consumer_on(channel, MINUTE_NS)
    publish(topic, 2)
    slow_guid, *_ = channel.take_message(slow)
    fast_guid, *_ = channel.take_message(fast)
    scheduler, now_ns = topic.broker.scheduler, mono()
    scheduler.run_timers(now_ns + 59 * SECOND_NS)
    assert counts(channel) == (0, 2, 0)
    scheduler.run_timers(now_ns + MINUTE_NS)
    assert counts(channel) == (1, 1, 0)
    assert (fast.in_flight, slow.in_flight, channel.timeout_count) == (0, 1, 1)
    assert channel.finish_message(fast, fast_guid) == NOT_IN_FLIGHT
    assert channel.take_message(slow)[:2] == (fast_guid, 2)
    assert channel.finish_message(fast, fast_guid) == NOT_OWNER
    assert channel.finish_message(slow, fast_guid) == DONE
    assert channel.finish_message(slow, slow_guid) == DONE


def test_touch_puts_the_timeout_off_up_to_a_limit(tmp_path):
    topic = broker_on(tmp_path, max_msg_timeout=90 * SECOND_NS).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel, MINUTE_NS)
    publish(topic, 1)
    start = mono()
    guid, *_ = channel.take_message(consumer)
    consumer.msg_timeout_ns = HOUR_NS
    assert channel.touch_message(consumer, guid) == DONE
    topic.broker.scheduler.run_timers(start + 89 * SECOND_NS)
    assert counts(channel) == (0, 1, 0)
    topic.broker.scheduler.run_timers(mono() + 90 * SECOND_NS)
    assert counts(channel) == (1, 0, 0)


def test_the_timeout_of_a_departed_consumer_is_harmless(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 1)
    guid, *_ = channel.take_message(consumer)
    channel.remove_consumer(consumer)
    channel.remove_consumer(consumer)
    assert counts(channel) == (0, 1, 0)
    topic.broker.scheduler.run_timers(mono() + HOUR_NS)
    assert counts(channel) == (1, 0, 0)
    assert channel.take_message(consumer_on(channel))[:2] == (guid, 2)


def test_emptying_while_in_flight_drops_everything_and_frees_the_consumers(topic):
    channel, other = topic.channel("c"), topic.channel("d")
    consumer = consumer_on(channel)
    publish(topic, 300, 500)
    taken = [channel.take_message(consumer) for _ in range(200)]
    channel.requeue_message(consumer, taken[3][0], 0)
    channel.requeue_message(consumer, taken[4][0], HOUR_NS)
    channel.finish_message(consumer, taken[150][0])
    topic.publish_body(b"deferred", wall(), wall() + HOUR_NS)
    channel.empty()
    assert counts(channel) == (0, 0, 0)
    assert (consumer.in_flight, channel.message_count, channel.requeue_count) == (0, 301, 2)
    assert counts(other) == (300, 0, 1)
    for message in taken:
        assert channel.finish_message(consumer, message[0]) == NOT_IN_FLIGHT
    publish(topic, 300, 500, 1000)
    topic.broker.scheduler.run_wakes()
    assert [number_of(message) for message in take_all(channel, consumer)] == list(range(1000, 1300))
    assert len(take_all(other, consumer_on(other))) == 600


def test_pausing_a_channel_is_remembered_and_messages_still_arrive(kept, tmp_path):
    kept.channel("c").pause(True)
    publish(kept, 3)
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    assert channel.paused
    assert counts(channel) == (3, 0, 0)
    channel.pause(False)
    assert not broker_on(tmp_path).topic("t").channel("c").paused


def test_sampled_out_messages_are_finished(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    consumer.sample_rate = 49
    publish(topic, 2000)
    taken = take_all(channel, consumer)
    assert 800 < len(taken) < 1200
    for message in taken:
        channel.finish_message(consumer, message[0])
    assert counts(channel) == (0, 0, 0)
    assert channel.ledger.floor == topic.log.end


@pytest.mark.parametrize("closed", [True, False])
def test_a_restart_restores_unfinished_messages_with_their_attempts(kept, tmp_path, closed):
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    publish(kept, 400, 500)
    taken = [channel.take_message(consumer) for _ in range(300)]
    for message in taken[::3]:
        channel.finish_message(consumer, message[0])
    channel.requeue_message(consumer, taken[1][0], 0)
    assert channel.take_message(consumer)[:2] == (taken[1][0], 2)
    before = counts(channel)
    if closed:
        kept.broker.close()
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    assert counts(channel) == (before[0] + before[1], 0, 0)
    found = {number_of(message): message[1] for message in take_all(channel, consumer_on(channel))}
    expected = {number: 2 if number < 300 else 1 for number in set(range(400)) - set(range(0, 300, 3))}
    if closed:
        expected[1] = 3
    assert found == expected
    assert channel.requeue_count == 1


def test_attempts_noted_by_a_clean_stop_are_counted_on_over_a_kill(kept, tmp_path):
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    publish(kept, 1)
    for _ in range(7):
        guid, *_ = channel.take_message(consumer)
        channel.requeue_message(consumer, guid, 0)
    kept.broker.close()
    channel = broker_on(tmp_path).topic("t").channel("c")
    assert channel.take_message(consumer_on(channel))[:2] == (guid, 8)
    # A kill.
    channel = broker_on(tmp_path).topic("t").channel("c")
    consumer = consumer_on(channel)
    assert channel.take_message(consumer)[:2] == (guid, 9)
    assert channel.notes.count == 1
    channel.finish_message(consumer, guid)
    assert channel.notes.count == 0


def test_a_channel_whose_attempts_cannot_be_saved_costs_no_other_channel_theirs(tmp_path, caplog):
    class FullForOne(FullFiles):
        def new_mapped(self, path, size_bytes, populate):
            if path is not None and "b.channel/notes" in path:
                raise DiskFull("reserve", path, errno.ENOSPC, "No space left on device")
            return super().new_mapped(path, size_bytes, populate)

    broker = broker_on(tmp_path, FullForOne())
    topic = broker.topic("t")
    channels = [topic.channel(name) for name in "abc"]
    publish(topic, 1)
    for channel in channels:
        consumer = consumer_on(channel)
        for _ in range(3):
            guid, *_ = channel.take_message(consumer)
            channel.requeue_message(consumer, guid, 0)
    broker.close()
    # Not caplog.text: a Spark driver in this process writes the records of every logger as JSON, quotes escaped.
    assert any('cannot save the attempts of 1 messages of channel "b" of topic "t"' in line for line in caplog.messages)
    assert json.loads((tmp_path / "node.json").read_text())["clean"]
    channels = broker_on(tmp_path).topic("t").channels_by_name
    attempts = {name: channels[name].take_message(consumer_on(channels[name]))[1] for name in "abc"}
    assert attempts == {"a": 4, "b": 2, "c": 4}


def test_on_a_full_disk_a_message_stays_in_flight_if_its_due_time_cannot_be_stored(kept):
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    publish(kept, 1)
    guid, *_ = channel.take_message(consumer)
    kept.files.room = 0
    for _ in range(2):
        with pytest.raises(DiskFull):
            channel.requeue_message(consumer, guid, HOUR_NS)
        assert counts(channel) == (0, 1, 0)
        assert consumer.in_flight == 1
    kept.files.room = None
    assert channel.requeue_message(consumer, guid, HOUR_NS) == DONE
    assert counts(channel) == (0, 0, 1)


@pytest.mark.slow
def test_on_a_full_disk_a_message_stays_in_flight_if_finishing_it_needs_space(kept, tmp_path):
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    kept.publish_frames(frames_of([b"x"] * (RING_BITS_MIN + 1)), wall())
    kept.files.room = 0
    for _ in range(RING_BITS_MIN):
        guid, *_ = channel.take_message(consumer)
    last, *_ = channel.take_message(consumer)
    assert channel.finish_message(consumer, guid) == DONE
    for _ in range(2):
        with pytest.raises(DiskFull):
            channel.finish_message(consumer, last)
        with pytest.raises(DiskFull):
            channel.requeue_message(consumer, last, 1)
        assert counts(channel) == (0, RING_BITS_MIN, 0)
        assert consumer.in_flight == RING_BITS_MIN
    assert channel.requeue_message(consumer, last, 0) == DONE
    assert channel.take_message(consumer)[:2] == (last, 2)
    kept.files.room = None
    assert channel.finish_message(consumer, last) == DONE
    assert counts(channel) == (0, RING_BITS_MIN - 1, 0)
    channel = broker_on(tmp_path).topic("t").channel("c")
    assert counts(channel) == (RING_BITS_MIN - 1, 0, 0)


def fill_ring(topic, channel, consumer, beyond):
    """Publish so many messages beyond the reach of a new ledger, and have all below it finished but the first.

    The disk is full from then on, as the ledger would grow ahead of need.
    """
    topic.publish_frames(frames_of([b"x"] * (RING_BITS_MIN + beyond)), wall())
    topic.files.room = 0
    first, *_ = channel.take_message(consumer)
    for _ in range(RING_BITS_MIN - 1):
        assert channel.finish_message(consumer, channel.take_message(consumer)[0]) == DONE
    return first


def pass_the_retry(topic):
    """Pass the time after which work that lacked space is retried."""
    topic.broker.scheduler.run_timers(mono() + 2 * SECOND_NS)
    topic.broker.scheduler.run_wakes()


def test_a_message_dropped_by_sampling_waits_if_the_ledger_cannot_grow(kept):
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    first = fill_ring(kept, channel, consumer, 40)
    sampling = consumer_on(channel)
    sampling.sample_rate = 1
    taken = take_all(channel, sampling)
    assert counts(channel) == (40 - len(taken), 1 + len(taken), 0)
    assert len(taken) < 40
    kept.files.room = None
    pass_the_retry(kept)
    taken += take_all(channel, sampling)
    assert counts(channel) == (0, 1 + len(taken), 0)
    assert len(taken) < 40
    for guid, *_ in taken:
        assert channel.finish_message(sampling, guid) == DONE
    assert channel.finish_message(consumer, first) == DONE
    assert counts(channel) == (0, 0, 0)


def test_a_lost_record_that_does_not_fit_the_ledger_does_not_block_redelivery_of_others(kept, tmp_path):
    channel = kept.channel("c")
    fill_ring(kept, channel, consumer_on(channel), 3)
    with open(kept.log.active.mapping.path, "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + (RING_BITS_MIN + 1) * 56 + 48)
        file.write(b"y")
    kept = broker_on(tmp_path, FullFiles()).topic("t")
    channel = kept.channel("c")
    consumer = consumer_on(channel)
    kept.files.room = 0
    first, *_ = channel.take_message(consumer)
    beyond, *_ = channel.take_message(consumer)
    for _ in range(2):
        assert channel.take_message(consumer) is None
        assert channel.requeue_message(consumer, first, 0) == DONE
        assert channel.take_message(consumer)[0] == first
    kept.files.room = None
    pass_the_retry(kept)
    assert channel.take_message(consumer) is None
    last, *_ = channel.take_message(consumer)
    for guid in (beyond, first, last):
        assert channel.finish_message(consumer, guid) == DONE
    assert counts(channel) == (0, 0, 0)


def test_the_ledger_grows_beside_the_loop_to_finish_a_lost_record(tmp_path, short_ring):
    broker = broker_on(tmp_path)
    broker.in_background = Jobs().submit
    topic = broker.topic("t")
    channel = topic.channel("c")
    publish(topic, short_ring + 1)
    consumer = consumer_on(channel)
    first, *rest = take_all(channel, consumer)
    for guid, *_ in rest:
        channel.finish_message(consumer, guid)
    with open(topic.log.active.mapping.path, "r+b") as file:
        file.seek(file.read().rindex(body_of(short_ring)))
        file.write(b"yyyyyyyy")
    broker = broker_on(tmp_path, CountedFiles())
    jobs = Jobs()
    broker.in_background = jobs.submit
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel)
    publish(channel.topic, 1, start=1000)
    syncs = broker.files.syncs
    assert [message[0] for message in take_all(channel, consumer)] == [first[0]]
    assert (channel.grows, broker.files.syncs) == (True, syncs)
    jobs.run()
    run_all_wakes(broker)
    assert [number_of(message) for message in take_all(channel, consumer)] == [1000]
    assert broker.files.syncs == syncs + 1


def test_a_missing_segment_costs_its_messages_and_no_others(kept, tmp_path):
    channel = kept.channel("c")
    kept.channel("read")
    publish(kept, 300, 500)
    consumer = consumer_on(channel)
    taken = [channel.take_message(consumer) for _ in range(10)]
    gone = kept.log.first.next
    first, end = gone.first_ordinal, gone.first_ordinal + gone.count
    reader = kept.channel("read")
    consumer = consumer_on(reader)
    for _ in range(first + 3):
        reader.take_message(consumer)
    os.unlink(gone.mapping.path)
    topic = broker_on(tmp_path).topic("t")
    left = [number for number in range(300) if not first <= number < end]
    for name in ("c", "read"):
        channel = topic.channel(name)
        assert counts(channel) == (len(left), 0, 0)
        consumer = consumer_on(channel)
        found = take_all(channel, consumer)
        assert sorted(number_of(message) for message in found) == left
        for message in found:
            channel.finish_message(consumer, message[0])
        assert counts(channel) == (0, 0, 0)
    assert len(taken) == 10
    topic.broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active


def test_the_first_channel_of_a_topic_with_a_hole_reads_over_it(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    publish(topic, 300, 500)
    gone = topic.log.first.next
    first, end = gone.first_ordinal, gone.first_ordinal + gone.count
    os.unlink(gone.mapping.path)
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    left = [number for number in range(300) if not first <= number < end]
    assert [number_of(message) for message in take_all(channel, consumer_on(channel))] == left


@pytest.mark.parametrize("size_bytes", [100, 100_000])
def test_empty_segments_in_the_log_are_passed(tmp_path, size_bytes):
    """An epoch that begins without a message leaves one, and so does a first message larger than a segment."""
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    publish(topic, 2, size_bytes)
    for _ in range(3):
        node = tmp_path / "node.json"
        node.write_text(node.read_text().replace(f'"boot": "{broker.node["boot"]}"', '"boot": "another"'))
        broker = broker_on(tmp_path)
    assert broker.epoch == 3
    topic = broker.topic("t")
    publish(topic, 2, size_bytes, 2)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for number in range(4):
        message = channel.take_message(consumer)
        assert number_of(message) == number
        channel.finish_message(consumer, message[0])
        broker.scheduler.run_wakes()
    assert topic.log.first is topic.log.active
    check_topic(topic)


def test_an_ephemeral_channel_keeps_no_more_than_the_memory_queue_and_counts_all(tmp_path):
    topic = broker_on(tmp_path, mem_queue_size=3).topic("t")
    channel, other = topic.channel("c#ephemeral"), topic.channel("d")
    publish(topic, 10)
    topic.broker.scheduler.run_wakes()
    assert (channel.depth, channel.backend_depth, channel.message_count) == (3, 0, 10)
    assert (other.depth, other.backend_depth, other.message_count) == (10, 7, 10)
    consumer = consumer_on(channel)
    taken = take_all(channel, consumer)
    assert [number_of(message) for message in taken] == [0, 1, 2]
    for message in taken:
        assert channel.finish_message(consumer, message[0]) == DONE
    assert channel.ledger.floor == topic.log.end
    publish(topic, 2, start=10)
    topic.broker.scheduler.run_wakes()
    assert channel.depth == 2
    check_topic(topic)


def test_an_ephemeral_channel_drops_the_newest_messages_that_are_queued_and_none_is_counted_twice(tmp_path):
    broker = broker_on(tmp_path, mem_queue_size=10, trace_topic=("*",))
    topic = broker.topic("t")
    channel = topic.channel("c#ephemeral")
    queued = publish(topic, 15)
    publish(topic, 200, due_ns=wall() + HOUR_NS)
    for _ in range(3):
        run_all_wakes(broker)
        channel.pause(False)
    assert (channel.depth, channel.deferred_count) == (10, 200)
    assert [event.count for event in events_of(broker) if event.kind == "dropped"] == [5]
    consumer = consumer_on(channel)
    assert [message[0] for message in take_all(channel, consumer)] == queued[:10]
    check_topic(topic)


def test_an_ephemeral_channel_is_gone_after_a_restart(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c#ephemeral")
    topic.channel("d")
    topic.broker.close()
    assert list(broker_on(tmp_path).topic("t").channels_by_name) == ["d"]


@pytest.mark.parametrize("given_back", [False, True], ids=["queued", "both were in flight"])
def test_another_message_with_the_id_of_one_in_flight_is_delivered_after_it(tmp_path, given_back):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    guid = topic.publish_body(b"first", wall())
    topic.log.append_message(guid, b"second", wall())
    topic.publish_body(b"third", wall())
    if given_back:
        channel = broker.topic("t").channel("c")
        channel.ledger.note_handed_out(), channel.ledger.note_handed_out()
    broker = broker_on(tmp_path)
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel)
    taken = [message[3] for message in iter(lambda: channel.take_message(consumer), None)]
    assert sorted(taken) == [b"first", b"third"]
    assert channel.depth == 1
    check_channel(channel)
    assert channel.finish_message(consumer, guid) == DONE
    again = channel.take_message(consumer)
    assert (again[0], again[3]) == (guid, b"second")
    assert channel.take_message(consumer) is None
    assert channel.finish_message(consumer, guid) == DONE
    assert channel.depth == 0
    check_channel(channel)


def test_due_times_are_looked_at_every_ten_seconds_for_a_wall_clock_that_jumps(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel, msg_timeout_ns=24 * HOUR_NS)
    scheduler = topic.broker.scheduler
    with HeldClock() as clock:
        topic.publish_body(b"x", clock.wall_ns, clock.wall_ns + HOUR_NS)
        scheduler.run_wakes()
        for shift_ns in (0, -HOUR_NS, HOUR_NS // 2, HOUR_NS // 4):
            clock.jump(shift_ns)
            look_ns = scheduler.run_timers(clock.mono_ns)
            assert clock.mono_ns < look_ns <= clock.mono_ns + 10 * SECOND_NS
            assert counts(channel) == (0, 0, 1)
            clock.jump(look_ns - clock.mono_ns, look_ns - clock.mono_ns)
        clock.jump(2 * HOUR_NS)
        scheduler.run_timers(clock.mono_ns + 10 * SECOND_NS)
        assert counts(channel) == (1, 0, 0)
        assert channel.take_message(consumer)[3] == b"x"


@pytest.fixture
def growing(tmp_path, short_ring):
    """Return a channel whose ledger grows in jobs, and these."""
    broker = broker_on(tmp_path, CountedFiles())
    jobs = Jobs()
    broker.in_background = jobs.submit
    return broker.topic("t").channel("c"), jobs


def test_a_message_that_the_ledger_does_not_reach_is_delivered_when_it_has_grown_beside_the_loop(growing, short_ring):
    channel, jobs = growing
    consumer = consumer_on(channel)
    syncs = channel.topic.broker.files.syncs
    publish(channel.topic, short_ring + 3)
    taken = take_all(channel, consumer)
    assert (len(taken), channel.grows) == (short_ring, True)
    assert counts(channel) == (3, short_ring, 0)
    for guid, *_ in taken[1:]:
        assert channel.finish_message(consumer, guid) == DONE
    assert channel.topic.broker.files.syncs == syncs
    jobs.run()
    run_all_wakes(channel.topic.broker)
    assert channel.topic.broker.files.syncs == syncs + 1
    rest = take_all(channel, consumer)
    assert [number_of(message) for message in rest] == [short_ring, short_ring + 1, short_ring + 2]
    for guid, *_ in [*rest, taken[0]]:
        assert channel.finish_message(consumer, guid) == DONE
    assert counts(channel) == (0, 0, 0)
    assert (channel.ledger.capacity_bits, channel.topic.broker.files.syncs) == (2 * short_ring, syncs + 1)


def test_a_ledger_grows_before_its_ring_is_used_up(growing, short_ring):
    channel, jobs = growing
    consumer = consumer_on(channel)
    publish(channel.topic, 2 * short_ring)
    for _ in range(3 * short_ring // 4):
        channel.take_message(consumer)
    assert not channel.grows
    channel.take_message(consumer)
    assert channel.grows
    jobs.run()
    assert len(take_all(channel, consumer)) == 3 * short_ring // 4 + short_ring // 2 - 1


def test_a_ledger_whose_messages_are_finished_in_order_does_not_grow(growing, short_ring):
    channel, jobs = growing
    consumer = consumer_on(channel)
    for start in range(0, 10 * short_ring, 10):
        publish(channel.topic, 10, start=start)
        for guid, *_ in take_all(channel, consumer):
            channel.finish_message(consumer, guid)
    assert (channel.ledger.capacity_bits, jobs.waiting) == (short_ring, [])


def test_a_deferred_message_that_its_ledger_does_not_reach_waits_until_it_has_grown(growing, short_ring):
    channel, jobs = growing
    consumer = consumer_on(channel)
    topic = channel.topic
    with HeldClock() as clock:
        topic.publish_frames(
            frames_of([body_of(number) for number in range(short_ring)]), clock.wall_ns, clock.wall_ns + HOUR_NS
        )
        topic.publish_body(b"soon", clock.wall_ns, clock.wall_ns + SECOND_NS)
        run_all_wakes(topic.broker)
        jobs.run()
        run_all_wakes(topic.broker)
        assert counts(channel) == (0, 0, short_ring + 1)
        clock.jump(2 * SECOND_NS, 2 * SECOND_NS)
        topic.broker.scheduler.run_timers(clock.mono_ns)
        assert channel.take_message(consumer) is None
        assert (len(jobs.waiting), counts(channel)) == (1, (1, 0, short_ring))
        syncs = topic.broker.files.syncs
        jobs.run()
        assert topic.broker.files.syncs == syncs + 1
        guid, _, _, body = channel.take_message(consumer)
        assert body == b"soon"
        assert channel.finish_message(consumer, guid) == DONE
    assert topic.broker.files.syncs == syncs + 1
    assert counts(channel) == (0, 0, short_ring)


def test_messages_are_delivered_past_the_end_of_a_ledger_that_cannot_grow(growing, short_ring):
    channel, jobs = growing
    consumer = consumer_on(channel)
    publish(channel.topic, short_ring + 3)
    assert len(take_all(channel, consumer)) == short_ring
    failure = StorageError("sync", "ledger", errno.EIO, "Input/output error")
    taken = []
    while jobs.waiting:
        jobs.run(failure)
        run_all_wakes(channel.topic.broker)
        taken += take_all(channel, consumer)
    assert [number_of(message) for message in taken] == [short_ring, short_ring + 1, short_ring + 2]
    last = taken[-1]
    assert counts(channel) == (0, short_ring + 3, 0)
    # Nothing but the FIN is left to find that it can grow after all.
    assert channel.finish_message(consumer, last[0]) == DONE
    assert channel.ledger.capacity_bits == 2 * short_ring
    assert counts(channel) == (0, short_ring + 2, 0)


@pytest.fixture
def half_finished(tmp_path, short_ring):
    """Return a channel with --sync-fin and ten messages in flight, of which some are finished; and its jobs."""
    broker = broker_on(tmp_path, CountedFiles(), sync_fin=True)
    jobs = Jobs()
    broker.in_background = jobs.submit
    channel = broker.topic("t").channel("c")
    publish(channel.topic, 10)
    consumer = consumer_on(channel)
    for guid, *_ in take_all(channel, consumer)[3:6]:
        channel.finish_message(consumer, guid)
    return channel, jobs


@contextlib.contextmanager
def counting_syncs(channel):
    """Within: count the syncs of ledgers. Returns: a list with their number, afterwards."""
    files = channel.topic.broker.files
    before = files.syncs
    counted: list[int] = []
    yield counted
    counted.append(files.syncs - before)


def emptied(channel, jobs, meanwhile=lambda: None):
    """Empty a channel after preparations. Returns: the number of syncs on the loop."""

    def wait():
        meanwhile()
        jobs.run()

    with channel.prepared_reset(wait), counting_syncs(channel) as syncs:
        channel.empty()
    assert not channel.grows
    assert sorted(os.listdir(channel.directory)) == ["ledger"]
    return syncs[0]


def after_kill(channel, tmp_path):
    """Return the counts that a channel has after a kill."""
    again = broker_on(tmp_path, sync_fin=True).topic("t").channel("c")
    return counts(again)


def test_a_channel_with_synced_fins_is_emptied_without_a_sync_on_the_loop(half_finished, tmp_path):
    channel, jobs = half_finished
    assert emptied(channel, jobs) == 0
    assert counts(channel) == (0, 0, 0)
    assert after_kill(channel, tmp_path) == (0, 0, 0)


def test_a_channel_that_is_to_be_emptied_delivers_nothing_meanwhile_and_the_new_messages_go_too(
    half_finished, tmp_path
):
    channel, jobs = half_finished
    consumer = consumer_on(channel)

    def publish_more():
        # A plain consumer raises an error when it is served.
        consumer.rdy = 100
        publish(channel.topic, 5, start=100)
        run_all_wakes(channel.topic.broker)

    assert emptied(channel, jobs, publish_more) == 0
    assert counts(channel) == (0, 0, 0)
    publish(channel.topic, 1, start=200)
    with pytest.raises(AssertionError, match="plain consumer"):
        run_all_wakes(channel.topic.broker)
    assert after_kill(channel, tmp_path) == (1, 0, 0)


def test_fins_of_a_channel_that_is_to_be_emptied_need_no_other_sync(half_finished):
    channel, jobs = half_finished
    assert emptied(channel, jobs, lambda: channel.ledger.note_finished(7)) == 0


@pytest.mark.parametrize("change", ["taken", "cancelled", "settings", "paused"])
def test_a_channel_that_has_changed_since_it_was_prepared_is_emptied_with_a_sync(half_finished, tmp_path, change):
    channel, jobs = half_finished
    publish(channel.topic, 1, start=100)

    def meanwhile():
        publish(channel.topic, 1, start=200)
        if change == "taken":
            take_all(channel, consumer_on(channel))
        elif change == "cancelled":
            channel.ledger.note_finished(11)
        elif change == "paused":
            channel.pause(True)
        else:
            channel.ledger.settings = encode_settings(NO_LIMITS._replace(rate=5.0, burst=5.0))

    assert emptied(channel, jobs, meanwhile) == 1
    assert counts(channel) == (0, 0, 0)
    assert after_kill(channel, tmp_path) == (0, 0, 0)


def test_a_channel_whose_file_cannot_be_synced_ahead_is_emptied_all_the_same(half_finished, tmp_path):
    channel, jobs = half_finished
    failure = StorageError("sync", "ledger", errno.EIO, "Input/output error")
    with channel.prepared_reset(lambda: jobs.run(failure)):
        channel.empty()
    assert counts(channel) == (0, 0, 0)
    assert after_kill(channel, tmp_path) == (0, 0, 0)


def test_a_channel_whose_preparations_end_with_an_error_delivers_again(half_finished):
    channel, jobs = half_finished

    def submit(job, done):
        raise MemoryError

    channel.topic.broker.in_background = submit
    with pytest.raises(MemoryError), channel.prepared_reset(jobs.run):
        channel.empty()
    assert (channel.grows, channel.ledger.floor) == (False, 0)
    channel.topic.broker.in_background = jobs.submit
    assert emptied(channel, jobs) == 0
    assert counts(channel) == (0, 0, 0)


def test_a_growth_that_begins_during_a_reset_goes_on_after_it(half_finished, short_ring):
    channel, jobs = half_finished
    with channel.prepared_reset(jobs.run):
        channel.empty()
        publish(channel.topic, short_ring)
        channel.waits.grow(channel.ledger, channel.ledger.floor + short_ring)
    assert channel.grows
    jobs.run()
    assert (channel.grows, channel.ledger.capacity_bits) == (False, 2 * short_ring)


def test_a_channel_that_is_closed_while_it_is_to_be_emptied_waits_no_longer(half_finished):
    channel, _ = half_finished
    with channel.prepared_reset(channel.topic.close):
        assert channel.topic.exiting


def test_a_channel_that_is_deleted_while_it_is_to_be_emptied_leaves_nothing(half_finished):
    channel, jobs = half_finished
    topic = channel.topic
    for consumer in channel.consumers:
        consumer.client = SimpleNamespace(close=lambda: None)
    with channel.prepared_reset(lambda: (topic.delete_channel("c"), jobs.run())):
        assert channel.exiting
    jobs.run()
    assert "c" not in topic.channels_by_name
    assert channel.ledger.path is not None
    assert not os.path.exists(channel.directory)


def test_a_channel_is_emptied_by_two_at_a_time(half_finished):
    channel, jobs = half_finished
    end = channel.readable.end
    channel.begin_reset(end, end)
    asked: list[bool] = []

    def wait():
        if not asked:
            jobs.run()
            channel.empty()
            channel.leave_reset()
        asked.append(channel.grows)
        jobs.run()

    with channel.prepared_reset(wait):
        channel.empty()
    assert counts(channel) == (0, 0, 0)
    assert asked[0] is False


@pytest.mark.parametrize("flags", [{}, {"sync_fin": True}])
def test_messages_finished_while_a_ledger_grows_stay_finished_after_a_kill(tmp_path, short_ring, flags):
    broker = broker_on(tmp_path, **flags)
    jobs = Jobs()
    broker.in_background = jobs.submit
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel)
    publish(channel.topic, short_ring + 3)
    taken = take_all(channel, consumer)
    for guid, *_ in taken[:20] + taken[30:]:
        channel.finish_message(consumer, guid)
    jobs.run()
    assert channel.ledger.capacity_bits == 2 * short_ring
    for guid, *_ in take_all(channel, consumer):
        channel.finish_message(consumer, guid)
    check_channel(channel)
    again = broker_on(tmp_path, **flags).topic("t").channel("c")
    left = [number_of(message) for message in take_all(again, consumer_on(again))]
    assert left == list(range(20, 30))
    check_channel(again)
