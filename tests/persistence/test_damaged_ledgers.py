"""Ledgers with a changed byte: a start notices, says so, and delivers the channel's messages again."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.broker import Broker
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.diskqueue.ledger import set_limits_for_tests
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.invariants import check_channel
from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.storage import body_of, broker_on, consumer_on, number_in, publish

COUNT = 60
DEFERRED = 5
RING = 4096
# Counters are shown only, and a start checks the offset of the cursor against the log.
UNCHECKED = {*range(48, 56), *range(64, 88), *range(128, 136), *range(408, 416)}
HEADER_BYTES = 432


def worked(root: Path) -> Broker:
    """Return a broker whose channel c has handed out, finished in any order, requeued and deferred messages."""
    root.mkdir()
    broker: Broker = broker_on(root)
    topic = broker.topic("t")
    channel: Any = topic.channel("c")
    topic.channel("d")
    publish(topic, COUNT, 100)
    publish(topic, DEFERRED, 100, due_ns=wall() + HOUR_NS)
    consumer = consumer_on(channel)
    taken = [channel.take_message(consumer) for _ in range(30)]
    for index in (0, 1, 2, 5, 7, 20, 21, 29):
        channel.finish_message(consumer, taken[index][0])
    channel.requeue_message(consumer, taken[8][0], 0)
    return broker


UNFINISHED = COUNT - 8


def synced(broker: Broker) -> None:
    assert Syncer(broker, run_inline).sync_all()


def path_in(root: Path, file: str = "ledger") -> Path:
    return root / "topics/t.topic/c.channel" / file


def numbers_of(channel: Any) -> set[int]:
    """Take and finish all messages; return the numbers in the bodies."""
    consumer = consumer_on(channel)
    found = set()
    while (message := channel.take_message(consumer)) is not None:
        channel.finish_message(consumer, message[0])
        found.add(number_in(message[3]))
    return found


def flip(path: Path, offset: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that a clean stop has left."""
    root = tmp_path_factory.mktemp("stopped") / "data"
    broker = worked(root)
    broker.close_topics()
    synced(broker)
    broker.mark_clean()
    return root


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that a kill has left after a sync."""
    root = tmp_path_factory.mktemp("killed") / "data"
    broker = worked(root)
    synced(broker)
    found = root.parent / "killed"
    shutil.copytree(root, found)
    return found


@pytest.fixture(params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of either."""
    found: Path = request.getfixturevalue(request.param)
    return Path(shutil.copytree(found, tmp_path / "data"))


def assert_sound(root: Path) -> None:
    broker = broker_on(root)
    assert broker.set_aside == []
    assert broker.damage.found_count == 0
    channel = broker.topic("t").channel("c")
    assert (channel.depth, channel.deferred_count) == (UNFINISHED, DEFERRED)


def test_a_sound_ledger_is_believed(left):
    assert_sound(left)


@pytest.mark.parametrize("offset", sorted({*range(0, HEADER_BYTES, 3), *range(416, HEADER_BYTES)} - UNCHECKED))
def test_no_changed_byte_of_a_ledgers_header_finishes_a_message_or_passes_in_silence(stopped, tmp_path, offset, caplog):
    root = Path(shutil.copytree(stopped, tmp_path / "data"))
    flip(path_in(root), offset)
    broker = broker_on(root)
    channel = broker.topic("t").channel("c")
    (each,) = broker.set_aside
    assert (each.topic, each.channel) == ("t", "c")
    assert each.reason in caplog.text
    assert broker.damage.as_dict() == {"count": 1, "records_lost": 0, "bytes": 0}
    assert numbers_of(channel) == set(range(COUNT))
    assert channel.deferred_count == DEFERRED
    assert broker.topic("t").channel("d").depth == COUNT
    assert path_in(root, "ledger.bad").exists()
    check_channel(channel)


@pytest.mark.parametrize("offset", sorted(UNCHECKED))
def test_a_changed_counter_finishes_no_message(stopped, tmp_path, offset):
    root = Path(shutil.copytree(stopped, tmp_path / "data"))
    flip(path_in(root), offset)
    assert_sound(root)


@pytest.mark.parametrize("offset", [24, 32, 40, 56, 113, 392, RING, RING + 4, RING + 7, RING + 4095])
def test_a_changed_byte_after_a_kill_is_noticed_if_a_sync_came_before(killed, tmp_path, offset):
    root = Path(shutil.copytree(killed, tmp_path / "data"))
    flip(path_in(root), offset)
    broker = broker_on(root)
    assert [(each.topic, each.channel) for each in broker.set_aside] == [("t", "c")]
    assert numbers_of(broker.topic("t").channel("c")) == set(range(COUNT))


@pytest.mark.parametrize("offset", [RING, RING + 1, RING + 7, RING + 100, RING + 4095])
@pytest.mark.parametrize("mask", [1, 0xFF])
def test_no_changed_byte_of_the_bits_finishes_a_message_or_passes_in_silence(left, offset, mask):
    flip(path_in(left), offset, mask)
    broker = broker_on(left)
    (each,) = broker.set_aside
    assert "ledger" in each.reason
    channel = broker.topic("t").channel("c")
    found = numbers_of(channel)
    assert len(found) >= UNFINISHED
    assert found | {0, 1, 2, 5, 7, 20, 21, 29} == set(range(COUNT))
    assert channel.deferred_count == DEFERRED


@pytest.mark.parametrize(("offset", "mask"), [(0, 1), (7, 0x80), (9, 1), (16, 0xFF)])
def test_no_changed_byte_of_the_exceptions_passes_in_silence(tmp_path, offset, mask):
    former = set_limits_for_tests(64, 64, 3)
    try:
        root = tmp_path / "data"
        root.mkdir()
        broker: Broker = broker_on(root)
        topic = broker.topic("t")
        channel: Any = topic.channel("c")
        consumer = consumer_on(channel)
        publish(topic, 500, 100)
        for number in range(500):
            guid, *_ = channel.take_message(consumer)
            if number not in (0, 30, 77):
                channel.finish_message(consumer, guid)
        assert channel.ledger.exceptions_count == 3
        synced(broker)
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
        flip(path_in(killed), RING + 64 // 8 + offset, mask)
        broker = broker_on(killed)
        assert ["checksum" in each.reason for each in broker.set_aside] == [True]
        assert numbers_of(broker.topic("t").channel("c")) >= {0, 30, 77}
    finally:
        set_limits_for_tests(*former)


def test_changes_between_a_sync_and_a_kill_are_no_damage(tmp_path):
    broker = worked(tmp_path / "data")
    topic = broker.topic("t")
    channel: Any = topic.channel("c")
    consumer = consumer_on(channel)
    changes = [
        lambda: channel.take_message(consumer),
        lambda: channel.finish_message(consumer, channel.take_message(consumer)[0]),
        lambda: channel.requeue_message(consumer, channel.take_message(consumer)[0], HOUR_NS),
        lambda: channel.pause(True),
        lambda: channel.pause(False),
        lambda: topic.publish_body(body_of(COUNT, 100), wall(), wall() + HOUR_NS),
        channel.empty,
    ]
    for index, change in enumerate(changes):
        synced(broker)
        change()
        killed = tmp_path / f"killed-{index}"
        shutil.copytree(tmp_path / "data", killed)
        again = broker_on(killed)
        assert (again.set_aside, again.damage.found_count) == ([], 0), index


@pytest.mark.parametrize(("offset", "is_damage"), [(RING + 4, False), (24, True)])
def test_bits_that_are_newer_than_the_header_after_a_power_failure_are_no_damage(killed, tmp_path, offset, is_damage):
    root = Path(shutil.copytree(killed, tmp_path / "data"))
    # The kernel may have written the page of the bits and not that of the header.
    flip(path_in(root), offset, 8)
    node = root / "node.json"
    node.write_text(node.read_text().replace('"boot": "', '"boot": "x'))
    assert ["header" in each.reason for each in broker_on(root).set_aside] == [True] * is_damage


def await_sync(daemon: Daemon) -> None:
    def last_sync() -> int | None:
        found: int | None = daemon.http("GET", "/durability").json()["last_sync"]
        return found

    before = last_sync()
    wait_until(lambda: last_sync() != before, "a sync")


@pytest.mark.slow
@pytest.mark.flags("-sync-timeout=200ms")
@pytest.mark.parametrize("offset", [24, 32, RING], ids=["floor", "cursor", "bits"])
def test_the_daemon_reports_a_ledger_that_changed_while_it_was_down_and_delivers_again(daemon: Daemon, offset: int):
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=COUNT)
        with Client(daemon.tcp_address) as publisher:
            publisher.pub_each("t", [bytes([number]) for number in range(COUNT)])
        messages = client.read_messages(COUNT)
        for message in messages[::2]:
            client.fin(message)
        client.expect_alive()
    # One that was running may end first.
    for _ in range(2):
        await_sync(daemon)
    daemon.kill()
    flip(daemon.data_path / "topics/t.topic/c.channel/ledger", offset, 4)
    daemon.start()
    state = daemon.http("GET", "/durability").json()
    (found,) = state["set_aside"]
    assert (found["topic"], found["channel"]) == ("t", "c")
    assert "checksum" in found["reason"]
    assert (state["health"], state["damage"]["count"], state["damage"]["records_lost"]) == ("OK", 1, 0)
    assert daemon.http("GET", "/ping").headers["x-pyqd-damage"] == "1"
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=COUNT)
        bodies = {message.body for message in client.read_messages(COUNT)}
    assert bodies == {bytes([number]) for number in range(COUNT)}
