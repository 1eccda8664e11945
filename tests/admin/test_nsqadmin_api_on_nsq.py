"""The tests of nsqadmin's JSON API once more, on NSQ's own nsqd and nsqlookupd if NSQD and NSQLOOKUPD name them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.admin.conftest import Admin, World
from tests.admin.test_nsqadmin_api import TestChanging as TestChangingOnNsq
from tests.admin.test_nsqadmin_api import TestConfig as TestConfigOnNsq
from tests.admin.test_nsqadmin_api import TestForm as TestFormOnNsq
from tests.admin.test_nsqadmin_api import TestReading as TestReadingOnNsq

__all__ = ["TestChangingOnNsq", "TestConfigOnNsq", "TestFormOnNsq", "TestReadingOnNsq"]


@pytest.fixture(scope="module")
def world(nsq_world: World) -> World:
    return nsq_world


@pytest.fixture(scope="module", params=["pyqadmin", "nsqadmin"])
def admin(request: pytest.FixtureRequest, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin in front of the lookup daemon."""
    return start_admin(request.param, f"--lookupd-http-address={world.lookupd}")


@pytest.fixture(scope="module", params=["pyqadmin", "nsqadmin"])
def direct(request: pytest.FixtureRequest, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin in front of the brokers, without a lookup daemon."""
    return start_admin(request.param, *(f"--nsqd-http-address={address}" for address in world.addresses()))
