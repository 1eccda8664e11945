"""Messages found by their ids while they move about."""

import errno
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pyqd.api.messages import MessageRoutes
from pyqd.broker import message_lookup
from pyqd.broker.channel_settings import ChannelSettings
from pyqd.hot.broker.message_lookup import (
    AT_DEAD_LETTER,
    AT_DEFERRED,
    AT_FINISHED,
    AT_IN_FLIGHT,
    AT_NOTED,
    AT_QUEUED,
    AT_RETURNED,
    AT_UNKNOWN,
    MessageLookup,
)
from pyqd.hot.diskqueue.logreader import WALK_BYTES_PER_SLICE
from pyqd.hot.primitives.clock import mono, wall
from pyqd.http.messages import Request
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StorageError
from tests.support.held_clock import HeldClock
from tests.support.invariants import check_channel, check_topic
from tests.support.storage import (
    SEGMENT_HEADER_BYTES,
    CountedFiles,
    Jobs,
    broker_on,
    consumer_on,
    publish,
    run_all_wakes,
)

# Of a record.
GUID_AT = 16


@pytest.fixture
def topic(tmp_path):
    broker = broker_on(tmp_path)
    yield broker.topic("t")
    broker.close()


def find(topic: Any, guid: int, per_turn: int = 1) -> MessageLookup:
    lookup = MessageLookup(topic.channel("c"), guid, notes_per_step=per_turn, entries_per_step=per_turn)
    for _ in range(1000):
        if lookup.step(topic.reader):
            return lookup
    raise AssertionError("not within 1000 parts")


def segment_with(root: Path, guid: int) -> Path:
    [found] = [path for path in root.rglob("log/*.seg") if struct.pack("<Q", guid) in path.read_bytes()]
    return found


def change(topic: Any, guid: int, how: message_lookup.Change) -> list[message_lookup.Outcome]:
    return message_lookup.change_message(topic, [topic.channel("c")], guid, how, lambda: None)


@pytest.mark.parametrize("per_turn", [5, 1000])
def test_each_message_is_found_in_its_place_with_steps_of_any_size(topic, per_turn):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    with HeldClock() as clock:
        ready, deferred = publish(topic, 40), publish(topic, 40, due_ns=wall() + HOUR_NS)
        due = publish(topic, 40, due_ns=wall() + 2)
        run_all_wakes(topic.broker)
        clock.advance(2)
        topic.broker.scheduler.run_timers(mono())
    taken = [channel.take_message(consumer)[0] for _ in range(20)]
    assert channel.finish_message(consumer, taken[0]) == 0
    for guid in taken[10:]:
        assert channel.requeue_message(consumer, guid, HOUR_NS) == 0
    assert find(topic, taken[0], per_turn).place in (AT_FINISHED, AT_UNKNOWN)
    assert all(find(topic, guid, per_turn).place == AT_IN_FLIGHT for guid in taken[1:10])
    assert all(find(topic, guid, per_turn).place == AT_NOTED for guid in taken[10:])
    left = {AT_QUEUED: ready, AT_DEFERRED: deferred, AT_RETURNED: due}
    for place, ids in left.items():
        assert all(find(topic, guid, per_turn).place == place for guid in set(ids) - set(taken))
    assert find(topic, 5, per_turn).place == AT_UNKNOWN
    assert find(topic, 2**63, per_turn).place == AT_UNKNOWN


def test_a_message_that_moves_behind_the_search_is_found(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    first, *_, last = publish(topic, 20)
    for guid in [channel.take_message(consumer)[0] for _ in range(20)]:
        assert channel.requeue_message(consumer, guid, 1) == 0
    lookup = MessageLookup(channel, last, notes_per_step=8, entries_per_step=8)
    assert not lookup.step(topic.reader)
    topic.broker.scheduler.run_timers(mono() + 1)
    taken = {channel.take_message(consumer)[0] for _ in range(20)}
    assert {first, last} <= taken
    # Its next note takes a slot that the search has passed.
    assert channel.finish_message(consumer, first) == 0
    assert channel.requeue_message(consumer, last, HOUR_NS) == 0
    assert {row[0]: slot for slot, row in channel.notes.rows().items()}[19] < 8
    while not lookup.step(topic.reader):
        pass
    assert lookup.place == AT_NOTED
    lookup.cancel()
    assert channel.deferred_count == 0
    assert find(topic, last).place in (AT_FINISHED, AT_UNKNOWN)


@pytest.mark.parametrize("per_turn", [1, 1000])
def test_a_dead_letter_that_is_not_published_yet_can_be_cancelled_only(topic, per_turn):
    channel = topic.channel("c")
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="missing"))
    consumer = consumer_on(channel)
    ids = publish(topic, 20)
    for _ in ids:
        channel.requeue_message(consumer, channel.take_message(consumer)[0], 0)
    assert all(find(topic, guid, per_turn).place == AT_DEAD_LETTER for guid in ids)
    later = message_lookup.reschedule_to(topic, wall() + HOUR_NS)
    assert change(topic, ids[7], later) == [("c", "dead_letter", None, None)]
    assert change(topic, ids[7], message_lookup.cancel) == [("c", "done", "dead_letter", None)]
    assert change(topic, ids[7], message_lookup.cancel) == [("c", "finished", None, None)]
    assert (channel.dead_letters_pending, channel.depth) == (19, 19)
    check_topic(topic)


def test_a_message_whose_record_turns_out_to_be_damaged_is_not_called_rescheduled(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    ids = publish(topic, 400, size_bytes=500)
    topic.broker.close()
    path = segment_with(tmp_path, ids[7])
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<Q", ids[7])) + 60] ^= 0xFF
    path.write_bytes(content)
    topic = broker_on(tmp_path).topic("t")
    later = message_lookup.reschedule_to(topic, wall() + HOUR_NS)
    assert change(topic, ids[7], later) == [("c", "unknown", None, None)]
    check_topic(topic)


def test_a_damaged_id_hides_no_other_message_once_its_segment_has_been_verified(tmp_path):
    topic = broker_on(tmp_path, max_bytes_per_file=64 << 20).topic("t")
    topic.channel("c")
    ids = publish(topic, 7000, size_bytes=4000)
    topic.broker.close()
    # A sealed segment of several slices of a search.
    path = segment_with(tmp_path, ids[4500])
    content = bytearray(path.read_bytes())
    assert len(content) >= 2 * WALK_BYTES_PER_SLICE
    (first,) = struct.unpack_from("<Q", content, SEGMENT_HEADER_BYTES + GUID_AT)
    damaged = ids.index(first) + 3
    last = damaged + len(content) // 4048 - 4
    # The id is a higher one then.
    content[content.index(struct.pack("<Q", ids[damaged])) + 7] |= 0x40
    path.write_bytes(content)
    topic = broker_on(tmp_path, max_bytes_per_file=64 << 20).topic("t")
    channel = topic.channel("c")
    find(topic, ids[damaged + 1])
    consumer = consumer_on(channel)
    while (taken := channel.take_message(consumer)[0]) < ids[damaged]:
        channel.finish_message(consumer, taken)
    assert {find(topic, guid).place for guid in ids[damaged + 2 : last : 50]} == {AT_QUEUED}
    topic.broker.close()


def test_a_message_in_the_middle_of_the_ring_is_taken_out_and_the_rest_keeps_its_order(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    ids = publish(topic, 20)
    for guid in [channel.take_message(consumer)[0] for _ in ids]:
        assert channel.requeue_message(consumer, guid, 0) == 0
    for index in (19, 0, 7):
        find(topic, ids[index]).cancel()
    assert [channel.take_message(consumer)[0] for _ in range(17)] == [
        guid for index, guid in enumerate(ids) if index not in (19, 0, 7)
    ]
    assert channel.take_message(consumer) is None


def test_changes_are_counted_as_finished(topic):
    channel = topic.channel("c")
    for guid in publish(topic, 3):
        assert (
            message_lookup.change_message(topic, [channel], guid, message_lookup.cancel, lambda: None)[0].status
            == message_lookup.DONE
        )
    assert (channel.depth, channel.finish_count, channel.message_count) == (0, 3, 3)


def test_a_message_is_put_off_before_its_turn_and_comes_once(topic):
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    ids = publish(topic, 5)
    change = message_lookup.reschedule_to(topic, wall() + HOUR_NS)
    for guid in ids[1:3]:
        message_lookup.change_message(topic, [channel], guid, change, lambda: None)
    assert (channel.depth, channel.deferred_count) == (3, 2)
    assert [channel.take_message(consumer)[0] for _ in range(3)] == [ids[0], ids[3], ids[4]]
    assert channel.take_message(consumer) is None
    assert (topic.log.end, channel.notes.count) == (5, 2)
    check_topic(topic)
    now = message_lookup.reschedule_to(topic, wall())
    for guid in ids[1:3]:
        message_lookup.change_message(topic, [channel], guid, now, lambda: None)
    topic.broker.scheduler.run_timers(mono() + 1)
    assert {channel.take_message(consumer)[0] for _ in range(2)} == set(ids[1:3])


@pytest.mark.parametrize("place", ["queued", "deferred"])
def test_a_message_that_its_ledger_does_not_reach_is_cancelled_when_the_ledger_has_grown_beside_the_loop(
    tmp_path, place, short_ring
):
    files = CountedFiles()
    broker = broker_on(tmp_path, files)
    jobs = Jobs()
    broker.in_background = jobs.submit
    topic = broker.topic("t")
    channel = topic.channel("c")
    ids = publish(topic, 3 * short_ring, due_ns=0 if place == "queued" else wall() + HOUR_NS)
    run_all_wakes(broker)
    while jobs.waiting:
        jobs.run()
        run_all_wakes(broker)
    syncs_in_jobs = []

    def pause():
        assert not channel.grows, "a thread syncs for longer than a turn of the loop"

    def wait():
        before = files.syncs
        jobs.run()
        syncs_in_jobs.append(files.syncs - before)

    before = files.syncs
    (outcome,) = message_lookup.change_message(topic, [channel], ids[-1], message_lookup.cancel, pause, wait)
    assert (outcome.status, outcome.was) == ("done", "ready" if place == "queued" else "deferred")
    # Of the ledger that it is finished in, and of the list of cancelled messages.
    assert sum(syncs_in_jobs) == files.syncs - before == 2
    check_channel(channel)
    assert channel.depth + channel.deferred_count == 3 * short_ring - 1


def test_a_ledger_that_grows_for_another_reason_meanwhile_leaves_a_cancellation_its_own_growths(tmp_path, short_ring):
    files = CountedFiles()
    broker = broker_on(tmp_path, files)
    jobs = Jobs()
    broker.in_background = jobs.submit
    topic = broker.topic("t")
    channel = topic.channel("c")
    ids = publish(topic, 6 * short_ring)
    before, syncs_in_jobs = files.syncs, []
    # The first growth reaches too little for the message.
    channel.grow_ledger(short_ring, lambda: None)

    def wait():
        before = files.syncs
        jobs.run()
        syncs_in_jobs.append(files.syncs - before)

    (outcome,) = message_lookup.change_message(topic, [channel], ids[-1], message_lookup.cancel, lambda: None, wait)
    assert outcome.status == "done"
    assert sum(syncs_in_jobs) == files.syncs - before == 3
    check_channel(channel)


def test_a_message_is_cancelled_although_its_ledger_cannot_grow_beside_the_loop(tmp_path, short_ring):
    broker = broker_on(tmp_path)
    jobs = Jobs()
    broker.in_background = jobs.submit
    topic = broker.topic("t")
    channel = topic.channel("c")
    ids = publish(topic, 2 * short_ring)
    failure = StorageError("sync", "ledger", errno.EIO, "Input/output error")
    (outcome,) = message_lookup.change_message(
        topic, [channel], ids[-1], message_lookup.cancel, lambda: jobs.run(failure)
    )
    assert (outcome.status, channel.depth, channel.grows) == ("done", 2 * short_ring - 1, False)
    check_channel(channel)


def test_a_change_that_the_disk_refuses_is_answered_with_the_reason_and_changes_nothing(topic: Any) -> None:
    channel = topic.channel("c")
    (guid,) = publish(topic)

    def refuse(_lookup: MessageLookup) -> None:
        raise StorageError("write", "ledger", errno.EIO, "Input/output error")

    request = Request("POST", f"/message/cancel?topic=t&channel=c&id={guid:016x}", "1.1", {})
    reply = MessageRoutes(topic.broker).change(request, lambda _topic: refuse)
    body = json.loads(reply.body)
    assert (reply.status, body["message"]) == (503, "STORAGE_FAILED: failed to write ledger - Input/output error")
    assert body["results"] == [{"channel": "c", "status": "failed", "was": "ready"}]
    assert channel.depth == 1
