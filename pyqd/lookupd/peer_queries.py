"""Queries of one lookup daemon for the channels of new topics: a few at a time, in the order of the topics.

The bound on the time of a query has two parts, as a lookup daemon may be dead, or only busy with many new topics:

- SILENT_S after the query, and after the last answer to any query, it is given up;
- QUERY_S_MAX after the query it is given up in any case.

Source: docs/cluster.md, "Channels of a new topic".
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import gevent

from pyqd.lookupd.channel_query import ChannelQuery, QueryError
from pyqd.lookupd.peer import LookupPeer
from pyqd.net.greenlets import spawn
from pyqd.net.loop_driver import in_slices

SILENT_S: Final = 2.0
QUERY_S_MAX: Final = 10.0
ASKED_AT_ONCE: Final = 8

# Called with the names that were found; with None if the lookup daemon did not return them.
Answered = Callable[[Sequence[str] | None], None]

logger = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """A query that was not sent yet. put_s: of the monotonic clock."""

    topic: str
    put_s: float
    answered: Answered


class PeerQueries:
    """Queue of queries to one lookup daemon. silent_s: as SILENT_S."""

    def __init__(self, peer: LookupPeer, query: ChannelQuery, silent_s: float = SILENT_S) -> None:
        self._peer = peer
        self._query = query
        self._silent_s = silent_s
        self._answer_s = 0.0
        self._waiting: deque[Waiting] = deque()
        self._greenlets: set[gevent.Greenlet[..., None]] = set()
        self._expirer: gevent.Greenlet[..., None] | None = None
        self._has_failed = False

    def put(self, topic: str, answered: Answered) -> None:
        """Ask for the channels of a topic, then call answered, in bounded time. Switches: no."""
        self._waiting.append(Waiting(topic, time.monotonic(), answered))
        if len(self._greenlets) < ASKED_AT_ONCE:
            greenlet = spawn(self._run)
            self._greenlets.add(greenlet)
            # For a greenlet that is killed before it begins.
            greenlet.rawlink(self._greenlets.discard)
        if self._expirer is None or self._expirer.dead:
            self._expirer = spawn(self._expire)

    def stop(self) -> None:
        """Give up all queries. Switches: no."""
        while self._waiting:
            self._waiting.popleft().answered(None)
        for greenlet in list(self._greenlets):
            greenlet.kill(block=False)
        if self._expirer is not None:
            self._expirer.kill(block=False)

    def _run(self) -> None:
        try:
            while self._waiting:
                waiting = self._waiting.popleft()
                names = None
                try:
                    names = self._names_of(waiting)
                finally:
                    # Also if the greenlet is killed: the topic holds its messages until then.
                    waiting.answered(names)
        finally:
            # Without a switch since the last test of the queue: rawlink() tells of the end one pass of the loop later.
            self._greenlets.discard(cast("gevent.Greenlet[..., None]", gevent.getcurrent()))

    def _deadline_s(self, waiting: Waiting) -> float:
        """Return when a query is given up, as far as that is known now."""
        return min(max(waiting.put_s, self._answer_s) + self._silent_s, waiting.put_s + QUERY_S_MAX)

    def _expire(self) -> None:
        """Give up queries that wait for others to which there is no answer. The first one has the earliest deadline."""
        while self._waiting:
            in_slices(self._expired())
            if self._waiting:
                gevent.sleep(max(0.0, self._deadline_s(self._waiting[0]) - time.monotonic()))

    def _expired(self) -> Iterator[None]:
        while self._waiting and self._deadline_s(self._waiting[0]) <= time.monotonic():
            self._waiting.popleft().answered(None)
            yield

    def _names_of(self, waiting: Waiting) -> list[str] | None:
        """Return the channels of a topic; None if the lookup daemon does not return them in time."""
        peer = self._peer
        # A broker that has just started does not know the address yet.
        peer.tried.wait(max(0.0, self._deadline_s(waiting) - time.monotonic()))
        address = None if peer.info is None else peer.info.http_address
        left_s = self._deadline_s(waiting) - time.monotonic()
        if address is None or left_s <= 0:
            return None
        if self._has_failed and not peer.is_connected:
            # Otherwise every new topic would wait for the deadline until the lookup daemon is back.
            return None
        try:
            names = self._query.ask(address, waiting.topic, left_s)
        except QueryError as error:
            self._note_failure(f"at {address}: {error}")
            return None
        self._answer_s = time.monotonic()
        self._note_success()
        return names

    def _note_failure(self, reason: str) -> None:
        """Log the first of several failures."""
        if not self._has_failed:
            self._has_failed = True
            logger.warning("LOOKUPD(%s): cannot ask for the channels of new topics %s", self._peer.address, reason)

    def _note_success(self) -> None:
        if self._has_failed:
            self._has_failed = False
            logger.info("LOOKUPD(%s): the lookup daemon returns the channels of new topics again", self._peer.address)
