"""Segments of a log, and rewritten ones, made by hand from the bytes of others as docs/storage.md describes them."""

import struct
from collections.abc import Container, Iterator, Sequence

from pyqd.fallback.records import HEADER_BYTES, ORDINAL_MASK, spans
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.segment import Segment
from pyqd.hot.primitives import crc32c
from tests.support.storage import SEGMENT_HEADER_BYTES, record_bytes

LOST_AND_GAP = 3
PAGE_BYTES = 4096

_HEADER = struct.Struct("<8sIIQQqQQQQQQQ")
# Offset of the field `sealed_bytes`.
_SEALED_BYTES_AT = 48


def chain(log: Log) -> list[Segment]:
    """Return the segments of a log."""
    segments = [log.first]
    while (following := segments[-1].next) is not None:
        segments.append(following)
    return segments


def path_of(segment: Segment) -> str:
    """Return the path of a segment's file."""
    assert segment.mapping.path is not None
    return segment.mapping.path


def gap(seq: int, count: int) -> bytes:
    """Return the gap for `count` ordinals."""
    return record_bytes(seq, struct.pack("<Q", count), guid=0, timestamp_ns=0, flags=LOST_AND_GAP)


def records_in(segment: bytes) -> list[tuple[int, int, bytes]]:
    """Return (sequence number, ordinals, bytes) of each record of a sealed segment."""
    (end,) = struct.unpack_from("<Q", segment, _SEALED_BYTES_AT)
    found, _ = spans(segment[SEGMENT_HEADER_BYTES:end])
    records = []
    for at, header in found:
        start = SEGMENT_HEADER_BYTES + at
        body = start + HEADER_BYTES
        count = struct.unpack_from("<Q", segment, body)[0] if header[6] == LOST_AND_GAP else 1
        records.append((header[2], count, segment[start : (body + header[0] + 7) & ~7]))
    return records


def parts_of(records: Sequence[tuple[int, int, bytes]], kept: Container[int]) -> Iterator[tuple[bool, bytes]]:
    """Yield (is kept, bytes) of the records and gaps of a rewritten segment. kept: ordinals."""
    waiting = 0
    for seq, count, content in records:
        if count == 1 and seq & ORDINAL_MASK in kept:
            if waiting:
                yield False, gap(seq - waiting, waiting)
            yield True, content
            waiting = 0
        else:
            waiting += count
    if waiting:
        yield False, gap(records[-1][0] + records[-1][1] - waiting, waiting)


def rewritten(segments: Sequence[bytes], kept: Container[int], rewrites: int = 1) -> bytes:
    """Return the file that takes the place of sealed segments. kept: ordinals of the records that stay."""
    first, last = (_HEADER.unpack_from(segment) for segment in (segments[0], segments[-1]))
    records = [record for segment in segments for record in records_in(segment)]
    parts = list(parts_of(records, kept))
    data = b"".join(content for _, content in parts)
    number, first_seq, created_ns = last[3], first[4], first[5]
    first_number, kept_count = first[9] or first[3], sum(is_kept for is_kept, _ in parts)
    checksum = crc32c.value(memoryview(struct.pack("<QQQq", 2, number, first_seq, created_ns)))
    checksum = crc32c.value(memoryview(struct.pack("<QQQ", first_number, rewrites, kept_count)), checksum)
    count = records[-1][0] + records[-1][1] - first_seq
    end = SEGMENT_HEADER_BYTES + len(data)
    header = _HEADER.pack(
        first[0],
        2,
        checksum,
        *(number, first_seq, created_ns, count, end, end),
        *(first_number, rewrites, count, kept_count),
    )
    content = header.ljust(SEGMENT_HEADER_BYTES, b"\0") + data
    return content.ljust(-(-len(content) // PAGE_BYTES) * PAGE_BYTES, b"\0")
