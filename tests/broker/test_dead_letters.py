"""Tests of pyqd.broker.dead_letters and pyqd.broker.channel_settings: messages that were delivered often enough."""

import logging
from typing import Any

import pytest

from pyqd.broker.channel_settings import NO_LIMITS, ChannelSettings, decode_settings, encode_settings
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.broker.replay import seek
from pyqd.hot.primitives.clock import mono, wall
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.invariants import check_topic
from tests.support.storage import FullFiles, body_of, broker_on, consumer_on

LIMITS = ChannelSettings(max_attempts=2, dead_letter_topic="dead")


class Bench:
    """A topic `t` with the channel `c`, whose messages go to the topic `dead` after two attempts."""

    def __init__(self, directory, files=None):
        self.directory = directory
        self.files = files
        self.syncer: Any = None
        self.open()
        self.broker.topic("dead")
        self.channel.set_limits(LIMITS)

    def open(self):
        self.broker = broker_on(self.directory, self.files)
        self.channel = self.broker.topic("t").channel("c")
        self.consumer = consumer_on(self.channel)

    def publish(self, *bodies):
        for body in bodies:
            self.channel.topic.publish_body(body, wall())

    def take(self):
        return self.channel.take_message(self.consumer)

    def requeue(self, delay_ns=0):
        """Take a message and give it back. Returns: its attempts."""
        guid, attempts, _, _ = self.take()
        assert self.channel.requeue_message(self.consumer, guid, delay_ns) == 0
        return attempts

    def turn(self):
        self.broker.scheduler.run_timers(mono() + 2 * SECOND_NS)
        self.broker.scheduler.run_wakes()
        for topic in self.broker.topics.values():
            check_topic(topic)

    def letters(self):
        topic = self.broker.topics.get("dead")
        return [] if topic is None else [body for *_, body in topic.log.records()]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.mark.parametrize("delay_ns", [0, HOUR_NS])
def test_a_message_given_back_after_its_last_attempt_is_published_elsewhere_at_once(bench, delay_ns):
    bench.publish(b"x")
    assert [bench.requeue(), bench.requeue(delay_ns)] == [1, 2]
    assert (bench.channel.depth, bench.channel.dead_letters_pending) == (1, 1)
    assert bench.take() is None
    bench.turn()
    assert bench.letters() == [b"x"]
    assert (bench.channel.depth, bench.channel.deferred_count, bench.channel.dead_letter_count) == (0, 0, 1)
    assert bench.channel.ledger.floor == 1


def test_so_is_one_that_timed_out(bench):
    bench.publish(b"x")
    bench.requeue()
    bench.take()
    bench.broker.scheduler.run_timers(mono() + HOUR_NS)
    bench.turn()
    assert bench.letters() == [b"x"]
    assert bench.channel.timeout_count == 1


def test_one_that_is_finished_is_not(bench):
    bench.publish(b"x")
    bench.requeue()
    guid, attempts, *_ = bench.take()
    assert attempts == 2
    assert bench.channel.finish_message(bench.consumer, guid) == 0
    bench.turn()
    assert bench.letters() == []


def test_the_log_names_both_ids(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.publish(b"x")
    bench.requeue()
    guid = bench.take()[0]
    bench.channel.requeue_message(bench.consumer, guid, 0)
    bench.turn()
    letter = to_hex(bench.broker.topics["dead"].guids.last_id).decode()
    assert f"CHANNEL(c): message {to_hex(guid).decode()} after 2 attempts is {letter} of topic dead" in caplog.text


def test_a_limit_set_later_applies_to_waiting_messages(bench):
    bench.channel.set_limits(NO_LIMITS)
    bench.publish(b"x", b"y")
    for _ in range(2):
        for guid in [bench.take()[0], bench.take()[0]]:
            bench.channel.requeue_message(bench.consumer, guid, 0)
    bench.channel.set_limits(LIMITS)
    bench.turn()
    assert bench.letters() == [b"x", b"y"]


def test_removing_a_limit_returns_dead_letters_that_could_not_be_published(bench):
    bench.broker.delete_topic("dead")
    bench.publish(b"x")
    bench.requeue()
    bench.requeue()
    bench.turn()
    assert bench.take() is None
    bench.channel.set_limits(NO_LIMITS)
    assert bench.take()[1] == 3


@pytest.mark.parametrize("clean", [True, False])
def test_unpublished_dead_letters_are_published_after_a_restart(bench, clean):
    bench.broker.delete_topic("dead")
    bench.publish(b"x")
    bench.requeue()
    bench.requeue()
    bench.turn()
    assert bench.channel.dead_letter_error == "topic dead does not exist"
    if clean:
        bench.broker.close()
    bench.open()
    bench.broker.topic("dead")
    assert bench.channel.limits == LIMITS
    if not clean:
        # A kill takes the attempts along; one is presumed.
        assert bench.requeue() == 2
    bench.turn()
    assert bench.letters() == [b"x"]
    assert bench.channel.depth == 0


def test_a_warning_comes_once_for_each_reason(tmp_path, caplog):
    bench = Bench(tmp_path, FullFiles())
    bench.publish(body_of(1, 70_000))
    bench.requeue()
    bench.requeue()
    bench.files.room = 0
    for _ in range(3):
        bench.channel.limit_attempts(LIMITS.max_attempts)
        bench.turn()
    (text,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot publish 1 dead letters: failed to reserve" in text
    bench.files.room = None
    # Or a second goes by before the next try.
    bench.channel.limit_attempts(LIMITS.max_attempts)
    bench.turn()
    assert bench.letters() == [body_of(1, 70_000)]
    assert bench.channel.dead_letter_error is None


@pytest.mark.parametrize("how", ["empty", "seek", "delete"])
def test_operations_that_remove_messages_remove_waiting_dead_letters(bench, how):
    Syncer(bench.broker, run_inline)
    bench.channel.dead_letters.durable = True
    bench.publish(b"buried", b"doomed")
    bench.requeue()
    bench.requeue()
    bench.requeue()
    bench.turn()
    if how == "delete":
        bench.broker.delete_topic("dead")
    bench.requeue()
    if how == "empty":
        bench.channel.empty()
    elif how == "seek":
        seek(bench.channel, 0)
    else:
        bench.channel.close_consumers()
        bench.channel.topic.delete_channel("c")
    assert (bench.channel.dead_letters_pending, bench.channel.dead_letters_unsynced) == (0, 0)
    bench.turn()
    if how == "seek":
        assert [bench.take()[1] for _ in range(2)] == [1, 1]


def test_a_draining_daemon_retries_dead_letters_every_second(bench):
    bench.publish(b"x")
    bench.requeue()
    bench.broker.refuse_publishes()
    bench.requeue()
    bench.broker.scheduler.run_wakes()
    now_ns = mono()
    assert bench.broker.scheduler.run_timers(now_ns) >= now_ns + SECOND_NS // 2
    assert (bench.channel.dead_letters_pending, bench.letters()) == (1, [])


def test_an_ephemeral_channel_has_limits_too(tmp_path):
    broker = broker_on(tmp_path)
    broker.topic("dead")
    channel = broker.topic("t").channel("c#ephemeral")
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    consumer = consumer_on(channel)
    channel.topic.publish_body(b"x", wall())
    channel.requeue_message(consumer, channel.take_message(consumer)[0], 0)
    broker.scheduler.run_wakes()
    assert broker.topic("dead").message_count == 1


class TestWithASyncer:
    """A dead letter is finished in its channel when a sync has covered it."""

    @pytest.fixture
    def synced(self, tmp_path):
        bench = Bench(tmp_path)
        bench.syncer = Syncer(bench.broker, run_inline)
        bench.channel.dead_letters.durable = True
        bench.publish(b"x")
        bench.requeue()
        bench.requeue()
        bench.turn()
        assert bench.letters() == [b"x"]
        return bench

    def test_it_is_nobodys_until_then(self, synced):
        assert (synced.channel.dead_letters_unsynced, synced.channel.depth, synced.channel.ledger.floor) == (1, 0, 0)
        assert synced.take() is None
        assert synced.syncer.sync_dirty()
        assert (synced.channel.dead_letters_unsynced, synced.channel.ledger.floor) == (0, 1)
        assert synced.channel.dead_letter_count == 1

    def test_a_clean_stop_leaves_it_in_one_place(self, synced):
        synced.broker.close_topics()
        assert synced.syncer.sync_all()
        synced.broker.mark_clean()
        synced.open()
        synced.turn()
        assert synced.letters() == [b"x"]
        assert synced.channel.depth == 0

    def test_a_kill_leaves_it_in_both(self, synced):
        synced.open()
        assert synced.letters() == [b"x"]
        assert synced.take()[3] == b"x"

    def test_deleting_the_topic_it_went_to_brings_it_back(self, synced):
        synced.broker.delete_topic("dead")
        assert (synced.channel.dead_letters_unsynced, synced.channel.dead_letters_pending) == (0, 1)
        synced.broker.topic("dead")
        synced.turn()
        assert synced.letters() == [b"x"]
        assert synced.syncer.sync_dirty()
        assert synced.channel.ledger.floor == 1

    def test_one_that_went_elsewhere_before_is_settled_there(self, synced):
        synced.broker.topic("other")
        synced.channel.set_limits(LIMITS._replace(dead_letter_topic="other"))
        synced.publish(b"y")
        synced.requeue()
        synced.requeue()
        synced.turn()
        assert synced.channel.dead_letters_unsynced == 2
        assert synced.syncer.sync_dirty()
        assert (synced.channel.dead_letters_unsynced, synced.channel.ledger.floor) == (0, 2)


class TestSettings:
    """Limits in the ledger's file."""

    @pytest.mark.parametrize(
        "limits",
        [NO_LIMITS, LIMITS, ChannelSettings(rate=0.1, burst=3.5), ChannelSettings(1e9, 1e9, 65535, "x" * 64)],
    )
    def test_saved_settings_are_read_back(self, tmp_path, limits):
        assert decode_settings(encode_settings(limits)) == limits
        channel = broker_on(tmp_path).topic("t").channel("c")
        channel.set_limits(limits)
        assert broker_on(tmp_path).topic("t").channel("c").limits == limits

    def test_the_last_of_many_counts(self, tmp_path):
        channel = broker_on(tmp_path).topic("t").channel("c")
        for rate in range(1, 8):
            channel.set_limits(ChannelSettings(rate=float(rate)))
            assert broker_on(tmp_path).topic("t").channel("c").limits.rate == rate

    def test_they_stay_when_the_ledger_grows(self, tmp_path):
        channel = broker_on(tmp_path).topic("t").channel("c")
        channel.set_limits(LIMITS)
        channel.ledger.note_finished(8 * 4096 * 3)
        assert decode_settings(channel.ledger.settings) == LIMITS

    def test_a_torn_copy_is_replaced_by_the_previous_one(self, tmp_path):
        channel = broker_on(tmp_path).topic("t").channel("c")
        channel.set_limits(ChannelSettings(rate=1.0))
        channel.set_limits(ChannelSettings(rate=2.0))
        path = tmp_path / "topics" / "t.topic" / "c.channel" / "ledger"
        content = bytearray(path.read_bytes())
        at = content.index(encode_settings(ChannelSettings(rate=2.0)))
        content[at] ^= 1
        path.write_bytes(content)
        assert broker_on(tmp_path).topic("t").channel("c").limits.rate == 1
