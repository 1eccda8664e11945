"""Export of a stopped broker's data as a data directory of nsqd, and read-only listing of a data directory."""

import json
import os

import pytest

from pyqd.apps import cli
from pyqd.broker.exporter import Exporter
from pyqd.broker.inspection import Inspection
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdDirectory, NsqdMessage, NsqdQueue
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.hot.primitives.clock import wall
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import DiskFull, StartupError
from tests.support.nsqd_data import snapshot
from tests.support.storage import body_of, broker_on, consumer_on, publish

CREATED_NS = 1_700_000_000_000_000_000


def make_example(path):
    """Make topics with something in each state a message can be in, stopped cleanly. Returns: ids by topic and body."""
    broker = broker_on(path)
    busy = broker.topic("busy")
    busy.channel("idle")
    worker = busy.channel("worker")
    for number in range(10):
        busy.publish_body(b"%d" % number, CREATED_NS + number)
    consumer = consumer_on(worker)
    guids = [worker.take_message(consumer)[0] for _ in range(6)]
    worker.finish_message(consumer, guids[0])
    worker.finish_message(consumer, guids[2])
    worker.requeue_message(consumer, guids[1], 0)
    worker.requeue_message(consumer, guids[3], HOUR_NS)
    busy.publish_body(b"late", CREATED_NS, wall() + HOUR_NS)
    worker.pause(True)
    held = broker.topic("held")
    for number in range(3):
        held.publish_body(b"%d" % number, CREATED_NS)
    held.publish_body(b"late", CREATED_NS, wall() + HOUR_NS)
    paused = broker.topic("paused")
    paused.channel("c")
    paused.publish_body(b"before", CREATED_NS)
    paused.pause(True)
    paused.publish_body(b"after", CREATED_NS)
    broker.topic("empty").channel("c")
    broker.topic("e#ephemeral").publish_body(b"x", CREATED_NS)
    broker.close()
    return broker


def queue_of(path, name):
    """Return (body, attempts) of a queue of nsqd, and the irregularities."""
    notes: list[str] = []
    found = list(NsqdQueue(NsqdDirectory(Files(), str(path)), name, notes.append).messages())
    assert notes == []
    return [(message.body, message.attempts) for message in found]


def exporter_to(source, target, files=None, **options):
    return Exporter(files or Files(), str(source), str(target), wall(), **options)


def test_every_message_is_exported_with_its_attempts(tmp_path):
    source, target = tmp_path / "data", tmp_path / "nsqd"
    source.mkdir()
    make_example(source)
    before = snapshot(source)
    report = exporter_to(source, target).run()
    assert snapshot(source) == before
    plain = [b"%d" % number for number in range(10)]
    assert queue_of(target, "busy:idle") == [(body, 0) for body in [*plain, b"late"]]
    assert queue_of(target, "busy:worker") == [
        (b"1", 1),
        (b"4", 1),
        (b"5", 1),
        *((body, 0) for body in plain[6:]),
        (b"3", 1),
        (b"late", 0),
    ]
    assert queue_of(target, "busy") == []
    assert queue_of(target, "held") == [(body, 0) for body in (b"0", b"1", b"2", b"late")]
    assert queue_of(target, "paused") == [(b"after", 0)]
    assert queue_of(target, "paused:c") == [(b"before", 0)]
    assert queue_of(target, "empty:c") == []
    assert json.loads((target / "nsqd.dat").read_text()) == {
        "topics": [
            {
                "name": "busy",
                "paused": False,
                "channels": [{"name": "idle", "paused": False}, {"name": "worker", "paused": True}],
            },
            {"name": "empty", "paused": False, "channels": [{"name": "c", "paused": False}]},
            {"name": "held", "paused": False, "channels": None},
            {"name": "paused", "paused": True, "channels": [{"name": "c", "paused": False}]},
        ],
        "version": "1.3.0",
    }
    lines = report.lines()
    assert "  channel worker: 9 messages, 2 of them deferred, paused" in lines
    assert lines[-2] == "total: 4 topics, 4 channels, 26 messages"
    assert lines[-1] == "note: 4 deferred messages lose their due time: nsqd delivers them at once"


def test_ids_and_timestamps_are_kept(tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    broker = broker_on(source)
    broker.topic("t").publish_body(b"x", CREATED_NS)
    broker.close()
    exporter_to(source, tmp_path / "nsqd").run()
    directory = NsqdDirectory(Files(), str(tmp_path / "nsqd"))
    [found] = NsqdQueue(directory, "t", lambda text: None).messages()
    assert found == NsqdMessage(CREATED_NS, 0, to_hex(broker.topic("t").guids.last_id), b"x")


def test_only_an_empty_directory_is_written_to(tmp_path):
    source, target = tmp_path / "data", tmp_path / "nsqd"
    source.mkdir()
    make_example(source)
    target.mkdir()
    (target / "nsqd.dat").write_bytes(b"precious")
    with pytest.raises(StartupError, match="is not empty"):
        exporter_to(source, target).run()
    assert (target / "nsqd.dat").read_bytes() == b"precious"
    with pytest.raises(StartupError, match="No such file or directory"):
        exporter_to(source, tmp_path / "no" / "where").run()
    with pytest.raises(StartupError, match="is not a data directory of pyqd"):
        exporter_to(target, tmp_path / "other").run()
    assert not (tmp_path / "other").exists()


def test_a_full_disk_leaves_the_target_empty(tmp_path):
    class Full(Files):
        def append(self, path, content):
            super().append(path, content[:5])
            raise DiskFull("write", path, 28, "No space left on device")

    source, target = tmp_path / "data", tmp_path / "nsqd"
    source.mkdir()
    make_example(source)
    with pytest.raises(StartupError, match="No space left"):
        exporter_to(source, target, Full()).run()
    assert os.listdir(target) == []


def test_messages_longer_than_nsqd_s_limit_are_pointed_out(tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    broker = broker_on(source)
    broker.topic("t").publish_body(bytes(1024 * 1024 + 1), CREATED_NS)
    broker.close()
    report = exporter_to(source, tmp_path / "nsqd").run()
    assert "the longest message has 1048577 bytes" in report.lines()[-1]


def test_export_as_a_command(tmp_path, capsys):
    source, target = tmp_path / "data", tmp_path / "nsqd"
    source.mkdir()
    make_example(source)
    lock = DirectoryLock(str(source))
    assert cli.main(["export", f"--from={source}", str(target)]) == 1
    assert "possibly in use" in capsys.readouterr().err
    lock.release()
    assert cli.main(["export", f"--from={source}", str(target)]) == 0
    assert "total: 4 topics" in capsys.readouterr().out
    assert (target / "nsqd.dat").exists()


def rows_of(path, verify=False):
    inspection = Inspection(str(path), verify)
    return {(row.topic, row.channel): row for row in inspection.rows}, inspection.problems


def test_inspection_shows_the_state_that_a_start_finds_and_changes_nothing(tmp_path):
    make_example(tmp_path)
    before = snapshot(tmp_path)
    rows, problems = rows_of(tmp_path, verify=True)
    assert snapshot(tmp_path) == before
    assert problems == []
    worker = rows["busy", "worker"]
    assert (worker.records, worker.floor, worker.cursor, worker.depth, worker.deferred) == (9, 1, 6, 7, 2)
    assert worker.paused
    assert wall() < worker.next_due_ns < wall() + HOUR_NS
    assert (rows["busy", None].records, rows["busy", None].depth) == (11, 0)
    assert (rows["held", None].depth, rows["paused", None].depth, rows["paused", "c"].depth) == (4, 1, 1)
    broker = broker_on(tmp_path)
    for (topic, channel), row in rows.items():
        found = broker.topics[topic]
        counted = found if channel is None else found.channels_by_name[channel]
        assert (row.depth, row.paused) == (counted.depth, counted.paused)
        if channel is not None:
            assert row.deferred == counted.deferred_count


def test_the_offline_reader_treats_directories_without_files_as_a_start_does(tmp_path):
    broker = broker_on(tmp_path)
    for number in range(3):
        broker.topic("held").publish_body(b"%d" % number, CREATED_NS)
    broker.close()
    (tmp_path / "topics" / "held.topic" / "c.channel").mkdir()
    (tmp_path / "topics" / "new.topic").mkdir()
    rows, problems = rows_of(tmp_path)
    assert problems == []
    broker = broker_on(tmp_path)
    assert rows["held", "c"].depth == broker.topics["held"].channels_by_name["c"].depth == 3
    assert rows["held", None].depth == broker.topics["held"].depth == 0
    assert rows["new", None].depth == broker.topics["new"].depth == 0


def test_a_missing_segment_is_passed_over_and_named(tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    broker = broker_on(source)
    broker.topic("t").channel("c")
    for number in range(2000):
        broker.topic("t").publish_body(body_of(number, 100), CREATED_NS)
    broker.close()
    segments = sorted((source / "topics" / "t.topic" / "log").iterdir(), key=lambda file: int(file.stem))
    segments[1].unlink()
    report = exporter_to(source, tmp_path / "nsqd").run()
    assert any("are missing" in line for line in report.lines())
    found = len(queue_of(tmp_path / "nsqd", "t:c"))
    assert 0 < found < 2000
    assert found == broker_on(source).topic("t").channels_by_name["c"].depth == rows_of(source)[0]["t", "c"].depth


def test_a_running_broker_can_be_inspected(tmp_path):
    broker = broker_on(tmp_path)
    channel = broker.topic("t").channel("c")
    consumer = consumer_on(channel)
    publish(broker.topic("t"), 5000, 100)
    for _ in range(3000):
        channel.finish_message(consumer, channel.take_message(consumer)[0])
    broker.scheduler.run_wakes()
    rows, problems = rows_of(tmp_path, verify=True)
    assert problems == []
    row = rows["t", "c"]
    assert (row.depth, row.floor, row.cursor) == (2000, 3000, 3000)
    assert 0 < rows["t", None].floor <= 3000


def test_inspect_verify_finds_a_damaged_segment(tmp_path, capsys):
    broker = broker_on(tmp_path)
    publish(broker.topic("t"), 2000, 100)
    broker.close()
    assert cli.main(["inspect", "--verify", str(tmp_path)]) == 0
    segment = min((tmp_path / "topics" / "t.topic" / "log").iterdir(), key=lambda file: int(file.stem))
    content = bytearray(segment.read_bytes())
    content[1000] ^= 1
    segment.write_bytes(content)
    assert cli.main(["inspect", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", "--verify", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "damaged" in output
    assert f"problem: topic t: {segment}: damaged record at offset" in output


def test_unreadable_files_do_not_hide_the_other_queues(tmp_path, capsys):
    make_example(tmp_path)
    (tmp_path / "topics" / "busy.topic" / "idle.channel" / "ledger").write_bytes(b"x" * 5000)
    (tmp_path / "topics" / "held.topic" / "state").write_bytes(b"x" * 5000)
    assert cli.main(["inspect", "--json", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(queue["topic"], queue["channel"], queue["health"]) for queue in found["queues"]] == [
        ("busy", None, "damaged"),
        ("busy", "worker", "ok"),
        ("empty", None, "ok"),
        ("empty", "c", "ok"),
        ("paused", None, "ok"),
        ("paused", "c", "ok"),
        ("held", None, "unreadable"),
    ]
    assert len(found["problems"]) == 2
    with pytest.raises(StartupError, match="failed to export - topic busy, channel idle"):
        exporter_to(tmp_path, tmp_path / "nsqd").run()


def test_inspect_as_a_command(tmp_path, capsys):
    assert cli.main(["inspect", str(tmp_path)]) == 1
    assert "is not a data directory of pyqd" in capsys.readouterr().err
    make_example(tmp_path)
    assert cli.main(["inspect", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "format 5, epoch 0, stopped cleanly"
    assert lines[1].split() == [
        "topic", "channel", "records", "bytes", "floor", "cursor", "depth", "deferred", "next", "due", "health"
    ]  # fmt: skip
    assert len(lines) == 2 + 8
