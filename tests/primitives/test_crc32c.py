"""Tests of pyqd.hot.primitives.crc32c against published values, and of its two implementations against each other."""

import random
import zlib

import pytest

from pyqd.hot.primitives import crc32c
from tests.support.structures import crc32c_in_software

# The 48 bytes of an iSCSI read command, and the other four blocks: RFC 3720, appendix B.4.
ISCSI_READ_COMMAND = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000020000000000" + "0000"
)
KNOWN_VALUES = [
    (b"", 0x00000000),
    (b"a", 0xC1D04330),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (ISCSI_READ_COMMAND, 0xD9963A56),
]
# One round takes up to 3 * 256 words of 8 bytes.
ROUND_BYTES = 3 * 256 * 8


@pytest.mark.parametrize("value", [crc32c.value, crc32c_in_software])
@pytest.mark.parametrize(("data", "expected"), KNOWN_VALUES)
def test_known_values_come_out(value, data, expected):
    assert value(data) == expected


def test_it_is_not_the_crc_of_zlib():
    assert crc32c.value(b"123456789") != zlib.crc32(b"123456789")


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_both_implementations_agree_around_whole_rounds(rounds):
    data = random.Random(rounds).randbytes(rounds * ROUND_BYTES + 100)
    for count in range(rounds * ROUND_BYTES - 100, len(data)):
        assert crc32c.value(data[:count], count) == crc32c_in_software(data[:count], count), count


def test_alignment_does_not_matter():
    data = random.Random(2).randbytes(400)
    for start in range(17):
        padded = memoryview(bytes(start) + data)[start:]
        assert crc32c.value(padded) == crc32c_in_software(data)


def test_each_single_flipped_bit_is_noticed():
    data = bytearray(random.Random(4).randbytes(248))
    expected = crc32c.value(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert crc32c.value(data) != expected
        data[bit // 8] ^= 1 << bit % 8
    assert crc32c.value(data) == expected


@pytest.mark.parametrize("data", [b"pyqd", bytearray(b"pyqd"), memoryview(b"pyqd")])
def test_any_contiguous_buffer_is_taken(data):
    assert crc32c.value(data) == crc32c_in_software(b"pyqd")


@pytest.mark.parametrize("value", [crc32c.value, crc32c_in_software])
def test_text_is_refused(value):
    with pytest.raises(TypeError):
        value("pyqd")


@pytest.mark.parametrize("value", [crc32c.value, crc32c_in_software])
def test_a_buffer_with_gaps_is_refused(value):
    with pytest.raises(BufferError):
        value(memoryview(b"pyqd pyqd")[::2])


@pytest.mark.parametrize("crc", [-1, 2**32])
def test_a_start_that_is_no_checksum_is_refused(crc):
    with pytest.raises(OverflowError):
        crc32c.value(b"pyqd", crc)


def test_the_buffer_is_released_again():
    data = bytearray(b"pyqd")
    crc32c.value(data)
    data.append(0)
    assert len(data) == 5
