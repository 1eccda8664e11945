"""Tests of pyqd.broker.tracing and pyqd.broker.trace: traced topics, and the log of their events through kills."""

import json
import logging
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.tracing import BLOCKS_MAX, TraceSetting, TraceSpace, blocks_in
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import DiskReserve, SpaceLimit
from pyqd.hot.broker.trace import OPEN_BYTES, TraceClient
from pyqd.hot.primitives.clock import wall
from pyqd.hot.wire import trace_events
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS
from pyqd.primitives.errors import StorageError
from tests.support.held_clock import HeldClock
from tests.support.storage import (
    SEGMENT_HEADER_BYTES,
    FullFiles,
    broker_on,
    consumer_on,
    frames_of,
    options_for,
    run_all_wakes,
)
from tests.support.tracing import events_of, kinds_of, pages_of, rows_of

ALL: Any = {"trace_topic": ("*",)}
MIB = 1 << 20
RECORD = struct.Struct("<IIQQ")
HEADER_BYTES = 48
# Of the file with the open block.
TAIL_AT, FIRST_POSITION_AT, PUBLISHING_AT, PUBLISHED_AFTER_AT, TOPIC_AT = 12, 16, 40, 48, 64
PUBLISHED_FROM_AT = 640
BLOCK_AT = 4096


@pytest.fixture
def broker(tmp_path):
    made = broker_on(tmp_path, **ALL)
    yield made
    made.close()


def open_file(path: Path) -> Path:
    return path / "trace" / "open"


def records_in(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = RECORD.unpack_from(data, at)[0]
        behind = (at + HEADER_BYTES + size + 7) & -8
        found.append(data[at:behind])
        at = behind
    return found


def publish(broker: Any, count: int, topic: str = "t", body: bytes = b"x") -> list[int]:
    return [broker.topic(topic).publish_body(body, wall()) for _ in range(count)]


def positions_of(rows: list[Any]) -> list[int]:
    return [row.position for row in rows]


def is_dense(rows: list[Any]) -> bool:
    positions = positions_of(rows)
    return positions == list(range(positions[0], positions[0] + len(positions)))


# Which topics are traced.


def test_without_a_flag_nothing_is_traced_and_no_file_is_made(tmp_path):
    broker = broker_on(tmp_path)
    publish(broker, 1)
    assert broker.topic("t").trace is None
    assert broker.tracing.stats() is None
    assert pages_of(broker) == []
    assert not (tmp_path / "trace").exists()
    broker.close()


def test_topics_are_chosen_by_patterns_of_their_whole_names(tmp_path):
    broker = broker_on(tmp_path, trace_topic=("order*", "mail"))
    names = ("order", "orders_eu", "mail", "email", "mails", "reorder")
    for name in names:
        publish(broker, 1, name)
    assert [row.topic for row in events_of(broker)] == ["order", "orders_eu", "mail"]
    broker.close()


def test_flags_take_effect_while_the_broker_runs(tmp_path):
    broker = broker_on(tmp_path)
    broker.topic("t").channel("c")
    publish(broker, 1)
    broker.change_options(options_for(tmp_path, **ALL))
    publish(broker, 1)
    broker.change_options(options_for(tmp_path, trace_topic=("*",), trace_rate=0.0))
    publish(broker, 1)
    assert kinds_of(events_of(broker)) == ["published", "stored"]
    broker.close()


@pytest.mark.slow
def test_flags_take_effect_in_slices_and_a_newer_change_wins(tmp_path):
    broker = broker_on(tmp_path)
    for number in range(300):
        broker.topic(f"t{number}").channel("c")
    traced_in_pauses = []

    def pause():
        traced_in_pauses.append(sum(topic.trace is not None for topic in broker.topics.values()))
        if len(traced_in_pauses) == 1:
            assert broker.delete_topic("t299")
        if len(traced_in_pauses) == 3:
            broker.change_options(options_for(tmp_path, trace_topic=("t1", "other")))

    broker.change_options(options_for(tmp_path, **ALL), pause)
    assert 0 < traced_in_pauses[0] < traced_in_pauses[1] < traced_in_pauses[2] < 150
    assert traced_in_pauses[3:] == (len(traced_in_pauses) - 3) * [1]
    assert [topic.name for topic in broker.topics.values() if topic.trace is not None] == ["t1"]
    broker.close()


def test_a_topics_own_setting_overrides_the_flags_and_outlives_the_process(tmp_path):
    broker = broker_on(tmp_path, trace_topic=("t",))
    for name in ("t", "u"):
        broker.topic(name)
    broker.tracing.set_own(broker.topic("t"), TraceSetting(0.0))
    broker.tracing.set_own(broker.topic("u"), TraceSetting(1.0, 2))
    broker = broker_on(tmp_path, trace_topic=("t",))
    publish(broker, 1, "t", b"abc")
    publish(broker, 1, "u", b"abc")
    assert [(row.topic, row.body) for row in events_of(broker)] == [("u", b"ab")]
    broker.tracing.set_own(broker.topic("t"), None)
    publish(broker, 1, "t")
    assert [row.topic for row in events_of(broker)] == ["u", "t"]
    broker.close()


def test_sampling_takes_messages_wholly_by_their_ids(tmp_path):
    broker = broker_on(tmp_path, trace_rate=0.25, **ALL)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    guids = publish(broker, 2000)
    while (message := channel.take_message(consumer)) is not None:
        channel.finish_message(consumer, message[0])
    kept = [guid for guid in guids if (guid * 0x9E3779B97F4A7C15) % 2**64 >> 32 < 2**32 // 4]
    rows = events_of(broker)
    assert 400 < len(kept) < 600
    for kind in ("published", "stored", "sent", "finished"):
        assert [row.guid for row in rows if row.kind == kind] == kept
    broker.close()


# Blocks.


@pytest.mark.slow
def test_each_block_can_be_read_alone(tmp_path):
    broker = broker_on(tmp_path, trace_body_bytes=100, **ALL)
    for name in ("t", "u"):
        broker.topic(name).channel("c")
        broker.topic(name).channel("d")
    for number in range(1500):
        topic = broker.topic("tu"[number % 2])
        topic.published_by(TraceClient(f"10.0.0.{number % 3}:1", "agent/" + "x" * 500))
        topic.publish_body(b"y" * 200, wall())
    whole = events_of(broker)
    parts = [record for page in pages_of(broker) for record in records_in(page.data)]
    assert len(parts) > 3
    alone = [row for part in parts for row in rows_of(trace_events.decode(part, 0))]
    assert alone == whole
    assert is_dense(whole)
    assert kinds_of(whole) == ["published", "stored", "stored"] * 1500
    assert {len(row.user_agent) for row in whole if row.kind == "published"} == {200}
    broker.close()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "stored"), [(256, 256), (257, 0)])
def test_a_topic_with_very_many_channels_has_no_set(broker, count, stored):
    topic = broker.topic("t")
    for number in range(count):
        topic.channel(f"channel_with_a_long_name_{number:039}")
    publish(broker, 3)
    rows = events_of(broker)
    assert kinds_of(rows) == ["published", *["stored"] * stored] * 3
    assert {row.channel for row in rows} >= {channel.name for channel in topic.channels[:stored]}


def test_large_bodies_fill_blocks_to_their_end(tmp_path):
    broker = broker_on(tmp_path, trace_body_bytes=8192, **ALL)
    bodies = [bytes([number % 256]) * (8192 - 61 * (number % 40)) for number in range(60)]
    for body in bodies:
        broker.topic("t").publish_body(body, wall())
    assert [row.body for row in events_of(broker)] == bodies
    broker.close()


def test_consecutive_deliveries_take_no_bytes_of_their_own(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    with HeldClock():
        first = topic.publish_frames(frames_of([b"x" * number for number in range(1, 1001)]), wall())
        taken = [channel.take_message(consumer)[0] for _ in range(1000)]
        for guid in taken:
            channel.finish_message(consumer, guid)
    (page,) = pages_of(broker)
    assert len(page.data) < 1000 * 4 + 500
    rows = rows_of(trace_events.decode(page.data, 0))
    assert [row.size_bytes for row in rows if row.kind == "published"] == list(range(1, 1001))
    for kind in ("published", "stored", "sent", "finished"):
        assert [row.guid for row in rows if row.kind == kind] == [first + number for number in range(1000)] == taken
    assert is_dense(rows)
    broker.close()


@pytest.mark.slow
def test_a_batch_over_several_ticks_of_ids_is_traced_whole(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    topic = broker.topic("t")
    channel = topic.channel("c")
    topic.publish_frames(frames_of([b"x"] * 20_000), wall())
    rows = [row for row in events_of(broker) if row.kind == "published"]
    messages = [guid for _, guid, *_ in topic.log.records()]
    assert [row.guid for row in rows] == messages
    assert messages[-1] - messages[0] != 19_999
    assert channel.depth == 20_000
    broker.close()


@pytest.mark.slow
def test_a_batch_is_sampled_by_its_ids(tmp_path):
    broker = broker_on(tmp_path, trace_rate=0.5, **ALL)
    topic = broker.topic("t")
    topic.channel("c")
    topic.publish_frames(frames_of([b"x" * (1 + number % 7) for number in range(9000)]), wall())
    messages = [(guid, len(body)) for _, guid, *_, body in topic.log.records()]
    kept = [(guid, size) for guid, size in messages if (guid * 0x9E3779B97F4A7C15) % 2**64 >> 32 < 2**31]
    rows = events_of(broker)
    assert 4000 < len(kept) < 5000
    assert [(row.guid, row.size_bytes) for row in rows if row.kind == "published"] == kept
    assert [row.guid for row in rows if row.kind == "stored"] == [guid for guid, _ in kept]
    assert is_dense(rows)
    broker.close()


def test_an_event_after_one_that_was_taken_back_is_its_own(tmp_path):
    files = FullFiles()
    broker = broker_on(tmp_path, files, **ALL)
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel)
    with HeldClock():
        guids = publish(broker, 4)
        for _ in range(3):
            channel.take_message(consumer)
        channel.finish_message(consumer, guids[0])
        files.room = 0
        with pytest.raises(StorageError):
            channel.requeue_message(consumer, guids[1], MINUTE_NS)
        files.room = None
        channel.finish_message(consumer, guids[1])
        channel.finish_message(consumer, guids[2])
        channel.take_message(consumer)
    rows = [row for row in events_of(broker) if row.kind not in ("published", "stored")]
    assert kinds_of(rows) == ["sent", "sent", "sent", "finished", "finished", "finished", "sent"]
    assert [row.guid for row in rows] == [*guids[:3], *guids]
    broker.close()


@pytest.mark.slow
def test_a_block_and_a_page_have_a_limited_number_of_events(broker):
    channels = [broker.topic("t").channel(f"c{number}") for number in range(4)]
    for _ in range(60):
        broker.topic("t").publish_frames(frames_of([b"x"] * 1000), wall())
    consumer = consumer_on(channels[0])
    taken = [channels[0].take_message(consumer)[0] for _ in range(60_000)]
    whole = events_of(broker)
    assert [row.guid for row in whole if row.kind == "sent"] == taken
    assert len(whole) == 6 * 60_000
    assert is_dense(whole)
    counts = [len(rows_of(trace_events.decode(page.data, 0))) for page in pages_of(broker)]
    assert max(counts) <= 66_000
    assert events_of(broker, bytes_max=1) == whole
    assert len(pages_of(broker, bytes_max=4 << 20)) < len(counts)


# Reading.


@pytest.mark.slow
def test_a_page_has_a_limited_number_of_blocks(broker):
    topic = broker.topic("t")
    for _ in range(2 * BLOCKS_MAX + 1):
        topic.publish_body(b"x", wall())
        broker.tracing.log.seal()
    pages = pages_of(broker)
    assert max(sum(1 for _ in blocks_in(page.data)) for page in pages) <= BLOCKS_MAX
    assert sum(page.next - page.first for page in pages) == len(events_of(broker)) == 2 * BLOCKS_MAX + 1


def test_pages_of_any_size_give_all_events_once(broker):
    publish(broker, 20_000)
    whole = events_of(broker)
    assert len(whole) == 20_000
    assert is_dense(whole)
    assert events_of(broker, bytes_max=1) == whole
    assert events_of(broker, bytes_max=200_000) == whole


@pytest.mark.slow
def test_a_reader_begins_at_any_position(broker):
    publish(broker, 10_000)
    positions = positions_of(events_of(broker))
    for start in (positions[0], positions[1], positions[5000], positions[-2], positions[-1]):
        assert positions_of(events_of(broker, start)) == [each for each in positions if each >= start]
    assert events_of(broker, positions[-1] + 1) == []
    assert events_of(broker, positions[-1] + 1000) == []
    assert positions_of(events_of(broker, 1))[1:] == positions


def test_reading_to_the_end_seals_the_open_block(broker):
    publish(broker, 1)
    first = events_of(broker)
    assert broker.tracing.has_events(0)
    assert not broker.tracing.has_events(first[0].position + 1)
    assert broker.tracing.log.log.end == 1
    publish(broker, 1)
    assert broker.tracing.has_events(first[0].position + 1)
    assert positions_of(events_of(broker, first[0].position + 1)) == [first[0].position + 1]
    assert len(pages_of(broker)) == 1
    assert broker.tracing.log.log.end == 2


def test_a_waiting_reader_is_told_of_the_first_event_of_a_block(broker):
    publish(broker, 1)
    events_of(broker)
    told: list[int] = []
    broker.tracing.waiting.append(lambda: told.append(1))
    publish(broker, 3)
    assert told == [1]


# Kills, power failures, damage.


@pytest.mark.slow
def test_a_kill_loses_no_event(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    broker.topic("t").channel("c")
    consumer = consumer_on(broker.topic("t").channel("c"))
    publish(broker, 5000)
    guid = broker.topic("t").channel("c").take_message(consumer)[0]
    before = [row.guid for row in events_of(broker) if row.kind == "sent"]
    assert before == [guid]
    publish(broker, 3)
    for _ in range(3):
        broker = broker_on(tmp_path, **ALL)
        rows = events_of(broker)
        assert is_dense(rows)
        assert kinds_of(rows).count("published") == 5003
    publish(broker, 1)
    assert is_dense(events_of(broker))
    broker.close()


def test_a_clean_stop_and_a_start_go_on_at_the_next_position(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 10)
    broker.close()
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 10)
    rows = events_of(broker)
    assert is_dense(rows)
    assert len(rows) == 20
    broker.close()


def test_events_are_read_when_nothing_is_traced_any_more(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    broker = broker_on(tmp_path)
    publish(broker, 2)
    assert kinds_of(events_of(broker)) == ["published"] * 2
    broker.close()


def test_bytes_behind_the_tail_of_a_torn_block_do_not_count(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    content = bytearray(open_file(tmp_path).read_bytes())
    (tail,) = struct.unpack_from("<I", content, TAIL_AT)
    content[BLOCK_AT + tail :] = b"\xff" * (len(content) - BLOCK_AT - tail)
    open_file(tmp_path).write_bytes(content)
    broker = broker_on(tmp_path, **ALL)
    rows = events_of(broker)
    assert kinds_of(rows) == ["published"] * 2
    broker.close()


def test_a_block_that_the_log_has_already_is_not_taken_twice(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    left_open = open_file(tmp_path).read_bytes()
    first = events_of(broker)
    broker = broker_on(tmp_path)
    # A kill between adding the block to the log and beginning the next one.
    open_file(tmp_path).write_bytes(left_open)
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 1)
    rows = events_of(broker)
    assert rows[:2] == first
    assert is_dense(rows)
    assert len(rows) == 3
    broker.close()


@pytest.mark.parametrize("told", [0, 1, 2])
def test_a_start_adds_the_events_of_a_publish_that_a_kill_interrupted(tmp_path, told):
    broker = broker_on(tmp_path, trace_body_bytes=9, **ALL)
    topic = broker.topic("t")
    topic.channel("c")
    (before,) = publish(broker, 1)
    topic.published_by(TraceClient("10.0.0.9:1", "agent"))
    snapshots = [open_file(tmp_path).read_bytes()]
    for size in (1, 2):
        topic.publish_body(b"z" * size, wall())
        topic.published_by(TraceClient("10.0.0.9:1", "agent"))
        snapshots.append(open_file(tmp_path).read_bytes())
    # The header as it is while both are published together, when some of them have their events.
    content = bytearray(snapshots[-1])
    struct.pack_into("<I", content, TAIL_AT, *struct.unpack_from("<I", snapshots[told], TAIL_AT))
    struct.pack_into("<I", content, PUBLISHING_AT, 1)
    struct.pack_into("<Q", content, PUBLISHED_AFTER_AT, before)
    struct.pack_into("<I", content, PUBLISHED_FROM_AT, *struct.unpack_from("<I", snapshots[0], TAIL_AT))
    open_file(tmp_path).write_bytes(content)
    broker = broker_on(tmp_path, trace_body_bytes=9, **ALL)
    rows = events_of(broker)
    assert kinds_of(rows) == ["published", "stored"] * 3
    assert [row.body for row in rows[::2]] == [b"x", b"z", b"zz"]
    assert [row.client for row in rows[::2]] == [None, "10.0.0.9:1", "10.0.0.9:1"]
    assert is_dense(rows)
    broker = broker_on(tmp_path, trace_body_bytes=9, **ALL)
    assert events_of(broker) == rows
    broker.close()


def test_a_publish_that_a_kill_left_unstored_has_no_event(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    (guid,) = publish(broker, 1)
    content = bytearray(open_file(tmp_path).read_bytes())
    struct.pack_into("<I", content, PUBLISHING_AT, 1)
    struct.pack_into("<Q", content, PUBLISHED_AFTER_AT, guid)
    open_file(tmp_path).write_bytes(content)
    broker = broker_on(tmp_path, **ALL)
    assert [row.guid for row in events_of(broker)] == [guid]
    broker.close()


def as_after_power_failure(path: Path) -> None:
    node = json.loads((path / "node.json").read_text())
    (path / "node.json").write_text(json.dumps({**node, "clean": False, "boot": "another"}))


def test_after_a_power_failure_positions_go_on_far_behind_the_known_ones(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    synced = events_of(broker)
    publish(broker, 2)
    as_after_power_failure(tmp_path)
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 1)
    rows = events_of(broker, synced[0].position)
    assert [(row.kind, row.count, row.reason) for row in rows] == [
        ("published", None, None),
        ("published", None, None),
        ("lost_events", None, "unknown_gap"),
        ("published", None, None),
    ]
    assert rows[3].position > synced[-1].position + 1_000_000
    publish(broker, 1)
    broker = broker_on(tmp_path, **ALL)
    assert kinds_of(events_of(broker, rows[3].position)) == ["published"] * 2
    broker.close()


def spoil_tail(content: bytearray) -> None:
    struct.pack_into("<I", content, TAIL_AT, 7)


def spoil_position(content: bytearray) -> None:
    struct.pack_into("<q", content, FIRST_POSITION_AT, -1)


def spoil_entry(content: bytearray) -> None:
    content[BLOCK_AT + 32] = 99


def spoil_magic(content: bytearray) -> None:
    content[:8] = b"NONSENSE"


def cut_short(content: bytearray) -> None:
    del content[5000:]


@pytest.mark.parametrize("spoil", [spoil_tail, spoil_position, spoil_entry, spoil_magic, cut_short])
def test_a_damaged_open_block_costs_its_events_only(tmp_path, spoil, caplog):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    sealed = events_of(broker)
    publish(broker, 2)
    content = bytearray(open_file(tmp_path).read_bytes())
    spoil(content)
    open_file(tmp_path).write_bytes(content)
    with caplog.at_level(logging.ERROR):
        broker = broker_on(tmp_path, **ALL)
    assert "its events are lost" in caplog.text or "events in it are lost" in caplog.text
    publish(broker, 1)
    rows = events_of(broker)
    assert rows[:2] == sealed
    assert (rows[2].kind, rows[2].reason) == ("lost_events", "unknown_gap")
    assert kinds_of(rows[3:]) == ["published"]
    assert broker.health() == "OK"
    broker.close()


@pytest.mark.parametrize("mended", [True, False])
def test_a_reader_goes_on_behind_a_damaged_block_that_begins_a_file(tmp_path, mended):
    options: Any = ALL | {"trace_max_bytes": 16 * MIB, "max_bytes_per_file": MIB}
    broker = broker_on(tmp_path, **options)
    for _ in range(40_000):
        broker.topic("t").publish_body(b"x", 1)
    broker.close()
    log = broker.tracing.log.log
    path, first = log.first.next.mapping.path, log.first.next.first_ordinal
    with open(path, "r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(bytes(512))
    broker = broker_on(tmp_path, **options)
    log = broker.tracing.log.log
    if mended:
        log.ready(log.first.next)
    pages = pages_of(broker, bytes_max=MIB)
    assert pages[-1].next == broker.tracing.log.sealed_position
    assert log.first.next.first_ordinal == first
    assert sum(len(page.data) for page in pages) > MIB // 3
    broker.close()


def test_a_later_format_is_left_as_it_is_and_nothing_is_traced(tmp_path, caplog):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 1)
    content = bytearray(open_file(tmp_path).read_bytes())
    struct.pack_into("<I", content, 8, 2)
    open_file(tmp_path).write_bytes(content)
    with caplog.at_level(logging.ERROR):
        broker = broker_on(tmp_path, **ALL)
    assert "written by a later pyqd" in caplog.text
    publish(broker, 1)
    assert broker.topic("t").trace is None
    assert open_file(tmp_path).read_bytes() == content
    broker.close()


def test_a_directory_that_cannot_be_used_costs_the_trace_only(tmp_path, caplog):
    (tmp_path / "trace").write_text("not a directory")
    with caplog.at_level(logging.ERROR):
        broker = broker_on(tmp_path, **ALL)
        publish(broker, 1)
    assert "no message is traced" in caplog.text
    assert broker.health() == "OK"
    (tmp_path / "trace").unlink()
    broker.tracing.apply(broker.topic("t"))
    publish(broker, 1)
    assert kinds_of(events_of(broker)) == ["published"]
    broker.close()


def test_a_log_that_was_removed_begins_anew_behind_the_old_positions(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 3)
    before = events_of(broker)
    broker.close()
    shutil.rmtree(tmp_path / "trace")
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 1)
    rows = events_of(broker, before[-1].position + 1)
    assert kinds_of(rows) == ["lost_events", "published"]
    broker.close()


# Space.


def test_the_oldest_events_are_overwritten_and_counted(tmp_path):
    broker = broker_on(tmp_path, trace_retention_bytes=MIB, trace_body_bytes=1000, **ALL)
    publish(broker, 10)
    first = events_of(broker)[0].position
    publish(broker, 5000, body=b"x" * 1000)
    stats = broker.tracing.stats()
    assert stats["bytes"] <= MIB
    assert stats["next"] - first == 5010
    assert stats["overwritten"] == stats["oldest"] - first > 1000
    rows = events_of(broker, first)
    assert (rows[0].kind, rows[0].count, rows[0].position) == ("lost_events", stats["overwritten"], first)
    assert is_dense(rows[1:])
    assert rows[1].position == stats["oldest"]
    assert sum(entry.stat().st_size for entry in (tmp_path / "trace" / "log").iterdir()) <= MIB
    broker.close()


def test_a_smaller_limit_takes_effect_at_once(tmp_path):
    broker = broker_on(tmp_path, trace_retention_bytes=4 * MIB, trace_body_bytes=1000, **ALL)
    publish(broker, 3000, body=b"x" * 1000)
    assert broker.tracing.stats()["overwritten"] == 0
    broker.change_options(options_for(tmp_path, trace_retention_bytes=MIB, trace_body_bytes=1000, **ALL))
    stats = broker.tracing.stats()
    assert stats["overwritten"] > 1000
    assert len(events_of(broker)) == 3000 - stats["overwritten"]
    broker.close()


def test_events_are_removed_when_their_time_is_over(tmp_path):
    with HeldClock() as clock:
        broker = broker_on(tmp_path, trace_retention_time=HOUR_NS, **ALL)
        publish(broker, 2)
        events_of(broker)
        clock.advance(30 * MINUTE_NS)
        publish(broker, 1)
        broker.tracing.tend()
        assert len(events_of(broker)) == 3
        clock.advance(2 * HOUR_NS)
        broker.tracing.tend()
        assert events_of(broker) == []
        assert broker.tracing.stats()["overwritten"] == 3
        publish(broker, 1)
        assert kinds_of(events_of(broker)) == ["published"]
        broker.tracing.tend()
        assert kinds_of(events_of(broker)) == ["published"]
        broker.close()


def test_a_full_disk_costs_events_and_no_message(tmp_path, caplog):
    files = FullFiles()
    broker = broker_on(tmp_path, files, trace_body_bytes=4000, **ALL)
    topic = broker.topic("t#ephemeral")
    broker.topic("t#ephemeral").channel("c")
    publish(broker, 1, "t#ephemeral")
    before = events_of(broker)
    files.room = 0
    with caplog.at_level(logging.ERROR):
        for _ in range(600):
            topic.publish_body(b"x" * 4000, wall())
    assert topic.message_count == 601
    lost = broker.tracing.stats()["lost"]
    assert lost > 400
    assert caplog.text.count("cannot store events") == 1
    files.room = None
    for _ in range(50):
        topic.publish_body(b"x" * 4000, wall())
    rows = events_of(broker, before[-1].position + 1)
    gaps = [row for row in rows if row.kind == "lost_events"]
    assert sum(row.count for row in gaps) == broker.tracing.stats()["lost"] >= lost
    assert rows[-2].kind == "published"
    assert broker.health() == "OK"
    broker.close()


def test_events_leave_twice_the_reserve_of_the_disk_free(tmp_path):
    broker = broker_on(tmp_path, trace_body_bytes=4000, min_free_bytes=1 << 62, **ALL)
    assert broker.tracing.space.is_short(1)
    broker.close()


def test_the_log_is_synced_in_the_background(tmp_path):
    jobs: list[Any] = []
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    events_of(broker)
    log = broker.tracing.log.log
    assert log.dirty_ranges()[0]
    broker.in_background = lambda job, done: jobs.append((job, done))
    broker.tracing.tend()
    broker.tracing.tend()
    assert len(jobs) == 1
    job, done = jobs.pop()
    done(job(), None)
    assert not log.dirty_ranges()[0]
    broker.tracing.tend()
    assert jobs == []
    broker.close()


def test_a_failed_sync_of_events_is_no_failure_of_the_broker(tmp_path, caplog):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 2)
    events_of(broker)
    broker.in_background = lambda _job, done: done(None, OSError("broken"))
    with caplog.at_level(logging.WARNING):
        broker.tracing.tend()
    assert "cannot sync events" in caplog.text
    assert broker.health() == "OK"
    assert broker.tracing.log.log.dirty_ranges()[0]
    broker.close()


def test_the_open_file_has_the_documented_layout(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    publish(broker, 1, "orders")
    content = open_file(tmp_path).read_bytes()
    assert len(content) == OPEN_BYTES
    assert content[:8] == b"PYQDTRAC"
    version, tail = struct.unpack_from("<II", content, 8)
    assert (version, tail) == (1, 32 + 16 + 16 + 16)
    first, dense_from, started_ns = struct.unpack_from("<qqq", content, FIRST_POSITION_AT)
    assert first == dense_from == broker.tracing.stats()["next"] - 1
    assert 0 <= wall() - started_ns < HOUR_NS
    publishing, topic_bytes = struct.unpack_from("<II", content, PUBLISHING_AT)
    assert (publishing, content[TOPIC_AT : TOPIC_AT + topic_bytes]) == (0, b"orders")
    place, context, event = (content[BLOCK_AT + at : BLOCK_AT + at + 16] for at in (32, 48, 64))
    assert place == bytes([65, 6, 0]) + bytes(5) + b"orders" + bytes(2)
    assert struct.unpack("<BxHHxxq", context)[:3] == (64, 1, 0)
    assert struct.unpack("<BBHI", event[:8]) == (1, 0, 0, 1)
    broker.close()


def test_the_stop_of_a_broker_keeps_the_last_events(tmp_path):
    broker = broker_on(tmp_path, **ALL)
    broker.topic("t").channel("c")
    publish(broker, 1)
    run_all_wakes(broker)
    broker.close()
    assert os.path.getsize(open_file(tmp_path)) == OPEN_BYTES
    broker = broker_on(tmp_path)
    assert kinds_of(events_of(broker)) == ["published", "stored"]
    broker.close()


def test_a_pool_keeps_no_spare_beyond_the_limit(tmp_path: Path) -> None:
    space = TraceSpace(DiskReserve(Files(), str(tmp_path), 0), lambda: MIB)
    assert space.allows_spare(MIB)
    assert not space.allows_spare(MIB + 1)


def test_the_limit_of_the_trace_answers_every_question_of_a_pool() -> None:
    questions = {name for name, member in vars(SpaceLimit).items() if callable(member) and not name.startswith("_")}
    own = {name for name in vars(TraceSpace) if name in questions}
    assert questions - own <= {"check_spare"}
