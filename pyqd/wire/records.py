"""Records as GET /topic/log gives them: those of a topic's log, one behind the other, nothing around them.

For readers outside the broker: needs nothing of it but the checksum, compiled or not.
Source: docs/storage.md, "Record".
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

try:
    from pyqd.hot.primitives.crc32c import value as crc32c
except ImportError:  # Where Python alone was sent to.
    from pyqd.primitives.checksums import value as crc32c

FORMAT: Final = 1
HEADER_BYTES: Final = 48
ALIGN_BYTES: Final = 8

LOST: Final = 1

_HEADER = struct.Struct("<IIQQqqHHI")
_CHECKED_FROM = 8

assert _HEADER.size == HEADER_BYTES


class Record(NamedTuple):
    """One message. position: names it in its topic for good. id: 16 hexadecimal digits, as the protocol has them.

    timestamp_ns: of publishing; due_ns: 0 or when a deferred message is due; both since 1970.
    """

    position: int
    id: bytes
    timestamp_ns: int
    due_ns: int
    body: bytes


def decode(data: bytes, *, verify: bool = True) -> Iterator[Record]:
    """Yield the records in the body of an answer. verify: check each one's checksum.

    What stands for records that damage has destroyed is passed over; the gap shows in the positions.
    Raises: ValueError where the data end within a record, or a checksum is wrong; what came before has been yielded.
    """
    at = 0
    view = memoryview(data)
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            raise ValueError(f"the data end within the header of the record at offset {at}")
        size, checksum, position, guid, timestamp_ns, due_ns, _, flags, _ = _HEADER.unpack_from(data, at)
        body_at = at + HEADER_BYTES
        behind = (body_at + size + ALIGN_BYTES - 1) & -ALIGN_BYTES
        if size == 0 or behind > len(data):
            raise ValueError(f"the data end within the record at offset {at}")
        if verify and crc32c(view[at + _CHECKED_FROM : body_at + size], size) != checksum:
            raise ValueError(f"the checksum of the record at offset {at} is wrong")
        if flags & ~LOST:
            raise ValueError(f"the record at offset {at} has flags of a later format: {flags:#x}")
        if not flags:
            yield Record(position, b"%016x" % guid, timestamp_ns, due_ns, data[body_at : body_at + size])
        at = behind
