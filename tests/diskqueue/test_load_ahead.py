"""Tests of pyqd.hot.diskqueue.loadahead and FilesAhead: a thread opens a start's files ahead of it."""

import fcntl
import gc
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files, FilesAhead
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.loadahead import LoadAhead
from pyqd.primitives.errors import StartupError
from tests.support.storage import broker_on, drop_from_cache, publish

TOPIC_COUNT = 40
FILES_PER_TOPIC = 3
# With so many the thread has begun all topics that it may begin ahead.
FILES_AHEAD = 16 * FILES_PER_TOPIC
# Such a topic has more files than the thread finds of one topic.
MANY_CHANNELS = 70
WAIT_S = 10.0
FS_IOC_FIEMAP = 0xC020660B
MIB = 1 << 20


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture(autouse=True)
def file_count() -> Iterator[Callable[[], int]]:
    """Return a function that counts the files mapped since; at the end none is left, and no thread."""
    gc.collect()
    before, threads = arena.file_count(), thread_count()
    yield lambda: arena.file_count() - before
    gc.collect()
    assert (arena.file_count(), thread_count()) == (before, threads)


def make_topics(path: Path, count: int = TOPIC_COUNT, channels: int = 1) -> list[str]:
    """Leave topics of a clean stop, each with a message. Returns: the names of their directories, in order."""
    broker = broker_on(path)
    names = [f"t{number:03}" for number in range(count)]
    for name in names:
        topic = broker.topic(name)
        for number in range(channels):
            topic.channel(f"c{number}")
        publish(topic)
    broker.close()
    del broker, topic
    gc.collect()
    return [f"{name}.topic" for name in names]


def require_extents(path: Path) -> None:
    """Skip on a file system such as tmpfs, which does not tell what blocks a file has: the thread maps none there."""
    probe = path / "probe"
    probe.write_bytes(b"x")
    with probe.open("rb") as file:
        try:
            fcntl.ioctl(file.fileno(), FS_IOC_FIEMAP, struct.pack("QQIIII", 0, 1, 0, 0, 0, 0))
        except OSError:
            pytest.skip("this file system has no FIEMAP")
    probe.unlink()


def ahead_of(path: Path, entries: list[str], wait: Callable[[], bool]) -> LoadAhead:
    """Return what a thread finds of topics, once a condition holds."""
    require_extents(path)
    ahead = LoadAhead(str(path / "topics"), entries)
    until = time.monotonic() + WAIT_S
    while not wait():
        assert time.monotonic() < until
        time.sleep(0.001)
    return ahead


def depths(path: Path, files: Files | None = None) -> dict[str, list[int]]:
    """Start a broker and stop it. Returns: the depths of its channels by topic."""
    broker = broker_on(path, files)
    found = {
        name: [channel.depth for channel in topic.channels_by_name.values()] for name, topic in broker.topics.items()
    }
    broker.close()
    return found


def test_names_and_files_of_a_topic_are_taken_by_path_and_once(tmp_path: Path, file_count: Callable[[], int]) -> None:
    entries = make_topics(tmp_path)
    ahead = ahead_of(tmp_path, entries, lambda: file_count() == FILES_AHEAD)
    ahead.begin_next()
    topic = tmp_path / "topics" / entries[0]
    for directory in (topic, topic / "log", topic / "c0.channel"):
        assert ahead.take_names(str(directory)) == os.listdir(directory)
        assert ahead.take_names(str(directory)) is None
    for file in (topic / "state", *(topic / "log").iterdir(), topic / "c0.channel" / "ledger"):
        mapping = ahead.take_mapping(str(file))
        assert mapping is not None
        assert (mapping.path, bytes(mapping.view())) == (str(file), file.read_bytes())
        assert ahead.take_mapping(str(file)) is None
    ahead.close()


def test_files_that_were_not_taken_are_unmapped_with_the_next_topic(
    tmp_path: Path, file_count: Callable[[], int]
) -> None:
    entries = make_topics(tmp_path, 2)
    ahead = ahead_of(tmp_path, entries, lambda: file_count() == 2 * FILES_PER_TOPIC)
    ahead.begin_next()
    mapping = ahead.take_mapping(str(tmp_path / "topics" / entries[0] / "state"))
    ahead.begin_next()
    assert file_count() == 1 + FILES_PER_TOPIC
    ahead.close()
    assert (mapping is not None, file_count()) == (True, 1)


def test_the_thread_waits_when_it_is_far_ahead(tmp_path: Path, file_count: Callable[[], int]) -> None:
    entries = make_topics(tmp_path)
    ahead = ahead_of(tmp_path, entries, lambda: file_count() == FILES_AHEAD)
    time.sleep(0.05)
    assert file_count() == FILES_AHEAD
    for _ in entries:
        ahead.begin_next()
        assert file_count() <= FILES_AHEAD + FILES_PER_TOPIC
    ahead.close()


def test_a_load_that_is_faster_than_the_thread_finds_the_files_of_each_topic(tmp_path: Path) -> None:
    require_extents(tmp_path)
    entries = make_topics(tmp_path)
    ahead = LoadAhead(str(tmp_path / "topics"), entries)
    for entry in entries:
        ahead.begin_next()
        assert sorted(ahead.take_names(str(tmp_path / "topics" / entry)) or ()) == ["c0.channel", "log", "state"]
        assert ahead.take_mapping(str(tmp_path / "topics" / entry / "state")) is not None
    ahead.close()


def test_entries_that_cannot_be_opened_are_left_to_the_load(tmp_path: Path, file_count: Callable[[], int]) -> None:
    (entry,) = make_topics(tmp_path, 1)
    topic = tmp_path / "topics" / entry
    (topic / "state").write_bytes(b"")
    ledger_bytes = (topic / "c0.channel" / "ledger").stat().st_size
    # A hole, so that blocks would have to be reserved.
    os.truncate(topic / "c0.channel" / "ledger", 0)
    os.truncate(topic / "c0.channel" / "ledger", ledger_bytes)
    (topic / "file.channel").write_bytes(b"")
    (tmp_path / "topics" / "file.topic").write_bytes(b"")
    ahead = ahead_of(tmp_path, ["file.topic", "missing.topic", entry, entry], lambda: file_count() == 2)
    for name in ("file.topic", "missing.topic"):
        ahead.begin_next()
        assert ahead.take_names(str(tmp_path / "topics" / name)) is None
    ahead.begin_next()
    assert ahead.take_names(str(topic)) is not None
    assert ahead.take_names(str(topic / "file.channel")) is None
    assert ahead.take_mapping(str(topic / "state")) is None
    assert ahead.take_mapping(str(topic / "c0.channel" / "ledger")) is None
    assert (topic / "c0.channel" / "ledger").stat().st_blocks == 0
    ahead.close()


def test_a_start_finds_the_same_with_the_thread_and_without(tmp_path: Path) -> None:
    make_topics(tmp_path)
    found = depths(tmp_path, FilesAhead())
    assert found == depths(tmp_path, Files()) == {f"t{number:03}": [1] for number in range(TOPIC_COUNT)}


def test_a_topic_with_more_files_than_the_thread_finds_is_loaded(tmp_path: Path) -> None:
    make_topics(tmp_path, 3, MANY_CHANNELS)
    assert depths(tmp_path, FilesAhead()) == {f"t{number:03}": [1] * MANY_CHANNELS for number in range(3)}


def test_a_start_maps_again_the_files_that_a_small_budget_has_unmapped(tmp_path: Path) -> None:
    make_topics(tmp_path)
    budget = arena.mapped_max()
    arena.configure(0)
    try:
        found = depths(tmp_path, FilesAhead())
    finally:
        arena.configure(budget)
    assert found == {f"t{number:03}": [1] for number in range(TOPIC_COUNT)}


@pytest.mark.parametrize("files", [Files(), FilesAhead()])
def test_a_start_reads_the_header_of_a_full_segment_and_not_the_segment(tmp_path: Path, files: Files) -> None:
    broker = broker_on(tmp_path, max_bytes_per_file=MIB)
    topic = broker.topic("t")
    topic.channel("c")
    for _ in range(40):
        publish(topic, 1, size_bytes=100_000)
    broker.close()
    del broker, topic
    gc.collect()
    if not drop_from_cache(tmp_path):
        pytest.skip("this file system keeps all files in memory")
    found = broker_on(tmp_path, files, max_bytes_per_file=MIB)
    segment = found.topics["t"].log.first
    while segment.file_bytes < MIB:
        segment = segment.next
    assert segment.next is not None
    middle = segment.file_bytes // 2
    assert not files.is_present(segment.mapping, middle, middle)
    found.close()


@pytest.mark.parametrize("name", ["state", "c0.channel/ledger", "log/*.seg"])
@pytest.mark.parametrize("content", [b"", b"damaged" * 2000])
def test_damage_is_reported_as_without_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes
) -> None:
    reports = []
    for files in (Files(), FilesAhead()):
        path = tmp_path / type(files).__name__
        path.mkdir()
        entries = make_topics(path, 3)
        (file,) = (path / "topics" / entries[1]).glob(name)
        file.write_bytes(content)
        caplog.clear()
        found = depths(path, files)
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        reports.append((found, [error.getMessage().replace(str(path), "").replace(file.name, "") for error in errors]))
    # Records hold the errors, whose frames hold the brokers.
    caplog.clear()
    assert reports[0] == reports[1]
    assert len(reports[0][1]) > 0


def test_a_start_after_a_power_failure_does_without_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topics(tmp_path, 3)
    (tmp_path / "node.json").unlink()
    monkeypatch.setattr("pyqd.diskqueue.files.LoadAhead", None)
    assert depths(tmp_path, FilesAhead()) == {f"t{number:03}": [1] for number in range(3)}


def test_a_start_without_a_thread_or_an_arena_loads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(directory: str, entries: list[str]) -> LoadAhead:
        raise OSError

    make_topics(tmp_path, 3)
    monkeypatch.setattr("pyqd.diskqueue.files.LoadAhead", refused)
    assert len(depths(tmp_path, FilesAhead())) == 3
    monkeypatch.setattr(arena, "is_reserved", lambda: False)
    monkeypatch.setattr("pyqd.diskqueue.files.LoadAhead", None)
    assert len(depths(tmp_path, FilesAhead())) == 3


def test_a_start_that_fails_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    entries = make_topics(tmp_path)
    segment = next((tmp_path / "topics" / entries[5] / "log").iterdir())
    content = bytearray(segment.read_bytes())
    content[8:16] = b"\xff\xff\xff\x7f\0\0\0\1"
    segment.write_bytes(content)
    files = FilesAhead()
    with pytest.raises(StartupError, match="format version"):
        broker_on(tmp_path, files)
    assert files.list_directory(str(tmp_path / "topics" / entries[9])) != []
