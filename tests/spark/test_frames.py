"""Commands from Arrow columns: compiled and in Python, the same bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback import mpub as mpub_in_python
from pyqd.hot.wire import mpub
from pyqd_spark import frames
from pyqd_spark.frames import Column
from tests.support import nsq

TYPES = [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()]


@given(
    bodies=st.lists(st.text(alphabet="abc€", min_size=1, max_size=30), min_size=1, max_size=20),
    kind=st.sampled_from(TYPES),
    skipped=st.integers(0, 3),
    body_bytes_max=st.integers(4, 300),
    timed=st.booleans(),
    prefix=st.sampled_from([b"", b"q/1/2/"]),
)
def test_both_forms_give_the_same_bytes(
    bodies: list[str], kind: pa.DataType, skipped: int, body_bytes_max: int, timed: bool, prefix: bytes
) -> None:
    values = pa.array(["left out"] * skipped + bodies, pa.string()).cast(kind).slice(skipped)
    times = pa.array([-1] * skipped + list(range(len(bodies))), pa.int64()).slice(skipped) if timed else None
    column = Column.of(values, times)

    def made(command: Any) -> list[tuple[bytes, int]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "command", command)
            found = [column.command(b"MPUB t\n", 0, len(bodies), body_bytes_max, prefix, 40)]
            while found[-1][1] < len(bodies):
                found.append(column.command(b"MPUB t\n", found[-1][1], len(bodies), body_bytes_max, prefix, 40))
            return found

    assert made(mpub.command) == made(mpub_in_python.command)
    if not timed and not prefix:
        assert b"".join(data for data, _ in made(mpub.command)).count(b"MPUB t\n") == len(made(mpub.command))


def test_a_column_in_python_is_the_mpub_of_its_rows() -> None:
    column = Column.of(pa.array([b"a", b"bc"], pa.binary()))
    made = mpub_in_python.command(b"MPUB t\n", column.offsets, column.data, 0, 2, 1 << 20)
    assert made == (nsq.mpub("t", [b"a", b"bc"]), 2)


@pytest.mark.parametrize(("bodies", "said"), [([b"a", b""], "row 1 is empty"), ([b"a", b"b"], "row 1 lies outside")])
def test_rows_that_are_no_messages_are_refused_in_python_too(bodies: list[bytes], said: str) -> None:
    column = Column.of(pa.array(bodies, pa.binary()))
    data = column.data if b"" in bodies else memoryview(column.data)[:1]
    with pytest.raises(ValueError, match=said):
        mpub_in_python.command(b"MPUB t\n", column.offsets, data, 0, 2, 1 << 20)
