"""The story of a message: its events in order, and its state in each channel."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from pyqd.trace import story as story_module
from pyqd.trace.database import Database
from pyqd.trace.story import Step, Story, stories_of
from tests.support.trace_log import AT_US, TraceLog, add_all
from tests.support.trace_tables import since_start_us
from tests.trace.conftest import Store

ID = "0000000000000001"


def story_of(database: Database) -> Story:
    """Return the only story of message 1."""
    (story,) = stories_of(database, ID)
    return story


def told(story: Story) -> list[tuple[int, str, str | None]]:
    """Return time, name and channel of the steps."""
    return [(since_start_us(step.at), step.event, step.channel) for step in story.steps]


@pytest.mark.parametrize("is_later", [False, True], ids=["one batch", "batches"])
def test_a_story_tells_all_events_in_their_order(
    database: Database, log: TraceLog, store: Store, is_later: bool
) -> None:
    log.add("published", 1, client="10.0.0.1:9", size=7, body=b"hello", due_ns=1000 * (AT_US + 90))
    log.add("stored", 1, channel="a")
    log.add("stored", 1, channel="b")
    log.add("sent", 1, channel="a", client="10.0.0.2:5", attempt=1)
    if is_later:
        store()
    log.add("touched", 1, channel="a", client="10.0.0.2:5", attempt=1)
    log.add("requeued", 1, channel="a", client="10.0.0.2:5", attempt=1, delay_ms=500)
    log.add("sent", 1, channel="a", client="10.0.0.3:5", attempt=2)
    if is_later:
        store()
    log.add("finished", 1, channel="a", client="10.0.0.3:5", attempt=2)
    store()
    story = story_of(database)
    assert told(story) == [
        (1, "published", None),
        (2, "stored", "a"),
        (3, "stored", "b"),
        (4, "sent", "a"),
        (5, "touched", "a"),
        (6, "requeued", "a"),
        (7, "sent", "a"),
        (8, "finished", "a"),
    ]
    assert (story.topic, story.nsqd, story.client, story.size, story.body) == (
        "orders",
        "broker:4151",
        "10.0.0.1:9",
        7,
        b"hello",
    )
    assert story.due_at is not None
    assert since_start_us(story.due_at) == 90
    assert [(step.attempt, step.client) for step in story.steps if step.event == "sent"] == [
        (1, "10.0.0.2:5"),
        (2, "10.0.0.3:5"),
    ]
    assert story.steps[5].delay_ms == 500
    assert [step.after_s for step in story.steps] == pytest.approx([None, 1e-6, 2e-6, 2e-6, 1e-6, 1e-6, 1e-6, 1e-6])
    channels = {name: (channel.state, channel.attempts) for name, channel in story.channels.items()}
    assert channels == {"a": ("finished", 2), "b": ("waiting", 0)}
    assert not story.is_over


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "in_flight"),
        (["finished"], "finished"),
        (["requeued"], "waiting"),
        (["client_gone"], "in_flight"),
        (["client_gone", "timed_out"], "waiting"),
        (["timed_out", "dead_lettered"], "dead_lettered"),
        (["requeued", "cancelled"], "cancelled"),
        (["requeued", "dropped"], "dropped"),
    ],
)
def test_the_last_event_gives_the_state(sqlite: Database, log: TraceLog, kinds: list[str], state: str) -> None:
    add_all(log, [("sent", 1), *((kind, 1) for kind in kinds)])
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    story = story_of(sqlite)
    assert story.channels["a"].state == state
    assert story.is_over == (state not in ("in_flight", "waiting"))


@pytest.mark.parametrize(
    ("bulk", "state"),
    [
        ({"kind": "dropped", "channel": "a", "reason": "emptied", "guid": 0}, "dropped"),
        ({"kind": "dropped", "channel": "a", "reason": "channel_deleted", "guid": 0}, "dropped"),
        ({"kind": "dropped", "channel": "a", "reason": "topic_deleted", "guid": 0}, "dropped"),
        ({"kind": "dropped", "channel": "b", "reason": "emptied", "guid": 0}, "waiting"),
        ({"kind": "dropped", "channel": "", "reason": "topic_deleted", "guid": 0}, "waiting"),
        ({"kind": "dropped", "channel": "a", "reason": "ephemeral", "guid": 0}, "waiting"),
        ({"kind": "dropped", "channel": "a", "reason": "seek", "guid": 1}, "dropped"),
        ({"kind": "dropped", "channel": "a", "reason": "seek", "guid": 0}, "waiting"),
    ],
)
def test_an_act_on_many_messages_is_part_of_the_stories_that_it_concerns(
    sqlite: Database, log: TraceLog, bulk: dict[str, object], state: str
) -> None:
    log.add("published", 1)
    add_all(log, [("sent", 1), ("requeued", 1)])
    log.add(count=10, **bulk)  # type: ignore[arg-type]
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    story = story_of(sqlite)
    assert story.channels["a"].state == state
    assert [step.event for step in story.steps].count("dropped") == (state == "dropped")


def test_messages_that_the_topic_held_come_to_a_channel_by_one_event(sqlite: Database, log: TraceLog) -> None:
    log.add("published", 1)
    log.add("stored", 1, channel="a", reason="released", count=1)
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    story = story_of(sqlite)
    assert told(story) == [(1, "published", None), (2, "stored", "a")]
    assert story.channels["a"].state == "waiting"


def test_a_release_gives_a_held_message_to_all_channels_of_a_paused_topic(
    database: Database, log: TraceLog, store: Store
) -> None:
    log.add("published", 1)
    for channel in "ab":
        log.add("stored", 0, channel=channel, reason="released", count=1, at_us=AT_US + 2)
    store()
    assert {name: channel.state for name, channel in story_of(database).channels.items()} == {
        "a": "waiting",
        "b": "waiting",
    }


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "not held"])
def test_a_later_release_does_not_concern_a_message_that_a_channel_has_got(
    database: Database, log: TraceLog, store: Store, is_held: bool
) -> None:
    log.add("published", 1)
    if is_held:
        log.add("stored", 0, channel="a", reason="released", count=1)
    else:
        log.add("stored", 1, channel="a")
    add_all(log, [("sent", 1), ("finished", 1)])
    log.add("dropped", 0, channel="a", reason="channel_deleted", count=0)
    log.add("published", 2)
    log.add("stored", 0, channel="b", reason="released", count=1)
    store()
    story = story_of(database)
    assert {name: channel.state for name, channel in story.channels.items()} == {"a": "finished"}
    assert story.is_over


@pytest.mark.parametrize(("guid", "state"), [(0, "waiting"), (1, "finished")])
def test_a_seek_delivers_newer_messages_again(sqlite: Database, log: TraceLog, guid: int, state: str) -> None:
    log.add("published", 1)
    add_all(log, [("sent", 1), ("finished", 1)])
    log.add("stored", guid, channel="a", reason="seek", count=1)
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    assert story_of(sqlite).channels["a"].state == state


@pytest.mark.parametrize("set_back_at", range(2, 9))
def test_a_clock_that_is_set_back_leaves_the_order_of_the_events(
    database: Database, log: TraceLog, store: Store, set_back_at: int
) -> None:
    events = [("published", ""), ("stored", "a"), ("sent", "a"), ("requeued", "a"), ("sent", "a"), ("finished", "a")]
    events += [("stored", "a"), ("sent", "a"), ("finished", "a")]
    for number, (kind, channel) in enumerate(events, start=1):
        if number == set_back_at:
            log.at_us -= 1000 * number
        if number == 7:
            log.add(kind, 0, channel=channel, reason="seek", count=1)
        else:
            log.add(kind, 1, channel=channel, attempt=number if kind == "sent" else 0)
    store()
    story = story_of(database)
    assert [step.event for step in story.steps] == [kind for kind, _ in events]
    assert min(step.after_s for step in story.steps if step.after_s is not None) > 0
    assert story.channels["a"].state == "finished"


def test_a_delivery_without_an_end_says_so(sqlite: Database, log: TraceLog) -> None:
    add_all(log, [("sent", 1)])
    add_all(log, [("sent", 1), ("finished", 1)], attempt=2)
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    assert [step.is_end_missing for step in story_of(sqlite).steps] == [True, False, False]


def test_an_id_of_two_brokers_and_topics_has_a_story_for_each(sqlite: Database) -> None:
    for broker, topic in (("one", "orders"), ("two", "orders"), ("two", "returns")):
        log = TraceLog()
        log.add("published", 1, topic)
        sqlite.write(sqlite.node(f"{broker} {topic}", broker), log.decoded())
    found = stories_of(sqlite, ID)
    assert [(story.nsqd, story.topic) for story in found] == [("one", "orders"), ("two", "orders"), ("two", "returns")]


def test_an_unknown_id_has_no_story(sqlite: Database) -> None:
    assert stories_of(sqlite, ID) == []


def seconds_before(story: Story, number: int) -> float | None:
    """Return the time from the last step before one that concerns the same channel; any channel if it has none."""
    step = story.steps[number]
    for other in reversed(story.steps[:number]):
        if step.channel is None or other.channel in (None, step.channel):
            return (step.at - other.at).total_seconds()
    return None


@pytest.mark.parametrize("seed", range(4))
def test_each_step_tells_the_time_since_the_one_before_in_its_channel(sqlite: Database, seed: int) -> None:
    choose = random.Random(seed)
    log = TraceLog()
    log.add("published", 1)
    for _ in range(60):
        at_us = log.at_us + choose.randint(0, 1000)
        kind, channel = choose.choice(("sent", "requeued", "touched", "dropped", "expired")), choose.choice("ab")
        if kind == "dropped":
            log.add(kind, 0, channel=channel, reason="emptied", count=3, at_us=at_us)
        elif kind == "expired":
            log.add(kind, 1, channel="", count=3, at_us=at_us)
        else:
            log.add(kind, 1, channel=channel, attempt=1, at_us=at_us)
    sqlite.write(sqlite.node("log", "broker:4151"), log.decoded())
    story = story_of(sqlite)
    assert {step.channel for step in story.steps} == {None, "a", "b"}
    expected = [seconds_before(story, number) for number in range(len(story.steps))]
    assert [step.after_s for step in story.steps] == pytest.approx(expected)


def test_the_cost_of_a_step_does_not_depend_on_the_steps_before_it() -> None:
    class Counted(list[Step]):
        """Steps that count how many of them are read."""

        read_count = 0

        def __iter__(self) -> Iterator[Step]:
            for step in super().__iter__():
                self.read_count += 1
                yield step

    steps = Counted()
    story = Story("1", "orders", "broker:4151", steps=steps)
    for number in range(100):
        step = Step(datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=number), "touched", "a")
        story_module._follow(story, step)
    assert len(steps) == 100
    assert steps.read_count == 0
