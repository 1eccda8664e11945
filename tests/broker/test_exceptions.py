"""Tests of channels with exceptions in their ledgers: old messages that stay unfinished behind many finished ones."""

import shutil

import pytest

from pyqd.broker import message_lookup, segment_rewriter
from pyqd.broker.replay import effect
from pyqd.hot.broker.replay import seek
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_topic
from tests.support.storage import broker_on, consumer_on, number_in, publish, run_all_wakes, take_all

DONE, NOT_IN_FLIGHT = 0, 1
COUNT = 1000
OLD = (0, 5, 400)


@pytest.fixture
def topic(tmp_path, short_ring_with_exceptions):
    (tmp_path / "data").mkdir()
    topic = broker_on(tmp_path / "data").topic("t")
    topic.channel("c")
    return topic


def work_off(topic, consumer, kept=OLD, count=COUNT, start=0, size_bytes=16):
    """Publish messages, take all and finish all but some; return {number: id} of those."""
    channel = topic.channel("c")
    held = {}
    for first in range(start, start + count, 10):
        publish(topic, 10, size_bytes, first)
        for guid, _, _, body in take_all(channel, consumer):
            if number_in(body) in kept:
                held[number_in(body)] = guid
            else:
                assert channel.finish_message(consumer, guid) == DONE
        run_all_wakes(topic.broker)
    check_topic(topic)
    return held


def numbers_of(messages):
    return [number_in(message[3]) for message in messages]


def test_messages_in_flight_for_long_are_exceptions_of_a_small_ledger(topic, short_ring_with_exceptions):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    held = work_off(topic, consumer)
    ledger = channel.ledger
    assert (ledger.capacity_bits, ledger.exceptions_count, ledger.oldest) == (short_ring_with_exceptions, 3, 0)
    assert (channel.depth, channel.in_flight_count) == (0, 3)
    for number in (5, 0, 400):
        assert channel.finish_message(consumer, held[number]) == DONE
        assert channel.finish_message(consumer, held[number]) == NOT_IN_FLIGHT
        check_topic(topic)
    assert (ledger.exceptions_count, ledger.oldest, ledger.floor) == (0, COUNT, COUNT)
    assert topic.log.first is topic.log.active or topic.log.first.first_ordinal == 0


def test_the_fin_of_an_exception_in_a_sealed_ledger_takes_the_seal_off(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    held = work_off(topic, consumer)
    channel.ledger.seal()
    assert channel.finish_message(consumer, held[5]) == DONE
    channel.ledger.check()
    assert channel.ledger.exceptions_count == 2


@pytest.mark.parametrize("stopped", [False, True])
def test_exceptions_are_delivered_again_after_a_restart(topic, tmp_path, stopped):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    held = work_off(topic, consumer)
    assert channel.finish_message(consumer, held[5]) == DONE
    if stopped:
        topic.broker.close_topics()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    again = broker_on(tmp_path / "killed").topic("t")
    check_topic(again)
    channel = again.channel("c")
    consumer = consumer_on(channel)
    assert (channel.depth, channel.ledger.exceptions_count) == (2, 2)
    taken = take_all(channel, consumer)
    assert (numbers_of(taken), {message[1] for message in taken}) == ([0, 400], {2})
    for guid, *_ in taken:
        assert channel.finish_message(consumer, guid) == DONE
    check_topic(again)
    assert (channel.depth, channel.ledger.oldest) == (0, COUNT)


def test_a_segment_stays_until_its_exception_is_finished(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    held = work_off(topic, consumer, kept=(3,), count=2000, size_bytes=400)
    assert (topic.log.first.first_ordinal, channel.ledger.exceptions_count) == (0, 1)
    assert channel.ledger.floor > topic.log.first.count
    assert channel.finish_message(consumer, held[3]) == DONE
    run_all_wakes(topic.broker)
    assert topic.log.first.first_ordinal > 0
    check_topic(topic)


def test_a_rewritten_segment_keeps_exceptions(topic, monkeypatch):
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_AGE_NS", 0)
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_LOG_BYTES_MIN", 0)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    held = work_off(topic, consumer, kept=(3, 5), count=2000, size_bytes=400)
    assert channel.requeue_message(consumer, held[5], HOUR_NS) == DONE
    assert (channel.ledger.oldest, channel.ledger.exceptions_count) == (3, 2)
    topic.note_given(topic.end)
    segment_rewriter.rewrite_old_segments(topic)
    assert [record[0] for record in topic.log.records()][:2] == [3, 5]
    check_topic(topic)
    for guid in held.values():
        (outcome,) = message_lookup.change_message(topic, [channel], guid, message_lookup.cancel, lambda: None)
        assert outcome.status == (message_lookup.DONE if guid == held[5] else "in_flight")
    assert channel.finish_message(consumer, held[3]) == DONE
    run_all_wakes(topic.broker)
    check_topic(topic)
    assert channel.ledger.oldest == 2000
    assert topic.log.first.first_ordinal > 5


@pytest.mark.parametrize("delay_ns", [0, SECOND_NS])
def test_an_exception_can_be_requeued(topic, delay_ns):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    with HeldClock() as clock:
        held = work_off(topic, consumer)
        assert channel.requeue_message(consumer, held[5], delay_ns) == DONE
        check_topic(topic)
        clock.jump(2 * SECOND_NS, 2 * SECOND_NS)
        topic.broker.scheduler.run_timers(clock.mono_ns)
        run_all_wakes(topic.broker)
        guid, attempts, _, body = channel.take_message(consumer)
        assert (guid, attempts, number_in(body)) == (held[5], 2, 5)
        assert channel.ledger.exceptions_count == 3
        assert channel.finish_message(consumer, guid) == DONE
        check_topic(topic)
        assert (channel.ledger.exceptions_count, channel.ledger.oldest) == (2, 0)


def test_a_seek_counts_exceptions_and_drops_them(topic):
    channel = topic.channel("c")
    work_off(topic, consumer_on(channel))
    assert effect(topic, channel, 300)["skip"] == 2
    assert effect(topic, channel, 300)["finished"] == COUNT - 300 - 1
    seek(channel, 300)
    check_topic(topic)
    assert (channel.depth, channel.ledger.oldest, channel.ledger.exceptions_count) == (COUNT - 300, 300, 0)


def test_a_deferred_message_is_an_exception_behind_many_finished_ones(topic, short_ring_with_exceptions):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    with HeldClock() as clock:
        publish(topic, 1, start=7, due_ns=wall() + HOUR_NS)
        for number in range(400):
            publish(topic, 1, start=1000 + number, due_ns=wall() + SECOND_NS)
            run_all_wakes(topic.broker)
            clock.jump(2 * SECOND_NS, 2 * SECOND_NS)
            topic.broker.scheduler.run_timers(clock.mono_ns)
            guid, *_ = channel.take_message(consumer)
            assert channel.finish_message(consumer, guid) == DONE
        check_topic(topic)
        ledger = channel.ledger
        assert (ledger.capacity_bits, ledger.exceptions_count, ledger.oldest) == (short_ring_with_exceptions, 1, 0)
        assert topic.log.first.first_ordinal == 0
        clock.jump(HOUR_NS, HOUR_NS)
        topic.broker.scheduler.run_timers(clock.mono_ns)
        run_all_wakes(topic.broker)
        (message,) = take_all(channel, consumer)
        assert number_in(message[3]) == 7
        assert channel.finish_message(consumer, message[0]) == DONE
        check_topic(topic)
        assert ledger.oldest == topic.log.end
