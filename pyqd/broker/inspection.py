"""The queues of a data directory as rows of a table: one for each topic, and one for each of its channels."""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyqd.broker.offline_topics import OfflineChannel, OfflineData, OfflineTopic
from pyqd.primitives.durations import SECOND_NS

HEADINGS = ("topic", "channel", "records", "bytes", "floor", "cursor", "depth", "parked", "next due", "health")
NUMBER_COLUMNS = frozenset(("records", "bytes", "floor", "cursor", "depth", "parked"))


class QueueRow(NamedTuple):
    """One queue, as a start would find it.

    records: of a topic those in its log, of a channel the unfinished ones. bytes: of its files. floor, cursor: of a
    topic the oldest kept record and the first held one. next_due_ns: Unix; 0 if nothing is parked.
    """

    topic: str
    channel: str | None
    paused: bool
    records: int
    bytes: int
    floor: int
    cursor: int
    depth: int
    parked: int
    next_due_ns: int
    health: str

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, by HEADINGS."""
        due = "-"
        if self.next_due_ns:
            timestamp = datetime.datetime.fromtimestamp(self.next_due_ns // SECOND_NS, datetime.timezone.utc)
            due = timestamp.strftime("%Y-%m-%dT%H:%M:%SZ")
        numbers = [str(number) for number in self[3:9]]
        health = self.health + (", paused" if self.paused else "")
        return (self.topic, "-" if self.channel is None else self.channel, *numbers, due, health)


class Inspection:
    """All rows of a data directory, and its problems. verify: check every record's checksum too."""

    def __init__(self, survey: OfflineData, verify: bool) -> None:
        self.node = survey.node
        self.rows: list[QueueRow] = []
        self.problems: list[str] = [f"{name}: {reason}" for name, reason in survey.all_unreadable()]
        if survey.awaits_start:
            self.problems.append(
                "the last run ended in a power failure: its journal holds messages that this table may lack; "
                "a start of pyqd restores them"
            )
        self.damage_copies: list[str] = []
        for topic in survey.topics:
            self.damage_copies += topic.damage_copies
            problems = topic.problems + (topic.verify() if verify else [])
            self.problems += [f"topic {topic.name}: {problem}" for problem in problems]
            self.rows.append(topic_row(topic, "damaged" if problems or topic.unreadable else "ok"))
            self.rows += [channel_row(channel) for channel in topic.channels]
        for name, _ in survey.unreadable:
            self.rows.append(QueueRow(name, None, False, 0, 0, 0, 0, 0, 0, 0, "unreadable"))

    def as_dict(self) -> dict[str, Any]:
        """Return everything for a program."""
        return {
            "format": self.node["format"],
            "epoch": self.node.get("epoch", 0),
            "clean": self.node.get("clean", False),
            "queues": [row._asdict() for row in self.rows],
            "problems": self.problems,
            "kept_aside": self.damage_copies,
        }

    def lines(self) -> list[str]:
        """Return the table and the problems, line by line."""
        state = "stopped cleanly" if self.node.get("clean") else "running, or not stopped cleanly"
        head = f"format {self.node['format']}, epoch {self.node.get('epoch', 0)}, {state}"
        return [
            head,
            *table(HEADINGS, [row.cells() for row in self.rows]),
            *map("problem: {}".format, self.problems),
            *map("kept aside: {}".format, self.damage_copies),
        ]


def topic_row(topic: OfflineTopic, health: str) -> QueueRow:
    """Return the row of a topic."""
    log = topic.log
    return QueueRow(
        topic.name,
        None,
        topic.paused,
        log.count,
        log.file_bytes,
        log.first,
        topic.shown_end,
        topic.held_count,
        0,
        0,
        health,
    )


def channel_row(channel: OfflineChannel) -> QueueRow:
    """Return the row of a channel. Cost: reads its parked log."""
    unfinished = channel.ledger.unfinished_count(channel.topic.shown_end)
    parked = list(channel.parked())
    dues = [queued.record.due_ns for queued in parked if queued.deferred]
    handed_out = len(parked) - len(dues)
    return QueueRow(
        channel.topic.name,
        channel.name,
        channel.paused,
        unfinished + handed_out + len(dues),
        channel.file_bytes,
        channel.ledger.floor,
        channel.ledger.cursor,
        unfinished + handed_out,
        len(dues),
        min(dues, default=0),
        "ok",
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines in which columns are aligned, numbers to the right."""
    widths = [max(len(row[index]) for row in (headings, *rows)) for index in range(len(headings))]
    lines = []
    for row in (headings, *rows):
        cells = [
            cell.rjust(width) if heading in NUMBER_COLUMNS else cell.ljust(width)
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
