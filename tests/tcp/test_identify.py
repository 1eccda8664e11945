"""IDENTIFY: accepted JSON, valid values of each field, and the reply."""

from __future__ import annotations

import json
import re

import pytest

from pyqd.tcp.negotiate import IDENTITY_BYTES_MAX
from tests.support.nsq import RESPONSE, Client, Frame, identify, pub
from tests.support.server import Daemon
from tests.support.two_servers import Connect

VERSION = re.compile(r'"version":"\d+(\.\d+)+[^"]*"')

REPLY = (
    '{"max_rdy_count":2500,"version":"V","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,"deflate":false,'
    '"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    '"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
)
NARROW_REPLY = (
    '{"max_rdy_count":5,"version":"V","max_msg_timeout":2000,"msg_timeout":1500,"tls_v1":false,"deflate":false,'
    '"deflate_level":3,"max_deflate_level":3,"snappy":false,"sample_rate":0,"auth_required":false,'
    '"output_buffer_size":16384,"output_buffer_timeout":100,"topology_region":"r1","topology_zone":"z1"}'
)


def reply_to(client: Client, request: bytes | dict[str, object]) -> str:
    """Return the JSON reply as it came, with the version's value left out."""
    client.send(identify(request))
    frame = client.read_frame()
    assert frame.type == RESPONSE, frame
    text, count = VERSION.subn('"version":"V"', frame.data.decode())
    assert count == 1, frame
    return text


def test_the_reply_is_compact_json_in_a_fixed_order(client: Client) -> None:
    assert reply_to(client, {"feature_negotiation": True}) == REPLY


def test_the_reply_has_the_limits_of_the_server(connect: Connect, narrow_server: Daemon) -> None:
    assert reply_to(connect(narrow_server), {"feature_negotiation": True}) == NARROW_REPLY


@pytest.mark.parametrize("request_body", [b"{}", b'{"feature_negotiation":false}', b'{"client_id":"x"}'], ids=repr)
def test_without_feature_negotiation_the_reply_is_ok(client: Client, request_body: bytes) -> None:
    client.send(identify(request_body))
    client.expect_ok()
    client.expect_alive()


def test_stats_show_text_that_is_none_with_the_replacement_character(client: Client, server: Daemon) -> None:
    client.send(identify(b'{"client_id":"a\\ud800","hostname":"\xff","user_agent":"\\udfff\\ud83d\\ude00"}'))
    client.expect_ok()
    client.send(pub("text_of_peers", b"x"))
    client.expect_ok()
    producers = server.http("GET", "/stats", format="json").json()["producers"]
    found = next(row for row in producers if row["client_id"].startswith("a"))
    assert (found["client_id"], found["hostname"], found["user_agent"]) == ("a\ufffd", "\ufffd", "\ufffd\U0001f600")


def test_a_disabled_upgrade_is_refused_in_the_reply_and_nothing_follows(client: Client) -> None:
    wishes: dict[str, object] = {"tls_v1": True, "snappy": True, "deflate": True, "deflate_level": 3}
    assert reply_to(client, {"feature_negotiation": True, **wishes}) == REPLY
    client.expect_alive()


def test_without_feature_negotiation_upgrades_are_not_even_looked_at(client: Client) -> None:
    client.send(identify({"tls_v1": True, "snappy": True, "deflate": True, "deflate_level": 99}))
    client.expect_ok()
    client.expect_alive()


@pytest.mark.parametrize("level", [-5, 0, 1, 6, 9, 2**31])
def test_the_deflate_level_of_a_client_without_deflate_is_six(client: Client, level: int) -> None:
    reply = client.identify(deflate=True, deflate_level=level)
    assert (reply["deflate"], reply["deflate_level"]) == (False, 6)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("output_buffer_size", 0, 16384),
        ("output_buffer_size", 64, 64),
        ("output_buffer_size", 65536, 65536),
        ("output_buffer_size", -1, 1),
        ("output_buffer_timeout", 0, 250),
        ("output_buffer_timeout", 25, 25),
        ("output_buffer_timeout", 30000, 30000),
        ("output_buffer_timeout", -1, 0),
        ("sample_rate", 0, 0),
        ("sample_rate", 1, 1),
        ("sample_rate", 99, 99),
        ("msg_timeout", 0, 60000),
        ("msg_timeout", 1000, 1000),
        ("msg_timeout", 900000, 900000),
    ],
)
def test_a_field_within_its_range_is_returned_in_the_reply(client: Client, field: str, value: int, told: int) -> None:
    assert client.identify(**{field: value})[field] == told
    client.expect_alive()


def test_no_output_buffer_means_no_output_buffer_timeout(client: Client) -> None:
    reply = client.identify(output_buffer_size=-1, output_buffer_timeout=1000)
    assert (reply["output_buffer_size"], reply["output_buffer_timeout"]) == (1, 0)


@pytest.mark.parametrize("interval_ms", [-1, 0, 1000, 60000])
def test_a_heartbeat_interval_within_its_range_is_accepted_and_not_in_the_reply(
    client: Client, interval_ms: int
) -> None:
    assert "heartbeat_interval" not in client.identify(heartbeat_interval=interval_ms)
    client.expect_alive()


OUT_OF_RANGE = [
    ("heartbeat_interval", "heartbeat interval", [-2, 1, 999, 60001, 2**31, -(2**63), 2**63 - 1]),
    ("output_buffer_timeout", "output buffer timeout", [-2, 1, 24, 30001, 2**31]),
    ("output_buffer_size", "output buffer size", [-2, 1, 63, 65537, 2**31]),
    ("sample_rate", "sample rate", [-1, 100, 2**31 - 1, -(2**31)]),
    ("msg_timeout", "msg timeout", [-1, 1, 999, 900001, 2**31]),
]


@pytest.mark.parametrize(
    ("field", "words", "value"), [(field, words, value) for field, words, values in OUT_OF_RANGE for value in values]
)
@pytest.mark.parametrize("negotiate", [False, True], ids=["plain", "negotiating"])
def test_a_field_out_of_its_range_is_fatal(client: Client, field: str, words: str, value: int, negotiate: bool) -> None:
    client.send(identify({"feature_negotiation": negotiate, field: value}))
    client.expect_fatal("E_BAD_BODY", f"IDENTIFY {words} ({value}) is invalid")


@pytest.mark.parametrize(
    ("field", "inside", "outside", "words"),
    [
        ("heartbeat_interval", 5000, 5001, "heartbeat interval"),
        ("output_buffer_timeout", 50, 49, "output buffer timeout"),
        ("output_buffer_timeout", 1000, 1001, "output buffer timeout"),
        ("output_buffer_size", 1024, 1025, "output buffer size"),
        ("msg_timeout", 2000, 2001, "msg timeout"),
    ],
)
def test_ranges_follow_the_flags_of_the_server(
    connect: Connect, narrow_server: Daemon, field: str, inside: int, outside: int, words: str
) -> None:
    assert connect(narrow_server).identify(**{field: inside}).get(field, inside) == inside
    client = connect(narrow_server)
    client.send(identify({field: outside}))
    client.expect_fatal("E_BAD_BODY", f"IDENTIFY {words} ({outside}) is invalid")


def test_fields_are_checked_in_a_fixed_order(connect: Connect) -> None:
    wrong: dict[str, object] = {
        "msg_timeout": 1,
        "sample_rate": 100,
        "output_buffer_size": 1,
        "output_buffer_timeout": 1,
        "heartbeat_interval": 1,
    }
    for field, words in [
        ("heartbeat_interval", "heartbeat interval (1)"),
        ("output_buffer_timeout", "output buffer timeout (1)"),
        ("output_buffer_size", "output buffer size (1)"),
        ("sample_rate", "sample rate (100)"),
        ("msg_timeout", "msg timeout (1)"),
    ]:
        client = connect()
        client.send(identify(wrong))
        client.expect_fatal("E_BAD_BODY", f"IDENTIFY {words} is invalid")
        del wrong[field]


@pytest.mark.parametrize(
    "request_body",
    [
        b"",
        b"{",
        b"}",
        b"x",
        b"[]",
        b"[{}]",
        b'"text"',
        b"1",
        b"true",
        b"NULL",
        b"{}{}",
        b"{} x",
        b"null null",
        b"{,}",
        b'{"client_id":"x",}',
        b"{'client_id':'x'}",
        b'{client_id:"x"}',
        b'{"client_id" "x"}',
        b'{"client_id":"x"',
        b'{"client_id":"x',
        b'{"client_id":"a\nb"}',
        b'{"client_id":"\\x41"}',
        b'{"client_id":"\\u12"}',
        b'{"client_id":1}',
        b'{"client_id":true}',
        b'{"client_id":["x"]}',
        b'{"client_id":{"a":1}}',
        b'{"hostname":1}',
        b'{"user_agent":1}',
        b'{"topology_region":1}',
        b'{"topology_zone":1}',
        b'{"heartbeat_interval":"1000"}',
        b'{"heartbeat_interval":1000.0}',
        b'{"heartbeat_interval":1e3}',
        b'{"heartbeat_interval":1E3}',
        b'{"heartbeat_interval":true}',
        b'{"heartbeat_interval":[1000]}',
        b'{"heartbeat_interval":{}}',
        b'{"heartbeat_interval":01000}',
        b'{"heartbeat_interval":+1000}',
        b'{"heartbeat_interval":0x3e8}',
        b'{"heartbeat_interval":1000.}',
        b'{"heartbeat_interval":-}',
        b'{"heartbeat_interval":NaN}',
        b'{"heartbeat_interval":Infinity}',
        b'{"heartbeat_interval":9223372036854775808}',
        b'{"heartbeat_interval":-9223372036854775809}',
        b'{"output_buffer_size":"64"}',
        b'{"output_buffer_size":64.0}',
        b'{"output_buffer_timeout":250.5}',
        b'{"sample_rate":50.0}',
        b'{"sample_rate":2147483648}',
        b'{"sample_rate":-2147483649}',
        b'{"sample_rate":"1"}',
        b'{"msg_timeout":1e4}',
        b'{"msg_timeout":false}',
        b'{"deflate_level":"6"}',
        b'{"deflate_level":6.0}',
        b'{"feature_negotiation":1}',
        b'{"feature_negotiation":"true"}',
        b'{"feature_negotiation":True}',
        b'{"tls_v1":0}',
        b'{"snappy":"no"}',
        b'{"deflate":[]}',
        b"\xef\xbb\xbf{}",
        b"{}\x00",
        b"// {}\n{}",
    ],
    ids=repr,
)
def test_identify_with_invalid_json_or_wrong_types_is_fatal(client: Client, request_body: bytes) -> None:
    client.send(identify(request_body))
    if request_body:
        client.expect_fatal("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    else:
        client.expect_fatal("E_BAD_BODY", "IDENTIFY invalid body size 0")


def test_a_type_error_comes_before_a_field_out_of_range(client: Client) -> None:
    client.send(identify(b'{"heartbeat_interval":1,"client_id":5}'))
    client.expect_fatal("E_BAD_BODY", "IDENTIFY failed to decode JSON body")


@pytest.mark.parametrize(
    "request_body",
    [
        b"null",
        b" \t\r\n{ } \n",
        b" null ",
        b'{"unknown":[1.5,{"a":null}],"other":1e999}',
        b'{"":1}',
        b'{"client_id":null,"heartbeat_interval":null,"feature_negotiation":null,"sample_rate":null}',
        b'{"heartbeat_interval":-0}',
        b'{"heartbeat_interval":1,"heartbeat_interval":1000}',
        b'{"client_id":"\\ud800"}',
        b'{"client_id":"\xff\xfe"}',
        b'{"client_id":"\x7f"}',
        b'{"client_id":"\\/\\b\\f\\n\\r\\t\\u0000"}',
    ],
    ids=repr,
)
def test_odd_but_valid_json_is_accepted(client: Client, request_body: bytes) -> None:
    client.send(identify(request_body))
    client.expect_ok()
    client.expect_alive()


def test_keys_match_whatever_their_case(client: Client) -> None:
    reply = reply_to(client, b'{"FEATURE_NEGOTIATION":true,"Msg_Timeout":5000,"SAMPLE_rate":7}')
    assert json.loads(reply)["msg_timeout"] == 5000
    assert json.loads(reply)["sample_rate"] == 7


def test_the_last_of_equal_keys_counts(client: Client) -> None:
    reply = reply_to(client, b'{"feature_negotiation":true,"msg_timeout":5000,"MSG_TIMEOUT":6000,"msg_timeout":null}')
    assert json.loads(reply)["msg_timeout"] == 6000


def test_a_range_error_of_an_overwritten_key_does_not_count(client: Client) -> None:
    assert client.identify(heartbeat_interval=1000)
    client.send(identify(b'{"sample_rate":100,"sample_rate":5}'))
    client.expect_ok()


def test_parameters_of_identify_are_ignored(client: Client) -> None:
    client.send(b"IDENTIFY a  b\n\x00\x00\x00\x02{}")
    client.expect_ok()


def test_identify_may_be_repeated_before_sub(client: Client, topic: str) -> None:
    assert client.identify(msg_timeout=5000)["msg_timeout"] == 5000
    assert client.identify(msg_timeout=6000)["msg_timeout"] == 6000
    client.pub(topic, b"x")
    assert client.identify()["msg_timeout"] == 6000


def test_a_body_of_the_greatest_size_is_accepted(connect: Connect, narrow_server: Daemon) -> None:
    client = connect(narrow_server)
    client.send(identify(b"{}".ljust(200)))
    client.expect_ok()
    client.send(identify(b"{}".ljust(201)))
    client.expect_fatal("E_BAD_BODY", "IDENTIFY body too big 201 > 200")


def client_stats(server: Daemon, topic: str) -> dict[str, object]:
    channel = server.channel(topic, "c")
    assert channel is not None
    (stats,) = channel["clients"]
    assert isinstance(stats, dict)
    return stats


def test_a_client_that_does_not_identify_is_named_after_its_address(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic)
    stats = client_stats(server, topic)
    assert (stats["client_id"], stats["hostname"], stats["user_agent"]) == ("127.0.0.1", "127.0.0.1", "")
    assert (stats["version"], stats["state"], stats["remote_address"]) == ("V2", 3, client.local_address)


def test_a_client_is_shown_with_the_names_of_its_identify(client: Client, server: Daemon, topic: str) -> None:
    said = {"client_id": "käfer", "hostname": "h.example", "user_agent": "ua/1", "topology_zone": "z"}
    client.identify(**said, sample_rate=3)
    client.sub(topic)
    stats = client_stats(server, topic)
    assert {key: stats[key] for key in said} == said
    assert (stats["topology_region"], stats["sample_rate"]) == ("", 3)


def test_fields_that_identify_leaves_out_are_empty(client: Client, server: Daemon, topic: str) -> None:
    client.send(identify({"user_agent": "only"}) + identify({}))
    client.expect_ok(2)
    client.sub(topic)
    stats = client_stats(server, topic)
    assert (stats["client_id"], stats["hostname"], stats["user_agent"]) == ("", "", "")


def test_a_producer_is_shown_with_the_names_of_its_identify(client: Client, server: Daemon, topic: str) -> None:
    client.identify(client_id=topic)
    client.pub_each(topic, [b"x", b"y"])
    producers = server.http("GET", "/stats", format="json").json()["producers"]
    (stats,) = [producer for producer in producers if producer["client_id"] == topic]
    assert stats["pub_counts"] == [{"topic": topic, "count": 2}]
    assert stats["state"] == 0


def test_identify_and_publish_may_be_pipelined(client: Client, topic: str) -> None:
    client.send(identify({"feature_negotiation": True}) + pub(topic, b"x"))
    assert client.read_frame() != Frame(RESPONSE, b"OK")
    client.expect_ok()


@pytest.mark.pyqd_only("nsqd decodes what --max-body-size allows")
def test_a_body_too_large_to_decode_in_a_turn_is_refused(client: Client) -> None:
    client.send(identify(b"[" + b"0," * (IDENTITY_BYTES_MAX // 2) + b"0]"))
    client.expect_fatal("E_BAD_BODY", f"IDENTIFY body too big {IDENTITY_BYTES_MAX + 3} > {IDENTITY_BYTES_MAX}")
