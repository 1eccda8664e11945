"""Decoder of records into columns, in Python. Compiled form: pyqd.hot.wire.columns.

One record costs about a microsecond. pyx/wire/columns.pyx describes the layout of the buffers.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from pyqd.fallback.checksums import values as checksums_of
from pyqd.fallback.records import CHECKED_FROM, HEADER_BYTES, LOST, ORDINAL_MASK, REFUSED, Header, body_bytes, spans
from pyqd.primitives.durations import MICROSECOND_NS

ID_BYTES: Final = 16


@dataclass(frozen=True)
class Columns:
    """Columns as buffers in Arrow's layout, and counts of missing records.

    lost: the number of expected records without a row; damaged: of these, records with a wrong checksum. following: the
    position to read next.
    """

    rows: int
    lost: int
    damaged: int
    following: int
    body_offsets: bytes | None
    bodies: bytes | None
    id_offsets: bytes
    ids: bytes
    positions: bytes
    timestamps_ns: bytes
    timestamps_us: bytes
    dues_us: bytes
    due_bits: bytes
    due_count: int


def decode(data: bytes, expected: int, with_bodies: bool = True, skip_damaged: bool = False) -> Columns:
    """Decode the body of an answer of GET /topic/log.

    expected: the requested position. with_bodies: fill `bodies`. skip_damaged: count damaged records as lost, and stop
    if the start of the next record is unknown. Raises: ValueError if a record has flags that a reader must know, and
    without skip_damaged if the data end within a record, a checksum is wrong, or positions do not grow.
    """
    found, cut = spans(data)
    if cut is not None and not skip_damaged:
        raise ValueError(cut)
    sound = checks(data, found)
    rows: list[tuple[int, Header]] = []
    lost = damaged = 0
    for (at, header), is_sound in zip(found, sound, strict=True):
        _, _, position, _, _, _, flags, _, _ = header
        if not is_sound:
            if not skip_damaged:
                raise ValueError(f"the checksum of the record at offset {at} is wrong")
            lost, damaged, expected = lost + 1, damaged + 1, expected + 1
            continue
        if flags & REFUSED:
            raise ValueError(f"the record at offset {at} has flags of a later format: {flags:#x}")
        if position < expected:
            if skip_damaged:
                break
            raise ValueError(f"the record at offset {at} is one of those before it again")
        lost += max(0, (position & ORDINAL_MASK) - (expected & ORDINAL_MASK)) + (flags & LOST)
        expected = position + 1
        if not flags & LOST:
            rows.append((at, header))
    return columns_of(data, rows, with_bodies, lost, damaged, expected)


def checks(data: bytes, found: list[tuple[int, Header]]) -> list[bool]:
    """Return for each record whether its checksum is right and its properties leave a body."""
    starts = [at + CHECKED_FROM for at, _ in found]
    sizes = [header[0] + HEADER_BYTES - CHECKED_FROM for _, header in found]
    right = checksums_of(data, starts, sizes, [header[0] for _, header in found])
    return [
        header[1] == checksum and body_bytes(header) > 0 for (_, header), checksum in zip(found, right, strict=True)
    ]


def columns_of(
    data: bytes, rows: list[tuple[int, Header]], with_bodies: bool, lost: int, damaged: int, following: int
) -> Columns:
    body_offsets = array("i", [0])
    end = 0
    for _, header in rows:
        end += body_bytes(header)
        body_offsets.append(end)
    dues = [header[5] for _, header in rows]
    bits = bytearray((len(rows) + 7) // 8)
    for row, due_ns in enumerate(dues):
        if due_ns:
            bits[row >> 3] |= 1 << (row & 7)
    ends = [at + HEADER_BYTES + header[0] for at, header in rows]
    return Columns(
        rows=len(rows),
        lost=lost,
        damaged=damaged,
        following=following,
        body_offsets=body_offsets.tobytes() if with_bodies else None,
        bodies=b"".join([data[end - body_bytes(header) : end] for end, (_, header) in zip(ends, rows, strict=True)])
        if with_bodies
        else None,
        id_offsets=array("i", range(0, (len(rows) + 1) * ID_BYTES, ID_BYTES)).tobytes(),
        ids="".join([f"{header[3]:016x}" for _, header in rows]).encode(),
        positions=array("q", [header[2] for _, header in rows]).tobytes(),
        timestamps_ns=array("q", [header[4] for _, header in rows]).tobytes(),
        timestamps_us=array("q", [header[4] // MICROSECOND_NS for _, header in rows]).tobytes(),
        dues_us=array("q", [due_ns // MICROSECOND_NS for due_ns in dues]).tobytes(),
        due_bits=bytes(bits),
        due_count=sum(map(bool, dues)),
    )
