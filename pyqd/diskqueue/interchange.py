"""The files of Go's nsqd, as bytes: names, queue metadata, records, nsqd.dat. Pure functions; no file is touched here.

    nsqd.dat                                  which topics and channels there are, and which are paused; JSON
    orders.diskqueue.meta.dat                 depth, read place and write place of the queue of a topic
    orders.diskqueue.000000.dat ...           its messages
    orders:email.diskqueue.meta.dat ...       the same of a channel
    *.dat.bad, *.dat.<number>.tmp             what nsqd set aside, and what it was writing when it was killed

A record is a big-endian int32 with the size of what follows: int64 timestamp, uint16 deliveries so far, the id in 16
hex digits, the body. All of v1 has this format.

Source: docs/nsq/broker-semantics.md, "Metadata file", "Disk queue".
"""

import json
import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

METADATA_FILE = "nsqd.dat"
RECORD_SIZE = struct.Struct(">i")
RECORD_HEADER = struct.Struct(">qH16s")

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
