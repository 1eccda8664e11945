"""ConnectionCore with the bytes of other servers than brokers: the error names them, in whole and in pieces."""

from __future__ import annotations

import json
import struct

import pytest

from pyqd.client.core.connection import ConnectionCore
from pyqd.client.errors import ProtocolError

STRANGERS = {
    b"HTTP/1.1 400 Bad Request\r\n\r\n": "this is an HTTP port; give the broker's TCP port, 4150 by default",
    b"\x00\x00\x00\x0eE_BAD_PROTOCOL": "this is a lookup daemon; give lookupd='host:4161'",
    # An alert of TLS is shorter than a frame's head.
    b"\x15\x03\x01\x00\x02\x02\x46": "this is a port for TLS only",
    b"SSH-2.0-OpenSSH_9.2p1\r\n": "is this NSQ's TCP port?",
    b"-ERR unknown command\r\n": "is this NSQ's TCP port?",
}


def core() -> ConnectionCore:
    return ConnectionCore({"feature_negotiation": True}, broker="host:1")


def feed(peer: ConnectionCore, said: bytes, step: int) -> None:
    for at in range(0, len(said), step):
        assert peer.receive(said[at : at + step]) == []


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("said", STRANGERS)
def test_another_server_is_named(said: bytes, step: int) -> None:
    with pytest.raises(ProtocolError) as raised:
        feed(core(), said, step)
    assert str(raised.value).startswith("host:1: b")
    assert f" instead of an answer to IDENTIFY: {STRANGERS[said]}" in str(raised.value)


@pytest.mark.parametrize(
    "info",
    [
        b"[" * 100_000,
        b"{",
        b"[1]",
        b"5",
        *(
            json.dumps(each).encode()
            for each in (
                {"max_rdy_count": 0},
                {"max_rdy_count": 1 << 70},
                {"msg_timeout": 10**400},
                {"msg_timeout": True},
                {"deflate_level": 10},
            )
        ),
    ],
    ids=lambda info: info[:30].decode(),
)
def test_a_wrong_answer_to_identify_is_an_error_of_the_protocol(info: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"host:1: "):
        core().receive(struct.pack(">ii", len(info) + 4, 0) + info)
