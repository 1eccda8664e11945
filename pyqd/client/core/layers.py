"""Layers around the bytes of a connection: TLS, snappy, deflate. Bytes in, bytes out, without sockets.

Received bytes are decoded at once and completely, so each layer limits how far they may expand.

Source: docs/nsq/tcp-protocol.md, "Upgrade sequence"; the framing format's description, with the snappy library.
"""

from __future__ import annotations

import importlib
import ssl
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyqd.client.core.tls import tls_failure
from pyqd.client.errors import NotConnectedError, ProtocolError, SettingError, TlsError

if TYPE_CHECKING:
    from pyqd.fallback.checksums import value as crc32c
else:
    try:
        from pyqd.hot.primitives.crc32c import value as crc32c
    except ImportError:  # For a copy of the Python modules without the compiled ones.
        from pyqd.fallback.checksums import value as crc32c

# Deflate expands 1032 times at most, so that receipts of up to 254 KiB never reach it.
EXPANDED_BYTES_MAX: Final = 256 << 20


class TlsLayer:
    """TLS of a client.

    server_hostname: name in the broker's certificate, or its IP address. Raises: TlsError.
    """

    READ_BYTES: Final = 1 << 16

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        self.is_established = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # Unlike wrap_socket(), wrap_bio() would not check the name then.
        if context.check_hostname and not server_hostname:
            raise TlsError("TLS is impossible without the name that the broker's certificate has to have")
        try:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"TLS with {server_hostname!r} is impossible: {error}") from error

    def start(self) -> None:
        """Begin the handshake: take_output() has the bytes to send. Raises: TlsError."""
        self._shake_hands()

    def take_output(self) -> bytes:
        """Return the bytes to send now: of the handshake, alerts after an error, answers to key updates."""
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes:
        """Go on with the handshake, or decrypt. After receive(), also after an error, take_output() may have bytes.

        Raises: TlsError; NotConnectedError for a failure that may pass.
        """
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
        return b"".join(self._decrypted()) if self.is_established else b""

    def send(self, data: bytes) -> bytes:
        """Encrypt. Only after the handshake."""
        if not self.is_established:
            raise AssertionError("bytes were sent before the TLS handshake had ended")
        view = memoryview(data)
        try:
            while view:
                # A write may take a part: one record at least.
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise NotConnectedError(f"TLS: {error.reason or error}") from error
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        self.is_established = True

    def _decrypted(self) -> Iterator[bytes]:
        try:
            while data := self._tls.read(self.READ_BYTES):
                yield data
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return
        except ssl.SSLError as error:
            # With TLS 1.3 a broker's refusal of the certificate comes after the handshake.
            raise tls_failure(error) from error


class DeflateLayer:
    """Raw deflate, with a sync flush after each send. level: of sent bytes, 1 to 9."""

    def __init__(self, level: int = 6, expanded_bytes_max: int = EXPANDED_BYTES_MAX) -> None:
        self._expanded_bytes_max = expanded_bytes_max
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def receive(self, data: bytes) -> bytes:
        """Decode. Raises: ProtocolError."""
        try:
            decoded = self._decompressor.decompress(data, self._expanded_bytes_max)
        except zlib.error as error:
            raise ProtocolError(f"deflate: {error}") from error
        # At the limit, zlib may hold more, and shows it only in the next call.
        if len(decoded) == self._expanded_bytes_max:
            raise ProtocolError(f"deflate: {len(data)} bytes expand to {self._expanded_bytes_max} or more")
        if self._decompressor.eof and self._decompressor.unused_data:
            raise ProtocolError("deflate: bytes after the end of the stream")
        return decoded

    def send(self, data: bytes) -> bytes:
        """Encode, so that the other side can decode all of the data."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH) if data else b""


class SnappyBlocks(NamedTuple):
    """Functions of a package for single blocks, without framing. error: of `uncompress`."""

    compress: Callable[[bytes], Any]
    uncompress: Callable[[bytes], Any]
    error: type[Exception]


def snappy_blocks() -> SnappyBlocks:
    """Return the functions of the installed package. Raises: SettingError if there is none."""
    try:
        cramjam = importlib.import_module("cramjam")
        return SnappyBlocks(cramjam.snappy.compress_raw, cramjam.snappy.decompress_raw, cramjam.DecompressionError)
    except (ImportError, AttributeError):
        pass
    try:
        python_snappy = importlib.import_module("snappy")
        return SnappyBlocks(python_snappy.compress, python_snappy.uncompress, python_snappy.UncompressError)
    except (ImportError, AttributeError):
        raise SettingError("snappy needs a package: pip install 'pyqd-client[snappy]'") from None


class SnappyLayer:
    """Snappy's framing format. A block expands less than 22 times, and has 64 KiB at most. Raises: SettingError.

    stream: identifier, chunk, chunk, ...        chunk: type: uint8, size: uint24 little-endian, then so many bytes
    data chunk: masked CRC-32C of the uncompressed bytes, then these, compressed (type 0) or as they are (type 1)
    """

    BLOCK_BYTES: Final = 1 << 16
    HEADER_BYTES: Final = 4
    CHECKSUM_BYTES: Final = 4
    # A checksum, and the most that 64 KiB can become.
    CHUNK_BYTES_MAX: Final = CHECKSUM_BYTES + 32 + BLOCK_BYTES + BLOCK_BYTES // 6
    COMPRESSED, STORED, SKIPPABLE_FROM, IDENTIFIER = 0, 1, 0x80, 0xFF
    IDENTIFIER_CHUNK: Final = b"\xff\x06\x00\x00sNaPpY"

    def __init__(self) -> None:
        self._blocks = snappy_blocks()
        self._begun = False
        self._identified = False
        self._undecoded = bytearray()
        self._needed_bytes = self.HEADER_BYTES

    def receive(self, data: bytes) -> bytes:
        """Decode the complete chunks. Raises: ProtocolError."""
        self._undecoded += data
        if len(self._undecoded) < self._needed_bytes:
            return b""
        wire = bytes(self._undecoded)
        at = 0
        decoded = []
        while True:
            body_at = at + self.HEADER_BYTES
            self._needed_bytes = self.HEADER_BYTES
            if body_at > len(wire):
                break
            size = int.from_bytes(wire[at + 1 : body_at], "little")
            if size > self.CHUNK_BYTES_MAX:
                raise ProtocolError(f"snappy: a chunk of {size} bytes")
            if body_at + size > len(wire):
                self._needed_bytes += size
                break
            decoded.append(self._decode_chunk(wire[at], wire[body_at : body_at + size]))
            at = body_at + size
        del self._undecoded[:at]
        return b"".join(decoded)

    def _decode_chunk(self, kind: int, body: bytes) -> bytes:
        if kind == self.IDENTIFIER:
            if body != self.IDENTIFIER_CHUNK[self.HEADER_BYTES :]:
                raise ProtocolError("snappy: a wrong stream identifier")
            self._identified = True
            return b""
        if not self._identified:
            raise ProtocolError("snappy: the stream does not begin with its identifier")
        if kind >= self.SKIPPABLE_FROM:
            return b""
        if kind not in (self.COMPRESSED, self.STORED) or len(body) < self.CHECKSUM_BYTES:
            raise ProtocolError(f"snappy: a chunk of type {kind} with {len(body)} bytes")
        block = body[self.CHECKSUM_BYTES :]
        data = block if kind == self.STORED else self._uncompress(block)
        if len(data) > self.BLOCK_BYTES:
            raise ProtocolError(f"snappy: a block of {len(data)} bytes")
        if masked_crc32c(data) != int.from_bytes(body[: self.CHECKSUM_BYTES], "little"):
            raise ProtocolError("snappy: a wrong checksum")
        return data

    def _uncompress(self, block: bytes) -> bytes:
        # Before the package looks at it: it reserves as many bytes as the block begins with.
        if not is_small_block(block, self.BLOCK_BYTES):
            raise ProtocolError("snappy: a block of more than 64 KiB, or none")
        try:
            return bytes(self._blocks.uncompress(block))
        except self._blocks.error as error:
            raise ProtocolError(f"snappy: a damaged block {error}".rstrip()) from error

    def send(self, data: bytes) -> bytes:
        """Encode in chunks of up to 64 KiB; the first ones follow the identifier."""
        chunks = [self._chunk(data[at : at + self.BLOCK_BYTES]) for at in range(0, len(data), self.BLOCK_BYTES)]
        if chunks and not self._begun:
            self._begun = True
            chunks.insert(0, self.IDENTIFIER_CHUNK)
        return b"".join(chunks)

    def _chunk(self, block: bytes) -> bytes:
        kind, body = self.COMPRESSED, bytes(self._blocks.compress(block))
        # As other writers do: less than an eighth is not worth the decoding.
        if len(body) >= len(block) - len(block) // 8:
            kind, body = self.STORED, block
        size = (self.CHECKSUM_BYTES + len(body)).to_bytes(3, "little")
        return b"".join((bytes((kind,)), size, masked_crc32c(block).to_bytes(4, "little"), body))


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as a chunk of snappy has it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_small_block(block: bytes, bytes_max: int) -> bool:
    """Return whether the size that a block of snappy begins with, a varint, is in the limit."""
    size = 0
    for index, byte in enumerate(block[:3]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size <= bytes_max
    return False
