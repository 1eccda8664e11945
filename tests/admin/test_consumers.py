"""The page that compares the consumers of a channel."""

from __future__ import annotations

import pytest

from tests.admin.conftest import Admin, World
from tests.support.nsq import Client


@pytest.mark.slow
def test_consumers_are_compared_on_a_page(open_admin: Admin, world: World, topic: str) -> None:
    world.publish(topic, {0: 20}, channel="c")
    with Client(world.brokers[0].tcp_address) as quick, Client(world.brokers[0].tcp_address) as lazy:
        quick.identify(client_id="quick", hostname="quick")
        lazy.identify(client_id="lazy", hostname="lazy")
        quick.sub(topic, "c", rdy_count=1)
        for _ in range(10):
            quick.fin(quick.read_message())
        lazy.sub(topic, "c", rdy_count=0)
        world.brokers[0].wait_for_channel(topic, "c", client_count=2)
        answer = open_admin.ask("GET", f"/topics/{topic}/c/consumers")
        page = answer.body.decode()
        rows = [row for row in page.split("<tr") if "quick" in row or "lazy" in row]
        assert (answer.status, len(rows)) == (200, 2)
        assert ["not ready" in row for row in rows] == ["lazy" in row for row in rows]
    assert open_admin.ask("GET", f"/topics/{topic}/nothing/consumers").status == 404
