"""Broker over a data directory that nobody serves: it shows the topics as a start would find them, and changes no byte.

The broker is loaded over `PrivateFiles`. So the recovery of a start, its repairs and the restored journal are in memory
only. A topic is loaded when its turn comes and dropped after it, so memory and mappings are those of one topic.

Beside a running daemon the result is not exact. Ledgers are copied before the log is read, because a log that is newer
than its ledgers contradicts none of them. A topic some of whose segments the daemon reuses meanwhile is loaded again.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyqd.broker.broker import NODE_FILE, TOPICS_DIRECTORY, Broker, read_node
from pyqd.broker.channel import Channel
from pyqd.broker.channel_files import CANCELLED_LEDGER, LEDGER_FILE, NOTES_DIRECTORY
from pyqd.broker.topic import DUES_DIRECTORY, LOG_DIRECTORY, Topic
from pyqd.config.options import build
from pyqd.diskqueue.damage import DAMAGED_DIRECTORY
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.private_files import PrivateFiles
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logstart import SUFFIX
from pyqd.hot.diskqueue.segment import Segment
from pyqd.hot.primitives.schedule import Scheduler
from pyqd.primitives.errors import CorruptionError, StartupError, StorageError
from pyqd.primitives.names import channel_of_dir, topic_of_dir

# Beside a daemon that reuses segments of a topic while it is loaded.
LOADS_MAX = 10
LEDGERS = (LEDGER_FILE, CANCELLED_LEDGER)


class OfflineTopic(NamedTuple):
    """One topic. topic: None if it cannot be read at all; `unreadable` gives the reason then.

    unreadable: (channel, or None for the topic, and the reason) of what cannot be read. problems: damage that a start
    passes over.
    """

    name: str
    topic: Topic | None
    unreadable: list[tuple[str | None, str]]
    problems: list[str]

    def channels(self) -> list[Channel]:
        """Return the channels that can be read, by name."""
        bad = {channel for channel, _ in self.unreadable}
        found = {} if self.topic is None else self.topic.channels_by_name
        return [channel for name, channel in found.items() if name not in bad]

    def reasons(self) -> list[str]:
        """Return one text for each part that cannot be read."""
        return [
            f"topic {self.name}: {reason}" if channel is None else f"topic {self.name}, channel {channel}: {reason}"
            for channel, reason in self.unreadable
        ]


class OfflineBroker(Broker):
    """Broker of a data directory that is only read. stored_node: the content of its node file.

    Raises: StartupError if the directory is not pyqd's or of another format.
    """

    def __init__(self, root: str) -> None:
        self.private = PrivateFiles()
        super().__init__(build({"data-path": root}), self.private)
        path = os.path.join(self.root, NODE_FILE)
        try:
            if not self.files.exists(path):
                raise StartupError(f"{self.root} is not a data directory of pyqd: {NODE_FILE} is missing")
            node = read_node(self.files, path)
            if node is None:
                raise StartupError(f"failed to read {path} - not a node file")
            self.stored_node: dict[str, Any] = dict(node)
            self.private.forget_changes(self.root)
            self.load_node()
            if self.power_failed:
                # Otherwise nothing of it is needed, and a running daemon may remove its files meanwhile.
                self.load_journal()
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to read {self.root} - {error}") from error

    def found_topics(self) -> Iterator[OfflineTopic]:
        """Yield the topics in the order of their directories; each is usable until the next one is asked for."""
        directory = os.path.join(self.root, TOPICS_DIRECTORY)
        for entry in sorted(self.files.entries_of(directory) or ()):
            name = topic_of_dir(entry)
            if name is not None:
                yield self.load_topic(f"{directory}/{entry}", name)
                self.forget(f"{directory}/{entry}", name)

    def load_topic(self, path: str, name: str) -> OfflineTopic:
        """Load one topic, again if a running daemon has changed it too much meanwhile."""
        loads_left = LOADS_MAX
        while True:
            loads_left -= 1
            try:
                found = self.try_load(path, name)
                if loads_left == 0 or self.private.is_unchanged(path):
                    return found
            except Exception as error:
                # Segments that are reused while they are read contradict themselves in any way; removed ones are gone.
                is_gone = isinstance(error, StorageError) and error.errno == errno.ENOENT
                if loads_left == 0 or (self.private.is_unchanged(path) and not is_gone):
                    if not isinstance(error, (CorruptionError, StorageError)):
                        raise
                    return OfflineTopic(name, None, [(None, str(error))], [])
            self.forget(path, name)

    def try_load(self, path: str, name: str) -> OfflineTopic:
        """Load one topic. Raises: StorageError, CorruptionError; anything if a daemon changes its files meanwhile."""
        entries = self.files.list_directory(path)
        for entry in entries:
            if channel_of_dir(entry) is not None:
                self.copy_ledgers(os.path.join(path, entry))
        topic = Topic(self, name, path, found=entries)
        self.add_topic(topic)
        topic.load_channels(entries)
        if topic.state_damage:
            return OfflineTopic(name, None, [(None, topic.state_damage)], [])
        unreadable: list[tuple[str | None, str]] = [
            (channel.name, ledger.damage)
            for channel in topic.channels_by_name.values()
            for ledger in channel.ledgers()
            if ledger.damage is not None
        ]
        return OfflineTopic(name, topic, unreadable, list(self.private.problems))

    def copy_ledgers(self, directory: str) -> None:
        """Copy the ledgers of a channel; those that cannot be read are left to its load."""
        for name in self.files.entries_of(directory) or ():
            if name in LEDGERS:
                try:
                    self.files.open_mapped(os.path.join(directory, name))
                except (CorruptionError, StorageError):
                    continue

    def forget(self, path: str, name: str) -> None:
        """Drop a topic, with all that its load has changed in memory."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.topic_names.remove(name)
            topic.abandon()
            # The former one refers to the topic, of which it has been asked for a run.
            self.scheduler = Scheduler()
        self.private.problems.clear()
        self.private.forget_changes(path)

    def verify(self, topic: Topic) -> list[str]:
        """Check every record of a topic. Returns: the damage found, one text for each range."""
        self.private.problems.clear()
        segment: Segment | None = topic.log.first
        while segment is not None:
            self.verify_segment(topic.log, segment)
            segment = segment.next
        return list(self.private.problems)

    def verify_segment(self, log: Log, segment: Segment) -> None:
        """Check every record of a segment, unless a running daemon has reused it meanwhile."""
        before = len(self.private.problems)
        log.ready(segment)
        if segment.mapping.path is not None and not self.private.is_unchanged(segment.mapping.path):
            del self.private.problems[before:]


def topic_bytes(topic: Topic) -> int:
    """Return the bytes that the files of a topic's log and due times take on the disk."""
    return bytes_of(f"{topic.directory}/{LOG_DIRECTORY}", SUFFIX) + bytes_of(f"{topic.directory}/{DUES_DIRECTORY}")


def channel_bytes(channel: Channel) -> int:
    """Return the bytes that the files of a channel's ledgers and notes take on the disk."""
    return bytes_of(str(channel.directory), LEDGERS) + bytes_of(f"{channel.directory}/{NOTES_DIRECTORY}")


def bytes_of(directory: str, endings: str | tuple[str, ...] = "") -> int:
    """Return the bytes of the files in a directory whose names have one of the endings; 0 if there is none."""
    files, total = Files(), 0
    for name in files.entries_of(directory) or ():
        if name.endswith(endings):
            # A running daemon may remove it meanwhile.
            with contextlib.suppress(StorageError):
                total += files.size_of(os.path.join(directory, name))
    return total


def damage_copies(topic: Topic) -> list[str]:
    """Return the paths of the copies of damaged data that earlier starts have kept of a topic and its channels."""
    owners = [topic.directory, *(channel.directory for channel in topic.channels_by_name.values())]
    directories = [os.path.join(str(owner), DAMAGED_DIRECTORY) for owner in owners]
    return [
        os.path.join(directory, name)
        for directory in directories
        for name in sorted(Files().entries_of(directory) or ())
    ]
