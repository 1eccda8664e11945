"""Offline reader of logs and ledgers: reads them from disk as a start would find them, without changing a byte.

`Log` and `Ledger` map their files for writing, and on opening they complete changes that a kill has interrupted. The
offline reader reads files in pieces and draws the same conclusions in memory. It works beside a running daemon too; a
change that the daemon makes meanwhile shows in part or not at all.

The headers are parsed in pyqd/diskqueue/file_headers.py; topics and channels, which consist of logs and ledgers, are
read in pyqd/broker/offline_topics.py. Source: docs/storage.md, "Log", "Ledger".
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from pyqd.diskqueue.file_headers import (
    LEDGER_HEADER_BYTES,
    ORDINAL_MASK,
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    SEGMENT_HEADER_BYTES,
    LedgerHeader,
    parse_ledger_header,
    parse_record_header,
    parse_segment_header,
    record_checksum,
    record_span,
)
from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import CorruptionError, StorageError

WINDOW_BYTES = 256 << 10
VALID, ABSENT, DAMAGED = range(3)
NO_LEDGER = LedgerHeader(0, 64, *14 * [0])


class Window:
    """Part of a file in memory, which moves along as the file is read from front to back.

    Thousands of files can be read at the same time: each costs its window, and none a descriptor. Raises: StorageError.
    """

    def __init__(self, files: Files, path: str, window_bytes: int = WINDOW_BYTES) -> None:
        self.path = path
        self._files = files
        self._window_bytes = window_bytes
        self._start = 0
        self._content = b""

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from an offset, fewer at the end of the file."""
        at = offset - self._start
        if at < 0 or at + count > len(self._content):
            self._content = self._files.read_range(self.path, offset, max(count, self._window_bytes))
            self._start = offset
            at = 0
        return self._content[at : at + count]


class OfflineRecord(NamedTuple):
    """One record.

    attempts: deliveries before it was written. handed_out: attempts that its last delivery since then stated; 0: none.
    lost: it stands for a record that was lost to damage, and is no message.
    """

    ordinal: int
    guid: int
    timestamp_ns: int
    due_ns: int
    attempts: int
    body: bytes
    handed_out: int
    lost: bool = False


class LogExtent(NamedTuple):
    """Range of the ordinals of a log, from the oldest record to its end, without the holes [start, end)."""

    first: int
    end: int
    holes: list[tuple[int, int]]


class OfflineSegment:
    """One segment of a log, or a spare. Raises: CorruptionError, StorageError."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.size_bytes = files.size_of(path)
        self.header = parse_segment_header(files.read_range(path, 0, SEGMENT_HEADER_BYTES), path)
        self.count = 0
        self.end_bytes = SEGMENT_HEADER_BYTES
        self.problem: str | None = None
        if self.header is None:
            return
        self.first_ordinal = self.header.first_seq & ORDINAL_MASK
        if self.header.sealed_bytes:
            if not SEGMENT_HEADER_BYTES <= self.header.sealed_bytes <= self.size_bytes:
                raise CorruptionError(path, 48, "the segment is shorter than its sealed end")
            self.count = self.header.sealed_count
            self.end_bytes = self.header.sealed_bytes
        else:
            self._walk()

    @property
    def end_ordinal(self) -> int:
        """The ordinal after its last record."""
        return self.first_ordinal + self.count

    def _verdict(self, window: Window, offset: int, seq: int, limit: int) -> tuple[int, int]:
        """Judge as recovery does whether a record with that number is at an offset. Returns: (verdict, its span)."""
        head = window.read(offset, RECORD_HEADER_BYTES)
        if limit - offset < RECORD_HEADER_BYTES or len(head) < RECORD_HEADER_BYTES or head[:8] == bytes(8):
            return ABSENT, 0
        header = parse_record_header(head)
        if header.seq != seq:
            return ABSENT, 0
        span = record_span(header.size_bytes)
        if header.size_bytes == 0 or span > limit - offset:
            return DAMAGED, 0
        whole = window.read(offset, RECORD_HEADER_BYTES + header.size_bytes)
        return (VALID if record_checksum(whole) == header.checksum else DAMAGED), span

    def _walk(self) -> None:
        """Find the end of a segment that is not sealed."""
        assert self.header is not None
        window = Window(self.files, self.path)
        verdict, span = self._verdict(window, self.end_bytes, self.header.first_seq, self.size_bytes)
        while verdict == VALID:
            self.end_bytes += span
            self.count += 1
            verdict, span = self._verdict(window, self.end_bytes, self.header.first_seq + self.count, self.size_bytes)
        if verdict == DAMAGED:
            self.problem = f"{self.path}: damaged record at offset {self.end_bytes}"

    def verify(self) -> str | None:
        """Check every record's number and checksum. Returns: the first damage found, None if there is none."""
        if self.header is None or self.problem is not None:
            return self.problem
        window = Window(self.files, self.path)
        offset = SEGMENT_HEADER_BYTES
        for index in range(self.count):
            verdict, span = self._verdict(window, offset, self.header.first_seq + index, self.end_bytes)
            if verdict != VALID:
                return f"{self.path}: damaged record at offset {offset}" if self._is_unchanged() else None
            offset += span
        if offset != self.end_bytes and self._is_unchanged():
            return f"{self.path}: {self.end_bytes - offset} bytes more than its records"
        return None

    def _is_unchanged(self) -> bool:
        """Return whether the file still holds the same segment, which a running daemon may have recycled."""
        try:
            header = parse_segment_header(self.files.read_range(self.path, 0, SEGMENT_HEADER_BYTES), self.path)
        except (StorageError, CorruptionError):
            return False
        return header is not None and self.header is not None and header.first_seq == self.header.first_seq

    def records(self) -> Iterator[OfflineRecord]:
        """Yield its records, in order."""
        window = Window(self.files, self.path)
        offset = SEGMENT_HEADER_BYTES
        for ordinal in range(self.first_ordinal, self.first_ordinal + self.count):
            head = window.read(offset, RECORD_HEADER_BYTES)
            header = parse_record_header(head) if len(head) == RECORD_HEADER_BYTES else None
            if header is None or header.seq & ORDINAL_MASK != ordinal:
                raise CorruptionError(self.path, offset, f"record {ordinal} is not at its position")
            body = window.read(offset + RECORD_HEADER_BYTES, header.size_bytes)
            yield OfflineRecord(
                ordinal,
                header.guid,
                header.timestamp_ns,
                header.due_ns,
                header.attempts,
                body,
                header.handed_out,
                bool(header.flags & RECORD_LOST),
            )
            offset += record_span(header.size_bytes)


class OfflineLog:
    """The segments of a log in order, without spares. Raises: CorruptionError, StorageError."""

    def __init__(self, files: Files, directory: str) -> None:
        self.directory = directory
        self.segments: list[OfflineSegment] = []
        self.problems: list[str] = []
        self.holes: list[tuple[int, int]] = []
        self.file_bytes = 0
        names = files.list_directory(directory) if files.exists(directory) else []
        for name in sorted(names):
            if not name.endswith(SUFFIX):
                continue
            segment = OfflineSegment(files, os.path.join(directory, name))
            self.file_bytes += segment.size_bytes
            if segment.header is not None:
                self.segments.append(segment)
        self.segments.sort(key=lambda segment: segment.header.number if segment.header else 0)
        self.first = self.segments[0].first_ordinal if self.segments else 0
        self.end = self.first
        for segment in self.segments:
            if segment.first_ordinal < self.end:
                raise CorruptionError(segment.path, 16, "two segments hold the same records")
            if segment.first_ordinal > self.end:
                self.holes.append((self.end, segment.first_ordinal))
                self.problems.append(f"{directory}: records {self.end} to {segment.first_ordinal - 1} are missing")
            self.end = segment.end_ordinal
            if segment.problem is not None:
                self.problems.append(segment.problem)

    @property
    def extent(self) -> LogExtent:
        """Range of its ordinals, for the ledgers over it."""
        return LogExtent(self.first, self.end, self.holes)

    @property
    def count(self) -> int:
        """Number of its records."""
        return sum(segment.count for segment in self.segments)

    def records(self, start: int = 0) -> Iterator[OfflineRecord]:
        """Yield the records from an ordinal on."""
        for segment in self.segments:
            if segment.end_ordinal > start:
                for record in segment.records():
                    if record.ordinal >= start:
                        yield record

    def verify(self) -> list[str]:
        """Check every record. Returns: the damage found, one text for each damaged segment."""
        return [problem for segment in self.segments if (problem := segment.verify()) is not None]


class OfflineLedger:
    """A ledger, adjusted to its log as a start would adjust it.

    started: False if a kill left it without a position, or without its file. finished: bit i is record `floor + i`;
    no bit is set at or past the log's end. power_failed: its bits may be newer than its header. Raises:
    CorruptionError, StorageError.
    """

    def __init__(self, files: Files, path: str, extent: LogExtent, power_failed: bool = False) -> None:
        self.file_bytes = 0
        header = NO_LEDGER
        ring = b""
        if files.exists(path):
            self.file_bytes = files.size_of(path)
            content = files.read_range(path, 0, LEDGER_HEADER_BYTES)
            header = parse_ledger_header(content, path)
            ring = files.read_range(path, LEDGER_HEADER_BYTES, header.capacity_bits // 8)
            if len(ring) < header.capacity_bits // 8:
                raise CorruptionError(path, 16, "the ledger's header contradicts itself")
            is_wrong = header.ring_checksum is not None and header.ring_checksum != crc32c.value(ring)
            # A running daemon takes the seal off before it changes a bit.
            if is_wrong and not power_failed and files.read_range(path, 0, LEDGER_HEADER_BYTES) == content:
                raise CorruptionError(path, LEDGER_HEADER_BYTES, "the checksum of the ledger's bits is wrong")
        self.header = header
        self.paused = bool(header.paused)
        self.started = header.cursor_segment != 0
        self.floor, self.cursor = header.floor, header.cursor
        self.finished = 0
        self.parked_from = header.parked_from
        if header.reset_to:
            self.floor = self.cursor = header.reset_to - 1
            self.parked_from = header.reset_parked_from
        else:
            self._take_bits(int.from_bytes(ring, "little"))
        self._clamp(extent.first, extent.end)
        for start, end in extent.holes:
            self._finish(start, end)

    def _take_bits(self, bits: int) -> None:
        header = self.header
        capacity = header.capacity_bits
        if header.absorb_to:
            self.floor = header.absorb_to
        at = self.floor % capacity
        self.finished = bits >> at | (bits & ((1 << at) - 1)) << (capacity - at)
        if header.absorb_to:
            # The bits behind the floor may not be cleared yet; in the ring they lie before the floor.
            self.finished &= (1 << (capacity - (header.absorb_to - header.absorb_from))) - 1

    def _clamp(self, oldest: int, end: int) -> None:
        if self.floor > end or self.cursor > end:
            self._move_floor(min(self.floor, end))
            self.cursor = end
        if self.floor < oldest:
            self._move_floor(oldest)
            self.cursor = max(self.cursor, oldest)
        self.finished &= (1 << (end - self.floor)) - 1

    def _move_floor(self, floor: int) -> None:
        if floor >= self.floor:
            self.finished >>= floor - self.floor
        else:
            self.finished = 0
        self.floor = floor

    def _finish(self, start: int, end: int) -> None:
        start = max(start, self.floor)
        if start < end:
            self.finished |= ((1 << (end - start)) - 1) << (start - self.floor)

    def place(self, ordinal: int) -> None:
        """Make it begin at an ordinal, as a start does with a ledger that has no position yet."""
        self.floor = self.cursor = ordinal
        self.finished = 0

    def unfinished_count(self, end: int) -> int:
        """Count the records of `[floor, end)` that are not finished."""
        within = max(0, end - self.floor)
        return within - (self.finished & ((1 << within) - 1)).bit_count()

    def unfinished(self, end: int) -> Iterator[int]:
        """Yield the ordinals of `[floor, end)` that are not finished."""
        within = max(0, end - self.floor)
        bits = (self.finished & ((1 << within) - 1)).to_bytes((within + 7) // 8, "little")
        for ordinal in range(self.floor, end):
            index = ordinal - self.floor
            if not bits[index >> 3] >> (index & 7) & 1:
                yield ordinal
