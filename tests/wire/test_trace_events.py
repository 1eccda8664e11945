"""Tests of pyqd.hot.wire.trace_events, and of the rows that pyqd.fallback.trace_rows makes of it."""

import struct

import pytest

from pyqd.fallback import trace_rows
from pyqd.hot.wire.trace_events import decode
from tests.support.trace_blocks import REASON, block, channels, client, context, event, place, record, run

TIME = 1_700_000_000_123_456_789


def published(first, count, **more):
    """Return a record whose block has `count` publishes, with ids that are the positions."""
    entries = [event("published", first + index, value=10) for index in range(count)]
    return record(block(first, count, place(b"orders"), context(1, TIME), *entries, **more), guid=first)


def rows_of(found):
    columns = trace_rows.lists(found)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def positions_in(found):
    return trace_rows.lists(found)["position"]


def test_each_field_has_its_column():
    data = record(
        block(
            40,
            5,
            place(b"orders"),
            place(b"orders", b"mail"),
            client(b"10.0.0.1:4150", "pynsq/ü".encode()),
            context(1, TIME, 1),
            event("published", 0xABC, value=3, due_ns=TIME + 1999, body=b"abc"),
            context(2, TIME + 1),
            event("sent", 0xABC, attempt=2),
            event("requeued", 0xABC, attempt=2, value=1500),
            event("dead_lettered", 0xABC, attempt=9, value=REASON["attempts"]),
            event("dropped", 0xABD, value=REASON["emptied"], count=12),
        )
    )
    found = decode(data, 40)
    nothing = dict.fromkeys(trace_rows.lists(found))
    orders = nothing | {"message_id": "0000000000000abc", "topic": "orders"}
    mail = orders | {"timestamp_ns": TIME + 1, "channel": "mail"}
    sender = {"client": "10.0.0.1:4150", "user_agent": "pynsq/ü"}
    stored = {"size_bytes": 3, "due_ns": TIME + 1999, "body": b"abc"}
    assert rows_of(found) == [
        orders | sender | stored | {"position": 40, "timestamp_ns": TIME, "kind": "published"},
        mail | {"position": 41, "kind": "sent", "attempt": 2},
        mail | {"position": 42, "kind": "requeued", "attempt": 2, "delay_ms": 1500},
        mail | {"position": 43, "kind": "dead_lettered", "attempt": 9, "reason": "attempts"},
        mail | {"position": 44, "kind": "dropped", "reason": "emptied", "count": 12, "message_id": "0000000000000abd"},
    ]
    assert (found.rows, found.damaged, found.following) == (5, 0, 45)
    assert struct.unpack("<5Q", found.guids) == (0xABC,) * 4 + (0xABD,)
    assert struct.unpack("<5q", found.timestamps_us) == (TIME // 1000,) * 5
    assert struct.unpack("<5q", found.dues_us) == ((TIME + 1999) // 1000, 0, 0, 0, 0)


def test_a_publish_stands_for_the_channels_that_got_the_message():
    data = record(
        block(
            7,
            7,
            place(b"orders"),
            place(b"orders", b"mail"),
            place(b"orders", b"bill"),
            channels(1, 2, 3),
            context(1, TIME),
            event("published", 1, value=5, stored=True),
            event("published", 2, value=5),
            channels(1, 3),
            event("published", 3, value=5, stored=True),
            channels(1),
            event("published", 4, value=5, stored=True),
        )
    )
    found = [
        (row["position"], row["kind"], row["message_id"][-1], row["channel"], row["size_bytes"])
        for row in rows_of(decode(data, 7))
    ]
    assert found == [
        (7, "published", "1", None, 5),
        (8, "stored", "1", "mail", None),
        (9, "stored", "1", "bill", None),
        (10, "published", "2", None, 5),
        (11, "published", "3", None, 5),
        (12, "stored", "3", "bill", None),
        (13, "published", "4", None, 5),
    ]
    assert [row["position"] for row in rows_of(decode(data, 9))] == [9, 10, 11, 12, 13]


def test_an_event_stands_for_further_messages_with_the_next_ids():
    data = record(
        block(
            7,
            6,
            place(b"orders", b"mail"),
            client(b"c"),
            context(1, TIME, 1),
            event("sent", 0xAFF, attempt=1, value=2),
            event("finished", 0xAFF, attempt=1, value=1),
            event("requeued", 0xB01, attempt=1, value=1),
        )
    )
    whole = [
        ("sent", 0xAFF, 1, None),
        ("sent", 0xB00, 1, None),
        ("sent", 0xB01, 1, None),
        ("finished", 0xAFF, 1, None),
        ("finished", 0xB00, 1, None),
        ("requeued", 0xB01, 1, 1),
    ]
    for start in range(7, 13):
        rows = rows_of(decode(data, start))
        found = [(row["kind"], int(row["message_id"], 16), row["attempt"], row["delay_ms"]) for row in rows]
        assert found == whole[start - 7 :]
        assert {(row["client"], row["channel"], row["reason"]) for row in rows} == {("c", "mail", None)}


def test_a_run_of_publishes_has_a_size_for_each():
    data = record(
        block(
            7,
            9,
            place(b"orders"),
            place(b"orders", b"mail"),
            channels(1, 2),
            context(1, TIME),
            run(0xAFE, 1, 2, 3, stored=True),
            run(0xB07, 4, 5, 6),
        )
    )
    whole = [
        ("published", 0xAFE, 1),
        ("stored", 0xAFE, None),
        ("published", 0xAFF, 2),
        ("stored", 0xAFF, None),
        ("published", 0xB00, 3),
        ("stored", 0xB00, None),
        ("published", 0xB07, 4),
        ("published", 0xB08, 5),
        ("published", 0xB09, 6),
    ]
    for start in range(7, 16):
        rows = rows_of(decode(data, start))
        assert [(row["kind"], int(row["message_id"], 16), row["size_bytes"]) for row in rows] == whole[start - 7 :]


def test_nothing_gives_no_row_and_the_expected_position():
    found = decode(b"", 12)
    assert (found.rows, found.following, found.id_offsets, found.body_offsets) == (0, 12, bytes(4), bytes(4))


def test_rows_before_the_expected_position_are_left_out():
    data = published(10, 5) + published(15, 5)
    assert positions_in(decode(data, 13)) == [13, 14, 15, 16, 17, 18, 19]
    assert decode(data, 13).following == 20
    assert (decode(data, 30).rows, decode(data, 30).following) == (0, 30)


def test_position_zero_asks_for_the_oldest_events_and_shows_no_gap():
    found = decode(published(10, 2), 0)
    assert (positions_in(found), found.following) == ([10, 11], 12)


def test_a_gap_is_a_row_with_the_number_of_lost_events():
    found = rows_of(decode(published(10, 1) + published(15, 1), 4))
    assert [(row["position"], row["kind"], row["count"], row["message_id"]) for row in found] == [
        (4, "lost_events", 6, None),
        (10, "published", None, "000000000000000a"),
        (11, "lost_events", 4, None),
        (15, "published", None, "000000000000000f"),
    ]


def test_a_gap_whose_positions_were_not_all_given_has_no_count():
    found = rows_of(decode(published(1000, 1, dense_from=900), 500))
    assert [(row["position"], row["kind"], row["count"], row["reason"]) for row in found] == [
        (500, "lost_events", None, "unknown_gap"),
        (1000, "published", None, None),
    ]


def test_a_damaged_record_is_an_error_or_part_of_a_gap():
    first, second, third = published(10, 3), published(13, 3), published(16, 3)
    data = bytearray(first + second + third)
    data[len(first) + 60] ^= 1
    with pytest.raises(ValueError, match=f"offset {len(first)}: its checksum is wrong"):
        decode(bytes(data), 10)
    found = decode(bytes(data), 10, skip_damaged=True)
    assert (found.damaged, found.following) == (1, 19)
    assert [(row["position"], row["count"]) for row in rows_of(found)] == [
        (10, None),
        (11, None),
        (12, None),
        (13, 3),
        (16, None),
        (17, None),
        (18, None),
    ]


def test_the_stand_in_of_a_destroyed_record_is_left_out():
    data = published(10, 1) + record(b"?", flags=1) + published(13, 1)
    assert positions_in(decode(data, 10)) == [10, 11, 13]


def test_one_answer_shares_its_names_across_blocks():
    found = decode(published(10, 1) + published(11, 1), 10)
    assert (found.topics, found.channels) == ([None, "orders"], [None])
    assert struct.unpack("<2i", found.topic_indexes) == (1, 1)


@pytest.mark.parametrize(
    ("entries", "rows"),
    [
        ([event("published", 1)], 1),
        ([context(1, TIME)], 0),
        ([place(b"t"), context(2, TIME)], 0),
        ([place(b"t"), context(1, TIME, 1)], 0),
        ([place(b"t"), channels(1, 2)], 0),
        ([place(b"t"), channels(0, 1)], 0),
        ([place(b"t"), context(1, TIME), event(15, 1)], 1),
        ([place(b"t"), context(1, TIME), event(0, 1)], 1),
        ([place(b"t"), context(1, TIME), event("sent", 1)], 2),
        ([place(b"t"), context(1, TIME), event("sent", 1)[:8]], 1),
        ([place(b"t"), context(1, TIME), event("sent", 1, due_ns=1)[:16]], 1),
        ([place(b"t"), context(1, TIME), struct.pack("<BBHIQ", 3, 32, 1, 0, 1)], 1),
        ([place(b"t"), context(1, TIME), struct.pack("<BBHIQIIII", 3, 16, 1, 0, 1, 0, 0, 0, 0)], 1),
        ([place(b"t"), context(1, TIME), struct.pack("<BBHIQ", 1, 16, 0, 9, 1)], 10),
        ([place(b"t"), context(1, TIME), event("sent", 1, value=2**32 - 1)], 1),
    ],
    ids=[
        "no-context",
        "no-place",
        "later-place",
        "no-client",
        "no-member",
        "no-topic",
        "stored-gap",
        "zeros",
        "fewer-events",
        "cut-entry",
        "cut-extra",
        "later-flag",
        "run-of-sent",
        "cut-run",
        "too-many-rows",
    ],
)
def test_a_block_against_the_format_is_an_error(entries, rows):
    with pytest.raises(ValueError, match="offset 0: "):
        decode(record(block(5, rows, *entries)), 5)


def test_later_versions_and_repeated_positions_are_errors():
    with pytest.raises(ValueError, match="later format"):
        decode(published(5, 1, version=2), 5)
    with pytest.raises(ValueError, match="later format"):
        decode(record(b"short"), 5)
    with pytest.raises(ValueError, match="before it again"):
        decode(published(5, 2) + published(6, 2), 5)


@pytest.mark.parametrize("cut", [1, 8, 60])
def test_data_that_end_within_a_record_are_an_error(cut):
    data = published(5, 1) + published(6, 1)
    with pytest.raises(ValueError, match="end within"):
        decode(data[:-cut], 5)


def test_a_record_batch_has_the_values_of_the_lists():
    pytest.importorskip("pyarrow")
    data = published(10, 2) + record(
        block(
            15,
            3,
            place(b"orders", b"mail"),
            client(b"c"),
            context(1, TIME, 1),
            event("sent", 4, attempt=1),
            event("requeued", 4, value=9, body=b"x"),
            event("expired", 4, count=3, due_ns=TIME),
        ),
        guid=15,
    )
    found = decode(data, 9)
    batch = trace_rows.record_batch(found)
    batch.validate(full=True)
    columns = batch.to_pydict()
    assert columns == trace_rows.lists(found)
    assert columns["kind"].count("lost_events") == 2
