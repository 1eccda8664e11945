"""Offline reader of a data directory: its topics, channels and queued messages, read without changing a byte.

The reader finds what `Broker.load` would find: how far channels may read, which messages are finished, which wait for
redelivery, and how often each was delivered. Beside a running daemon the result is not exact, because files are read
one after the other. Logs and ledgers are read in pyqd/diskqueue/offline_reader.py. Source: docs/storage.md.
"""

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyqd.broker.broker import (
    JOURNAL_DIRECTORY,
    NODE_FILE,
    NODE_FORMAT,
    NODE_FORMAT_WITH_JOURNAL,
    TOPICS_DIRECTORY,
    later_format,
    read_boot_id,
)
from pyqd.broker.channel_files import ATTEMPTS_ENTRY, ATTEMPTS_FILE, LEDGER_FILE, PARKED_LEDGER, PARKED_LOG
from pyqd.broker.topic import LOG_DIRECTORY, STATE_FILE
from pyqd.diskqueue.damage import DAMAGED_DIRECTORY
from pyqd.diskqueue.file_headers import ORDINAL_MASK
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.offline_reader import OfflineLedger, OfflineLog, OfflineRecord
from pyqd.diskqueue.redo import content_of
from pyqd.hot.broker.topic import TOPIC_STATE_SIZE
from pyqd.primitives.errors import CorruptionError, StartupError
from pyqd.primitives.names import channel_of_dir, topic_of_dir

TOPIC_MAGIC = b"PYQDTOP\0"
TOPIC_VERSION = 1
# Source of an entry of the file `attempts`: a record of the topic's log, or of the channel's parked log.
FROM_TOPIC = 0
FROM_PARKED = 1

_TOPIC_STATE = struct.Struct("<8sIIQQQQQ56xQ")


class TopicState(NamedTuple):
    """The file `state` of a topic."""

    paused: bool
    held_from: int
    deferred_below: int
    last_guid: int
    message_count: int
    message_bytes: int
    count_ahead: int = 0

    @property
    def known_end(self) -> int:
        """The end of the log as the state has it; 0 if it has not."""
        end = (self.message_count - (self.count_ahead - 1)) % (1 << 64)
        return end if self.count_ahead and end <= ORDINAL_MASK else 0


NO_STATE = TopicState(False, 0, 0, 0, 0, 0)


def pack_topic_state(state: TopicState) -> bytes:
    """Return the content of a topic's state file."""
    return _TOPIC_STATE.pack(TOPIC_MAGIC, TOPIC_VERSION, *state).ljust(TOPIC_STATE_SIZE, b"\0")


def parse_topic_state(content: bytes, path: str) -> TopicState:
    """Return the state in a file's content; path is for the error. Raises: CorruptionError."""
    if content[: len(TOPIC_MAGIC)] == bytes(len(TOPIC_MAGIC)):
        return NO_STATE
    if len(content) < _TOPIC_STATE.size or content[: len(TOPIC_MAGIC)] != TOPIC_MAGIC:
        raise CorruptionError(path, 0, "not the state of a pyqd topic")
    _, version, paused, *numbers = _TOPIC_STATE.unpack_from(content)
    if version != TOPIC_VERSION:
        raise CorruptionError(path, 8, f"topic format version {version}; this pyqd reads {TOPIC_VERSION}")
    return TopicState(bool(paused), *numbers)


class Queued(NamedTuple):
    """A message of a channel: its record, how often it was delivered, and whether it waits for its due time."""

    record: OfflineRecord
    attempts: int
    deferred: bool


class OfflineChannel:
    """One channel of a topic. Raises: CorruptionError, StorageError."""

    def __init__(self, files: Files, directory: str, name: str, topic: "OfflineTopic") -> None:
        self.name = name
        self.topic = topic
        power_failed = topic.power_failed
        self.ledger = OfflineLedger(files, os.path.join(directory, LEDGER_FILE), topic.log.extent, power_failed)
        self.paused = self.ledger.paused
        self.file_bytes = self.ledger.file_bytes
        self.parked_log: OfflineLog | None = None
        self.parked_ledger: OfflineLedger | None = None
        self.attempts_of: dict[tuple[int, int], int] = {}
        self.damage_copies = damage_copies(files, directory)
        parked_ledger = os.path.join(directory, PARKED_LEDGER)
        if files.exists(os.path.join(directory, PARKED_LOG)):
            self.parked_log = OfflineLog(files, os.path.join(directory, PARKED_LOG))
            self.parked_ledger = OfflineLedger(files, parked_ledger, self.parked_log.extent, power_failed)
            self.file_bytes += self.parked_log.file_bytes + self.parked_ledger.file_bytes
        attempts = os.path.join(directory, ATTEMPTS_FILE)
        if files.exists(attempts):
            content = files.read(attempts)
            whole = len(content) // ATTEMPTS_ENTRY.size * ATTEMPTS_ENTRY.size
            for source, ordinal, count in ATTEMPTS_ENTRY.iter_unpack(content[:whole]):
                self.attempts_of[(source, ordinal)] = count

    def parked(self) -> Iterator[Queued]:
        """Yield the unfinished messages of the parked log, but those dropped when the channel was moved."""
        if self.parked_log is None or self.parked_ledger is None:
            return
        unfinished = set(self.parked_ledger.unfinished(self.parked_log.end))
        for record in self.parked_log.records(self.parked_ledger.floor):
            if record.ordinal >= self.ledger.parked_from and record.ordinal in unfinished and not record.lost:
                noted = self.attempts_of.get((FROM_PARKED, record.ordinal), record.handed_out or None)
                yield Queued(record, record.attempts if noted is None else noted, noted is None)

    def messages(self) -> Iterator[Queued]:
        """Yield the unfinished messages: those of the topic's log in its order, then the parked ones by due time."""
        ledger = self.ledger
        unfinished = iter(ledger.unfinished(self.topic.shown_end))
        wanted = next(unfinished, None)
        for record in self.topic.log.records(ledger.floor):
            if wanted is None:
                break
            if record.ordinal != wanted:
                continue
            if not record.lost:
                attempts = self.attempts_of.get((FROM_TOPIC, wanted), 1) if wanted < ledger.cursor else 0
                yield Queued(record, attempts, record.due_ns != 0 and wanted >= ledger.cursor)
            wanted = next(unfinished, None)
        yield from sorted(self.parked(), key=lambda queued: queued.record.due_ns)


class OfflineTopic:
    """One topic. shown_end: the ordinal up to which channels may read; the topic holds the messages after it.

    problems: damage that a start passes over. power_failed: no start has run since a power failure. damage_copies:
    files with copies of data that was found damaged before.
    unreadable: channel and reason of those that stop a start.
    Raises: CorruptionError, StorageError.
    """

    def __init__(self, files: Files, directory: str, name: str, power_failed: bool = False) -> None:
        self.name = name
        self.power_failed = power_failed
        state_path = os.path.join(directory, STATE_FILE)
        # A kill may leave a topic or channel with a directory and nothing in it yet.
        self.state = NO_STATE if not files.exists(state_path) else parse_topic_state(files.read(state_path), state_path)
        self.paused = self.state.paused
        self.log = OfflineLog(files, os.path.join(directory, LOG_DIRECTORY))
        self.problems = list(self.log.problems)
        self.note_missing_end(self.log, self.state.known_end, power_failed)
        self.damage_copies = damage_copies(files, directory)
        self.unreadable: list[tuple[str, str]] = []
        self.channels: list[OfflineChannel] = []
        for entry in sorted(files.list_directory(directory)):
            channel = channel_of_dir(entry)
            if channel is not None:
                try:
                    self.channels.append(OfflineChannel(files, os.path.join(directory, entry), channel, self))
                except (CorruptionError, OSError) as error:
                    self.unreadable.append((channel, str(error)))
        held_from = min(max(self.state.held_from, self.log.first), self.log.end)
        for stored in self.channels:
            if not stored.ledger.started:
                stored.ledger.place(held_from)
            self.damage_copies += stored.damage_copies
            if stored.parked_log is not None:
                self.problems += stored.parked_log.problems
                known_end = 0 if stored.parked_ledger is None else stored.parked_ledger.header.cursor
                self.note_missing_end(stored.parked_log, known_end, power_failed)
        self.shown_end = held_from
        if self.channels:
            cursors = [stored.ledger.cursor for stored in self.channels]
            self.shown_end = max(held_from, *cursors) if self.paused else self.log.end

    def note_missing_end(self, log: OfflineLog, known_end: int, power_failed: bool) -> None:
        """List the records that a log has lost at its end; a power failure may have taken them before their sync."""
        if log.end < known_end and not power_failed:
            self.problems.append(f"{log.directory}: records {log.end} to {known_end - 1} are missing")

    @property
    def held_count(self) -> int:
        """Number of messages that no channel has been given."""
        return self.log.end - self.shown_end

    def held(self) -> Iterator[OfflineRecord]:
        """Yield the messages that no channel has been given."""
        return (record for record in self.log.records(self.shown_end) if not record.lost)

    def verify(self) -> list[str]:
        """Check every record of every log. Returns: the damage found."""
        logs = [self.log, *(channel.parked_log for channel in self.channels if channel.parked_log is not None)]
        return [problem for log in logs for problem in log.verify() if problem not in self.problems]


class OfflineData:
    """The topics of a data directory. unreadable: topic and reason of those that cannot be read at all.

    awaits_start: the journal may hold messages that the logs lost in a power failure; a start puts them back.
    Raises: StartupError where the directory is not pyqd's or of another format.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.root = root
        self.topics: list[OfflineTopic] = []
        self.unreadable: list[tuple[str, str]] = []
        self.node = read_node(files, root)
        power_failed = not self.node.get("clean", False) and self.node.get("boot") != read_boot_id(files)
        self.awaits_start = power_failed and has_journal(files, root)
        topics = os.path.join(root, TOPICS_DIRECTORY)
        for entry in sorted(files.list_directory(topics)) if files.exists(topics) else []:
            name = topic_of_dir(entry)
            if name is not None:
                try:
                    self.topics.append(OfflineTopic(files, os.path.join(topics, entry), name, power_failed))
                except (CorruptionError, OSError) as error:
                    self.unreadable.append((name, str(error)))

    def all_unreadable(self) -> list[tuple[str, str]]:
        """Return the topics and channels that cannot be read, each with the reason."""
        found = [(f"topic {name}", reason) for name, reason in self.unreadable]
        for topic in self.topics:
            found += [(f"topic {topic.name}, channel {name}", reason) for name, reason in topic.unreadable]
        return found


def has_journal(files: Files, root: str) -> bool:
    """Return whether the last run has left a journal with messages."""
    directory = os.path.join(root, JOURNAL_DIRECTORY)
    names = files.list_directory(directory) if files.exists(directory) else []
    return any(content_of(files, os.path.join(directory, name)).entries for name in names if name.isdigit())


def damage_copies(files: Files, directory: str) -> list[str]:
    """Return the paths of the copies of damaged data of a log of that directory."""
    damaged = os.path.join(directory, DAMAGED_DIRECTORY)
    if not files.exists(damaged):
        return []
    return [os.path.join(damaged, name) for name in sorted(files.list_directory(damaged))]


def read_node(files: Files, root: str) -> dict[str, Any]:
    """Return the node file of a data directory. Raises: StartupError."""
    path = os.path.join(root, NODE_FILE)
    if not files.exists(path):
        raise StartupError(f"{root} is not a data directory of pyqd: {NODE_FILE} is missing")
    try:
        node: dict[str, Any] = json.loads(files.read(path))
        found = node["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"failed to read {path} - not a node file") from error
    if found not in (NODE_FORMAT, NODE_FORMAT_WITH_JOURNAL):
        raise later_format(path, found)
    return node
