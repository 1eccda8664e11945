"""Search for the channels of new topics at the lookup daemons, so that no channel misses the first messages.

    topic created   holds its messages; every lookup daemon is asked, all in parallel
    last answer     the channels that were named are created, except ephemeral ones; then the topic passes on its
                    messages to all of them

A lookup daemon that does not answer is given up in bounded time: pyqd/lookupd/peer_queries.py.

The client that creates the topic does not wait: its OK comes at once, as the topic keeps the messages. So a slow or
dead lookup daemon delays the first messages of new topics until it is given up, and nothing else. nsqd has that client
wait instead, as long as the timeouts of its HTTP client permit.

Source: docs/nsq/broker-semantics.md, "Topic lifecycle".
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import gevent
from gevent.event import Event

from pyqd.broker.topic import Topic
from pyqd.lookupd.channel_query import ChannelQuery
from pyqd.lookupd.peer import LookupPeer
from pyqd.lookupd.peer_queries import SILENT_S, PeerQueries
from pyqd.net.greenlets import spawn_service
from pyqd.net.loop_driver import in_slices
from pyqd.primitives.errors import LimitReached, StorageError
from pyqd.primitives.names import is_ephemeral_str, is_valid_name_str

logger = logging.getLogger(__name__)


class NewTopic:
    """One topic whose channels are searched.

    asked_count: lookup daemons that are asked. open_count: those that have not answered. unknown_count: those that have
    not returned its channels.
    """

    __slots__ = ("asked_count", "names", "open_count", "topic", "unknown_count")

    def __init__(self, topic: Topic, asked_count: int) -> None:
        self.topic = topic
        self.asked_count = self.open_count = asked_count
        self.unknown_count = 0
        self.names: set[str] = set()


class ChannelSearch:
    """Searches of one broker. query: asks a lookup daemon. silent_s: time after which a silent one is given up."""

    def __init__(self, query: ChannelQuery, silent_s: float = SILENT_S) -> None:
        self._query = query
        self._silent_s = silent_s
        self._queries: dict[LookupPeer, PeerQueries] = {}
        self._found: deque[NewTopic] = deque()
        self._has_found = Event()
        self._creator: gevent.Greenlet[..., None] | None = None

    def set_peers(self, peers: Sequence[LookupPeer]) -> None:
        """Ask these lookup daemons from now on, and no others. Switches: no."""
        for peer in self._queries.keys() - set(peers):
            self._queries.pop(peer).stop()
        for peer in peers:
            if peer not in self._queries:
                self._queries[peer] = PeerQueries(peer, self._query, self._silent_s)
        if peers and self._creator is None:
            self._creator = spawn_service("creation of channels of lookup daemons", self._create)

    def begin(self, topic: Topic) -> None:
        """Let a new topic hold its messages until its channels are created. Switches: no."""
        if not self._queries:
            return
        topic.await_channels(True)
        new = NewTopic(topic, len(self._queries))
        for queries in self._queries.values():
            queries.put(topic.name, partial(self._answered, new))

    def stop(self) -> None:
        """Give up all searches. Switches: no."""
        self.set_peers(())
        if self._creator is not None:
            self._creator.kill(block=False)

    def _answered(self, new: NewTopic, names: Sequence[str] | None) -> None:
        new.open_count -= 1
        if names is None:
            new.unknown_count += 1
        else:
            new.names.update(names)
        if new.open_count == 0:
            self._end(new)

    def _end(self, new: NewTopic) -> None:
        """Create the channels that were found, then let the topic pass on its messages."""
        if new.unknown_count:
            logger.info(
                "TOPIC(%s): %d of %d lookup daemons did not return its channels",
                new.topic.name,
                new.unknown_count,
                new.asked_count,
            )
        if not new.names:
            release(new.topic)
            return
        self._found.append(new)
        self._has_found.set()

    def _create(self) -> None:
        while True:
            self._has_found.wait()
            if not self._found:
                self._has_found.clear()
                continue
            new = self._found.popleft()
            try:
                in_slices(created_channels(new.topic, new.names))
            except (LimitReached, StorageError) as error:
                logger.warning("TOPIC(%s): cannot create a channel of the lookup daemons - %s", new.topic.name, error)
            finally:
                release(new.topic)


def release(topic: Topic) -> None:
    """Let a topic pass on its messages to the channels that it has, unless it was deleted."""
    if not topic.exiting:
        topic.await_channels(False)


def created_channels(topic: Topic, names: set[str]) -> Iterator[None]:
    """Create channels, and yield after each. Names that are ephemeral or invalid are left out.

    Raises: LimitReached, StorageError.
    """
    for name in sorted(names):
        if topic.exiting:
            return
        if not is_valid_name_str(name):
            logger.warning("TOPIC(%s): a lookup daemon returned an invalid channel name %.100r", topic.name, name)
        elif not is_ephemeral_str(name):
            topic.channel(name)
        yield
