"""Tests of pyqd.fallback.records."""

import pytest

from pyqd.fallback import records
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from tests.support.storage import FullFiles, body_of, record_bytes

SIZES = (1, 7, 8, 9, 100, 1000, 1)


@pytest.fixture
def log():
    log = Log(FullFiles(), None, 1 << 16, 3)
    for number, size in enumerate(SIZES):
        log.append_message(0xABC0 + number, body_of(number, size), 1000 + number, 2000 if number == 2 else 0)
    return log


@pytest.fixture
def data(log):
    data, count, behind = LogReader(log).read_raw(0, log.end, 1 << 20)
    assert (count, behind) == (len(SIZES), len(SIZES))
    return data


def test_records_are_decoded_with_all_their_fields(data):
    assert list(records.decode(data)) == [
        records.Record(
            (3 << 48) + number, b"%016x" % (0xABC0 + number), 1000 + number, 2000 if number == 2 else 0,
            body_of(number, size),
        )
        for number, size in enumerate(SIZES)
    ]  # fmt: skip


def test_nothing_is_decoded_from_nothing():
    assert list(records.decode(b"")) == []


def test_data_that_end_within_a_record_are_refused_behind_the_whole_ones(data):
    whole = list(records.decode(data))
    starts = {0}
    for record in whole:
        starts.add(max(starts) + (records.HEADER_BYTES + len(record.body) + 7) // 8 * 8)
    for cut in range(len(data)):
        found = []
        if cut in starts:
            found = list(records.decode(data[:cut]))
        else:
            with pytest.raises(ValueError, match="end within"):
                found.extend(records.decode(data[:cut]))
        assert found == whole[: len(found)]


def test_every_changed_byte_but_padding_is_noticed(data):
    for at in range(records.HEADER_BYTES + 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match=r"checksum|end within"):
            list(records.decode(bytes(damaged)))
    first = next(records.decode(data[:48] + b"?" + data[49:], verify=False))
    assert first.body == b"?"


def test_the_placeholder_of_a_lost_record_is_skipped():
    assert [row.body for row in records.decode(record_bytes(0, b"lost", flags=1) + record_bytes(1, b"x"))] == [b"x"]


@pytest.mark.parametrize("verify", [True, False])
def test_properties_and_unknown_flags_are_skipped(verify):
    data = record_bytes(0, b"body", flags=0xFE, properties=b"property" * 3, key_hash=1) + record_bytes(1, b"x")
    assert [row.body for row in records.decode(data, verify=verify)] == [b"body", b"x"]


def test_flags_that_a_reader_must_know_are_refused():
    with pytest.raises(ValueError, match="later format: 0x100"):
        list(records.decode(record_bytes(0, b"x", flags=0x100)))
