"""Tests of pyqd.hot.diskqueue.ledger."""

import os
import struct

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.ledger import Ledger, set_limits_for_tests
from pyqd.primitives.errors import DiskFull, StorageError
from tests.support.storage import FullFiles

RING_BITS_MIN = 8 * 4096
HEADER_BYTES = 4096
FLOOR, CURSOR, RESET_TO = 24, 32, 104


def handed_out(ledger, count):
    for _ in range(count):
        assert ledger.note_handed_out()
    return ledger


def state(ledger):
    ledger.check()
    return ledger.floor, ledger.cursor, ledger.finished_count, ledger.ahead


def store(path, offset, *words):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(struct.pack(f"<{len(words)}Q", *words))


def test_a_new_ledger_stands_at_zero_and_has_not_been_placed():
    ledger = Ledger(Files())
    assert state(ledger) == (0, 0, 0, 0)
    assert not ledger.started
    assert ledger.capacity_bits == RING_BITS_MIN


def test_finishing_twice_is_a_mistake():
    ledger = handed_out(Ledger(Files()), 3)
    ledger.note_finished(1)
    with pytest.raises(AssertionError, match="finished twice"):
        ledger.note_finished(1)
    ledger.note_finished(0)
    with pytest.raises(AssertionError, match="finished twice"):
        ledger.note_finished(0)


def test_a_full_disk_refuses_to_grow_and_changes_nothing(tmp_path):
    files = FullFiles()
    ledger = handed_out(Ledger(files, str(tmp_path / "ledger")), 3)
    ledger.note_finished(1)
    files.room = 0
    before = state(ledger)
    with pytest.raises(DiskFull):
        ledger.note_finished(RING_BITS_MIN)
    with pytest.raises(DiskFull):
        ledger.note_range(5, RING_BITS_MIN + 1)
    assert state(ledger) == before
    ledger.note_finished(RING_BITS_MIN - 1)
    files.room = None
    ledger.note_finished(RING_BITS_MIN)
    assert state(ledger) == (0, 3, 3, 2)


def test_a_larger_ring_gets_the_name_when_it_is_on_stable_storage(tmp_path):
    class Disk(Files):
        failing = True

        def __init__(self):
            self.done = []

        def sync(self, mapping, start_bytes, length_bytes):
            if self.failing:
                raise StorageError("sync", mapping.path, 5, "Input/output error")
            assert (start_bytes, length_bytes) == (0, mapping.size_bytes)
            self.done.append("sync")

        def rename(self, source, target):
            self.done.append(os.path.basename(source))
            super().rename(source, target)

    files = Disk()
    ledger = handed_out(Ledger(files, str(tmp_path / "ledger")), 2)
    ledger.note_finished(1)
    files.done.clear()
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(StorageError):
        ledger.note_finished(RING_BITS_MIN)
    assert os.listdir(tmp_path) == ["ledger"]
    assert (tmp_path / "ledger").read_bytes() == before
    assert (ledger.capacity_bits, state(ledger)) == (RING_BITS_MIN, (0, 2, 1, 0))
    files.done.clear()
    files.failing = False
    ledger.note_finished(RING_BITS_MIN)
    assert files.done == ["ledger.growing.making", "sync", "ledger.growing"]
    assert state(ledger) == (0, 2, 2, 1)


@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("target", [4, 20])
def test_a_kill_while_starting_over_is_completed_at_the_next_start(tmp_path, stored, target):
    path = str(tmp_path / "ledger")
    ledger = handed_out(Ledger(Files(), path), 10)
    ledger.note_range(2, 6)
    store(path, RESET_TO, target + 1)
    if stored in (1, 3, 4):
        store(path, FLOOR, target)
    if stored in (2, 3, 4):
        store(path, CURSOR, target)
    if stored == 4:
        store(path, HEADER_BYTES, 0b110000)
    again = Ledger(Files(), path)
    assert state(again) == (target, target, 0, 0)


def test_a_kill_while_growing_leaves_the_former_ring(tmp_path):
    path = tmp_path / "ledger"
    ledger = handed_out(Ledger(Files(), str(path)), 10)
    ledger.note_finished(4)
    for leftover in ("ledger.growing", "ledger.growing.making"):
        (tmp_path / leftover).write_bytes(b"half")
    again = Ledger(Files(), str(path))
    assert state(again) == (0, 10, 1, 0)
    again.note_finished(RING_BITS_MIN)
    assert state(Ledger(Files(), str(path))) == (0, 10, 2, 1)


@pytest.mark.parametrize(
    ("offset", "word", "detail"),
    [
        (0, 7, "not a pyqd ledger"),
        (16, 0, "contradicts"),
        (16, 3 << 15, "contradicts"),
        (16, 1 << 40, "contradicts"),
        (FLOOR, 100, "contradicts"),
    ],
)
def test_a_ledger_with_a_damaged_header_is_set_aside_and_re_created(tmp_path, caplog, offset, word, detail):
    path = str(tmp_path / "ledger")
    handed_out(Ledger(Files(), path), 3)
    store(path, offset, word)
    ledger = Ledger(Files(), path)
    assert ledger.rebuilt
    assert not ledger.started
    assert detail in caplog.text
    assert (tmp_path / "ledger.bad").exists()


def test_a_ledger_of_a_later_version_is_set_aside_with_the_reason(tmp_path):
    path = str(tmp_path / "ledger")
    handed_out(Ledger(Files(), path), 3)
    store(path, 8, 9)
    ledger = Ledger(Files(), path)
    assert ledger.rebuilt
    assert "format version 9" in (ledger.damage or "")
    assert (tmp_path / "ledger.bad").exists()


def test_a_sync_covers_the_whole_ring(tmp_path):
    ledger = Ledger(Files(), str(tmp_path / "ledger"))
    mapping, size_bytes = ledger.sync_target()
    assert mapping.size_bytes == size_bytes == HEADER_BYTES + RING_BITS_MIN // 8
    Files().sync(mapping, 0, size_bytes)


def clearing_late(tmp_path, count):
    ledger = Ledger(Files(), f"{tmp_path}/ledger")
    ledger.clears_late = True
    return handed_out(ledger, count)


def bits(tmp_path):
    return int.from_bytes((tmp_path / "ledger").read_bytes()[HEADER_BYTES : HEADER_BYTES + 8], "little")


def test_bits_behind_the_floor_are_cleared_when_a_sync_has_covered_the_floor(tmp_path):
    ledger = clearing_late(tmp_path, 6)
    ledger.note_finished(1)
    ledger.note_finished(2)
    ledger.note_finished(0)
    assert state(ledger) == (3, 6, 0, 0)
    assert (bits(tmp_path), ledger.bits_from) == (0b110, 1)
    ledger.note_floor_synced(2, 0)
    assert (bits(tmp_path), ledger.bits_from) == (0b100, 2)
    ledger.note_finished(4)
    ledger.note_finished(3)
    assert state(ledger) == (5, 6, 0, 0)
    assert (bits(tmp_path), ledger.bits_from) == (0b10100, 2)
    ledger.note_floor_synced(5, 0)
    assert (bits(tmp_path), ledger.bits_from) == (0, 5)
    assert state(ledger) == (5, 6, 0, 0)


def test_a_start_clears_the_bits_that_no_sync_had_let_be_cleared(tmp_path):
    ledger = clearing_late(tmp_path, 4)
    for ordinal in (1, 2, 0, 3):
        ledger.note_finished(ordinal)
    assert ledger.floor == 4
    again = Ledger(Files(), f"{tmp_path}/ledger")
    assert state(again) == (4, 4, 0, 0)
    assert bits(tmp_path) == 0


def test_an_older_header_loses_no_record_to_bits_that_are_cleared_late(tmp_path):
    ledger = clearing_late(tmp_path, 4)
    ledger.note_finished(1)
    ledger.note_finished(2)
    header = (tmp_path / "ledger").read_bytes()[:HEADER_BYTES]
    ledger.note_finished(0)
    ring = (tmp_path / "ledger").read_bytes()[HEADER_BYTES:]
    (tmp_path / "torn").write_bytes(header + ring)
    torn = Ledger(Files(), f"{tmp_path}/torn")
    assert list(torn.unfinished(4)) == [0, 3]


def test_no_bit_shares_its_place_with_one_that_is_not_cleared(tmp_path):
    ledger = clearing_late(tmp_path, RING_BITS_MIN + 4)
    ledger.note_finished(1)
    ledger.note_finished(0)
    assert (ledger.floor, ledger.bits_from, ledger.capacity_bits) == (2, 1, RING_BITS_MIN)
    ledger.note_finished(RING_BITS_MIN)
    assert ledger.bits_from == 1
    # The place of 1, which a new file of the same size has free.
    ledger.note_finished(RING_BITS_MIN + 1)
    assert (ledger.bits_from, ledger.capacity_bits) == (2, RING_BITS_MIN)
    assert state(ledger) == (2, RING_BITS_MIN + 4, 2, 0)
    assert ledger.has_finished(RING_BITS_MIN)
    assert not ledger.has_finished(RING_BITS_MIN + 2)


def test_a_floor_a_whole_ring_past_the_uncleared_bits_advances(tmp_path):
    count = RING_BITS_MIN + 10
    ledger = clearing_late(tmp_path, count)
    ledger.note_finished(1)
    for ordinal in (0, *range(2, count - 3)):
        ledger.note_finished(ordinal)
    assert state(ledger) == (count - 3, count, 0, 0)
    assert list(ledger.unfinished(count)) == [count - 3, count - 2, count - 1]
    ledger.note_finished(count - 1)
    assert ledger.bits_from == ledger.floor == count - 3
    ledger.note_finished(count - 3)
    ledger.note_finished(count - 2)
    assert ledger.floor == count
    ledger.check()


def test_a_reset_uses_another_file_if_bits_are_cleared_late(tmp_path):
    ledger = clearing_late(tmp_path, 6)
    ledger.note_finished(3)
    before = os.open(tmp_path / "ledger", os.O_RDONLY)
    ledger.start_at(5)
    assert state(ledger) == (5, 5, 0, 0)
    old = os.pread(before, 1 << 20, 0)
    os.close(before)
    (tmp_path / "old").write_bytes(old)
    assert list(Ledger(Files(), f"{tmp_path}/old").unfinished(6)) == [0, 1, 2, 4, 5]
    assert state(Ledger(Files(), f"{tmp_path}/ledger")) == (5, 5, 0, 0)


def test_a_reset_on_a_full_disk_is_made_in_place(tmp_path):
    files = FullFiles()
    ledger = Ledger(files, f"{tmp_path}/ledger")
    ledger.clears_late = True
    handed_out(ledger, 6).note_finished(3)
    files.room = 0
    ledger.start_at(5)
    assert state(ledger) == (5, 5, 0, 0)


def growing(tmp_path):
    """Return a ledger with some records finished, and the mapping of its growth to twice the ring."""
    ledger = handed_out(Ledger(Files(), str(tmp_path / "ledger")), 10)
    ledger.note_range(3, 6)
    return ledger, ledger.begin_growth(RING_BITS_MIN)


def test_a_ledger_that_grows_beside_its_user_has_the_former_file_until_the_new_one_is_synced(tmp_path):
    ledger, mapping = growing(tmp_path)
    assert (ledger.capacity_bits, state(ledger)) == (RING_BITS_MIN, (0, 10, 3, 0))
    assert sorted(os.listdir(tmp_path)) == ["ledger", "ledger.growing"]
    ledger.end_growth(mapping)
    assert os.listdir(tmp_path) == ["ledger"]
    assert (ledger.capacity_bits, state(ledger)) == (2 * RING_BITS_MIN, (0, 10, 3, 0))
    ledger.note_finished(RING_BITS_MIN)
    assert state(Ledger(Files(), str(tmp_path / "ledger"))) == (0, 10, 4, 1)


@pytest.mark.parametrize("clears_late", [False, True])
@pytest.mark.parametrize("change", ["finished", "handed out", "settings", "floor"])
def test_a_ledger_that_has_changed_while_it_grows_has_the_changes_in_the_new_file(tmp_path, change, clears_late):
    ledger, mapping = growing(tmp_path)
    ledger.clears_late = clears_late
    if change == "finished":
        ledger.note_finished(8)
    elif change == "handed out":
        ledger.note_handed_out()
    elif change == "settings":
        ledger.settings = b"other"
    else:
        ledger.note_range(0, 3)
    expected = state(ledger)
    ledger.end_growth(mapping)
    assert (ledger.capacity_bits, state(ledger)) == (2 * RING_BITS_MIN, expected)
    ledger.check()
    again = Ledger(Files(), str(tmp_path / "ledger"))
    assert (again.capacity_bits, state(again)) == (2 * RING_BITS_MIN, expected)
    assert again.settings == (b"other" if change == "settings" else b"")
    again.check()


def test_a_sync_of_a_ledger_that_grows_covers_both_files(tmp_path):
    ledger, mapping = growing(tmp_path)
    ledger.note_finished(8)
    assert mapping.view()[HEADER_BYTES + 1] == 0
    former, bytes_in_use = ledger.sync_target()
    assert ledger.sync_targets() == [(former, bytes_in_use), (mapping, mapping.size_bytes)]
    assert mapping.view()[HEADER_BYTES + 1] == 1
    ledger.end_growth(mapping)
    assert ledger.sync_targets() == [(mapping, mapping.size_bytes)]


def test_bits_that_a_growing_file_got_before_the_floor_passed_them_stay_until_a_sync_has_the_floor(tmp_path):
    ledger, mapping = growing(tmp_path)
    ledger.clears_late = True
    ledger.note_range(0, 3)
    ledger.end_growth(mapping)
    assert (ledger.floor, ledger.bits_from) == (6, 0)
    assert mapping.view()[HEADER_BYTES] == 0b00111000
    # Their places are those of records of the next lap, which therefore have to wait, or grow the ring.
    assert not ledger.has_finished(2 * RING_BITS_MIN + 4)
    ledger.note_floor_synced(6, 0)
    assert mapping.view()[HEADER_BYTES] == 0
    assert (ledger.bits_from, state(ledger)) == (6, (6, 10, 0, 0))
    ledger.check()


def test_a_sync_speaks_for_no_bits_of_the_next_lap_of_a_file_that_grows(tmp_path):
    ledger, _ = growing(tmp_path)
    ledger.note_range(0, 3)
    ledger.sync_targets()
    assert (ledger.floor, ledger.bits_from) == (6, 0)


def test_a_growth_is_given_up_whose_ring_the_window_has_left(tmp_path):
    ledger, mapping = growing(tmp_path)
    handed_out(ledger, 2 * RING_BITS_MIN)
    ledger.note_range(0, RING_BITS_MIN)
    ledger.note_finished(RING_BITS_MIN)
    assert ledger.sync_targets() == [ledger.sync_target()]
    assert os.listdir(tmp_path) == ["ledger"]
    ledger.end_growth(mapping)
    assert ledger.capacity_bits == RING_BITS_MIN


def test_a_growth_is_given_up_by_a_reset(tmp_path):
    ledger, mapping = growing(tmp_path)
    ledger.start_at(7)
    ledger.end_growth(mapping)
    assert (ledger.capacity_bits, state(ledger), os.listdir(tmp_path)) == (RING_BITS_MIN, (7, 7, 0, 0), ["ledger"])


def test_a_ledger_that_must_grow_while_it_grows_beside_its_user_does_so_at_once(tmp_path):
    ledger, mapping = growing(tmp_path)
    ledger.note_finished(3 * RING_BITS_MIN)
    assert ledger.capacity_bits == 4 * RING_BITS_MIN
    ledger.end_growth(mapping)
    assert (ledger.capacity_bits, state(ledger)) == (4 * RING_BITS_MIN, (0, 10, 4, 1))
    assert os.listdir(tmp_path) == ["ledger"]


def test_a_cancelled_growth_leaves_the_former_file_alone(tmp_path):
    ledger, mapping = growing(tmp_path)
    ledger.cancel_growth()
    assert os.listdir(tmp_path) == ["ledger"]
    ledger.end_growth(mapping)
    assert (ledger.capacity_bits, state(ledger)) == (RING_BITS_MIN, (0, 10, 3, 0))


def test_a_growth_whose_file_is_gone_is_cancelled_with_an_error(tmp_path):
    ledger, mapping = growing(tmp_path)
    (tmp_path / "ledger.growing").unlink()
    with pytest.raises(StorageError):
        ledger.end_growth(mapping)
    assert (ledger.capacity_bits, state(ledger)) == (RING_BITS_MIN, (0, 10, 3, 0))
    ledger.note_finished(RING_BITS_MIN)
    assert (ledger.capacity_bits, state(ledger)) == (2 * RING_BITS_MIN, (0, 10, 4, 1))


def test_bits_that_are_believed_after_a_power_failure_are_believed_after_a_kill_too(tmp_path):
    path = str(tmp_path / "ledger")
    handed_out(Ledger(Files(), path), 5).seal()
    # The kernel has written the page of the bits and not that of the header.
    store(path, HEADER_BYTES, 1 << 2)
    assert Ledger(Files(), path, power_failed=True).has_finished(2)
    again = Ledger(Files(), path)
    assert not again.rebuilt
    assert state(again) == (0, 5, 1, 0)


SMALL = 64


@pytest.fixture
def small():
    """Let new ledgers have a window of 64 bits, which gets up to 21 exceptions instead of growing."""
    former = set_limits_for_tests(SMALL, SMALL, 3)
    yield
    set_limits_for_tests(*former)


def finished_but(ledger, kept):
    """Finish all that was handed out but some; return the ledger."""
    for ordinal in list(ledger.unfinished(ledger.cursor)):
        if ordinal not in kept:
            ledger.note_finished(ordinal)
    return ledger


def with_exceptions(tmp_path, kept=(0, 7, 30), count=100, clears_late=False):
    """Return a ledger that has finished all records but those of `kept`, of which some are below its window."""
    ledger = Ledger(Files(), f"{tmp_path}/ledger")
    ledger.clears_late = clears_late
    return finished_but(handed_out(ledger, count), kept)


def exceptions_in(tmp_path):
    content = (tmp_path / "ledger").read_bytes()[HEADER_BYTES + SMALL // 8 :]
    return list(struct.unpack(f"<{len(content) // 8}Q", content))


@pytest.mark.parametrize("clears_late", [False, True])
def test_an_old_record_is_an_exception_below_a_window_that_stays_small(tmp_path, small, clears_late):
    ledger = with_exceptions(tmp_path, count=5000, clears_late=clears_late)
    assert state(ledger) == (5000, 5000, 0, 0)
    assert (ledger.oldest, ledger.exceptions_count, ledger.capacity_bits) == (0, 3, SMALL)
    assert list(ledger.unfinished(5002)) == [0, 7, 30, 5000, 5001]
    assert [ledger.has_finished(ordinal) for ordinal in (0, 1, 7, 30, 31, 4999)] == [
        False,
        True,
        False,
        False,
        True,
        True,
    ]
    assert os.path.getsize(tmp_path / "ledger") == HEADER_BYTES + SMALL // 8 + 3 * 8
    again = Ledger(Files(), f"{tmp_path}/ledger")
    assert (state(again), list(again.unfinished(5002))) == (state(ledger), [0, 7, 30, 5000, 5001])


def test_a_fin_of_an_exception_is_one_store_that_a_kill_keeps(tmp_path, small):
    ledger = with_exceptions(tmp_path)
    assert exceptions_in(tmp_path) == [0, 7, 30]
    ledger.note_finished(7)
    assert (ledger.oldest, ledger.exceptions_count) == (0, 2)
    ledger.note_finished(0)
    assert (ledger.oldest, ledger.exceptions_count) == (30, 1)
    assert exceptions_in(tmp_path) == [1 << 63, 7 | 1 << 63, 30]
    with pytest.raises(AssertionError, match="finished twice"):
        ledger.note_finished(7)
    again = Ledger(Files(), f"{tmp_path}/ledger")
    assert (state(again), list(again.unfinished(100))) == (state(ledger), [30])
    again.note_range(0, 90)
    assert (state(again), again.oldest, again.exceptions_count) == ((100, 100, 0, 0), 100, 0)


def test_a_window_with_many_unfinished_records_grows(tmp_path, small):
    # Up to 21 take less space than the window, at 3 bits each: 16 of the first half do, 32 do not.
    ledger = with_exceptions(tmp_path, range(0, 100, 2))
    assert (ledger.exceptions_count, ledger.capacity_bits) == (16, 128)
    finished_but(ledger, (0, 50))
    finished_but(handed_out(ledger, 100), (0, 50, 120))
    assert (ledger.oldest, ledger.exceptions_count, ledger.capacity_bits) == (0, 2, 128)
    assert list(ledger.unfinished(200)) == [0, 50, 120]


def test_a_window_keeps_the_exceptions_when_it_grows(tmp_path, small):
    ledger = with_exceptions(tmp_path)
    ledger.note_finished(7)
    finished_but(handed_out(ledger, 100), (0, 30, *range(100, 200, 2)))
    assert (ledger.capacity_bits, ledger.exceptions_count) == (128, 2 + 16)
    assert list(ledger.unfinished(200)) == [0, 30, *range(100, 200, 2)]


def test_records_at_or_past_the_cursor_are_no_exceptions(tmp_path, small):
    ledger = handed_out(Ledger(Files(), f"{tmp_path}/ledger"), 10)
    ledger.note_finished(300)
    assert (ledger.floor, ledger.exceptions_count, ledger.capacity_bits) == (0, 0, 512)


@pytest.mark.parametrize("clears_late", [False, True])
@pytest.mark.parametrize("finished", [(0,), (30,), (0, 7, 30), (60,), (40, 60, 99), range(100)])
def test_records_that_are_finished_while_exceptions_are_synced_are_finished_in_the_new_file(
    tmp_path, small, clears_late, finished
):
    kept = (0, 7, 30, 40, 60, 99)
    ledger = with_exceptions(tmp_path, kept, clears_late=clears_late)
    assert list(ledger.unfinished(ledger.floor)) == [0, 7, 30]
    handed_out(ledger, 30)
    mapping = ledger.begin_growth(ledger.floor + SMALL)
    for ordinal in finished:
        if ordinal in kept:
            ledger.note_finished(ordinal)
    ledger.sync_targets()
    expected = list(ledger.unfinished(140))
    assert expected == sorted({*kept, *range(100, 140)} - set(finished))
    ledger.end_growth(mapping)
    ledger.check()
    assert list(ledger.unfinished(140)) == expected
    assert list(Ledger(Files(), f"{tmp_path}/ledger").unfinished(140)) == expected


def test_a_reset_drops_the_exceptions(tmp_path, small):
    ledger = with_exceptions(tmp_path)
    ledger.start_at(5)
    assert (state(ledger), ledger.oldest, ledger.exceptions_count) == ((5, 5, 0, 0), 5, 0)
    assert state(Ledger(Files(), f"{tmp_path}/ledger")) == (5, 5, 0, 0)
    ledger.check()


def test_exceptions_of_records_that_the_log_has_no_more_are_dropped_and_their_ordinals_are_given_again(tmp_path, small):
    ledger = with_exceptions(tmp_path)
    ledger.seal()
    ledger.clamp(5, 20)
    assert (state(ledger), ledger.oldest, list(ledger.unfinished(20))) == ((20, 20, 0, 0), 7, [7])
    handed_out(ledger, 100)
    assert list(ledger.unfinished(40)) == [7, *range(20, 40)]
    finished_but(ledger, (7, 30))
    assert (ledger.exceptions_count, list(ledger.unfinished(120))) == (2, [7, 30])


def test_an_exception_that_a_power_failure_left_at_or_past_the_floor_is_dropped(tmp_path, small):
    ledger = with_exceptions(tmp_path)
    assert ledger.floor > 30
    # The kernel has written the header of `clamp` and not the exceptions.
    store(f"{tmp_path}/ledger", FLOOR, 10, 10)
    again = Ledger(Files(), f"{tmp_path}/ledger", power_failed=True)
    assert (again.floor, list(again.unfinished(10))) == (10, [0, 7])
    again.check()


@pytest.mark.parametrize("sealed", [False, True])
def test_damaged_exceptions_are_noticed(tmp_path, small, sealed):
    ledger = with_exceptions(tmp_path)
    at = HEADER_BYTES + SMALL // 8
    if sealed:
        ledger.seal()
        store(f"{tmp_path}/ledger", at, 1)
    else:
        store(f"{tmp_path}/ledger", at, 9)
    again = Ledger(Files(), f"{tmp_path}/ledger")
    assert again.rebuilt
    assert ("checksum" if sealed else "out of order") in (again.damage or "")


def test_a_number_of_exceptions_that_the_file_does_not_hold_is_damage(tmp_path, small):
    with_exceptions(tmp_path)
    store(f"{tmp_path}/ledger", 424, 4 << 32)
    assert "contradicts" in (Ledger(Files(), f"{tmp_path}/ledger").damage or "")


def test_a_flag_that_is_newer_than_the_seal_after_a_power_failure_is_believed(tmp_path, small):
    with_exceptions(tmp_path).seal()
    store(f"{tmp_path}/ledger", HEADER_BYTES + SMALL // 8 + 8, 7 | 1 << 63)
    for power_failed in (True, False):
        again = Ledger(Files(), f"{tmp_path}/ledger", power_failed=power_failed)
        assert (again.rebuilt, list(again.unfinished(100))) == (False, [0, 30])


def test_a_ledger_grows_up_to_a_million_bits_before_it_gets_exceptions(tmp_path):
    bits = 1 << 20
    ledger = handed_out(Ledger(Files(), str(tmp_path / "ledger")), 2 * bits)
    ledger.note_range(1, bits)
    assert (ledger.oldest, ledger.exceptions_count, ledger.capacity_bits) == (0, 0, bits)
    ledger.note_range(bits, 2 * bits - 1)
    assert (ledger.oldest, ledger.exceptions_count, ledger.capacity_bits) == (0, 1, bits)
    assert list(ledger.unfinished(2 * bits)) == [0, 2 * bits - 1]
    assert os.path.getsize(tmp_path / "ledger") == HEADER_BYTES + bits // 8 + 8


def test_a_sync_trusts_the_end_of_a_window_that_has_moved_since_it_began_to_grow(tmp_path):
    ledger, _ = growing(tmp_path)
    ledger.note_range(0, 3)
    ledger.clamp(6, RING_BITS_MIN + 6)
    assert (ledger.bits_from, ledger.window_from) == (0, 6)
    ledger.note_finished(RING_BITS_MIN + 5)
    mapping = ledger.sync_target()[0]
    ledger.trust_bits(mapping, ledger.window_from, ledger.reset_count)
    again = Ledger(Files(), str(tmp_path / "ledger"))
    again.drop_doubtful_bits()
    assert again.has_finished(RING_BITS_MIN + 5)
