"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nsqd",
        metavar="PATH",
        default=os.environ.get("NSQD") or None,
        help="run the protocol tests against this nsqd binary too (default: the environment variable NSQD)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pyqd_only(reason): pyqd differs here on purpose; not run against nsqd")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With --dist loadgroup all of tests/spark runs in one process, with one Spark session; the rest wherever it can.

    The marks that xdist reads for this are lost on the way with pytest 9.2: the scheduler sees names of tests only.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneProcessForSpark(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return OneProcessForSpark(config, log)
