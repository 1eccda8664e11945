"""pytest plugin: fixtures that run a real daemon. Guide: docs/testing.md.

pytest loads this module at every start, so it imports nothing else of pyqd before a test asks for a daemon.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyqd.testing.daemon import BrokerProcess

FIXTURES = ("pyqd_broker", "pyqd_broker_session")
FLAGS = "pyqd_flags"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting with flags for all daemons."""
    parser.addini(FLAGS, "flags of the daemons of pyqd's fixtures, one a line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark with flags for the daemon of one test."""
    config.addinivalue_line("markers", f"{FLAGS}(*flags): flags for the daemon of the fixture pyqd_broker")


@pytest.fixture
def pyqd_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BrokerProcess]":
    """A daemon of this test's own, with an empty data directory. The test may kill and restart it."""
    mark = request.node.get_closest_marker(FLAGS)
    yield from served(request.config, tmp_path_factory, () if mark is None else mark.args)


@pytest.fixture(scope="session")
def _pyqd_session_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[BrokerProcess]":
    yield from served(request.config, tmp_path_factory, ())


@pytest.fixture
def pyqd_broker_session(_pyqd_session_process: "BrokerProcess") -> "Iterator[BrokerProcess]":
    """A daemon that all tests of the session share. It has no topic at the start of each test."""
    process = _pyqd_session_process
    if not process.is_running:
        process.restart()
    yield process
    if not process.is_running:
        process.restart()
    process.delete_topics()


def served(
    config: pytest.Config, directories: pytest.TempPathFactory, flags: tuple[str, ...]
) -> "Iterator[BrokerProcess]":
    """Run a daemon for a fixture. flags: come after those of the setting, and so win."""
    from pyqd.testing.daemon import BrokerProcess

    with BrokerProcess(directories.mktemp("pyqd"), [*config.getini(FLAGS), *flags]) as process:
        yield process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Generator[None, pytest.TestReport, pytest.TestReport]":
    """Add the daemon's log to the report of a test that failed with a daemon."""
    report = yield
    if report.failed and report.when == "call":
        fixtures: dict[str, BrokerProcess] = getattr(item, "funcargs", {})
        for process in (fixtures[name] for name in FIXTURES if name in fixtures):
            report.sections.append((f"log of {process.tcp_address}", process.log_tail()))
    return report
