"""Bodies of /mpub, taken apart by compiled code, against plain Python."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from pyqd.hot.bodies import Frames, frames_of_binary, frames_of_lines

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


@given(st.lists(st.text("ab\n", max_size=9)).map(lambda parts: "\n".join(parts).encode()))
def test_lines_are_framed_as_they_stand(body: bytes) -> None:
    lines = body.split(b"\n")
    frames = frames_of_lines(body, MESSAGE_MAX)
    if any(len(line) > MESSAGE_MAX for line in lines):
        assert frames is None
    else:
        assert_holds(frames, [line for line in lines if line])


@given(
    st.lists(st.binary(max_size=MESSAGE_MAX + 1), max_size=COUNT_MAX + 1),
    st.integers(-1, 1),
    st.binary(max_size=3),
    st.integers(0, 8),
)
def test_binary_bodies_are_taken_whole_or_not_at_all(
    messages: list[bytes], count_off: int, rest: bytes, cut_bytes: int
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
    frames = frames_of_binary(body, MESSAGE_MAX, COUNT_MAX)
    if good:
        assert_holds(frames, taken)
    elif count <= len(messages):
        assert frames is None
