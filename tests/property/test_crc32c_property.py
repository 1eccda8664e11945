"""CRC-32C against a model that divides bit by bit."""

from hypothesis import given
from hypothesis import strategies as st

from pyqd.hot.primitives import crc32c
from tests.support.structures import crc32c_in_software

checksums = st.integers(0, 2**32 - 1)


def divide_bitwise(data, crc=0):
    state = crc ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@given(st.binary(max_size=700), checksums)
def test_both_implementations_agree_with_the_model(data, crc):
    expected = divide_bitwise(data, crc)
    assert crc32c.value(data, crc) == expected
    assert crc32c_in_software(data, crc) == expected


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_pieces_give_the_value_of_the_whole(pieces):
    crc = 0
    for piece in pieces:
        crc = crc32c.value(piece, crc)
    assert crc == crc32c.value(b"".join(pieces))


@given(st.integers(0, 20_000), st.integers(0, 255), checksums)
def test_long_inputs_agree_too(count, byte, crc):
    data = bytes((byte + index * index) & 0xFF for index in range(64)) * (count // 64 + 1)
    assert crc32c.value(data[:count], crc) == crc32c_in_software(data[:count], crc)
