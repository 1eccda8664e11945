"""Decoder of GET /topic/log: the records of a topic's log, one after the other, without framing.

For readers outside the broker. It needs only the checksum of the broker's code, compiled or not. Source:
docs/storage.md, "Record".
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

FORMAT: Final = 2
HEADER_BYTES: Final = 48
ALIGN_BYTES: Final = 8
# Of a position; the rest is the epoch.
ORDINAL_BITS: Final = 48
ORDINAL_MASK: Final = (1 << ORDINAL_BITS) - 1

LOST: Final = 1
# Flags of later formats: a reader that does not know one refuses the record.
REFUSED: Final = 0xFF00

CHECKED_FROM: Final = 8
WORD_BYTES: Final = 8

# Size, checksum, position, id, timestamp, due time, flags, words of properties, key hash.
_HEADER = struct.Struct("<IIQQqqHHI")

assert _HEADER.size == HEADER_BYTES

Header = tuple[int, ...]


class Record(NamedTuple):
    """One message. position: its permanent place in its topic. id: 16 hexadecimal digits, as in the protocol.

    timestamp_ns: of publishing; due_ns: due time of a deferred message, else 0; both since 1970.
    """

    position: int
    id: bytes
    timestamp_ns: int
    due_ns: int
    body: bytes


def checksum_function() -> Callable[[memoryview, int], int]:
    """Return the function for checksums. Readers that verify nothing do not load it, and no compiled code."""
    try:
        from pyqd.hot.primitives.crc32c import value
    except ImportError:  # For a copy of the Python modules without the compiled ones.
        from pyqd.fallback.checksums import value
    return value


def decode(data: bytes, *, verify: bool = True) -> Iterator[Record]:
    """Yield the records in the body of an answer. verify: check each checksum.

    Placeholders of destroyed records are skipped; the gap shows in the positions. Raises: ValueError if the data end
    within a record, or a checksum is wrong; the records before have been yielded.
    """
    crc32c = checksum_function() if verify else None
    found, cut = spans(data)
    view = memoryview(data)
    for at, header in found:
        size, checksum, position, guid, timestamp_ns, due_ns, flags, _, _ = header
        end = at + HEADER_BYTES + size
        is_sound = crc32c is None or crc32c(view[at + CHECKED_FROM : end], size) == checksum
        if not is_sound or body_bytes(header) <= 0:
            raise ValueError(f"the checksum of the record at offset {at} is wrong")
        if flags & REFUSED:
            raise ValueError(f"the record at offset {at} has flags of a later format: {flags:#x}")
        if not flags & LOST:
            yield Record(position, b"%016x" % guid, timestamp_ns, due_ns, data[end - body_bytes(header) : end])
    if cut is not None:
        raise ValueError(cut)


def body_bytes(header: Header) -> int:
    """Return the size of a record's body, which its properties precede."""
    return header[0] - WORD_BYTES * header[7]


def spans(data: bytes) -> tuple[list[tuple[int, Header]], str | None]:
    """Return offset and header of each record, and the reason why the last one is not a record, or None."""
    found: list[tuple[int, Header]] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < HEADER_BYTES:
            return found, f"the data end within the header of the record at offset {at}"
        header = _HEADER.unpack_from(data, at)
        behind = (at + HEADER_BYTES + header[0] + ALIGN_BYTES - 1) & -ALIGN_BYTES
        if header[0] == 0 or behind > end:
            return found, f"the data end within the record at offset {at}"
        found.append((at, header))
        at = behind
    return found, None
