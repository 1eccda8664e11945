"""Topic that a channel's dead letters go to, and the log lines about them.

The policy itself is compiled: pyx/broker/dead_letters.pyx.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.errors import StorageError

logger = logging.getLogger(__name__)


class NamedTopic(Protocol):
    """Topic that may take dead letters."""

    name: str
    exiting: bool


class DeadLetterTarget:
    """Dead-letter topic of one channel, looked up by name when it is needed.

    topics: of the broker. topic_name: as the channel's settings say; "": none. error: the reason why dead letters wait;
    None: they do not.
    """

    def __init__(self, topics: Mapping[str, NamedTopic], channel_name: str) -> None:
        self.topics = topics
        self.channel_name = channel_name
        self.topic_name = ""
        self.error: str | None = None
        self.errno: int | None = None

    def find(self) -> NamedTopic | None:
        """Return the topic for dead letters, or None if it does not exist."""
        topic = self.topics.get(self.topic_name)
        return None if topic is None or topic.exiting else topic

    def is_deleted(self, topic: NamedTopic) -> bool:
        """Return True if a topic is no longer one of the broker's."""
        return self.topics.get(topic.name) is not topic

    def note_published(self, topic: NamedTopic, letters: list[tuple[int, int, int]], pending: int) -> None:
        """Log which message became which dead letter: it is recorded nowhere else. pending: dead letters that wait."""
        for guid, attempts, letter_guid in letters:
            logger.info(
                "CHANNEL(%s): message %s after %d attempts is %s of topic %s",
                self.channel_name,
                to_hex(guid).decode(),
                attempts,
                to_hex(letter_guid).decode(),
                topic.name,
            )
        self.note_pending(pending)

    def note_pending(self, pending: int) -> None:
        """Set the number of dead letters that wait."""
        if pending == 0:
            self.error = None

    def note_failed(self, error: StorageError | None, pending: int) -> None:
        """Warn of dead letters that cannot be published, once for each cause. error: None: there is no such topic."""
        reason = f"topic {self.topic_name} does not exist" if error is None else str(error)
        # Compare the kind of error: its text may name another file each time.
        kind = 0 if error is None else error.errno
        if self.error is None or kind != self.errno:
            logger.warning(
                "CHANNEL(%s): cannot publish %d dead letters: %s; they wait and are retried every second",
                self.channel_name,
                pending,
                reason,
            )
        self.error, self.errno = reason, kind
