"""Health as load balancers see it: bad while messages cannot be stored, and good again by itself."""

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.api.status import StatusRoutes
from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.http.messages import Request
from pyqd.metrics.identity import Identity
from pyqd.metrics.prometheus import Metrics
from pyqd.primitives.errors import DiskFull, StorageError


class SickFiles(Files):
    """A disk that has little free, or refuses new files, for as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.free: int | None = None
        self.refuses = False

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def new_mapped(self, path: str | None, size_bytes: int, populate: bool) -> Mapping:
        if self.refuses and path is not None:
            raise StorageError("reserve", path, errno.EIO, "Input/output error")
        return super().new_mapped(path, size_bytes, populate)


class Watched:
    """A broker on such a disk, with the sources of its health."""

    def __init__(self, path: Path) -> None:
        self.files = SickFiles()
        self.broker = Broker(parse_args([f"--data-path={path}"]), self.files)
        self.broker.load()
        self.metrics = Metrics(self.broker)
        self.routes = StatusRoutes(self.broker, Identity(hostname="h", start_ns=time.time_ns()), self.metrics)

    def ping(self) -> tuple[int, bytes]:
        response = self.routes.ping(Request("GET", "/ping", "1.1", {}))
        healthy = b"pyqd_healthy 1.0\n" in b"".join(self.metrics.pieces())
        assert healthy == (response.status == 200)
        return response.status, response.body

    def fill_a_segment(self) -> None:
        topic = self.broker.topic("orders")
        for _ in range(70):
            try:
                topic.publish_body(bytes(1000), time.time_ns())
            except StorageError as error:
                self.broker.note_failed_write(error)
                return
        raise AssertionError("the disk took more than a segment")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.files.free, made.files.refuses = None, False
    made.broker.close()


def test_health_is_bad_while_free_space_is_too_small(watched: Watched) -> None:
    assert watched.ping() == (200, b"OK")
    watched.files.free = 1 << 20
    status, body = watched.ping()
    assert status == 500
    assert body == b"NOK - less than 67108864 bytes are free on the disk"
    with pytest.raises(DiskFull):
        watched.broker.topic("more")
    watched.files.free = None
    assert watched.ping() == (200, b"OK")


def test_a_failed_write_is_bad_until_the_disk_takes_writes_again(watched: Watched, tmp_path: Path) -> None:
    watched.broker.topic("orders")
    watched.files.refuses = True
    watched.fill_a_segment()
    status, body = watched.ping()
    assert status == 500
    assert body.startswith(b"NOK - failed to reserve ")
    watched.broker.retry_write()
    assert watched.ping()[0] == 500
    watched.files.refuses = False
    watched.broker.retry_write()
    assert watched.ping() == (200, b"OK")
    assert not (tmp_path / "probe").exists()


def test_a_failed_write_is_forgotten_when_one_succeeds(watched: Watched) -> None:
    topic = watched.broker.topic("orders")
    watched.files.refuses = True
    watched.fill_a_segment()
    watched.files.refuses = False
    topic.publish_body(bytes(1000), time.time_ns())
    assert watched.ping() == (200, b"OK")


def test_a_failed_sync_is_bad_until_one_succeeds(watched: Watched) -> None:
    watched.broker.note_failed_sync(StorageError("sync", "orders", errno.EIO, "Input/output error"))
    assert watched.ping()[0] == 500
    watched.broker.retry_write()
    assert watched.ping()[0] == 500
    watched.broker.note_synced()
    assert watched.ping() == (200, b"OK")


def test_failures_are_counted_for_prometheus(watched: Watched) -> None:
    watched.broker.topic("orders")
    watched.files.refuses = True
    watched.fill_a_segment()
    watched.broker.note_failed_sync(StorageError("sync", "orders", errno.EIO, "Input/output error"))
    text = b"".join(watched.metrics.pieces())
    assert b"pyqd_write_failures_total 1.0\n" in text
    assert b"pyqd_sync_failures_total 1.0\n" in text
