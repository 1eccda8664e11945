"""A kill between any two instructions of an operation: before or after, for each channel, and nothing between."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker import message_lookup, replay, segment_rewriter
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.broker.intake import enqueue_frames, set_limits_for_tests
from pyqd.hot.primitives.clock import mono, wall
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS
from tests.persistence.stepping import states_of
from tests.persistence.views import views_in
from tests.support.storage import (
    RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    body_of,
    broker_on,
    consumer_on,
    frames_of,
)
from tests.support.tracing import events_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="single steps of x86-64"),
]

DUE = 1
ALL: Any = {"trace_topic": ("*",)}


class Bench:
    """A topic with two channels, some messages in each state, and consumers."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        directory.mkdir()
        self.broker: Any = broker_on(directory, **options)
        self.topic: Any = self.broker.topic("t")
        self.channels = [self.topic.channel(name) for name in "ab"]
        self.consumers = [consumer_on(channel) for channel in self.channels]
        self.count = 0

    def publish(self, count: int = 1, size_bytes: int = 20, due_ns: int = 0) -> None:
        for _ in range(count):
            self.topic.publish_body(body_of(self.count, size_bytes), wall(), due_ns)
            self.count += 1

    def take(self, count: int = 1) -> list[int]:
        """Take messages on the first channel. Returns: their ids."""
        taken = [self.channels[0].take_message(self.consumers[0]) for _ in range(count)]
        return [message[0] for message in taken]

    def finish(self, guid: int) -> Callable[[], object]:
        return lambda: self.channels[0].finish_message(self.consumers[0], guid)

    def requeue(self, guid: int, delay_ns: int) -> Callable[[], object]:
        return lambda: self.channels[0].requeue_message(self.consumers[0], guid, delay_ns)

    def delete_channel(self, name: str) -> None:
        self.topic.channel(name).close_consumers()
        self.topic.delete_channel(name)

    def release(self) -> None:
        self.broker.scheduler.run_timers(mono() + 1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "data")
    bench.publish(5)
    return bench


def views_of_copy(directory: Path) -> dict[str, Any]:
    copy = directory.parent / "view"
    shutil.copytree(directory, copy)
    try:
        return views_in(copy)
    finally:
        shutil.rmtree(copy)


def assert_all_or_nothing(bench: Bench, operation: Callable[[], object]) -> None:
    """Step through an operation: for each object a start finds the state before or the state after.

    Due times that the operation computes are equal to the hour's half.
    """
    # As after a sync: a change that leaves the checksums of a ledger in force would show as damage.
    for ledger in bench.topic.ledgers():
        ledger.seal()
    before = rounded(views_of_copy(bench.directory))
    seen = [rounded(views_in(state)) for state in states_of(bench.directory, operation)]
    after = rounded(views_of_copy(bench.directory))
    assert seen, "the operation changes no file"
    assert seen[-1] == after
    for found in seen:
        for name, value in found.items():
            assert value in (before.get(name), after.get(name)), name
    # Once something is done it stays done.
    for name in after:
        done = [found.get(name) == after[name] for found in seen]
        assert done == sorted(done) or before.get(name) == after[name], name


def rounded(views: dict[str, Any]) -> dict[str, Any]:
    """Return the views with due times in half hours."""
    half_ns = HOUR_NS // 2
    return {
        name: view._replace(deferred=tuple((body, due // half_ns) for body, due in view.deferred))
        if hasattr(view, "deferred")
        else view
        for name, view in views.items()
    }


def far() -> int:
    """Return a due time in the middle of a half hour, an hour or more away."""
    half_ns = HOUR_NS // 2
    return (wall() // half_ns + 3) * half_ns + half_ns // 2


def far_delay() -> int:
    return far() - wall()


def test_publishing_stores_a_message_or_nothing(bench):
    assert_all_or_nothing(bench, lambda: bench.publish())


def test_publishing_a_deferred_message(bench):
    bench.publish(due_ns=far())
    assert_all_or_nothing(bench, lambda: bench.publish(due_ns=far()))


def test_publishing_deferred_messages_together(bench):
    bench.publish(due_ns=far())
    bodies = [body_of(number, 20) for number in range(100, 103)]
    assert_all_or_nothing(bench, lambda: bench.topic.publish_frames(frames_of(bodies), wall(), far()))


def test_publishing_the_first_deferred_message_of_a_channel(bench):
    bench.delete_channel("b")
    assert_all_or_nothing(bench, lambda: bench.publish(due_ns=far()))


def test_publishing_a_deferred_message_on_a_paused_topic_and_resuming_it(bench):
    bench.publish(due_ns=far())
    bench.topic.pause(True)
    assert_all_or_nothing(bench, lambda: bench.publish(due_ns=far()))
    bench.publish(due_ns=far())
    bench.publish(due_ns=far())
    assert_all_or_nothing(bench, lambda: bench.topic.pause(False))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_publishing_many_at_once(bench, count):
    bodies = [body_of(100 + number, 24) for number in range(count)]
    assert_all_or_nothing(bench, lambda: bench.topic.publish_frames(frames_of(bodies), wall()))


@pytest.mark.parametrize("sizes", [[3000] * 3, [17_000, 100]])
def test_publishing_so_much_at_once_that_it_is_written_and_not_stored(bench, sizes):
    bodies = [body_of(100 + number, size) for number, size in enumerate(sizes)]
    assert_all_or_nothing(bench, lambda: bench.topic.publish_frames(frames_of(bodies), wall()))


@pytest.mark.parametrize(("size_bytes", "due"), [(100, False), (1000, False), (100, True)])
def test_publishing_in_slices_stores_all_slices_or_nothing(bench, size_bytes, due):
    frames = frames_of([body_of(number, size_bytes) for number in range(100, 106)])

    def store():
        former = set_limits_for_tests(500, 2 * size_bytes)
        enqueue_frames(bench.topic, frames, wall(), far() if due else 0)
        # The turns in which the channels see the messages are no part of it.
        for _ in range(4):
            bench.broker.scheduler.run_wakes()
        set_limits_for_tests(*former)

    assert_all_or_nothing(bench, store)


@pytest.mark.parametrize("spare", [True, False])
def test_publishing_over_a_segments_end(bench, spare):
    if not spare:
        bench.topic.log.pool.jobs = SegmentJobs()
    room_bytes = SEGMENT_BYTES_MIN - SEGMENT_HEADER_BYTES - 5 * span_bytes(20)
    bench.publish(1, room_bytes - RECORD_HEADER_BYTES - 16)
    assert_all_or_nothing(bench, bench.publish)


def test_handing_out_marks_a_message_delivered_or_leaves_it(bench):
    assert_all_or_nothing(bench, lambda: bench.take())


def test_handing_out_a_deferred_message(bench):
    bench.take(5)
    bench.publish(due_ns=DUE)
    bench.release()
    assert_all_or_nothing(bench, lambda: bench.take())


@pytest.mark.parametrize("again", [False, True])
def test_rewriting_old_segments(bench, monkeypatch, again):
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_AGE_NS", 0)
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_LOG_BYTES_MIN", 0)
    bench.delete_channel("b")
    bench.publish(30, 9000)
    guids = bench.take(35)
    for guid in guids[3:]:
        bench.finish(guid)()
    bench.requeue(guids[2], 0)()
    bench.topic.note_given(bench.topic.end)
    if again:
        # They become one.
        segment_rewriter.rewrite_old_segments(bench.topic)
    assert_all_or_nothing(bench, lambda: segment_rewriter.rewrite_old_segments(bench.topic))
    # The operation was done by a child.
    assert broker_on(bench.directory).topic("t").log.first.rewrites == 1 + again


@pytest.mark.parametrize("order", [[0], [3], [1, 0], [4, 2, 1, 3, 0]])
def test_finishing_a_message_is_all_or_nothing(bench, order):
    guids = bench.take(5)
    for index in order[:-1]:
        bench.finish(guids[index])()
    assert_all_or_nothing(bench, bench.finish(guids[order[-1]]))


def test_finishing_a_deferred_message(bench):
    bench.take(5)
    bench.publish(2, due_ns=DUE)
    bench.release()
    guids = bench.take(2)
    assert_all_or_nothing(bench, bench.finish(guids[1]))


def test_finishing_the_last_message_of_a_segment_and_trimming(bench):
    bench.delete_channel("b")
    bench.publish(3, 30_000)
    guids = bench.take(8)
    for guid in guids[:-1]:
        bench.finish(guid)()

    def finish_and_trim():
        bench.finish(guids[-1])()
        bench.broker.scheduler.run_wakes()

    assert_all_or_nothing(bench, finish_and_trim)


@pytest.mark.parametrize("delay", [False, True])
def test_requeueing_a_message_is_all_or_nothing(bench, delay):
    guids = bench.take(3)
    assert_all_or_nothing(bench, bench.requeue(guids[1], far_delay() if delay else 0))


@pytest.mark.parametrize(
    ("state", "change", "durably"),
    [
        *[("queued", "cancel", False), ("returned", "cancel", False), ("deferred", "cancel", True)],
        *[("queued", "put off", True), ("queued behind", "put off", False), ("deferred", "put off", True)],
    ],
)
def test_changing_a_message_by_its_id(bench, state, change, durably):
    channel = bench.channels[0]
    channel.dead_letters.durable = durably
    if state != "queued":
        bench.publish(2, due_ns=far())
    position = 3
    if state == "returned":
        bench.requeue(bench.take(4)[3], 0)()
    elif state == "deferred":
        position = 6
    guid = [guid for _, guid, *_ in bench.topic.log.records()][position]
    later = far() + 2 * HOUR_NS
    change_it = message_lookup.cancel if change == "cancel" else message_lookup.reschedule_to(bench.topic, later)

    def amend_it() -> None:
        (outcome,) = message_lookup.change_message(bench.topic, [channel], guid, change_it, lambda: None)
        assert outcome.status == message_lookup.DONE

    assert_all_or_nothing(bench, amend_it)


@pytest.mark.parametrize("state", ["queued", "returned", "deferred"])
def test_cancelling_a_traced_message(tmp_path, state):
    bench = Bench(tmp_path / "data", **ALL)
    bench.publish(2)
    bench.publish(due_ns=far())
    if state == "returned":
        bench.requeue(bench.take(2)[1], 0)()
    guid = [guid for _, guid, *_ in bench.topic.log.records()][2 if state == "deferred" else 1]
    seen = set()
    for directory in states_of(bench.directory, lambda: cancelled(bench.broker, guid)):
        broker = broker_on(directory, **ALL)
        count = cancel_count(broker)
        seen.add((cancelled(broker, guid), count))
        assert cancel_count(broker) == 1
        # Another kill.
        assert cancel_count(broker_on(directory, **ALL)) == 1
    assert seen == {(message_lookup.DONE, 0), (message_lookup.FINISHED, 1)}


def cancelled(broker: Any, guid: int) -> str:
    """Cancel a message on the first channel. Returns: the status."""
    topic = broker.topic("t")
    (outcome,) = message_lookup.change_message(topic, [topic.channel("a")], guid, message_lookup.cancel, lambda: None)
    return outcome.status


def cancel_count(broker: Any) -> int:
    return [event.kind for event in events_of(broker)].count("cancelled")


def test_requeueing_with_a_delay_again(bench):
    bench.take(5)
    bench.publish(due_ns=DUE)
    bench.release()
    (guid,) = bench.take()
    assert_all_or_nothing(bench, bench.requeue(guid, far_delay()))


def test_the_timeout_of_a_message_is_all_or_nothing(bench):
    bench.take(1)
    assert_all_or_nothing(bench, lambda: bench.broker.scheduler.run_timers(mono() + 2 * MINUTE_NS))


@pytest.mark.parametrize("delivered", ["from the log", "deferred"])
def test_a_stop_stores_the_attempts_of_a_message_or_leaves_it(bench, delivered):
    position = 0
    if delivered == "deferred":
        bench.take(5)
        bench.publish(due_ns=DUE)
        bench.release()
        position = 5
    (guid,) = bench.take()
    assert guid == [guid for _, guid, *_ in bench.topic.log.records()][position]
    for _ in range(3):
        bench.requeue(guid, 0)()
        bench.take()
    assert_all_or_nothing(bench, bench.channels[0].close)


@pytest.mark.parametrize("paused", [True, False])
def test_pausing_a_channel_is_all_or_nothing(bench, paused):
    bench.channels[0].pause(not paused)
    assert_all_or_nothing(bench, lambda: bench.channels[0].pause(paused))


def test_pausing_a_topic_is_all_or_nothing(bench):
    assert_all_or_nothing(bench, lambda: bench.topic.pause(True))


def test_emptying_a_channel_is_all_or_nothing(bench):
    bench.take(2)
    assert_all_or_nothing(bench, bench.channels[0].empty)


def go_to(bench, place):
    """Return the operation that moves the first channel to a place."""
    return lambda: replay.move(bench.topic, bench.channels[0], place, replay.no_pause)


@pytest.mark.parametrize("durably", [False, True])
@pytest.mark.parametrize("place", [replay.LogPlace(earliest=True), replay.LogPlace()], ids=["earliest", "latest"])
def test_a_seek_moves_a_channel_or_leaves_it(bench, place, durably):
    bench.channels[0].dead_letters.durable = durably
    guids = bench.take(4)
    bench.finish(guids[0])()
    bench.requeue(guids[1], far_delay())()
    bench.requeue(guids[2], 0)()
    bench.publish(2, due_ns=far())
    bench.publish()
    assert_all_or_nothing(bench, go_to(bench, place))


def test_making_a_channel_is_all_or_nothing(bench):
    assert_all_or_nothing(bench, lambda: bench.topic.channel("c"))


def test_making_the_first_channel_of_a_topic_that_holds_messages(bench):
    topic = bench.broker.topic("u")
    for due_ns in (0, far(), 0, far()):
        topic.publish_body(b"held", wall(), due_ns)
    assert_all_or_nothing(bench, lambda: topic.channel("c"))


def test_deleting_a_channel_is_all_or_nothing(bench):
    bench.take(2)
    assert_all_or_nothing(bench, lambda: bench.delete_channel("a"))


def test_making_and_deleting_a_topic(bench):
    assert_all_or_nothing(bench, lambda: bench.broker.topic("u"))
    bench.broker.topic("v")
    assert_all_or_nothing(bench, lambda: bench.broker.delete_topic("v"))
