"""Tests of pyqd.lookupd.protocol: commands of brokers, and the answers."""

import json
import struct
from typing import Any

import pytest

from pyqd.lookupd.protocol import BODY_BYTES_MAX, LINE_BYTES_MAX, OK, LookupSession
from pyqd.lookupd.registry import Registry

INFO = {"version": "1.3.0", "tcp_port": 4160, "http_port": 4161, "hostname": "h", "broadcast_address": "b"}
BROKER = {"broadcast_address": "broker", "hostname": "host", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}


def session(registry: Registry | None = None) -> LookupSession:
    return LookupSession(registry or Registry(), "127.0.0.1:1", lambda: INFO)


def identify(**changes: Any) -> bytes:
    body = json.dumps({**BROKER, **changes}).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def answers(data: bytes) -> list[bytes]:
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def test_a_broker_identifies_registers_and_pings() -> None:
    registry = Registry()
    talk = session(registry)
    sent = b"  V1" + identify() + b"REGISTER orders\nREGISTER orders email\r\nPING\nUNREGISTER orders email\n"
    first, *rest = answers(talk.receive(sent))
    assert json.loads(first) == INFO
    assert first == json.dumps(INFO, sort_keys=True, separators=(",", ":")).encode()
    assert rest == [b"OK"] * 4
    assert (registry.topics(), registry.channels("orders")) == (["orders"], ["email"])
    talk.end()
    assert registry.counts()["producers"] == 0


def test_commands_may_come_byte_by_byte() -> None:
    talk, answered = session(), b""
    for byte in b"  V1" + identify() + b"REGISTER t c\n":
        answered += talk.receive(bytes([byte]))
    assert [json.loads(answers(answered)[0]), answers(answered)[1]] == [INFO, b"OK"]


def test_a_ping_needs_no_identify() -> None:
    assert session().receive(b"  V1PING\n") == OK


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"  V2PING\n", b"E_BAD_PROTOCOL"),
        (b"GET / HTTP/1.1\r\n", b"E_BAD_PROTOCOL"),
        (b"  V1NONSENSE\n", b"E_INVALID invalid command NONSENSE"),
        (b"  V1ping\n", b"E_INVALID invalid command ping"),
        (b"  V1REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"  V1UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"  V1" + b"x" * (LINE_BYTES_MAX + 1), b"E_INVALID line of more than 4096 bytes"),
        (
            b"  V1IDENTIFY\n\xff\xff\xff\xff",
            f"E_BAD_BODY IDENTIFY invalid body size -1, 0 to {BODY_BYTES_MAX} are allowed".encode(),
        ),
        (
            b"  V1IDENTIFY\n" + struct.pack(">i", BODY_BYTES_MAX + 1),
            f"E_BAD_BODY IDENTIFY invalid body size {BODY_BYTES_MAX + 1}, 0 to {BODY_BYTES_MAX} are allowed".encode(),
        ),
        (b"  V1IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1IDENTIFY\n\0\0\0\x02[]", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1" + identify(tcp_port="4150"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1" + identify(tcp_port=True), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1" + identify(tcp_port=1 << 63), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1" + identify(tcp_port=0), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"  V1" + identify(version=None), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_a_mistake_is_named_and_ends_the_connection(sent: bytes, error: bytes) -> None:
    talk = session()
    assert answers(talk.receive(sent)) == [error]
    assert talk.closing
    assert talk.receive(b"PING\n") == b""


def test_the_log_shows_the_bytes_of_a_wrong_magic(caplog: pytest.LogCaptureFixture) -> None:
    session().receive(b"  V2PING\n")
    session().receive(b"\x16\x03\x01\xff")
    line = "[127.0.0.1:1] - E_BAD_PROTOCOL - magic "
    assert caplog.messages == [line + '"  V2"', line + r'"\x16\x03\x01\xff"']


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER b$\n", b"E_BAD_TOPIC REGISTER topic name 'b$' is not valid"),
        (b"UNREGISTER t c$\n", b"E_BAD_CHANNEL UNREGISTER channel name 'c$' is not valid"),
        (identify(), b"E_INVALID cannot IDENTIFY again"),
    ],
)
def test_a_mistake_after_identify_keeps_registrations_until_the_connection_ends(command: bytes, error: bytes) -> None:
    registry = Registry()
    talk = session(registry)
    talk.receive(b"  V1" + identify() + b"REGISTER kept\n")
    assert answers(talk.receive(command)) == [error]
    assert (talk.closing, registry.topics()) == (True, ["kept"])
    talk.end()
    assert registry.counts() == {"producers": 0, "topics": 1, "channels": 0, "registrations": 0}


def test_keys_of_identify_match_in_any_case() -> None:
    registry = Registry()
    body = json.dumps({key.upper(): value for key, value in BROKER.items()}).encode()
    session(registry).receive(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    [producer] = registry.producers()
    assert producer.peer.is_node("broker:4151")


def test_white_space_around_a_command_does_not_count() -> None:
    sent = b"  V1 \t" + identify().replace(b"IDENTIFY\n", b"IDENTIFY \r\n") + b" REGISTER t c \n\tPING\r\n"
    first, *rest = answers(session().receive(sent))
    assert (json.loads(first), rest) == (INFO, [b"OK", b"OK"])
