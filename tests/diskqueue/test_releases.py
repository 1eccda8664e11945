"""Tests of pyqd.hot.primitives.releases: references to removed files, and large memory, dropped by a thread."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.primitives import releases
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.storage import broker_on, consumer_on, publish, run_all_wakes

FILE_BYTES = 8192
MAPPED_MAX = 32
CLOSING_MAX = 16

# In a process of its own: the thread of an earlier test may have left its addresses to the next.
FIRST_RELEASE = """
import os, sys
from pyqd.diskqueue.files import Files
from pyqd.hot.primitives import releases

def size_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")

mapping = Files().new_mapped(sys.argv[1], 8192, populate=False)
releases.start()
before_bytes = size_bytes()
mapping.file_removed()
os.unlink(sys.argv[1])
del mapping
releases.settle()
print(size_bytes() - before_bytes)
releases.stop()
"""
RESERVED_BYTES_MAX = 1 << 20


@pytest.fixture
def held() -> Iterator[None]:
    """Start the thread, and keep it from running anything until the test calls `run`."""
    gc.collect()
    releases.start()
    # Other tests leave as many descriptors as may be kept, also those of removed files, which the thread closes.
    arena.end_sync(arena.begin_sync())
    releases.settle()
    releases.hold_for_tests(True)
    yield
    releases.hold_for_tests(False)
    releases.stop()


@pytest.fixture
def few_mapped() -> Iterator[None]:
    before = arena.mapped_max()
    arena.configure(MAPPED_MAX)
    yield
    arena.configure(before)


def run() -> None:
    """Let the thread run all that is pending."""
    releases.hold_for_tests(False)
    releases.settle()


def made(directory: Path, number: int = 0) -> Mapping:
    mapping = Files().new_mapped(str(directory / str(number)), FILE_BYTES, populate=False)
    mapping.view()[FILE_BYTES - 1] = number % 256
    return mapping


def remove(mapping: Mapping) -> None:
    assert mapping.path is not None
    mapping.file_removed()
    os.unlink(mapping.path)


def mapped(directory: Path) -> list[str]:
    """Return the files of a directory that the process maps; those that are removed too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.partition(str(directory) + os.sep)[2] for line in lines if str(directory) + os.sep in line]


def anonymous_bytes() -> int:
    """Return the memory of the process that is of no file. Source: proc(5), /proc/pid/status."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def opened(directory: Path) -> list[str]:
    """Return the files of a directory that the process has open; those that are removed too."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return [path.removeprefix(str(directory) + os.sep) for path in found if path.startswith(str(directory) + os.sep)]


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_the_last_mapping_of_a_removed_file_is_dropped_by_the_thread(tmp_path: Path) -> None:
    mapping = made(tmp_path)
    remove(mapping)
    del mapping
    assert mapped(tmp_path) == ["0 (deleted)"]
    assert releases.pending_count() == 1
    run()
    assert mapped(tmp_path) == []
    assert releases.pending_count() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_file_mapped_outside_the_arena_is_unmapped_by_the_thread(tmp_path: Path) -> None:
    files = Files()
    mapping = files.new_mapped(None, FILE_BYTES, populate=False)
    files.write_mapped(mapping, str(tmp_path / "0"))
    remove(mapping)
    del mapping
    assert mapped(tmp_path) == ["0 (deleted)"]
    run()
    assert mapped(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_the_arrays_of_many_messages_are_unmapped_by_the_thread(tmp_path: Path) -> None:
    broker = broker_on(tmp_path, max_bytes_per_file=100 << 20)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = consumer_on(channel)
    publish(topic, 40_000)
    run_all_wakes(broker)
    for _ in range(40_000):
        channel.take_message(consumer)
    assert channel.in_flight_count == 40_000
    before = releases.pending_count()
    channel.empty()
    assert releases.pending_count() == before + 2, "the slots, and the table of ids"
    run()
    releases.hold_for_tests(True)
    publish(topic, 140_000, due_ns=wall() + HOUR_NS)
    run_all_wakes(broker)
    assert channel.deferred_count == 140_000
    channel.empty()
    before_bytes = anonymous_bytes()
    run()
    # The thread had the array of the records, 8 bytes each.
    assert anonymous_bytes() < before_bytes - 140_000 * 8 + 100_000
    broker.close()


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_descriptors_of_files_are_closed_by_the_thread_up_to_a_limit(tmp_path: Path) -> None:
    mappings = [made(tmp_path, number) for number in range(CLOSING_MAX + 3)]
    for mapping in mappings:
        assert mapping.path is not None
        mapping.keep_descriptor(Files().open_for_writing(mapping.path))
        remove(mapping)
    del mapping
    mappings.clear()
    assert len(opened(tmp_path)) == CLOSING_MAX
    assert len(mapped(tmp_path)) == CLOSING_MAX + 3
    run()
    assert (opened(tmp_path), mapped(tmp_path)) == ([], [])


@pytest.mark.slow
@pytest.mark.usefixtures("held", "few_mapped")
def test_a_descriptor_kept_for_a_sync_is_closed_by_the_thread_if_its_file_is_removed(tmp_path: Path) -> None:
    mappings = [made(tmp_path, number) for number in range(3 * MAPPED_MAX)]
    kept = opened(tmp_path)
    removed = kept[0]
    remove(mappings[int(removed)])
    arena.end_sync(arena.begin_sync())
    assert len(kept) > 1
    assert opened(tmp_path) == [f"{removed} (deleted)"]
    run()
    assert opened(tmp_path) == []


@pytest.mark.usefixtures("few_mapped")
def test_a_removed_file_is_not_unmapped_for_another_one_while_it_is_in_use(tmp_path: Path) -> None:
    mappings = [made(tmp_path, number) for number in range(3 * MAPPED_MAX)]
    present = [int(name) for name in mapped(tmp_path)]
    # The oldest ones have no access rights any more.
    removed = [present[0], present[-1]]
    for number in removed:
        remove(mappings[number])
    for _ in range(3):
        for number, mapping in enumerate(mappings):
            if number not in removed:
                assert mapping.view()[FILE_BYTES - 1] == number
    assert {f"{number} (deleted)" for number in removed} <= set(mapped(tmp_path))
    for number in removed:
        assert mappings[number].view()[FILE_BYTES - 1] == number
    arena.check()


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_new_file_does_not_get_the_place_of_one_that_is_still_mapped(tmp_path: Path) -> None:
    mapping = made(tmp_path)
    place = mapping.address
    before = arena.mapped_count()
    remove(mapping)
    del mapping
    other = made(tmp_path, 1)
    assert other.address != place
    assert arena.mapped_count() == before + 1
    arena.check()
    run()
    assert arena.mapped_count() == before
    assert other.view()[FILE_BYTES - 1] == 1
    arena.check()
    assert made(tmp_path, 2).address == place


@pytest.mark.slow
@pytest.mark.usefixtures("held", "few_mapped")
def test_only_a_part_of_the_mapped_files_waits_for_the_thread(tmp_path: Path) -> None:
    mappings = [made(tmp_path, number) for number in range(MAPPED_MAX // 2)]
    for mapping in mappings:
        remove(mapping)
    del mapping
    mappings.clear()
    assert len(mapped(tmp_path)) == releases.pending_count() == MAPPED_MAX // 4
    run()
    assert mapped(tmp_path) == []


def test_without_the_thread_a_file_is_unmapped_on_the_spot(tmp_path: Path) -> None:
    mapping = made(tmp_path)
    remove(mapping)
    del mapping
    assert mapped(tmp_path) == []
    releases.settle()


def test_the_last_stop_leaves_nothing_pending(tmp_path: Path) -> None:
    releases.start()
    releases.start()
    releases.hold_for_tests(True)
    mapping = made(tmp_path)
    remove(mapping)
    del mapping
    releases.stop()
    assert mapped(tmp_path) == ["0 (deleted)"]
    releases.stop()
    assert mapped(tmp_path) == []
    releases.hold_for_tests(False)


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_forked_child_unmaps_on_the_spot(tmp_path: Path) -> None:
    mapping = made(tmp_path)
    remove(mapping)
    child = os.fork()
    if child == 0:
        before = mapped(tmp_path)
        del mapping
        releases.settle()
        os._exit(0 if (before, mapped(tmp_path)) == (["0 (deleted)"], []) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert mapped(tmp_path) == ["0 (deleted)"]


def test_the_space_of_removed_spares_is_free_when_their_removal_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = releases.settle

    def run_all() -> None:
        releases.hold_for_tests(False)
        settle()

    broker = broker_on(tmp_path)
    topic = broker.topic("t")
    releases.start()
    topic.log.pool.add_spare(topic.log.pool.new_segment(1 << 20))
    releases.hold_for_tests(True)
    monkeypatch.setattr(releases, "settle", run_all)
    topic.remove_spares()
    assert not any("deleted" in name for name in mapped(tmp_path / "topics"))
    broker.close()
    releases.stop()
    releases.hold_for_tests(False)


@pytest.mark.slow
def test_the_first_release_takes_no_addresses_that_a_limit_may_not_leave(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FIRST_RELEASE, str(tmp_path / "file")], capture_output=True, check=True, text=True
    )
    assert int(told.stdout) <= RESERVED_BYTES_MAX
