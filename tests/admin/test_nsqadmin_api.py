"""The JSON API of nsqadmin, request by request; the same tests run on nsqadmin itself.

Source: docs/nsq/admin-and-tools.md, "nsqadmin".
"""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.admin.conftest import Admin, World
from tests.support.nsq import Client
from tests.support.server import wait_until

LATENCY = {"count": 0, "percentiles": None}


def numbers(stats: dict[str, object], *names: str) -> tuple[object, ...]:
    return tuple(stats[name] for name in names)


class TestReading:
    def test_the_topics_are_the_sorted_union(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(f"{topic}_b", {0: 0})
        world.publish(f"{topic}_a", {1: 0})
        found = admin.get("/api/topics")
        mine = [name for name in found["topics"] if name.startswith(topic)]
        assert (mine, found["message"]) == ([f"{topic}_a", f"{topic}_b"], "")
        assert found["topics"] == sorted(found["topics"])

    def test_without_lookup_daemons_the_brokers_name_the_topics(self, direct: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0, 1: 0})
        assert direct.get("/api/topics")["topics"].count(topic) == 1
        assert direct.get("/api/topics?inactive=true") == {"topics": {}, "message": ""}

    @pytest.mark.slow
    def test_a_topic_without_brokers_is_inactive(self, admin: Admin, world: World, topic: str) -> None:
        world.lookup("POST", f"/topic/create?topic={topic}")
        world.lookup("POST", f"/channel/create?topic={topic}&channel=c")
        found = admin.get("/api/topics?inactive=true")
        assert (found["topics"][topic], found["message"]) == (["c"], "")
        assert topic in admin.get("/api/topics?inactive=True")["topics"]
        world.lookup("POST", f"/topic/delete?topic={topic}")

    def test_a_topic_has_sums_and_one_row_per_broker(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 3, 1: 5}, channel="c")
        found = admin.get(f"/api/topics/{topic}")
        assert numbers(found, "node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth") == (
            "*",
            "",
            topic,
            0,
            0,
            0,
        )
        assert numbers(found, "message_count", "delivery_msg_count", "paused", "message") == (8, 0, False, "")
        assert sorted(row["message_count"] for row in found["nodes"]) == [3, 5]
        assert sorted(row["node"] for row in found["nodes"]) == sorted(world.addresses())
        (channel,) = found["channels"]
        assert numbers(channel, "channel_name", "depth", "client_count", "clients") == ("c", 8, 0, None)
        assert found["e2e_processing_latency"] == LATENCY | {"topic": topic, "channel": "", "host": "*"}
        row = found["nodes"][0]
        assert (row["nodes"], row["e2e_processing_latency"]) == (
            None,
            LATENCY | {"topic": "", "channel": "", "host": ""},
        )
        assert not {"zone_local_msg_count", "region_local_msg_count", "global_msg_count"} & found.keys()

    def test_a_channel_has_its_clients(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 2, 1: 1}, channel="c")
        with Client(world.brokers[0].tcp_address) as client:
            client.identify(client_id="me", hostname="here", user_agent="tests/1")
            client.sub(topic, "c")
            client.rdy(1)
            client.read_message()
            found = admin.get(f"/api/topics/{topic}/c")
        assert numbers(found, "node", "topic_name", "channel_name", "depth", "in_flight_count", "client_count") == (
            "*",
            topic,
            "c",
            2,
            1,
            1,
        )
        (row,) = found["clients"]
        assert numbers(row, "client_id", "hostname", "user_agent", "in_flight_count", "ready_count", "tls") == (
            "me",
            "here",
            "tests/1",
            1,
            1,
            False,
        )
        assert (row["node"], row["connected"] % 1_000_000_000) == (world.addresses()[0], 0)
        assert not {"topology_region", "node_topology_zone"} & row.keys()
        assert len(found["nodes"]) == 2

    def test_an_unknown_topic_is_refused_by_the_lookup_daemon(self, admin: Admin) -> None:
        answer = admin.ask("GET", "/api/topics/nowhere")
        refused = "got response 404 Not Found " + json.dumps(
            json.dumps({"message": "TOPIC_NOT_FOUND"}, separators=(",", ":"))
        )
        expected = f"UPSTREAM_ERROR: failed to query any nsqlookupd: {refused}"
        assert (answer.status, answer.message) == (502, expected)

    def test_an_unknown_topic_has_no_broker_to_ask(self, direct: Admin) -> None:
        answer = direct.ask("GET", "/api/topics/nowhere")
        assert (answer.status, answer.message) == (502, "UPSTREAM_ERROR: failed to query any nsqd: ")

    def test_an_unknown_channel_is_not_found(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        answer = admin.ask("GET", f"/api/topics/{topic}/none")
        # The reference reads from a null pointer.
        known = (500, "INTERNAL_ERROR") if admin.is_reference else (404, "CHANNEL_NOT_FOUND")
        assert (answer.status, answer.message) == known

    def test_nodes_are_those_of_the_lookup_daemon(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        nodes = {node["http_port"]: node for node in admin.get("/api/nodes")["nodes"]}
        node = nodes[world.brokers[0].http_port]
        assert numbers(node, "broadcast_address", "tcp_port", "out_of_date") == (
            "127.0.0.1",
            world.brokers[0].tcp_port,
            False,
        )
        assert {"topic": topic, "tombstoned": False} in node["topics"]
        assert node["remote_addresses"] == [f"{world.lookupd}/{node['remote_address']}"]
        assert "topology_zone" not in node

    def test_nodes_without_lookup_daemons_have_no_remote_addresses(self, direct: Admin) -> None:
        for node in direct.get("/api/nodes")["nodes"]:
            assert (node["remote_addresses"], node["remote_address"], node["version"]) == (None, "", "1.3.0")

    def test_a_node_has_its_topics_and_totals(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {1: 4}, channel="c")
        found = admin.get(f"/api/nodes/{world.addresses()[1]}")
        (row,) = [row for row in found["topics"] if row["topic_name"] == topic]
        assert numbers(row, "message_count", "node") == (4, world.addresses()[1])
        assert found["total_messages"] == sum(row["message_count"] for row in found["topics"])
        assert numbers(found, "node", "total_clients", "message") == (world.addresses()[1], 0, "")

    def test_an_unknown_node_is_not_found(self, admin: Admin) -> None:
        answer = admin.ask("GET", "/api/nodes/127.0.0.1:1")
        assert (answer.status, answer.message) == (404, "NODE_NOT_FOUND")

    def test_the_counter_has_each_channel_of_each_broker(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 1, 1: 2}, channel="c")
        stats = admin.get("/api/counter")["stats"]
        rows = [stats[f"{topic}:c:{address}"] for address in world.addresses()]
        assert [row["message_count"] for row in rows] == [1, 2]
        assert rows[0] == {"node": world.addresses()[0], "topic_name": topic, "channel_name": "c", "message_count": 1}


class TestChanging:
    def test_a_topic_and_a_channel_are_created(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        answer = admin.send("POST", "/api/topics", {"topic": topic, "channel": "c"})
        assert (answer.status, answer.json) == (200, {"message": ""})
        assert world.brokers[0].channel(topic, "c") is not None
        assert topic in json.loads(world.lookup("GET", "/topics").body)["topics"]

    @pytest.mark.parametrize(
        ("body", "refused"),
        [
            (b"", "EOF"),
            (b'{"topic":"a b"}', "INVALID_TOPIC"),
            (b'{"topic":""}', "INVALID_TOPIC"),
            (b'{"topic":"a","channel":"c d"}', "INVALID_CHANNEL"),
        ],
    )
    def test_a_wrong_body_is_refused(self, admin: Admin, body: bytes, refused: str) -> None:
        answer = admin.ask("POST", "/api/topics", body)
        assert (answer.status, answer.message) == (400, refused)

    @pytest.mark.parametrize("body", [b"{", b'{"topic":5}', b'{"topic":"a","channel":[]}'])
    def test_a_body_that_is_no_json_or_no_text_is_refused_with_the_reason(self, admin: Admin, body: bytes) -> None:
        answer = admin.ask("POST", "/api/topics", body)
        assert (answer.status, bool(answer.message)) == (400, True)
        assert not answer.message.startswith("INVALID")

    @pytest.mark.slow
    def test_pause_unpause_and_empty_reach_all_brokers(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 2, 1: 2}, channel="c")
        path = f"/api/topics/{topic}/c"
        assert admin.send("POST", path, {"action": "pause"}).json == {"message": ""}
        assert [(broker.channel(topic, "c") or {})["paused"] for broker in world.brokers] == [True, True]
        assert admin.get(path)["paused"]
        assert admin.send("POST", path, {"action": "unpause"}).status == 200
        assert admin.send("POST", path, {"action": "empty"}).status == 200
        assert [(broker.channel(topic, "c") or {})["depth"] for broker in world.brokers] == [0, 0]
        assert admin.send("POST", f"/api/topics/{topic}", {"action": "pause"}).status == 200
        assert [(broker.topic(topic) or {})["paused"] for broker in world.brokers] == [True, True]

    def test_credentials_that_are_no_base64_do_not_refuse_an_action(
        self, open_admin: Admin, world: World, topic: str
    ) -> None:
        world.publish(topic, {0: 0})
        headers = {"Authorization": "Basic \u00e9"}
        assert open_admin.ask("POST", f"/api/topics/{topic}", b'{"action":"pause"}', headers).status == 200
        assert f"pause_topic topic={topic} by anonymous" in open_admin.log.read_text()

    def test_an_unknown_action_is_refused(self, admin: Admin, world: World, topic: str) -> None:
        answer = admin.send("POST", f"/api/topics/{topic}", {"action": "explode"})
        assert (answer.status, answer.message) == (400, "INVALID_ACTION")

    @pytest.mark.slow
    def test_a_channel_and_a_topic_are_deleted(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 1, 1: 1}, channel="c")
        wait_until(lambda: b'"c"' in world.lookup("GET", f"/channels?topic={topic}").body, "channel registered")
        assert admin.ask("DELETE", f"/api/topics/{topic}/c").json == {"message": ""}
        assert [broker.channel(topic, "c") for broker in world.brokers] == [None, None]
        assert admin.ask("DELETE", f"/api/topics/{topic}").json == {"message": ""}
        assert [broker.topic(topic) for broker in world.brokers] == [None, None]
        assert topic not in admin.get("/api/topics")["topics"]

    def test_a_tombstone_hides_a_topic_of_one_broker(self, admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 1, 1: 1})
        answer = admin.send("DELETE", f"/api/nodes/{world.addresses()[1]}", {"topic": topic})
        assert (answer.status, answer.json) == (200, {"message": ""})
        assert world.brokers[1].topic(topic) is None
        assert world.brokers[0].topic(topic) is not None

    def test_wrong_tombstones_are_refused(self, admin: Admin, world: World) -> None:
        path = f"/api/nodes/{world.addresses()[1]}"
        assert admin.ask("DELETE", path, b"").message == "INVALID_BODY"
        assert admin.send("DELETE", path, {"topic": "a b"}).message == "INVALID_TOPIC"

    def test_without_lookup_daemons_a_channel_cannot_be_created(self, direct: Admin, world: World, topic: str) -> None:
        assert direct.send("POST", "/api/topics", {"topic": topic}).json == {"message": ""}
        answer = direct.send("POST", "/api/topics", {"topic": topic, "channel": "c"})
        assert (answer.status, answer.message) == (502, "UPSTREAM_ERROR: failed to query any nsqlookupd: ")


class TestForm:
    def test_answers_carry_the_version_of_the_api(self, admin: Admin) -> None:
        answer = admin.ask("GET", "/api/nodes")
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"

    @pytest.mark.slow
    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br, gzip;q=1, deflate, gzip"])
    def test_answers_are_compressed_as_asked(self, admin: Admin, world: World, topic: str, encoding: str) -> None:
        for number in range(10):
            world.publish(f"{topic}{number}", {0: 0}, channel="c")
        plain = admin.ask("GET", "/api/counter")
        packed = admin.ask("GET", "/api/counter", headers={"Accept-Encoding": encoding})
        if encoding == "gzip":
            body = gzip.decompress(packed.body)
        else:
            body = zlib.decompress(packed.body, wbits=-15)
        assert json.loads(body)["stats"].keys() == plain.json["stats"].keys()
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == (
            encoding.split(", ")[-2 if "," in encoding else 0],
            "Accept-Encoding",
        )

    def test_unknown_paths_and_methods_are_refused(self, admin: Admin) -> None:
        assert (admin.ask("GET", "/api/nothing").status, admin.ask("GET", "/api/nothing").message) == (404, "NOT_FOUND")
        answer = admin.ask("PUT", "/api/topics")
        assert (answer.status, answer.message) == (405, "METHOD_NOT_ALLOWED")

    @pytest.mark.parametrize("path", ["/static/nothing.js", "/fonts/nothing.woff"])
    def test_an_unknown_file_is_refused_in_text(self, admin: Admin, path: str) -> None:
        answer = admin.ask("GET", path)
        assert (answer.status, answer.body) == (404, b"NOT_FOUND")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"

    def test_ping_is_text(self, admin: Admin) -> None:
        answer = admin.ask("GET", "/ping")
        assert (answer.body, answer.headers["content-type"]) == (b"OK", "text/plain; charset=utf-8")


class TestConfig:
    def test_options_are_shown(self, admin: Admin, world: World) -> None:
        assert admin.get("/config/nsqlookupd_http_addresses") == [world.lookupd]
        assert admin.get("/config/statsd_interval") == 60_000_000_000
        assert admin.ask("GET", "/config/statsd_prefix").body == b"nsq.%s"
        answer = admin.ask("GET", "/config/nothing")
        assert (answer.status, answer.message) == (400, "INVALID_OPTION")

    def test_the_log_level_and_the_lookup_daemons_can_be_changed(self, admin: Admin, world: World) -> None:
        assert admin.ask("PUT", "/config/log_level", b"debug").body == b"1"
        assert admin.ask("PUT", "/config/log_level", b"info").body == b"2"
        addresses = json.dumps([world.lookupd]).encode()
        assert admin.ask("PUT", "/config/nsqlookupd_http_addresses", addresses).json == [world.lookupd]

    def test_an_address_that_is_no_text_changes_nothing(self, open_admin: Admin, world: World) -> None:
        answer = open_admin.ask("PUT", "/config/nsqlookupd_http_addresses", b'["\\ud800:4161"]')
        assert (answer.status, answer.message) == (400, "INVALID_VALUE")
        assert open_admin.get("/config/nsqlookupd_http_addresses") == [world.lookupd]

    @pytest.mark.parametrize(
        ("option", "value", "status", "refused"),
        [
            ("log_level", b"loud", 400, "INVALID_VALUE"),
            ("log_level", b"", 413, "INVALID_VALUE"),
            ("nsqlookupd_http_addresses", b"here", 400, "INVALID_VALUE"),
            ("nsqlookupd_http_addresses", b"[" * 100_000, 400, "INVALID_VALUE"),
            ("statsd_prefix", b"x", 400, "INVALID_OPTION"),
        ],
    )
    def test_wrong_changes_are_refused(
        self, admin: Admin, option: str, value: bytes, status: int, refused: str
    ) -> None:
        answer = admin.ask("PUT", f"/config/{option}", value)
        assert (answer.status, answer.message) == (status, refused)
