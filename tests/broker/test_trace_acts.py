"""The event of each act on a message of a traced topic."""

from types import SimpleNamespace
from typing import Any

import pytest

from pyqd.broker import message_lookup, replay
from pyqd.broker.channel_settings import ChannelSettings
from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.broker.intake import enqueue_frames, set_limits_for_tests
from pyqd.hot.broker.trace import TraceClient
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import StorageError
from tests.support.held_clock import HeldClock
from tests.support.storage import FullFiles, broker_on, consumer_on, frames_of, run_all_wakes
from tests.support.tracing import events_of, kinds_of

ADDRESS, AGENT = "10.0.0.7:51342", "pynsq/0.9"
ALL: Any = {"trace_topic": ("*",)}


class Bench:
    """A traced topic `t` with the channel `c`, and a consumer that describes itself."""

    def __init__(self, path: Any, **flags: Any) -> None:
        self.broker = broker_on(path, **(ALL | flags))
        self.topic = self.broker.topic("t")
        self.channel = self.topic.channel("c")
        self.consumer = self.subscribe()
        self.position = 0
        # The fixture sets it.
        self.clock: Any = None

    def subscribe(self) -> Consumer:
        consumer = consumer_on(self.channel)
        consumer.client = SimpleNamespace(remote_address=ADDRESS, user_agent=AGENT, close=list)
        return consumer

    def publish(self, count: int = 1, due_ns: int = 0) -> list[int]:
        return [self.topic.publish_body(b"body", wall(), due_ns) for _ in range(count)]

    def take(self) -> int:
        guid: int = self.channel.take_message(self.consumer)[0]
        return guid

    def events(self) -> list[Any]:
        """Return the events since the last call."""
        rows = events_of(self.broker, self.position)
        self.position = rows[-1].position + 1 if rows else self.position
        return rows


@pytest.fixture
def bench(tmp_path):
    with HeldClock() as clock:
        made = Bench(tmp_path)
        made.clock = clock
        yield made
        made.broker.close()


def test_a_message_that_is_published_sent_and_finished(bench):
    (guid,) = bench.publish()
    bench.clock.advance(SECOND_NS)
    assert bench.take() == guid
    bench.clock.advance(SECOND_NS)
    assert bench.channel.finish_message(bench.consumer, guid) == 0
    published, stored, sent, finished = bench.events()
    assert (published.kind, published.guid, published.topic, published.channel) == ("published", guid, "t", None)
    assert (published.size_bytes, published.client, published.attempt, published.due_ns) == (4, None, None, None)
    assert (stored.kind, stored.guid, stored.channel) == ("stored", guid, "c")
    assert (sent.kind, sent.guid, sent.channel, sent.attempt) == ("sent", guid, "c", 1)
    assert (sent.client, sent.user_agent) == (ADDRESS, AGENT)
    assert (finished.kind, finished.attempt, finished.client) == ("finished", 1, ADDRESS)
    times = [row.timestamp_ns for row in (published, stored, sent, finished)]
    assert [time_ns - times[0] for time_ns in times] == [0, 0, SECOND_NS, 2 * SECOND_NS]


def test_each_message_of_a_batch_has_its_events(bench):
    bench.topic.published_by(TraceClient(ADDRESS, AGENT))
    first = bench.topic.publish_frames(frames_of([b"a", b"bb", b"ccc"]), wall())
    rows = bench.events()
    assert kinds_of(rows) == ["published", "stored"] * 3
    assert [row.guid for row in rows[::2]] == [row.guid for row in rows[1::2]] == [first, first + 1, first + 2]
    assert [row.size_bytes for row in rows[::2]] == [1, 2, 3]
    assert {row.client for row in rows[::2]} == {ADDRESS}
    assert {row.user_agent for row in rows[::2]} == {AGENT}


def test_the_publisher_is_that_of_one_publish_alone(bench):
    bench.topic.published_by(TraceClient(ADDRESS, AGENT))
    bench.publish()
    bench.publish()
    assert [row.client for row in bench.events() if row.kind == "published"] == [ADDRESS, None]


def test_a_deferred_message_shows_its_due_time(bench):
    due_ns = bench.clock.wall_ns + HOUR_NS
    bench.publish(due_ns=due_ns)
    bench.topic.publish_frames(frames_of([b"x"]), wall(), due_ns)
    assert [(row.kind, row.due_ns) for row in bench.events()] == [("published", due_ns), ("stored", None)] * 2


def test_a_large_batch_is_traced_when_it_is_stored(bench):
    former = set_limits_for_tests(1000, 1000)
    try:
        queued = enqueue_frames(bench.topic, frames_of([b"x" * 90] * 100), wall())
        queued.publisher = TraceClient(ADDRESS, AGENT)
        assert bench.events() == []
        run_all_wakes(bench.broker)
    finally:
        set_limits_for_tests(*former)
    rows = bench.events()
    assert queued.stored
    assert kinds_of(rows) == ["published", "stored"] * 100
    assert rows[-1].guid == queued.last_id
    assert {row.client for row in rows[::2]} == {ADDRESS}


def test_a_publish_without_a_channel_is_stored_when_the_topic_gets_one(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    topic = broker.topic("t")
    guids = [topic.publish_body(b"x", wall()) for _ in range(3)]
    topic.channel("c")
    topic.channel("d")
    topic.publish_body(b"y", wall())
    rows = events_of(broker)
    assert kinds_of(rows) == ["published"] * 3 + ["stored", "published", "stored", "stored"]
    released = rows[3]
    assert (released.channel, released.count, released.reason, released.message_id) == ("c", 3, "released", None)
    assert [row.channel for row in rows[5:]] == ["c", "d"]
    assert [row.guid for row in rows[:3]] == guids
    broker.close()


def test_messages_of_a_paused_topic_are_stored_when_it_goes_on(bench):
    bench.topic.pause(True)
    bench.publish(2)
    bench.topic.pause(False)
    rows = bench.events()
    assert kinds_of(rows) == ["published", "published", "stored"]
    assert (rows[2].count, rows[2].reason, rows[2].channel) == (2, "released", "c")


def test_a_deleted_channel_gets_no_more_messages(bench):
    bench.topic.channel("d")
    bench.publish()
    bench.topic.delete_channel("d")
    bench.publish()
    rows = [(row.kind, row.channel, row.reason, row.count) for row in bench.events()]
    assert rows == [
        ("published", None, None, None),
        ("stored", "c", None, None),
        ("stored", "d", None, None),
        ("dropped", "d", "channel_deleted", 1),
        ("published", None, None, None),
        ("stored", "c", None, None),
    ]


def test_a_requeue_shows_its_delay(bench):
    guids = bench.publish(2)
    for guid, delay_ns in zip([bench.take(), bench.take()], (0, 1500 * MILLISECOND_NS), strict=True):
        bench.channel.requeue_message(bench.consumer, guid, delay_ns)
    rows = [row for row in bench.events() if row.kind == "requeued"]
    assert [(row.guid, row.attempt, row.delay_ms, row.client) for row in rows] == [
        (guids[0], 1, 0, ADDRESS),
        (guids[1], 1, 1500, ADDRESS),
    ]


def test_a_requeue_that_is_refused_leaves_no_event(tmp_path):
    files = FullFiles()
    broker = broker_on(tmp_path, files, **ALL)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    topic.publish_body(b"x", wall())
    guid = channel.take_message(consumer)[0]
    before = events_of(broker)
    files.room = 0
    with pytest.raises(StorageError):
        channel.requeue_message(consumer, guid, SECOND_NS)
    files.room = None
    assert channel.finish_message(consumer, guid) == 0
    assert kinds_of(events_of(broker, before[-1].position + 1)) == ["finished"]
    broker.close()


def test_a_touch_and_a_timeout(bench):
    (guid,) = bench.publish()
    bench.take()
    assert bench.channel.touch_message(bench.consumer, guid) == 0
    bench.clock.advance(2 * MINUTE_NS)
    bench.broker.scheduler.run_timers(mono())
    assert bench.take() == guid
    rows = bench.events()[2:]
    assert [(row.kind, row.guid, row.attempt, row.client) for row in rows] == [
        ("sent", guid, 1, ADDRESS),
        ("touched", guid, 1, ADDRESS),
        ("timed_out", guid, 1, ADDRESS),
        ("sent", guid, 2, ADDRESS),
    ]


def test_a_client_that_leaves_and_the_timeouts_after_it(bench):
    bench.publish(3)
    first, second = bench.take(), bench.take()
    other = bench.subscribe()
    third = bench.channel.take_message(other)[0]
    bench.channel.remove_consumer(bench.consumer)
    run_all_wakes(bench.broker)
    bench.clock.advance(2 * MINUTE_NS)
    bench.broker.scheduler.run_timers(mono())
    rows = bench.events()
    gone = [row for row in rows if row.kind == "client_gone"]
    assert {row.guid for row in gone} == {first, second}
    assert {(row.client, row.attempt) for row in gone} == {(ADDRESS, 1)}
    timed_out = {row.guid: row.client for row in rows if row.kind == "timed_out"}
    assert timed_out == {first: None, second: None, third: ADDRESS}


@pytest.mark.slow
def test_messages_of_clients_that_leave_are_searched_in_slices_and_each_has_one_event(tmp_path):
    bench = Bench(tmp_path)
    scheduler = bench.broker.scheduler
    # Each pass ends after one portion of work.
    scheduler.time_max_ns = 1
    leaving = [bench.consumer, bench.subscribe()]
    bench.subscribe()
    guids = bench.publish(30_000)
    for number in range(len(guids)):
        bench.channel.take_message(bench.channel.consumers[number % 3])
    run_all_wakes(bench.broker)
    bench.events()
    for consumer in leaving:
        bench.channel.remove_consumer(consumer)
    scheduler.run_wakes()
    rows = bench.events()
    assert set(kinds_of(rows)) == {"client_gone"}
    assert len(rows) < 15_000
    while bench.channel.in_flight_count:
        scheduler.run_timers(mono() + 2 * MINUTE_NS)
    run_all_wakes(bench.broker)
    kinds: dict[int, list[str]] = {}
    for row in rows + bench.events():
        kinds.setdefault(row.guid, []).append(row.kind)
    assert [kinds[guid] for guid in guids] == 10_000 * [*(2 * [["client_gone", "timed_out"]]), ["timed_out"]]


def test_a_clean_stop_notes_clients_that_have_just_left(tmp_path):
    bench = Bench(tmp_path)
    (guid,) = bench.publish()
    assert bench.take() == guid
    bench.channel.remove_consumer(bench.consumer)
    bench.broker.close()
    *_, last = events_of(broker_on(tmp_path, **ALL))
    assert (last.kind, last.guid, last.client) == ("client_gone", guid, ADDRESS)


def change(bench: Bench, guid: int, how: Any) -> None:
    (outcome,) = message_lookup.change_message(bench.topic, [bench.channel], guid, how, lambda: None)
    assert outcome.status == message_lookup.DONE


def test_changes_of_single_messages(bench):
    guids = bench.publish(3, due_ns=bench.clock.wall_ns + HOUR_NS)
    due_ns = bench.clock.wall_ns + 2 * HOUR_NS
    change(bench, guids[0], message_lookup.cancel)
    change(bench, guids[1], message_lookup.reschedule_to(bench.topic, due_ns))
    change(bench, guids[2], message_lookup.reschedule_to(bench.topic, wall(), at_once=True))
    rows = bench.events()[6:]
    assert [(row.kind, row.guid, row.channel, row.due_ns) for row in rows] == [
        ("cancelled", guids[0], "c", None),
        ("rescheduled", guids[1], "c", due_ns),
        ("delivered_now", guids[2], "c", None),
    ]


def test_a_message_that_is_due_already_is_not_changed(bench):
    (guid,) = bench.publish()
    bench.events()
    change(bench, guid, message_lookup.reschedule_to(bench.topic, wall(), at_once=True))
    assert bench.events() == []


def test_a_dead_letter_and_its_copy(bench):
    bench.broker.topic("dead")
    bench.channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="dead"))
    (guid,) = bench.publish()
    bench.channel.requeue_message(bench.consumer, bench.take(), 0)
    run_all_wakes(bench.broker)
    *_, letter, dead = bench.events()
    assert (dead.kind, dead.guid, dead.channel, dead.attempt, dead.reason) == (
        "dead_lettered",
        guid,
        "c",
        1,
        "attempts",
    )
    assert (letter.kind, letter.topic, letter.client) == ("published", "dead", None)


def test_an_emptied_channel_drops_all_that_it_has_not_finished(bench):
    bench.publish(3)
    bench.publish(2, due_ns=bench.clock.wall_ns + HOUR_NS)
    bench.channel.finish_message(bench.consumer, bench.take())
    bench.take()
    bench.channel.empty()
    dropped = bench.events()[-1]
    assert (dropped.kind, dropped.channel, dropped.reason, dropped.count) == ("dropped", "c", "emptied", 4)


def test_an_emptied_topic_drops_what_it_holds(bench):
    bench.topic.pause(True)
    bench.publish(2)
    bench.topic.empty()
    dropped = bench.events()[-1]
    assert (dropped.kind, dropped.channel, dropped.reason, dropped.count) == ("dropped", None, "emptied", 2)


def test_a_deleted_topic_drops_the_messages_of_its_channels_and_its_own(bench):
    bench.publish(2)
    bench.topic.pause(True)
    bench.publish(1)
    bench.broker.delete_topic("t")
    rows = [row for row in bench.events() if row.kind == "dropped"]
    assert [(row.channel, row.reason, row.count) for row in rows] == [
        ("c", "topic_deleted", 2),
        (None, "topic_deleted", 1),
    ]


def test_a_seek_shows_what_is_dropped_and_what_comes_again(bench):
    bench.topic.quota.set_own(retention_bytes=1 << 30)
    guids = bench.publish(5)
    for _ in range(3):
        bench.channel.finish_message(bench.consumer, bench.take())
    bench.events()
    back, forth = (replay.LogPlace(position=bench.topic.reader.position_of(ordinal)) for ordinal in (1, 4))
    replay.move(bench.topic, bench.channel, back, lambda: None)
    (again,) = bench.events()
    assert (again.kind, again.reason, again.count, again.channel) == ("stored", "seek", 2, "c")
    assert guids[0] <= again.guid < guids[1]
    replay.move(bench.topic, bench.channel, forth, lambda: None)
    (dropped,) = bench.events()
    assert (dropped.kind, dropped.reason, dropped.count) == ("dropped", "seek", 3)
    assert guids[3] <= dropped.guid < guids[4]


def test_messages_that_an_ephemeral_topic_does_not_keep_are_dropped(tmp_path):
    broker = broker_on(tmp_path, mem_queue_size=2, **ALL)
    topic = broker.topic("t#ephemeral")
    guids = [topic.publish_body(b"x", wall()) for _ in range(3)]
    topic.publish_frames(frames_of([b"x"] * 3), wall())
    rows = events_of(broker)
    assert kinds_of(rows) == ["published"] * 3 + ["dropped", "dropped"]
    assert (rows[3].guid, rows[3].reason, rows[3].count) == (guids[2], "ephemeral", None)
    assert (rows[4].message_id, rows[4].reason, rows[4].count) == (None, "ephemeral", 3)
    broker.close()


def test_messages_that_an_ephemeral_channel_does_not_keep_are_dropped(tmp_path):
    broker = broker_on(tmp_path, mem_queue_size=2, **ALL)
    topic = broker.topic("t")
    topic.channel("c#ephemeral")
    topic.publish_frames(frames_of([b"x"] * 5), wall())
    run_all_wakes(broker)
    dropped = events_of(broker)[-1]
    assert (dropped.kind, dropped.channel, dropped.reason, dropped.count) == ("dropped", "c#ephemeral", "ephemeral", 3)
    broker.close()


def test_messages_that_a_client_does_not_sample_are_dropped(bench):
    bench.consumer.sample_rate = 1
    guids = bench.publish(200)
    taken = set()
    while (message := bench.channel.take_message(bench.consumer)) is not None:
        taken.add(message[0])
    rows = bench.events()
    dropped = {row.guid for row in rows if row.kind == "dropped" and row.reason == "sampled"}
    assert {row.guid for row in rows if row.kind == "sent"} == taken
    assert dropped == set(guids) - taken
    assert dropped


def test_messages_that_retention_removes_are_expired(bench):
    bench.topic.quota.set_own(retention_time_ns=HOUR_NS)
    guids = bench.topic.publish_frames(frames_of([b"x" * 1000] * 100), wall())
    assert guids
    bench.clock.advance(2 * HOUR_NS)
    # The message after the next begins another segment.
    last = [bench.topic.publish_body(b"y" * 30_000, wall()) for _ in range(6)][-1]
    while (message := bench.channel.take_message(bench.consumer)) is not None:
        bench.channel.finish_message(bench.consumer, message[0])
    bench.clock.advance(2 * HOUR_NS)
    run_all_wakes(bench.broker)
    bench.topic.trim_finished()
    rows = [row for row in bench.events() if row.kind == "expired"]
    assert rows
    assert sum(row.count for row in rows) == bench.topic.log.first.first_ordinal
    assert all(row.channel is None and row.guid <= last for row in rows)


def test_body_bytes_are_the_first_ones(tmp_path):
    broker = broker_on(tmp_path, trace_body_bytes=5, **ALL)
    topic = broker.topic("t")
    topic.channel("c")
    for body in (b"abc", b"abcde", b"abcdefgh"):
        topic.publish_body(body, wall(), 0 if len(body) < 8 else wall() + HOUR_NS)
    rows = [row for row in events_of(broker) if row.kind == "published"]
    assert [row.body for row in rows] == [b"abc", b"abcde", b"abcde"]
    assert [row.size_bytes for row in rows] == [3, 5, 8]
    broker.close()
