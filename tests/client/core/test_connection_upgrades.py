"""ConnectionCore with a real broker: every upgrade, with and without a login, received in pieces of several sizes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from pyqd.client.core import commands
from pyqd.client.core.connection import CloseWait, CommandAnswer, ConnectionCore, Event, Messages, Ready
from pyqd.client.core.layers import DeflateLayer, SnappyLayer, TlsLayer
from pyqd.client.errors import AuthenticationError, ProtocolError, TlsError
from tests.support.authd import AuthServer
from tests.support.certificates import Certificates
from tests.support.scripted_broker import RESPONSE, frame
from tests.support.server import Daemon, pyqd, running

WAIT_S = 10.0
# The numbers of bytes that one receipt has at most.
PIECES = (1, 7, 1 << 16)


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Daemon]:
    flags = (*certificates.server_flags(), "-https-address=127.0.0.1:0")
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("open"), flags)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Daemon]:
    """A broker that asks for a secret."""
    server = AuthServer()
    flags = (*certificates.server_flags(), "-https-address=127.0.0.1:0", f"-auth-http-address={server.address}")
    try:
        with running(Daemon(pyqd(), tmp_path_factory.mktemp("guarded"), flags)) as daemon:
            yield daemon
    finally:
        server.stop()


class Wire:
    """A core on a blocking socket. piece_bytes: of one receipt."""

    def __init__(self, daemon: Daemon, core: ConnectionCore, piece_bytes: int = 1 << 16) -> None:
        self.core = core
        self.socket = socket.create_connection(daemon.tcp_address, WAIT_S)
        self.piece_bytes = piece_bytes
        self.events: list[Event] = []

    def wait_for(self, kind: type[Event]) -> Event:
        """Return the next event, which has to be of this kind."""
        while not self.events:
            if output := self.core.take_output():
                self.socket.sendall(output)
            data = self.socket.recv(self.piece_bytes)
            assert data, "the broker closed the connection"
            self.events += self.core.receive(data)
        event = self.events.pop(0)
        assert isinstance(event, kind), event
        return event


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    """Return a function that connects; all connections are closed afterwards."""
    made: list[Wire] = []

    def connect(daemon: Daemon, core: ConnectionCore, piece_bytes: int = 1 << 16) -> Wire:
        made.append(Wire(daemon, core, piece_bytes))
        return made[-1]

    yield connect
    for each in made:
        each.socket.close()


def core_with(certificates: Certificates, *features: str, secret: str | None = "sesame") -> ConnectionCore:
    tls = "tls_v1" in features
    return ConnectionCore(
        {"feature_negotiation": True, "message_ids": True, **dict.fromkeys(features, True)},
        new_tls=(lambda: TlsLayer(certificates.client_context(), "127.0.0.1")) if tls else None,
        auth_secret=secret,
        broker="broker",
    )


def answer_to_identify(**facts: object) -> bytes:
    return frame(RESPONSE, json.dumps(facts).encode())


HEARTBEAT = frame(RESPONSE, b"_heartbeat_")


@pytest.mark.parametrize("in_one_packet", [True, False])
def test_a_heartbeat_before_tls_is_not_answered_in_plain_text(certificates, in_one_packet):
    core = core_with(certificates, "tls_v1")
    core.take_output()
    said = [HEARTBEAT, answer_to_identify(tls_v1=True)]
    sent = b""
    for piece in [b"".join(said)] if in_one_packet else said:
        assert core.receive(piece) == []
        sent += core.take_output()
    # A record of the handshake begins with its type, 22.
    assert sent.startswith(b"\x16")


@pytest.mark.parametrize("in_one_packet", [True, False])
@pytest.mark.parametrize(("feature", "new_layer"), [("snappy", SnappyLayer), ("deflate", DeflateLayer)])
def test_a_heartbeat_before_compression_is_answered_behind_the_upgrade(certificates, feature, new_layer, in_one_packet):
    core, peer = core_with(certificates, feature), new_layer()
    core.take_output()
    said = [HEARTBEAT, answer_to_identify(**{feature: True})]
    for piece in [b"".join(said)] if in_one_packet else said:
        assert core.receive(piece) == []
        assert core.take_output() == b""
    assert isinstance(core.receive(peer.send(frame(RESPONSE, b"OK")))[0], Ready)
    assert peer.receive(core.take_output()) == commands.NOP


def test_a_command_within_the_handshake_of_tls_is_an_error_of_the_client(certificates):
    core = core_with(certificates, "tls_v1")
    core.take_output()
    core.receive(answer_to_identify(tls_v1=True))
    core.take_output()
    core.send(commands.NOP)
    with pytest.raises(ProtocolError, match="in the middle of the TLS handshake"):
        core.take_output()


@pytest.mark.slow
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("compression", [(), ("snappy",), ("deflate",)], ids=str)
@pytest.mark.parametrize("tls", [(), ("tls_v1",)], ids=str)
@pytest.mark.parametrize("broker", ["open_broker", "guarded_broker"])
def test_a_message_makes_its_way_through_every_upgrade(
    request, wire, certificates, broker, tls, compression, piece_bytes
):
    core = core_with(certificates, *tls, *compression)
    peer = wire(request.getfixturevalue(broker), core, piece_bytes)
    topic = "_".join((*tls, *compression, str(piece_bytes)))
    assert peer.wait_for(Ready).info["message_ids"] is True
    core.send(commands.pub(topic, b"x" * 5000))
    assert peer.wait_for(CommandAnswer).data.startswith(b"OK ")
    core.send(commands.sub(topic, "c"))
    core.send(commands.rdy(1))
    assert peer.wait_for(CommandAnswer).data == b"OK"
    [message] = peer.wait_for(Messages).frames
    assert message[4] == b"x" * 5000
    core.send(commands.fin(message[3]))
    core.send(commands.CLS)
    peer.wait_for(CloseWait)


@pytest.mark.slow
def test_a_broker_that_asks_for_a_secret_is_no_use_without_one(wire, certificates, guarded_broker):
    with pytest.raises(AuthenticationError, match="broker: AUTH: the broker requires a secret"):
        wire(guarded_broker, core_with(certificates, secret=None)).wait_for(Ready)


def test_a_broker_without_tls_is_a_lasting_error(wire, certificates, daemon):
    with pytest.raises(TlsError, match="broker: the broker offers no TLS on its TCP port"):
        wire(daemon, core_with(certificates, "tls_v1")).wait_for(Ready)
