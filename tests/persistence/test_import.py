"""A data directory of nsqd becomes pyqd's: whole, once, and whatever happens on the way."""

import json
import shutil

import pytest

from pyqd.apps import cli
from pyqd.broker.importer import Importer, import_on_start
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.lock import DirectoryLock
from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.guid import from_hex, to_hex
from pyqd.primitives.errors import DiskFull, StartupError
from tests.support.invariants import check_topic
from tests.support.nsqd_data import message, messages, snapshot, write_metadata, write_queue
from tests.support.storage import SEGMENT_BYTES_MIN, FullFiles, broker_on, consumer_on, options_for

NOW_NS = 1_800_000_000_000_000_000


def importer_on(path, files=None):
    return Importer(files or Files(), str(path), node_id=7, segment_bytes_max=SEGMENT_BYTES_MIN, now=lambda: NOW_NS)


def taken(channel):
    """Take everything a channel has. Returns: (number of the message, attempts), in order."""
    consumer = consumer_on(channel)
    found = []
    while (delivered := channel.take_message(consumer)) is not None:
        guid, attempts, timestamp_ns, body = delivered
        number = int(body[1:])
        assert to_hex(guid) == message(number).id
        assert timestamp_ns == message(number).timestamp_ns
        found.append((number, attempts))
    return found


def write_example(path):
    """Write three topics with channels at typical positions, one topic and one channel paused."""
    write_metadata(path, {"a": ["x", "y", "z"], "b": [], "c": ["p"]}, paused=("a:y", "c"))
    write_queue(path, "a:x", messages(3, 4, 5, 6))
    write_queue(path, "a:y", [message(1, 2), *messages(4, 5), message(6, 1)])
    write_queue(path, "a:z", [])
    write_queue(path, "a", messages(7, 8))
    write_queue(path, "b", messages(1, 2))
    write_queue(path, "c", messages(9))
    write_queue(path, "c:p", messages(2))


def assert_example(path):
    broker = broker_on(path)
    depths = {
        name: (topic.depth, topic.paused, {key: (c.depth, c.paused) for key, c in topic.channels_by_name.items()})
        for name, topic in broker.topics.items()
    }
    assert depths == {
        "a": (0, False, {"x": (6, False), "y": (6, True), "z": (2, False)}),
        "b": (2, False, {}),
        "c": (1, True, {"p": (1, False)}),
    }
    a = broker.topic("a")
    assert taken(a.channels_by_name["x"]) == [(number, 1) for number in (3, 4, 5, 6, 7, 8)]
    assert sorted(taken(a.channels_by_name["y"])) == [(1, 3), (4, 1), (5, 1), (6, 2), (7, 1), (8, 1)]
    assert taken(a.channels_by_name["z"]) == [(7, 1), (8, 1)]
    assert taken(broker.topic("b").channel("first")) == [(1, 1), (2, 1)]
    assert taken(broker.topic("c").channels_by_name["p"]) == [(2, 1)]
    for topic in broker.topics.values():
        check_topic(topic)
    broker.close()


def test_every_queue_comes_with_depth_order_ids_timestamps_and_attempts(tmp_path):
    write_example(tmp_path)
    report = importer_on(tmp_path).run()
    assert report.message_count == 14
    # 3 to 6 once, for x and y; 1 and 6 as delivered to y; 7 and 8; in b 1 and 2, in c 9 and 2.
    assert report.stored_count == 11
    assert report.notes == []
    assert_example(tmp_path)


def test_nsqd_s_files_are_kept_aside_with_the_report(tmp_path):
    write_example(tmp_path)
    (tmp_path / "unrelated").write_text("x")
    before = snapshot(tmp_path)
    report = importer_on(tmp_path).run()
    assert {path.name for path in tmp_path.iterdir()} == {"imported-from-nsqd", "node.json", "topics", "unrelated"}
    kept = snapshot(tmp_path / "imported-from-nsqd")
    assert kept.pop("report.txt")[1].decode() == report.text()
    assert kept == {name: content for name, content in before.items() if name != "unrelated"}


def test_a_second_start_imports_nothing(tmp_path):
    write_example(tmp_path)
    assert importer_on(tmp_path).run() is not None
    before = snapshot(tmp_path)
    assert importer_on(tmp_path).run() is None
    assert snapshot(tmp_path) == before


def test_kept_files_of_an_earlier_import_are_not_mixed_with_those_of_another(tmp_path):
    for expected in ("imported-from-nsqd", "imported-from-nsqd-2"):
        write_example(tmp_path)
        assert importer_on(tmp_path).run().moved_to == expected
        shutil.rmtree(tmp_path / "topics")
        (tmp_path / "node.json").unlink()


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path):
    write_example(tmp_path)
    before = snapshot(tmp_path)
    dry = importer_on(tmp_path).run(dry_run=True)
    assert snapshot(tmp_path) == before
    assert dry.lines()[1:] == importer_on(tmp_path).run().lines()[1:-1]


def test_a_directory_without_nsqd_is_left_alone(tmp_path):
    assert importer_on(tmp_path).run() is None
    broker_on(tmp_path).close()
    write_queue(tmp_path, "t", messages(1))
    before = snapshot(tmp_path)
    importer = importer_on(tmp_path)
    assert importer.run() is None
    assert importer.leftovers() == ["t.diskqueue.000000.dat", "t.diskqueue.meta.dat"]
    assert snapshot(tmp_path) == before


def test_topics_of_pyqd_without_a_node_file_stop_the_import(tmp_path):
    write_example(tmp_path)
    (tmp_path / "topics").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(StartupError, match="has topics of pyqd already"):
        importer_on(tmp_path).run()
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"{", b'{"topics":3}'])
def test_a_damaged_nsqd_dat_stops_the_import_and_nothing_is_changed(tmp_path, content):
    write_example(tmp_path)
    (tmp_path / "nsqd.dat").write_bytes(content)
    before = snapshot(tmp_path)
    with pytest.raises(
        StartupError, match=r"failed to import nsqd's data - failed to parse metadata in .*nsqd\.dat - "
    ):
        importer_on(tmp_path).run()
    assert snapshot(tmp_path) == before


def test_queues_that_nsqd_dat_does_not_name_are_imported_when_they_hold_something(tmp_path):
    write_queue(tmp_path, "t", messages(3))
    write_queue(tmp_path, "t:c", messages(1, 2))
    write_queue(tmp_path, "t:empty", [])
    write_queue(tmp_path, "no name", messages(4))
    report = importer_on(tmp_path).run()
    assert report.notes == [
        ("no name", 'skipping creation of invalid topic "no name"'),
        ("t", "not in nsqd.dat, and has messages: imported"),
        ("t:c", "not in nsqd.dat, and has messages: imported"),
        ("t:empty", "not in nsqd.dat, and empty: omitted"),
    ]
    broker = broker_on(tmp_path)
    assert {key: channel.depth for key, channel in broker.topic("t").channels_by_name.items()} == {"c": 3}


@pytest.fixture
def windows(tmp_path):
    """Directory of an nsqd on Windows, in whose file names a semicolon stands before the channel."""
    write_example(tmp_path)
    for path in tmp_path.glob("*:*"):
        path.rename(tmp_path / path.name.replace(":", ";"))
    return tmp_path


def test_channels_of_an_nsqd_on_windows_come_with_their_messages(windows):
    report = importer_on(windows).run()
    assert (report.message_count, report.notes) == (14, [])
    assert_example(windows)
    assert (windows / "imported-from-nsqd" / "a;x.diskqueue.000000.dat").exists()


def test_channels_of_an_nsqd_on_windows_come_without_its_metadata_too(windows):
    (windows / "nsqd.dat").unlink()
    report = importer_on(windows).run()
    assert report.message_count == 14
    assert ("a:x", "not in nsqd.dat, and has messages: imported") in report.notes


def test_a_queue_that_would_not_be_read_stops_the_import_and_nothing_is_changed(tmp_path):
    write_example(tmp_path)
    write_queue(tmp_path, "a;x", messages(20))
    before = snapshot(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(StartupError, match="the files of queue a;x would not be read: move them elsewhere"):
            importer_on(tmp_path).run(dry_run)
        assert snapshot(tmp_path) == before


def test_names_that_are_none_and_ephemeral_ones_are_left_out(tmp_path):
    write_metadata(tmp_path, {"bad name": [], "t": ["c#ephemeral", "x y", "ok"], "e#ephemeral": ["c"]})
    report = importer_on(tmp_path).run()
    assert [text for _, text in report.notes] == [
        'skipping creation of invalid topic "bad name"',
        "channel c#ephemeral is ephemeral: omitted",
        'skipping creation of invalid channel "x y"',
        "topic e#ephemeral is ephemeral: omitted",
    ]
    broker = broker_on(tmp_path)
    assert {name: list(topic.channels_by_name) for name, topic in broker.topics.items()} == {"t": ["ok"]}


def test_segments_that_nsqd_set_aside_are_kept_and_named(tmp_path):
    write_example(tmp_path)
    (tmp_path / "b.diskqueue.000000.dat.bad").write_bytes(b"damaged")
    report = importer_on(tmp_path).run()
    assert report.notes == [("b.diskqueue.000000.dat.bad", "set aside by nsqd as unreadable: omitted")]
    assert (tmp_path / "imported-from-nsqd" / "b.diskqueue.000000.dat.bad").read_bytes() == b"damaged"
    assert_example(tmp_path)


def test_one_message_in_queues_of_any_order_is_stored_once(tmp_path):
    write_metadata(tmp_path, {"t": ["up", "down", "mixed"]})
    write_queue(tmp_path, "t:up", messages(*range(100)))
    write_queue(tmp_path, "t:down", messages(*reversed(range(100))))
    write_queue(tmp_path, "t:mixed", messages(*range(50, 100), *range(50)))
    report = importer_on(tmp_path).run()
    assert (report.message_count, report.stored_count) == (300, 100)
    topic = broker_on(tmp_path).topic("t")
    for channel in topic.channels_by_name.values():
        assert sorted(taken(channel)) == [(number, 1) for number in range(100)]


def test_a_copy_in_the_same_queue_is_left_out_and_a_message_without_a_body_too(tmp_path):
    write_metadata(tmp_path, {"t": ["c"]}, paused=("t",))
    write_queue(tmp_path, "t:c", [*messages(1, 2), message(1, 1), message(3, 1), *messages(3), message(4, body=b"")])
    write_queue(tmp_path, "t", [*messages(7, 7), message(8, body=b"")])
    report = importer_on(tmp_path).run()
    assert [text for _, text in report.notes] == [
        "1 messages without a body: omitted",
        "1 second copies of a message in the same queue: omitted",
        "1 messages without a body: omitted",
        "2 second copies of a message in the same queue: omitted",
    ]
    topic = broker_on(tmp_path).topic("t")
    assert topic.depth == 1
    assert sorted(taken(topic.channels_by_name["c"])) == [(1, 1), (2, 1), (3, 2)]


def test_messages_that_cannot_keep_their_ids_get_new_ones(tmp_path):
    write_metadata(tmp_path, {"t": ["c", "d"]})
    odd = [
        message(1)._replace(id=text)
        for text in (b"not hexadecimal!", b"0" * 16, b"f" * 16, message(2).id.upper(), b"7" + b"f" * 15)
    ]
    write_queue(tmp_path, "t:c", [*odd, message(1), message(1, body=b"another"), message(5, 1)])
    write_queue(tmp_path, "t:d", [message(1, 3, body=b"a third"), message(5, 1, body=b"a fourth")])
    write_queue(tmp_path, "t", messages(1, 5))
    report = importer_on(tmp_path).run()
    assert report.message_count == 12
    topic = broker_on(tmp_path).topic("t")
    for channel, depth in (("c", 10), ("d", 4)):
        consumer = consumer_on(topic.channels_by_name[channel])
        found = [topic.channels_by_name[channel].take_message(consumer) for _ in range(depth + 1)]
        assert found.pop() is None
        assert len({guid for guid, _, _, _ in found}) == depth
    assert topic.guids.next(0) > max(guid for guid, _, _, _ in found)


def test_attempts_outlive_a_kill_before_the_message_was_delivered(tmp_path):
    write_metadata(tmp_path, {"t": ["c"]})
    write_queue(tmp_path, "t:c", [message(1, 65_000), message(2)])
    importer_on(tmp_path).run()
    broker_on(tmp_path)
    broker = broker_on(tmp_path)
    channel = broker.topic("t").channels_by_name["c"]
    broker.scheduler.run_timers(mono())
    assert sorted(taken(channel)) == [(1, 65_001), (2, 1)]


@pytest.mark.slow
def test_a_large_queue_beside_a_small_one_takes_long_runs(tmp_path):
    write_metadata(tmp_path, {"t": ["all", "few"]})
    write_queue(tmp_path, "t:all", messages(*range(20_000)))
    write_queue(tmp_path, "t:few", messages(100, 15_000, 19_999))
    report = importer_on(tmp_path).run()
    assert report.stored_count == 20_000
    topic = broker_on(tmp_path).topic("t")
    assert topic.channels_by_name["all"].depth == 20_000
    assert taken(topic.channels_by_name["few"]) == [(100, 1), (15_000, 1), (19_999, 1)]
    check_topic(topic)


class KilledFiles(Files):
    """Fails at the n-th change of the file system and does nothing after it: the state that a kill at that
    time leaves.
    """

    def __init__(self, changes: int) -> None:
        self.changes = changes

    def count(self):
        if self.changes == 0:
            raise KeyboardInterrupt
        self.changes -= 1

    def new_mapped(self, path, size_bytes, populate):
        self.count()
        return super().new_mapped(path, size_bytes, populate)

    def make_directory(self, path):
        self.count()
        super().make_directory(path)

    def write(self, path, content):
        self.count()
        super().write(path, content)

    def rename(self, source, target):
        self.count()
        super().rename(source, target)

    def remove(self, path):
        self.count()
        super().remove(path)

    def remove_tree(self, path):
        self.count()
        super().remove_tree(path)


def changes_in_an_import(path):
    """Import the example. Returns: how often it changed the file system."""
    path.mkdir()
    write_example(path)
    files = KilledFiles(1 << 30)
    importer_on(path, files).run()
    return (1 << 30) - files.changes


@pytest.mark.timeout(240)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 15])
def test_a_killed_import_is_completed_or_restarted_by_the_next_run(tmp_path, every):
    change_count = changes_in_an_import(tmp_path / "whole")
    assert change_count > 50
    for killed_at in range(0, change_count, every):
        path = tmp_path / str(killed_at)
        path.mkdir()
        write_example(path)
        originals = {name: content for name, (_, content) in snapshot(path).items()}
        with pytest.raises(KeyboardInterrupt):
            importer_on(path, KilledFiles(killed_at)).run()
        importer_on(path).run()
        assert {entry.name for entry in path.iterdir()} == {"imported-from-nsqd", "node.json", "topics"}
        kept = {name: content for name, (_, content) in snapshot(path / "imported-from-nsqd").items()}
        assert kept.pop("report.txt")
        assert kept == originals
        assert_example(path)
        shutil.rmtree(path)


def error_of_import(path, files):
    """Import. Returns: the error that stopped it, None when it was done."""
    try:
        importer_on(path, files).run()
    except StartupError as error:
        return error
    return None


@pytest.mark.slow
def test_a_full_disk_stops_the_import_and_leaves_nsqd_s_files_as_they_were(tmp_path):
    write_example(tmp_path)
    before = snapshot(tmp_path)
    files = FullFiles()
    files.room = failed_count = 0
    while (error := error_of_import(tmp_path, files)) is not None:
        assert "failed to import nsqd's data - " in str(error)
        assert isinstance(error.__cause__, DiskFull)
        assert snapshot(tmp_path) == before
        failed_count += 1
        files.room = failed_count
    assert failed_count >= 8
    assert_example(tmp_path)


def test_the_daemon_imports_on_its_first_start_and_logs_the_report(tmp_path, caplog):
    write_example(tmp_path)
    caplog.set_level("INFO", "pyqd")
    import_on_start(Files(), str(tmp_path), options_for(tmp_path))
    assert "total: 3 topics, 4 channels, 14 messages" in caplog.text
    assert_example(tmp_path)
    write_queue(tmp_path, "late", messages(1))
    import_on_start(Files(), str(tmp_path), options_for(tmp_path))
    assert "2 files of nsqd in it are not imported" in caplog.text


def test_the_command_prints_the_report(tmp_path, capsys):
    write_example(tmp_path)
    before = snapshot(tmp_path)
    assert cli.main(["import", "--dry-run", str(tmp_path)]) == 0
    dry = capsys.readouterr().out
    assert "  channel y: 4 messages, 8 bytes, 2 of them delivered before, paused" in dry
    assert snapshot(tmp_path) == before
    assert cli.main(["import", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nsqd's files are in imported-from-nsqd"
    assert_example(tmp_path)
    assert json.loads((tmp_path / "node.json").read_text())["format"] == 5


def test_the_command_refuses_data_that_cannot_be_imported(tmp_path, capsys):
    assert cli.main(["import", str(tmp_path)]) == 1
    assert "it has no files of nsqd" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "missing")]) == 1
    assert "no such file or directory" in capsys.readouterr().err
    lock = DirectoryLock(str(tmp_path))
    assert cli.main(["import", str(tmp_path)]) == 1
    assert "possibly in use" in capsys.readouterr().err
    lock.release()
    (tmp_path / "nsqd.dat").write_bytes(b"")
    assert cli.main(["import", str(tmp_path)]) == 1
    assert "failed to parse metadata" in capsys.readouterr().err


def test_ids_to_come_are_greater_than_those_imported(tmp_path):
    write_metadata(tmp_path, {"t": []})
    write_queue(tmp_path, "t", messages(1000))
    importer_on(tmp_path).run()
    assert broker_on(tmp_path).topic("t").guids.last_id == from_hex(message(1000).id)
