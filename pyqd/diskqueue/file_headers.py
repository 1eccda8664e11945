"""Headers of segments, records and ledgers: parsed from the bytes of files that are not opened as a log.

`Log` and `Ledger` have the same headers as C structs: pyqd/hot/diskqueue/segment.pxd and ledger.pxd, and
pyqd/hot/wire/record.pxd. Source: docs/storage.md.
"""

import struct
from typing import NamedTuple

from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import CorruptionError

SEGMENT_MAGIC = b"PYQDSEG\0"
SEGMENT_HEADER_BYTES = 128
SEGMENT_VERSION = 1
RECORD_HEADER_BYTES = 48
RECORD_ALIGN_BYTES = 8
RECORD_LOST = 1
ORDINAL_MASK = (1 << 48) - 1
LEDGER_MAGIC = b"PYQDLGR\0"
LEDGER_HEADER_BYTES = 4096
LEDGER_VERSION = 1
LEDGER_SEALED = 0x4C414553

_SEGMENT = struct.Struct("<8sIIQQqQQQ")
_SEGMENT_CHECKED = struct.Struct("<QQq")
_RECORD = struct.Struct("<IIQQqqHHHH")
_LEDGER = struct.Struct("<8sII13Q280xQQ16x")
_LEDGER_SEAL = struct.Struct("<IIII")
# Offsets and sizes of what a ledger's checksum leaves out: the cursor's offset, the counters, and the seal.
_LEDGER_UNCHECKED = ((48, 8), (72, 24), (136, 8), (432, 8))
_SIZE = struct.Struct("<I")
_PAUSED_OFFSET = 12
_HANDED_OUT_OFFSET = 44

assert _RECORD.size == RECORD_HEADER_BYTES


class SegmentHeader(NamedTuple):
    """The header of a segment; number 0 is a spare."""

    number: int
    first_seq: int
    created_ns: int
    sealed_count: int
    sealed_bytes: int
    synced_bytes: int


class RecordHeader(NamedTuple):
    """The header of a record."""

    size_bytes: int
    checksum: int
    seq: int
    guid: int
    timestamp_ns: int
    due_ns: int
    attempts: int
    flags: int
    handed_out: int
    reserved: int


class LedgerHeader(NamedTuple):
    """The header of a ledger. ring_checksum: of its bits; None if the file has changed since it was sealed."""

    paused: int
    capacity_bits: int
    floor: int
    cursor: int
    cursor_segment: int
    cursor_offset: int
    parked_below: int
    start: int
    requeue_count: int
    timeout_count: int
    finish_count: int
    absorb_from: int
    absorb_to: int
    reset_to: int
    parked_from: int
    reset_parked_from: int
    ring_checksum: int | None = None


def parse_segment_header(content: bytes, path: str) -> SegmentHeader | None:
    """Return the header at a file's start, None for one that holds no records. Raises: CorruptionError."""
    if len(content) < SEGMENT_HEADER_BYTES:
        raise CorruptionError(path, 0, "shorter than a segment's header")
    magic, version, checksum, number, first_seq, created_ns, count, end, synced = _SEGMENT.unpack_from(content)
    if magic == bytes(8) or (magic == SEGMENT_MAGIC and number == 0):
        return None
    if magic != SEGMENT_MAGIC:
        raise CorruptionError(path, 0, "not a pyqd segment")
    if checksum == crc32c.value(_SEGMENT_CHECKED.pack(0, first_seq, created_ns), SEGMENT_VERSION):
        return None
    # The checksum is continued from the version: if only the version is damaged, it tells the right one.
    if checksum != crc32c.value(_SEGMENT_CHECKED.pack(number, first_seq, created_ns), SEGMENT_VERSION):
        if version != SEGMENT_VERSION:
            raise CorruptionError(path, 8, f"segment format version {version}; this pyqd reads {SEGMENT_VERSION}")
        raise CorruptionError(path, 12, "the segment header's checksum is wrong")
    return SegmentHeader(number, first_seq, created_ns, count, end, synced)


def drained_seq(content: bytes) -> int:
    """Return the first sequence number of the drained segment that a file holds as a spare; 0 if it holds none."""
    if len(content) < SEGMENT_HEADER_BYTES:
        return 0
    magic, _, checksum, _, first_seq, created_ns, *_ = _SEGMENT.unpack_from(content)
    is_spare = magic == SEGMENT_MAGIC and checksum == crc32c.value(
        _SEGMENT_CHECKED.pack(0, first_seq, created_ns), SEGMENT_VERSION
    )
    return int(first_seq) if is_spare else 0


def parse_record_header(content: bytes) -> RecordHeader:
    """Return a record's header from bytes that hold at least the header."""
    return RecordHeader(*_RECORD.unpack_from(content))


def record_span(body_bytes: int) -> int:
    """Return the bytes that a record with a body of that size takes."""
    return -(-(RECORD_HEADER_BYTES + body_bytes) // RECORD_ALIGN_BYTES) * RECORD_ALIGN_BYTES


def record_checksum(record: bytes) -> int:
    """Return the checksum that belongs into a record, given as header and body; `handed_out` counts as 0."""
    checked = bytearray(record)
    checked[_HANDED_OUT_OFFSET : _HANDED_OUT_OFFSET + 2] = bytes(2)
    return crc32c.value(memoryview(checked)[8:], _SIZE.unpack_from(record)[0])


def parse_ledger_header(content: bytes, path: str) -> LedgerHeader:
    """Return the header at a file's start. Raises: CorruptionError."""
    if len(content) < _LEDGER.size + _LEDGER_SEAL.size or content[: len(LEDGER_MAGIC)] != LEDGER_MAGIC:
        raise CorruptionError(path, 0, "not a pyqd ledger")
    _, version, *numbers = _LEDGER.unpack_from(content)
    if version != LEDGER_VERSION:
        raise CorruptionError(path, 8, f"ledger format version {version}; this pyqd reads {LEDGER_VERSION}")
    header = LedgerHeader(*numbers)._replace(ring_checksum=_ring_checksum(content, path))
    capacity = header.capacity_bits
    if capacity < 64 or capacity & (capacity - 1):
        raise CorruptionError(path, 16, "the ledger's header contradicts itself")
    return header


def _ring_checksum(content: bytes, path: str) -> int | None:
    """Check a ledger's header, if it is sealed. Returns: the checksum of its ring; None if it is not sealed."""
    sealed, checksum, ring_checksum, _ = _LEDGER_SEAL.unpack_from(content, _LEDGER.size)
    if sealed == 0:
        return None
    checked = bytearray(content[: _LEDGER.size + _LEDGER_SEAL.size])
    for offset, size in _LEDGER_UNCHECKED:
        checked[offset : offset + size] = bytes(size)
    if sealed != LEDGER_SEALED or checksum != crc32c.value(checked):
        raise CorruptionError(path, 436, "the checksum of the ledger's header is wrong")
    return int(ring_checksum)


def mark_paused(ledger: Ledger, paused: bool) -> None:
    """Set the pause flag in the header of a ledger that no channel has opened."""
    mapping, _ = ledger.sync_target()
    mapping.view()[_PAUSED_OFFSET : _PAUSED_OFFSET + 4] = _SIZE.pack(paused)
