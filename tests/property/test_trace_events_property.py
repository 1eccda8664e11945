"""The compiled decoder of trace events against the one in Python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback import trace_events as trace_events_in_python
from pyqd.hot.wire import trace_events
from tests.support.trace_blocks import block, channels, client, context, event, place, record, run

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

FIELDS = [name for name in dir(trace_events_in_python.Decoded) if not name.startswith("_")]

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
blocks = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), entries, st.integers(0, 30)), max_size=4)


def data_of(rows, first):
    """Return records of blocks that follow each other, and where each has the events that it claims."""
    parts, position = [], first
    # A start that defines what most entries refer to.
    head = [place(b"orders"), place(b"orders", b"mail"), client(b"c", b"agent"), context(1, 1234567, 1)]
    for skipped, dense_from, found, row_count in rows:
        position += skipped
        for count in (row_count, *range(60)):
            part = record(block(position, count, *head, *found, dense_from=dense_from), guid=position)
            try:
                trace_events_in_python.decode(part, 0)
            except ValueError:
                continue
            position += count
            break
        parts.append(part)
    return b"".join(parts)


def outcome(decode, *arguments):
    try:
        found = decode(*arguments)
    except ValueError:
        return None
    return {name: getattr(found, name) for name in FIELDS}


@given(blocks, st.integers(1, 20), st.integers(0, 40), st.booleans(), st.data())
def test_both_decoders_say_the_same(rows, first, expected, skip_damaged, draw):
    data = data_of(rows, first)
    if data and draw.draw(st.booleans(), "damaged"):
        at = draw.draw(st.integers(0, len(data) - 1), "at")
        data = data[:at] + bytes([data[at] ^ 1 << draw.draw(st.integers(0, 7), "bit")]) + data[at + 1 :]
    data = data[: len(data) - draw.draw(st.sampled_from((0, 0, 0, 8, 9)), "cut")]
    wanted = outcome(trace_events_in_python.decode, data, expected, skip_damaged)
    assert outcome(trace_events.decode, data, expected, skip_damaged) == wanted


@given(entries, st.integers(0, 30))
def test_a_block_with_a_right_checksum_and_any_entries_is_decoded_alike(found, row_count):
    data = record(block(3, row_count, *found))
    assert outcome(trace_events.decode, data, 0) == outcome(trace_events_in_python.decode, data, 0)
