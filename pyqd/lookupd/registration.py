"""Registration of a broker with all its lookup daemons."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pyqd.broker.topic import Topic
from pyqd.lookupd.channel_search import ChannelSearch
from pyqd.lookupd.peer import LookupPeer

# A command takes a microsecond of the loop. The channels of a deleted topic are all unregistered in one pass.
CHANNELS_AT_ONCE_MAX: Final = 5000

logger = logging.getLogger(__name__)


class Registration:
    """Observer of a broker that registers its topics and channels with its lookup daemons.

    topics: returns the broker's topics, and goes on while some come and go. identity: returns the body of IDENTIFY.
    search: finds the channels of new topics.
    """

    def __init__(
        self,
        topics: Callable[[], Iterable[Topic]],
        identity: Callable[[], Mapping[str, Any]],
        search: ChannelSearch,
    ) -> None:
        self._topics = topics
        self._identity = identity
        self._search = search
        self._peers: dict[str, LookupPeer] = {}
        self._stopped = False

    @property
    def peers(self) -> list[LookupPeer]:
        """Lookup daemons in the order of their addresses in the options."""
        return list(self._peers.values())

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Keep connections to these lookup daemons, <host>:<port> each, and to no others. Not after `stop`.

        Switches: no.
        """
        if self._stopped:
            return
        former, self._peers = self._peers, {}
        for address in addresses:
            if address in self._peers:
                continue
            peer = former.pop(address, None)
            if peer is None:
                logger.info("LOOKUPD(%s): adding peer", address)
                peer = LookupPeer(address, self._identity, self._registrations)
                peer.start()
            self._peers[address] = peer
        for address, peer in former.items():
            logger.info("LOOKUPD(%s): removing peer", address)
            peer.stop()
        self._search.set_peers(self.peers)

    def stop(self) -> None:
        """Close all connections, so that the lookup daemons forget this broker. Switches: no."""
        self._stopped = True
        for peer in self._peers.values():
            peer.stop()
        self._peers = {}
        self._search.stop()

    def stats(self) -> list[dict[str, Any]]:
        """Return the state of each lookup daemon in the form of /stats."""
        return [peer.stats() for peer in self._peers.values()]

    def topic_created(self, topic: Topic) -> None:
        """Register a topic, and search its channels."""
        self._change(b"REGISTER %b\n" % topic.name.encode())
        self._search.begin(topic)

    def topic_deleted(self, topic: Topic) -> None:
        """Unregister the channels of a topic, then the topic: lookup daemons warn of channels that are left."""
        if not self._peers:
            return
        if len(topic.channels_by_name) > CHANNELS_AT_ONCE_MAX:
            for peer in self._peers.values():
                peer.overflow()
            return
        for channel in topic.channels_by_name:
            self.channel_deleted(topic, channel)
        self._change(b"UNREGISTER %b\n" % topic.name.encode())

    def channel_created(self, topic: Topic, channel: str) -> None:
        self._change(b"REGISTER %b %b\n" % (topic.name.encode(), channel.encode()))

    def channel_deleted(self, topic: Topic, channel: str) -> None:
        self._change(b"UNREGISTER %b %b\n" % (topic.name.encode(), channel.encode()))

    def _change(self, command: bytes) -> None:
        for peer in self._peers.values():
            peer.change(command)

    def _registrations(self) -> Iterator[bytes]:
        """Yield REGISTER for all topics and channels. A channel registers its topic too."""
        for topic in self._topics():
            name = topic.name.encode()
            channels = list(topic.channels_by_name)
            if not channels:
                yield b"REGISTER %b\n" % name
            for channel in channels:
                yield b"REGISTER %b %b\n" % (name, channel.encode())
