"""Interface through which another layer learns which topics and channels come and go.

Topics and channels that the start loads from disk are not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyqd.broker.topic import Topic


class TopicObserver(Protocol):
    """Receiver of the events of a broker. Every method returns at once and neither switches greenlets nor raises."""

    def topic_created(self, topic: Topic) -> None:
        """Handle a new topic, before its first channel and its first message."""

    def topic_deleted(self, topic: Topic) -> None:
        """Handle the deletion of a topic with its channels, which it still names. Its name is free again."""

    def channel_created(self, topic: Topic, channel: str) -> None:
        """Handle a new channel."""

    def channel_deleted(self, topic: Topic, channel: str) -> None:
        """Handle the deletion of a channel whose topic remains. Its name is free again."""


class NoObserver:
    """Observer that ignores all events."""

    def topic_created(self, topic: Topic) -> None:
        """Ignore the event."""

    def topic_deleted(self, topic: Topic) -> None:
        """Ignore the event."""

    def channel_created(self, topic: Topic, channel: str) -> None:
        """Ignore the event."""

    def channel_deleted(self, topic: Topic, channel: str) -> None:
        """Ignore the event."""
