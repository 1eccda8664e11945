"""Logs that have lost their end while no daemon ran: a start reports how many records are missing, exactly."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyqd.broker.broker import Broker
from pyqd.broker.inspection import Inspection
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.primitives.clock import wall
from tests.support.storage import body_of, broker_on, consumer_on, number_in, publish

COUNT = 100
KEPT = 58
SIZE = 200
HEADER_BYTES = 128
RECORD_BYTES = 48 + SIZE


def left_by_kill(root: Path, count: int = COUNT, synced: bool = False, sync_every: int = 2500) -> tuple[Broker, Path]:
    """Publish messages and return the broker, and a copy of its files as a kill leaves them."""
    (root / "data").mkdir()
    broker = broker_on(root / "data", sync_every=sync_every)
    topic = broker.topic("t")
    topic.channel("c")
    publish(topic, count, SIZE)
    if synced:
        assert Syncer(broker, run_inline).sync_dirty()
    shutil.copytree(root / "data", root / "killed")
    return broker, root / "killed"


def left_by_stop(root: Path, sync_every: int = 2500) -> Path:
    """Publish messages and stop; return the directory."""
    broker, killed = left_by_kill(root, sync_every=sync_every)
    shutil.rmtree(killed)
    broker.close()
    return root / "data"


def segments(root: Path) -> list[Path]:
    """Return the segments of the topic's log, in order."""
    found = [path for path in (root / "topics/t.topic/log").iterdir() if any(path.read_bytes()[16:24])]
    return sorted(found, key=lambda path: path.read_bytes()[16:24][::-1])


def cut_at_a_records_end(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(HEADER_BYTES + KEPT * RECORD_BYTES)


def cut_in_a_record(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(HEADER_BYTES + KEPT * RECORD_BYTES + 100)


def zeroed_from_a_records_end(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: HEADER_BYTES + KEPT * RECORD_BYTES].ljust(len(whole), b"\0"))


def damaged_to_the_end(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: HEADER_BYTES + KEPT * RECORD_BYTES].ljust(len(whole), b"\x77"))


CUTS = [cut_at_a_records_end, cut_in_a_record, zeroed_from_a_records_end, damaged_to_the_end]


def assert_lost(root: Path, count: int, lost: int, log_lines: Callable[[], str]) -> None:
    """Assert that a start reports the records as lost once, delivers the others, and the next start is content."""
    broker = broker_on(root)
    topic = broker.topic("t")
    assert broker.damage.lost_count == topic.log.damage.lost_count == lost
    assert "records" in log_lines()
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    found = []
    while (message := channel.take_message(consumer)) is not None:
        channel.finish_message(consumer, message[0])
        found.append(number_in(message[3]))
    assert found == list(range(count))
    topic.publish_body(body_of(7, SIZE), wall())
    assert topic.log.epoch > 0, "no position is given twice"
    broker.close()
    again = broker_on(root)
    assert again.damage.found_count == 0
    assert again.topic("t").channel("c").depth == 1


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("synced", [False, True], ids=["unsynced", "synced"])
def test_a_last_segment_that_was_cut_after_a_kill_is_reported_with_the_number_of_missing_records(
    tmp_path, caplog, cut, synced
):
    _, root = left_by_kill(tmp_path, synced=synced)
    cut(segments(root)[-1])
    assert_lost(root, KEPT, COUNT - KEPT, lambda: caplog.text)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("sync_every", [1, 2500])
def test_a_last_segment_that_was_cut_after_a_stop_is_reported_with_the_number_of_missing_records(
    tmp_path, caplog, cut, sync_every
):
    root = left_by_stop(tmp_path, sync_every=sync_every)
    cut(segments(root)[-1])
    assert_lost(root, KEPT, COUNT - KEPT, lambda: caplog.text)


def test_a_missing_last_segment_is_reported_with_the_number_of_its_records(tmp_path, caplog):
    count = 1000
    _, root = left_by_kill(tmp_path, count)
    last = segments(root)[-1]
    first = int.from_bytes(last.read_bytes()[24:32], "little")
    assert 0 < first < count
    last.unlink()
    assert_lost(root, first, count - first, lambda: caplog.text)


@pytest.mark.parametrize("directory_too", [False, True])
def test_a_log_without_its_segments_is_reported_with_the_number_of_its_records(tmp_path, caplog, directory_too):
    _, root = left_by_kill(tmp_path)
    for path in segments(root):
        path.unlink()
    if directory_too:
        shutil.rmtree(root / "topics/t.topic/log")
    assert_lost(root, 0, COUNT, lambda: caplog.text)


def test_sealed_segments_that_were_cut_are_counted_once(tmp_path):
    _, root = left_by_kill(tmp_path, 1000)
    first, second, *_ = segments(root)
    cut_in_a_record(first)
    missing = int.from_bytes(second.read_bytes()[24:32], "little") - KEPT
    assert broker_on(root).damage.lost_count == missing


@pytest.mark.parametrize("cut", CUTS)
def test_a_power_failure_takes_no_caution_away_from_what_was_synced(tmp_path, cut):
    _, root = left_by_kill(tmp_path, synced=True)
    cut(segments(root)[-1])
    node = (root / "node.json").read_text()
    (root / "node.json").write_text(node.replace('"boot": "', '"boot": "x'))
    assert broker_on(root).damage.lost_count == COUNT - KEPT


@pytest.mark.parametrize("offset", [50, 120, 122, 127], ids=["message_count", *3 * ["count_ahead"]])
def test_a_state_whose_count_is_damaged_loses_nothing(tmp_path, offset):
    root = left_by_stop(tmp_path)
    state = root / "topics/t.topic/state"
    content = bytearray(state.read_bytes())
    content[offset] ^= 1
    state.write_bytes(content)
    broker = broker_on(root)
    assert broker.damage.found_count == 0
    assert broker.topic("t").channel("c").depth == COUNT
    assert broker.topic("t").message_count == (COUNT + (1 << 16) if offset == 50 else COUNT)


def test_the_ledgers_tell_of_missing_records_if_the_state_is_lost_too(tmp_path, caplog):
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel("c")
    publish(topic, COUNT, SIZE)
    consumer = consumer_on(channel)
    for _ in range(COUNT - 10):
        assert channel.take_message(consumer) is not None
    broker.close()
    (tmp_path / "topics/t.topic/state").write_bytes(b"x" * 4096)
    zeroed_from_a_records_end(segments(tmp_path)[-1])
    assert broker_on(tmp_path).damage.lost_count == COUNT - 10 - KEPT
    assert "are missing" in caplog.text


def test_inspect_lists_the_missing_end_of_a_log(tmp_path):
    root = left_by_stop(tmp_path)
    cut_at_a_records_end(segments(root)[-1])
    inspection = Inspection(str(root), verify=False)
    assert any(f"records {KEPT} to {COUNT - 1} are missing" in problem for problem in inspection.problems)
