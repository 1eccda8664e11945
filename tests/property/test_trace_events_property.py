"""Any blocks of trace events, damaged or not, are refused by the decoder or become sound columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback.trace_rows import lists, record_batch
from pyqd.hot.wire.trace_events import decode
from tests.support.trace_blocks import block, channels, client, context, event, place, record, run

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

HEAD = [place(b"orders"), place(b"orders", b"mail"), client(b"c", b"agent"), context(1, 1234567, 1)]
numbers = st.integers(0, 4)
names = st.sampled_from((b"", b"orders", b"\xff", "ü".encode(), b"n" * 30))
entries = st.lists(
    st.one_of(
        st.builds(place, names, names),
        st.builds(client, names, names),
        st.builds(lambda topic, members: channels(topic, *members), numbers, st.lists(numbers, max_size=3)),
        st.builds(context, numbers, st.integers(0, 2**63 - 1), numbers),
        st.builds(
            event,
            st.integers(1, 14),
            st.integers(0, 2**64 - 1),
            attempt=st.integers(0, 9),
            value=st.sampled_from((0, 1, 10, 11, 2**31 - 1)),
            due_ns=st.none() | st.integers(0, 2**63 - 1),
            count=st.none() | st.integers(0, 2**63 - 1),
            body=st.none() | st.binary(max_size=20),
            stored=st.booleans(),
        ),
        st.builds(
            lambda guid, sizes, stored: run(guid, *sizes, stored=stored),
            st.integers(0, 2**64 - 1),
            st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
            st.booleans(),
        ),
    ),
    max_size=14,
)


def check(data, expected, skip_damaged=False):
    """Decode, and check that the columns are sound and that the positions grow."""
    try:
        found = decode(data, expected, skip_damaged)
    except ValueError:
        return
    batch = record_batch(found)
    batch.validate(full=True)
    assert batch.to_pydict() == lists(found)
    positions = batch.column("position").to_pylist()
    assert positions == sorted(set(positions))
    assert all(expected <= position < found.following for position in positions)


@given(entries, st.integers(1, 20), st.integers(0, 40), st.booleans(), st.data())
def test_damaged_blocks_are_refused_or_become_sound_columns(found, first, expected, skip_damaged, draw):
    part = record(block(first, len(found), *HEAD, *found), guid=first)
    data = part + record(block(first + 3 + len(found), len(found), *HEAD, *found), guid=first)
    if draw.draw(st.booleans(), "damaged"):
        at = draw.draw(st.integers(0, len(data) - 1), "at")
        data = data[:at] + bytes([data[at] ^ 1 << draw.draw(st.integers(0, 7), "bit")]) + data[at + 1 :]
    check(data[: len(data) - draw.draw(st.sampled_from((0, 0, 0, 8, 9)), "cut")], expected, skip_damaged)


@given(entries, st.integers(0, 30))
def test_any_entries_behind_a_right_checksum_are_refused_or_become_sound_columns(found, row_count):
    check(record(block(3, row_count, *found)), 0)
