"""POST /topic/delete, empty, pause and unpause, and the same of /channel.

Each change is made in one step after preparations in slices, so no other greenlet sees half of it. A stored pause
outlives the process at once. The answer leaves when the change is on stable storage as well.

Source: docs/nsq/http-api.md, "Topic and channel administration"; docs/http.md.
"""

import logging
import os
from collections.abc import Callable

import gevent
from gevent.event import Event

from pyqd.api.http_params import requested_channel, requested_topic, topic_of_any_name
from pyqd.api.rights import ADMIN, TOPIC
from pyqd.broker.broker import Broker, sync_names
from pyqd.broker.channel import Channel
from pyqd.broker.topic import Topic
from pyqd.diskqueue.files import PAGE_BYTES
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.http.messages import Handler, Request, Response, Route
from pyqd.net.loop_driver import in_slices, poll_sync
from pyqd.primitives.errors import StorageError

logger = logging.getLogger(__name__)


class AdminRoutes:
    """Routes that delete, empty and pause topics and channels.

    in_thread: runs a function in a thread and waits for it while the loop goes on; gevent's threadpool by default.
    """

    def __init__(self, broker: Broker, in_thread: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.broker = broker
        self.in_thread = in_thread or gevent.get_hub().threadpool.apply

    def routes(self) -> list[Route]:
        handlers: dict[str, Handler] = {
            "/topic/delete": self.delete_topic,
            "/topic/empty": self.empty_topic,
            "/topic/pause": lambda request: self.pause_topic(request, True),
            "/topic/unpause": lambda request: self.pause_topic(request, False),
            "/channel/delete": self.delete_channel,
            "/channel/empty": self.empty_channel,
            "/channel/pause": lambda request: self.pause_channel(request, True),
            "/channel/unpause": lambda request: self.pause_channel(request, False),
        }
        return [Route("POST", path, handler, right=ADMIN, topics=TOPIC) for path, handler in handlers.items()]

    def delete_topic(self, request: Request) -> Response:
        """Delete a topic with its channels and all their messages, and close its clients. Switches: before and
        after.
        """
        in_slices(topic_of_any_name(self.broker, request.query()).hold_files_in_steps())
        # The topic may have been deleted, or replaced by another of that name, during the slices.
        topic = topic_of_any_name(self.broker, request.query())
        directory = topic.directory
        self.broker.delete_topic(topic.name)
        self.make_names_durable(directory)
        return Response(200)

    def empty_topic(self, request: Request) -> Response:
        """Drop the messages that no channel has been given. Switches: before and after."""
        topic = requested_topic(self.broker, request.query())
        for channel in list(topic.channels_by_name.values()):
            make_room(topic, channel)
        # The topic may have been deleted, or replaced by another of that name, meanwhile.
        in_slices(requested_topic(self.broker, request.query()).prepare_to_empty())
        topic = requested_topic(self.broker, request.query())
        topic.empty()
        logger.info("TOPIC(%s): emptied", topic.name)
        self.make_state_durable(topic)
        return Response(200)

    def pause_topic(self, request: Request, paused: bool) -> Response:
        """Stop or resume the flow of messages to the channels. Switches: at the end."""
        topic = topic_of_any_name(self.broker, request.query())
        topic.pause(paused)
        logger.info("TOPIC(%s): %s", topic.name, "paused" if paused else "unpaused")
        self.make_state_durable(topic)
        return Response(200)

    def delete_channel(self, request: Request) -> Response:
        """Delete a channel with all its messages and close its clients. Switches: at the end."""
        channel = requested_channel(self.broker, request.query())
        directory = channel.directory
        channel.topic.delete_channel(channel.name)
        self.make_names_durable(directory)
        return Response(200)

    def empty_channel(self, request: Request) -> Response:
        """Drop the queued, in-flight and deferred messages. Switches: before and after."""
        channel = requested_channel(self.broker, request.query())
        with channel.prepared_reset(poll_sync):
            # The channel may have been deleted, or replaced by another of that name, meanwhile.
            channel = requested_channel(self.broker, request.query())
            channel.empty()
        logger.info("TOPIC(%s): channel %s emptied", channel.topic.name, channel.name)
        self.make_ledgers_durable(channel)
        return Response(200)

    def pause_channel(self, request: Request, paused: bool) -> Response:
        """Stop or resume deliveries to the clients. Switches: at the end."""
        channel = requested_channel(self.broker, request.query())
        channel.pause(paused)
        logger.info("TOPIC(%s): channel %s %s", channel.topic.name, channel.name, "paused" if paused else "unpaused")
        self.make_ledgers_durable(channel)
        return Response(200)

    def make_state_durable(self, topic: Topic) -> None:
        if topic.directory is not None:
            ledgers = [channel.ledger for channel in topic.channels_by_name.values() if channel.directory is not None]
            self.make_durable([(topic.mapping, PAGE_BYTES), *targets_of(ledgers)])

    def make_ledgers_durable(self, channel: Channel) -> None:
        if channel.directory is not None:
            # A ledger that was reset or has grown may have its name since the last sync.
            self.make_durable(targets_of(channel.ledgers()), channel.directory)

    def make_durable(self, ranges: list[tuple[Mapping, int]], directory: str | None = None) -> None:
        """Wait until the first bytes of these mappings are on stable storage. Switches: yes.

        directory: its names too.
        """

        def sync() -> None:
            for mapping, length_bytes in ranges:
                self.broker.syncs.sync(mapping, 0, length_bytes)
            if directory is not None:
                sync_names(self.broker.files, directory)

        self.wait_for(sync)

    def make_names_durable(self, directory: str | None) -> None:
        """Wait until the removal of a directory is on stable storage. Switches: yes."""
        if directory is not None:
            parent = os.path.dirname(directory)
            self.wait_for(lambda: sync_names(self.broker.files, parent))

    def wait_for(self, sync: Callable[[], None]) -> None:
        try:
            self.in_thread(sync)
        except StorageError as error:
            # The change is made and outlives the process, which is all that the answer promises. The failure shows in
            # the health.
            self.broker.note_failed_sync(error)


def make_room(topic: Topic, channel: Channel) -> None:
    """Grow a channel's ledger in a thread until it reaches all that its topic holds: a ledger that grows is synced.

    Switches: yes. If the ledger cannot grow, whoever needs it gets the reason.
    """
    # Others may empty or delete the topic, and have the ledger grow for reasons of theirs, meanwhile.
    while topic.depth and not topic.exiting and not channel.has_room_for(topic.log.end - 1):
        if channel.grows:
            # A growth under way ends with a sync.
            poll_sync()
            continue
        grown = Event()
        channel.grow_ledger(topic.log.end - 1, grown.set)
        grown.wait()
        return


def targets_of(ledgers: list[Ledger]) -> list[tuple[Mapping, int]]:
    """Return all mappings that a sync of ledgers has to write, each with its bytes in use."""
    return [target for ledger in ledgers for target in ledger.sync_targets()]
