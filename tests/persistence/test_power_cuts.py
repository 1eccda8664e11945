"""A channel's life cycle and a power cut: nothing promised is lost, whatever the kernel has written by then."""

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.api.limits import LimitRoutes
from pyqd.broker import replay, segment_rewriter
from pyqd.broker.broker import Broker
from pyqd.broker.channel_settings import NO_LIMITS
from pyqd.diskqueue.files import PAGE_BYTES
from pyqd.durability.group_commit import GroupCommit
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.http.messages import Request
from pyqd.primitives.errors import StorageError
from tests.persistence.views import deferred_in
from tests.support.invariants import check_channel, check_topic
from tests.support.power import Change, PowerFiles
from tests.support.storage import consumer_on, frames_of, options_for, run_all_wakes

# Each test repeats a history of the broker for many places of a power cut.
pytestmark = pytest.mark.slow

WAIT_S = 10
SUBSETS_MAX = 64
MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
# Of each file of the journal.
JOURNAL_BYTES = 64 << 10
HELD = [b"%d" % number for number in range(10)]


def run_now(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
    """Run a job at once, and pass its error to `done`."""
    try:
        result = job()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)


class Machine:
    """A broker on a disk whose power can be cut. journaled: commits go to a journal."""

    def __init__(self, directory: Path, cut_count: int = 0, journaled: bool = False) -> None:
        self.directory = directory
        self.journaled = journaled
        self.cut_count = cut_count
        self.opened: list[PowerFiles] = []
        root = directory / "data"
        root.mkdir(parents=True, exist_ok=True)
        self.start(root)

    def branch(self, number: int, written: tuple[Change, ...]) -> "Machine":
        """Return a machine as this one would be after a power cut now, and leave this one running."""
        directory = self.directory / f"branch {number}"
        directory.mkdir()
        self.files.cut(directory / "data", written)
        return Machine(directory, self.cut_count + 1, self.journaled)

    def start(self, root: Path) -> None:
        """Start a broker on a disk's content, after a boot."""
        self.files = PowerFiles(root, f"boot {self.cut_count}", chance=0.0)
        self.opened.append(self.files)
        self.load()

    def load(self) -> None:
        """Start a broker; one that ran before has been killed, and the page cache has all that it wrote."""
        self.broker = Broker(options_for(self.files.root, sync_every=1), self.files)
        self.syncer = Syncer(self.broker, run_inline)
        self.broker.load()
        if self.journaled:
            self.broker.journal.file_bytes = JOURNAL_BYTES
            self.broker.journal.start()
        self.commit = GroupCommit(self.broker, run_now, gevent.get_hub().loop.run_callback)

    def cut(self, written: tuple[Change, ...] = ()) -> None:
        """Cut the power after the kernel has written some of the dirty pages, and start again."""
        self.cut_count += 1
        root = self.directory / f"after {self.cut_count}"
        self.files.cut(root, written)
        self.start(root)

    def publish(self, bodies: list[bytes]) -> None:
        topic = self.topic()
        topic.publish_frames(frames_of(bodies), time.time_ns())
        gevent.spawn(self.commit.wait, [topic]).get(timeout=WAIT_S)

    def topic(self) -> Any:
        return self.broker.topic("t")

    def found(self) -> list[bytes]:
        """Return the messages that the channels of topic t deliver, or a new one if there is none."""
        topic = self.topic()
        topic.pause(False)
        channels = list(topic.channels_by_name.values()) or [topic.channel("new")]
        bodies = []
        for channel in channels:
            check_channel(channel)
            consumer = consumer_on(channel)
            while (taken := channel.take_message(consumer)) is not None:
                bodies.append(taken[3])
        return sorted(bodies)

    def close(self) -> None:
        for files in self.opened:
            files.close()


@pytest.fixture(params=[False, True], ids=["logs", "journal"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(tmp_path, journaled=request.param)
    yield machine
    machine.close()


def test_a_channel_made_in_place_of_a_deleted_one_is_durable_with_the_next_sync(machine: Machine) -> None:
    machine.topic().channel("former")
    assert machine.syncer.sync_all()
    machine.topic().delete_channel("former")
    machine.topic().channel("new")
    assert machine.syncer.sync_all()
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["new"]


def test_a_channel_created_in_place_of_a_deleted_one_keeps_its_messages(machine: Machine) -> None:
    machine.topic().channel("former")
    machine.publish([b"dropped"])
    machine.topic().delete_channel("former")
    machine.topic().channel("new")
    machine.publish(HELD)
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["new"]
    assert machine.found() == HELD


def test_records_that_a_killed_process_left_unsynced_are_durable_with_the_first_sync(machine: Machine) -> None:
    machine.topic().publish_frames(frames_of(HELD), time.time_ns())
    assert machine.syncer.sync_all()
    machine.topic().channel("new")
    machine.load()
    machine.syncer.start()
    assert machine.syncer.sync_dirty()
    machine.syncer.stop()
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["new"]


def test_a_topic_re_created_under_its_name_is_durable_with_the_next_sync(machine: Machine) -> None:
    machine.topic().channel("a")
    assert machine.syncer.sync_all()
    machine.broker.delete_topic("t")
    machine.topic().channel("b")
    assert machine.syncer.sync_all()
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["b"]


def subsets(machine: Machine) -> list[tuple[Change, ...]]:
    """Return every subset of the dirty changes; a part of them if there are very many."""
    changes = machine.files.changes()
    count = 1 << len(changes)
    chosen = range(count) if count <= SUBSETS_MAX else machine.files.random.sample(range(count), SUBSETS_MAX)
    return [tuple(change for bit, change in enumerate(changes) if number >> bit & 1) for number in chosen]


def first_channel(topic: Any) -> None:
    topic.channel("first")


def two_channels(topic: Any) -> None:
    topic.channel("first")
    topic.channel("second")


def one_that_was_given_something(topic: Any) -> None:
    consumer = consumer_on(topic.channel("first"))
    assert topic.channel("first").take_message(consumer) is not None
    topic.publish_body(b"later", time.time_ns())
    topic.channel("second")


def assert_held_after_every_cut(machine: Machine) -> None:
    """Cut the power with every subset of written changes: the held messages come, whatever channels there are."""
    for number, written in enumerate(subsets(machine)):
        cut = machine.branch(number, written)
        assert set(HELD) <= set(cut.found()), written
        cut.close()


@pytest.mark.parametrize("former", [False, True], ids=["no channel before", "a channel before"])
@pytest.mark.parametrize("change", [first_channel, two_channels, one_that_was_given_something])
def test_messages_of_a_topic_outlive_the_channels_that_took_them_over(
    machine: Machine, change: Callable[[Any], None], former: bool
) -> None:
    if former:
        machine.topic().channel("former")
        machine.publish([b"dropped"])
        machine.topic().delete_channel("former")
    machine.publish(HELD)
    change(machine.topic())
    assert_held_after_every_cut(machine)


def test_messages_of_a_paused_topic_outlive_the_deletion_of_its_channels(machine: Machine) -> None:
    topic = machine.topic()
    topic.channel("first")
    topic.pause(True)
    machine.publish(HELD)
    topic.channel("second")
    topic.delete_channel("first")
    topic.pause(False)
    assert_held_after_every_cut(machine)


def test_messages_of_a_durable_channel_do_not_return_to_the_topic(machine: Machine) -> None:
    channel = machine.topic().channel("first")
    machine.publish(HELD)
    consumer = consumer_on(channel)
    while (taken := channel.take_message(consumer)) is not None:
        assert channel.finish_message(consumer, taken[0]) == 0
    channel.remove_consumer(consumer)
    machine.topic().delete_channel("first")
    assert machine.syncer.sync_all()
    machine.cut()
    assert machine.topic().depth == 0
    assert machine.found() == []


def test_messages_dropped_from_a_topic_without_a_channel_do_not_return(machine: Machine) -> None:
    machine.publish(HELD)
    machine.topic().empty()
    assert machine.syncer.sync_all()
    machine.cut()
    assert machine.found() == []


def test_a_channel_created_after_messages_of_other_channels_keeps_its_position(machine: Machine) -> None:
    machine.topic().channel("first")
    machine.publish(HELD)
    machine.topic().channel("second")
    machine.topic().delete_channel("first")
    assert machine.syncer.sync_all()
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["second"]
    assert machine.found() == []


def ids_in(log: Any) -> list[int]:
    return [guid for _, guid, *_ in log.records()]


@pytest.mark.parametrize("again", [False, True], ids=["one cut", "two cuts"])
@pytest.mark.parametrize("due", [False, True], ids=["queued", "deferred"])
def test_an_id_is_not_given_twice_though_the_clock_went_back_before_the_power_failed(
    machine: Machine, due: bool, again: bool
) -> None:
    topic = machine.topic()
    topic.channel("c")
    machine.publish([b"synced"])
    now_ns = time.time_ns()
    for _ in range(5):
        topic.publish_body(b"not synced", now_ns, now_ns + HOUR_NS if due else 0)
    state = machine.files.pages_of(topic.mapping)
    machine.cut(tuple(change for change in machine.files.changes() if change not in state))
    if again:
        state = machine.files.pages_of(machine.topic().mapping)
        machine.cut(tuple(change for change in machine.files.changes() if change not in state))
    topic = machine.topic()
    taken = ids_in(topic.log)
    assert len(taken) == 6
    for _ in range(5):
        # The clock reaches the same time once more.
        topic.publish_body(b"later", now_ns)
    assert len(set(ids_in(topic.log))) == 11


def kept_in(channel: Any) -> set[bytes]:
    """Return the messages that a channel delivers now or later."""
    consumer = consumer_on(channel)
    kept = set()
    while (taken := channel.take_message(consumer)) is not None:
        kept.add(taken[3])
    kept.update(body for body, _ in deferred_in(channel))
    return kept


@pytest.mark.parametrize("synced", [False, True], ids=["the kernel writes some", "a sync has covered it"])
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed after it"])
def test_no_deferred_message_is_lost_with_a_seek(machine: Machine, synced: bool, killed: bool) -> None:
    topic = machine.topic()
    channel = topic.channel("c")
    later_ns = time.time_ns() + HOUR_NS
    machine.publish([b"queued", b"requeued"])
    for body in (b"deferred", b"deferred too"):
        topic.publish_body(body, time.time_ns(), later_ns)
    consumer = consumer_on(channel)
    guids = [channel.take_message(consumer)[0] for _ in range(2)]
    assert channel.requeue_message(consumer, guids[1], HOUR_NS) == 0
    assert machine.syncer.sync_all()
    replay.move(topic, channel, replay.LogPlace(earliest=True), replay.no_pause)
    if killed:
        machine.load()
    if synced:
        assert machine.syncer.sync_dirty()
    for number, written in enumerate(subsets(machine)):
        cut = machine.branch(number, written)
        assert kept_in(cut.topic().channel("c")) == {b"queued", b"requeued", b"deferred", b"deferred too"}, written
        cut.close()


def test_the_space_of_messages_dropped_by_a_seek_is_reclaimed_with_the_next_sync(machine: Machine) -> None:
    topic = machine.topic()
    channel = topic.channel("c")
    for _ in range(20):
        topic.publish_body(10_000 * b"x", time.time_ns(), time.time_ns() + HOUR_NS)
    assert machine.syncer.sync_all()
    before = topic.log.size_bytes()
    replay.move(topic, channel, replay.LogPlace(), replay.no_pause)
    assert channel.deferred_count == 0
    topic.publish_body(b"later", time.time_ns(), time.time_ns() + HOUR_NS)
    assert machine.syncer.sync_all()
    run_all_wakes(machine.broker)
    assert topic.log.first is topic.log.active
    assert topic.log.size_bytes() < before
    machine.load()
    assert machine.topic().channel("c").deferred_count == 1


@pytest.mark.parametrize("fails", [False, True], ids=["", "a sync fails"])
def test_an_unfinished_message_outlives_a_power_cut_at_any_time_of_the_rewriting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_AGE_NS", 0)
    monkeypatch.setattr(segment_rewriter, "REWRITTEN_LOG_BYTES_MIN", 0)
    topic = machine.topic()
    channel, consumer = topic.channel("c"), consumer_on(topic.channel("c"))
    for number in range(24):
        machine.publish([b"%d" % number * 5000])
    wanted = {b"0" * 5000, b"17" * 5000}
    for guid, _, _, body in iter(lambda: channel.take_message(consumer), None):
        if body not in wanted:
            assert channel.finish_message(consumer, guid) == 0
    assert machine.syncer.sync_all()
    count = 0

    def cut_now() -> None:
        nonlocal count
        for written in subsets(machine):
            cut = machine.branch(count, written)
            count += 1
            assert kept_in(cut.topic().channel("c")) == wanted
            assert cut.broker.damage.found_count == 0
            check_topic(cut.topic())
            cut.close()

    machine.files.on_sync = cut_now
    machine.files.failing = fails
    segment_rewriter.rewrite_old_segments(topic)
    machine.files.failing = False
    segment_rewriter.rewrite_old_segments(topic)
    cut_now()
    assert topic.log.first.rewrites > 0


def test_the_count_of_messages_is_never_below_0_after_a_power_cut(machine: Machine) -> None:
    topic = machine.topic()
    topic.channel("first")
    machine.publish(HELD)
    lost = machine.files.changes()
    topic.publish_frames(frames_of(HELD), time.time_ns())
    topic.channel("second")
    log = machine.files.pages_of(topic.log.active.mapping)
    machine.cut(tuple(change for change in machine.files.changes() if change not in log and change not in lost))
    topic = machine.topic()
    assert topic.log.end == len(HELD)
    assert [topic.channel(name).message_count for name in ("first", "second")] == [len(HELD), 0]
    machine.publish(HELD)
    assert topic.channel("second").message_count == len(HELD)


def test_the_limits_of_a_new_channel_are_durable_when_they_are_answered(machine: Machine) -> None:
    machine.topic().channel("c")
    request = Request("POST", "/channel/limits?topic=t&channel=c&rate=5", "1.1", {})
    assert LimitRoutes(machine.broker).set_limits(request).status == 200
    machine.cut()
    assert machine.topic().channels_by_name["c"].limits.rate == 5


def test_zeros_in_the_synced_part_of_the_open_segment_are_reported(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.topic().channel("c")
    machine.publish([b"%d" % number * 500 for number in range(10)])
    machine.publish(HELD)
    segment = machine.topic().log.active
    path = Path(segment.mapping.path).relative_to(machine.files.root)
    # The header says how much is synced once it has been written after a sync.
    machine.files.write_changes(machine.files.pages_of(segment.mapping))
    assert segment.tail > PAGE_BYTES
    machine.cut_count += 1
    root = machine.directory / "zeros"
    machine.files.cut(root)
    with open(root / path, "r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(bytes(segment.mapping.size_bytes - PAGE_BYTES))
    machine.start(root)
    # The journal has restored the records behind the zeros that are not in it.
    assert ("damaged in the middle" if machine.journaled else "the last record is damaged") in caplog.text
    assert machine.broker.damage.as_dict()["count"] == 1
    assert machine.broker.damage.as_dict()["records_lost"] >= 1


def test_the_log_may_be_ahead_of_the_node_file_after_a_power_failure(machine: Machine) -> None:
    machine.topic().channel("c")
    machine.publish([b"before"])
    machine.cut()
    machine.publish([b"in the next epoch"])
    former = machine.topic().reader.position_of(machine.topic().log.end - 1)
    node = Path(machine.files.root) / "node.json"
    node.write_bytes(node.read_bytes().replace(b'"epoch": 1', b'"epoch": 0'))
    machine.files.write(str(node), node.read_bytes())
    machine.cut()
    topic = machine.topic()
    assert topic.log.epoch > former >> 48
    machine.publish([b"later"])
    assert topic.reader.position_of(topic.log.end - 1) > former
    assert machine.found() == [b"before", b"in the next epoch", b"later"]


def test_a_directory_that_could_not_be_synced_is_synced_by_the_next(machine: Machine) -> None:
    machine.topic().channel("c")
    sync_directory, failing = machine.files.sync_directory, ["c.channel"]

    def fail_once(path: str) -> None:
        if failing and path.endswith(failing[0]):
            failing.clear()
            raise StorageError("sync", path, errno.EIO, "Input/output error")
        sync_directory(path)

    machine.files.sync_directory = fail_once  # type: ignore[method-assign]
    assert not machine.syncer.sync_dirty()
    assert machine.broker.health().startswith("NOK - failed to sync ")
    assert machine.syncer.sync_dirty()
    assert machine.broker.health() == "OK"
    machine.publish(HELD)
    machine.cut()
    assert list(machine.topic().channels_by_name) == ["c"]
    assert machine.found() == HELD


def test_a_publisher_is_refused_when_a_directory_cannot_be_synced(machine: Machine) -> None:
    machine.topic().channel("c")

    def fail(path: str) -> None:
        raise StorageError("sync", path, errno.EIO, "Input/output error")

    sync_directory = machine.files.sync_directory
    machine.files.sync_directory = fail  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        machine.publish([b"refused"])
    machine.files.sync_directory = sync_directory  # type: ignore[method-assign]
    machine.publish(HELD)
    machine.cut()
    assert set(HELD) <= set(machine.found())


def test_a_seek_made_while_a_sync_runs_is_not_taken_for_synced(machine: Machine) -> None:
    topic = machine.topic()
    channel = topic.channel("c")
    machine.publish(HELD)
    topic.publish_body(b"deferred", time.time_ns(), time.time_ns() + HOUR_NS)
    consumer = consumer_on(channel)
    for _ in HELD:
        assert channel.finish_message(consumer, channel.take_message(consumer)[0]) == 0
    assert machine.syncer.sync_all()
    channel.pause(True)

    def seek() -> None:
        machine.files.on_sync = lambda: None
        replay.move(topic, channel, replay.LogPlace(earliest=True), replay.no_pause)

    machine.files.on_sync = seek
    assert machine.syncer.sync_dirty()
    for number, written in enumerate(subsets(machine)):
        cut = machine.branch(number, written)
        found = cut.topic().channel("c")
        assert b"deferred" in kept_in(found), written
        cut.close()
    assert machine.syncer.sync_all()
    machine.cut()
    assert kept_in(machine.topic().channel("c")) == {*HELD, b"deferred"}


def test_a_dead_letter_buried_while_a_sync_runs_is_not_lost(machine: Machine) -> None:
    topic = machine.topic()
    channel = topic.channel("c")
    dead = machine.broker.topic("dead")
    dead.channel("d")
    machine.publish([b"spent"])
    channel.set_limits(NO_LIMITS._replace(max_attempts=1, dead_letter_topic="dead"))
    assert machine.syncer.sync_all()
    consumer = consumer_on(channel)
    guid = channel.take_message(consumer)[0]

    def bury() -> None:
        machine.files.on_sync = lambda: None
        assert channel.requeue_message(consumer, guid, 0) == 0
        machine.broker.scheduler.run_wakes()
        assert channel.dead_letters_unsynced == 1

    machine.files.on_sync = bury
    assert machine.syncer.sync_dirty()
    for number, written in enumerate(subsets(machine)):
        cut = machine.branch(number, written)
        cut.broker.scheduler.run_wakes()
        kept = kept_in(cut.broker.topic("t").channel("c")) | kept_in(cut.broker.topic("dead").channel("d"))
        assert kept == {b"spent"}, written
        cut.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_deferred_message_on_a_paused_topic_is_counted_as_deferred_after_a_kill(
    machine: Machine, clean: bool
) -> None:
    topic = machine.topic()
    topic.channel("c")
    later_ns = time.time_ns() + HOUR_NS
    topic.publish_body(b"shown", time.time_ns(), later_ns)
    topic.pause(True)
    topic.publish_body(b"held", time.time_ns(), later_ns)
    if clean:
        machine.broker.close()
    machine.load()
    topic = machine.topic()
    channel = topic.channel("c")
    assert (topic.depth, channel.depth, channel.deferred_count) == (1, 0, 1)
    topic.pause(False)
    assert (topic.depth, channel.depth, channel.deferred_count) == (0, 0, 2)
    machine.load()
    assert machine.topic().channel("c").deferred_count == 2


def test_a_held_deferred_message_outlives_a_kill_after_the_first_channel_was_made_and_then_a_power_cut(
    machine: Machine,
) -> None:
    later_ns = time.time_ns() + HOUR_NS
    machine.topic().publish_body(b"first", time.time_ns(), later_ns)
    assert machine.syncer.sync_all()
    # The log goes on in another segment, so the first can be trimmed.
    machine.cut()
    topic = machine.topic()
    topic.channel("c")
    topic.publish_body(b"second", time.time_ns(), later_ns)
    machine.load()
    machine.broker.scheduler.run_wakes()
    for number, written in enumerate(subsets(machine)):
        cut = machine.branch(number, written)
        assert b"first" in kept_in(cut.topic().channel("c")), written
        cut.close()


def test_a_topic_whose_deletion_a_kill_cut_short_stays_deleted(machine: Machine) -> None:
    machine.topic().channel("c")
    machine.publish(HELD)
    machine.broker.in_background = machine.broker.segment_jobs.in_background = lambda _job, _done: None
    assert machine.broker.delete_topic("t")
    machine.load()
    assert machine.broker.topics == {}
    assert machine.syncer.sync_dirty()
    machine.cut()
    assert machine.broker.topics == {}


def test_messages_of_a_deleted_channel_of_a_paused_topic_do_not_return_to_the_topic(
    machine: Machine,
) -> None:
    topic = machine.topic()
    machine.publish(HELD)
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    while (taken := channel.take_message(consumer)) is not None:
        assert channel.finish_message(consumer, taken[0]) == 0
    topic.pause(True)
    machine.cut(tuple(machine.files.changes()))
    topic = machine.topic()
    assert topic.paused
    assert topic.depth == 0
    topic.delete_channel("c")
    assert machine.syncer.sync_all()
    machine.load()
    assert machine.topic().depth == 0
