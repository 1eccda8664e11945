"""The files of Go's nsqd: names, queue metadata, records, nsqd.dat; reader and writer of queues.

    nsqd.dat                                  which topics and channels there are, and which are paused; JSON
    orders.diskqueue.meta.dat                 depth, read place and write place of the queue of a topic
    orders.diskqueue.000000.dat ...           its messages
    orders:email.diskqueue.meta.dat ...       the same of a channel
    *.dat.bad, *.dat.<number>.tmp             what nsqd set aside, and what it was writing when it was killed

A record is a big-endian int32 with the size of what follows: int64 timestamp, uint16 deliveries so far, the id in 16
hex digits, the body. All of v1 has this format.

The reader changes nothing, and works as nsqd's own. It begins at the read place that the metadata names, and reads each
segment to its end. The segment that nsqd was writing ends at the write place. An invalid record ends its segment; the
next segment is read.

The reader differs if nsqd would lose messages that it has confirmed. A killed nsqd has not synced its metadata, so
there may be messages after the write place, which its next start overwrites. The reader reads these too: the rest of
the segment, as nsqd does, and later segments. If the metadata is missing or unreadable, it reads all segments.

Source: docs/nsq/broker-semantics.md, "Metadata file", "Disk queue".
"""

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pyqd.diskqueue.files import Files

METADATA_FILE = "nsqd.dat"
RECORD_SIZE = struct.Struct(">i")
RECORD_HEADER = struct.Struct(">qH16s")
WRITE_BUFFER_BYTES = 4 << 20
NSQD_READ_BYTES = 256 << 10

_QUEUE_FILE = re.compile(
    r"(?P<queue>.+)\.diskqueue\.(?:meta\.dat(?P<tmp>\.[0-9]+\.tmp)?|(?P<number>[0-9]{6,})\.dat(?P<bad>\.bad)?)",
    re.DOTALL,
)
# Older releases kept nsqd.<id>.dat as well.
_METADATA_FILES = re.compile(r"nsqd\.dat|nsqd\.dat\.[0-9]+\.tmp|nsqd\.[0-9]+\.dat")
_META = re.compile(rb"(-?[0-9]{1,19})\n([0-9]{1,18}),([0-9]{1,18})\n([0-9]{1,18}),([0-9]{1,18})\n?")


class NsqdMessage(NamedTuple):
    """One record of a queue: publishing time (Unix), deliveries so far, the id as it stands there, the body."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class QueueFile(NamedTuple):
    """Parts of a file's name: its queue, `topic` or `topic:channel`; its segment, None for the metadata.

    state: "" for a file in use, "bad" for a segment set aside, "tmp" for metadata that was being written.
    """

    queue: str
    number: int | None
    state: str


class QueueMeta(NamedTuple):
    """The content of a queue's metadata file; places are a segment's number and an offset in it."""

    depth: int
    read_number: int
    read_bytes: int
    write_number: int
    write_bytes: int


class NsqdChannel(NamedTuple):
    """A channel in nsqd.dat."""

    name: str
    paused: bool


class NsqdTopic(NamedTuple):
    """A topic in nsqd.dat."""

    name: str
    paused: bool
    channels: tuple[NsqdChannel, ...]


class NsqdMetadata(NamedTuple):
    """Content of nsqd.dat; version is that of the nsqd that wrote it, empty if unknown."""

    version: str
    topics: tuple[NsqdTopic, ...]


def queue_name(topic: str, channel: str | None = None) -> str:
    """Return the base name of the files of a topic's or channel's queue."""
    return topic if channel is None else f"{topic}:{channel}"


def split_queue(queue: str) -> tuple[str, str | None]:
    """Return topic and channel of a queue's name; the names may be invalid. On Windows nsqd writes ; for : ."""
    topic, colon, channel = queue.replace(";", ":").partition(":")
    return topic, channel if colon else None


def meta_file(queue: str) -> str:
    """Return the name of a queue's metadata file."""
    return f"{queue}.diskqueue.meta.dat"


def segment_file(queue: str, number: int) -> str:
    """Return the name of a queue's segment."""
    return f"{queue}.diskqueue.{number:06d}.dat"


def parse_queue_file(name: str) -> QueueFile | None:
    """Return the parts of a queue file's name; None for any other name."""
    match = _QUEUE_FILE.fullmatch(name)
    if match is None:
        return None
    number = None if match["number"] is None else int(match["number"])
    return QueueFile(match["queue"], number, "tmp" if match["tmp"] else "bad" if match["bad"] else "")


def is_metadata_file(name: str) -> bool:
    """Return whether the name is nsqd.dat, or a temporary file that nsqd writes on the way there."""
    return _METADATA_FILES.fullmatch(name) is not None


def parse_meta(content: bytes) -> QueueMeta:
    """Return a queue's metadata. Raises: ValueError."""
    match = _META.fullmatch(content)
    if match is None:
        raise ValueError("not the metadata of a queue")
    meta = QueueMeta(*map(int, match.groups()))
    if (meta.read_number, meta.read_bytes) > (meta.write_number, meta.write_bytes):
        raise ValueError("the queue's read position is after its write position")
    return meta


def format_meta(meta: QueueMeta) -> bytes:
    """Return a queue's metadata as nsqd writes it."""
    return f"{meta.depth}\n{meta.read_number},{meta.read_bytes}\n{meta.write_number},{meta.write_bytes}\n".encode(
        "ascii"
    )


def encode_record(message: NsqdMessage) -> bytes:
    """Return a message as a record, its size in front."""
    size = RECORD_HEADER.size + len(message.body)
    header = RECORD_HEADER.pack(message.timestamp_ns, message.attempts, message.id)
    return b"".join((RECORD_SIZE.pack(size), header, message.body))


def decode_message(data: bytes) -> NsqdMessage:
    """Return the message of a record, given without its size; at least the 26 bytes of a header."""
    timestamp_ns, attempts, message_id = RECORD_HEADER.unpack_from(data)
    return NsqdMessage(timestamp_ns, attempts, message_id, data[RECORD_HEADER.size :])


def parse_metadata(content: bytes) -> NsqdMetadata:
    """Return the content of nsqd.dat; keys may be missing or null, names may be invalid.

    Raises: ValueError for content that nsqd refuses as well: not JSON, or values of another type.
    """
    try:
        found = json.loads(content)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    topics = []
    for topic in _entries(found, "topics"):
        channels = tuple(
            NsqdChannel(_value(channel, "name", str, ""), _value(channel, "paused", bool, False))
            for channel in _entries(topic, "channels")
        )
        topics.append(NsqdTopic(_value(topic, "name", str, ""), _value(topic, "paused", bool, False), channels))
    return NsqdMetadata(_value(found, "version", str, ""), tuple(topics))


def format_metadata(topics: Iterable[NsqdTopic], version: str) -> bytes:
    """Return the content of nsqd.dat as nsqd writes it: compact, and null if a topic has no channels."""
    listed = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [{"name": name, "paused": paused} for name, paused in topic.channels] or None,
        }
        for topic in topics
    ]
    return json.dumps({"topics": listed or None, "version": version}, separators=(",", ":")).encode("ascii")


def _entries(found: Any, key: str) -> list[Any]:
    return _value(found, key, list, None) or []


def _value(found: Any, key: str, kind: type, default: Any) -> Any:
    if not isinstance(found, dict):
        raise ValueError(f"an object is expected, not {json.dumps(found)[:40]}")
    value = found.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{key} cannot be {json.dumps(value)[:40]}")
    return value


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
