"""Tests of pyqd.hot.wire.record."""

import struct

import pytest

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives import crc32c
from pyqd.hot.wire.record import span_bytes


@pytest.mark.parametrize(
    ("body_bytes", "span"), [(1, 56), (7, 56), (8, 56), (9, 64), (16, 64), (1 << 20, (1 << 20) + 48)]
)
def test_a_record_takes_its_header_and_its_body_rounded_up_to_eight(body_bytes, span):
    assert span_bytes(body_bytes) == span


@pytest.mark.parametrize("body", [b"x", b"seven b", b"eight by", b"nine byte", bytes(range(256))])
def test_a_record_lies_in_the_segment_as_the_format_says(body):
    log = Log(Files(), None, 1 << 16, 3)
    log.append_message(0x1122334455667788, b"first", 1, 2, 3)
    log.append_message(0xABCDEF, body, 123_456_789, 987_654_321, 65535)
    at = 128 + span_bytes(5)
    raw = bytes(log.active.mapping.view())
    size, checksum, seq, guid, timestamp, due, attempts, *rest = struct.unpack_from("<IIQQqqHHHH", raw, at)
    assert (size, seq, guid) == (len(body), 3 << 48 | 1, 0xABCDEF)
    assert (timestamp, due, attempts, rest) == (123_456_789, 987_654_321, 65535, [0, 0, 0])
    assert raw[at + 48 : at + 48 + len(body)] == body
    assert not any(raw[at + 48 + len(body) : at + span_bytes(len(body))])
    assert checksum == crc32c.value(raw[at + 8 : at + 48 + len(body)], size)
