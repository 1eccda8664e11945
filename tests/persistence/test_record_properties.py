"""Records with properties, of a later build: a broker delivers, lists and copies the body alone."""

from pathlib import Path

import pytest

from pyqd.fallback import records
from pyqd.hot.diskqueue.segment import segment_identity
from tests.persistence.test_messages_by_id import messages
from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.support.storage import SEGMENT_HEADER_BYTES, record_bytes

PROPERTIES = bytes(range(1, 25))
# The large one is sent from its place in the log.
BODIES = [b"x", b"eight by", b"a" * 255, b"large" * 8_000]


def put_properties(log: Path) -> None:
    """Turn the first bytes of all bodies in the only segment of a log into properties."""
    (segment,) = (path for path in log.glob("*.seg") if segment_identity(path.read_bytes()[:SEGMENT_HEADER_BYTES])[0])
    content = bytearray(segment.read_bytes())
    found, _ = records.spans(bytes(content[SEGMENT_HEADER_BYTES:]))
    for at, (size, _, seq, guid, timestamp_ns, due_ns, *_) in found[: len(BODIES)]:
        start = SEGMENT_HEADER_BYTES + at
        body = bytes(content[start + records.HEADER_BYTES :][len(PROPERTIES) : size])
        record = record_bytes(
            seq, body, guid=guid, timestamp_ns=timestamp_ns, due_ns=due_ns, flags=4, properties=PROPERTIES, key_hash=9
        )
        content[start : start + len(record)] = record
    segment.write_bytes(content)


@pytest.mark.slow
def test_a_body_with_properties_before_it_is_delivered_and_listed_alone(daemon: Daemon) -> None:
    for path, channel in (("/topic/create", {}), ("/channel/create", {"channel": "c"})):
        assert daemon.http("POST", path, None, topic="t", **channel).status == 200
    with Client(daemon.tcp_address) as client:
        for body in BODIES:
            client.pub("t", PROPERTIES + body)
    daemon.stop()
    put_properties(daemon.data_path / "topics" / "t.topic" / "log")
    daemon.start()
    listed = messages(daemon)
    assert [row["size"] for row in listed] == [len(body) for body in BODIES]
    assert [row["body"].encode() for row in listed[:3]] == BODIES[:3]
    log = daemon.http("GET", "/topic/log", None, topic="t").body
    assert [record.body for record in records.decode(log)] == BODIES
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=10)
        assert [message.body for message in client.finish_exactly(len(BODIES))] == BODIES
