"""Shared helpers for tests of the disk queue and the broker: a full disk, small options, self-describing bodies."""

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyqd.broker.broker import Broker
from pyqd.config.options import Options, build
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.diskqueue.mapping import Mapping, map_existing
from pyqd.hot.diskqueue.segment import Segment
from pyqd.hot.diskqueue.segmentpool import SegmentPool
from pyqd.hot.primitives import crc32c
from pyqd.hot.primitives.clock import wall
from pyqd.hot.wire.bodies import Frames
from pyqd.primitives.durations import MINUTE_NS
from pyqd.primitives.errors import DiskFull, StorageError

SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_HEADER_BYTES = 128
RECORD_HEADER_BYTES = 48


def record_bytes(
    seq: int, body: bytes, *, guid: int = 1, timestamp_ns: int = 5, due_ns: int = 0, flags: int = 0,
    properties: bytes = b"", properties_words: int | None = None, key_hash: int = 0,
) -> bytes:  # fmt: skip
    """Return a record as it lies in a segment. properties_words: to state instead of those of `properties`."""
    content = properties + body
    words = len(properties) // 8 if properties_words is None else properties_words
    checked = struct.pack("<QQqqHHI", seq, guid, timestamp_ns, due_ns, flags, words, key_hash) + content
    return struct.pack("<II", len(content), crc32c.value(checked, len(content))) + checked + bytes(-len(content) % 8)


class FullFiles(Files):
    """Files on a disk with space for `room` more new files; None: no limit."""

    def __init__(self) -> None:
        self.room: int | None = None

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        if self.room is not None and path is not None:
            if self.room == 0:
                raise DiskFull("reserve", path, errno.ENOSPC, "No space left on device")
            self.room -= 1
        return super().new_mapped(path, size_bytes, populate)


class CountedFiles(Files):
    """Counts the syncs of ledgers."""

    syncs = 0

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        self.syncs += "ledger" in (mapping.path or "")
        super().sync(mapping, start_bytes, length_bytes)


class Jobs:
    """Blocking jobs, run on request."""

    def __init__(self):
        self.waiting = []

    def submit(self, job, done):
        self.waiting.append((job, done))

    def run(self, error=None):
        """Run all jobs, also those that these submit. error: what they fail with, without being run."""
        while self.waiting:
            job, done = self.waiting.pop(0)
            done(None if error else job(), error)


class AbsentFiles(Files):
    """Files with pages that are not in memory until they are read in. fails: reading them fails."""

    def __init__(self):
        self.is_cold = True
        self.fails = False
        self.ranges = []

    def is_present(self, mapping, start_bytes, length_bytes):
        present = any(
            read is mapping and start <= start_bytes and start_bytes + length_bytes <= end
            for read, start, end in self.ranges
        )
        return present or not self.is_cold

    def read_in(self, mapping, start_bytes, length_bytes):
        if self.fails:
            raise StorageError("map", mapping.path, 12, "Cannot allocate memory")
        super().read_in(mapping, start_bytes, length_bytes)
        self.ranges.append((mapping, start_bytes, start_bytes + length_bytes))


class NotedJobs(SegmentJobs):
    """Note the spares that a pool asks for, the segments made on the spot, and those removed, whose files stay."""

    def __init__(self, prepares_ahead: bool = True) -> None:
        self.prepares_ahead = prepares_ahead
        self.asked: list[int] = []
        self.made: list[Segment] = []
        self.removed: list[Segment] = []

    def prepare_spare(self, pool: SegmentPool, size_bytes: int) -> None:
        self.asked.append(size_bytes)

    def prepare_pages(self, pool: SegmentPool, segment: Segment, start_bytes: int, length_bytes: int) -> None:
        """The pages never come."""

    def make(self, pool: SegmentPool, need_bytes: int, want_bytes: int) -> Segment:
        self.made.append(super().make(pool, need_bytes, want_bytes))
        return self.made[-1]

    def remove(self, pool: SegmentPool, segment: Segment) -> None:
        self.removed.append(segment)


class EagerJobs(SegmentJobs):
    """Make each spare as soon as a pool asks for it."""

    prepares_ahead = True

    def prepare_spare(self, pool: SegmentPool, size_bytes: int) -> None:
        try:
            segment = pool.new_segment(size_bytes)
        except DiskFull:
            pool.offer_spare(None)
        else:
            pool.offer_spare(segment)

    def prepare_pages(self, pool: SegmentPool, segment: Segment, start_bytes: int, length_bytes: int) -> None:
        """The pages never come."""


def body_of(number: int, size_bytes: int = 16) -> bytes:
    """Return a body of that size, at least 8, that is full of its number."""
    return (number.to_bytes(8, "little") * (size_bytes // 8 + 1))[:size_bytes]


def number_in(body: bytes) -> int:
    """Return the number of a body made by `body_of`."""
    return int.from_bytes(body[:8], "little")


def drop_from_cache(directory: Path) -> bool:
    """Write all files back and drop their pages, but those that are mapped. Returns: False for files in memory only."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
    dropped = directory / "dropped"
    dropped.write_bytes(bytes(4096))
    with dropped.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapping = map_existing(str(dropped))
    dropped.unlink()
    return mapping is not None and not mapping.is_present(0, 4096)


def publish(topic: Any, count: int = 1, size_bytes: int = 16, start: int = 0, due_ns: int = 0) -> list[int]:
    """Publish bodies numbered from `start`, each as a message of its own. Returns: the ids of the messages."""
    numbers = range(start, start + count)
    return [topic.publish_body(body_of(number, size_bytes), wall(), due_ns) for number in numbers]


def frames_of(bodies: Sequence[bytes]) -> Frames:
    """Return messages as an MPUB has them."""
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return Frames(data, 0, len(bodies), sum((len(body) + 7) // 8 for body in bodies))


def options_for(path: Path, **flags: Any) -> Options:
    """Return options with the smallest segments; flags by name, with _ for -."""
    given = {"max-bytes-per-file": SEGMENT_BYTES_MIN, "data-path": str(path), "node-id": 7}
    return build({**given, **{name.replace("_", "-"): value for name, value in flags.items()}})


def broker_on(path: Path, files: Files | None = None, **flags: Any) -> Any:
    """Return a loaded broker without an event loop. Any: tests use attributes that a program would check for None."""
    broker = Broker(options_for(path, **flags), files)
    broker.load()
    return broker


def consumer_on(channel: Any, msg_timeout_ns: int = MINUTE_NS) -> Consumer:
    """Subscribe a consumer that takes nothing by itself."""
    consumer = Consumer()
    consumer.msg_timeout_ns = msg_timeout_ns
    channel.add_consumer(consumer)
    return consumer


def take_all(channel: Any, consumer: Consumer) -> list[tuple[int, int, int, bytes]]:
    """Return (id, attempts, timestamp, body) of every message that the channel can deliver; all stay in flight."""
    return list(iter(lambda: channel.take_message(consumer), None))


def finish_all(channel: Any) -> list[int]:
    """Deliver all ready messages to a new consumer that finishes each. Returns: their numbers, in order."""
    consumer = consumer_on(channel)
    numbers = []
    while (message := channel.take_message(consumer)) is not None:
        numbers.append(number_in(message[3]))
        assert message[3] == body_of(numbers[-1], len(message[3]))
        assert channel.finish_message(consumer, message[0]) == 0
    return numbers


def run_all_wakes(broker: Any) -> None:
    """Run scheduled wakes until none remains: channels see their deferred messages."""
    for _ in range(10_000):
        if not broker.scheduler.run_wakes():
            return
    raise AssertionError("the wakes do not come to an end")
