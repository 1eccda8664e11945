"""The compiled decoder of records against the one in Python."""

from hypothesis import given
from hypothesis import strategies as st

from pyqd.fallback import columns as columns_in_python
from pyqd.hot.wire import columns
from tests.support.storage import record_bytes

FIELDS = [name for name in dir(columns.Columns) if not name.startswith("_")]

records = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.integers(0, 3),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from((0, 0, 1, 999, 10**18)),
        st.sampled_from((0, 0, 0, 0, 1, 2, 4, 0x81, 0x100)),
        st.sampled_from((0, 0, 0, 1, 7)),
        st.sampled_from((None, None, None, 0, 1, 0xFFFF)),
    ),
    max_size=12,
)


def encoded(rows, first, epoch_at):
    """Return concatenated records; each skips some ordinals, and from `epoch_at` on the epoch is another."""
    parts = []
    position = first
    for index, (body, skipped, guid, timestamp_ns, due_ns, flags, words, stated) in enumerate(rows):
        position += skipped + ((1 << 48) - skipped - 1 if index == epoch_at else 0)
        parts.append(
            record_bytes(
                position,
                body,
                guid=guid,
                timestamp_ns=timestamp_ns,
                due_ns=due_ns,
                flags=flags,
                properties=b"property" * words,
                properties_words=stated,
            )
        )
        position += 1
    return b"".join(parts)


def outcome(decode, *arguments):
    try:
        found = decode(*arguments)
    except ValueError:
        return None
    return [getattr(found, name) for name in FIELDS]


@given(records, st.integers(0, 100), st.integers(0, 12), st.integers(0, 5), st.booleans(), st.booleans(), st.data())
def test_both_decoders_say_the_same(rows, first, epoch_at, before, with_bodies, skip_damaged, draw):
    data = encoded(rows, first, epoch_at)
    if data and draw.draw(st.booleans(), "damaged"):
        at = draw.draw(st.integers(0, len(data) - 1), "at")
        data = data[:at] + bytes([data[at] ^ 1 << draw.draw(st.integers(0, 7), "bit")]) + data[at + 1 :]
    data = data[: len(data) - draw.draw(st.sampled_from((0, 0, 0, 8, 9)), "cut")]
    arguments = (data, max(0, first - before), with_bodies, skip_damaged)
    assert outcome(columns.decode, *arguments) == outcome(columns_in_python.decode, *arguments)
