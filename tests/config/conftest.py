"""Tests that take `implementation` run against pyqd, and against nsqd when a path to one is given."""

from tests.support.two_servers import pytest_generate_tests  # noqa: F401 -- a hook of pytest
