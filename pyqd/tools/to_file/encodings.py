"""Encodings of output files: lines, and lines in gzip members or zstd frames.

Each flush appends a piece that stands for itself, so that a kill damages no earlier piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import cramjam

from pyqd.client.message import Message

GZIP_WINDOW_BITS: Final = 31


class Lines:
    """Bodies with line ends. Base of the other encodings.

    suffix: end of the files' names. is_plain: messages are written when they arrive, and synced later, and an existing
    file may be continued; otherwise a flush encodes and writes them.
    """

    suffix = ""
    is_plain = True

    def head(self) -> bytes:
        return b""

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b"\n".join([*[message.body for message in messages], b""])

    def working_name(self, name: str) -> str:
        """Return the name under which a file is written in the work directory. It gets its own at the end."""
        return name

    def final_name(self, name: str) -> str:
        """Return the name of a file by its working name."""
        return name

    def complete(self, descriptor: int, _path: str, /) -> int:
        """Complete a file that gets no more messages; return its locked descriptor. Raises: FileStorageError."""
        return descriptor


class Gzip(Lines):
    """Lines in gzip members, one per flush."""

    suffix = ".gz"
    is_plain = False

    def __init__(self, level: int) -> None:
        self._level = level

    def encode(self, messages: Sequence[Message]) -> bytes:
        compressor = zlib.compressobj(self._level, zlib.DEFLATED, GZIP_WINDOW_BITS)
        return compressor.compress(super().encode(messages)) + compressor.flush()


class Zstd(Lines):
    """Lines in zstd frames, one per flush."""

    suffix = ".zst"
    is_plain = False

    def __init__(self, level: int) -> None:
        self._level = level

    def encode(self, messages: Sequence[Message]) -> bytes:
        return bytes(cramjam.zstd.compress(super().encode(messages), level=self._level))
