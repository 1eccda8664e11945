"""TLS, snappy and deflate: the granted features, the upgrade, and unchanged behaviour after it."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import zlib
from collections.abc import Callable

import pytest

from tests.support.certificates import Certificates
from tests.support.nsq import HEARTBEAT, MAGIC, RESPONSE, Client, fin, identify, pub
from tests.support.server import Daemon
from tests.support.streams import IDENTIFIER, DeflateStream, SnappyStream, compressed_chunk, masked, snappy_chunk
from tests.support.two_servers import Connect

UPGRADES = {
    "plain": {},
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "tls and snappy": {"tls_v1": True, "snappy": True},
    "tls and deflate": {"tls_v1": True, "deflate": True},
}
Upgrading = Callable[..., Client]


def follow(client: Client, reply: dict[str, object], context: ssl.SSLContext) -> None:
    """Do the upgrades that the reply grants, in its order, reading an OK after each."""
    if reply["tls_v1"]:
        client.start_tls(context)
    if reply["snappy"]:
        client.start_snappy()
    if reply["deflate"]:
        client.start_deflate()


@pytest.fixture(params=UPGRADES)
def upgrades(request: pytest.FixtureRequest) -> dict[str, object]:
    return dict(UPGRADES[request.param])


@pytest.fixture
def upgraded(connect: Connect, upgrading_server: Daemon, certificates: Certificates) -> Upgrading:
    """Return a function that connects and upgrades as IDENTIFY's fields say."""

    def connect_upgraded(*, receive_buffer_bytes: int = 0, **fields: object) -> Client:
        client = connect(upgrading_server, receive_buffer_bytes=receive_buffer_bytes)
        follow(client, client.identify(**fields), certificates.client_context())
        return client

    return connect_upgraded


def test_each_upgrade_is_granted_and_confirmed_by_an_ok_through_it(
    connect: Connect, upgrading_server: Daemon, certificates: Certificates, upgrades: dict[str, object]
) -> None:
    client = connect(upgrading_server)
    reply = client.identify(**upgrades)
    assert {key for key in ("tls_v1", "snappy", "deflate") if reply[key]} == set(upgrades)
    follow(client, reply, certificates.client_context())
    client.expect_alive()


@pytest.mark.slow
def test_messages_of_every_size_arrive_as_they_were(
    upgraded: Upgrading, upgrades: dict[str, object], topic: str
) -> None:
    numbers = random.Random(4)
    sizes = (1, 100, 16384, 16385, 65536, 65537, 300_000, 1 << 20)
    bodies = [body for size in sizes for body in (b"a" * size, numbers.randbytes(size))]
    client = upgraded(**upgrades)
    client.pub_each(topic, bodies)
    client.sub(topic, rdy_count=len(bodies))
    received = client.read_messages(len(bodies))
    assert sorted(message.body for message in received) == sorted(bodies)
    client.send(b"".join(fin(message.id) for message in received))
    client.expect_alive()


def test_a_large_batch_arrives(upgraded: Upgrading, upgrades: dict[str, object], topic: str) -> None:
    bodies = [b"%06d" % number + bytes(number % 1000) for number in range(1, 2001)]
    client = upgraded(**upgrades)
    client.mpub(topic, bodies)
    client.sub(topic, rdy_count=2000)
    assert [message.body for message in client.read_messages(2000)] == bodies


def test_commands_that_trickle_in_byte_by_byte_are_understood(
    upgraded: Upgrading, upgrades: dict[str, object], topic: str
) -> None:
    client = upgraded(**upgrades)
    client.send_in_bytes(pub(topic, b"slowly") + b"NOP\n" + pub(topic, b"but surely"))
    client.expect_ok(2)


class Trickle:
    """A socket that sends each byte in a segment of its own."""

    def __init__(self, below: socket.socket) -> None:
        self.below = below

    def sendall(self, data: bytes) -> None:
        for at in range(len(data)):
            self.below.sendall(data[at : at + 1])

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_a_compressed_stream_may_be_cut_anywhere(
    connect: Connect, upgrading_server: Daemon, kind: str, topic: str
) -> None:
    client = connect(upgrading_server)
    client.identify(**{kind: True})
    client._socket = Trickle(client._socket)
    client.start_snappy() if kind == "snappy" else client.start_deflate()
    body = random.Random(5).randbytes(700) + b"b" * 5000
    client.pub(topic, body)
    client.sub(topic, rdy_count=1)
    assert client.read_message().body == body


def test_tls_records_may_be_cut_anywhere(
    connect: Connect, upgrading_server: Daemon, certificates: Certificates, topic: str
) -> None:
    client = connect(upgrading_server)
    client.identify(tls_v1=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secured = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

    def exchange(step: Callable[[], object]) -> object:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                client.send_in_bytes(outgoing.read())
                incoming.write(client._socket.recv(1))
            else:
                client.send_in_bytes(outgoing.read())
                return done

    exchange(secured.do_handshake)
    exchange(lambda: secured.write(pub(topic, b"in pieces")))
    frames = b""
    while len(frames) < 20:
        piece = exchange(lambda: secured.read(100))
        assert isinstance(piece, bytes)
        frames += piece
    assert frames == 2 * b"\0\0\0\6\0\0\0\0OK"


@pytest.mark.slow
def test_heartbeats_come_through_the_upgrades_and_are_answered_through_them(
    upgraded: Upgrading, upgrades: dict[str, object]
) -> None:
    client = upgraded(**upgrades, heartbeat_interval=1000)
    assert client.read_frame(heartbeats=True) == (RESPONSE, HEARTBEAT)
    client.send(b"NOP\n")
    client.expect_alive()


def test_a_fatal_error_comes_through_the_upgrades(upgraded: Upgrading, upgrades: dict[str, object]) -> None:
    client = upgraded(**upgrades)
    client.send(b"WHAT\n")
    client.expect_fatal("E_INVALID", "invalid command WHAT")


@pytest.mark.slow
def test_a_client_that_does_not_read_gets_all_of_it_later(
    upgraded: Upgrading, upgrades: dict[str, object], topic: str
) -> None:
    numbers = random.Random(6)
    bodies = [numbers.randbytes(100_000) for _ in range(60)]
    producer = upgraded()
    producer.pub_each(topic, bodies)
    slow = upgraded(**upgrades, receive_buffer_bytes=4096)
    slow.sub(topic, rdy_count=60)
    # Meanwhile the server serves others.
    for _ in range(20):
        producer.expect_alive()
    assert [message.body for message in slow.read_messages(60)] == bodies


@pytest.mark.pyqd_only("nsqd loses what it has received with IDENTIFY")
@pytest.mark.parametrize("kind", ["snappy", "deflate"])
def test_bytes_sent_with_identify_begin_the_compressed_stream(
    connect: Connect, upgrading_server: Daemon, topic: str, kind: str
) -> None:
    client = connect(upgrading_server)
    stream = SnappyStream(None) if kind == "snappy" else DeflateStream(None)
    early = stream.encode(b"".join(pub(topic, b"%d" % number) for number in range(100)))
    client.send(identify({"feature_negotiation": True, kind: True}) + early)
    assert client.read_frame().type == RESPONSE
    client.start_snappy() if kind == "snappy" else client.start_deflate()
    client.expect_ok(100)


def test_snappy_and_deflate_together_are_refused(connect: Connect, upgrading_server: Daemon) -> None:
    client = connect(upgrading_server)
    client.send(identify({"feature_negotiation": True, "snappy": True, "deflate": True}))
    client.expect_fatal("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")


def test_snappy_and_deflate_together_without_negotiation_are_ignored(
    connect: Connect, upgrading_server: Daemon
) -> None:
    client = connect(upgrading_server)
    client.send(identify({"snappy": True, "deflate": True, "tls_v1": True}))
    client.expect_ok()
    client.expect_alive()


@pytest.mark.parametrize(("wanted", "granted"), [(-1, 6), (0, 6), (1, 1), (3, 3), (6, 6), (9, 6), (100, 6)])
def test_the_deflate_level_is_at_most_that_of_the_server(
    connect: Connect, upgrading_server: Daemon, wanted: int, granted: int, topic: str
) -> None:
    client = connect(upgrading_server)
    reply = client.identify(deflate=True, deflate_level=wanted)
    assert (reply["deflate"], reply["deflate_level"], reply["max_deflate_level"]) == (True, granted, 6)
    client.start_deflate()
    client.pub(topic, b"x")


def test_compressible_data_is_compressed_and_other_data_is_stored(upgraded: Upgrading, topic: str) -> None:
    client = upgraded(snappy=True)
    stream = client._socket
    assert isinstance(stream, SnappyStream)
    client.pub(topic, bytes(50_000))
    client.pub(topic, random.Random(7).randbytes(50_000))
    client.sub(topic, rdy_count=1)
    for kind in (0, 1):
        del stream.kinds[:]
        client.fin(client.read_message())
        assert kind in stream.kinds
    assert len(stream.wire_received) < 70_000


def test_snappy_takes_stored_chunks_padding_and_repeated_identifiers(
    connect: Connect, upgrading_server: Daemon, topic: str
) -> None:
    client = connect(upgrading_server)
    client.identify(snappy=True)
    wire = client._socket
    client.start_snappy()
    command = pub(topic, b"one")
    stored = snappy_chunk(1, masked(command) + command)
    padding = snappy_chunk(0xFE, bytes(1000)) + snappy_chunk(0x80, b"")
    wire.sendall(IDENTIFIER + padding + stored + IDENTIFIER + compressed_chunk(pub(topic, b"two")) + padding)
    client.expect_ok(2)


GOOD = compressed_chunk(pub("fence", b"good"))
CORRUPT_SNAPPY = {
    "no identifier": GOOD,
    "another identifier": b"\xff\x06\x00\x00sNaPpy" + GOOD,
    "a wrong checksum": IDENTIFIER + GOOD[:4] + b"\0\0\0\0" + GOOD[8:],
    "a broken block": IDENTIFIER + snappy_chunk(0, masked(b"x" * 10) + b"\x0a\xff\xff\xff\xff"),
    "a block that says it is larger than one may be": IDENTIFIER + snappy_chunk(0, b"\0\0\0\0\xff\xff\x7f" + bytes(9)),
    "a block without its size": IDENTIFIER + snappy_chunk(0, b"\0\0\0\0"),
    "a chunk without a checksum": IDENTIFIER + snappy_chunk(0, b"\0\0\0"),
    "a stored chunk that is too large": IDENTIFIER + snappy_chunk(1, masked(bytes(65537)) + bytes(65537)),
    "a type that may not be skipped": IDENTIFIER + snappy_chunk(2, b"abcd"),
    "an endless chunk": IDENTIFIER + b"\xfe\xff\xff\xff" + bytes(100),
}


@pytest.mark.parametrize("case", CORRUPT_SNAPPY)
def test_corrupt_snappy_closes_the_connection_and_harms_no_other(
    connect: Connect, upgrading_server: Daemon, case: str
) -> None:
    client, other = connect(upgrading_server), connect(upgrading_server)
    client.identify(snappy=True)
    wire = client._socket
    client.start_snappy()
    wire.sendall(CORRUPT_SNAPPY[case])
    client.expect_closed()
    other.expect_alive()


@pytest.mark.parametrize("wire_bytes", [b"\xff" * 100, b"\x06\x00\xff\xff", b"\x00\x05\x00\x00\x00hello"])
def test_corrupt_deflate_closes_the_connection_and_harms_no_other(
    connect: Connect, upgrading_server: Daemon, wire_bytes: bytes
) -> None:
    client, other = connect(upgrading_server), connect(upgrading_server)
    client.identify(deflate=True)
    wire = client._socket
    client.start_deflate()
    wire.sendall(wire_bytes)
    client.expect_closed()
    other.expect_alive()


def test_the_end_of_a_deflate_stream_is_the_end_of_the_connection(
    connect: Connect, upgrading_server: Daemon, topic: str
) -> None:
    client = connect(upgrading_server)
    client.identify(deflate=True)
    wire = client._socket
    client.start_deflate()
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    wire.sendall(compressor.compress(pub(topic, b"last")) + compressor.flush(zlib.Z_FINISH))
    client.expect_ok()
    client.expect_closed()


def bomb(size_bytes: int) -> bytes:
    """Return a flushed deflate stream of that many bytes of NOPs."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = b"NOP\n" * 16384
    parts = [compressor.compress(piece) for _ in range(size_bytes // len(piece))]
    return b"".join(parts) + compressor.flush(zlib.Z_SYNC_FLUSH)


def test_a_small_packet_that_becomes_megabytes_is_executed_to_its_end(
    connect: Connect, upgrading_server: Daemon, topic: str
) -> None:
    client, other = connect(upgrading_server), connect(upgrading_server)
    client.identify(deflate=True)
    wire = client._socket
    client.start_deflate()
    wire.sendall(bomb(2 << 20))
    other.expect_alive()
    wire.sendall(stored_block(pub(topic, b"after")))
    client.expect_ok()


def stored_block(data: bytes) -> bytes:
    """Return data as one uncompressed deflate block, followed by the empty one that flushes it."""
    return b"\0" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data + b"\0\0\0\xff\xff"


def test_stats_show_the_upgrades_of_a_client(
    upgraded: Upgrading, upgrading_server: Daemon, upgrades: dict[str, object], topic: str
) -> None:
    client = upgraded(**upgrades)
    client.sub(topic)
    channel = upgrading_server.channel(topic, "c")
    assert channel is not None
    (stats,) = channel["clients"]
    assert (stats["deflate"], stats["snappy"]) == ("deflate" in upgrades, "snappy" in upgrades)
    told = [stats[key] for key in ("tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol")]
    if "tls_v1" in upgrades:
        assert told == [True, "Unknown 4865", "TLS1.3", ""]
    else:
        assert told == [False, "", "", ""]
    assert stats["tls_negotiated_protocol_is_mutual"] == ("tls_v1" in upgrades)


def test_the_wish_for_an_upgrade_without_negotiation_is_ignored(connect: Connect, upgrading_server: Daemon) -> None:
    client = connect(upgrading_server)
    client.send(identify({"tls_v1": True}))
    client.expect_ok()
    client.expect_alive()


def test_a_command_that_is_cut_off_with_the_stream_is_not_executed(upgraded: Upgrading, topic: str) -> None:
    client = upgraded(snappy=True)
    client.send(pub(topic, b"whole") + pub(topic, b"cut")[:-1])
    client.expect_ok()
    client.close_sending()
    client.expect_fatal("E_BAD_MESSAGE", "PUB failed to read message body")


def test_the_server_speaks_only_the_magic_it_knows_with_tls_too(connect: Connect, upgrading_server: Daemon) -> None:
    client = connect(upgrading_server, magic=MAGIC[:2] + b"V1")
    client.expect_fatal("E_BAD_PROTOCOL")
