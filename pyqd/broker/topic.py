"""A topic's files and life: opened, recovered, closed; its channels made and deleted.

Its traffic is the compiled half's.
"""

import logging
import os
from typing import TYPE_CHECKING

from pyqd.broker.channel import Channel
from pyqd.hot.ledger import Ledger
from pyqd.hot.log import Log
from pyqd.hot.logreader import LogReader
from pyqd.hot.topic import TOPIC_STATE_SIZE, TopicCore
from pyqd.primitives.names import channel_of_dir, is_ephemeral_str

if TYPE_CHECKING:
    from pyqd.broker.broker import Broker

LOG_DIRECTORY = "log"
STATE_FILE = "state"

logger = logging.getLogger(__name__)


class Topic(TopicCore):
    """One topic.

    Its directory holds its state, its log, and a directory for each channel. What is there is what exists: there is no
    list of topics and channels beside it that could say otherwise. An ephemeral topic has no directory.
    Raises: StorageError, CorruptionError. Source: docs/storage.md, "Topic".
    """

    name: str
    broker: "Broker"
    directory: str | None

    def __init__(self, broker: "Broker", name: str, directory: str | None) -> None:
        self.broker = broker
        self.name = name
        self.files = broker.files
        self.directory = directory
        self.channel_of: dict[str, Channel] = {}
        state_path = None if directory is None else os.path.join(directory, STATE_FILE)
        if state_path is not None and self.files.exists(state_path):
            mapping = self.files.open_mapped(state_path)
        else:
            mapping = self.files.new_mapped(state_path, TOPIC_STATE_SIZE, True)
        log = broker.new_log(None if directory is None else os.path.join(directory, LOG_DIRECTORY))
        super().__init__(
            log,
            broker.scheduler,
            mapping,
            node_id=broker.options.node_id,
            memory_count_max=broker.options.mem_queue_size,
            ephemeral=is_ephemeral_str(name),
        )
        self.reader = LogReader(log)

    def load_channels(self) -> None:
        """Open the channels that an earlier run left."""
        assert self.directory is not None, "an ephemeral topic leaves nothing"
        for entry in sorted(self.files.list_directory(self.directory)):
            name = channel_of_dir(entry)
            if name is not None:
                channel = Channel(self, name)
                self.channel_of[name] = channel
                self.channels.append(channel)
        self.recover()

    def channel(self, name: str) -> Channel:
        """Return the channel of that name (valid), made if it is missing. Raises: StorageError."""
        channel = self.channel_of.get(name)
        if channel is None:
            channel = Channel(self, name)
            self.channel_of[name] = channel
            self.attach(channel)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
        return channel

    def delete_channel(self, name: str) -> bool:
        """Delete a channel with all it holds and close its clients. Returns: whether it was there."""
        channel = self.channel_of.get(name)
        if channel is None:
            return False
        logger.info("TOPIC(%s): deleting channel %s", self.name, name)
        channel.exiting = True
        for consumer in channel.close_consumers():
            consumer.close()
        channel.empty()
        del self.channel_of[name]
        self.detach(channel)
        if channel.directory is not None:
            self.broker.discard(channel.directory)
        if self.ephemeral and not self.channel_of:
            self.broker.delete_topic(self.name)
        return True

    def logs(self) -> list[Log]:
        """Return the topic's log and those of its channels."""
        return [self.log, *(log for channel in self.channel_of.values() for log in channel.logs())]

    def ledgers(self) -> list[Ledger]:
        """Return the ledgers of the topic's channels."""
        return [ledger for channel in self.channel_of.values() for ledger in channel.ledgers()]

    def close(self) -> None:
        """Leave everything on file as the next start wants it."""
        self.exiting = True
        for channel in self.channel_of.values():
            channel.close()
