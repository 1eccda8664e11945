"""A channel's files and life: opened, recovered, closed, deleted. Its traffic is the compiled half's."""

import logging
import os
import struct
from typing import TYPE_CHECKING

from pyqd.diskqueue.files import MAKING
from pyqd.hot.channel import ChannelCore, cursor_position, start_ledger
from pyqd.hot.ledger import Ledger
from pyqd.hot.log import Log
from pyqd.hot.parked import Parked
from pyqd.primitives.errors import StorageError
from pyqd.primitives.names import channel_dir, is_ephemeral_str

if TYPE_CHECKING:
    from pyqd.broker.topic import Topic

LEDGER_FILE = "ledger"
ATTEMPTS_FILE = "attempts"
PARKED_LOG = "parked"
PARKED_LEDGER = "parked.ledger"

ATTEMPTS_ENTRY = struct.Struct("<BQH")

logger = logging.getLogger(__name__)


class Channel(ChannelCore):
    """One channel of a topic.

    Its directory holds the ledger, the parked log with a ledger of its own once something was parked, and after a clean
    stop the deliveries so far of what was unfinished. An ephemeral channel has no directory.
    Raises: StorageError, CorruptionError. Source: docs/storage.md, "Channel".
    """

    name: str
    topic: "Topic"
    directory: str | None

    def __init__(self, topic: "Topic", name: str, *, found: bool = False) -> None:
        self.name = name
        self.topic = topic
        self.files = topic.files
        self.directory = None
        ephemeral = is_ephemeral_str(name)
        if topic.directory is not None and not ephemeral:
            self.directory = os.path.join(topic.directory, channel_dir(name))
        ledger = self.open_ledger(found)
        fresh = not ledger.started
        if fresh and ledger.rebuilt:
            position = topic.log.locate(topic.log.first.first_ordinal)
            start_ledger(ledger, position)
            fresh = False
        elif fresh:
            # Behind what other channels have been given; the first channel takes over what the topic holds.
            position = topic.log.locate(topic.end)
            start_ledger(ledger, position)
        else:
            if topic.broker.power_failed:
                ledger.distrust()
            ledger.clamp(topic.log.first.first_ordinal, topic.log.end)
        for start, end in topic.log.holes:
            ledger.note_range(start, end)
        if not fresh:
            position = cursor_position(ledger, topic)
        options = topic.broker.options
        super().__init__(
            topic,
            ledger,
            position,
            max_msg_timeout_ns=options.max_msg_timeout_ns,
            memory_count_max=options.mem_queue_size,
            ephemeral=ephemeral,
        )
        self.parks_durably = topic.broker.parks_durably and self.directory is not None
        if not fresh:
            self.load()

    def open_ledger(self, found: bool) -> Ledger:
        """Open or make the channel's ledger, and its directory; on failure a new channel leaves none.

        found: the channel was there at the start. Without its ledger all that the log keeps is unfinished.
        """
        if self.directory is None:
            return Ledger(self.files, None)
        path = self.path_of(LEDGER_FILE)
        if not found:
            self.make_directory(self.directory)
        missing = found and not self.files.exists(path)
        ledger = Ledger(self.files, path)
        if missing:
            logger.error("DISKQUEUE(%s): the ledger is missing; all that the log keeps is delivered again", path)
            ledger.note_rebuilt()
        return ledger

    def make_directory(self, directory: str) -> None:
        """Make a new channel's directory, with a ledger that begins where the channel does; a kill leaves all or none.

        The channel begins behind what other channels have been given; the first one takes over what the topic holds.
        """
        making = directory + MAKING
        self.files.remove_tree(making)
        try:
            self.files.make_directory(making)
            ledger = Ledger(self.files, os.path.join(making, LEDGER_FILE))
            start_ledger(ledger, self.topic.log.locate(self.topic.end))
            self.files.rename(making, directory)
        except StorageError:
            self.files.remove_tree(making)
            raise

    def path_of(self, file: str) -> str:
        """Return the path of one of the channel's files."""
        assert self.directory is not None, "an ephemeral channel has no files"
        return os.path.join(self.directory, file)

    def load(self) -> None:
        """Take up where an earlier run left off."""
        attempts_of = {}
        if self.files.exists(self.path_of(ATTEMPTS_FILE)):
            content = self.files.read(self.path_of(ATTEMPTS_FILE))
            whole = len(content) // ATTEMPTS_ENTRY.size * ATTEMPTS_ENTRY.size
            attempts_of = {
                (source, ordinal): attempts for source, ordinal, attempts in ATTEMPTS_ENTRY.iter_unpack(content[:whole])
            }
            self.files.remove(self.path_of(ATTEMPTS_FILE))
        if self.files.exists(self.path_of(PARKED_LEDGER)):
            self.parked = self.open_parked()
        if self.topic.broker.power_failed:
            self.finish_twins()
        self.recover(attempts_of)
        if self.parked is not None:
            self.recover_parked(attempts_of)

    def open_parked(self) -> Parked:
        """Open the parked log, making it when it is not there."""
        if self.directory is None:
            log = self.topic.broker.new_log(None)
            self.topic.space.watch(log)
            return Parked(log, Ledger(self.files, None))
        log = self.topic.broker.new_log(self.path_of(PARKED_LOG))
        self.topic.space.watch(log)
        ledger = Ledger(self.files, self.path_of(PARKED_LEDGER))
        if self.topic.broker.power_failed:
            ledger.distrust()
        return Parked(log, ledger)

    def logs(self) -> list[Log]:
        """Return the logs that are this channel's own."""
        return [] if self.parked is None else [self.parked.log]

    def ledgers(self) -> list[Ledger]:
        """Return the channel's ledgers."""
        return [self.ledger] if self.parked is None else [self.ledger, self.parked.ledger]

    def close(self) -> None:
        """Note how often the unfinished messages have been delivered; everything else is in the files already."""
        if self.directory is not None:
            entries = [
                ATTEMPTS_ENTRY.pack(source, ordinal, attempts)
                for (source, ordinal), attempts in self.attempts_noted().items()
            ]
            if entries:
                self.files.write(self.path_of(ATTEMPTS_FILE), b"".join(entries))
