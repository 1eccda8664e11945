"""CRC-32C, compiled and in Python, against a model that divides bit by bit."""

from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback import checksums
from pyqd.hot.primitives import crc32c

checksums_of_bytes = st.integers(0, 2**32 - 1)


def divide_bitwise(data, crc=0):
    state = crc ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@given(st.binary(max_size=700), checksums_of_bytes)
def test_all_implementations_agree_with_the_model(data, crc):
    expected = divide_bitwise(data, crc)
    assert crc32c.value(data, crc) == expected
    assert crc32c.value_software(data, crc) == expected
    assert checksums.value(data, crc) == expected


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_pieces_give_the_value_of_the_whole(pieces):
    crc = 0
    for piece in pieces:
        crc = crc32c.value(piece, crc)
    assert crc == crc32c.value(b"".join(pieces))


@given(st.integers(0, 20_000), st.integers(0, 255), checksums_of_bytes)
def test_long_inputs_agree_too(count, byte, crc):
    data = bytes((byte + index * index) & 0xFF for index in range(64)) * (count // 64 + 1)
    assert crc32c.value(data[:count], crc) == crc32c.value_software(data[:count], crc)


@given(st.binary(max_size=300), st.data())
def test_many_stretches_in_python_have_the_compiled_values(data, draw):
    starts = draw.draw(st.lists(st.integers(0, len(data) // 4).map(lambda word: 4 * word), max_size=9))
    sizes = [draw.draw(st.integers(0, len(data) - start)) for start in starts]
    crcs = [draw.draw(checksums_of_bytes) for _ in starts]
    wanted = [crc32c.value(data[at : at + size], crc) for at, size, crc in zip(starts, sizes, crcs, strict=True)]
    assert checksums.values(data, starts, sizes, crcs) == wanted
