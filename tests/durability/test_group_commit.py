"""An OK waits for the sync that covers it, and all that wait share one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from pyqd.broker.broker import Broker
from pyqd.broker.topic import Topic
from pyqd.durability.group_commit import GroupCommit
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.primitives.errors import StorageError
from tests.durability.test_syncer import RecordingFiles, files_of
from tests.support.forgetful import ForgetfulFiles
from tests.support.storage import broker_on, consumer_on, options_for

WAIT_S = 10


class Held:
    """Jobs that run when they are told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.come = Event()

    def run(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))
        self.come.set()

    def finish_one(self) -> None:
        """Wait for a job, do it, and wake its waiting publishers."""
        assert self.come.wait(WAIT_S)
        job, done = self.jobs.pop(0)
        if not self.jobs:
            self.come.clear()
        try:
            job()
        except Exception as error:
            done(None, error)
        else:
            done(None, None)
        gevent.sleep(0)


@pytest.fixture
def files() -> RecordingFiles:
    return RecordingFiles()


@pytest.fixture
def broker(tmp_path: Path, files: RecordingFiles) -> Iterator[Broker]:
    broker = Broker(options_for(tmp_path, sync_every=1), files)
    broker.has_syncer = True
    broker.load()
    files.root = broker.root
    files.taken()
    yield broker
    files.failing = False
    broker.close()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def commit(broker: Broker, held: Held) -> GroupCommit:
    return GroupCommit(broker, held.run, gevent.get_hub().loop.run_callback)


def publish(commit: GroupCommit, topic: Topic, due_ns: int = 0) -> "gevent.Greenlet[..., None]":
    """Publish, and wait for the OK in a greenlet of its own."""
    topic.publish_body(b"x", time.time_ns(), due_ns)
    waiting = gevent.spawn(commit.wait, [topic])
    gevent.sleep(0)
    return waiting


def test_an_ok_waits_for_the_sync_of_its_record(broker: Broker, held: Held, commit: GroupCommit) -> None:
    topic = broker.topic("t")
    waiting = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    assert not waiting.ready()
    assert topic.log.synced_end == 0
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    assert topic.log.synced_end == 1


def test_publishers_of_one_pass_share_a_sync(broker: Broker, held: Held, commit: GroupCommit) -> None:
    topics = [broker.topic(name) for name in ("one", "two", "three")]
    for topic in topics:
        topic.publish_body(b"x", time.time_ns())
    waiting = [gevent.spawn(commit.wait, [topic]) for topic in topics for _ in range(10)]
    held.finish_one()
    for greenlet in waiting:
        greenlet.get(timeout=WAIT_S)
    assert held.jobs == []


def test_publishers_that_arrive_during_a_sync_share_the_next(broker: Broker, held: Held, commit: GroupCommit) -> None:
    topic = broker.topic("t")
    first = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    late = [publish(commit, topic) for _ in range(20)]
    assert len(held.jobs) == 1
    held.finish_one()
    first.get(timeout=WAIT_S)
    assert not any(greenlet.ready() for greenlet in late)
    held.finish_one()
    for greenlet in late:
        greenlet.get(timeout=WAIT_S)
    assert topic.log.synced_end == 21
    assert held.jobs == []


def test_a_failed_sync_fails_all_that_wait_and_the_next_one_covers_its_records(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    files.failing = True
    refused = [publish(commit, topic) for _ in range(3)]
    held.finish_one()
    held.finish_one()
    for greenlet in refused:
        with pytest.raises(StorageError):
            greenlet.get(timeout=WAIT_S)
    assert broker.health().startswith("NOK - failed to sync ")
    files.failing = False
    waiting = publish(commit, topic)
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    assert broker.health() == "OK"
    assert topic.log.synced_end == 4


def test_a_round_that_failed_does_not_hold_up_the_one_that_gathered_meanwhile(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    files.failing = True
    refused = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    late = publish(commit, topic)
    held.finish_one()
    with pytest.raises(StorageError):
        refused.get(timeout=WAIT_S)
    files.failing = False
    held.finish_one()
    late.get(timeout=WAIT_S)
    assert topic.log.synced_end == 2


def test_new_names_are_synced_once(broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit) -> None:
    topic = broker.topic("t")
    topic.channel("c")
    publish(commit, topic)
    held.finish_one()
    synced = files.taken()
    assert {"topics/", "t.topic/", "t.topic/log/", "t.topic/c.channel/", "t.topic/c.channel/ledger"} <= set(synced)
    publish(commit, topic)
    held.finish_one()
    assert files_of(files.taken()) == ["t.topic/state", "t.topic/log/*.seg"]


def test_a_channel_made_later_is_synced_with_its_ledger(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    publish(commit, topic)
    held.finish_one()
    files.taken()
    topic.channel("late")
    publish(commit, topic)
    held.finish_one()
    assert {"t.topic/", "t.topic/late.channel/", "t.topic/late.channel/ledger"} <= set(files.taken())


def test_a_deferred_message_syncs_its_due_time_with_the_names(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    topic.channel("c")
    publish(commit, topic)
    held.finish_one()
    files.taken()
    publish(commit, topic, time.time_ns() + 3600 * 10**9)
    held.finish_one()
    synced = files.taken()
    assert {"t.topic/dues/0", "t.topic/dues/", "t.topic/"} <= set(synced)
    assert not [path for path in synced if "c.channel" in path]


def test_a_new_file_of_due_times_or_notes_keeps_no_message_from_the_journal(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    broker.journal.file_bytes = 64 << 10
    broker.journal.start()
    topic = broker.topic("t")
    channel = topic.channel("c")
    publish(commit, topic)
    held.finish_one()
    files.taken()
    publish(commit, topic, time.time_ns() + 3600 * 10**9)
    held.finish_one()
    client = consumer_on(channel)
    taken = channel.take_message(client)
    assert taken is not None
    assert channel.requeue_message(client, taken[0], 3600 * 10**9) == 0
    publish(commit, topic)
    held.finish_one()
    assert channel.notes is not None
    assert topic.dues.store.size_bytes == channel.notes.store.size_bytes == 64 << 10
    assert not [path for path in files.taken() if path.startswith("t.topic")]


def test_a_new_segment_is_synced_by_name(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    publish(commit, topic)
    held.finish_one()
    files.taken()
    for _ in range(3):
        topic.publish_body(60_000 * b"x", time.time_ns())
    publish(commit, topic)
    held.finish_one()
    assert "t.topic/log/" in files.taken()
    assert topic.log.synced_end == topic.log.end


def test_a_topic_deleted_while_it_is_waited_for_is_let_go(broker: Broker, held: Held, commit: GroupCommit) -> None:
    topic = broker.topic("t")
    waiting = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    broker.delete_topic("t")
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    waiting = gevent.spawn(commit.wait, [topic])
    held.finish_one()
    waiting.get(timeout=WAIT_S)


def test_the_syncer_beside_it_finds_nothing_more_to_write_of_the_log(
    broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit
) -> None:
    topic = broker.topic("t")
    publish(commit, topic)
    held.finish_one()
    files.taken()
    assert Syncer(broker, run_inline).sync_dirty()
    assert "t.topic/log/*.seg" not in files.taken()


class BrokenError(Exception):
    """Error that no disk raises."""


def raise_broken(*_args: object) -> None:
    raise BrokenError("not what was thought of")


def test_an_internal_error_in_a_job_wakes_all_that_wait_and_the_next_round_begins(
    broker: Broker, files: RecordingFiles, held: Held
) -> None:
    errors: list[BaseException] = []
    soon = gevent.get_hub().loop.run_callback
    commit = GroupCommit(broker, held.run, soon, on_internal_error=errors.append)
    topic = broker.topic("t")
    files.on_sync = lambda: raise_broken()
    first = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    late = publish(commit, topic)
    held.finish_one()
    with pytest.raises(BrokenError):
        first.get(timeout=WAIT_S)
    assert [type(error) for error in errors] == [BrokenError]
    assert broker.health().startswith("NOK - not what was thought of")
    files.on_sync = lambda: None
    held.finish_one()
    late.get(timeout=WAIT_S)
    assert topic.log.synced_end == 2
    after = publish(commit, topic)
    held.finish_one()
    after.get(timeout=WAIT_S)


@pytest.mark.parametrize("where", ["_job", "_on_timed", "_in_background"])
def test_an_internal_error_on_the_loop_wakes_all_that_wait_and_the_next_round_begins(
    broker: Broker, held: Held, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    soon = gevent.get_hub().loop.run_callback
    commit = GroupCommit(broker, held.run, soon, on_internal_error=errors.append)
    topic = broker.topic("t")
    with monkeypatch.context() as broken:
        broken.setattr(commit, where, raise_broken)
        first = publish(commit, topic)
        if where == "_on_timed":
            held.finish_one()
        with pytest.raises(BrokenError):
            first.get(timeout=WAIT_S)
    assert [type(error) for error in errors] == [BrokenError]
    after = publish(commit, topic)
    held.finish_one()
    after.get(timeout=WAIT_S)
    assert topic.log.synced_end == 2


@pytest.mark.parametrize("failing", [".seg", "/state"])
def test_a_range_that_the_syncer_lost_during_the_round_is_synced_before_the_ok(
    tmp_path: Path, held: Held, failing: str
) -> None:
    files = ForgetfulFiles()
    broker = broker_on(tmp_path, files, sync_every=1)
    commit = GroupCommit(broker, held.run, gevent.get_hub().loop.run_callback)
    topic = broker.topic("t")
    waiting = publish(commit, topic)
    assert held.come.wait(WAIT_S)
    files.failing = [failing]
    assert not Syncer(broker, run_inline).sync_dirty()
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    assert topic.log.synced_end == 1
    assert files.missing == set()
    waiting = publish(commit, topic)
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    assert files.missing == set()
    broker.close()


def test_a_successful_round_does_not_hide_a_failure_of_the_syncer(tmp_path: Path, held: Held) -> None:
    files = ForgetfulFiles()
    broker = broker_on(tmp_path, files, sync_every=1)
    commit = GroupCommit(broker, held.run, gevent.get_hub().loop.run_callback)
    syncer = Syncer(broker, run_inline)
    broker.topic("other").publish_body(b"x", time.time_ns())
    files.failing = ["other.topic/state"]
    assert not syncer.sync_dirty()
    waiting = publish(commit, broker.topic("t"))
    held.finish_one()
    waiting.get(timeout=WAIT_S)
    assert broker.health().startswith("NOK - failed to sync ")
    assert syncer.sync_dirty()
    assert broker.health() == "OK"
    broker.close()


class Visits:
    """A dictionary of channels that counts how many of them are looked up."""

    def __init__(self, channels: dict[str, Any]) -> None:
        self.channels = channels
        self.count = 0

    def values(self) -> Iterator[Any]:
        for channel in self.channels.values():
            self.count += 1
            yield channel


def test_a_round_visits_no_channel(broker: Broker, files: RecordingFiles, held: Held, commit: GroupCommit) -> None:
    topic = broker.topic("t")
    channels = [topic.channel(f"c{number}") for number in range(20)]
    publish(commit, topic)
    held.finish_one()
    taken = channels[3].take_message(consumer := consumer_on(channels[3]))
    assert taken is not None
    assert channels[3].requeue_message(consumer, taken[0], 3600 * 10**9) == 0
    publish(commit, topic)
    held.finish_one()
    visits = Visits(topic.channels_by_name)
    topic.channels_by_name = visits  # type: ignore[assignment]
    files.taken()
    publish(commit, topic, time.time_ns() + 3600 * 10**9)
    held.finish_one()
    topic.channels_by_name = visits.channels
    assert visits.count == 0
    assert not [path for path in files.taken() if "/c" in path]
