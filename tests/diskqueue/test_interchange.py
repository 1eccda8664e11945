"""Tests of pyqd.diskqueue.interchange: the formats of nsqd, to the byte."""

import pytest

from pyqd.diskqueue.interchange import (
    NsqdChannel,
    NsqdMessage,
    NsqdMetadata,
    NsqdTopic,
    QueueFile,
    QueueMeta,
    decode_message,
    encode_record,
    format_meta,
    format_metadata,
    is_metadata_file,
    meta_file,
    parse_meta,
    parse_metadata,
    parse_queue_file,
    queue_name,
    segment_file,
    split_queue,
)

METADATA = (
    b'{"topics":[{"name":"orders","paused":false,"channels":[{"name":"email","paused":true}]},'
    b'{"name":"h","paused":true,"channels":null}],"version":"1.3.0"}'
)
TOPICS = (NsqdTopic("orders", False, (NsqdChannel("email", True),)), NsqdTopic("h", True, ()))


def test_a_record_is_its_size_and_the_message_as_on_the_wire():
    record = encode_record(NsqdMessage(0x0102030405060708, 3, b"0a1b2c3d4e5f6071", b"hello"))
    assert record == b"\0\0\0\x1f\x01\x02\x03\x04\x05\x06\x07\x08\0\x030a1b2c3d4e5f6071hello"
    assert decode_message(record[4:]) == NsqdMessage(0x0102030405060708, 3, b"0a1b2c3d4e5f6071", b"hello")


def test_metadata_of_a_queue_is_three_lines():
    assert format_meta(QueueMeta(5, 0, 0, 1, 183)) == b"5\n0,0\n1,183\n"
    assert parse_meta(b"5\n0,0\n1,183\n") == QueueMeta(5, 0, 0, 1, 183)
    assert parse_meta(b"-2\n0,183\n0,183\n").depth == -2


@pytest.mark.parametrize(
    "content",
    [b"", b"5\n", b"5\n0,0\n", b"x\n0,0\n0,0\n", b"1\n0,-1\n0,0\n", b"1\n2,0\n1,0\n", b"1\n0,9\n0,3\n", bytes(16)],
)
def test_invalid_metadata_of_a_queue_is_refused(content):
    with pytest.raises(ValueError, match="queue"):
        parse_meta(content)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders.diskqueue.000000.dat", QueueFile("orders", 0, "")),
        ("orders:email.diskqueue.1234567.dat", QueueFile("orders:email", 1234567, "")),
        ("a.b:..diskqueue.000012.dat.bad", QueueFile("a.b:.", 12, "bad")),
        ("orders.diskqueue.meta.dat", QueueFile("orders", None, "")),
        ("orders.diskqueue.meta.dat.5577006.tmp", QueueFile("orders", None, "tmp")),
        ("x.diskqueue.000000.dat.diskqueue.000001.dat", QueueFile("x.diskqueue.000000.dat", 1, "")),
        ("orders.diskqueue.00000.dat", None),
        (".diskqueue.000000.dat", None),
        ("nsqd.dat", None),
    ],
)
def test_files_of_queues_are_recognised_by_their_names(name, found):
    assert parse_queue_file(name) == found


def test_names_of_files_are_those_of_nsqd():
    assert segment_file("orders", 7) == "orders.diskqueue.000007.dat"
    assert segment_file("orders", 1_000_000) == "orders.diskqueue.1000000.dat"
    assert meta_file(queue_name("orders", "email")) == "orders:email.diskqueue.meta.dat"
    assert split_queue("orders:email") == split_queue("orders;email") == ("orders", "email")
    assert split_queue("orders") == ("orders", None)
    assert [
        name for name in ("nsqd.dat", "nsqd.dat.42.tmp", "nsqd.dat.bak", "xnsqd.dat") if is_metadata_file(name)
    ] == [
        "nsqd.dat",
        "nsqd.dat.42.tmp",
    ]


def test_nsqd_dat_is_compact_json():
    assert format_metadata(TOPICS, "1.3.0") == METADATA
    assert parse_metadata(METADATA) == NsqdMetadata("1.3.0", TOPICS)
    assert format_metadata((), "1.3.0") == b'{"topics":null,"version":"1.3.0"}'


@pytest.mark.parametrize("content", [b"{}", b'{"topics":null}', b'{"topics":[],"version":""}'])
def test_keys_of_nsqd_dat_may_be_missing(content):
    assert parse_metadata(content) == NsqdMetadata("", ())
    assert parse_metadata(b'{"topics":[{}]}').topics == (NsqdTopic("", False, ()),)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"7", b'{"topics":{}}', b'{"topics":[3]}', b'{"topics":[{"name":3}]}', b"[" * 100_000],
)
def test_an_invalid_nsqd_dat_is_refused(content):
    with pytest.raises(ValueError):  # noqa: PT011 - the parser of JSON has many texts
        parse_metadata(content)
