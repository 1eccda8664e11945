"""Polls of lookup daemons whose answers cannot be used."""

from __future__ import annotations

from pyqd.client.connecting import Lookup
from pyqd.client.engine.engine import Engine
from pyqd.client.settings import make_settings
from pyqd.primitives.addresses import Address
from tests.support.http_stub import http_stub, json_answer
from tests.support.server import wait_until


def test_an_error_in_the_use_of_an_answer_does_not_end_the_polls(engine: Engine) -> None:
    calls: list[list[Address]] = []

    def fail(addresses: list[Address]) -> None:
        calls.append(addresses)
        raise ZeroDivisionError

    with http_stub(lambda path, query: json_answer({"producers": []})) as stub:
        lookup = Lookup(engine, [f"http://{stub.address}/lookup"], make_settings({"lookupd_poll_interval": 0.05}), "t")
        with engine.lock:
            lookup.start(fail)
        wait_until(lambda: len(calls) >= 2, "a second answer")
        with engine.lock:
            lookup.stop()
