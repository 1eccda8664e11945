"""Reader and writer of the queues in a data directory of Go's nsqd. The reader changes nothing.

The reader works as nsqd's own. It begins at the read place that the metadata names, and reads each segment to its end.
The segment that nsqd was writing ends at the write place. An invalid record ends its segment; the next segment is read.

The reader differs if nsqd would lose messages that it has confirmed. A killed nsqd has not synced its metadata, so
there may be messages after the write place, which its next start overwrites. The reader reads these too: the rest of
the segment, as nsqd does, and later segments. If the metadata is missing or unreadable, it reads all segments.

Source: docs/nsq/broker-semantics.md, "Disk queue".
"""

import os
from collections.abc import Callable, Iterator

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import (
    RECORD_HEADER,
    RECORD_SIZE,
    NsqdMessage,
    QueueMeta,
    decode_message,
    encode_record,
    format_meta,
    is_metadata_file,
    meta_file,
    parse_meta,
    parse_queue_file,
    queue_name,
    segment_file,
    split_queue,
)

WRITE_BUFFER_BYTES = 4 << 20
NSQD_READ_BYTES = 256 << 10


class Window:
    """Part of a file in memory, which moves along as the file is read from front to back.

    Thousands of files can be read at the same time: each costs its window, and none a descriptor. Raises: StorageError.
    """

    def __init__(self, files: Files, path: str, window_bytes: int = NSQD_READ_BYTES) -> None:
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


class NsqdDirectory:
    """nsqd's files in a directory.

    segments: numbers of each queue's segments, in order; a queue with metadata alone has none. A channel's queue is
    `topic:channel`, also if nsqd has written it on Windows, where the files are `topic;channel`. originals: the names
    of all of nsqd's files. bad: those of segments that nsqd has set aside.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.segments: dict[str, list[int]] = {}
        self.originals: list[str] = []
        self.bad: list[str] = []
        # Beginnings of the names of a queue's files.
        self._bases: dict[str, str] = {}
        for name in sorted(files.list_directory(path)):
            if is_metadata_file(name):
                self.originals.append(name)
            found = parse_queue_file(name)
            if found is None:
                continue
            self.originals.append(name)
            if found.state == "bad":
                self.bad.append(name)
            elif found.state == "":
                numbers = self.segments.setdefault(self._named(found.queue), [])
                if found.number is not None:
                    numbers.append(found.number)
        for numbers in self.segments.values():
            numbers.sort()

    def _named(self, base: str) -> str:
        """Return the queue of files whose names begin so. If another name is taken for it already, they stay apart."""
        queue = queue_name(*split_queue(base))
        return queue if self._bases.setdefault(queue, base) == base else base

    def base_of(self, queue: str) -> str:
        """Return the beginning of the names of a queue's files."""
        return self._bases.get(queue, queue)

    def path_of(self, name: str) -> str:
        """Return the path of one of the files."""
        return os.path.join(self.path, name)


class NsqdQueue:
    """One queue of such a directory. note: called with a text for each thing that a clean stop does not leave so."""

    def __init__(self, directory: NsqdDirectory, queue: str, note: Callable[[str], None]) -> None:
        self._directory = directory
        self._files = directory.files
        self._base = directory.base_of(queue)
        self._note = note
        self._numbers = directory.segments.get(queue, [])
        self._meta = self._read_meta()

    def _read_meta(self) -> QueueMeta | None:
        path = self._directory.path_of(meta_file(self._base))
        if not self._files.exists(path):
            if self._numbers:
                self._note("no metadata: all its segments are taken")
            return None
        try:
            return parse_meta(self._files.read(path))
        except ValueError:
            self._note("unreadable metadata: all its segments are taken")
            return None

    def messages(self) -> Iterator[NsqdMessage]:
        """Yield the messages that nsqd has not finished, in its order. Raises: StorageError."""
        meta = self._meta
        if meta is None:
            for number in self._numbers:
                yield from self._records(number, 0)
            return
        count = 0
        for number in self._wanted(meta):
            for message in self._records(number, meta.read_bytes if number == meta.read_number else 0):
                count += 1
                yield message
        if count != meta.depth:
            self._note(f"{count} messages were read, its metadata says {meta.depth}")

    def _wanted(self, meta: QueueMeta) -> list[int]:
        """Return the segments from the read place on; record missing ones and those behind the write place."""
        wanted = [number for number in self._numbers if number >= meta.read_number]
        within = [number for number in wanted if number <= meta.write_number]
        # A segment comes into being with its first record.
        expected_count = meta.write_number - meta.read_number + (meta.write_bytes > 0)
        if meta[1:3] != meta[3:5] and len(within) < expected_count:
            self._note(f"{expected_count - len(within)} of its segments are missing")
        beyond_bytes = sum(self._files.size_of(self._path(number)) for number in wanted[len(within) :])
        if meta.write_number in within:
            beyond_bytes += max(0, self._files.size_of(self._path(meta.write_number)) - meta.write_bytes)
        if beyond_bytes:
            self._note(f"{beyond_bytes} bytes lie behind the write place of its metadata: taken")
        return wanted

    def _path(self, number: int) -> str:
        return self._directory.path_of(segment_file(self._base, number))

    def _records(self, number: int, offset: int) -> Iterator[NsqdMessage]:
        end = self._files.size_of(self._path(number))
        window = Window(self._files, self._path(number))
        while offset < end:
            head = window.read(offset, RECORD_SIZE.size)
            size = RECORD_SIZE.unpack(head)[0] if len(head) == RECORD_SIZE.size else 0
            start = offset + RECORD_SIZE.size
            if size < RECORD_HEADER.size or start + size > end:
                self._note(
                    f"{segment_file(self._base, number)}: no record at offset {offset}: "
                    f"the rest of the segment, {end - offset} bytes, is skipped"
                )
                return
            yield decode_message(window.read(start, size))
            offset = start + size


class NsqdQueueWriter:
    """Writes one queue: messages in order, then the metadata, as nsqd leaves a queue of which nothing has been read.

    segment_bytes_max: a segment is as large at most, or holds a single record. Raises: StorageError.
    """

    def __init__(self, files: Files, path: str, queue: str, segment_bytes_max: int) -> None:
        self._files = files
        self._path = path
        self._queue = queue
        self._segment_bytes_max = segment_bytes_max
        self._number = 0
        self._written_bytes = 0
        self._buffer = bytearray()
        self.depth = 0

    def add(self, message: NsqdMessage) -> None:
        """Append a message."""
        record = encode_record(message)
        if self._written_bytes > 0 and self._written_bytes + len(record) > self._segment_bytes_max:
            self._flush()
            self._number += 1
            self._written_bytes = 0
        self._buffer += record
        self._written_bytes += len(record)
        self.depth += 1
        if len(self._buffer) >= WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            path = os.path.join(self._path, segment_file(self._queue, self._number))
            self._files.append(path, bytes(self._buffer))
            self._buffer.clear()

    def close(self) -> None:
        """Write the buffered messages and the metadata file. Raises: StorageError."""
        self._flush()
        meta = QueueMeta(self.depth, 0, 0, self._number, self._written_bytes)
        self._files.write(os.path.join(self._path, meta_file(self._queue)), format_meta(meta))
