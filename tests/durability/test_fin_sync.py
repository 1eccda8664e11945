"""With --sync-fin a FIN counts against its consumer's RDY until a sync has covered it, and all that wait share one."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from pyqd.broker.broker import Broker
from pyqd.broker.channel_settings import ChannelSettings
from pyqd.durability.fin_sync import FinSync
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.broker.consumer import Consumer
from pyqd.primitives.errors import StorageError
from tests.durability.test_group_commit import Held
from tests.durability.test_syncer import RecordingFiles, files_of
from tests.support.storage import broker_on, consumer_on, options_for, run_all_wakes

MINUTE_NS = 60 * 10**9


@pytest.fixture
def files() -> RecordingFiles:
    return RecordingFiles()


@pytest.fixture
def broker(tmp_path: Path, files: RecordingFiles) -> Iterator[Broker]:
    broker = Broker(options_for(tmp_path, sync_fin=True), files)
    broker.has_syncer = True
    broker.load()
    files.root = broker.root
    yield broker
    files.failing = False
    broker.close()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def fin_sync(broker: Broker, held: Held) -> FinSync:
    return watched(FinSync(broker, held.run, gevent.get_hub().loop.run_callback), broker)


def watched(fin_sync: FinSync, broker: Broker) -> FinSync:
    """Let channels that the broker makes from now on tell a service of their FINs."""
    broker.on_finished = fin_sync.note
    return fin_sync


def taken(broker: Broker, count: int, channel_name: str = "c") -> tuple[Any, Consumer, list[int]]:
    """Publish messages, and hand all that the channel has to a new consumer. Returns: channel, consumer, ids."""
    topic = broker.topic("t")
    channel = topic.channel(channel_name)
    consumer = consumer_on(channel)
    for _ in range(count):
        topic.publish_body(b"x", time.time_ns())
    run_all_wakes(broker)
    ids = []
    while (message := channel.take_message(consumer)) is not None:
        ids.append(message[0])
    return channel, consumer, ids


def settle(broker: Broker, held: Held) -> None:
    """Make everything durable, rounds included."""
    assert Syncer(broker, run_inline).sync_dirty()
    gevent.sleep(0)
    while held.jobs:
        held.finish_one()


def test_a_fin_counts_until_a_sync_has_covered_its_ledger(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, ids = taken(broker, 2)
    settle(broker, held)
    files.taken()
    assert channel.finish_message(consumer, ids[0]) == 0
    assert (consumer.in_flight, consumer.unsynced_count) == (1, 1)
    gevent.sleep(0)
    assert (consumer.in_flight, consumer.unsynced_count) == (1, 1)
    held.finish_one()
    assert (consumer.in_flight, consumer.unsynced_count) == (1, 0)
    assert files.taken() == ["t.topic/c.channel/ledger"]
    assert held.jobs == []


def test_the_fins_of_a_pass_share_a_sync_and_those_during_it_the_next(
    broker: Broker, held: Held, fin_sync: FinSync
) -> None:
    channel, first, ids = taken(broker, 6)
    second = consumer_on(channel)
    other, third, other_ids = taken(broker, 2, "other")
    for guid in ids[:3]:
        channel.finish_message(first, guid)
    other.finish_message(third, other_ids[0])
    gevent.sleep(0)
    assert len(held.jobs) == 1
    for guid in ids[3:]:
        channel.finish_message(first, guid)
    other.finish_message(third, other_ids[1])
    assert len(held.jobs) == 1
    held.finish_one()
    assert (first.unsynced_count, second.unsynced_count, third.unsynced_count) == (3, 0, 1)
    held.finish_one()
    assert (first.unsynced_count, third.unsynced_count) == (0, 0)
    assert held.jobs == []


def test_a_fin_that_is_refused_waits_for_nothing(broker: Broker, held: Held, fin_sync: FinSync) -> None:
    channel, consumer, ids = taken(broker, 1)
    stranger = consumer_on(channel)
    assert channel.finish_message(consumer, 77) == 1
    assert channel.finish_message(stranger, ids[0]) == 2
    gevent.sleep(0)
    assert (consumer.unsynced_count, stranger.unsynced_count, held.jobs) == (0, 0, [])


def test_an_ephemeral_channel_waits_for_nothing(broker: Broker, held: Held, fin_sync: FinSync) -> None:
    channel, consumer, ids = taken(broker, 1, "c#ephemeral")
    assert channel.finish_message(consumer, ids[0]) == 0
    gevent.sleep(0)
    assert (consumer.unsynced_count, held.jobs) == (0, [])


def test_without_the_flag_nothing_waits(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    channel, consumer, ids = taken(broker, 1)
    assert channel.finish_message(consumer, ids[0]) == 0
    assert (channel.on_finished, consumer.unsynced_count) == (None, 0)
    broker.close()


def test_the_first_round_writes_the_names_too(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, ids = taken(broker, 1)
    files.taken()
    channel.finish_message(consumer, ids[0])
    held.finish_one()
    synced = files.taken()
    assert {"topics/", "t.topic/", "t.topic/log/", "t.topic/c.channel/", "t.topic/c.channel/ledger"} <= set(synced)
    assert synced[-1] == "t.topic/state"


def test_a_fin_of_a_deferred_message_writes_the_ledger_alone_too(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, _ = taken(broker, 1)
    settle(broker, held)
    guid = channel.topic.publish_body(b"x", 1, 2)
    run_all_wakes(broker)
    broker.scheduler.run_timers(time.monotonic_ns())
    message = channel.take_message(consumer)
    assert message is not None
    assert message[0] == guid
    files.taken()
    assert channel.finish_message(consumer, guid) == 0
    held.finish_one()
    assert "t.topic/c.channel/ledger" in files_of(files.taken())
    assert consumer.unsynced_count == 0


def test_a_fin_of_a_requeued_message_writes_the_ledger_alone(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, ids = taken(broker, 1)
    settle(broker, held)
    assert channel.requeue_message(consumer, ids[0], 1) == 0
    time.sleep(0.002)
    broker.scheduler.run_timers(time.monotonic_ns())
    assert channel.take_message(consumer) is not None
    settle(broker, held)
    files.taken()
    assert channel.finish_message(consumer, ids[0]) == 0
    held.finish_one()
    assert files_of(files.taken()) == ["t.topic/c.channel/ledger"]


def test_a_failed_sync_keeps_the_fins_counted_until_the_syncer_has_them_tried_again(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, ids = taken(broker, 3)
    syncer = Syncer(broker, run_inline, on_end=fin_sync.retry)
    files.failing = True
    channel.finish_message(consumer, ids[0])
    held.finish_one()
    assert broker.health().startswith("NOK - failed to sync ")
    assert (consumer.unsynced_count, held.jobs) == (1, [])
    channel.finish_message(consumer, ids[1])
    gevent.sleep(0)
    assert (consumer.unsynced_count, held.jobs) == (2, [])
    files.failing = False
    assert syncer.sync_dirty()
    assert consumer.unsynced_count == 2
    held.finish_one()
    assert (consumer.unsynced_count, held.jobs) == (0, [])
    assert broker.health() == "OK"


def test_a_file_that_cannot_be_written_keeps_no_other_channel(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channels = [taken(broker, 1, name) for name in ("a", "bad", "z")]
    settle(broker, held)
    for channel, consumer, ids in channels:
        channel.finish_message(consumer, ids[0])
    gevent.sleep(0)
    note = files.note

    def note_unless_bad(path: str) -> None:
        if "bad.channel" in path:
            raise StorageError("sync", path, 5, "Input/output error")
        note(path)

    files.note = note_unless_bad  # type: ignore[method-assign]
    held.finish_one()
    assert [consumer.unsynced_count for _, consumer, _ in channels] == [1, 1, 1]
    fin_sync.retry()
    gevent.sleep(0)
    while held.jobs:
        held.finish_one()
    assert [consumer.unsynced_count for _, consumer, _ in channels] == [0, 1, 0]
    files.note = note  # type: ignore[method-assign]
    fin_sync.retry()
    held.finish_one()
    assert channels[1][1].unsynced_count == 0


@pytest.mark.parametrize("what", ["channel", "topic"])
@pytest.mark.parametrize("when", ["gathering", "writing"])
def test_a_channel_deleted_during_a_round_is_released(
    broker: Broker, held: Held, fin_sync: FinSync, what: str, when: str
) -> None:
    channel, consumer, ids = taken(broker, 1)
    channel.finish_message(consumer, ids[0])
    if when == "writing":
        gevent.sleep(0)
    channel.remove_consumer(consumer)
    if what == "topic":
        broker.delete_topic("t")
    else:
        broker.topics["t"].delete_channel("c")
    gevent.sleep(0)
    while held.jobs:
        held.finish_one()
    channel, consumer, ids = taken(broker, 1)
    channel.finish_message(consumer, ids[0])
    held.finish_one()
    assert consumer.unsynced_count == 0


def test_a_consumer_that_leaves_does_not_hold_up_the_others(broker: Broker, held: Held, fin_sync: FinSync) -> None:
    channel, first, ids = taken(broker, 1)
    channel.finish_message(first, ids[0])
    channel.remove_consumer(first)
    second = consumer_on(channel)
    broker.topic("t").publish_body(b"x", time.time_ns())
    message = channel.take_message(second)
    assert message is not None
    held.finish_one()
    channel.finish_message(second, message[0])
    held.finish_one()
    assert second.unsynced_count == 0


def test_a_finished_dead_letter_makes_its_original_durable_first(
    broker: Broker, files: RecordingFiles, held: Held, fin_sync: FinSync
) -> None:
    channel, consumer, ids = taken(broker, 1)
    letters = broker.topic("letters").channel("c")
    reader = consumer_on(letters)
    channel.set_limits(ChannelSettings(max_attempts=1, dead_letter_topic="letters"))
    settle(broker, held)
    assert channel.requeue_message(consumer, ids[0], 0) == 0
    run_all_wakes(broker)
    letter = letters.take_message(reader)
    assert letter is not None
    assert channel.dead_letters_unsynced == 1
    files.taken()
    letters.finish_message(reader, letter[0])
    held.finish_one()
    assert (channel.dead_letters_unsynced, reader.unsynced_count) == (0, 1)
    assert "t.topic/c.channel/ledger" not in files.taken()
    held.finish_one()
    assert reader.unsynced_count == 0
    assert "t.topic/c.channel/ledger" in files.taken()


def test_an_error_that_is_no_storage_error_is_reported_and_the_next_round_begins(
    broker: Broker, files: RecordingFiles, held: Held
) -> None:
    errors: list[BaseException] = []
    soon = gevent.get_hub().loop.run_callback
    fin_sync = watched(FinSync(broker, held.run, soon, on_internal_error=errors.append), broker)
    channel, consumer, ids = taken(broker, 2)

    def fail() -> None:
        raise ZeroDivisionError("not what was thought of")

    files.on_sync = fail
    channel.finish_message(consumer, ids[0])
    held.finish_one()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert consumer.unsynced_count == 1
    files.on_sync = lambda: None
    fin_sync.retry()
    held.finish_one()
    assert consumer.unsynced_count == 0
