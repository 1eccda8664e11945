"""Tests of pyqd.hot.wire.record."""

import struct
from pathlib import Path

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives import crc32c
from pyqd.hot.wire.record import span_bytes
from tests.support.storage import SEGMENT_HEADER_BYTES, record_bytes

HEADER = struct.Struct("<IIQQqqHHI")


@pytest.mark.parametrize(
    ("body_bytes", "span"), [(1, 56), (7, 56), (8, 56), (9, 64), (16, 64), (1 << 20, (1 << 20) + 48)]
)
def test_a_record_takes_its_header_and_its_body_rounded_up_to_eight(body_bytes, span):
    assert span_bytes(body_bytes) == span


@pytest.mark.parametrize("body", [b"x", b"seven b", b"eight by", b"nine byte", bytes(range(256))])
def test_a_record_lies_in_the_segment_as_the_format_says(body):
    log = Log(Files(), None, 1 << 16, 3)
    log.append_message(0x1122334455667788, b"first", 1, 2)
    log.append_message(0xABCDEF, body, 123_456_789, 987_654_321)
    at = 128 + span_bytes(5)
    raw = bytes(log.active.mapping.view())
    size, checksum, seq, guid, timestamp, due, flags, properties_words, key_hash = HEADER.unpack_from(raw, at)
    assert (size, seq, guid) == (len(body), 3 << 48 | 1, 0xABCDEF)
    assert (timestamp, due, flags, properties_words, key_hash) == (123_456_789, 987_654_321, 0, 0, 0)
    assert raw[at + 48 : at + 48 + len(body)] == body
    assert not any(raw[at + 48 + len(body) : at + span_bytes(len(body))])
    assert checksum == crc32c.value(raw[at + 8 : at + 48 + len(body)], size)


def log_with(directory, record):
    """Return a log whose only record is this one, as a start finds it."""
    log = Log(Files(), str(directory), 1 << 16)
    log.append_message(1, bytes(len(record) - HEADER.size))
    with Path(str(log.active.mapping.path)).open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(record)
    return Log(Files(), str(directory), 1 << 16)


@pytest.mark.parametrize("body", [b"x", b"eight by", bytes(range(256))])
@pytest.mark.parametrize("words", [0, 1, 500])
@pytest.mark.parametrize("flags", [0, 4, 28, 128])
def test_properties_before_a_body_and_a_key_hash_are_skipped(tmp_path, body, words, flags):
    record = record_bytes(0, body, guid=7, flags=flags, properties=b"property" * words, key_hash=0xFEDCBA98)
    size, *_, properties_words, key_hash = HEADER.unpack_from(record)
    assert (size, properties_words, key_hash) == (8 * words + len(body), words, 0xFEDCBA98)
    log = log_with(tmp_path, record)
    assert list(log.records()) == [(0, 7, 5, 0, body)]
    assert log.damage.found_count == 0


@pytest.mark.parametrize(("content_bytes", "words"), [(8, 1), (16, 2), (17, 3), (1, 1), (8, 0xFFFF), (1000, 0x8001)])
def test_properties_that_leave_no_body_are_damage(tmp_path, content_bytes, words):
    log = log_with(tmp_path, record_bytes(0, bytes(content_bytes), properties_words=words))
    assert (list(log.records()), log.damage.found_count) == ([], 1)


def test_each_changed_byte_of_a_record_is_damage(tmp_path):
    record = record_bytes(0, b"x", properties=b"property", key_hash=5)
    for at in range(8, HEADER.size + 9):
        changed = bytearray(record)
        changed[at] ^= 1
        log = log_with(tmp_path / str(at), bytes(changed))
        assert list(log.records()) == [], at


def test_a_lost_record_is_told_by_its_flag_alone(tmp_path):
    assert list(log_with(tmp_path, record_bytes(0, b"x", flags=1 | 64)).records()) == []
