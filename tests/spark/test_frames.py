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
from pyqd_spark.frames import BodyColumn

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
    column = BodyColumn.of(values, times)

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
