"""Fixtures of the tools' tests: each test runs with this repository's tools and with NSQ's originals."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.http_target import HttpTarget, http_target
from tests.support.lookup import Lookupd, Registration, lookupd
from tests.support.nsq import Client
from tests.support.server import Daemon, Implementation, nsqd, pyqd, running
from tests.support.tools import Run, Start, Tools, run_tool, starting

TOPIC_NUMBERS = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" in metafunc.fixturenames:
        path = metafunc.config.getoption("--nsqd")
        implementations = [pyqd(), *([nsqd(path)] if path else [])]
        metafunc.parametrize(
            "implementation", implementations, ids=[each.name for each in implementations], scope="module"
        )


@pytest.fixture(scope="module", params=["ours", "originals"])
def tools(request: pytest.FixtureRequest) -> Tools:
    """The tools of this repository, and the originals if NSQ_TOOLS names their directory."""
    if request.param == "ours":
        return Tools()
    directory = os.environ.get("NSQ_TOOLS")
    if not directory:
        pytest.skip("no originals: NSQ_TOOLS may name their directory")
    return Tools(Path(directory))


@pytest.fixture(scope="module")
def broker(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker for all tests of a file: pyqd, and nsqd if a path is given."""
    with running(Daemon(implementation, tmp_path_factory.mktemp(implementation.name))) as started:
        yield started


@pytest.fixture
def address(broker: Daemon) -> str:
    return f"127.0.0.1:{broker.tcp_port}"


@pytest.fixture
def http_address(broker: Daemon) -> str:
    return f"127.0.0.1:{broker.http_port}"


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookupd]:
    """A lookup daemon for all tests of a file."""
    with lookupd([sys.executable, "-m", "pyqd.apps.lookupd"], tmp_path_factory.mktemp("lookupd")) as started:
        yield started


@pytest.fixture
def registration(lookup: Lookupd, broker: Daemon) -> Iterator[Registration]:
    """The broker at the lookup daemon: registers its topics."""
    made = Registration(lookup, broker)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    """Name of a topic that no other test uses."""
    return f"topic-{next(TOPIC_NUMBERS)}"


@pytest.fixture
def publish(broker: Daemon, topic: str) -> Callable[..., None]:
    def publish_all(*bodies: bytes, to: str = topic) -> None:
        with Client(broker.tcp_address) as client:
            client.pub_each(to, bodies)

    return publish_all


@pytest.fixture
def start(tools: Tools, tmp_path: Path) -> Iterator[Start]:
    """Function that starts tools, which are killed after the test."""
    with starting(tools, tmp_path) as function:
        yield function


@pytest.fixture
def run(tools: Tools) -> Run:
    return partial(run_tool, tools)


@pytest.fixture
def start_ours(tmp_path: Path) -> Iterator[Start]:
    """Function that starts tools of this repository, for behaviour that the originals do not have."""
    with starting(Tools(), tmp_path) as function:
        yield function


@pytest.fixture
def run_ours() -> Run:
    """Function that runs a tool of this repository to its end, for behaviour that the originals do not have."""
    return partial(run_tool, Tools())


@pytest.fixture
def target() -> Iterator[HttpTarget]:
    with http_target() as made:
        yield made
