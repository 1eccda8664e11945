"""Tests of pyqd.hot.diskqueue.arena: files that are mapped on demand."""

import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.primitives.errors import StorageError

MAPPED_MAX = 32
FILE_COUNT = 100
FILE_BYTES = 8192


@pytest.fixture(autouse=True)
def others() -> Iterator[int]:
    """Return how many files of other tests stay mapped: those that a broker of this process has pinned count, too."""
    gc.collect()
    before = arena.mapped_max()
    arena.configure(0)
    count = arena.mapped_count()
    arena.configure(MAPPED_MAX)
    yield count
    arena.configure(before)


def made(directory: Path, count: int = FILE_COUNT) -> list[Mapping]:
    files = Files()
    mappings = [files.new_mapped(str(directory / str(number)), FILE_BYTES, populate=False) for number in range(count)]
    for number, mapping in enumerate(mappings):
        mapping.view()[FILE_BYTES - 1] = number % 256
    return mappings


def is_mapped(mapping: Mapping) -> bool:
    assert mapping.path is not None
    return any(line.endswith(mapping.path) for line in Path("/proc/self/maps").read_text().splitlines())


def unmapped_one(mappings: list[Mapping]) -> Mapping:
    return next(mapping for mapping in mappings if not is_mapped(mapping))


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_more_files_than_may_be_mapped_are_read_and_written_at_will(tmp_path: Path, others: int) -> None:
    mappings = made(tmp_path)
    chance = random.Random(1)
    expected = {number: number % 256 for number in range(FILE_COUNT)}
    for _ in range(2000):
        number = chance.randrange(FILE_COUNT)
        assert mappings[number].view()[FILE_BYTES - 1] == expected[number]
        expected[number] = mappings[number].view()[FILE_BYTES - 1] = chance.randrange(256)
    assert arena.mapped_count() <= MAPPED_MAX + others
    for number, byte in expected.items():
        assert (tmp_path / str(number)).read_bytes()[-1] == byte


@pytest.mark.slow
def test_a_process_has_no_more_mappings_for_more_idle_files(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    before = len(Path("/proc/self/maps").read_text().splitlines())
    (tmp_path / "more").mkdir()
    mappings += made(tmp_path / "more", 5 * FILE_COUNT)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 2 * MAPPED_MAX


@pytest.mark.slow
def test_a_load_leaves_half_of_the_budget_mapped_and_every_file_as_it_was(tmp_path: Path, others: int) -> None:
    mappings = made(tmp_path)
    files = Files()
    contents = [bytes(mapping.view()) for mapping in mappings]
    mappings.clear()
    gc.collect()
    arena.begin_load()
    try:
        mappings = [files.open_mapped(str(tmp_path / str(number))) for number in range(FILE_COUNT)]
        assert others < arena.mapped_count() <= MAPPED_MAX // 2 + 1 + others
        assert [bytes(mapping.view()) for mapping in mappings] == contents
        mappings[7].view()[1] = 77
        pinned = mappings[8]
        assert pinned.pin()
        mappings += [files.open_mapped(str(tmp_path / str(number))) for number in range(FILE_COUNT)]
        assert is_mapped(pinned)
        assert not is_mapped(mappings[7])
        pinned.unpin()
    finally:
        arena.end_load()
    assert mappings[7].view()[1] == (tmp_path / "7").read_bytes()[1] == 77
    for _ in range(2):
        assert [mapping.view()[FILE_BYTES - 1] for mapping in mappings[:FILE_COUNT]] == list(range(FILE_COUNT))
    assert arena.mapped_count() <= MAPPED_MAX + others


@pytest.mark.slow
def test_threads_may_use_files_that_others_have_unmapped(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    files = Files()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(300):
                number = chance.randrange(FILE_COUNT)
                files.sync(mappings[number], 0, FILE_BYTES)
                files.populate(mappings[number], 0, FILE_BYTES)
                files.dirty_again(mappings[number], 0, FILE_BYTES)
                assert mappings[number].view()[FILE_BYTES - 1] == number % 256
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


@pytest.mark.slow
def test_a_pinned_file_stays_mapped(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    pinned = unmapped_one(mappings)
    assert pinned.pin()
    for _ in range(3):
        assert all(mapping.view()[0] == 0 for mapping in mappings)
        assert is_mapped(pinned)
    pinned.unpin()
    for _ in range(3):
        assert all(mapping.view()[0] == 0 for mapping in mappings if mapping is not pinned)
    assert not is_mapped(pinned)


def kept(directory: Path) -> set[str]:
    """Return the files of a directory that the process has open."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    paths = [Path(os.readlink(link)) for link in links if link.is_symlink()]
    return {path.name for path in paths if path.parent == directory}


def test_a_file_unmapped_during_a_sync_stays_open_until_a_later_sync_is_complete(tmp_path: Path) -> None:
    arena.end_sync(arena.begin_sync())
    before = made(tmp_path)
    kept_before = kept(tmp_path)
    assert kept_before
    (tmp_path / "later").mkdir()
    begun = arena.begin_sync()
    made_during = made(tmp_path / "later")
    kept_during = kept(tmp_path / "later")
    assert kept_during
    arena.end_sync(begun)
    assert kept(tmp_path / "later") == kept_during
    assert kept_before - kept(tmp_path), "those unmapped before the sync are closed"
    arena.end_sync(arena.begin_sync())
    assert kept(tmp_path) == kept(tmp_path / "later") == set()
    assert len(before) == len(made_during)


@pytest.mark.slow
def test_a_renamed_file_is_mapped_by_its_new_name(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    moved = unmapped_one(mappings)
    number = mappings.index(moved)
    os.rename(tmp_path / str(number), tmp_path / "renamed")
    moved.moved(str(tmp_path / "renamed"))
    assert moved.view()[FILE_BYTES - 1] == number
    assert moved.path == str(tmp_path / "renamed")


@pytest.mark.slow
def test_a_removed_file_reads_as_zeros_and_never_as_another_file_of_its_name(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    removed = unmapped_one(mappings)
    path = tmp_path / str(mappings.index(removed))
    removed.file_removed()
    path.unlink()
    path.write_bytes(b"x" * FILE_BYTES)
    Files().sync(removed, 0, FILE_BYTES)
    assert bytes(removed.view()) == bytes(FILE_BYTES)
    removed.view()[0] = 1
    assert path.read_bytes() == b"x" * FILE_BYTES
    for mapping in mappings:
        assert mapping.view()[1] == 0
    assert removed.view()[0] == 1


@pytest.mark.slow
def test_pinning_a_file_that_another_one_has_replaced_is_an_error(tmp_path: Path) -> None:
    mappings = made(tmp_path)
    replaced = unmapped_one(mappings)
    path = tmp_path / str(mappings.index(replaced))
    other = tmp_path / "other"
    other.write_bytes(b"x" * FILE_BYTES)
    os.rename(other, path)
    with pytest.raises(StorageError, match="failed to map"):
        replaced.pin()


SPOILED = """
    import os, sys
    from pyqd.diskqueue.files import Files
    from pyqd.hot.diskqueue import arena
    arena.configure(32)
    mappings = [Files().new_mapped(f"{sys.argv[1]}/{number}", 4096, False) for number in range(100)]
    for number in range(100):
        os.rename(f"{sys.argv[1]}/{number}", f"{sys.argv[1]}/gone{number}")
    for mapping in mappings:
        mapping.view()[0] = 1
"""


@pytest.mark.slow
def test_a_file_that_is_gone_unexpectedly_ends_the_process_by_name(tmp_path: Path) -> None:
    done = run(SPOILED, tmp_path)
    assert done.returncode == -11
    assert f"pyqd: cannot map {tmp_path}/0 again: no such file (ENOENT)" in done.stderr


CRASHING = """
    import ctypes, faulthandler, sys
    from pyqd.diskqueue.files import Files
    faulthandler.enable()
    mapping = Files().new_mapped(f"{sys.argv[1]}/file", 4096, False)
    mapping.view()[0] = 1
    ctypes.string_at(16, 1)
"""


@pytest.mark.slow
def test_any_other_fault_is_left_to_the_handler_before(tmp_path: Path) -> None:
    done = run(CRASHING, tmp_path)
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "cannot map" not in done.stderr


LIMITED = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    from pyqd.diskqueue.files import Files
    from pyqd.hot.diskqueue import arena
    from pyqd.hot.diskqueue.mapping import unmanaged_count
    files = Files()
    mappings = [files.new_mapped(f"{sys.argv[1]}/{number}", 4096, True) for number in range(100)]
    for mapping in mappings:
        mapping.view()[0] = 1
        files.sync(mapping, 0, 4096)
    print(arena.is_reserved(), unmanaged_count(), arena.file_count())
    mappings.clear()
    del mapping
    print(unmanaged_count())
"""


@pytest.mark.slow
def test_without_address_space_for_the_arena_every_file_stays_mapped(tmp_path: Path) -> None:
    done = run(LIMITED, tmp_path)
    assert (done.stdout, done.stderr) == ("False 100 0\n0\n", "")
