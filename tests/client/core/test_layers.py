"""TLS, snappy and deflate as layers of bytes: golden bytes, hostile input, and a server in memory."""

from __future__ import annotations

import contextlib
import importlib
import random
import ssl
import sys
import zlib

import pytest

from pyqd.client.core import layers
from pyqd.client.core.layers import DeflateLayer, SnappyLayer, TlsLayer
from pyqd.client.errors import NotConnectedError, ProtocolError, SettingError, TlsError
from pyqd.fallback import checksums
from tests.support.certificates import Certificate, certify
from tests.support.streams import IDENTIFIER, compressed_chunk, masked, snappy_chunk, stored_chunk

NOISE = random.Random(1).randbytes(200_000)


class Server:
    """A broker's end of TLS in memory."""

    def __init__(self, certificate: Certificate, *, clients: Certificate | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.path, certificate.key_path)
        if clients is not None:
            context.load_verify_locations(clients.path)
            context.verify_mode = ssl.CERT_REQUIRED
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def shake_hands(self, layer: TlsLayer) -> None:
        """Do the handshake. Raises: the error of the layer."""
        layer.start()
        for _ in range(3):
            self.incoming.write(layer.take_output())
            with contextlib.suppress(ssl.SSLError):
                self.tls.do_handshake()
            assert layer.receive(self.outgoing.read()) == b""


def test_a_certificate_of_an_unknown_authority_is_a_lasting_error_with_a_remedy(certificates):
    layer = TlsLayer(ssl.create_default_context(), "127.0.0.1")
    with pytest.raises(TlsError, match=r"certificate verify failed: .*option tls_ca"):
        Server(certificates.server).shake_hands(layer)
    # An alert for the broker.
    assert layer.take_output()[0] == 21


def test_a_certificate_of_another_host_is_a_lasting_error(certificates):
    with pytest.raises(TlsError, match="the address has to be one of those that the certificate names"):
        Server(certificates.server).shake_hands(TlsLayer(certificates.client_context(), "broker.example"))


def test_an_authority_that_python_3_13_refuses_is_a_lasting_error_with_advice(tmp_path):
    authority = certify(tmp_path, "authority", has_usage=False)
    context = ssl.create_default_context(cafile=str(authority.path))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with pytest.raises(TlsError, match=r"key usage extension; Python 3\.13 and newer demand this of certificates"):
        Server(certify(tmp_path, "server", signer=authority)).shake_hands(TlsLayer(context, "127.0.0.1"))


def test_a_broker_that_wants_a_certificate_refuses_a_client_without_one(certificates):
    server = Server(certificates.server, clients=certificates.authority)
    with pytest.raises(TlsError, match="does it want a client's certificate, options tls_cert and tls_key"):
        server.shake_hands(TlsLayer(certificates.client_context(), "127.0.0.1"))


@pytest.mark.parametrize("name", [None, "", ".x"])
def test_a_missing_or_wrong_host_name_is_an_error_before_the_handshake(certificates, name):
    with pytest.raises(TlsError, match="impossible"):
        TlsLayer(certificates.client_context(), name)


def test_no_host_name_is_needed_where_none_is_checked(certificates):
    context = certificates.client_context()
    context.check_hostname = False
    TlsLayer(context, None).start()


def test_an_answer_without_tls_is_a_lasting_error(certificates):
    layer = TlsLayer(certificates.client_context(), "127.0.0.1")
    layer.start()
    assert layer.take_output()[0] == 22
    with pytest.raises(TlsError, match="speaks no TLS"):
        layer.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture
def connected(certificates) -> tuple[TlsLayer, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A layer and a server's end in memory, after the handshake."""
    layer, server = TlsLayer(certificates.client_context(), "127.0.0.1"), Server(certificates.server)
    server.shake_hands(layer)
    return layer, server.tls, server.incoming, server.outgoing


def test_tls_may_come_byte_by_byte(connected):
    layer, server, _, outgoing = connected
    assert layer.is_established
    server.write(b"hello")
    wire = outgoing.read()
    assert [layer.receive(wire[at : at + 1]) for at in range(len(wire))] == [b""] * (len(wire) - 1) + [b"hello"]


def test_all_records_of_one_receipt_are_decrypted(connected):
    layer, server, _, outgoing = connected
    for at in range(0, len(NOISE), 10_000):
        server.write(NOISE[at : at + 10_000])
    assert layer.receive(outgoing.read()) == NOISE


def test_data_longer_than_a_record_is_sent_whole(connected):
    layer, server, incoming, _ = connected
    incoming.write(layer.send(NOISE))
    received = b""
    while len(received) < len(NOISE):
        received += server.read(1 << 16)
    assert received == NOISE


def test_the_end_of_tls_is_the_end_of_the_bytes(connected):
    layer, server, _, outgoing = connected
    server.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        server.unwrap()
    assert layer.receive(outgoing.read()) == b"last"
    assert layer.receive(b"") == b""


def test_a_changed_record_is_an_error_that_a_new_connection_may_cure(connected):
    layer, server, _, outgoing = connected
    server.write(b"hello")
    wire = bytearray(outgoing.read())
    wire[-1] ^= 1
    with pytest.raises(NotConnectedError, match="TLS"):
        layer.receive(bytes(wire))


def test_nothing_can_be_sent_before_the_end_of_the_handshake(certificates):
    layer = TlsLayer(certificates.client_context(), "127.0.0.1")
    layer.start()
    with pytest.raises(AssertionError):
        layer.send(b"PUB")


COMPRESSIONS = [SnappyLayer, DeflateLayer]


@pytest.mark.parametrize("make", COMPRESSIONS)
@pytest.mark.parametrize("size", [1, 100, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("content", [NOISE, bytes(len(NOISE))], ids=["noise", "zeros"])
def test_sent_bytes_are_received(make, size, content):
    here, there = make(), make()
    for data in (content[:size], b"after", content[:size]):
        assert there.receive(here.send(data)) == data


@pytest.mark.parametrize("make", COMPRESSIONS)
def test_compressed_bytes_may_come_byte_by_byte(make):
    here, there = make(), make()
    wire = here.send(NOISE[:300]) + here.send(bytes(300))
    assert b"".join(there.receive(wire[at : at + 1]) for at in range(len(wire))) == NOISE[:300] + bytes(300)


@pytest.mark.parametrize("make", COMPRESSIONS)
def test_no_bytes_are_sent_for_no_data(make):
    assert make().send(b"") == b""
    assert make().receive(b"") == b""


def test_a_chunk_is_stored_if_it_does_not_shrink_and_the_identifier_comes_once():
    layer = SnappyLayer()
    assert layer.send(NOISE[:1000]) == IDENTIFIER + stored_chunk(NOISE[:1000])
    assert layer.send(bytes(1000)) == compressed_chunk(bytes(1000))


def test_golden_bytes_of_snappy_are_decoded():
    # "Wikipedia" from the description of the format's block, and a stored chunk.
    block = bytes.fromhex("09 20 57696b697065646961".replace(" ", ""))
    wire = IDENTIFIER + snappy_chunk(0, masked(b"Wikipedia") + block) + stored_chunk(b"!")
    assert SnappyLayer().receive(wire) == b"Wikipedia!"
    assert masked(b"Wikipedia") == layers.masked_crc32c(b"Wikipedia").to_bytes(4, "little")


def test_padding_skippable_chunks_and_further_identifiers_are_passed_over():
    wire = IDENTIFIER + snappy_chunk(0xFE, bytes(99)) + snappy_chunk(0x80, b"") + IDENTIFIER + stored_chunk(b"data")
    assert SnappyLayer().receive(wire) == b"data"


TOO_LONG = b"\x81\x80\x04" + b"\xfe\x00\x00" * 100

HOSTILE_SNAPPY = {
    "no identifier": stored_chunk(b"data"),
    "another identifier": snappy_chunk(0xFF, b"sNaPpy"),
    "a chunk of 16 MB": IDENTIFIER + b"\0\xff\xff\xff",
    "a skippable chunk of 16 MB": IDENTIFIER + b"\x80\xff\xff\xff",
    "a reserved type": IDENTIFIER + snappy_chunk(2, bytes(10)),
    "no checksum": IDENTIFIER + snappy_chunk(1, b"abc"),
    "a wrong checksum": IDENTIFIER + snappy_chunk(1, bytes(4) + b"data"),
    "a stored block that is too long": IDENTIFIER + stored_chunk(NOISE[:65_537]),
    "a block that expands too far": IDENTIFIER + snappy_chunk(0, bytes(4) + TOO_LONG),
    "a block of 4 GB": IDENTIFIER + snappy_chunk(0, bytes(4) + b"\xff\xff\xff\xff\x0f"),
    "a damaged block": IDENTIFIER + snappy_chunk(0, bytes(4) + b"\x20\xff\xff"),
    "an empty block": IDENTIFIER + snappy_chunk(0, bytes(4)),
}


@pytest.mark.parametrize("wire", HOSTILE_SNAPPY.values(), ids=HOSTILE_SNAPPY.keys())
def test_hostile_snappy_is_an_error_of_the_protocol(wire):
    with pytest.raises(ProtocolError, match="snappy"):
        SnappyLayer().receive(wire)


def test_a_large_incomplete_chunk_is_kept_without_being_looked_at_again_for_each_byte():
    layer = SnappyLayer()
    wire = IDENTIFIER + stored_chunk(NOISE[:65_536])
    received = [layer.receive(wire[at : at + 1]) for at in range(len(wire))]
    assert b"".join(received) == NOISE[:65_536]


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\xff\xff\xff\xff", "deflate: Error -3"),
        (zlib.compress(b"with a zlib header"), "deflate: Error -3"),
        (b"\x03\x00" + b"more", "after the end of the stream"),
    ],
)
def test_hostile_deflate_is_an_error_of_the_protocol(wire, text):
    with pytest.raises(ProtocolError, match=text):
        DeflateLayer().receive(wire)


def test_bytes_after_the_end_of_a_deflate_stream_are_an_error_in_the_next_receipt_too():
    layer = DeflateLayer()
    assert layer.receive(b"\x03\x00") == b""
    with pytest.raises(ProtocolError, match="after the end of the stream"):
        layer.receive(b"more")


def test_deflate_may_not_expand_without_a_limit():
    wire = DeflateLayer().send(bytes(1 << 20))
    assert len(wire) < 2000
    assert DeflateLayer(expanded_bytes_max=(1 << 20) + 1).receive(wire) == bytes(1 << 20)
    with pytest.raises(ProtocolError, match="bytes expand to 1048576 or more"):
        DeflateLayer(expanded_bytes_max=1 << 20).receive(wire)


def test_empty_blocks_of_deflate_may_follow_one_another():
    empty = b"\x00\x00\x00\xff\xff"
    assert DeflateLayer().receive(empty * 3 + DeflateLayer().send(b"data") + empty) == b"data"


class TestPackages:
    def test_python_snappy_serves_where_cramjam_is_not_installed(self, monkeypatch):
        blocks = layers.snappy_blocks()
        python_snappy = importlib.import_module("snappy")
        monkeypatch.setitem(sys.modules, "cramjam", None)
        other = SnappyLayer()
        assert other._blocks.error is python_snappy.UncompressError is not blocks.error
        assert other.receive(IDENTIFIER + compressed_chunk(bytes(99)) + other.send(b"")) == bytes(99)
        assert SnappyLayer().receive(other.send(bytes(5000))) == bytes(5000)
        with pytest.raises(ProtocolError, match="damaged block"):
            SnappyLayer().receive(HOSTILE_SNAPPY["a damaged block"])

    def test_without_a_package_the_error_names_the_extra(self, monkeypatch):
        for name in ("cramjam", "snappy"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SettingError, match=r"pip install 'pyqd-client\[snappy\]'"):
            SnappyLayer()

    def test_checksums_are_the_same_without_compiled_modules(self, monkeypatch):
        wire = SnappyLayer().send(NOISE[:1000])
        monkeypatch.setattr(layers, "crc32c", checksums.value)
        assert SnappyLayer().send(NOISE[:1000]) == wire
        assert SnappyLayer().receive(wire) == NOISE[:1000]
