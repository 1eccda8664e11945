"""Messages in the segments of a simulated disk, found in the bytes of the files."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyqd.diskqueue.files import PAGE_BYTES
from pyqd.hot.diskqueue.segment import SEGMENT_HEADER_SIZE, segment_identity
from pyqd.hot.primitives import crc32c
from pyqd.hot.wire.record import span_bytes
from tests.support.storage import RECORD_HEADER_BYTES

RECORD_ALIGN_BYTES = 8
RECORD_LOST = 1
RECORD_GAP = 2
# Of a record with a body of one byte.
RECORD_SPAN_MIN = span_bytes(1)

_SEALED = struct.Struct("<48xQQ8xQ")
_RECORD = struct.Struct("<IIQ24xH6x")


class SegmentHeader(NamedTuple):
    """Header of a segment that has records."""

    first_seq: int
    sealed_bytes: int
    synced_bytes: int
    rewrites: int


class RecordHeader(NamedTuple):
    """Header of a record."""

    size_bytes: int
    checksum: int
    seq: int
    flags: int


def parse_record_header(content: bytes) -> RecordHeader:
    """Return a record's header from its first bytes."""
    return RecordHeader(*_RECORD.unpack_from(content))


def record_checksum(record: bytes) -> int:
    """Return the checksum that belongs into a record, given as header and body."""
    return crc32c.value(record[8:], int.from_bytes(record[:4], "little"))


def log_of(path: str) -> tuple[str, str] | None:
    """Return (topic, "") of the log that a file is a segment of; else None."""
    topic, _, file = path.partition("/topics/")[2].partition(".topic/")
    return (topic, "") if file.endswith(".seg") and file.startswith("log/") else None


def is_spare(path: str, content: bytes) -> bool:
    """Return whether a file is a segment of a log that holds no records."""
    return log_of(path) is not None and header_of(content) is None


def header_of(content: bytes) -> SegmentHeader | None:
    """Return the header of a segment; None for a spare, and for one that cannot be read."""
    number, first_seq = segment_identity(bytes(content[:SEGMENT_HEADER_SIZE]))
    return SegmentHeader(first_seq, *_SEALED.unpack_from(content)) if number else None


def next_record(content: bytes, offset: int, seq: int, damaged_at: int | None = None) -> int | None:
    """Return the offset of the record with a number, or of the first one after damage; None at the end.

    damaged_at: the offset of the record with that number, if it is damaged and lies before `offset`.
    """
    at = offset
    damaged_at = offset if damaged_at is None else damaged_at
    while at + RECORD_HEADER_BYTES < len(content):
        record = parse_record_header(content[at : at + RECORD_HEADER_BYTES])
        whole = content[at : at + RECORD_HEADER_BYTES + record.size_bytes]
        is_next = 0 <= record.seq - seq <= reach_of(content, at - damaged_at) and record.size_bytes > 0
        if is_next and record_checksum(whole) == record.checksum:
            return at
        at += RECORD_ALIGN_BYTES
    return None


def reach_of(content: bytes, size_bytes: int) -> int:
    """Return how many records a damaged range may have had: in a rewritten segment any number, as one of a gap."""
    header = header_of(content)
    return 1 << 48 if header is not None and header.rewrites else size_bytes // RECORD_SPAN_MIN


def records_from(content: bytes, offset: int, seq: int) -> Iterator[tuple[int, int, RecordHeader]]:
    """Yield (start, end, header) of the sound records from an offset on, skipping damage and gaps."""
    while (at := next_record(content, offset, seq)) is not None:
        record = parse_record_header(content[at : at + RECORD_HEADER_BYTES])
        offset, seq = at + span_bytes(record.size_bytes), record.seq + 1
        if record.flags & RECORD_GAP:
            # The number of ordinals is where a message has its own.
            seq = record.seq + number_at(content, at)
        else:
            yield at, offset, record


def number_at(content: bytes, at: int) -> int:
    """Return the number of the message whose record is at an offset."""
    return int.from_bytes(content[at + RECORD_HEADER_BYTES :][:8], "little")


def overlaps(pages: list[int], start: int, end: int) -> bool:
    """Return whether one of some pages has bytes of a range."""
    return any(start < page + PAGE_BYTES and page < end for page in pages)


def numbers_in(content: bytes, pages: list[int]) -> set[int]:
    """Return the numbers of the messages of a segment whose records lie in unreadable pages; all if its header does."""
    header = header_of(content)
    if header is None:
        return set()
    found = records_from(content, SEGMENT_HEADER_SIZE, header.first_seq)
    return {number_at(content, at) for at, end, _ in found if 0 in pages or overlaps(pages, at, end)}


def numbers_behind_end(content: bytes, pages: list[int]) -> set[int]:
    """Return the numbers of the messages whose records a power cut has left behind the end of an open segment.

    The walk finds them only if the end, or the last record before it, lies in an unreadable page: then nothing tells
    the end from damage.
    """
    header = header_of(content)
    if header is None or header.sealed_bytes or 0 in pages:
        return set()
    last = end = SEGMENT_HEADER_SIZE
    seq = header.first_seq
    damaged = None
    for at, behind, record in records_from(content, end, seq):
        if at != end and end >= header.synced_bytes:
            break
        if damaged is None and overlaps(pages, at, behind):
            damaged = at, record.seq
        last, end, seq = at, behind, record.seq + 1
    size_bytes = int.from_bytes(content[end : end + 4], "little")
    if not overlaps(pages, last, end + max(RECORD_SPAN_MIN, span_bytes(size_bytes))):
        return set()
    found = {number_at(content, at) for at, _, _ in records_from(content, end, seq)}
    if damaged is not None:
        # The search begins at the first damaged record. So it also finds what was stored in place of later ones before.
        found |= {number_at(content, at) for at in sound_behind(content, end, *damaged)}
    return found


def sound_behind(content: bytes, offset: int, damaged_at: int, seq: int) -> Iterator[int]:
    """Yield the offsets of sound records from an offset on that a search from a damaged record accepts.

    seq: number of the damaged one.
    """
    while (at := next_record(content, offset, seq, damaged_at)) is not None:
        yield at
        offset = at + RECORD_ALIGN_BYTES


def numbers_behind_bridges(content: bytes, durable: bytes | bytearray) -> set[int]:
    """Return the numbers of the messages of a segment that lie behind a bridge which is not on stable storage."""
    header = header_of(content)
    found: set[int] = set()
    if header is None or content == durable:
        return found
    is_behind = False
    for at, end, record in records_from(content, SEGMENT_HEADER_SIZE, header.first_seq):
        if record.flags & RECORD_LOST:
            is_behind = is_behind or content[at:end] != durable[at:end]
        elif is_behind:
            found.add(number_at(content, at))
    return found
