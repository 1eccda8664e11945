"""Data directories of Go's nsqd for tests, and snapshots of directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdChannel, NsqdMessage, NsqdQueueWriter, NsqdTopic, format_metadata
from pyqd.hot.primitives.guid import to_hex

# An id of October 2024, node 7.
GUID = 0x1786_0000_0000_7000


def message(number: int, attempts: int = 0, body: bytes | None = None) -> NsqdMessage:
    """Return the message of that number: later ones have a greater id and timestamp."""
    guid = to_hex(GUID + (number << 22))
    return NsqdMessage(1_700_000_000_000_000_000 + number, attempts, guid, b"m%d" % number if body is None else body)


def messages(*numbers: int) -> list[NsqdMessage]:
    return [message(number) for number in numbers]


def write_queue(path: Path, queue: str, content: Sequence[NsqdMessage], segment_bytes_max: int = 1 << 20) -> None:
    """Write the queue of a topic, or of a `topic:channel`."""
    writer = NsqdQueueWriter(Files(), str(path), queue, segment_bytes_max)
    for entry in content:
        writer.add(entry)
    writer.close()


def write_metadata(path: Path, topics: Mapping[str, Sequence[str]], paused: Sequence[str] = ()) -> None:
    """Write nsqd.dat. topics: the channels of each. paused: names of topics, and of channels as `topic:channel`."""
    listed = [
        NsqdTopic(
            name, name in paused, tuple(NsqdChannel(channel, f"{name}:{channel}" in paused) for channel in channels)
        )
        for name, channels in topics.items()
    ]
    (path / "nsqd.dat").write_bytes(format_metadata(listed, "1.3.0"))


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file under a directory: its time of change, and its content."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
