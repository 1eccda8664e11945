"""Commands that publish columns, compiled and in Python: the bytes that the protocol wants, within the buffers."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback import mpub as mpub_in_python
from pyqd.hot.wire import mpub
from tests.support import nsq

BODY_BYTES_MAX = 1 << 20
BODIES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20)

in_both_forms = pytest.mark.parametrize("command", [mpub.command, mpub_in_python.command], ids=["compiled", "plain"])


def column(bodies: list[bytes], code: str = "i") -> tuple[array[int], bytes]:
    """Return offsets and data, as Arrow lays them out."""
    return array(code, [0, *accumulate(map(len, bodies))]), b"".join(bodies)


def dmpub(line: bytes, bodies: list[bytes], times: list[int]) -> bytes:
    inner = nsq.int32(len(bodies))
    inner += b"".join(struct.pack(">q", due) + nsq.sized(body) for due, body in zip(times, bodies, strict=True))
    return line + nsq.sized(inner)


@in_both_forms
@pytest.mark.slow
@given(BODIES, st.sampled_from(["i", "q"]))
def test_all_rows_become_one_mpub(command: Any, bodies: list[bytes], code: str) -> None:
    offsets, data = column(bodies, code)
    made = command(b"MPUB t\n", offsets, data, 0, len(bodies), BODY_BYTES_MAX, offset_bytes=offsets.itemsize)
    assert made == (nsq.mpub("t", bodies), len(bodies))


@in_both_forms
@given(BODIES, st.integers(min_value=4, max_value=200))
def test_rows_that_do_not_fit_are_left_out(command: Any, bodies: list[bytes], body_bytes_max: int) -> None:
    offsets, data = column(bodies)
    row = 0
    while row < len(bodies):
        made, behind = command(b"MPUB t\n", offsets, data, row, len(bodies), body_bytes_max)
        taken = bodies[row:behind]
        assert made == nsq.mpub("t", taken)
        inner_bytes = len(made) - len(b"MPUB t\n") - 4
        assert inner_bytes <= body_bytes_max or len(taken) == 1
        if behind < len(bodies):
            assert inner_bytes + 4 + len(bodies[behind]) > body_bytes_max
        row = behind


@in_both_forms
@pytest.mark.slow
@given(st.lists(st.tuples(st.binary(min_size=1), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_times_stand_before_each_message(command: Any, rows: list[tuple[bytes, int]]) -> None:
    bodies, times = [body for body, _ in rows], [due for _, due in rows]
    offsets, data = column(bodies)
    made, behind = command(b"DMPUB t @each\n", offsets, data, 0, len(rows), BODY_BYTES_MAX, times=array("q", times))
    assert (made, behind) == (dmpub(b"DMPUB t @each\n", bodies, times), len(rows))


@in_both_forms
@pytest.mark.parametrize("number", [0, 7, 99, 18_446_744_073_709_551_614])
def test_a_prefix_labels_each_body_with_the_number_of_its_row(command: Any, number: int) -> None:
    offsets, data = column([b"a", b"b"])
    made, _ = command(b"MPUB t\n", offsets, data, 0, 2, BODY_BYTES_MAX, prefix=b"w/0/3/", number=number)
    labelled = [b"w/0/3/%d\n%s" % (number + row, body) for row, body in enumerate([b"a", b"b"])]
    assert made == nsq.mpub("t", labelled)


@in_both_forms
@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 1, 1, 3], "row 1 is empty"),
        ([0, 2, 1], "row 1 lies outside"),
        ([0, 1, 4], "row 1 lies outside"),
        ([-1, 1], "row 0 lies outside"),
    ],
)
def test_rows_that_are_no_messages_are_refused(command: Any, offsets: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        command(b"MPUB t\n", array("i", offsets), b"abc", 0, len(offsets) - 1, BODY_BYTES_MAX)


@pytest.mark.parametrize(
    ("offsets", "first", "end", "said"),
    [
        ([0, 1], 0, 2, "no rows 0 to 2 in a column of 1"),
        ([0, 1], -1, 1, "no rows -1 to 1"),
        ([0, 1], 1, 1, "no rows 1 to 1"),
    ],
)
def test_buffers_that_make_no_sense_are_refused(offsets: list[int], first: int, end: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mpub.command(b"MPUB t\n", array("i", offsets), b"abc", first, end, BODY_BYTES_MAX)


def test_times_for_too_few_rows_are_refused() -> None:
    offsets, data = column([b"a", b"b"])
    with pytest.raises(ValueError, match="no times for rows up to 2"):
        mpub.command(b"DMPUB t each\n", offsets, data, 0, 2, BODY_BYTES_MAX, times=array("q", [0]))


def test_offsets_have_four_bytes_or_eight() -> None:
    with pytest.raises(ValueError, match="not 2"):
        mpub.command(b"MPUB t\n", array("h", [0, 1]), b"a", 0, 1, BODY_BYTES_MAX, offset_bytes=2)
