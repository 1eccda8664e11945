"""Dirty bytes are written to stable storage, in order, once, and again after a failure."""

import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from pyqd.api.limits import LimitRoutes
from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.durability.syncer import LARGE_BYTES, Syncer, run_inline
from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.diskqueue.journal import CommitBuffer
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.http.messages import Request
from pyqd.primitives.errors import StorageError
from tests.support.forgetful import ForgetfulFiles
from tests.support.storage import FullFiles, broker_on, options_for

# Offset in a topic's state.
DUES_BELOW = 32


class RecordingFiles(Files):
    """A disk that records its syncs, and may refuse them."""

    def __init__(self) -> None:
        self.root = ""
        self.synced: list[str] = []
        self.file_systems: list[str] = []
        self.written_out: list[str] = []
        self.failing = False
        self.on_sync: Callable[[], object] = lambda: None

    def note(self, path: str) -> None:
        self.on_sync()
        if self.failing:
            raise StorageError("sync", path, 5, "Input/output error")
        # A ledger's mapping keeps the name it had before the rename; a segment's name says nothing.
        name = path.removeprefix(self.root + "/").removeprefix("topics/").removesuffix(".growing") or "topics/"
        self.synced.append(re.sub(r"\d+\.seg$", "*.seg", name))

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        assert start_bytes % 4096 == 0
        assert start_bytes + length_bytes <= mapping.size_bytes
        if mapping.path is not None:
            self.note(mapping.path)
        super().sync(mapping, start_bytes, length_bytes)

    def sync_file_system(self, path: str) -> bool:
        self.on_sync()
        self.file_systems.append(path)
        return super().sync_file_system(path)

    def write_out(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        assert self.synced == [], "a job writes out before it syncs"
        self.written_out.append(str(mapping.path))
        super().write_out(mapping, start_bytes, length_bytes)

    def sync_directory(self, path: str) -> None:
        self.note(path + "/")
        super().sync_directory(path)

    def taken(self) -> list[str]:
        """Return the syncs since the last call."""
        synced, self.synced = self.synced, []
        return synced


@pytest.fixture
def files() -> RecordingFiles:
    return RecordingFiles()


@pytest.fixture
def broker(tmp_path: Path, files: RecordingFiles) -> Iterator[Broker]:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--sync-timeout=1h", "--sync-every=3"]), files)
    broker.load()
    files.root = broker.root
    yield broker
    files.failing = False
    broker.close()


@pytest.fixture
def syncer(broker: Broker) -> Syncer:
    return Syncer(broker, run_inline)


def publish(broker: Broker, name: str, body: bytes = b"x", due_ns: int = 0) -> None:
    broker.topic(name).publish_body(body, time.time_ns(), due_ns)


def consumer() -> Consumer:
    made = Consumer()
    made.msg_timeout_ns = 60 * 10**9
    return made


def files_of(paths: list[str]) -> list[str]:
    return [path for path in paths if not path.endswith("/")]


def test_a_new_topic_is_synced_with_its_directories(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    broker.topic("t").channel("c")
    publish(broker, "t")
    assert syncer.sync_dirty()
    synced = files.taken()
    assert files_of(synced) == ["t.topic/log/*.seg", "t.topic/c.channel/ledger", "t.topic/state"]
    directories = {path for path in synced if path.endswith("/")}
    assert {"t.topic/", "t.topic/log/", "t.topic/c.channel/", "topics/"} <= directories


def test_unchanged_ranges_are_not_synced_again(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    broker.topic("quiet").channel("c")
    publish(broker, "quiet")
    publish(broker, "busy")
    syncer.sync_dirty()
    files.taken()
    assert syncer.sync_dirty()
    assert files.taken() == []
    publish(broker, "busy")
    syncer.sync_dirty()
    assert files_of(files.taken()) == ["busy.topic/state", "busy.topic/log/*.seg"]


def test_a_finished_message_syncs_its_ledger(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    channel = broker.topic("t").channel("c")
    client = consumer()
    for _ in range(3):
        publish(broker, "t")
    guids = [taken[0] for _ in range(3) if (taken := channel.take_message(client))]
    syncer.sync_dirty()
    files.taken()
    for guid in reversed(guids):
        assert channel.finish_message(client, guid) == 0
        syncer.sync_dirty()
        assert "t.topic/c.channel/ledger" in files.taken()


def test_a_pause_is_synced(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    topic = broker.topic("t")
    channel = topic.channel("c")
    syncer.sync_dirty()
    files.taken()
    topic.pause(True)
    syncer.sync_dirty()
    assert "t.topic/state" in files.taken()
    channel.pause(True)
    syncer.sync_dirty()
    assert "t.topic/c.channel/ledger" in files.taken()


def test_due_times_that_a_full_disk_keeps_in_memory_do_not_count_as_synced(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    publish(broker, "t", due_ns=time.time_ns() + 3600 * 10**9)
    broker.close()
    directory = tmp_path / "topics" / "t.topic"
    shutil.rmtree(directory / "dues")
    files = FullFiles()
    files.room = 0
    broker = Broker(options_for(tmp_path), files)
    broker.load()
    assert broker.topic("t").dues.store.directory is None
    assert Syncer(broker, run_inline).sync_dirty()
    assert struct.unpack_from("<Q", (directory / "state").read_bytes(), DUES_BELOW) == (0,)
    broker.close()


def test_due_times_and_notes_are_synced_with_their_names(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    channel = broker.topic("t").channel("c")
    publish(broker, "t")
    syncer.sync_dirty()
    files.taken()
    publish(broker, "t", due_ns=time.time_ns() + 3600 * 10**9)
    syncer.sync_dirty()
    synced = files.taken()
    assert {"t.topic/dues/0", "t.topic/dues/", "t.topic/"} <= set(synced)
    client = consumer()
    taken = channel.take_message(client)
    assert taken is not None
    assert channel.requeue_message(client, taken[0], 3600 * 10**9) == 0
    syncer.sync_dirty()
    synced = files.taken()
    assert {"t.topic/c.channel/notes/0", "t.topic/c.channel/notes/", "t.topic/c.channel/"} <= set(synced)
    assert syncer.sync_dirty()
    assert files.taken() == []


def test_ephemeral_topics_and_channels_are_not_synced(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    publish(broker, "t#ephemeral")
    channel = broker.topic("t").channel("c#ephemeral")
    syncer.sync_dirty()
    files.taken()
    channel.pause(True)
    syncer.sync_dirty()
    assert files.taken() == []


def test_only_new_records_are_synced(broker: Broker, syncer: Syncer) -> None:
    log = broker.topic("t").log
    publish(broker, "t", 20_000 * b"x")
    syncer.sync_dirty()
    assert log.synced_end == log.end
    publish(broker, "t")
    ((_, start, length),), end = log.dirty_ranges()
    assert (start, end) == (16384, log.end)
    assert length < 8192


def test_a_failure_shows_in_the_health_until_a_sync_succeeds(
    broker: Broker, files: RecordingFiles, syncer: Syncer
) -> None:
    publish(broker, "t")
    files.failing = True
    assert not syncer.sync_dirty()
    log = broker.topic("t").log
    assert log.synced_end < log.end
    assert broker.health().startswith("NOK - failed to sync ")
    publish(broker, "t")
    assert broker.health().startswith("NOK - failed to sync ")
    files.failing = False
    assert syncer.sync_dirty()
    assert log.synced_end == log.end
    assert broker.health() == "OK"


def test_records_appended_during_a_sync_are_dirty_after_it(
    broker: Broker, files: RecordingFiles, syncer: Syncer
) -> None:
    publish(broker, "t")
    files.on_sync = lambda: publish(broker, "t")
    syncer.sync_dirty()
    files.on_sync = lambda: None
    log = broker.topic("t").log
    assert log.synced_end == 1
    files.taken()
    syncer.sync_dirty()
    assert "t.topic/log/*.seg" in files.taken()
    assert log.synced_end == log.end


def test_a_segment_reused_during_a_sync_is_dirty_after_it(tmp_path: Path, files: RecordingFiles) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--max-bytes-per-file=65536"]), files)
    broker.load()
    syncer = Syncer(broker, run_inline)
    log = broker.topic("t").log
    log.pool.jobs = SegmentJobs()
    assert syncer.sync_dirty()
    publish(broker, "t", 60_000 * b"x")
    used = log.active
    publish(broker, "t", 60_000 * b"x")
    assert log.active is not used

    def use_anew() -> None:
        files.on_sync = lambda: None
        log.trim_below(1)
        publish(broker, "t", 60_000 * b"x")

    files.on_sync = use_anew
    assert syncer.sync_dirty()
    assert log.active is used
    ((segment, start, _),), _ = log.dirty_ranges()
    assert (segment is used, start) == (True, 0)
    broker.close()


def test_a_topic_deleted_during_a_sync_is_let_go(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    broker.topic("t").channel("c")
    publish(broker, "t")

    def delete() -> None:
        broker.delete_topic("t")

    files.on_sync = delete
    assert syncer.sync_dirty()
    files.on_sync = lambda: None
    publish(broker, "t")
    files.taken()
    assert syncer.sync_dirty()
    assert "t.topic/state" in files.taken()
    assert broker.health() == "OK"


def test_many_topics_go_in_several_jobs(broker: Broker, files: RecordingFiles) -> None:
    jobs = []

    def run(job: Callable[[], None]) -> None:
        jobs.append(job)
        job()

    syncer = Syncer(broker, run)
    for number in range(150):
        publish(broker, f"t{number}")
    assert syncer.sync_dirty()
    assert len(jobs) == 3
    # Two of 64 topics, logs and names, then states; and one of 22.
    assert files.file_systems == [files.root] * 4
    assert len([path for path in files.taken() if path.endswith("/state")]) == 22


def test_beside_a_journal_no_flush_of_the_file_system_holds_up_the_commits(
    tmp_path: Path, files: RecordingFiles
) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--sync-timeout=1h", "--sync-every=1"]), files)
    broker.load()
    files.root = broker.root
    files.taken()
    for number in range(64):
        publish(broker, f"t{number}", b"x" * (LARGE_BYTES if number < 3 else 100))
    assert Syncer(broker, run_inline).sync_dirty()
    assert len(files.written_out) == 3
    assert files.file_systems == []
    synced = files.taken()
    assert sum(path.endswith("/state") for path in synced) == sum(path.endswith(".seg") for path in synced) == 64
    broker.close()


def test_ranges_that_a_load_finds_durable_are_not_synced(tmp_path: Path, files: RecordingFiles) -> None:
    options = parse_args([f"--data-path={tmp_path}", "--sync-timeout=1h"])
    broker = Broker(options, files)
    broker.load()
    publish(broker, "durable")
    Syncer(broker, run_inline).sync_all()
    publish(broker, "dirty")
    broker.close()
    del broker
    broker = Broker(options, files)
    broker.load()
    syncer = Syncer(broker, run_inline)
    syncer.start()
    files.root = broker.root
    files.taken()
    assert syncer.sync_dirty()
    assert files_of(files.taken()) == ["dirty.topic/state", "dirty.topic/log/*.seg"]
    syncer.stop()
    broker.close()


def test_a_sync_begins_by_itself_after_enough_messages(broker: Broker) -> None:
    synced = Event()

    def run(job: Callable[[], None]) -> None:
        job()
        synced.set()

    syncer = Syncer(broker, run)
    syncer.start()
    gevent.sleep(0)
    publish(broker, "t")
    publish(broker, "t")
    syncer.note()
    gevent.sleep(0)
    assert not synced.is_set()
    publish(broker, "t")
    syncer.note()
    assert synced.wait(10)
    syncer.stop()
    gevent.sleep(0)
    assert broker.topic("t").log.synced_end == 3


def test_a_sync_runs_in_a_thread_after_the_timeout(tmp_path: Path, files: RecordingFiles) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--sync-timeout=10ms"]), files)
    broker.load()
    syncer = Syncer(broker)
    publish(broker, "t")
    syncer.start()
    log = broker.topic("t").log
    with gevent.Timeout(10):
        while log.synced_end != log.end:
            gevent.sleep(0.01)
    syncer.stop()
    gevent.sleep(0)
    assert any(path.endswith("t.topic/state") for path in files.taken())
    broker.close()


def test_a_start_that_finds_a_journal_syncs_at_once_and_removes_it(tmp_path: Path, files: RecordingFiles) -> None:
    options = parse_args([f"--data-path={tmp_path}", "--sync-every=1", "--sync-timeout=1h"])
    killed = Broker(options, files)
    killed.load()
    publish(killed, "t")
    commit = CommitBuffer()
    assert killed.topic("t").journal_into(commit, b"t")
    former = tmp_path / "journal" / "1"
    former.parent.mkdir()
    former.write_bytes(commit.finish(1, 1, 0, 0, 1))
    broker = Broker(options, files)
    broker.journal.file_bytes = 64 << 10
    broker.load()
    syncer = Syncer(broker, run_inline)
    syncer.start()
    with gevent.Timeout(10):
        while former.exists():
            gevent.sleep(0.01)
    syncer.stop()
    broker.close()


def test_an_internal_error_in_a_sync_is_reported_and_the_next_sync_runs(broker: Broker, files: RecordingFiles) -> None:
    class BrokenError(Exception):
        """Error that no disk raises."""

    def fail() -> None:
        raise BrokenError("not what was thought of")

    told: list[BaseException] = []
    come = Event()

    def on_internal_error(error: BaseException) -> None:
        told.append(error)
        come.set()

    syncer = Syncer(broker, run_inline, on_internal_error=on_internal_error)
    files.on_sync = fail
    syncer.start()
    gevent.sleep(0)
    for _ in range(3):
        publish(broker, "t")
    syncer.note()
    assert come.wait(10)
    assert [type(error) for error in told] == [BrokenError]
    assert broker.health() == "NOK - not what was thought of"
    log = broker.topic("t").log
    assert log.synced_end < log.end
    files.on_sync = lambda: None
    for _ in range(3):
        publish(broker, "t")
    syncer.note()
    with gevent.Timeout(10):
        while log.synced_end != log.end:
            gevent.sleep(0.01)
    assert broker.health() == "OK"
    syncer.stop()
    gevent.sleep(0)


def test_a_sync_that_cannot_be_noted_is_an_internal_error(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    syncer = Syncer(broker, run_inline, on_internal_error=told.append)
    publish(broker, "t")

    def fail() -> None:
        raise AssertionError("a broken invariant")

    with monkeypatch.context() as broken:
        broken.setattr(broker.topic("t"), "settle_dead_letters", fail)
        assert not syncer.sync_dirty()
    assert [str(error) for error in told] == ["a broken invariant"]
    assert broker.health().startswith("NOK")
    assert syncer.sync_dirty()


@pytest.mark.parametrize("failing", [".seg", "/state", "/ledger"])
def test_ranges_lost_by_a_failed_sync_are_written_by_the_next(tmp_path: Path, failing: str) -> None:
    files = ForgetfulFiles()
    broker = broker_on(tmp_path, files)
    syncer = Syncer(broker, run_inline)
    topic = broker.topic("t")
    topic.channel("c")
    publish(broker, "t", 20_000 * b"x")
    files.failing = [failing]
    assert not syncer.sync_dirty()
    assert files.failing == []
    publish(broker, "t")
    assert syncer.sync_dirty()
    assert files.missing == set()
    assert broker.health() == "OK"
    assert topic.log.synced_end == topic.log.end
    broker.close()


@pytest.mark.slow
def test_many_topics_are_synced_one_by_one_after_the_file_system_has_failed(tmp_path: Path) -> None:
    files = ForgetfulFiles()
    broker = broker_on(tmp_path, files)
    syncer = Syncer(broker, run_inline)
    for number in range(150):
        publish(broker, f"t{number}")
    files.file_system_fails = True
    assert not syncer.sync_dirty()
    for number in range(150):
        publish(broker, f"t{number}")
    syncer.sync_dirty()
    assert syncer.sync_dirty()
    assert files.file_system_count == 1
    assert all(topic.log.synced_end == 2 for topic in broker.topics.values())
    broker.close()


def test_limits_are_durable_when_they_are_answered_though_a_sync_of_the_ledger_failed_before(tmp_path: Path) -> None:
    files = ForgetfulFiles()
    broker = broker_on(tmp_path, files)
    broker.topic("t").channel("c")
    files.failing = ["/ledger"]
    assert not Syncer(broker, run_inline).sync_dirty()
    routes = LimitRoutes(broker)
    answer = routes.set_limits(Request("POST", "/channel/limits?topic=t&channel=c&rate=5", "1.1", {}))
    assert answer.status == 200
    assert files.missing == set()
    broker.close()


def test_only_the_channels_that_have_changed_are_synced(broker: Broker, files: RecordingFiles, syncer: Syncer) -> None:
    topic = broker.topic("t")
    channels = [topic.channel(f"c{number}") for number in range(20)]
    publish(broker, "t")
    assert syncer.sync_dirty()
    files.taken()
    assert channels[7].take_message(consumer()) is not None
    assert syncer.sync_dirty()
    assert files_of(files.taken()) == ["t.topic/state", "t.topic/c7.channel/ledger"]
