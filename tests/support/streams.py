"""Sockets that compress, for tests: written from the formats' descriptions, apart from the daemon's.

Each has the methods of a socket that a test's client uses.
"""

from __future__ import annotations

import abc
import socket
import zlib
from typing import Any

from cramjam import snappy

from pyqd.hot.primitives import crc32c

BLOCK_BYTES = 65536
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
RAW = -15


class Stream(abc.ABC):
    """Common part of both compressions: everything but the bytes goes to the socket below."""

    def __init__(self, below: Any) -> None:
        self.below = below
        self.wire_received = bytearray()

    def settimeout(self, wait_s: float) -> None:
        self.below.settimeout(wait_s)

    def getsockname(self) -> Any:
        return self.below.getsockname()

    def shutdown(self, how: int = socket.SHUT_WR) -> None:
        self.below.shutdown(how)

    def close(self) -> None:
        self.below.close()

    def sendall(self, data: bytes) -> None:
        self.below.sendall(self.encode(data))

    def receive_early(self, wire: bytes) -> bytes:
        """Return the decoded form of bytes that came before this stream was installed."""
        self.wire_received += wire
        return self.decode(wire)

    def recv(self, size_bytes: int) -> bytes:
        """Receive the decoded form of some bytes of the wire; at the end of the wire, the empty one."""
        while True:
            wire: bytes = self.below.recv(size_bytes)
            if not wire:
                return b""
            self.wire_received += wire
            decoded = self.decode(wire)
            if decoded:
                return decoded

    @abc.abstractmethod
    def encode(self, data: bytes) -> bytes:
        """Return the form of data on the wire."""

    @abc.abstractmethod
    def decode(self, wire: bytes) -> bytes:
        """Return the data in bytes of the wire; empty if none is complete."""


class DeflateStream(Stream):
    """Raw deflate, flushed after each sending."""

    def __init__(self, below: Any, level: int = 6) -> None:
        super().__init__(below)
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, RAW)
        self._decompressor = zlib.decompressobj(RAW)

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, wire: bytes) -> bytes:
        return self._decompressor.decompress(wire)


def masked(data: bytes) -> bytes:
    """Return the checksum that a snappy chunk begins with."""
    crc = crc32c.value(data)
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def snappy_chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def compressed_chunk(data: bytes) -> bytes:
    return snappy_chunk(0, masked(data) + bytes(snappy.compress_raw(data)))


def stored_chunk(data: bytes) -> bytes:
    return snappy_chunk(1, masked(data) + data)


class SnappyStream(Stream):
    """Snappy's framing format. kinds: the types of the chunks received."""

    def __init__(self, below: Any) -> None:
        super().__init__(below)
        self.kinds: list[int] = []
        self._begun = False
        self._identified = False
        self._undecoded = b""

    def encode(self, data: bytes) -> bytes:
        chunks = [compressed_chunk(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
        if not self._begun:
            self._begun = True
            chunks.insert(0, IDENTIFIER)
        return b"".join(chunks)

    def decode(self, wire: bytes) -> bytes:
        self._undecoded += wire
        decoded = []
        while len(self._undecoded) >= 4:
            end = 4 + int.from_bytes(self._undecoded[1:4], "little")
            if len(self._undecoded) < end:
                break
            kind, body = self._undecoded[0], self._undecoded[4:end]
            self._undecoded = self._undecoded[end:]
            self.kinds.append(kind)
            if kind == 0xFF:
                assert body == b"sNaPpY"
                self._identified = True
                continue
            assert self._identified
            assert kind in (0, 1), kind
            data = bytes(snappy.decompress_raw(body[4:])) if kind == 0 else body[4:]
            assert len(data) <= BLOCK_BYTES
            assert body[:4] == masked(data)
            decoded.append(data)
        return b"".join(decoded)
