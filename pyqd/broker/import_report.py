"""What an import has found and done, for people."""

from typing import NamedTuple

from pyqd.broker.import_topic import QueueCounts


class QueueReport(NamedTuple):
    """One queue: of a topic where channel is None."""

    topic: str
    channel: str | None
    paused: bool
    counts: QueueCounts


class ImportReport:
    """The report of one import. Notes are (queue or file, text), each said once."""

    def __init__(self, path: str, dry_run: bool) -> None:
        self.path = path
        self.dry_run = dry_run
        self.nsqd_version = ""
        self.queues: list[QueueReport] = []
        self.notes: list[tuple[str, str]] = []
        self.stored_count = 0
        self.stored_bytes = 0
        self.moved_to = ""

    def note(self, where: str, text: str) -> None:
        """Note something that whoever imports should know."""
        if (where, text) not in self.notes:
            self.notes.append((where, text))

    def note_files(self, names: list[str]) -> None:
        """Note the segments that nsqd has set aside."""
        for name in names:
            self.note(name, "set aside by nsqd as unreadable: omitted")

    def add(self, queue: QueueReport) -> None:
        """Add what became of a queue."""
        self.queues.append(queue)
        counts = queue.counts
        where = queue.topic if queue.channel is None else f"{queue.topic}:{queue.channel}"
        if counts.empty_count:
            self.note(where, f"{counts.empty_count} messages without a body: omitted")
        if counts.duplicate_count:
            self.note(where, f"{counts.duplicate_count} second copies of a message in the same queue: omitted")
        if counts.new_id_count:
            self.note(
                where, f"{counts.new_id_count} messages got a new id: their own is invalid or used by another message"
            )

    @property
    def message_count(self) -> int:
        """How many messages the queues hold; one in three channels counts three times, as in their depths."""
        return sum(queue.counts.message_count for queue in self.queues)

    @property
    def body_bytes(self) -> int:
        """The bytes of their bodies."""
        return sum(queue.counts.body_bytes for queue in self.queues)

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        topics = sum(queue.channel is None for queue in self.queues)
        version = f" (nsqd {self.nsqd_version})" if self.nsqd_version else ""
        lines = [f"{'dry run of an import' if self.dry_run else 'import'} of nsqd's data in {self.path}{version}"]
        for queue in self.queues:
            name = f"topic {queue.topic}" if queue.channel is None else f"  channel {queue.channel}"
            counts = queue.counts
            what = f"{counts.message_count} messages, {counts.body_bytes} bytes"
            if counts.attempted_count:
                what += f", {counts.attempted_count} of them delivered before"
            lines.append(f"{name}: {what}{', paused' if queue.paused else ''}")
        lines.append(
            f"total: {topics} topics, {len(self.queues) - topics} channels, {self.message_count} messages of "
            f"{self.body_bytes} bytes; {self.stored_count} records of {self.stored_bytes} bytes"
        )
        lines += [f"note: {where}: {text}" for where, text in self.notes]
        if self.moved_to:
            lines.append(f"nsqd's files are in {self.moved_to}")
        return lines

    def text(self) -> str:
        """Return the report as a text."""
        return "\n".join(self.lines()) + "\n"
