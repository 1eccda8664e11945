"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# Each starts a daemon for one test, which takes longer than most tests: these are not for a quick look.
ONE_DAEMON_A_TEST = {"own_server", "start", "asking", "target"}

ON_CLUSTER = ("tests/spark/test_cluster.py", "tests/spark/test_batch_kills.py")
FOLLOWED = ("tests/spark/test_docs.py", "tests/spark/test_jobs_docs.py")


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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pyqd_only(reason): pyqd differs here on purpose; not run against nsqd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ONE_DAEMON_A_TEST & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With --dist loadgroup, the tests in tests/spark that share the Spark session run in one process, those with
    drivers of their own on the cluster in another; the rest runs in any process.

    The marks that xdist reads for this are lost on the way with pytest 9.2: the scheduler sees names of tests only.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ProcessesForSpark(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(FOLLOWED):
                return nodeid
            if nodeid.startswith(ON_CLUSTER):
                return "spark-cluster"
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return ProcessesForSpark(config, log)
