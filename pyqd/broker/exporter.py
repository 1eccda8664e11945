"""Export of a stopped broker's messages as a data directory of Go's nsqd.

A channel's queue gets its unfinished messages: first those delivered before, then the others, then the parked ones. A
topic's queue gets the held messages. Ids, timestamps and deliveries so far are kept. nsqd's queues have no due time, so
deferred messages are delivered at once there, as after a restart of nsqd itself; the report counts them. nsqd.dat comes
last: without it nsqd finds nothing. The source is read and not changed. Source: docs/interchange.md.
"""

import os
from typing import NamedTuple

from pyqd.broker.offline_topics import OfflineData, OfflineTopic
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import (
    METADATA_FILE,
    NsqdChannel,
    NsqdMessage,
    NsqdTopic,
    format_metadata,
    queue_name,
)
from pyqd.diskqueue.nsqd_queue import NsqdQueueWriter
from pyqd.diskqueue.offline_reader import OfflineRecord
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.errors import CorruptionError, StartupError, StorageError
from pyqd.primitives.nsq_compat import NSQ_VERSION

# nsqd's defaults for writing and reading.
SEGMENT_BYTES_MAX = 100 * 1024 * 1024
BODY_BYTES_MAX = 1024 * 1024


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
        survey = OfflineData(self.files, self.source)
        for name, reason in survey.all_unreadable():
            raise StartupError(f"failed to export - {name}: {reason}")
        if survey.awaits_start:
            raise StartupError(
                f"failed to export - a power failure ended the last run of {self.source}, and its journal holds "
                "messages that a start restores: start pyqd on it once, stop it, and export then"
            )
        self.report.problems = [f"topic {topic.name}: {text}" for topic in survey.topics for text in topic.problems]
        try:
            self.files.make_directory(self.target)
            if self.files.list_directory(self.target):
                raise StartupError(f"failed to export - {self.target} is not empty")
            try:
                self._write(survey)
            except (StorageError, CorruptionError):
                for name in self.files.list_directory(self.target):
                    self.files.remove(os.path.join(self.target, name))
                raise
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to export - {error}") from error
        return self.report

    def _write(self, survey: OfflineData) -> None:
        topics = [
            NsqdTopic(
                topic.name, topic.paused, tuple(NsqdChannel(channel.name, channel.paused) for channel in topic.channels)
            )
            for topic in survey.topics
        ]
        for topic in survey.topics:
            self._write_topic(topic)
        self.files.write(os.path.join(self.target, METADATA_FILE), format_metadata(topics, NSQ_VERSION))
        self.files.sync_directory(self.target)

    def _write_topic(self, topic: OfflineTopic) -> None:
        writer = self._writer(queue_name(topic.name))
        deferred_count = 0
        for record in topic.held():
            deferred_count += record.due_ns > self.now_ns
            writer.add(self._message(record, 0))
        writer.close()
        self.report.queues.append(ExportedQueue(topic.name, None, topic.paused, writer.depth, deferred_count))
        for channel in topic.channels:
            writer = self._writer(queue_name(topic.name, channel.name))
            deferred_count = 0
            for queued in channel.messages():
                deferred_count += queued.deferred and queued.record.due_ns > self.now_ns
                writer.add(self._message(queued.record, queued.attempts))
            writer.close()
            self.report.queues.append(
                ExportedQueue(topic.name, channel.name, channel.paused, writer.depth, deferred_count)
            )

    def _writer(self, queue: str) -> NsqdQueueWriter:
        return NsqdQueueWriter(self.files, self.target, queue, self.segment_bytes_max)

    def _message(self, record: OfflineRecord, attempts: int) -> NsqdMessage:
        self.report.longest_body_bytes = max(self.report.longest_body_bytes, len(record.body))
        return NsqdMessage(record.timestamp_ns, attempts, to_hex(record.guid), record.body)
