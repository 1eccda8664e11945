"""Tests of pyqd.broker.topic_quota and pyqd.broker.reclaimer."""

import weakref

import pytest

from pyqd.broker import reclaimer
from pyqd.broker.broker import Broker
from pyqd.broker.topic_quota import RESERVE_BYTES
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import DiskFull
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_channel, check_topic
from tests.support.storage import Jobs, NotedJobs, broker_on, consumer_on, options_for, publish

BODY_BYTES = 8 << 10
PER_SEGMENT = 7
KIB = 1024


class Disk(Files):
    """A disk that has so many bytes free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path):
        return self.free


def fill(topic, count, start=0):
    publish(topic, count, BODY_BYTES, start)
    topic.scheduler.run_wakes()


def publish_until_refused(topic):
    for count in range(1000):
        try:
            fill(topic, 1, count)
        except DiskFull as error:
            return count, str(error)
    raise AssertionError("nothing was refused")


def take(channel, consumer, count):
    taken = [channel.take_message(consumer) for _ in range(count)]
    assert all(taken)
    return taken


def finish(channel, consumer, messages):
    for message in messages:
        assert channel.finish_message(consumer, message[0]) == 0
    channel.topic.scheduler.run_wakes()


def consume(channel, consumer, count):
    finish(channel, consumer, take(channel, consumer, count))


def segment_count(log):
    count, segment = 1, log.first
    while segment is not log.active:
        segment = segment.next
        count += 1
    return count


def test_finished_segments_go_without_retention(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    fill(topic, 5 * PER_SEGMENT)
    assert segment_count(topic.log) == 5
    consume(channel, consumer, 5 * PER_SEGMENT)
    assert segment_count(topic.log) == 1


@pytest.mark.parametrize("kept_segments", [1, 2, 3])
def test_the_last_finished_bytes_stay_with_retention_by_bytes(tmp_path, kept_segments):
    topic = broker_on(tmp_path, retention_bytes=(kept_segments + 1) * 60000).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for number in range(10):
        fill(topic, PER_SEGMENT, number * PER_SEGMENT)
        consume(channel, consumer, PER_SEGMENT)
    assert segment_count(topic.log) == kept_segments + 2
    assert topic.retained_from() == topic.log.first.first_ordinal
    check_topic(topic)


def test_retention_by_time_keeps_newer_messages_and_can_change_at_run_time(tmp_path):
    topic = broker_on(tmp_path, retention_time=HOUR_NS).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    fill(topic, 3 * PER_SEGMENT)
    consume(channel, consumer, 3 * PER_SEGMENT)
    assert segment_count(topic.log) == 3
    reclaimer.reclaim(topic, mono())
    assert segment_count(topic.log) == 3
    topic.quota.set_own(retention_time_ns=1)
    assert segment_count(topic.log) == 1


def test_retention_by_time_counts_from_when_a_segment_grew_last_not_from_when_it_began(tmp_path):
    with HeldClock() as clock:
        topic = broker_on(tmp_path, retention_time=HOUR_NS).topic("t")
        channel = topic.channel("c")
        consumer = consumer_on(channel)
        fill(topic, 1)
        clock.advance(50 * MINUTE_NS)
        # The first segment grows until now; the next ones begin now.
        fill(topic, 3 * PER_SEGMENT - 1)
        consume(channel, consumer, 3 * PER_SEGMENT)
        for minutes in (0, 11, 48):
            clock.advance(minutes * MINUTE_NS)
            reclaimer.reclaim(topic, clock.mono_ns)
            assert (segment_count(topic.log), topic.retained_from()) == (3, 0)
        clock.advance(2 * MINUTE_NS)
        assert topic.retained_from() == 2 * PER_SEGMENT
        reclaimer.reclaim(topic, clock.mono_ns)
        assert segment_count(topic.log) == 1


def test_retention_by_time_follows_a_wall_clock_that_jumps(tmp_path):
    with HeldClock() as clock:
        topic = broker_on(tmp_path, retention_time=HOUR_NS).topic("t")
        channel = topic.channel("c")
        fill(topic, 2 * PER_SEGMENT)
        consume(channel, consumer_on(channel), 2 * PER_SEGMENT)
        clock.jump(-2 * HOUR_NS)
        reclaimer.reclaim(topic, clock.mono_ns)
        assert segment_count(topic.log) == 2
        clock.jump(4 * HOUR_NS, SECOND_NS)
        reclaimer.reclaim(topic, clock.mono_ns)
        assert segment_count(topic.log) == 1


def test_own_limits_outlive_a_restart_and_zero_is_not_the_default(tmp_path):
    broker = broker_on(tmp_path, retention_bytes=10**9)
    broker.topic("t").quota.set_own(retention_bytes=0, bytes_max=1 << 20)
    broker.topic("u")
    broker.close()
    broker = broker_on(tmp_path, retention_bytes=10**9)
    topic = broker.topic("t")
    assert topic.own_limits == (0, None, 1 << 20)
    assert (topic.retention_bytes, topic.quota.bytes_max) == (0, 1 << 20)
    assert broker.topic("u").own_limits == (None, None, None)
    assert broker.topic("u").retention_bytes == 10**9
    topic.quota.set_own(retention_bytes=None)
    assert topic.retention_bytes == 10**9


def test_a_finished_message_held_by_retention_asks_for_no_trim(tmp_path):
    topic = broker_on(tmp_path, retention_bytes=10**9).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    fill(topic, 2 * PER_SEGMENT)
    consume(channel, consumer, PER_SEGMENT + 1)
    channel.finish_message(consumer, take(channel, consumer, 1)[0][0])
    assert topic.scheduler.run_wakes() == 0


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_quota_refuses_publishing_and_health_is_bad_until_consuming_frees_space(tmp_path, ephemeral):
    broker = broker_on(tmp_path, max_topic_bytes=400 * KIB, mem_queue_size=10**6)
    topic = broker.topic("t#ephemeral" if ephemeral else "t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    count, text = publish_until_refused(topic)
    assert count >= 3 * PER_SEGMENT
    assert "limit of 409600 bytes is reached" in text
    assert topic.quota.bytes_used() <= 400 * KIB
    assert broker.health().startswith(f"NOK - topic {topic.name}: the topic's limit")
    consume(channel, consumer, 2 * PER_SEGMENT)
    assert broker.health() == "OK"
    fill(topic, 1)
    check_topic(topic)


def test_a_drained_topic_at_its_quota_takes_messages_again(tmp_path):
    broker = broker_on(tmp_path, max_bytes_per_file=1 << 20)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    fill(topic, 200)
    consume(channel, consumer, 200)
    topic.quota.set_own(bytes_max=1)
    assert topic.quota.bytes_max == 256 * KIB
    count, _ = publish_until_refused(topic)
    consume(channel, consumer, count)
    reclaimer.reclaim(topic, mono())
    assert broker.health() == "OK"
    fill(topic, PER_SEGMENT)
    assert topic.quota.bytes_used() <= 256 * KIB


def test_publishing_stops_at_the_floor_of_free_bytes_and_resumes_above_it(tmp_path):
    disk = Disk(10 << 20)
    broker = broker_on(tmp_path, disk, min_free_bytes=1 << 20)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    disk.free = (1 << 20) + 1000
    count, text = publish_until_refused(topic)
    assert PER_SEGMENT <= count <= 3 * PER_SEGMENT
    assert "less than 1048576 bytes would be left free" in text
    assert broker.health().startswith("NOK")
    with pytest.raises(DiskFull):
        broker.topic("another")
    disk.free = 1000
    messages = take(channel, consumer, count)
    assert channel.requeue_message(consumer, messages[0][0], 0) == 0
    with pytest.raises(DiskFull):
        publish_deferred_until_refused(topic)
    finish(channel, consumer, messages[1:])
    consume(channel, consumer, 1)
    disk.free = 10 << 20
    assert broker.health() == "OK"
    fill(topic, 1)
    check_channel(channel)


def publish_deferred_until_refused(topic):
    publish(topic, 100, BODY_BYTES, due_ns=wall() + HOUR_NS)


def test_some_space_is_reserved_even_with_a_floor_of_zero(tmp_path):
    disk = Disk(RESERVE_BYTES + (64 << 10))
    topic = broker_on(tmp_path, disk, min_free_bytes=0).topic("t")
    topic.channel("c")
    disk.free = RESERVE_BYTES
    count, _ = publish_until_refused(topic)
    assert count <= 2 * PER_SEGMENT


def test_a_drained_topic_that_is_quiet_gives_its_large_segment_back(tmp_path):
    topic = broker_on(tmp_path, max_bytes_per_file=4 << 20).topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    fill(topic, 500)
    reclaimer.reclaim(topic, mono())
    consume(channel, consumer, 500)
    assert topic.quota.bytes_used() > 1 << 20
    reclaimer.reclaim(topic, mono())
    assert topic.quota.bytes_used() > 1 << 20
    reclaimer.reclaim(topic, mono() + 2 * reclaimer.QUIET_NS)
    assert topic.quota.bytes_used() == 64 * KIB
    assert len(list((tmp_path / "topics" / "t.topic" / "log").iterdir())) == 1
    fill(topic, 3, 500)
    consume(channel, consumer, 3)
    check_topic(topic)
    topic = broker_on(tmp_path, max_bytes_per_file=4 << 20).topic("t")
    assert topic.log.end == 503
    assert topic.channel("c").depth == 0


def test_a_quiet_topic_that_is_not_drained_keeps_its_segments(tmp_path):
    topic = broker_on(tmp_path, max_bytes_per_file=4 << 20).topic("t")
    channel = topic.channel("c")
    fill(topic, 500)
    consume(channel, consumer_on(channel), 499)
    used = topic.quota.bytes_used()
    reclaimer.reclaim(topic, mono())
    reclaimer.reclaim(topic, mono() + 2 * reclaimer.QUIET_NS)
    assert 1 << 20 < topic.quota.bytes_used() <= used
    assert channel.depth == 1


def test_the_first_deferred_message_of_a_channel_takes_no_space_below_the_floor(tmp_path):
    disk = Disk(1 << 30)
    broker = broker_on(tmp_path, disk, min_free_bytes=1 << 20)
    topic = broker.topic("t")
    channel = topic.channel("c")
    disk.free = (1 << 20) + SEGMENT_BYTES_MIN - 1
    topic.publish_body(b"at once", wall())
    with pytest.raises(DiskFull):
        topic.publish_body(b"later", wall(), wall() + HOUR_NS)
    assert topic.message_count == 1
    assert not list((tmp_path / "topics" / "t.topic" / "dues").glob("*"))
    assert broker.health().startswith("NOK - ")
    disk.free += 1
    topic.publish_body(b"later", wall(), wall() + HOUR_NS)
    assert channel.deferred_count == 1
    assert broker.health() == "OK"


def test_background_work_on_the_segments_of_a_deleted_topic_ends_though_the_topic_is_freed(tmp_path):
    broker, jobs = broker_on(tmp_path, max_topic_bytes=1 << 20), Jobs()
    broker.segment_jobs.in_background = jobs.submit
    topic = broker.topic("t")
    consumer = consumer_on(topic.channel("c"))
    fill(topic, 3 * PER_SEGMENT)
    consume(topic.channel("c"), consumer, 2 * PER_SEGMENT)
    log, freed = topic.log, weakref.ref(topic)
    assert jobs.waiting
    topic.channel("c").remove_consumer(consumer)
    broker.delete_topic("t")
    broker.scheduler.run_wakes()
    del topic, consumer
    assert freed() is None
    jobs.run()
    assert log.pool.spares == []


def test_a_spare_that_comes_when_the_quota_is_used_up_is_given_back(tmp_path):
    topic = broker_on(tmp_path, max_topic_bytes=256 * KIB).topic("t")
    spare = topic.log.pool.new_segment(64 * KIB)
    topic.log.pool.jobs = NotedJobs()
    fill(topic, 3 * PER_SEGMENT + 1)
    assert topic.quota.bytes_used() == 256 * KIB
    topic.log.pool.offer_spare(spare)
    assert topic.quota.bytes_used() == 256 * KIB
    assert topic.log.pool.spares == []


class Held:
    """Jobs in the background that run when they are told to."""

    def __init__(self):
        self.jobs = []

    def run(self, job, done):
        self.jobs.append((job, done))

    def finish(self):
        while self.jobs:
            job, done = self.jobs.pop(0)
            done(job(), None)


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def held_topic(tmp_path, held):
    """Return a topic with a quota of five segments and no spares but drained ones, and its channel and consumer."""
    broker = Broker(options_for(tmp_path, max_topic_bytes=320 * KIB), in_background=held.run)
    broker.load()
    topic = broker.topic("t")
    broker.segment_jobs.prepares_ahead = False
    channel = topic.channel("c")
    return topic, channel, consumer_on(channel)


def bytes_on_disk(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "topics").glob("**/*.seg"))


def test_a_drained_segment_counts_for_the_quota_until_it_is_a_spare_and_is_used_then(tmp_path, held, held_topic):
    topic, channel, consumer = held_topic
    fill(topic, 2 * PER_SEGMENT)
    consume(channel, consumer, PER_SEGMENT)
    assert len(held.jobs) == 1
    assert topic.quota.bytes_used() == 128 * KIB
    count, _ = publish_until_refused(topic)
    assert count == 3 * PER_SEGMENT
    assert bytes_on_disk(tmp_path) == topic.quota.bytes_used() == 320 * KIB
    held.finish()
    assert len(topic.log.pool.spares) == 1
    count, _ = publish_until_refused(topic)
    assert count == PER_SEGMENT
    assert bytes_on_disk(tmp_path) == topic.quota.bytes_used() == 320 * KIB


def test_space_of_consumed_messages_of_a_full_topic_is_reclaimed_at_once(tmp_path, held, held_topic):
    topic, channel, consumer = held_topic
    publish_until_refused(topic)
    for _ in range(10):
        consume(channel, consumer, PER_SEGMENT)
        fill(topic, PER_SEGMENT)
        assert topic.quota.bytes_used() <= 320 * KIB
    held.finish()
    assert bytes_on_disk(tmp_path) == topic.quota.bytes_used() <= 320 * KIB
    check_topic(topic)


def test_a_drained_segment_that_comes_back_over_the_quota_is_given_up(tmp_path, held, held_topic):
    topic, channel, consumer = held_topic
    topic.quota.set_own(bytes_max=1 << 20)
    fill(topic, 5 * PER_SEGMENT)
    consume(channel, consumer, PER_SEGMENT)
    topic.quota.set_own(bytes_max=256 * KIB)
    held.finish()
    assert topic.log.pool.spares == []
    assert bytes_on_disk(tmp_path) == topic.quota.bytes_used() == 256 * KIB


def test_spares_beyond_a_lowered_quota_do_not_refuse_publishing(tmp_path, held, held_topic):
    topic, channel, consumer = held_topic
    topic.quota.set_own(bytes_max=1 << 20)
    fill(topic, 5 * PER_SEGMENT)
    consume(channel, consumer, 2 * PER_SEGMENT)
    held.finish()
    assert len(topic.log.pool.spares) == 2
    topic.quota.set_own(bytes_max=256 * KIB)
    fill(topic, PER_SEGMENT)
    held.finish()
    assert bytes_on_disk(tmp_path) == topic.quota.bytes_used() == 256 * KIB


def test_a_ready_spare_is_used_though_others_exceed_the_quota(held, held_topic):
    topic, channel, consumer = held_topic
    topic.quota.set_own(bytes_max=1 << 20)
    fill(topic, 5 * PER_SEGMENT)
    consume(channel, consumer, 2 * PER_SEGMENT)
    held.finish()
    topic.quota.bytes_max = 256 * KIB
    fill(topic, PER_SEGMENT)
    assert segment_count(topic.log) == 4
    with pytest.raises(DiskFull):
        fill(topic, 1)
