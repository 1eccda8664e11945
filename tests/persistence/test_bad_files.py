"""Files that are damaged, missing, foreign or of a later format, under a whole broker and under the daemon."""

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker import message_lookup
from pyqd.broker.exporter import Exporter
from pyqd.broker.inspection import Inspection
from pyqd.broker.stats import Selection, head_stats, topic_stats
from pyqd.diskqueue import files
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdDirectory, NsqdQueue
from pyqd.hot.broker.replay import seek
from pyqd.hot.primitives import crc32c
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StartupError, StorageError
from tests.support.invariants import check_topic
from tests.support.nsq import Client
from tests.support.server import Daemon, pyqd
from tests.support.storage import FullFiles, body_of, broker_on, consumer_on, number_in, publish

COUNT = 400
SIZE = 500


def filled(root: Path, finished: int = 0) -> None:
    """Leave a topic with a channel, several segments long, of which so many messages are finished."""
    broker = broker_on(root)
    topic = broker.topic("t")
    channel = topic.channel("c")
    publish(topic, COUNT, SIZE)
    taken(channel, finished)
    broker.close()


def taken(channel: Any, count_max: int = COUNT) -> list[int]:
    """Take and finish; return the numbers in the bodies."""
    consumer = consumer_on(channel)
    numbers = []
    for _ in range(count_max):
        message = channel.take_message(consumer)
        if message is None:
            break
        channel.finish_message(consumer, message[0])
        assert message[3] == body_of(number_in(message[3]), SIZE)
        numbers.append(number_in(message[3]))
    return numbers


def segments(root: Path) -> list[Path]:
    found = [path for path in (root / "topics" / "t.topic" / "log").iterdir() if any(path.read_bytes()[16:24])]
    return sorted(found, key=lambda path: path.read_bytes()[16:24][::-1])


def change(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


RECORD_BYTES = 48 + 504


@pytest.mark.parametrize("offset", [0, 4, 8, 60])
@pytest.mark.parametrize("content", [b"\xff\xff\xff\x7f", None, bytes(300)], ids=["limit", "inverted", "zeros"])
def test_damage_in_a_sealed_segment_loses_only_the_damaged_records_when_they_are_read(
    tmp_path, caplog, offset, content
):
    filled(tmp_path)
    path = segments(tmp_path)[0]
    start = 128 + 7 * RECORD_BYTES + offset
    if content is None:
        # A constant byte would be no change in each 256th run: the checksum differs between them.
        content = bytes([path.read_bytes()[start] ^ 0xFF])
    change(path, start, content)
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    assert topic.log.damage.found_count == 0, "a start does not read what is sealed"
    assert taken(topic.channel("c")) == [number for number in range(COUNT) if number != 7]
    assert topic.log.damage.lost_count == 1
    assert topic.channel("c").depth == 0
    assert str(path) in caplog.text
    assert len(list((tmp_path / "topics" / "t.topic" / "damaged").iterdir())) == 1
    assert broker.health() == "OK"
    check_topic(topic)


def test_a_sealed_count_that_is_too_low_is_noticed_though_the_records_behind_it_are_finished(tmp_path):
    filled(tmp_path)
    (count,) = struct.unpack("<Q", segments(tmp_path)[0].read_bytes()[40:48])
    change(segments(tmp_path)[0], 40, struct.pack("<Q", count - 16))
    topic = broker_on(tmp_path).topic("t")
    channel, consumer = topic.channel("c"), consumer_on(topic.channel("c"))
    found = []
    while (message := channel.take_message(consumer)) is not None:
        found.append(number_in(message[3]))
        channel.finish_message(consumer, message[0])
        topic.trim_finished()
    assert set(range(COUNT)) - set(found) <= set(range(count - 16, count))
    check_topic(topic)


def test_a_run_of_damaged_records_at_the_end_of_a_sealed_segment_is_stepped_over_by_every_channel(tmp_path):
    filled(tmp_path)
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("d")
    first = topic.log.first
    change(segments(tmp_path)[0], first.tail - 3 * RECORD_BYTES + 20, b"\x55" * (2 * RECORD_BYTES))
    lost = range(first.count - 3, first.count)
    assert taken(topic.channel("c")) == [number for number in range(COUNT) if number not in lost]
    check_topic(topic)


def test_the_start_verifies_records_that_were_in_flight(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel("c")
    publish(topic, COUNT, SIZE)
    consumer = consumer_on(channel)
    for _ in range(10):
        channel.take_message(consumer)
    broker.close()
    change(segments(tmp_path)[0], 128 + 4 * RECORD_BYTES, b"\xff" * 70)
    topic = broker_on(tmp_path).topic("t")
    expected = set(range(COUNT)) - {4, 5}
    assert set(taken(topic.channel("c"))) | {5} == expected | {5}
    check_topic(topic)


def test_a_missing_segment_is_skipped_and_reported(tmp_path, caplog):
    filled(tmp_path)
    gone = segments(tmp_path)[1]
    gone.unlink()
    topic = broker_on(tmp_path).topic("t")
    numbers = taken(topic.channel("c"))
    assert numbers == sorted(numbers)
    assert len(numbers) < COUNT
    assert "are missing" in caplog.text


def test_a_missing_segment_of_a_paused_topic_counts_in_no_depth_and_is_not_delivered(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    topic.pause(True)
    publish(topic, COUNT, SIZE)
    broker.close()
    segments(tmp_path)[1].unlink()
    topic = broker_on(tmp_path).topic("t")
    found, made = topic.channel("c"), topic.channel("d")
    seek(found, 0)
    assert (found.depth, made.depth, topic.depth) == (0, 0, COUNT)
    assert taken(found) == []
    topic.pause(False)
    depth = found.depth
    assert 0 < depth < COUNT
    assert made.depth == depth
    assert len(taken(found)) == len(taken(made)) == depth
    assert found.depth == made.depth == 0
    check_topic(topic)


@pytest.mark.parametrize("content", [b"", b"x", bytes(8192), b"PYQDLGR\0" + bytes(8184), None])
def test_a_bad_or_missing_ledger_means_everything_kept_comes_again(tmp_path, caplog, content):
    filled(tmp_path, finished=3)
    path = tmp_path / "topics" / "t.topic" / "c.channel" / "ledger"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    topic = broker_on(tmp_path).topic("t")
    assert taken(topic.channel("c")) == list(range(COUNT))
    assert "ledger" in caplog.text
    assert path.with_suffix(".bad").exists() == (content is not None)


def test_damage_is_counted_and_shown_and_health_stays_well(tmp_path):
    filled(tmp_path)
    change(segments(tmp_path)[0], 128 + 7 * RECORD_BYTES, b"\xff" * 2 * RECORD_BYTES)
    segments(tmp_path)[2].unlink()
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    missing = sum(end - start for start, end in topic.log.holes)
    head = head_stats(broker, 0)
    assert (head["health"], head["damage"]) == ("OK", {"count": 1, "records_lost": missing, "bytes": 0})
    assert len(taken(topic.channel("c"))) == COUNT - missing - 2
    found = {"count": 2, "records_lost": missing + 2, "bytes": 2 * RECORD_BYTES}
    assert head_stats(broker, 0)["damage"] == found
    shown = topic_stats(topic, Selection(include_clients=False))
    assert shown is not None
    assert shown["damage"] == found
    assert "damage" not in shown["channels"][0]
    broker.topic("other")
    assert "damage" not in (topic_stats(broker.topic("other"), Selection()) or {})
    topic.channel("c").close_consumers()
    broker.delete_topic("t")
    assert head_stats(broker, 0)["damage"] == found


@pytest.mark.parametrize("place", ["queued", "held", "deferred"])
def test_records_that_stand_for_lost_ones_are_not_exported_nor_listed_as_damaged(tmp_path, place):
    root, target = tmp_path / "data", tmp_path / "exported"
    root.mkdir()
    broker = broker_on(root)
    topic = broker.topic("t")
    if place != "held":
        topic.channel("c")
    publish(topic, 9, SIZE, due_ns=wall() + HOUR_NS if place == "deferred" else 0)
    broker.close()
    (path,) = (root / "topics" / "t.topic" / "log").iterdir()
    change(path, 128 + 4 * RECORD_BYTES + 60, b"\xff" * 2 * RECORD_BYTES)
    assert Inspection(str(root), verify=True).problems
    broker_on(root).close()
    inspection = Inspection(str(root), verify=True)
    assert inspection.problems == []
    assert inspection.damage_copies == inspection.as_dict()["kept_aside"]
    assert len(inspection.damage_copies) == 1
    assert f"kept aside: {inspection.damage_copies[0]}" in inspection.lines()
    Exporter(Files(), str(root), str(target), wall()).run()
    notes: list[str] = []
    queue = NsqdQueue(NsqdDirectory(Files(), str(target)), "t" if place == "held" else "t:c", notes.append)
    assert {message.body for message in queue.messages()} == {body_of(number, SIZE) for number in (0, 1, 2, 3, 7, 8)}


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096), b"\xff" * 4096])
def test_a_damaged_topic_state_is_re_created(tmp_path, content):
    filled(tmp_path, finished=3)
    (tmp_path / "topics" / "t.topic" / "state").write_bytes(content)
    topic = broker_on(tmp_path).topic("t")
    assert taken(topic.channel("c")) == list(range(3, COUNT))


def test_a_bad_node_file_costs_nothing_and_no_number_is_given_twice(tmp_path):
    filled(tmp_path)
    (tmp_path / "node.json").write_bytes(b"\0" * 80)
    topic = broker_on(tmp_path).topic("t")
    assert topic.log.epoch == 1
    assert taken(topic.channel("c")) == list(range(COUNT))
    assert (tmp_path / "node.json.bad").exists()


def test_after_a_power_failure_the_start_verifies_unsynced_records(tmp_path):
    filled(tmp_path)
    change(segments(tmp_path)[0], 128 + 7 * RECORD_BYTES + 60, b"\xff")
    node = (tmp_path / "node.json").read_text()
    node = node.replace('"clean": true', '"clean": false').replace('"boot": "', '"boot": "x')
    (tmp_path / "node.json").write_text(node)
    topic = broker_on(tmp_path).topic("t")
    assert topic.log.damage.lost_count == 1
    assert taken(topic.channel("c")) == [number for number in range(COUNT) if number != 7]


def test_foreign_files_are_left_alone(tmp_path, caplog):
    filled(tmp_path)
    foreign = [
        tmp_path / "notes.txt",
        tmp_path / "topics" / "readme",
        tmp_path / "topics" / "file.topic",
        tmp_path / "topics" / "t.topic" / "x.channel",
        tmp_path / "topics" / "t.topic" / "log" / "core",
    ]
    for path in foreign:
        path.write_bytes(b"foreign")
    broker = broker_on(tmp_path)
    assert taken(broker.topic("t").channel("c")) == list(range(COUNT))
    assert list(broker.topics) == ["t"]
    assert all(path.read_bytes() == b"foreign" for path in foreign)
    assert "skipping file.topic" in caplog.text
    assert "skipping x.channel" in caplog.text


@pytest.mark.parametrize("room", range(3))
def test_a_failed_creation_leaves_no_directory(tmp_path, room):
    disk = FullFiles()
    broker = broker_on(tmp_path, disk)
    disk.room = min(room, 1)
    with pytest.raises(StorageError):
        broker.topic("t")
    assert os.listdir(tmp_path / "topics") == []
    disk.room = None
    topic = broker.topic("t")
    disk.room = 0
    with pytest.raises(StorageError):
        topic.channel("c")
    assert not (tmp_path / "topics" / "t.topic" / "c.channel").exists()


def test_a_segment_of_a_later_format_is_refused_by_name_and_not_touched(tmp_path):
    filled(tmp_path)
    path = segments(tmp_path)[1]
    change(path, 8, struct.pack("<II", 3, crc32c.value(struct.pack("<Q", 3) + path.read_bytes()[16:40])))
    content = path.read_bytes()
    with pytest.raises(StartupError, match=r"version 3") as caught:
        broker_on(tmp_path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 5, 255])
@pytest.mark.parametrize("file", ["c.channel/ledger", "c.channel/cancelled.ledger", "state"])
def test_a_version_in_one_file_concerns_no_other_channel_and_is_reported(tmp_path, file, version):
    broker = broker_on(tmp_path)
    for topic in (broker.topic("t"), broker.topic("other")):
        for name in "cd":
            topic.channel(name)
        publish(topic, 10, SIZE)
        publish(topic, 3, SIZE, due_ns=wall() + HOUR_NS)
    topic = broker.topic("t")
    _, guid, *_ = next(iter(topic.log.records()))
    message_lookup.change_message(topic, [topic.channel("c")], guid, message_lookup.cancel, lambda: None)
    for topic in (broker.topic("t"), broker.topic("other")):
        taken(topic.channel("c"), 2)
        taken(topic.channel("d"), 2)
    broker.close()
    change(tmp_path / "topics" / "t.topic" / file, 8, bytes([version]))
    broker = broker_on(tmp_path)
    ((topic_name, channel_name, reason),) = broker.set_aside
    assert (topic_name, channel_name) == ("t", None if file == "state" else "c")
    assert file in reason
    assert broker.damage.found_count == 1
    assert len(taken(broker.topic("other").channel("c"))) == len(taken(broker.topic("t").channel("d"))) == 8
    assert len(taken(broker.topic("t").channel("c"))) >= 7
    assert broker.topic("t").channel("c").deferred_count == 3


def test_a_disk_that_cannot_reserve_blocks_is_named(tmp_path, monkeypatch):
    class NoReserve:
        def fallocate(self, *_arguments: Any) -> int:
            return -1

    class Failed:
        errno = errno.EOPNOTSUPP

    monkeypatch.setattr(files, "_libc", NoReserve())
    monkeypatch.setattr(files, "_ffi", Failed())
    with pytest.raises(StorageError, match="cannot reserve blocks"):
        files.Files().new_mapped(str(tmp_path / "file"), 4096, False)
    assert os.listdir(tmp_path) == []


def test_ids_keep_growing_when_the_clock_jumps_back(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel("c")
    now = wall()
    for back_ns in (0, 3600 * 10**9, 1800 * 10**9):
        topic.publish_body(body_of(1, SIZE), now - back_ns)
    consumer = consumer_on(channel)
    guids = [channel.take_message(consumer)[0] for _ in range(3)]
    assert guids == sorted(set(guids))
    broker.close()
    topic = broker_on(tmp_path).topic("t")
    topic.publish_body(body_of(1, SIZE), now - 3600 * 10**9)
    consumer = consumer_on(topic.channel("c"))
    assert max(topic.channel("c").take_message(consumer)[0] for _ in range(4)) > guids[-1]


@pytest.mark.slow
def test_the_daemon_starts_on_damaged_files_and_delivers_the_rest(tmp_path):
    (tmp_path / "data").mkdir()
    filled(tmp_path / "data", finished=3)
    change(segments(tmp_path / "data")[0], 128 + 7 * RECORD_BYTES, b"\xff" * 60)
    (tmp_path / "data" / "topics" / "t.topic" / "c.channel" / "ledger").write_bytes(b"x" * 5000)
    (tmp_path / "data" / "node.json").write_bytes(b"")
    daemon = Daemon(pyqd(), tmp_path, ["-max-bytes-per-file=65536"])
    daemon.start()
    try:
        client = Client(daemon.tcp_address)
        client.sub("t", "c", rdy_count=2500)
        numbers = {int.from_bytes(message.body[:8], "little") for message in client.read_messages(COUNT - 1)}
        client.close()
        assert numbers == set(range(COUNT)) - {7}
        reply = daemon.http("GET", "/ping")
        assert (reply.status, reply.body, reply.headers["x-pyqd-damage"]) == (200, b"OK", "2")
        damage = (daemon.topic("t") or {})["damage"]
        assert damage["records_lost"] == 1
        state = daemon.http("GET", "/durability").json()
        assert (state["last_stop"], state["damage"]["records_lost"]) == ("power_failure", 1)
        assert state["damaged_topics"] == [{"topic": "t", **damage}]
        assert f"damage in 2 places, 1 message lost, {len(state['set_aside'])} file" in daemon.log_text()
    finally:
        daemon.stop()
