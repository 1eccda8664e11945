"""Export of a stopped broker's messages as a data directory of Go's nsqd.

A channel's queue gets its unfinished messages: first those delivered before, then the others, then the deferred ones. A
topic's queue gets the held messages. Ids, timestamps and deliveries so far are kept. nsqd's queues have no due time, so
deferred messages are delivered at once there, as after a restart of nsqd itself; the report counts them. nsqd.dat comes
last: without it nsqd finds nothing. The source is read and not changed. Source: docs/interchange.md.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from pyqd.broker.channel import Channel
from pyqd.broker.offline_broker import OfflineBroker
from pyqd.broker.peek import (
    DEAD_LETTER,
    DEFERRED,
    READY,
    Cursor,
    ListedMessage,
    page_of_channel,
    parse_cursor,
    queue_page,
)
from pyqd.broker.replay import no_pause
from pyqd.broker.topic import Topic
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import (
    METADATA_FILE,
    NsqdChannel,
    NsqdMessage,
    NsqdQueueWriter,
    NsqdTopic,
    format_metadata,
    queue_name,
)
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.errors import CorruptionError, StartupError, StorageError
from pyqd.primitives.nsq_compat import NSQ_VERSION

# nsqd's defaults for writing and reading.
SEGMENT_BYTES_MAX = 100 * 1024 * 1024
BODY_BYTES_MAX = 1024 * 1024
# Messages read at once; a page ends sooner if its bodies are large.
PAGE_ROWS = 1000
BODY_BYTES_ANY = 2**32 - 1


class ExportedQueue(NamedTuple):
    """One queue: of a topic if channel is None."""

    topic: str
    channel: str | None
    paused: bool
    depth: int
    deferred_count: int


class ExportReport:
    """Result of an export. longest_body_bytes: an nsqd with a smaller --max-msg-size refuses the body."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.queues: list[ExportedQueue] = []
        self.longest_body_bytes = 0
        self.problems: list[str] = []

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        lines = [f"export of {self.source} to {self.target}, for nsqd {NSQ_VERSION}"]
        for queue in self.queues:
            name = f"topic {queue.topic}" if queue.channel is None else f"  channel {queue.channel}"
            deferred = f", {queue.deferred_count} of them deferred" if queue.deferred_count else ""
            lines.append(f"{name}: {queue.depth} messages{deferred}{', paused' if queue.paused else ''}")
        topics = sum(queue.channel is None for queue in self.queues)
        lines.append(
            f"total: {topics} topics, {len(self.queues) - topics} channels, "
            f"{sum(queue.depth for queue in self.queues)} messages"
        )
        lines += [f"note: {problem}" for problem in self.problems]
        deferred_count = sum(queue.deferred_count for queue in self.queues)
        if deferred_count:
            lines.append(f"note: {deferred_count} deferred messages lose their due time: nsqd delivers them at once")
        if self.longest_body_bytes > BODY_BYTES_MAX:
            lines.append(
                f"note: the longest message has {self.longest_body_bytes} bytes: start nsqd with as large a "
                "-max-msg-size, or it takes that queue for damaged"
            )
        return lines


class Exporter:
    """One export. target: a directory that is missing, and created then, or empty. now_ns: Unix.

    Raises: StartupError, after removing the written files.
    """

    def __init__(
        self, files: Files, source: str, target: str, now_ns: int, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self.files = files
        self.source = source
        self.target = target
        self.now_ns = now_ns
        self.segment_bytes_max = segment_bytes_max
        self.report = ExportReport(source, target)

    def run(self) -> ExportReport:
        """Write everything. Returns: the report."""
        broker = OfflineBroker(self.source)
        try:
            self.files.make_directory(self.target)
            if self.files.list_directory(self.target):
                raise StartupError(f"failed to export - {self.target} is not empty")
            try:
                self._write(broker)
            except (StorageError, CorruptionError, StartupError):
                for name in self.files.list_directory(self.target):
                    self.files.remove(os.path.join(self.target, name))
                raise
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to export - {error}") from error
        return self.report

    def _write(self, broker: OfflineBroker) -> None:
        topics = []
        for found in broker.found_topics():
            for reason in found.reasons():
                raise StartupError(f"failed to export - {reason}")
            assert found.topic is not None
            self._write_topic(found.topic)
            # Only now all records have been read.
            self.report.problems += [f"topic {found.name}: {text}" for text in broker.private.problems]
            channels = tuple(NsqdChannel(channel.name, channel.paused) for channel in found.channels())
            topics.append(NsqdTopic(found.name, found.topic.paused, channels))
        self.files.write(os.path.join(self.target, METADATA_FILE), format_metadata(topics, NSQ_VERSION))
        self.files.sync_directory(self.target)

    def _write_topic(self, topic: Topic) -> None:
        self._write_queue(topic, None, held_messages(topic))
        for channel in topic.channels_by_name.values():
            self._write_queue(topic, channel, queued_messages(topic, channel))

    def _write_queue(self, topic: Topic, channel: Channel | None, rows: Iterator[ListedMessage]) -> None:
        name = None if channel is None else channel.name
        writer = NsqdQueueWriter(self.files, self.target, queue_name(topic.name, name), self.segment_bytes_max)
        deferred_count = 0
        for row in rows:
            deferred_count += row.due_ns > self.now_ns
            self.report.longest_body_bytes = max(self.report.longest_body_bytes, len(row.body))
            writer.add(NsqdMessage(row.timestamp_ns, row.attempts, to_hex(row.guid), row.body))
        writer.close()
        paused = topic.paused if channel is None else channel.paused
        self.report.queues.append(ExportedQueue(topic.name, name, paused, writer.depth, deferred_count))


def held_messages(topic: Topic) -> Iterator[ListedMessage]:
    """Yield the messages that no channel has been given."""
    ordinal = topic.end
    while True:
        page = queue_page(topic, None, ordinal, [], PAGE_ROWS, BODY_BYTES_ANY, no_pause)
        yield from page.rows
        if page.after is None:
            return
        ordinal = topic.reader.ordinal_of(parse_cursor(page.after, READY).numbers[0])


def queued_messages(topic: Topic, channel: Channel) -> Iterator[ListedMessage]:
    """Yield the messages of a channel: those delivered before, the others, then the deferred ones by due time."""
    for state in (READY, DEAD_LETTER, DEFERRED):
        cursor = Cursor()
        while True:
            page = page_of_channel(topic, channel, state, cursor, PAGE_ROWS, BODY_BYTES_ANY, no_pause)
            yield from page.rows
            if page.after is None:
                break
            cursor = parse_cursor(page.after, state)
