"""Tests of pyqd.diskqueue.offline_reader against the log and the ledger themselves."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.diskqueue.file_headers import parse_segment_header, record_span
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.offline_reader import LogExtent, OfflineLedger, OfflineLog
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.errors import CorruptionError
from tests.support.examples import examples
from tests.support.nsqd_data import snapshot
from tests.support.storage import SEGMENT_BYTES_MIN, body_of

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["hand out", "finish", "finish a range"]), st.integers(0, 300), st.integers(0, 50)),
    max_size=80,
)


def ledger_offset(field):
    """Return the offset of a number in the ledger's header. Source: docs/storage.md, "Ledger"."""
    return {"floor": 24, "cursor": 32, "absorb_from": 96, "absorb_to": 104, "reset_to": 112}[field]


def play(ledger, operations, end):
    """Do to a ledger the operations of a channel."""
    for name, ordinal, count in operations:
        if name == "hand out" and ledger.cursor < end:
            ledger.note_handed_out()
        elif name == "finish" and ledger.floor <= ordinal < end and not ledger.has_finished(ordinal):
            ledger.note_finished(ordinal)
        elif name == "finish a range":
            ledger.note_range(min(ordinal, end), min(ordinal + count, end))


@settings(max_examples=examples(80))
@given(OPERATIONS, st.integers(0, 40_000), st.integers(0, 300), st.integers(-20, 20), st.integers(0, 100))
def test_a_ledger_is_read_as_a_start_reads_it(operations, start, length, shift, cut):
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "ledger")
        ledger = Ledger(Files(), path)
        ledger.start_at(start)
        end = start + length
        play(ledger, [(name, start + ordinal, count) for name, ordinal, count in operations], end)
        ledger.check()

        # The log as a start may find it: trimmed further, and shorter or longer than the ledger knows.
        first = max(0, start + shift)
        bounds = LogExtent(first, max(first, end - cut), [])
        before = snapshot(Path(directory))
        stored = OfflineLedger(Files(), path, bounds)
        assert snapshot(Path(directory)) == before
        again = Ledger(Files(), path)
        again.clamp(bounds.first, bounds.end)
        assert list(stored.unfinished(bounds.end)) == list(again.unfinished(bounds.end))
        assert stored.unfinished_count(bounds.end) == len(list(again.unfinished(bounds.end)))
        assert stored.cursor == again.cursor


@pytest.mark.parametrize("floor", [0, 500, 32_700])
def test_the_offline_reader_completes_a_ledger_operation_that_a_kill_interrupted(tmp_path, floor):
    bounds = LogExtent(0, floor + 32_768, [])
    path = tmp_path / "ledger"
    for change in ({"absorb_from": floor, "absorb_to": floor + 40}, {"reset_to": floor + 71}):
        ledger = Ledger(Files(), str(path))
        ledger.start_at(floor)
        for _ in range(100):
            ledger.note_handed_out()
        ledger.note_range(floor + 1, floor + 40)
        ledger.note_range(floor + 60, floor + 65)
        content = bytearray(path.read_bytes())
        for field, value in change.items():
            content[ledger_offset(field) : ledger_offset(field) + 8] = value.to_bytes(8, "little")
        path.write_bytes(content)
        stored = OfflineLedger(Files(), str(path), bounds)
        again = Ledger(Files(), str(path))
        again.clamp(bounds.first, bounds.end)
        assert list(stored.unfinished(bounds.end)) == list(again.unfinished(bounds.end))
        assert stored.cursor == again.cursor
        path.unlink()


@settings(max_examples=examples(25))
@given(st.lists(st.integers(1, 9000), max_size=60), st.integers(0, 60), st.integers(0, 3))
def test_a_log_is_read_as_a_start_reads_it(sizes, floor, epoch):
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "log")
        log = Log(Files(), path, SEGMENT_BYTES_MIN, epoch)
        for number, size in enumerate(sizes):
            log.append_message(number + 1, body_of(number, size), number, 0, number % 7)
        log.trim_below(min(floor, log.end))
        before = snapshot(Path(directory))
        stored = OfflineLog(Files(), path)
        assert snapshot(Path(directory)) == before
        assert (stored.first, stored.end) == (log.first.first_ordinal, log.end)
        assert [record[:6] for record in stored.records()] == list(log.records())
        assert [record[:6] for record in stored.records(floor)] == list(log.records(floor)) or floor > log.end
        assert stored.verify() == stored.problems == []
        assert stored.count == log.end - stored.first


@given(st.integers(0, 10**7))
def test_the_span_of_a_record_is_that_of_the_log(body_bytes):
    assert record_span(body_bytes) == span_bytes(body_bytes)


def test_a_log_cut_anywhere_or_with_any_bit_flipped_never_reads_as_another(tmp_path):
    path = tmp_path / "log"
    log = Log(Files(), str(path), SEGMENT_BYTES_MIN)
    for number in range(4):
        log.append_message(number + 1, b"body %d" % number, number)
    whole = [tuple(record) for record in log.records()]
    [segment] = path.iterdir()
    content = segment.read_bytes()
    for offset in range(128 + 4 * record_span(6) + 16):
        flipped = bytearray(content)
        flipped[offset] ^= 0x10
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "1.seg").write_bytes(flipped)
        try:
            found = [record[:6] for record in OfflineLog(Files(), str(copy)).records()]
        except CorruptionError:
            found = []
        assert found == whole[: len(found)]
        shutil.rmtree(copy)


def test_a_segment_of_another_kind_is_refused(tmp_path):
    for content in (b"", b"x" * 200, b"PYQDSEG\0" + b"\xff" * 200):
        with pytest.raises(CorruptionError):
            parse_segment_header(content, "f")
    assert parse_segment_header(bytes(200), "f") is None
