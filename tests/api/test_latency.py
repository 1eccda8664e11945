"""The end-to-end latency percentiles in /stats."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nsq import Client
from tests.support.preloaded import completed
from tests.support.server import Daemon, Implementation
from tests.support.two_servers import run_server

FLAGS = ("-e2e-processing-latency-percentile=0.5", "-e2e-processing-latency-percentile=0.99,1.0")
NONE = {"count": 0, "percentiles": [{"quantile": quantile, "value": 0} for quantile in (1, 0.99, 0.5)]}
SECOND_NS = 10**9


@pytest.fixture(scope="module")
def measuring(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from run_server(implementation, tmp_path_factory, FLAGS)


def latencies(daemon: Daemon, topic: str) -> tuple[Any, dict[str, Any]]:
    """Return the statistics' percentiles of a topic, and by name of its channels."""
    stats = daemon.topic(topic)
    assert stats is not None
    channels = {channel["channel_name"]: channel["e2e_processing_latency"] for channel in stats["channels"]}
    return stats["e2e_processing_latency"], channels


def test_without_the_flag_there_are_none(client: Client, server: Daemon, topic: str) -> None:
    client.pub(topic, b"x")
    client.sub(topic, rdy_count=1)
    client.fin(client.read_message())
    client.expect_alive()
    nothing = {"count": 0, "percentiles": None}
    assert latencies(server, topic) == (nothing, {"c": nothing})


@pytest.mark.slow
def test_a_topic_without_channels_has_null_and_an_idle_channel_zeros(measuring: Daemon, topic: str) -> None:
    measuring.http("POST", "/topic/create", topic=topic)
    assert latencies(measuring, topic) == ({"count": 0, "percentiles": None}, {})
    measuring.http("POST", "/channel/create", topic=topic, channel="c")
    assert latencies(measuring, topic) == (NONE, {"c": NONE})


def test_a_finished_message_counts_from_its_publishing(measuring: Daemon, topic: str) -> None:
    with Client(measuring.tcp_address) as client:
        before_ns = time.monotonic_ns()
        client.pub(topic, b"x")
        client.sub(topic, rdy_count=1)
        client.fin(client.read_message())
        client.expect_alive()
        took_ns = time.monotonic_ns() - before_ns
    of_topic, channels = latencies(measuring, topic)
    assert of_topic == channels["c"]
    assert of_topic["count"] == 1
    assert [entry["quantile"] for entry in of_topic["percentiles"]] == [1, 0.99, 0.5]
    values = {entry["value"] for entry in of_topic["percentiles"]}
    assert len(values) == 1
    assert 0 < values.pop() < took_ns + SECOND_NS


def test_a_topic_has_those_of_its_channels_together_and_text_for_people(measuring: Daemon, topic: str) -> None:
    for channel in ("a", "b"):
        measuring.http("POST", "/topic/create", topic=topic)
        measuring.http("POST", "/channel/create", topic=topic, channel=channel)
    with Client(measuring.tcp_address) as a, Client(measuring.tcp_address) as b:
        a.mpub(topic, [b"x"] * 20)
        a.sub(topic, "a", rdy_count=20)
        for message in a.read_messages(20):
            a.fin(message)
        a.expect_alive()
        b.sub(topic, "b", rdy_count=20)
        for message in b.read_messages(20)[:10]:
            b.fin(message)
        b.expect_alive()
        of_topic, channels = latencies(measuring, topic)
        assert (of_topic["count"], channels["a"]["count"], channels["b"]["count"]) == (30, 20, 10)
        highest = max(channel["percentiles"][0]["value"] for channel in channels.values())
        assert of_topic["percentiles"][0]["value"] == highest
        text = measuring.http("GET", "/stats", topic=topic).body.decode()
    number = r"\d+\.\d(s|ms|us|ns)"
    assert re.search(rf"\[{topic} *\] .* e2e%: {number}, {number}, {number}\n", text)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1.5", "-0.5"])
def test_an_invalid_percentile_is_refused(implementation: Implementation, value: str, tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.mktemp("none")
    command = [*implementation.argv, f"-data-path={directory}", f"-e2e-processing-latency-percentile={value}"]
    done = completed(command)
    assert done.returncode == 1
    assert f"invalid E2E processing latency percentile: {value}" in done.stdout + done.stderr
