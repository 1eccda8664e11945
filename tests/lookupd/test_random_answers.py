"""Random answers of a far end: the registration and the queries fail with their own errors, and go on."""

import json
import logging
import random
from collections.abc import Callable

import gevent
import pytest

from pyqd.lookupd import peer, peer_connection
from pyqd.lookupd.channel_query import ChannelQuery, QueryError
from pyqd.lookupd.peer import LookupPeer
from pyqd.primitives.addresses import TcpAddress
from tests.lookupd.scripted import INFO, ScriptedLookupd, Talk, behave, framed, wait_for

# Hundreds of conversations in each test.
pytestmark = pytest.mark.slow

CONVERSATIONS = 150
QUERIES = 400
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def mutated(data: bytes, source: random.Random) -> bytes:
    """Return data with some bytes changed, removed, repeated or cut off."""
    found = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(found) + 1)
        match source.randrange(5):
            case 0:
                found[at : at + 1] = source.randbytes(1)
            case 1:
                found[at : at + source.randrange(1, 9)] = b""
            case 2:
                found[at:at] = source.randbytes(source.randrange(1, 9))
            case 3:
                found[at:at] = found[: source.randrange(1, 64)]
            case 4:
                del found[at:]
        if not found:
            return b""
    return bytes(found)


def random_talk(source: random.Random) -> Callable[[Talk], None]:
    """Return a script that answers with changed bytes, in pieces, and closes or waits."""

    def script(talk: Talk) -> None:
        data = mutated(framed(json.dumps(INFO).encode()) + framed(b"OK") * 20, source)
        while data:
            count = source.randrange(1, len(data) + 1)
            talk.socket.sendall(data[:count])
            data = data[count:]
            gevent.sleep(0)
        if source.randrange(2):
            talk.read(1 << 20)

    return script


def test_a_registration_survives_every_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer, "BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(peer, "BACKOFF_MAX_S", 0.001)
    monkeypatch.setattr(peer_connection, "ANSWERS_S", 0.02)
    lookupd = ScriptedLookupd(random_talk(random.Random(1)))
    registered = LookupPeer(lookupd.address, dict, lambda: (b"REGISTER t%d\n" % number for number in range(20)))
    registered.start()
    try:
        with caplog.at_level(logging.INFO):
            wait_for(lambda: len(lookupd.talks) >= CONVERSATIONS, "conversations")
            lookupd.script = behave
            lookupd.drop()
            wait_for(lambda: registered.is_connected and len(lookupd.commands) == 20)
    finally:
        registered.stop()
        lookupd.stop()
    assert "internal error" not in caplog.text


@pytest.mark.parametrize("seed", range(2))
def test_a_query_ends_with_names_or_a_reason(seed: int) -> None:
    source = random.Random(seed)
    body = b'{"channels":["a","b"]}'
    answers = [
        HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + body,
        b'HTTP/1.1 403 Forbidden\r\n\r\n{"https_port":1}',
    ]

    def script(talk: Talk) -> None:
        talk.lines()
        talk.socket.sendall(mutated(source.choice(answers), source))

    server = ScriptedLookupd(script)
    query = ChannelQuery()
    outcomes = {"names": 0, "reasons": 0}
    try:
        for _ in range(QUERIES):
            try:
                names = query.ask(TcpAddress("127.0.0.1", server.port), "t", 0.5)
            except QueryError:
                outcomes["reasons"] += 1
            else:
                assert all(isinstance(name, str) for name in names)
                outcomes["names"] += 1
    finally:
        server.stop()
    assert min(outcomes.values()) > QUERIES // 20, outcomes
