"""Page of the durability of brokers."""

from __future__ import annotations

import pytest

from pyqd.admin.cluster import ClusterNode
from pyqd.admin.durability import ABSENT_POLLS, DurabilityReader
from pyqd.admin.upstream import Upstream
from tests.admin.conftest import Admin, World
from tests.support.server import wait_until


@pytest.mark.slow
def test_the_state_of_each_broker_is_shown(open_admin: Admin, world: World) -> None:
    def page() -> str:
        return open_admin.ask("GET", "/durability").body.decode()

    wait_until(lambda: "Publishing stops below" in page(), "the first poll")
    shown = page()
    for text in (*world.addresses(), "new data directory", "every 2 s or 2,500 messages", "64.0 MiB"):
        assert text in shown
    assert "found damage" in shown


def test_a_broker_without_the_call_is_asked_now_and_then(world: World) -> None:
    upstream = Upstream()
    # A lookup daemon answers an unknown path as an nsqd does.
    host, _, port = world.lookupd.partition(":")
    nodes = [ClusterNode("other", host, 0, int(port), "1.3.0")]
    try:
        reader = DurabilityReader(upstream)
        for _ in range(3):
            (state,) = reader.read(nodes).values()
            assert (state.is_known, state.is_absent) == (False, True)
        assert list(reader._absent.values()) == [1 + ABSENT_POLLS]
    finally:
        upstream.close()
