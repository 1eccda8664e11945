"""Tests of pyqd.broker.broker."""

import errno
import json
import os
import shutil
import struct
from typing import Any, ClassVar

import pytest

from pyqd.broker.broker import NAMES_PER_SLICE
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.diskqueue.segment import Segment
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.errors import DiskFull, StartupError, StorageError
from tests.support.invariants import check_topic
from tests.support.storage import SEGMENT_HEADER_BYTES, FullFiles, body_of, broker_on, consumer_on, frames_of


def test_a_new_data_directory_has_no_topics(tmp_path):
    broker = broker_on(tmp_path)
    assert broker.topics == {}
    assert broker.health() == "OK"


def test_topics_and_channels_are_made_once_and_found_again(tmp_path):
    broker = broker_on(tmp_path)
    names = ["t", ".", "..", "a.topic", "T" * 64, "x#ephemeral"]
    for name in names:
        topic = broker.topic(name)
        assert broker.topic(name) is broker.topic_named(name.encode()) is topic
        assert topic.channel("..") is topic.channel("..")
        topic.channel("c#ephemeral")
    broker.close()
    broker = broker_on(tmp_path)
    assert sorted(broker.topics) == sorted(names[:-1])
    assert {tuple(topic.channels_by_name) for topic in broker.topics.values()} == {("..",)}


def test_topics_are_listed_by_name_while_some_are_created_and_deleted(tmp_path):
    broker = broker_on(tmp_path)
    count = 3 * NAMES_PER_SLICE
    for number in reversed(range(count)):
        broker.topic(f"t{number:03}#ephemeral")
    listed = []
    for topic in broker.topics_by_name():
        listed.append(topic.name)
        if len(listed) == 1:
            # One name of the slice at hand, one of a later slice, and one that was listed already.
            for number in (5, count - 1, 0):
                broker.delete_topic(f"t{number:03}#ephemeral")
            broker.topic("a#ephemeral")
            broker.topic("z#ephemeral")
    expected = [f"t{number:03}#ephemeral" for number in range(count - 1) if number != 5]
    assert listed == [*expected, "z#ephemeral"]


def test_topics_of_an_earlier_run_are_listed_by_name(tmp_path):
    broker = broker_on(tmp_path)
    for name in ("b", "c", "a", "B"):
        broker.topic(name)
    broker.delete_topic("c")
    broker.close()
    assert [topic.name for topic in broker_on(tmp_path).topics_by_name()] == ["B", "a", "b"]


def test_a_directory_that_is_no_topic_is_left_alone(tmp_path, caplog):
    broker_on(tmp_path)
    (tmp_path / "topics" / "lost+found").mkdir()
    assert broker_on(tmp_path).topics == {}
    assert "skipping lost+found" in caplog.text
    assert (tmp_path / "topics" / "lost+found").exists()


def test_a_deleted_topic_is_gone_at_once_and_after_a_restart(tmp_path):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel("c")
    topic.publish_body(b"x", wall())
    assert broker.delete_topic("t")
    assert not broker.delete_topic("t")
    assert topic.exiting
    assert channel.exiting
    assert os.listdir(tmp_path / "topics") == []
    assert broker.topic("t").depth == 0
    assert list(broker_on(tmp_path).topics) == ["t"]
    assert os.listdir(tmp_path / "discarded") == []


def test_a_broker_that_was_not_closed_is_known_by_its_node_file(tmp_path):
    broker = broker_on(tmp_path)
    node = tmp_path / "node.json"
    assert json.loads(node.read_text())["clean"] is False
    broker.close()
    assert json.loads(node.read_text())["clean"] is True


@pytest.mark.parametrize(("clean", "boot", "epoch"), [(False, "other", 1), (True, "other", 0), (False, None, 0)])
def test_an_epoch_begins_after_a_power_failure_only(tmp_path, clean, boot, epoch):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    topic.publish_body(body_of(0), wall())
    node = json.loads((tmp_path / "node.json").read_text())
    node["clean"] = clean
    node["boot"] = boot or node["boot"]
    (tmp_path / "node.json").write_text(json.dumps(node))
    broker = broker_on(tmp_path)
    assert broker.epoch == epoch
    channel = broker.topic("t").channel("c")
    assert channel.depth == 1
    broker.topic("t").publish_body(body_of(1), wall())
    consumer = consumer_on(channel)
    assert [channel.take_message(consumer)[3] for _ in range(2)] == [body_of(0), body_of(1)]
    assert broker.topic("t").log.epoch == epoch


def after_power_failure(path, files=None, boot="another", **flags):
    """Load a broker that takes the last run for one that a power failure ended."""
    node = json.loads((path / "node.json").read_text())
    (path / "node.json").write_text(json.dumps({**node, "clean": False, "boot": boot}))
    return broker_on(path, files, **flags)


def segments_of(path):
    return {each: each.stat().st_size for each in path.glob("topics/*/log/*.seg")}


def first_position(log):
    return struct.unpack_from("<Q", log.active.mapping.view(), SEGMENT_HEADER_BYTES + 8)[0]


def test_starts_that_fail_after_a_power_failure_raise_the_epoch_once(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    topic.publish_body(body_of(0), wall())
    later = tmp_path / "topics" / "u.topic"
    (later / "log").mkdir(parents=True)
    (later / "log" / "1.seg").write_bytes(struct.pack("<8sIIQ", b"PYQDSEG\0", 3, 7, 1).ljust(64 << 10, b"\0"))
    for _ in range(3):
        with pytest.raises(StartupError, match="later pyqd"):
            after_power_failure(tmp_path)
    shutil.rmtree(later)
    before = segments_of(tmp_path)
    broker = broker_on(tmp_path)
    assert broker.power_failed
    assert (broker.epoch, broker.topic("t").log.epoch) == (1, 1)
    assert segments_of(tmp_path) == before
    assert broker_on(tmp_path).topic("t").log.epoch == 1


def test_the_epoch_of_a_log_that_nothing_was_appended_to_outlives_a_restart(tmp_path):
    broker_on(tmp_path).topic("t").publish_body(body_of(0), wall())
    (tmp_path / "node.json").unlink()
    for _ in range(3):
        topic = broker_on(tmp_path).topic("t")
        assert topic.log.epoch == 1
    topic.publish_body(body_of(1), wall())
    assert first_position(topic.log) == 1 << 48 | 1


@pytest.mark.parametrize("restart", [False, True])
def test_an_empty_log_continues_in_its_segment_after_a_power_failure_on_a_full_disk(tmp_path, restart):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    files = FullFiles()
    files.room = 0
    before = segments_of(tmp_path)
    broker = after_power_failure(tmp_path, files)
    if restart:
        broker = broker_on(tmp_path, files)
    topic = broker.topic("t")
    topic.publish_body(body_of(0), wall())
    assert first_position(topic.log) == 1 << 48
    assert segments_of(tmp_path) == before
    channel = broker_on(tmp_path).topic("t").channel("c")
    assert channel.take_message(consumer_on(channel))[3] == body_of(0)


@pytest.mark.parametrize("restart", [False, True])
def test_a_log_takes_a_segment_after_a_power_failure_when_a_record_comes_and_not_before(tmp_path, restart):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    topic.publish_body(body_of(0), wall())
    garbage = topic.log.active
    garbage.mapping.view()[garbage.tail : garbage.tail + 100] = b"x" * 100
    files = FullFiles()
    files.room = 0
    broker = after_power_failure(tmp_path, files)
    if restart:
        broker = broker_on(tmp_path, files)
    assert broker.damage.found_count == 0
    topic = broker.topic("t")
    with pytest.raises(DiskFull):
        topic.publish_body(body_of(1), wall())
    files.room = None
    topic.publish_body(body_of(1), wall())
    check_topic(topic)
    assert first_position(topic.log) == 1 << 48 | 1
    channel = broker_on(tmp_path).topic("t").channel("c")
    consumer = consumer_on(channel)
    assert [channel.take_message(consumer)[3] for _ in range(2)] == [body_of(0), body_of(1)]


def test_a_start_that_ends_while_an_empty_segment_begins_again_keeps_the_place_in_the_log(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.publish_frames(frames_of([b"x"] * 10), wall())
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for _ in range(10):
        channel.finish_message(consumer, channel.take_message(consumer)[0])
    topic.log.shrink()
    topic.trim_finished()
    topic.log.pool.drop_spares()
    # A segment's number is stored last.
    topic.log.active.mapping.view()[16:24] = bytes(8)
    topic = after_power_failure(tmp_path).topic("t")
    assert (topic.log.first.first_ordinal, topic.log.end) == (10, 10)
    topic.publish_body(body_of(0), wall())
    channel = topic.channel("c")
    assert channel.take_message(consumer_on(channel))[3] == body_of(0)
    check_topic(topic)


def test_a_log_without_a_segment_opens_on_a_full_disk_and_accepts_records_once_there_is_space(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    topic.channel("c")
    for path in segments_of(tmp_path):
        path.unlink()
    files = FullFiles()
    files.room = 0
    topic = broker_on(tmp_path, files).topic("t")
    with pytest.raises(DiskFull):
        topic.publish_body(body_of(0), wall())
    assert topic.log.size_bytes() == 0
    files.room = None
    topic.publish_body(body_of(0), wall())
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    assert channel.finish_message(consumer, channel.take_message(consumer)[0]) == 0
    topic.trim_finished()
    check_topic(topic)
    assert None not in [spare.mapping.path for spare in topic.log.pool.spares]


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "{}", '{"format": 5, "epoch": -1}'])
def test_an_invalid_node_file_is_set_aside_and_re_created(tmp_path, content):
    (tmp_path / "node.json").write_text(content)
    assert broker_on(tmp_path).power_failed
    assert (tmp_path / "node.json.bad").read_text() == content


@pytest.mark.parametrize(
    ("number", "reason"),
    [(6, "by a later pyqd"), (4, r"by an unreleased pyqd - format 4.*: export the directory with that build")],
)
def test_a_node_file_of_another_format_is_refused_and_not_touched(tmp_path, number, reason):
    content = f'{{"format": {number}}}'
    (tmp_path / "node.json").write_text(content)
    with pytest.raises(StartupError, match=rf"node\.json was written {reason}"):
        broker_on(tmp_path)
    assert (tmp_path / "node.json").read_text() == content


def test_health_is_that_of_the_last_write_until_that_log_is_written_to_again(tmp_path):
    broker = broker_on(tmp_path, FullFiles())
    topic = broker.topic("t")
    topic.log.pool.jobs = SegmentJobs()
    topic.publish_body(b"x" * 60_000, wall())
    broker.files.room = 0
    with pytest.raises(DiskFull) as caught:
        topic.publish_body(b"x" * 60_000, wall())
    broker.note_failed_write(caught.value)
    assert broker.health().startswith("NOK - failed to reserve ")
    broker.topics["t"].publish_body(b"x", wall())
    assert broker.health() == "OK"


def test_health_does_not_take_a_deleted_topic_for_a_write_that_worked(tmp_path):
    broker = broker_on(tmp_path, FullFiles())
    topic, other = broker.topic("t"), broker.topic("other")
    topic.log.pool.jobs = SegmentJobs()
    topic.publish_body(b"x" * 60_000, wall())
    other.publish_body(b"x", wall())
    accepted = broker.accepted_count()
    broker.files.room = 0
    with pytest.raises(DiskFull) as caught:
        topic.publish_body(b"x" * 60_000, wall())
    broker.note_failed_write(caught.value)
    broker.files.room = None
    broker.delete_topic("other")
    assert broker.accepted_count() == accepted
    assert broker.health().startswith("NOK - failed to reserve ")
    topic.publish_body(b"x", wall())
    assert broker.health() == "OK"


@pytest.mark.parametrize("room", range(8))
def test_a_topic_that_could_not_be_made_is_made_later(tmp_path, room):
    files = FullFiles()
    broker = broker_on(tmp_path, files)
    files.room = room
    try:
        broker.topic("t").channel("c")
    except DiskFull:
        assert room < 3
    files.room = None
    topic = broker.topic("t")
    topic.publish_body(b"x", wall())
    assert topic.channel("c").depth == 1
    check_topic(topic)
    assert broker_on(tmp_path).topic("t").channel("c").depth == 1


def test_jobs_in_the_background_may_come_late_or_never(tmp_path):
    jobs = []
    broker = broker_on(tmp_path)
    broker.in_background = broker.segment_jobs.in_background = lambda job, done: jobs.append((job, done))
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    for cycle in range(20):
        for number in range(100):
            topic.publish_body(body_of(1000 * cycle + number, 1000), wall())
        for number in range(100):
            guid, _, _, body = channel.take_message(consumer)
            assert body == body_of(1000 * cycle + number, 1000)
            channel.finish_message(consumer, guid)
            broker.scheduler.run_wakes()
        if cycle % 3 == 2:
            while jobs:
                job, done = jobs.pop()
                done(job(), None)
    assert jobs
    broker = broker_on(tmp_path)
    check_topic(broker.topic("t"))
    assert broker.topic("t").channel("c").depth == 0


def test_a_job_that_fails_is_no_more_than_a_warning(tmp_path, caplog):
    files = FullFiles()
    broker = broker_on(tmp_path, files)
    topic = broker.topic("t")
    files.room = 0
    topic.publish_body(b"x" * 40_000, wall())
    assert "cannot prepare a segment ahead" in caplog.text
    files.room = None
    topic.publish_body(b"x" * 40_000, wall())
    assert topic.depth == 2


def test_a_directory_that_does_not_exist_cannot_be_served(tmp_path):
    with pytest.raises(StartupError, match="failed to load topics"):
        broker_on(tmp_path / "none", Files())


def test_of_a_new_segment_only_the_first_pages_are_made_present_and_few_at_a_time(tmp_path):
    class Noting(Files):
        ranges: ClassVar[list[tuple[int, int]]] = []

        def populate(self, mapping, start_bytes, length_bytes):
            self.ranges.append((start_bytes, length_bytes))
            super().populate(mapping, start_bytes, length_bytes)

    class Outrun:
        """A log whose pages came too late before."""

        directory = str(tmp_path)
        populates = True
        pages_ahead = 8 << 20

        def new_segment(self, size_bytes):
            return Segment(Files().new_mapped(None, -(-size_bytes // 4096) * 4096, False))

    broker = broker_on(tmp_path, Noting())
    Noting.ranges.clear()
    log: Any = Outrun()
    piece = 64 << 10
    assert broker.segment_jobs.new_spare(log, 16 << 20).prepared == 4 * piece
    assert Noting.ranges == [(number * piece, piece) for number in range(4)]
    Noting.ranges.clear()
    assert broker.segment_jobs.new_spare(log, 151_552).prepared == 151_552
    assert Noting.ranges == [(0, piece), (piece, piece), (2 * piece, 151_552 - 2 * piece)]


@pytest.mark.parametrize("name", ["probe", "probe.making"])
def test_a_start_removes_the_file_by_which_a_killed_run_tried_the_disk(tmp_path, name):
    broker_on(tmp_path)
    (tmp_path / name).write_bytes(bytes(4096))
    broker_on(tmp_path)
    assert not (tmp_path / name).exists()


class Unnameable(Files):
    """A file system that neither renames nor removes, if it is told so."""

    broken = breaks_at_open = False

    def open_mapped(self, path):
        self.broken = self.broken or self.breaks_at_open
        self.refuse(path)
        return super().open_mapped(path)

    def rename(self, source, target):
        self.refuse(source)
        super().rename(source, target)

    def new_mapped(self, path, size_bytes, populate):
        self.refuse(path)
        return super().new_mapped(path, size_bytes, populate)

    def remove_tree(self, path):
        self.refuse(path)
        super().remove_tree(path)

    def refuse(self, path):
        if self.broken and "discarded" not in path:
            raise StorageError("rename", path, errno.EIO, "Input/output error")


def test_a_topic_that_could_neither_be_made_nor_removed_is_removed_later(tmp_path):
    files = Unnameable()
    broker = broker_on(tmp_path, files=files)
    files.broken = True
    with pytest.raises(StorageError):
        broker.topic("t")
    broker.retry_removals()
    assert os.listdir(tmp_path / "topics") == ["t.topic"]
    files.broken = False
    broker.retry_removals()
    assert os.listdir(tmp_path / "topics") == []


def test_a_topic_that_could_not_be_made_at_first_can_be_made_later(tmp_path):
    files = Unnameable()
    broker = broker_on(tmp_path, files=files)
    files.broken = True
    with pytest.raises(StorageError):
        broker.topic("t")
    files.broken = False
    broker.topic("t").channel("c")
    broker.retry_removals()
    broker.close()
    assert list(broker_on(tmp_path).topic("t").channels_by_name) == ["c"]


def test_a_channel_that_could_neither_be_made_nor_removed_can_be_made_later(tmp_path):
    files = Unnameable()
    broker = broker_on(tmp_path, files=files)
    topic = broker.topic("t")
    files.breaks_at_open = True
    with pytest.raises(StorageError):
        topic.channel("c")
    assert "c.channel" in os.listdir(tmp_path / "topics" / "t.topic")
    files.broken = files.breaks_at_open = False
    topic.channel("c")
    broker.retry_removals()
    broker.close()
    assert list(broker_on(tmp_path).topic("t").channels_by_name) == ["c"]
