"""pyqctl consumers, against a real broker."""

from __future__ import annotations

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon
from tests.tools.ctl.conftest import Ctl, address_of

# The rates need two readings with a pause between them.
pytestmark = pytest.mark.slow


def test_consumers_are_compared_and_the_slow_one_is_marked(ctl: Ctl, broker: Daemon, topic: str) -> None:
    with (
        Client(broker.tcp_address) as publisher,
        Client(broker.tcp_address) as slow,
        Client(broker.tcp_address) as fast,
    ):
        for client, name in ((slow, "slow-1"), (fast, "fast-1")):
            client.identify(client_id=name, hostname=f"host-{name}", user_agent="tests/1")
            client.sub(topic, "email", rdy_count=1)
        publisher.mpub(topic, [b"x"] * 100)
        slow.read_message()
        for _ in range(50):
            fast.fin(fast.read_message())
        rows = ctl("consumers", topic, "email", "--interval=100ms").json()["consumers"]
        table = ctl("consumers", topic, "email", "--interval=100ms", "--table", COLUMNS="200").out
    assert [(row["client_id"], row["marks"]) for row in rows] == [("fast-1", []), ("slow-1", ["slow"])]
    fast_row, slow_row = rows
    assert (fast_row["node"], fast_row["hostname"], fast_row["user_agent"]) == (
        address_of(broker),
        "host-fast-1",
        "tests/1",
    )
    assert (fast_row["finish_count"], fast_row["in_flight_count"], fast_row["ready_count"]) == (50, 1, 1)
    assert fast_row["finished_per_s"] > 0
    assert fast_row["seconds_per_message"] == pytest.approx(1 / fast_row["finished_per_s"], rel=0.01)
    assert (slow_row["finished_per_s"], slow_row["seconds_per_message"], slow_row["share"]) == (0, None, 0)
    (line,) = [line for line in table.splitlines() if "slow-1" in line]
    assert "slow" in line.split()


def test_a_channel_that_no_broker_has_is_not_found(ctl: Ctl, topic: str) -> None:
    ran = ctl("consumers", topic, "none")
    assert (ran.code, ran.out) == (4, "")
