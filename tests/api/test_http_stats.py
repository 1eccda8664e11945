"""GET /stats, /info and /ping of a daemon at work, and a client that reads them as nsqadmin does."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from pyqd import __version__
from tests.support.nsqadmin import Admin
from tests.support.server import Daemon
from tests.support.two_servers import Connect

TEXT = "text/plain; charset=utf-8"
CHANNEL_KEYS = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "global_msg_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
TOPIC_KEYS = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CLIENT_KEYS = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "topology_zone",
    "topology_region",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]
NO_LATENCY = {"count": 0, "percentiles": None}


def stats(server: Daemon, **query: str) -> dict[str, Any]:
    reply = server.http("GET", "/stats", None, format="json", **query)
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["x-nsq-content-type"] == "nsq; version=1.0"
    found: dict[str, Any] = reply.json()
    return found


def work(server: Daemon, connect: Connect, topic: str) -> None:
    """Six messages: one finished, one requeued, one in flight, one deferred, two waiting; two clients, one closing."""
    consumer, closing, publisher = connect(), connect(), connect()
    consumer.identify(
        client_id="cons", hostname="conshost", user_agent="py/1", topology_zone="z1", topology_region="r1"
    )
    consumer.sub(topic, "email", rdy_count=1)
    closing.sub(topic, "email")
    closing.send(b"CLS\n")
    closing.expect_response(b"CLOSE_WAIT")
    assert server.http("POST", f"/channel/create?topic={topic}&channel=audit").status == 200
    assert server.http("POST", f"/channel/pause?topic={topic}&channel=audit").status == 200
    publisher.identify(client_id="prod", hostname="prodhost", user_agent="ua/1")
    publisher.pub_each(topic, [b"1", b"22", b"333", b"4444", b"55555"])
    publisher.dpub(topic, 60000, b"666666")
    consumer.fin(consumer.read_message())
    consumer.req(consumer.read_message(), 0)
    consumer.read_message()
    server.wait_for_channel(topic, "email", depth=3, in_flight_count=1, deferred_count=1)


def test_ping_is_ok_without_a_version_of_the_api(server: Daemon) -> None:
    reply = server.http("GET", "/ping")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"OK", TEXT)
    assert "x-nsq-content-type" not in reply.headers
    reply = server.http("POST", "/ping")
    # nsqd does not answer HEAD.
    assert (reply.status, reply.headers["allow"].replace("HEAD, ", "")) == (405, "GET, OPTIONS")


def test_info_shows_ports_limits_and_topology(narrow_server: Daemon) -> None:
    info = narrow_server.http("GET", "/info").json()
    assert abs(info.pop("start_time") - time.time()) < 3600
    info.pop("hostname")
    assert list(info.items()) == [
        ("version", "1.3.0"),
        ("broadcast_address", "127.0.0.1"),
        ("http_port", narrow_server.http_port),
        ("tcp_port", narrow_server.tcp_port),
        ("max_heartbeat_interval", 5_000_000_000),
        ("max_output_buffer_size", 1024),
        ("max_output_buffer_timeout", 1_000_000_000),
        ("max_deflate_level", 3),
        ("topology_zone", "z1"),
        ("topology_region", "r1"),
        *([("pyqd_version", __version__)] if narrow_server.implementation.name == "pyqd" else []),
    ]


def nsqds_keys(found: dict[str, Any]) -> list[str]:
    """Return the keys of /stats without pyqd's own."""
    return [key for key in found if key != "pyqd_version"]


def test_everything_has_its_key_in_nsqds_order(server: Daemon, connect: Connect, topic: str) -> None:
    work(server, connect, topic)
    found = stats(server, topic=topic)
    assert nsqds_keys(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    (shown,) = found["topics"]
    assert list(shown) == TOPIC_KEYS
    audit, email = shown.pop("channels")
    assert shown == {
        "topic_name": topic,
        "depth": 0,
        "backend_depth": 0,
        "message_count": 6,
        "message_bytes": 21,
        "paused": False,
        "e2e_processing_latency": NO_LATENCY,
    }
    assert list(email) == CHANNEL_KEYS
    assert list(audit) == [key for key in CHANNEL_KEYS if key != "global_msg_count"]
    assert (audit["depth"], audit["deferred_count"], audit["paused"], audit["clients"]) == (5, 1, True, [])
    counts = {key: email[key] for key in CHANNEL_KEYS if key not in ("clients", "channel_name", "paused")}
    assert counts == {
        "depth": 3,
        "backend_depth": 0,
        "in_flight_count": 1,
        "deferred_count": 1,
        "message_count": 6,
        "global_msg_count": 3,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": 2,
        "e2e_processing_latency": NO_LATENCY,
    }


def test_clients_are_shown_with_their_identities_and_counters(server: Daemon, connect: Connect, topic: str) -> None:
    work(server, connect, topic)
    found = stats(server, topic=topic, channel="email")
    (channel,) = found["topics"][0]["channels"]
    by_id = {client["client_id"]: client for client in channel["clients"]}
    consumer, closing = by_id["cons"], by_id["127.0.0.1"]
    assert list(consumer) == list(closing) == CLIENT_KEYS
    told = {key: consumer[key] for key in ("hostname", "user_agent", "topology_zone", "topology_region", "version")}
    assert told == {
        "hostname": "conshost",
        "user_agent": "py/1",
        "topology_zone": "z1",
        "topology_region": "r1",
        "version": "V2",
    }
    counts = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
    assert [consumer[key] for key in counts] == [3, 1, 1, 3, 1, 1]
    assert [closing[key] for key in counts] == [4, 0, 0, 0, 0, 0]
    assert (closing["hostname"], closing["user_agent"]) == ("127.0.0.1", "")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", consumer["remote_address"])
    (producer,) = [
        client for client in found["producers"] if client.get("pub_counts") == [{"topic": topic, "count": 6}]
    ]
    assert list(producer) == [*CLIENT_KEYS[:17], "pub_counts", *CLIENT_KEYS[17:]]
    assert (producer["client_id"], producer["hostname"], producer["state"]) == ("prod", "prodhost", 0)


def test_filters_choose_topics_and_channels(server: Daemon, connect: Connect, topic: str) -> None:
    work(server, connect, topic)
    assert [shown["topic_name"] for shown in stats(server, topic=topic)["topics"]] == [topic]
    (shown,) = stats(server, topic=topic, channel="audit")["topics"]
    assert [channel["channel_name"] for channel in shown["channels"]] == ["audit"]
    assert stats(server, topic=topic, channel="none")["topics"] == []
    everywhere = stats(server, channel="audit")["topics"]
    assert topic in [shown["topic_name"] for shown in everywhere]
    assert all([channel["channel_name"] for channel in shown["channels"]] == ["audit"] for shown in everywhere)
    unknown = stats(server, topic="none_such")
    assert (unknown["topics"], unknown["producers"]) == (None, None)
    names = [shown["topic_name"] for shown in stats(server)["topics"]]
    assert names == sorted(names)


@pytest.mark.parametrize("off", ["false", "0"])
def test_clients_and_memory_can_be_left_out(server: Daemon, connect: Connect, topic: str, off: str) -> None:
    work(server, connect, topic)
    found = stats(server, topic=topic, include_clients=off, include_mem=off)
    assert nsqds_keys(found) == ["version", "health", "start_time", "topics", "producers"]
    assert found["producers"] is None
    assert [(channel["clients"], channel["client_count"]) for channel in found["topics"][0]["channels"]] == [
        (None, 0),
        (None, 2),
    ]
    for on in ("true", "1", "x", ""):
        found = stats(server, topic=topic, include_clients=on, include_mem=on)
        assert len(found["topics"][0]["channels"][1]["clients"]) == 2
        assert found["memory"]["heap_in_use_bytes"] > 0


def test_memory_is_shown_in_numbers(server: Daemon) -> None:
    memory = stats(server)["memory"]
    assert list(memory) == [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ]
    assert all(type(value) is int and value >= 0 for value in memory.values())
    assert min(memory["heap_objects"], memory["heap_in_use_bytes"]) > 1000


def test_text_is_for_people(server: Daemon, connect: Connect, topic: str) -> None:
    work(server, connect, topic)
    reply = server.http("GET", f"/stats?topic={topic}&format=JSON")
    assert (reply.status, reply.headers["content-type"]) == (200, TEXT)
    text = reply.body.decode()
    program = r"(nsqd v1\.3\.0 \(|pyqd v\S+ \(NSQ v1\.3\.0, )built w/\S+\)"
    assert re.match(rf"{program}\nstart_time \S+\nuptime \S+s\n\nHealth: OK\n\nMemory:\n", text)
    assert re.search(r"\n   heap_objects             \t\d+\n", text)
    topic_line = f"\n\nTopics:\n   [{topic:<15}] depth: 0     be-depth: 0     msgs: 6        e2e%: \n"
    assert topic_line in text
    assert (
        "\n   *P [audit                    ] depth: 5     be-depth: 0     inflt: 0    def: 1    re-q: 0     "
        "timeout: 0     msgs: 6        e2e%: \n"
    ) in text
    assert (
        "\n      [email                    ] depth: 3     be-depth: 0     inflt: 1    def: 1    re-q: 1     "
        "timeout: 0     msgs: 6        e2e%: \n"
    ) in text
    assert re.search(
        r"\n        \[V2 conshost:\d+ py/1\s*\] state: 3 inflt: 1    rdy: 1    fin: 1        re-q: 1        "
        r"msgs: 3        connected: \d+s\n",
        text,
    )
    assert re.search(rf"\n   \[V2 prodhost:\d+ ua/1\s*\] msgs: 6        topics: {topic}=6 connected: \d+s\n", text)


def test_text_of_an_unknown_topic_says_none(server: Daemon) -> None:
    text = server.http("GET", "/stats?topic=none_such&include_mem=false&include_clients=false").body.decode()
    assert text.endswith("\nHealth: OK\n\nTopics: None\n\nProducers: None\n")
    assert "Memory" not in text


@pytest.mark.slow
def test_nsqadmin_finds_its_way(server: Daemon, connect: Connect, topic: str) -> None:
    work(server, connect, topic)
    admin = Admin(server)
    node = admin.node()
    assert (node["tcp_port"], node["http_port"]) == (server.tcp_port, server.http_port)
    assert topic in [shown["topic_name"] for shown in admin.stats()]
    (shown,) = admin.stats(topic, clients=False)
    assert [(channel["channel_name"], channel["clients"]) for channel in shown["channels"]] == [
        ("audit", []),
        ("email", []),
    ]
    (shown,) = admin.stats(topic, "email")
    (channel,) = shown["channels"]
    assert (channel["depth"], channel["global_msg_count"], len(channel["clients"])) == (3, 3, 2)
    for action, paused in (("pause", True), ("unpause", False)):
        admin.post(f"/topic/{action}", topic=topic)
        admin.post(f"/channel/{action}", topic=topic, channel="email")
        (shown,) = admin.stats(topic, "email")
        assert (shown["paused"], shown["channels"][0]["paused"]) == (paused, paused)
    admin.post("/channel/empty", topic=topic, channel="email")
    assert admin.stats(topic, "email")[0]["channels"][0]["depth"] == 0
    admin.post("/channel/delete", topic=topic, channel="email")
    assert [channel["channel_name"] for channel in admin.stats(topic)[0]["channels"]] == ["audit"]
    admin.post("/topic/delete", topic=topic)
    assert admin.stats(topic) == []
