"""pyqctl topics, channels, nodes and watch, against real brokers."""

from __future__ import annotations

import json

import pytest

from pyqd import __version__
from tests.support.http_stub import http_stub
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port
from tests.tools.ctl.conftest import Ctl, address_of


def publish(daemon: Daemon, topic: str, count: int, channel: str = "email") -> None:
    assert daemon.http("POST", "/topic/create", topic=topic).status == 200
    assert daemon.http("POST", "/channel/create", topic=topic, channel=channel).status == 200
    with Client(daemon.tcp_address) as client:
        client.mpub(topic, [b"0123456789"] * count)


def test_topics_are_listed_with_their_counters(ctl: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic, 3)
    assert ctl("topics", topic).json() == {
        "topics": [
            {
                "topic": topic,
                "nodes": [address_of(broker)],
                "paused_nodes": [],
                "depth": 0,
                "message_count": 3,
                "message_bytes": 30,
                "channel_depth": 3,
                "channel_in_flight_count": 0,
                "channel_deferred_count": 0,
                "channel_count": 1,
            }
        ]
    }


def test_counters_are_sums_over_brokers(both: Ctl, broker: Daemon, second_broker: Daemon, topic: str) -> None:
    publish(broker, topic, 3)
    publish(second_broker, topic, 4, "audit")
    (row,) = both("topics", topic).json()["topics"]
    assert (row["message_count"], row["channel_count"], len(row["nodes"])) == (7, 2, 2)
    rows = both("topics", topic, "--by-node").json()["topics"]
    assert {(row["nodes"][0], row["message_count"]) for row in rows} == {
        (address_of(broker), 3),
        (address_of(second_broker), 4),
    }


def test_a_pattern_selects_topics_and_channels(ctl: Ctl, broker: Daemon, topic: str) -> None:
    for end in ("-a", "-b"):
        publish(broker, topic + end, 1)
    assert [row["topic"] for row in ctl("topics", f"{topic}-*").json()["topics"]] == [f"{topic}-a", f"{topic}-b"]
    assert ctl("channels", f"{topic}-?", "e*").json()["channels"][1]["topic"] == f"{topic}-b"
    assert ctl("channels", f"{topic}-?", "f*").json() == {"channels": []}


def test_topics_are_sorted_by_what_is_asked_for(ctl: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic + "-few", 1)
    publish(broker, topic + "-many", 5)
    rows = ctl("topics", f"{topic}-*", "--sort=messages").json()["topics"]
    assert [row["message_count"] for row in rows] == [5, 1]


def test_channels_are_listed_with_their_limits(ctl: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic, 2)
    broker.http("POST", "/channel/limits", topic=topic, channel="email", rate="0.5")
    (row,) = ctl("channels", topic).json()["channels"]
    assert (row["channel"], row["depth"], row["limits"]["rate"]) == ("email", 2, 0.5)
    assert "0.5" in ctl("channels", topic, "--table").out


def test_messages_in_flight_and_clients_are_counted(ctl: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic, 2)
    with Client(broker.tcp_address) as client:
        client.sub(topic, "email", rdy_count=1)
        client.read_message()
        (row,) = ctl("channels", topic).json()["channels"]
        assert (row["in_flight_count"], row["client_count"], row["depth"]) == (1, 1, 1)


def test_a_paused_topic_is_shown_as_paused(both: Ctl, broker: Daemon, second_broker: Daemon, topic: str) -> None:
    publish(broker, topic, 1)
    publish(second_broker, topic, 1)
    broker.http("POST", "/topic/pause", topic=topic)
    assert "paused on 1 of 2" in both("topics", topic, "--table").out


def test_nodes_show_health_and_kind(ctl: Ctl, broker: Daemon) -> None:
    (row,) = ctl("nodes").json()["nodes"]
    assert (row["node"], row["state"], row["kind"]) == (address_of(broker), "ok", "pyqd")
    assert (row["pyqd_version"], row["nsq_version"]) == (__version__, "1.3.0")
    assert row["tcp_port"] == broker.tcp_port
    assert "pyqd" in ctl("nodes", "--table").out


def test_a_broker_that_does_not_answer_is_listed_as_such(bare: Ctl, broker: Daemon) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("nodes", "-a", address_of(broker), "-a", absent, "--json")
    rows = {row["node"]: row["state"] for row in json.loads(ran.out)["nodes"]}
    assert rows == {address_of(broker): "ok", absent: "no answer"}
    assert ran.code == 3


def test_counters_of_the_brokers_that_answer_are_shown(bare: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic, 1)
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("topics", topic, "-a", absent, "-a", address_of(broker))
    assert ran.code == 3
    assert json.loads(ran.out)["topics"][0]["message_count"] == 1
    assert absent in ran.err


def test_without_an_answer_there_is_only_an_error(bare: Ctl) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("topics", "-a", absent)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"pyqctl: {absent}: GET /stats: Connection refused")


def test_the_port_of_the_tcp_protocol_is_named_as_such(bare: Ctl, broker: Daemon) -> None:
    ran = bare("topics", "-a", f"127.0.0.1:{broker.tcp_port}")
    assert (ran.code, ran.out) == (3, "")
    assert "the answer is not HTTP; is it the port of the TCP protocol?" in ran.err


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>", b'{"topics":'])
@pytest.mark.parametrize("option", ["-a", "-l"])
def test_another_server_is_named_as_such(bare: Ctl, option: str, body: bytes) -> None:
    with http_stub(lambda path, query: (200, {}, body)) as stub:
        ran = bare("topics", option, stub.address)
    assert (ran.code, ran.out) == (1, "")
    assert stub.address in ran.err
    assert "not the answer of" in ran.err or "no JSON" in ran.err


def test_rates_are_shown_from_the_second_reading_on(ctl: Ctl, broker: Daemon, topic: str) -> None:
    publish(broker, topic, 1)
    lines = ctl("watch", topic, "-n", "1", "--interval=100ms").out.splitlines()
    first, second = (json.loads(line)["rows"][0] for line in lines)
    assert (first["channel"], first["depth"], first["in_per_s"]) == ("email", 1, None)
    assert second["in_per_s"] == 0


def test_a_watched_topic_without_channels_has_a_line(ctl: Ctl, broker: Daemon, topic: str) -> None:
    broker.http("POST", "/pub", b"x", topic=topic)
    ran = ctl("watch", topic, "-n", "1", "--interval=100ms", "--table")
    assert ran.code == 0
    assert ran.out.count(topic) == 2


@pytest.mark.parametrize("command", [("topics",), ("channels",), ("nodes",), ("watch", "-n1", "--interval=0.1s")])
def test_nsqd_is_shown_as_well(go_ctl: Ctl, go_broker: Daemon, topic: str, command: tuple[str, ...]) -> None:
    publish(go_broker, topic, 2)
    ran = go_ctl(*command, "--table")
    assert ran.code == 0
    assert ("nsqd" if command == ("nodes",) else topic) in ran.out
