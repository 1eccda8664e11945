"""The queues of a data directory as rows of a table: one for each topic, and one for each of its channels."""

import datetime
from typing import Any, NamedTuple

from pyqd.broker.channel import Channel
from pyqd.broker.offline_broker import OfflineBroker, channel_bytes, damage_copies, topic_bytes
from pyqd.broker.peek import DEFERRED, Cursor, page_of_channel
from pyqd.broker.replay import no_pause
from pyqd.broker.topic import Topic
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.quantities import aligned

HEADINGS = ("topic", "channel", "records", "bytes", "floor", "cursor", "depth", "deferred", "next due", "health")
TEXT_COLUMNS = [HEADINGS.index(name) for name in ("topic", "channel", "next due", "health")]


class QueueRow(NamedTuple):
    """One queue, as a start would find it.

    records: of a topic those in its log, of a channel the unfinished ones. bytes: of its files. floor, cursor: of a
    topic the oldest kept record and the first held one. next_due_ns: Unix; 0 if nothing is deferred.
    """

    topic: str
    channel: str | None
    paused: bool
    records: int
    bytes: int
    floor: int
    cursor: int
    depth: int
    deferred: int
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
    """All rows of a data directory, and its problems. verify: check every record's checksum. Raises: StartupError."""

    def __init__(self, root: str, verify: bool) -> None:
        broker = OfflineBroker(root)
        self.node = broker.stored_node
        self.rows: list[QueueRow] = []
        self.problems: list[str] = []
        self.damage_copies: list[str] = []
        damage: list[str] = []
        unreadable: list[QueueRow] = []
        for found in broker.found_topics():
            self.problems += found.reasons()
            if found.topic is None:
                unreadable.append(QueueRow(found.name, None, False, 0, 0, 0, 0, 0, 0, 0, "unreadable"))
                continue
            self.damage_copies += damage_copies(found.topic)
            problems = found.problems + (broker.verify(found.topic) if verify else [])
            damage += [f"topic {found.name}: {problem}" for problem in problems]
            self.rows.append(topic_row(found.topic, "damaged" if problems or found.unreadable else "ok"))
            self.rows += [channel_row(found.topic, channel) for channel in found.channels()]
        self.problems += damage
        self.rows += unreadable

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
            *aligned([HEADINGS, *(row.cells() for row in self.rows)], TEXT_COLUMNS),
            *map("problem: {}".format, self.problems),
            *map("kept aside: {}".format, self.damage_copies),
        ]


def topic_row(topic: Topic, health: str) -> QueueRow:
    """Return the row of a topic."""
    log = topic.log
    floor = log.first.first_ordinal
    count = log.end - floor - sum(end - start for start, end in (*log.holes, *log.gaps(floor)))
    return QueueRow(
        topic.name, None, topic.paused, count, topic_bytes(topic), floor, topic.end, topic.depth, 0, 0, health
    )


def channel_row(topic: Topic, channel: Channel) -> QueueRow:
    """Return the row of a channel."""
    deferred = page_of_channel(topic, channel, DEFERRED, Cursor(), 1, 0, no_pause).rows
    return QueueRow(
        topic.name,
        channel.name,
        channel.paused,
        channel.depth + channel.deferred_count,
        channel_bytes(channel),
        channel.ledger.oldest,
        channel.ledger.cursor,
        channel.depth,
        channel.deferred_count,
        deferred[0].due_ns if deferred else 0,
        "ok",
    )
