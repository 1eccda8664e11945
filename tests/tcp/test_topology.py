"""Topology-aware consumption: a client in the server's zone comes before one in its region, and that before others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, Implementation, wait_until
from tests.support.two_servers import Connect

PLACES = {
    "zone": {"topology_region": "r1", "topology_zone": "z1"},
    "region": {"topology_region": "r1", "topology_zone": "z2"},
    "other": {"topology_region": "r2", "topology_zone": "z3"},
}


@pytest.fixture(scope="module")
def aware(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("-topology-region=r1", "-topology-zone=z1", "-enable-experiment=topology-aware-consumption")
    daemon = Daemon(implementation, tmp_path_factory.mktemp("topology"), flags).start()
    yield daemon
    daemon.stop()


def consumer(connect: Connect, daemon: Daemon, topic: str, place: str, rdy_count: int) -> Client:
    client = connect(daemon)
    client.identify(**PLACES[place])
    client.sub(topic, rdy_count=rdy_count)
    return client


def publish_one_by_one(connect: Connect, daemon: Daemon, topic: str, count: int) -> None:
    """Publish messages, each after the one before was delivered, so that all consumers wait for it."""
    producer = connect(daemon)
    for number in range(count):
        producer.pub(topic, b"%d" % number)
        daemon.wait_for_channel(topic, "c", in_flight_count=number + 1)


def counts(daemon: Daemon, topic: str) -> dict[str, int]:
    channel = daemon.channel(topic, "c") or {}
    names = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
    return {name.partition("_")[0]: channel[name] for name in names if name in channel}


@pytest.mark.pyqd_only(reason="nsqd prefers the nearest of those whose goroutine waits at that instant: most times")
def test_the_nearest_that_can_take_a_message_gets_it(connect: Connect, aware: Daemon, topic: str) -> None:
    for place, rdy_count in (("other", 100), ("region", 3), ("zone", 5)):
        consumer(connect, aware, topic, place, rdy_count)
    wait_until(lambda: ready_counts(aware, topic) == [3, 5, 100], "all consumers are ready")
    publish_one_by_one(connect, aware, topic, 10)
    assert counts(aware, topic) == {"zone": 5, "region": 3, "global": 2}


def ready_counts(daemon: Daemon, topic: str) -> list[int]:
    channel = daemon.channel(topic, "c") or {"clients": []}
    return sorted(client["ready_count"] for client in channel["clients"])


@pytest.mark.parametrize("place", PLACES)
def test_a_lone_consumer_gets_all_wherever_it_is(connect: Connect, aware: Daemon, topic: str, place: str) -> None:
    client = consumer(connect, aware, topic, place, 10)
    publish_one_by_one(connect, aware, topic, 3)
    assert len(client.read_messages(3)) == 3
    assert counts(aware, topic) == {{"other": "global"}.get(place, place): 3}


@pytest.mark.pyqd_only(reason="as above")
def test_consumers_as_near_as_one_another_share(connect: Connect, aware: Daemon, topic: str) -> None:
    clients = [consumer(connect, aware, topic, place, 10) for place in ("zone", "zone", "other")]
    wait_until(lambda: ready_counts(aware, topic) == [10, 10, 10], "all consumers are ready")
    connect(aware).mpub(topic, [b"%d" % number for number in range(10)])
    for client in clients[:2]:
        assert len(client.read_messages(5)) == 5
    assert counts(aware, topic) == {"zone": 10}


def test_without_the_experiment_all_count_as_far(connect: Connect, narrow_server: Daemon, topic: str) -> None:
    client = consumer(connect, narrow_server, topic, "zone", 5)
    connect(narrow_server).pub(topic, b"x")
    client.read_message()
    assert counts(narrow_server, topic) == {"global": 1}
