"""Deletion of topics and channels: whole or not at all, with no files left and no messages that return."""

import errno
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.diskqueue.files import Files
from pyqd.durability.housekeeper import Housekeeper
from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.primitives.clock import mono
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StorageError
from tests.support.invariants import check_topic
from tests.support.storage import Jobs, broker_on, consumer_on, publish, run_all_wakes, take_all

# An Answer of the channel.
NOT_IN_FLIGHT = 1
NOW_NS = 1_795_177_302 * 10**9


class Refusing(Files):
    """A disk that may refuse to rename, and records removals."""

    refusing = False

    def __init__(self) -> None:
        self.removed: list[str] = []

    def rename(self, source: str, target: str) -> None:
        if self.refusing and "discarded" in target:
            raise StorageError("rename", source, errno.EIO, "Input/output error")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.removed.append(path)
        super().remove(path)


class Client:
    """Connection of a consumer."""

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.consumer.client = self
        self.closed_count = 0

    def close(self) -> None:
        self.closed_count += 1


def broker_at(path: Path, files: Files | None = None) -> Broker:
    broker = Broker(parse_args([f"--data-path={path}"]), files)
    broker.load()
    return broker


def fill(broker: Broker) -> None:
    topic = broker.topic("t")
    for name in ("c", "d"):
        topic.channel(name)
    for number in range(3):
        topic.publish_body(b"%d" % number, NOW_NS)
    topic.publish_body(b"deferred", NOW_NS, 1 << 62)


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_a_deletion_that_the_disk_refuses_changes_nothing(tmp_path: Path, what: str) -> None:
    files = Refusing()
    broker = broker_at(tmp_path, files)
    fill(broker)
    topic, client = broker.topic("t"), Client()
    topic.channel("c").add_consumer(client.consumer)
    files.refusing = True
    with pytest.raises(StorageError):
        broker.delete_topic("t") if what == "topic" else topic.delete_channel("c")
    assert not topic.exiting
    assert not topic.channel("c").exiting
    assert client.closed_count == 0
    assert [(channel.depth, channel.deferred_count) for channel in topic.channels_by_name.values()] == [(3, 1), (3, 1)]
    files.refusing = False
    assert broker.delete_topic("t")
    assert client.closed_count == 1
    broker.close()


def test_a_topic_leaves_its_place_in_one_step(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Watching(Refusing):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if "discarded" in target:
                seen.append(sorted(path.name for path in Path(target).iterdir()))

    broker = broker_at(tmp_path, Watching())
    fill(broker)
    assert broker.delete_topic("t")
    assert seen == [["c.channel", "d.channel", "dues", "log", "state"]]
    assert not list(tmp_path.glob("topics/*"))
    assert not list(tmp_path.glob("discarded/*"))
    broker.close()


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_a_deletion_needs_no_mapping(tmp_path: Path, what: str) -> None:
    class AtTheLimit(Files):
        full = False

        def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
            if self.full:
                raise StorageError("map", path or "memory", errno.ENOMEM, "Cannot allocate memory")
            return super().new_mapped(path, size_bytes, populate)

    files = AtTheLimit()
    broker = broker_at(tmp_path, files)
    fill(broker)
    topic = broker.topic("t")
    files.full = True
    assert topic.delete_channel("c") if what == "channel" else broker.delete_topic("t")
    assert list(topic.channels_by_name) == (["d"] if what == "channel" else [])
    assert (topic.exiting, list(broker.topics)) == (what == "topic", ["t"] if what == "channel" else [])
    # A client that holds the topic may publish to it.
    topic.publish_body(b"x", NOW_NS)
    check_topic(topic)


def test_the_next_start_completes_an_interrupted_removal(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    # No job in the background is run: the state after a kill just behind the rename.
    broker.in_background = broker.segment_jobs.in_background = lambda _job, _done: None
    fill(broker)
    broker.delete_topic("t")
    assert list(tmp_path.glob("discarded/1/*"))
    fill(broker)
    broker.topic("t").delete_channel("d")
    again = broker_at(tmp_path)
    assert not list(tmp_path.glob("discarded/*"))
    (channel,) = again.topic("t").channels_by_name.values()
    assert (channel.name, channel.depth, channel.deferred_count) == ("c", 3, 1)
    again.close()


def test_a_start_that_cannot_remove_leftovers_serves_and_retries_the_removal(tmp_path: Path) -> None:
    class Unremovable(Files):
        failing = True

        def remove_tree(self, path: str) -> None:
            if self.failing and "discarded" in path:
                raise StorageError("remove", path, errno.EIO, "Input/output error")
            super().remove_tree(path)

    for number in (1, 2):
        (tmp_path / "discarded" / str(number) / "log").mkdir(parents=True)
    files = Unremovable()
    broker = broker_at(tmp_path, files)
    fill(broker)
    assert broker.topic("t").delete_channel("c")
    assert broker.delete_topic("t")
    assert {path.name for path in tmp_path.glob("discarded/*")} == {"1", "2", "3", "4"}
    broker.retry_removals()
    assert len(broker.removals_failed) == 4
    files.failing = False
    broker.retry_removals()
    assert broker.removals_failed == []
    assert not list(tmp_path.glob("discarded/*"))
    broker.close()


def test_a_deleted_topic_maps_no_file_though_someone_holds_it(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    fill(broker)
    topic = broker.topic("t")
    gc.disable()
    try:
        broker.delete_topic("t")
        broker.scheduler.run_wakes()
        maps = Path("/proc/self/maps").read_text()
        assert f"{tmp_path}/" in maps, "the state, as the topic is held"
        assert ".seg" not in "".join(line for line in maps.splitlines() if str(tmp_path) in line)
    finally:
        gc.enable()
    assert topic.exiting
    topic.publish_body(b"late", NOW_NS)
    broker.close()


def test_a_segment_that_comes_too_late_is_removed(tmp_path: Path) -> None:
    files = Refusing()
    broker = broker_at(tmp_path, files)
    log = broker.topic("t").log
    late = log.pool.new_segment(1 << 16)
    broker.delete_topic("t")
    log.pool.add_spare(late)
    assert log.pool.spares == []
    assert files.removed[-1] == late.mapping.path
    broker.close()


def test_a_paused_ephemeral_channel_stays_within_its_memory(tmp_path: Path) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}", "--mem-queue-size=2"]))
    broker.load()
    topic = broker.topic("t#ephemeral")
    channel = topic.channel("c#ephemeral")
    channel.pause(True)
    for number in range(5):
        topic.publish_body(b"%d" % number, NOW_NS)
        broker.scheduler.run_wakes()
        broker.scheduler.run_wakes()
    assert channel.depth == 2
    broker.close()


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_a_deleted_topic_is_freed_without_the_collector(tmp_path: Path, name: str) -> None:
    broker = broker_at(tmp_path)
    topic = broker.topic(name)
    topic.channel("c")
    topic.publish_body(b"x", NOW_NS)
    broker.scheduler.run_wakes()
    gone = weakref.ref(topic)
    del topic
    gc.disable()
    try:
        broker.delete_topic(name)
        broker.scheduler.run_wakes()
        assert gone() is None
    finally:
        gc.enable()
    broker.close()


class FailingOnce(Files):
    """A disk that fails to sync the names in a directory once."""

    failing = False

    def sync_directory(self, path: str) -> None:
        failing, self.failing = self.failing, False
        if failing:
            raise StorageError("sync", path, errno.EIO, "Input/output error")
        super().sync_directory(path)


def test_a_failed_removal_is_repeated_when_the_disk_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingOnce()
    broker = broker_at(tmp_path, files)
    fill(broker)
    files.failing = True
    broker.delete_topic("t")
    discarded = tmp_path / "discarded"
    assert len(list(discarded.iterdir())) == 1
    assert "Input/output error" in caplog.text
    Housekeeper(broker).reclaim_all()
    assert list(discarded.iterdir()) == []
    broker.close()


@pytest.mark.slow
def test_a_topic_with_many_channels_takes_leave_of_them_in_several_turns(tmp_path):
    broker = broker_at(tmp_path)
    topic = broker.topic("t")
    clients = []
    for number in range(250):
        channel = topic.channel(f"c{number}")
        clients.append(Client())
        channel.add_consumer(clients[-1].consumer)
    topic.publish_body(b"x", NOW_NS)
    broker.scheduler.time_max_ns = 1
    assert broker.delete_topic("t")
    assert "t" not in broker.topics
    assert 0 < sum(client.closed_count for client in clients) < len(clients)
    again = broker.topic("t")
    again.publish_body(b"new", NOW_NS)
    turns = 0
    while topic.on_drop_wanted is not None:
        assert broker.scheduler.run_wakes()
        turns += 1
    assert turns > 1
    assert [client.closed_count for client in clients] == [1] * len(clients)
    assert (topic.channels_by_name, topic.channels) == ({}, [])
    assert topic.log.abandoned
    assert again.depth == 1
    broker.close()
    assert list(broker_at(tmp_path).topics) == ["t"]


def test_files_that_are_held_already_are_looked_at_again_if_one_was_replaced_or_made(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    topic = broker.topic("t")
    topic.channel("a")
    topic.channel("b")
    assert len(list(topic.hold_files_in_steps())) == 2
    assert not list(topic.hold_files_in_steps())
    topic.channel("c")
    assert len(list(topic.hold_files_in_steps())) == 3
    topic.delete_channel("c")
    topic.channel("d")
    assert len(list(topic.hold_files_in_steps())) == 3
    slices = topic.hold_files_in_steps()
    topic.channel("e")
    next(slices)
    topic.channel("f")
    assert len(list(slices)) == 3
    assert len(list(topic.hold_files_in_steps())) == 5
    broker.close()


def test_only_directories_of_topics_are_taken_out_of_the_tree(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "data-of-others"
    data.mkdir()
    other.mkdir()
    broker = broker_at(data)
    with pytest.raises(AssertionError, match="not one of the broker's"):
        broker.discard(str(other))
    with pytest.raises(AssertionError, match="still in use"):
        broker.remove_discarded(str(other), str(other))
    assert other.is_dir()
    broker.close()


def test_a_consumer_subscribes_to_a_channel_once(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    channel = broker.topic("t").channel("c")
    client = Client()
    channel.add_consumer(client.consumer)
    with pytest.raises(AssertionError, match="two consumers have one number"):
        channel.add_consumer(client.consumer)
    assert channel.consumers == [client.consumer]
    broker.close()


def test_names_are_checked_before_a_topic_or_a_channel_is_made(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    topic = broker.topic("t")
    with pytest.raises(AssertionError, match="the caller checks names"):
        broker.topic("a/b#ephemeral")
    with pytest.raises(AssertionError, match="the caller checks names"):
        topic.channel("a b")
    broker.delete_topic("t")
    with pytest.raises(AssertionError, match="a deleted topic"):
        topic.channel("c")
    broker.close()


def test_the_clients_of_a_deleted_topic_do_nothing_to_a_new_one_of_its_name(tmp_path: Path) -> None:
    broker = broker_at(tmp_path)
    topic = broker.topic("t")
    channel = [topic.channel(f"c{number:02}") for number in range(60)][-1]
    consumer = consumer_on(channel)
    topic.publish_body(b"old", NOW_NS)
    (guid, *_), *_ = take_all(channel, consumer)
    assert broker.delete_topic("t")
    assert topic.on_drop_wanted is not None
    new = broker.topic("t").channel(channel.name)
    before = files_below(tmp_path / "topics")
    assert channel.requeue_message(consumer, guid, 10**9) == NOT_IN_FLIGHT
    assert channel.touch_message(consumer, guid) == NOT_IN_FLIGHT
    assert channel.finish_message(consumer, guid) == NOT_IN_FLIGHT
    broker.scheduler.run_timers(mono() + HOUR_NS)
    assert channel.timeout_count == 0
    assert files_below(tmp_path / "topics") == before
    broker.topic("t").publish_body(b"new", NOW_NS)
    broker.close()
    broker = broker_at(tmp_path)
    again = broker.topic("t").channel(new.name)
    assert [body for *_, body in take_all(again, consumer_on(again))] == [b"new"]
    broker.close()


def files_below(directory: Path) -> dict[str, int]:
    """Return the inodes of the files, by path."""
    return {str(path): path.stat().st_ino for path in directory.rglob("*")}


@pytest.mark.parametrize("failing", [False, True], ids=["synced", "not synced"])
def test_ledgers_that_grew_when_their_channel_was_deleted_leave_those_of_a_new_channel_alone(
    tmp_path: Path, short_ring: int, failing: bool
) -> None:
    broker = broker_on(tmp_path)
    jobs = Jobs()
    broker.in_background = jobs.submit
    topic = broker.topic("t")
    topic.channel("other")

    def growing_channel() -> Any:
        channel = topic.channel("c")
        publish(topic, 10, due_ns=1 << 62)
        run_all_wakes(broker)
        channel.note_cancelled(topic.log.end - 1)
        for ledger in channel.ledgers():
            channel.files.grow(ledger, ledger.floor + 3 * short_ring, lambda _has_grown: None)
        return channel

    growing_channel()
    held, jobs.waiting = jobs.waiting, []
    assert len(held) == 2
    assert topic.delete_channel("c")
    channel = growing_channel()
    later, jobs.waiting = jobs.waiting, held
    jobs.run(StorageError("sync", "ledger", errno.EIO, "Input/output error") if failing else None)
    jobs.waiting = later
    jobs.run()
    for ledger in channel.ledgers():
        ledger.check()
        assert ledger.capacity_bits > 3 * short_ring
        # Stored to the file that has the name.
        ledger.settings = b"this one"
        assert b"this one" in Path(ledger.path).read_bytes()
        ledger.settings = b""
    broker.close()
