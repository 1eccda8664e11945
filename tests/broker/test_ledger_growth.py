"""Tests of ledgers that grow in a thread while their channels or topics are deleted, emptied or stopped."""

import pytest

from pyqd.broker import topic as topic_module
from pyqd.hot.primitives.clock import wall
from tests.support.invariants import check_topic
from tests.support.storage import Jobs, broker_on, frames_of, run_all_wakes


@pytest.fixture
def topic(tmp_path):
    return broker_on(tmp_path).topic("t")


@pytest.fixture
def jobs(topic, monkeypatch):
    """Return the jobs of a topic whose ledgers grow in them."""
    jobs = Jobs()
    monkeypatch.setattr(topic.broker, "in_background", jobs.submit)
    return jobs


@pytest.fixture
def beyond(short_ring):
    """Return a number of messages that the ring of a new ledger has too few bits for."""
    return short_ring + 1


def grow_in_channel(topic, count):
    """Publish messages, and let the ledger of a channel grow for the last one. Returns: the channel."""
    channel = topic.channel("c")
    topic.publish_frames(frames_of([b"x"] * count), wall())
    channel.grow_ledger(topic.log.end - 1, lambda: None)
    assert channel.grows
    return channel


def test_a_channel_deleted_while_its_ledger_grows_takes_the_file_along(topic, jobs, beyond):
    grow_in_channel(topic, beyond)
    topic.delete_channel("c")
    topic.channel("c")
    jobs.run()
    run_all_wakes(topic.broker)
    channel = topic.channels_by_name["c"]
    assert (channel.depth, channel.deferred_count, channel.ledger.capacity_bits) == (0, 0, beyond - 1)
    check_topic(topic)


def test_a_topic_deleted_while_a_ledger_grows_touches_no_file_of_the_next_one(topic, jobs, beyond, monkeypatch):
    channel = grow_in_channel(topic, beyond)
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


def test_a_stop_while_a_ledger_grows_leaves_nothing_of_it(topic, jobs, beyond, tmp_path):
    grow_in_channel(topic, beyond)
    assert [path.name for path in tmp_path.rglob("*.growing")] == ["ledger.growing"]
    topic.broker.close()
    assert not [path.name for path in tmp_path.rglob("*.growing")]
    topic = broker_on(tmp_path).topic("t")
    assert topic.channels_by_name["c"].depth == beyond


def test_an_emptied_topic_finds_the_ledgers_large_enough_that_grew_in_the_background(topic, jobs, beyond):
    channel, other = topic.channel("c"), topic.channel("d")
    topic.pause(True)
    topic.publish_frames(frames_of([b"x"] * beyond), wall())
    ended = []
    for each in (channel, other):
        each.grow_ledger(topic.log.end - 1, lambda each=each: ended.append(each))
    topic.delete_channel("d")
    other.grow_ledger(topic.log.end - 1, lambda: ended.append("deleted"))
    assert (ended, channel.grows) == (["deleted"], True)
    while len(ended) < 3:
        jobs.run()
    assert (channel.grows, channel.ledger.capacity_bits) == (False, 2 * (beyond - 1))
    channel.grow_ledger(topic.log.end - 1, lambda: ended.append("again"))
    assert ended[3:] == ["again"]
    assert len(list(topic.prepare_to_empty())) == 1
    topic.empty()
    run_all_wakes(topic.broker)
    assert (channel.depth, topic.depth) == (0, 0)
    check_topic(topic)


def test_a_ledger_does_not_grow_for_messages_that_another_request_has_dropped_meanwhile(topic, jobs, beyond):
    channels = [topic.channel(name) for name in "ab"]
    topic.pause(True)
    topic.publish_frames(frames_of([b"x"] * beyond), wall())
    end = topic.log.end
    list(topic.prepare_to_empty())
    topic.empty()
    run_all_wakes(topic.broker)
    ended = []
    for channel in channels:
        channel.grow_ledger(end - 1, lambda: ended.append(True))
    assert (len(ended), [channel.grows for channel in channels]) == (2, [False, False])


def test_a_ledger_without_a_file_does_not_grow_in_the_background(topic, jobs, beyond):
    memory = topic.broker.topic("u#ephemeral")
    channel = memory.channel("c")
    ended = []
    channel.grow_ledger(10 * beyond, lambda: ended.append(True))
    assert (ended, channel.grows, jobs.waiting) == ([True], False, [])
