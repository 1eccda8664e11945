"""Answers of a lookup daemon about a large cluster, beside the other work of its loop."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from pyqd.http.messages import Request
from pyqd.lookupd.api import LookupRoutes
from pyqd.lookupd.registry import Peer, RegisteredBroker, Registry

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TOPICS, BROKERS = 400, 200


def large() -> tuple[Registry, list[RegisteredBroker]]:
    """Return a registry of many brokers that have the same topics."""
    registry = Registry()
    producers = []
    for number in range(BROKERS):
        peer = Peer(f"10.0.0.{number}:1", f"host{number}", f"10.0.0.{number}", 4150, 4151, "1.3.0")
        producers.append(registry.add(peer, 0))
        for topic in range(TOPICS):
            registry.register(producers[-1], f"topic-{topic}")
    return registry, producers


@contextmanager
def leaving(registry: Registry, producers: list[RegisteredBroker]) -> Iterator[None]:
    """Within the block: brokers leave and topics come and go, one each time that the loop runs its timers."""

    def leave() -> Iterator[None]:
        for producer in producers:
            registry.remove(producer)
            list(registry.topic_deletion(f"topic-{TOPICS - 1}"))
            registry.create_topic("new")
            yield

    timer = gevent.get_hub().loop.timer(0.001, 0.001)
    timer.start(next, leave(), None)
    try:
        yield
    finally:
        timer.stop()
        timer.close()


def ask(registry: Registry, method: str, path: str, query: str = "") -> bytes:
    """Return the body of an answer."""
    routes = LookupRoutes(registry, now_ns=lambda: 1).routes()
    [route] = [each for each in routes if each.path == path]
    return route.handler(Request(method, path + query, "HTTP/1.1", {})).body


@pytest.mark.parametrize("path", ["/nodes", "/debug"])
def test_brokers_are_served_while_an_answer_about_all_of_them_is_made(path: str) -> None:
    registry, producers = large()
    with leaving(registry, producers):
        answer = json.loads(ask(registry, "GET", path))
    gone = BROKERS - registry.counts()["producers"]
    assert gone >= 2
    found = answer["producers"] if path == "/nodes" else answer["topic:topic-0:"]
    assert BROKERS - gone <= len(found) <= BROKERS
    addresses = {each["broadcast_address"] for each in found}
    assert {each.peer.broadcast_address for each in registry.producers()} <= addresses


def test_brokers_are_served_while_all_topics_are_deleted() -> None:
    registry, producers = large()
    with leaving(registry, producers):
        ask(registry, "POST", "/topic/delete", "?topic=*")
    assert registry.counts()["producers"] <= BROKERS - 2
    assert registry.topics() == ["new"]
    assert registry.counts()["registrations"] == 0
