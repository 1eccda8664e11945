"""Fixtures of the client's tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.client.engine.engine import Engine
from tests.support.faces import Face
from tests.support.publish_broker import PublishBroker, publish_brokers
from tests.support.server import Daemon, Implementation, nsqd, pyqd, running
from tests.support.workers import Spawn, url_of, workers_in

TOPIC_NUMBERS = itertools.count()


@pytest.fixture
def url(daemon: Daemon) -> str:
    """URL of the daemon, with its HTTP address."""
    return url_of(daemon)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Function that starts Python programs, which are killed after the test."""
    with workers_in(tmp_path) as start:
        yield start


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """One of the two faces; what it has made is closed, and no thread or task may be left."""
    made = Face(request.param)
    yield made
    made.close()


class Owner:
    """Owner of an engine that does nothing at a fork and at the end of the process."""

    def _after_fork(self) -> None:
        pass

    def _at_exit(self) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine without a face, which a thread of its own drives until a user does."""
    owner = Owner()
    made = Engine("pyqd test", owner)
    yield made
    with made.lock:
        made.close()
    made.join()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" in metafunc.fixturenames:
        implementations = [pyqd()]
        path = metafunc.config.getoption("--nsqd")
        if path and not metafunc.definition.get_closest_marker("pyqd_only"):
            implementations.append(nsqd(path))
        metafunc.parametrize(
            "implementation", implementations, ids=[each.name for each in implementations], scope="module"
        )


@pytest.fixture(scope="module")
def broker(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker for all tests of a file: pyqd, and nsqd if a path is given. Messages time out after a second."""
    flags = ("-msg-timeout=1s", "-max-msg-timeout=60s")
    with running(Daemon(implementation, tmp_path_factory.mktemp(implementation.name), flags)) as started:
        yield started


@pytest.fixture
def address(broker: Daemon) -> str:
    """TCP address of the broker."""
    return f"127.0.0.1:{broker.tcp_port}"


@pytest.fixture
def topic() -> str:
    """Name of a topic that no other test uses."""
    return f"topic-{next(TOPIC_NUMBERS)}"


@pytest.fixture
def scripted() -> Iterator[PublishBroker]:
    """A broker that answers publishes as the test says."""
    with publish_brokers(1) as (made,):
        yield made
