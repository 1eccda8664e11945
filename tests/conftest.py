"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support.examples import QUICK, QUICK_MAX
from tests.support.server import Daemon, pyqd, running

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from tests.support.certificates import Certificates

# Collections of the younger objects before a full one; the interpreter's own number is 10.
FULL_COLLECTION_AFTER = 100
# Each starts a daemon for one test, which takes longer than most tests: these are not for a quick look.
ONE_DAEMON_A_TEST = {"daemon", "own_server", "start", "asking", "target"}
# The statement that marks all tests of a file.
MARKS_OF_FILE = re.compile(r"^pytestmark = (\[[^]]*\]|.*)", re.MULTILINE)
# Fixtures, and parameters of others. The servers of a session take seconds to start.
DATABASE_SERVERS = {"postgresql", "mariadb"}

ON_CLUSTER = ("tests/spark/test_cluster.py", "tests/spark/test_batch_kills.py")
ON_DATABASES = "tests/trace/"
ON_ONE_CLUSTER = "tests/admin/"
BY_FILE = (
    "tests/api/",
    "tests/broker/",
    "tests/client/",
    "tests/config/",
    "tests/debug/",
    "tests/diskqueue/",
    "tests/durability/",
    "tests/fallback/",
    "tests/http/",
    "tests/lookupd/",
    "tests/meta/",
    "tests/metrics/",
    "tests/net/",
    "tests/primitives/",
    "tests/property/",
    "tests/tcp/",
    "tests/testing/",
    "tests/tools/",
    "tests/wire/",
)
# One failure of these is a message lost, or a state that must not be: it counts, even if they pass the next time.
PROOFS = (
    "tests/broker/",
    "tests/client/test_client_kills.py",
    "tests/client/test_dramatiq_kills.py",
    "tests/diskqueue/",
    "tests/persistence/",
    "tests/primitives/",
    "tests/property/",
    "tests/simulation/",
    "tests/spark/test_batch_kills.py",
    "tests/spark/test_source_kills.py",
    "tests/tools/test_to_file_kills.py",
    "tests/wire/",
)
REPEATED_MAX = 10
FOLLOWED = ("tests/spark/test_docs.py", "tests/spark/test_jobs_docs.py")


# A deadline in real time fails on a machine with other load.
settings.register_profile("no deadline", deadline=None)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=3000)
settings.register_profile(QUICK, deadline=None, max_examples=QUICK_MAX)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nsqd",
        metavar="PATH",
        default=os.environ.get("NSQD") or None,
        help="run the protocol tests against this nsqd binary too (default: the environment variable NSQD)",
    )
    parser.addoption(
        "--nsqlookupd",
        metavar="PATH",
        default=os.environ.get("NSQLOOKUPD") or None,
        help="find brokers by this nsqlookupd binary in the tests for Spark (default: the variable NSQLOOKUPD)",
    )
    parser.addoption(
        "--second-look",
        action="store_true",
        help=f"with --last-failed: refuse tests that must never fail, and more than {REPEATED_MAX}",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A full collection, which examines 10,000 tests, takes a second, and each process would run one every few seconds.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_AFTER)
    # Under nohup, or in the background of a script, a process ignores these, and so would each program that a test
    # starts to send it one.
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    config.addinivalue_line("markers", "pyqd_only(reason): pyqd differs here on purpose; not run against nsqd")
    config.addinivalue_line("markers", "flags(*flags): flags for the daemon of the fixture `daemon`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose marks deselect all of their tests: to collect them takes each process seconds."""
    deselected = set(re.findall(r"not (\w+)", config.option.markexpr))
    if collection_path.suffix != ".py" or not deselected or " or " in config.option.markexpr:
        return None
    marks = MARKS_OF_FILE.search(collection_path.read_text())
    return True if marks and deselected & set(re.findall(r"pytest\.mark\.(\w+)", marks[0])) else None


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for one test, which may stop, kill and start it. Its flags are those of the mark `flags`."""
    mark = request.node.get_closest_marker("flags")
    with running(Daemon(pyqd(), tmp_path, mark.args if mark else ())) as started:
        yield started


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and its certificates for a server and a client. Tests leave the files as they are."""
    # Most tests need none, and the library takes a while to import.
    from tests.support.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        needs_server = any(each in (*fixtures, *parameters) for each in DATABASE_SERVERS)
        if needs_server or ONE_DAEMON_A_TEST & fixtures:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=duration_bound_s, reverse=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let only a few tests be repeated, of those that share the machine's time with others and depend on it."""
    # No collection examines the tests, which all stay to the end.
    gc.freeze()
    if not session.config.getoption("second_look"):
        return
    failed = [item.nodeid for item in session.items]
    proofs = [nodeid for nodeid in failed if nodeid.startswith(PROOFS)]
    if proofs or len(failed) > REPEATED_MAX:
        pytest.exit(f"not repeated: {len(failed)} tests failed, among them {proofs or 'no proof'}", returncode=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests that pass alone, and failed beside others."""
    if config.getoption("second_look"):
        for report in terminalreporter.getreports("passed"):
            terminalreporter.write_line(f"passes alone, failed beside other tests: {report.nodeid}")


def duration_bound_s(item: pytest.Item) -> float:
    """Return the most that a test may take, by which tests are started: the longest must not be left to the end.

    All that shares the Spark session is one unit of work, and comes first.
    """
    if item.nodeid.startswith("tests/spark/") and not item.nodeid.startswith(FOLLOWED):
        return float("inf")
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark and mark.args else 0.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With --dist loadgroup, the tests in tests/spark that share the Spark session run in one process, those with
    drivers of their own on the cluster in another, those with database servers in a third, and those of the web admin,
    which share a cluster of brokers, in a fourth. Files of BY_FILE stay whole,
    because the tests of a file share a server; the rest runs in any process. Units of work keep the order of the tests.

    The marks that xdist reads for this are lost on the way with pytest 9.2: the scheduler sees names of tests only.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class ProcessesForSpark(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(FOLLOWED):
                return nodeid
            if nodeid.startswith(ON_CLUSTER):
                return "spark-cluster"
            if nodeid.startswith(BY_FILE):
                return nodeid.partition("::")[0]
            if nodeid.startswith(ON_ONE_CLUSTER):
                return "admin"
            if nodeid.startswith(ON_DATABASES):
                return "databases"
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            # Finished units are forgotten: xdist examines all units of a process after each test, which are thousands.
            for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[scope]
            pending: int = super()._pending_of(workload)
            return pending

    return ProcessesForSpark(config, log)
