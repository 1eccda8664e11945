"""A daemon on a real disk of which a part cannot be read: the kernel raises SIGBUS for its mapped pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failing_disk import FailingDisk, failing_disk_or_skipped
from tests.support.nsq import Client
from tests.support.server import Daemon, pyqd

DISK_BYTES = 32 << 20
COUNT = 100
PAGE_BYTES = 4096
# A segment begins with 128 bytes; a record has a header of 48 bytes and a body of 200.
HEADER_BYTES, RECORD_BYTES = 128, 248


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk_or_skipped(tmp_path, DISK_BYTES) as made:
        yield made


@pytest.fixture
def daemon(disk: FailingDisk) -> Iterator[Daemon]:
    running = Daemon(pyqd(), disk.path, ["-min-free-bytes=1048576"])
    running.log_path = disk.image.parent / "log"
    running.start()
    try:
        yield running
    finally:
        running.kill()


def publish(daemon: Daemon, topic: str) -> None:
    daemon.http("POST", "/topic/create", None, topic=topic)
    daemon.http("POST", "/channel/create", None, topic=topic, channel="c")
    for number in range(COUNT):
        assert daemon.http("POST", "/pub", b"%04d" % number * 50, topic=topic).status == 200


def consume(daemon: Daemon, topic: str, count: int) -> list[int]:
    numbers = []
    with Client(daemon.tcp_address) as client:
        client.sub(topic, rdy_count=50)
        for _ in range(count):
            message = client.read_message()
            numbers.append(int(message.body[:4]))
            client.fin(message)
        client.rdy(0)
    return numbers


@pytest.mark.slow
def test_blocks_that_cannot_be_read_cost_the_records_in_them_and_no_other_topic(
    daemon: Daemon, disk: FailingDisk
) -> None:
    publish(daemon, "whole")
    publish(daemon, "bad")
    daemon.kill()
    (segment,) = (daemon.data_path / "topics" / "bad.topic" / "log").iterdir()
    disk.move_to_the_end(segment)
    files = [path for path in daemon.data_path.rglob("*") if path.is_file() and path != segment]
    page = 3
    block = disk.block_of(segment, page)
    # The disk fails from this block on: no other file may lie behind it.
    assert all(disk.block_of(path, 0) < block for path in files if path.stat().st_size)
    disk.fail_from(block)
    for _ in range(2):
        daemon.start()
        assert "input/output error (EIO)" in daemon.log_text()
        stats = daemon.channel("bad", "c")
        assert stats is not None
        readable = (page * PAGE_BYTES - HEADER_BYTES) // RECORD_BYTES
        # Some kernels return the former content of a few pages behind the cut.
        assert readable <= stats["depth"] <= COUNT
        daemon.wait_for_channel("whole", "c", depth=COUNT)
        daemon.kill()
    daemon.start()
    assert consume(daemon, "bad", readable) == list(range(readable))
    assert consume(daemon, "whole", COUNT) == list(range(COUNT))
