"""Fixtures for the tests of pyqd.testing."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyqd.testing.daemon import BrokerProcess
from tests.support.server import REPOSITORY
from tests.testing.world import DaemonWorld, MemoryWorld, World

PYTEST_WAIT_S = 50.0
NUMBERS = itertools.count()

PytestRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as process:
        yield process


@pytest.fixture(scope="module")
def daemon_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


# The daemon takes the times of the tests, up to two seconds.
@pytest.fixture(params=["memory", pytest.param("daemon", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each of the two brokers in turn."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    process: BrokerProcess = request.getfixturevalue("daemon_process")
    with ExitStack() as stack:
        yield DaemonWorld(process, stack)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test has."""
    return re.sub(r"\W", ".", request.node.name)[-40:].lstrip(".") + f".{next(NUMBERS)}"


@pytest.fixture
def run_pytest(tmp_path: Path) -> PytestRun:
    """Return a function that runs the tests in a text with pyqd's plugin, as a user does."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")

    def run(tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (project / "test_it.py").write_text(tests)
        # The plugin is named, because the entry points of an environment may be older than the sources.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY)}
        options = ["-p", "pyqd.testing.plugin", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'temporary'}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        return subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=PYTEST_WAIT_S, check=False
        )

    return run
