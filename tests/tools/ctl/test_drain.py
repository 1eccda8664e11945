"""pyqctl drain, against real brokers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from pyqd.tools.ctl.contexts import Context, CtlTarget
from pyqd.tools.ctl.drain import progress_of
from pyqd.tools.ctl.nodes import AskedBroker
from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.tools.ctl.conftest import Ctl, Ran, address_of


def test_a_drain_waits_for_messages_in_flight_and_for_the_end(daemon: Daemon, tmp_path: Path) -> None:
    ctl = Ctl(tmp_path, address_of(daemon))
    daemon.http("POST", "/topic/create", topic="orders")
    with Client(daemon.tcp_address) as client:
        client.pub("orders", b"x")
        client.sub("orders", "email", rdy_count=1)
        message = client.read_message()
        ran: list[Ran] = []
        thread = threading.Thread(target=lambda: ran.append(ctl("drain", "--yes", "--for=60s")))
        thread.start()
        wait_until(lambda: daemon.http("GET", "/drain").json()["draining"], "the drain has begun")
        client.fin(message)
        thread.join()
    assert daemon.wait_ended() == 0
    lines = [json.loads(line) for line in ran[0].out.splitlines()]
    assert (lines[0]["state"], lines[0]["in_flight"], lines[-1]["state"]) == ("draining", 1, "stopped")
    assert ran[0].code == 0


def test_a_broker_that_does_not_drain_any_more_is_a_new_process(broker: Daemon) -> None:
    with AskedBroker(address_of(broker), CtlTarget(Context()), None, 10.0, tls=False) as node:
        assert progress_of(node, {"draining": True, "in_flight": 0}) is None


def test_the_limit_of_a_request_is_not_the_limit_of_the_drain(daemon: Daemon, tmp_path: Path) -> None:
    ctl = Ctl(tmp_path, address_of(daemon))
    daemon.http("POST", "/topic/create", topic="orders")
    with Client(daemon.tcp_address) as client:
        client.pub("orders", b"x")
        client.sub("orders", "email", rdy_count=1)
        client.read_message()
        ran = ctl("drain", "--yes", "--no-wait", "--timeout=5s")
    # That of the broker, 30 s.
    assert json.loads(ran.out)["remaining_ms"] > 5000


def test_a_drain_asks_first(ctl: Ctl, broker: Daemon) -> None:
    ran = ctl("drain")
    assert ran.code == 2
    assert f"Drain and stop the broker {address_of(broker)}, with 0 messages in flight and 0 consumers?" in ran.err
    assert not broker.http("GET", "/drain").json()["draining"]


def test_of_several_brokers_one_must_be_named(both: Ctl, broker: Daemon, second_broker: Daemon) -> None:
    ran = both("drain", "--yes")
    assert ran.code == 2
    assert f"name one of {address_of(broker)}, {address_of(second_broker)}" in ran.err
    assert both("drain", "127.0.0.1:1", "--yes").code == 2
    assert both("drain", address_of(second_broker)).err.count(address_of(second_broker)) == 1
    assert not broker.http("GET", "/drain").json()["draining"]


def test_nsqd_cannot_be_drained(go_ctl: Ctl) -> None:
    assert go_ctl("drain", "--yes").code == 6
