"""Blocks of the disk that cannot be read: they count as damage, and nothing else suffers."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.errors import StorageError
from tests.persistence.views import deferred_in
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, consumer_on, finish_all, publish
from tests.support.unreadable import UnreadableFiles, make_unreadable

COUNT = 1000
BODY_BYTES = 200
# As records are laid out: a header of 128 bytes, then 248 for each.
RECORD_BYTES = 48 + BODY_BYTES
HEADER_BYTES = 128


def fill(path: Path, count: int = COUNT) -> None:
    """Leave two topics, each with a channel that has everything before it; killed."""
    broker = broker_on(path)
    for name in ("t", "other"):
        topic = broker.topic(name)
        topic.channel("c")
        publish(topic, count, BODY_BYTES)


def segments(path: Path) -> list[str]:
    """Return the paths of the segments of topic t, oldest first."""
    found = []
    segment = broker_on(path).topic("t").log.first
    while segment is not None:
        found.append(segment.mapping.path)
        segment = segment.next
    return found


def delivered(topic: Any) -> list[int]:
    """Take everything that the channel has. Returns: the numbers, in order."""
    return finish_all(topic.channel("c"))


def on_bad(path: Path, *bad: tuple[str, int]) -> Any:
    """Load a broker on a disk with bad pages, given by the end of a path and a number."""
    return broker_on(path, UnreadableFiles(lambda file, page: any(file.endswith(b[0]) and page == b[1] for b in bad)))


def of_page(page: int, first: int = 0) -> set[int]:
    """Return the numbers of the records that have a byte in a page of a segment. first: the segment's first number."""
    low, high = page * PAGE_BYTES - HEADER_BYTES, (page + 1) * PAGE_BYTES - HEADER_BYTES
    return {first + number for number in range(low // RECORD_BYTES, -(-high // RECORD_BYTES))}


@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "last"])
def test_a_bad_page_of_a_segment_costs_the_records_in_it(tmp_path: Path, which: int) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[which]
    for end in (COUNT, COUNT + 1):
        broker = on_bad(tmp_path, (path, 3))
        topic = broker.topic("t")
        first = 0 if which == 0 else topic.log.active.first_ordinal
        lost = of_page(3, first)
        assert delivered(topic) == [number for number in range(end) if number not in lost]
        assert topic.log.damage.lost_count == len(lost)
        assert delivered(broker.topic("other")) == list(range(COUNT))
        topic.publish_body(body_of(end, BODY_BYTES), wall())
        assert delivered(topic) == [end]
        check_topic(topic)
        for name in ("t", "other"):
            broker.topic(name).channel("c").ledger.start_at(0)


def test_a_bad_first_page_costs_the_segment(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[0]
    broker = on_bad(tmp_path, (path, 0))
    topic = broker.topic("t")
    ((start, end),) = topic.log.holes or [(0, topic.log.first.first_ordinal)]
    assert 0 < end - start < COUNT
    assert delivered(topic) == [*range(start), *range(end, COUNT)]
    assert (tmp_path / "topics" / "t.topic" / "damaged" / os.path.basename(path)).exists()
    assert delivered(broker.topic("other")) == list(range(COUNT))


@pytest.mark.parametrize("power_failed", [False, True])
def test_a_bad_page_at_the_end_of_the_log_is_reported(tmp_path: Path, power_failed: bool) -> None:
    fill(tmp_path)
    broker = broker_on(tmp_path)
    log = broker.topic("t").log
    tail, path, first = log.active.tail, log.active.mapping.path, log.active.first_ordinal
    if power_failed:
        node = (tmp_path / "node.json").read_text()
        (tmp_path / "node.json").write_text(node.replace(broker.boot, "another"))
    page = tail // PAGE_BYTES
    broker = on_bad(tmp_path, (path, page))
    topic = broker.topic("t")
    whole = [number for number in range(COUNT) if number < min(of_page(page, first))]
    assert topic.log.damage.found_count == 1
    assert delivered(topic) == whole
    topic.publish_body(body_of(COUNT, BODY_BYTES), wall())
    assert topic.log.active.mapping.path != path
    assert delivered(topic) == [COUNT]


@pytest.mark.parametrize("page", [0, 1], ids=["header", "bits"])
def test_a_bad_page_of_a_ledger_redelivers_the_messages_of_the_log(tmp_path: Path, page: int) -> None:
    fill(tmp_path, 10)
    broker = broker_on(tmp_path)
    assert len(delivered(broker.topic("t"))) == 10
    assert len(delivered(broker.topic("other"))) == 10
    broker = on_bad(tmp_path, ("t.topic/c.channel/ledger", page))
    assert delivered(broker.topic("t")) == list(range(10))
    assert delivered(broker.topic("other")) == []
    assert (tmp_path / "topics" / "t.topic" / "c.channel" / "ledger.bad").exists()
    assert delivered(broker_on(tmp_path).topic("t")) == []


def test_a_bad_state_page_costs_the_topic_its_counters(tmp_path: Path) -> None:
    fill(tmp_path)
    broker = on_bad(tmp_path, ("t.topic/state", 0))
    assert delivered(broker.topic("t")) == list(range(COUNT))
    assert (tmp_path / "topics" / "t.topic" / "state.bad").exists()


def test_a_bad_page_costs_the_deferred_messages_in_it(tmp_path: Path) -> None:
    fill(tmp_path)
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    delivered(topic)
    due_ns = wall() + 3600 * 10**9
    publish(topic, 100, BODY_BYTES, due_ns=due_ns)
    broker = on_bad(tmp_path, (topic.log.active.mapping.path, 2))
    topic = broker.topic("t")
    lost = 100 - len(deferred_in(topic.channel("c")))
    assert 0 < lost <= len(of_page(2))
    assert delivered(broker.topic("other")) == list(range(COUNT))


def test_reading_by_position_ends_at_a_bad_page(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[0]
    topic = on_bad(tmp_path, (path, 5)).topic("t")
    while not topic.reader.prepare(COUNT // 2):
        pass
    data, *_ = topic.reader.read_raw(0, COUNT, 1 << 20)
    assert len(data) >= (min(of_page(5)) - 1) * RECORD_BYTES
    assert topic.reader.ordinal_of(0) == 0


def test_a_bad_page_behind_the_end_is_found_before_a_record_comes_to_it(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    topic.publish_body(body_of(0, BODY_BYTES), wall())
    segment = topic.log.active
    make_unreadable(segment.mapping, 9)
    broker.segment_jobs.prepare_pages(topic.log.pool, segment, PAGE_BYTES, 12 * PAGE_BYTES)
    publish(topic, 299, BODY_BYTES, start=1)
    assert (segment.worn, segment.count) == (True, 1)
    assert delivered(topic) == list(range(300))
    assert segment not in topic.log.pool.spares
    check_topic(topic)


def test_no_record_is_stored_to_a_bad_page_behind_the_end(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    topic.channel("c")
    topic.publish_body(body_of(0, BODY_BYTES), wall())
    path = topic.log.active.mapping.path
    del broker, topic
    topic = on_bad(tmp_path, (path, 2)).topic("t")
    segment = topic.log.active
    publish(topic, 299, BODY_BYTES, start=1)
    assert segment.worn
    assert segment.tail <= 2 * PAGE_BYTES
    assert delivered(topic) == list(range(300))
    check_topic(topic)


def test_a_sync_after_a_failed_one_leaves_out_unreadable_ranges(tmp_path: Path) -> None:
    files = Files()
    mapping = files.new_mapped(str(tmp_path / "file"), 5 * PAGE_BYTES, True)
    for page in (1, 4):
        make_unreadable(mapping, page)
    pieces = files.readable_pieces(mapping, 0, 5 * PAGE_BYTES)
    assert [at // PAGE_BYTES for at, size in pieces for at in range(at, at + size, PAGE_BYTES)] == [0, 2, 3]
    files.dirty_again(mapping, 0, 5 * PAGE_BYTES)


class NoReading(Files):
    """Files that cannot be read if their path has one of the ends. ends: of paths."""

    def __init__(self, *ends: str) -> None:
        self.ends = ends

    def read(self, path: str) -> bytes:
        if path.endswith(self.ends):
            raise StorageError("read", path, errno.EIO, "Input/output error")
        return super().read(path)

    def open_mapped(self, path: str) -> Mapping:
        mapping = super().open_mapped(path)
        if path.endswith(self.ends):
            make_unreadable(mapping, 0)
        return mapping


def test_small_files_that_cannot_be_read_keep_nothing_from_starting(tmp_path: Path) -> None:
    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    channel = topic.channel("c")
    topic.publish_body(b"x", wall())
    consumer = consumer_on(channel)
    for _ in range(3):
        channel.requeue_message(consumer, channel.take_message(consumer)[0], 0)
    broker.close()
    broker = broker_on(tmp_path, NoReading("node.json", "notes/0"))
    assert broker.power_failed
    channel = broker.topic("t").channel("c")
    assert channel.take_message(consumer_on(channel))[1] == 2
    assert (tmp_path / "node.json.bad").exists()
    assert os.listdir(channel.files.path_of("notes")) == ["0.bad"]
