"""Consumers over TLS, snappy and deflate.

The codecs are C libraries, called from Python for some hundred KiB at once; bench.deliveries parses the frames. So
Python costs some microseconds for a thousand messages, and the codec dominates the generator's time.
"""

import atexit
import datetime
import ipaddress
import json
import selectors
import shutil
import socket
import ssl
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from bench.deliveries import Deliveries, DeliveryError, Reader
from pyqd.hot.tools.loadgen import LoadError
from pyqd.tools.bench.connections import MAGIC, Address, HandshakeError, receive_exactly
from pyqd.tools.bench.outcome import ChannelCount, LoadReport

RECEIVED_BYTES_MAX = 512 << 10
RECORD_BYTES = 16 << 10
RAW = -15
VALID = datetime.timedelta(days=1)
CHUNK_COMPRESSED, CHUNK_STORED = 0, 1
CHUNK_HEADER_BYTES = 4
CHECKSUM_BYTES = 4
SELECT_S = 0.1


class Layer(Protocol):
    """Layer between the frames and the socket. decode may return less than it received, and the rest later."""

    def decode(self, data: bytes) -> bytes: ...

    def encode(self, data: bytes) -> bytes: ...


class TlsLayer:
    """TLS, by OpenSSL on memory: one recv brings many records."""

    def __init__(self, connection: socket.socket) -> None:
        context = ssl.create_default_context(cafile=str(certificate()[0]))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._secured = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                self._secured.do_handshake()
                connection.sendall(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                connection.sendall(self._outgoing.read())
                self._incoming.write(connection.recv(RECEIVED_BYTES_MAX))

    def decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._secured.read(RECORD_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        self._secured.write(data)
        return self._outgoing.read()


class DeflateLayer:
    """Raw deflate, decoded by ISA-L if it is installed, because it is faster than zlib."""

    def __init__(self, _connection: socket.socket) -> None:
        self._decompressor: Any = None
        try:
            from isal import isal_zlib
        except ImportError:
            self._decompressor = zlib.decompressobj(RAW)
        else:
            self._decompressor = isal_zlib.decompressobj(RAW)
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, RAW)

    def decode(self, data: bytes) -> bytes:
        decoded: bytes = self._decompressor.decompress(data)
        return decoded

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)


class SnappyLayer:
    """Snappy's framing format. Checksums of received chunks are ignored."""

    def __init__(self, _connection: socket.socket) -> None:
        from cramjam import snappy

        self._snappy = snappy
        self._torn = b""

    def decode(self, data: bytes) -> bytes:
        data = self._torn + data
        pieces = []
        at = 0
        while len(data) - at >= CHUNK_HEADER_BYTES:
            end = at + CHUNK_HEADER_BYTES + int.from_bytes(data[at + 1 : at + 4], "little")
            if end > len(data):
                break
            body = data[at + CHUNK_HEADER_BYTES + CHECKSUM_BYTES : end]
            if data[at] == CHUNK_COMPRESSED:
                pieces.append(bytes(self._snappy.decompress_raw(body)))
            elif data[at] == CHUNK_STORED:
                pieces.append(body)
            at = end
        self._torn = data[at:]
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        # A whole stream each time; its identifier may be repeated.
        return bytes(self._snappy.compress(data))


LAYERS: dict[str, Callable[[socket.socket], Layer]] = {
    "tls_v1": TlsLayer,
    "deflate": DeflateLayer,
    "snappy": SnappyLayer,
}


@cache
def certificate() -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1, signed by itself, and its key: files for the life of the process."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    directory = Path(tempfile.mkdtemp(prefix="bench-tls-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path, key_path = directory / "certificate.pem", directory / "key.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path, key_path


def server_flags(upgrade: str) -> tuple[str, ...]:
    """Return the flags that a server needs to grant an upgrade."""
    if upgrade != "tls_v1":
        return ()
    path, key_path = certificate()
    return (f"-tls-cert={path}", f"-tls-key={key_path}", "-https-address=127.0.0.1:0")


class Consumer:
    """One consumer: a socket, a layer, the frames that come."""

    def __init__(self, address: Address, upgrade: str, deliveries: Deliveries, timeout_s: float) -> None:
        self.reader = Reader(deliveries)
        self.socket = socket.create_connection(address, timeout=timeout_s)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            body = json.dumps({"feature_negotiation": True, upgrade: True}).encode()
            self.socket.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
            size, kind = struct.unpack(">ii", receive_exactly(self.socket, 8))
            answer = receive_exactly(self.socket, size - 4)
            if kind != 0 or f'"{upgrade}":true'.encode() not in answer:
                raise HandshakeError(f"{upgrade} was not granted: {answer.decode('utf-8', 'replace')}")
            self.layer: Layer = LAYERS[upgrade](self.socket)
            self.expect_ok()
        except BaseException:
            self.socket.close()
            raise

    def expect_ok(self) -> None:
        decoded = b""
        while len(decoded) < 10:
            data = self.socket.recv(RECEIVED_BYTES_MAX)
            if not data:
                raise HandshakeError("connection closed by the server during the handshake")
            decoded += self.layer.decode(data)
        if decoded != struct.pack(">ii", 6, 0) + b"OK":
            raise HandshakeError(f"not OK: {decoded.decode('utf-8', 'replace')}")

    def send(self, data: bytes) -> None:
        # FINs are a tenth of the received bytes, and the server reads them: this does not wait long.
        self.socket.sendall(self.layer.encode(data))

    def on_readable(self) -> None:
        """Parse the received bytes, and answer them. Raises: LoadError."""
        data = self.socket.recv(RECEIVED_BYTES_MAX)
        if not data:
            raise LoadError("connection closed by the server")
        answer = self.reader.feed(self.layer.decode(data))
        if answer:
            self.send(answer)


def subscribe(
    address: Address, upgrade: str, count: int, topic: str, channel: str, deliveries: Deliveries, timeout_s: float
) -> list[Consumer]:
    """Open upgraded connections and subscribe on each. Raises: HandshakeError; OSError."""
    consumers: list[Consumer] = []
    try:
        for _ in range(count):
            consumers.append(Consumer(address, upgrade, deliveries, timeout_s))
            consumers[-1].send(f"SUB {topic} {channel}\n".encode())
            consumers[-1].expect_ok()
    except BaseException:
        close(consumers)
        raise
    return consumers


def close(consumers: Sequence[Consumer]) -> None:
    for consumer in consumers:
        consumer.socket.close()


def consume(
    consumers: Sequence[Consumer], deliveries: Deliveries, expected: int, rdy: int, deadline_s: float
) -> LoadReport:
    """Consume until all has come and each consumer has read CLOSE_WAIT, or the time is over. Raises: LoadError."""
    started_s = time.monotonic()
    worked_s = 0.0
    closing = False
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
            consumer.send(b"RDY %d\n" % rdy)
        while time.monotonic() - started_s < deadline_s and not all(each.reader.finished for each in consumers):
            events = selector.select(SELECT_S)
            begin_s = time.monotonic()
            try:
                for key, _ in events:
                    key.data.on_readable()
            except (DeliveryError, OSError) as error:
                raise LoadError(str(error)) from error
            if not closing and deliveries.complete:
                closing = True
                for consumer in consumers:
                    consumer.send(b"CLS\n")
            worked_s += time.monotonic() - begin_s
    elapsed_s = time.monotonic() - started_s
    finished = all(each.reader.finished for each in consumers)
    return LoadReport(
        messages=expected,
        confirmed=0,
        received=deliveries.unique + deliveries.duplicates + deliveries.foreign,
        unique=deliveries.unique,
        duplicates=deliveries.duplicates,
        foreign=deliveries.foreign,
        heartbeats=0,
        elapsed_s=elapsed_s,
        published_s=0.0,
        consumed_s=elapsed_s if finished else 0.0,
        worked_s=worked_s,
        timed_out=not finished,
        channels=(ChannelCount(deliveries.unique, deliveries.duplicates, deliveries.foreign),),
    )
