"""Servers for tests of the benchmark."""

import importlib.util

import pytest

from bench.server import Target


def broker(request: pytest.FixtureRequest, name: str) -> Target:
    """Return the target of that name; skip the test when it is not there."""
    if name == "nsqd":
        path = request.config.getoption("--nsqd")
        if path is None:
            pytest.skip("no nsqd was given")
        return Target.parse(path)
    if name == "pyqd" and importlib.util.find_spec("pyqd.apps.daemon") is None:
        pytest.skip("this tree has no daemon")
    return Target.parse(name)
