"""Tests of pyqd.hot.wire.columns and of pyqd.fallback.columns: one set for both."""

import struct

import pytest

from pyqd.fallback import columns as columns_in_python
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from pyqd.hot.primitives import crc32c
from pyqd.hot.wire import columns
from tests.support.storage import FullFiles, body_of, record_bytes

SIZES = (1, 7, 8, 9, 100, 1000, 1, 3, 5, 2)
EPOCH = 3 << 48


@pytest.fixture(params=[columns.decode, columns_in_python.decode], ids=["compiled", "plain"])
def decode(request):
    return request.param


@pytest.fixture
def data():
    log = Log(FullFiles(), None, 1 << 16, 3)
    for number, size in enumerate(SIZES):
        log.append_message(0xABC0 + number, body_of(number, size), 1_234_567 + number, 2_000_999 if number == 2 else 0)
    found, count, _ = LogReader(log).read_raw(0, log.end, 1 << 20)
    assert count == len(SIZES)
    return found


def starts_of(data):
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + (48 + int.from_bytes(data[starts[-1] : starts[-1] + 4], "little") + 7) // 8 * 8)
    return starts


def changed(data, at, what, checked=True):
    """Change a header, and its checksum with it."""
    start = max(start for start in starts_of(data)[:-1] if start <= at)
    size = int.from_bytes(data[start : start + 4], "little")
    found = bytearray(data)
    found[at : at + len(what)] = what
    if checked:
        found[start + 4 : start + 8] = crc32c.value(bytes(found[start + 8 : start + 48 + size]), size).to_bytes(
            4, "little"
        )
    return bytes(found)


def unpack(kind, buffer):
    return list(struct.unpack(f"<{len(buffer) // struct.calcsize(kind)}{kind}", buffer))


def positions_in(found):
    return [position - EPOCH for position in unpack("q", found.positions)]


def test_each_field_has_its_column(decode, data):
    found = decode(data, EPOCH)
    rows = len(SIZES)
    assert (found.rows, found.lost, found.damaged, found.following) == (rows, 0, 0, EPOCH + rows)
    offsets = unpack("i", found.body_offsets)
    assert offsets == [sum(SIZES[:row]) for row in range(rows + 1)]
    assert found.bodies == b"".join(body_of(number, size) for number, size in enumerate(SIZES))
    assert unpack("i", found.id_offsets) == [16 * row for row in range(rows + 1)]
    assert found.ids == b"".join(b"%016x" % (0xABC0 + row) for row in range(rows))
    assert unpack("q", found.positions) == [EPOCH + row for row in range(rows)]
    assert unpack("q", found.timestamps_ns) == [1_234_567 + row for row in range(rows)]
    assert unpack("q", found.timestamps_us) == [1234] * rows
    assert unpack("q", found.dues_us) == [2000 if row == 2 else 0 for row in range(rows)]
    assert (found.due_bits, found.due_count) == (b"\x04\x00", 1)


def test_bodies_can_be_left_out(decode, data):
    found = decode(data, EPOCH, with_bodies=False)
    assert (found.rows, found.body_offsets, found.bodies) == (len(SIZES), None, None)
    assert positions_in(found) == list(range(len(SIZES)))


def test_no_data_make_no_rows(decode):
    found = decode(b"", 7)
    assert (found.rows, found.lost, found.following, found.body_offsets) == (0, 0, 7, b"\0\0\0\0")


def test_data_that_end_within_a_record_are_refused(decode, data):
    for cut in set(range(len(data))) - set(starts_of(data)):
        with pytest.raises(ValueError, match="end within"):
            decode(data[:cut], EPOCH)


@pytest.mark.slow
def test_every_changed_byte_but_padding_is_noticed(decode, data):
    for at in range(49):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match=r"checksum|end within"):
            decode(bytes(damaged), EPOCH)


def test_damaged_records_can_be_skipped_and_are_counted(decode, data):
    third = starts_of(data)[2]
    found = decode(changed(data, third + 50, b"?", checked=False), EPOCH, skip_damaged=True)
    assert (found.rows, found.lost, found.damaged, found.following) == (9, 1, 1, EPOCH + 10)
    assert positions_in(found) == [0, 1, *range(3, 10)]
    assert found.due_count == 0


def test_a_damaged_position_does_not_take_others_with_it(decode, data):
    third = starts_of(data)[2]
    found = decode(changed(data, third + 15, b"\x7f", checked=False), EPOCH, skip_damaged=True)
    assert (positions_in(found), found.lost) == ([0, 1, *range(3, 10)], 1)


def test_behind_a_damaged_size_nothing_is_believed(decode, data):
    third = starts_of(data)[2]
    found = decode(changed(data, third, b"\0\0\0\0", checked=False), EPOCH, skip_damaged=True)
    assert (positions_in(found), found.lost, found.following) == ([0, 1], 0, EPOCH + 2)


def test_the_placeholder_of_a_lost_record_is_counted_as_lost(decode, data):
    found = decode(changed(data, 40, b"\x01\0"), EPOCH)
    assert (positions_in(found), found.lost, found.damaged) == (list(range(1, 10)), 1, 0)


@pytest.mark.parametrize("skip_damaged", [False, True])
@pytest.mark.parametrize("flags", [0x0100, 0x8000, 0x0201])
def test_flags_that_a_reader_must_know_are_refused(decode, data, flags, skip_damaged):
    with pytest.raises(ValueError, match=f"has flags of a later format: {flags:#x}"):
        decode(changed(data, 40, flags.to_bytes(2, "little")), EPOCH, skip_damaged=skip_damaged)


@pytest.mark.parametrize("flags", [2, 4, 8, 16, 0xFE])
def test_other_unknown_flags_are_ignored(decode, data, flags):
    assert positions_in(decode(changed(data, 40, flags.to_bytes(2, "little")), EPOCH)) == list(range(10))


def test_the_gap_of_a_rewritten_segment_is_lost_records(decode):
    first = record_bytes(EPOCH, (3).to_bytes(8, "little"), flags=3)
    found = decode(first + record_bytes(EPOCH + 3, b"body"), EPOCH)
    assert (positions_in(found), found.lost) == ([3], 3)


@pytest.mark.parametrize("words", [0, 1, 2, 100])
def test_properties_are_skipped(decode, words):
    rows = [record_bytes(EPOCH + row, b"body" * (row + 1), properties=b"property" * words) for row in range(3)]
    found = decode(b"".join(rows), EPOCH)
    assert (positions_in(found), found.bodies) == ([0, 1, 2], b"body" * 6)
    assert unpack("i", found.body_offsets) == [0, 4, 12, 24]


@pytest.mark.parametrize(("content_bytes", "words"), [(8, 1), (16, 2), (1, 1), (8, 0xFFFF)])
def test_properties_that_leave_no_body_are_damage(decode, content_bytes, words):
    data = record_bytes(EPOCH, bytes(content_bytes), properties_words=words) + record_bytes(EPOCH + 1, b"x")
    with pytest.raises(ValueError, match="record at offset 0"):
        decode(data, EPOCH)
    found = decode(data, EPOCH, skip_damaged=True)
    assert (positions_in(found), found.damaged, found.bodies) == ([1], 1, b"x")


def test_missing_ordinals_are_counted(decode, data):
    starts = starts_of(data)
    found = decode(data[: starts[3]] + data[starts[5] :], EPOCH)
    assert (positions_in(found), found.lost, found.following) == ([0, 1, 2, *range(5, 10)], 2, EPOCH + 10)
    assert decode(data[starts[4] :], EPOCH + 1).lost == 3


def test_a_later_epoch_may_continue_at_an_ordinal_that_was_used_before(decode, data):
    found = decode(data, (2 << 48) + 5)
    assert (found.rows, found.lost) == (10, 0)


def test_records_that_come_again_are_refused(decode, data):
    with pytest.raises(ValueError, match="again"):
        decode(data + data, EPOCH)
    with pytest.raises(ValueError, match="again"):
        decode(data, EPOCH + 1)


def test_columns_are_not_made_by_hand():
    with pytest.raises(TypeError):
        columns.Columns()
