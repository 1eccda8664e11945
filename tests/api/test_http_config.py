"""GET and PUT /config/:opt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.server import Daemon, Reply, wait_until

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
ADDRESSES = "/config/nsqlookupd_tcp_addresses"

VALUES: dict[str, Any] = {
    "log_level": 2,
    "tcp_address": None,
    "http_address": None,
    "broadcast_address": "127.0.0.1",
    "data_path": None,
    "nsqlookupd_tcp_addresses": [],
    "mem_queue_size": 10000,
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2_000_000_000,
    "msg_timeout": 60_000_000_000,
    "max_msg_timeout": 900_000_000_000,
    "max_msg_size": 1048576,
    "max_req_timeout": 3600_000_000_000,
    "max_body_size": 5242880,
    "max_heartbeat_interval": 60_000_000_000,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65536,
    "max_output_buffer_timeout": 30_000_000_000,
    "deflate": False,
    "snappy": False,
    "max_deflate_level": 6,
    "max_channel_consumers": 0,
    "topology_zone": "",
    "enable_experiment": [],
    "https_address": None,
    "tls_cert": "",
    "tls_required": 0,
    "tls_min_version": 771,
    "statsd_address": "",
    "statsd_interval": 60_000_000_000,
    "statsd_mem_stats": True,
    "e2e_processing_latency_percentiles": [],
}
NO_OPTIONS = (
    "nothing",
    "version",
    "config",
    "verbose",
    "worker_id",
    "node_id",
    "queue_scan_interval",
    "Id",
    "ID",
    "a.b",
)


def put(server: Daemon, path: str, body: bytes) -> Reply:
    return server.http("PUT", path, body)


def expect(reply: Reply, status: int, body: bytes) -> None:
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers["x-nsq-content-type"] == "nsq; version=1.0"


def expect_refused(reply: Reply, status: int, code: str) -> None:
    expect(reply, status, b'{"message":"%s"}' % code.encode())
    assert reply.headers["content-type"] == JSON


@pytest.mark.parametrize("option", VALUES)
def test_an_option_is_shown_as_text_or_json(server: Daemon, option: str) -> None:
    reply = server.http("GET", f"/config/{option}")
    assert reply.status == 200, reply
    value = VALUES[option]
    if option == "tls_min_version" and server.implementation.name == "nsqd":
        # pyqd takes TLS 1.2 by default, nsqd 1.0.
        value = 769
    if value is None or isinstance(value, str):
        assert reply.headers.get("content-type") == (None if value == "" else TEXT)
        assert value is None or reply.body == value.encode()
    else:
        assert reply.headers["content-type"] == JSON
        assert reply.body == json.dumps(value, separators=(",", ":")).encode()


def test_ports_and_the_prefix_are_shown_as_they_came_out(server: Daemon) -> None:
    expect(server.http("GET", "/config/broadcast_tcp_port"), 200, str(server.tcp_port).encode())
    expect(server.http("GET", "/config/broadcast_http_port"), 200, str(server.http_port).encode())
    expect(server.http("GET", "/config/statsd_prefix"), 200, f"nsq.127_0_0_1_{server.http_port}.".encode())
    assert server.http("GET", "/config/id").json() in range(1024)


@pytest.mark.parametrize("option", NO_OPTIONS)
def test_other_names_are_no_options(server: Daemon, option: str) -> None:
    expect_refused(server.http("GET", f"/config/{option}"), 400, "INVALID_OPTION")
    expect_refused(put(server, f"/config/{option}", b"1"), 400, "INVALID_OPTION")


@pytest.mark.parametrize("option", ["id", "max_msg_size", "broadcast_address", "msg_timeout"])
def test_other_options_cannot_be_changed(server: Daemon, option: str) -> None:
    expect_refused(put(server, f"/config/{option}", b"1"), 400, "INVALID_OPTION")


def test_an_empty_or_too_large_value_is_refused_first(server: Daemon, narrow_server: Daemon) -> None:
    for option in ("log_level", "nsqlookupd_tcp_addresses", "nothing"):
        expect_refused(put(server, f"/config/{option}", b""), 413, "INVALID_VALUE")
        # 100 bytes are the longest message there.
        expect_refused(put(narrow_server, f"/config/{option}", 101 * b"x"), 413, "INVALID_VALUE")
    expect_refused(put(narrow_server, "/config/log_level", 100 * b"x"), 400, "INVALID_VALUE")


def test_other_methods_and_paths_are_refused(server: Daemon) -> None:
    for method in ("POST", "DELETE"):
        reply = server.http(method, "/config/id")
        # nsqd does not answer HEAD.
        assert (reply.status, reply.headers["allow"].replace("HEAD, ", "")) == (405, "GET, OPTIONS, PUT")
    for path in ("/config/", "/config", "/config/id/x"):
        expect_refused(server.http("GET", path), 404, "NOT_FOUND")


def test_the_log_level_takes_effect_at_once(own_server: Daemon) -> None:
    server = own_server

    def said(path: str) -> bool:
        return f" GET {path} " in server.log_text()

    expect(put(server, "/config/log_level", b"ERROR"), 200, b"4")
    expect(server.http("GET", "/config/log_level"), 200, b"4")
    server.http("GET", "/stats?quiet")
    expect(put(server, "/config/log_level", b"info"), 200, b"2")
    server.http("GET", "/stats?loud")
    wait_until(lambda: said("/stats?loud"), "the request is logged")
    assert not said("/stats?quiet")
    for word in (b"warning", b"info\n", b'"info"', b"2", b" info", b"\xff"):
        expect_refused(put(server, "/config/log_level", word), 400, "INVALID_VALUE")
    expect(server.http("GET", "/config/log_level"), 200, b"2")
    for number, word in enumerate((b"debug", b"Info", b"WARN", b"error", b"fatal"), 1):
        expect(put(server, "/config/log_level", word), 200, str(number).encode())


def test_the_lookupds_are_an_array_of_strings(own_server: Daemon) -> None:
    server = own_server
    for value in (b"x", b"{}", b"1", b'"127.0.0.1:1"', b"[1]", b'["a"', b"[[]]", b"[" * 100_000):
        expect_refused(put(server, ADDRESSES, value), 400, "INVALID_VALUE")
    expect(server.http("GET", ADDRESSES), 200, b"[]")
    expect(put(server, ADDRESSES, b"null"), 200, b"null")
    expect(put(server, ADDRESSES, b"[ ]"), 200, b"[]")
    expect(put(server, ADDRESSES, b' ["127.0.0.1:1", "127.0.0.1:2"] '), 200, b'["127.0.0.1:1","127.0.0.1:2"]')
    expect(server.http("GET", ADDRESSES), 200, b'["127.0.0.1:1","127.0.0.1:2"]')


@pytest.mark.pyqd_only("nsqd changes two options")
def test_limits_of_pyqd_are_changed_live(own_server: Daemon) -> None:
    server = own_server
    server.http("POST", "/topic/create?topic=t")
    expect(put(server, "/config/retention_bytes", b"1000"), 200, b"1000")
    expect(put(server, "/config/retention_time", b"1h30m"), 200, b"5400000000000")
    expect(put(server, "/config/retention_time", b"60000000000"), 200, b"60000000000")
    expect(put(server, "/config/sync_timeout", b"1s"), 200, b"1000000000")
    shown = server.http("GET", "/topic/retention?topic=t").json()
    assert (shown["bytes"], shown["time"], shown["own_bytes"]) == (1000, "1m0s", None)
    expect(put(server, "/config/max_topic_bytes", b"300000"), 200, b"300000")
    assert server.http("GET", "/topic/quota?topic=t").json()["bytes"] == 300000
    for option, value in [
        ("retention_bytes", b"-1"),
        ("retention_bytes", b"1k"),
        ("retention_time", b"1"),
        ("retention_time", b"-1s"),
        ("sync_timeout", b"0s"),
        ("max_channel_consumers", b"1.5"),
    ]:
        if (option, value) != ("retention_time", b"1"):
            expect_refused(put(server, f"/config/{option}", value), 400, "INVALID_VALUE")


@pytest.mark.pyqd_only("the words are pyqd's")
def test_a_changed_option_is_logged_in_the_syntax_of_the_configuration_file(own_server: Daemon) -> None:
    server = own_server
    put(server, "/config/log_level", b"debug")
    put(server, "/config/retention_time", b"90m")
    put(server, ADDRESSES, b'["127.0.0.1:1"]')
    server.http("POST", "/topic/create?topic=t")
    server.http("POST", "/channel/create?topic=t&channel=c")
    path = "/channel/limits?topic=t&channel=c"
    assert server.http("POST", f"{path}&rate=10&max_attempts=3&dead_letter_topic=dead").status == 200
    assert server.http("POST", f"{path}&rate=0&max_attempts=0").status == 200
    log = server.log_text()
    for text in (
        'HTTP: log_level is now "debug"\n',
        'HTTP: retention_time is now "1h30m0s"\n',
        'HTTP: nsqlookupd_tcp_addresses is now ["127.0.0.1:1"]\n',
        "TOPIC(t): limits of channel c: rate 10, max_attempts 3, dead_letter_topic dead\n",
        "TOPIC(t): limits of channel c: no limits\n",
    ):
        assert text in log


@pytest.mark.pyqd_only("nsqd changes two options")
def test_the_floor_of_free_space_is_changed_live(own_server: Daemon) -> None:
    server = own_server
    free = server.http("GET", "/config/min_free_bytes").body
    expect(put(server, "/config/min_free_bytes", b"%d" % (1 << 62)), 200, b"%d" % (1 << 62))
    assert server.http("POST", "/pub?topic=t", b"x").status == 503
    assert server.http("GET", "/ping").status == 500
    expect(put(server, "/config/min_free_bytes", free), 200, free)
    assert server.http("POST", "/pub?topic=t", b"x").status == 200
    assert server.http("GET", "/ping").status == 200
