"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Daemon
from tests.support.workers import Spawn, url_of, workers_in


@pytest.fixture
def url(daemon: Daemon) -> str:
    """URL of the daemon, with its HTTP address."""
    return url_of(daemon)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Function that starts Python programs, which are killed after the test."""
    with workers_in(tmp_path) as start:
        yield start
