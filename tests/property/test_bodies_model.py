"""Bodies of /mpub, taken apart by compiled code, against plain Python."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from pyqd.hot.wire.bodies import BinaryFramer, Frames, LineFramer

MESSAGE_MAX = 6
COUNT_MAX = 5


def framed(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(message)) + message for message in messages)


def assert_holds(frames: Frames | None, messages: list[bytes]) -> None:
    assert frames is not None
    assert frames.count == len(messages)
    assert frames.words == sum((len(message) + 7) // 8 for message in messages)
    expected = framed(messages)
    assert frames.data[frames.start : frames.start + len(expected)] == expected


def stepped(framer: LineFramer | BinaryFramer, piece_bytes: int) -> None:
    while not framer.step(piece_bytes):
        pass


@given(st.lists(st.text("ab\n", max_size=9)).map(lambda parts: "\n".join(parts).encode()), st.integers(1, 20))
def test_lines_are_framed_as_they_stand_in_pieces_of_any_size(body: bytes, piece_bytes: int) -> None:
    lines = body.split(b"\n")
    framer = LineFramer(body, MESSAGE_MAX)
    stepped(framer, piece_bytes)
    too_long = [len(line) > MESSAGE_MAX for line in lines]
    assert framer.failed == any(too_long)
    if framer.failed:
        assert framer.cut == (not any(too_long[:-1]))
    else:
        assert_holds(framer.frames, [line for line in lines if line])


@given(
    st.integers(1, 20),
    st.lists(st.binary(max_size=MESSAGE_MAX + 1), max_size=COUNT_MAX + 1),
    st.integers(-1, 1),
    st.binary(max_size=3),
    st.integers(0, 8),
)
def test_binary_bodies_are_taken_whole_or_not_at_all(
    piece_bytes: int, messages: list[bytes], count_off: int, rest: bytes, cut_bytes: int
) -> None:
    count = len(messages) + count_off
    body = struct.pack(">i", count) + framed(messages) + rest
    body = body[: len(body) - cut_bytes]
    taken = messages[: max(count, 0)]
    good = (
        1 <= count <= min(COUNT_MAX, len(messages))
        and all(1 <= len(message) <= MESSAGE_MAX for message in taken)
        and len(body) >= 4 + len(framed(taken))
    )
    framer = BinaryFramer(body, MESSAGE_MAX, COUNT_MAX)
    stepped(framer, piece_bytes)
    if good:
        assert not framer.failed
        assert_holds(framer.frames, taken)
    elif count <= len(messages):
        assert framer.failed
