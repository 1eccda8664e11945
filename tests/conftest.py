"""Fixtures shared by all tests."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nsqd",
        metavar="PATH",
        default=os.environ.get("NSQD") or None,
        help="run the protocol tests against this nsqd binary too (default: the environment variable NSQD)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pyqd_only(reason): pyqd differs here on purpose; not run against nsqd")
