"""Shipper: reads the event logs of brokers and stores them in a database, until it is stopped.

One thread per broker reads ahead. The thread of `run` writes: it is the only one that uses the database. While the
database does not answer, the queue is full and the readers wait. So memory is bounded, and the brokers keep the events.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyqd.client.errors import ClientError
from pyqd.client.http import HttpClient
from pyqd.hot.wire.trace_events import TraceColumns
from pyqd.trace import DatabaseError, MovedError
from pyqd.trace.database import Database, TraceNode
from pyqd.trace.fetcher import Arrival, Ended, Events, Fetcher, Message
from pyqd.trace.outage import Outage
from pyqd.trace.retention import Retention
from pyqd.trace.rows import LOST_EVENTS
from pyqd.trace.source import LogIdentity, TraceSource

# Pages that wait for the writer.
PAGES_AHEAD: Final = 2
POLL_S: Final = 0.2
# A fetcher may be waiting for an answer, and is then left behind.
JOIN_S: Final = 1.0
DISCOVERY_S: Final = 30.0
REPORT_S: Final = 60.0
# Without an end, a database is retried for ever; with one, so often.
ONCE_RETRIES: Final = 5

T = TypeVar("T")

logger = logging.getLogger("pyqd.trace")


@dataclass(frozen=True)
class ShipOptions:
    """Settings of a shipper.

    interval_s: see Fetcher. is_once: end when all events are stored. standby_s: time for which a shipper leaves a
    broker to another one that it finds at work.
    """

    interval_s: float = 0.5
    is_once: bool = False
    discovery_s: float = DISCOVERY_S
    standby_s: float = 5.0


class Shipper:
    """Shipper of brokers to one database.

    brokers: returns clients of the brokers known now; asked again from time to time. The clients must not retry, and
    their timeout must be longer than the wait for events.
    """

    def __init__(
        self,
        database: Database,
        brokers: Callable[[], Sequence[HttpClient]],
        retention: Retention,
        options: ShipOptions | None = None,
    ) -> None:
        self._database = database
        self._brokers = brokers
        self._retention = retention
        self._options = options or ShipOptions()
        self._stopped = threading.Event()
        self._queue: queue.Queue[Message] = queue.Queue(PAGES_AHEAD)
        self._fetchers: dict[str, Fetcher] = {}
        self._nodes: dict[Fetcher, TraceNode] = {}
        # Fetchers that have found another reader of their broker at work: the time to try again, and the broker.
        self._standby: dict[Fetcher, tuple[float, LogIdentity]] = {}
        # Fetchers on standby whose other reader is a fetcher here.
        self._doubles: set[Fetcher] = set()
        self._outage = Outage()
        self._event_count = 0
        self._lags: dict[Fetcher, int] = {}
        self._reported_s = time.monotonic()

    def stop(self) -> None:
        """End `run` after the transaction under way. May be called by a signal handler."""
        self._stopped.set()

    def run(self) -> list[ClientError]:
        """Ship until stopped or, if once, until all is stored. Returns: errors of brokers that were given up.

        Raises: SchemaError; with `is_once` also DatabaseError, and ClientError of `brokers`.
        """
        self._persist(self._database.upgrade)
        if self._options.is_once:
            self._start_fetchers()
        else:
            threading.Thread(target=self._discover, name="discovery", daemon=True).start()
        errors: list[ClientError] = []
        ended = 0
        try:
            while not self._stopped.is_set() and not (self._options.is_once and ended == len(self._fetchers)):
                message = self._next()
                if isinstance(message, Ended):
                    ended += 1
                    errors += [message.error] if message.error else []
                    self._forget(message.fetcher)
                elif message is not None:
                    self._handle(message)
                self._tend()
            if self._options.is_once:
                self._remove_old_rows()
        finally:
            self._stopped.set()
            for fetcher in list(self._fetchers.values()):
                fetcher.join(JOIN_S)
        return errors

    def _remove_old_rows(self) -> None:
        """Remove all rows beyond the limits: no later turn of a run with an end would go on with them."""
        while not self._stopped.is_set() and self._retention.is_due(time.monotonic()):
            self._persist(lambda: self._retention.remove_some(self._database))

    def _next(self) -> Message | None:
        try:
            return self._queue.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def _put(self, message: Message) -> None:
        """Hand a message to the writer; called by the fetchers' threads."""
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=POLL_S)
                return

    def _discover(self) -> None:
        """Start fetchers for all brokers that are found, from time to time."""
        outage = Outage()
        while not self._stopped.is_set():
            try:
                self._start_fetchers()
                outage.recovered("brokers are found again")
                self._stopped.wait(self._options.discovery_s)
            except ClientError as error:
                outage.note(f"cannot find brokers: {error}")
                self._stopped.wait(outage.next_s())

    def _start_fetchers(self) -> None:
        """Start a fetcher for each broker that is new, and end those that fail for brokers that are gone."""
        found = {client.address: client for client in self._brokers()}
        for address, client in found.items():
            fetcher = self._fetchers.get(address)
            if fetcher is None:
                fetcher = Fetcher(
                    TraceSource(client),
                    self._put,
                    self._stopped,
                    interval_s=self._options.interval_s,
                    is_once=self._options.is_once,
                )
                # In this order: a stop meanwhile joins all that are known.
                fetcher.start()
                self._fetchers[address] = fetcher
            elif fetcher.is_failing:
                fetcher.renew(TraceSource(client))
        for address in self._fetchers.keys() - found.keys():
            if self._fetchers[address].is_failing:
                logger.info("%s: no broker is there any more", address)
                self._fetchers.pop(address).end()

    def _persist(self, write: Callable[[], T]) -> T | None:
        """Call a function until the database does not fail. Returns: its result; None if stopped.

        Raises: DatabaseError if once.
        """
        while not self._stopped.is_set():
            try:
                result = write()
            except DatabaseError as error:
                if self._options.is_once and self._outage.count >= ONCE_RETRIES:
                    raise
                self._outage.note(str(error))
                self._stopped.wait(self._outage.next_s())
            else:
                self._outage.recovered(f"{self._database.name} is used again")
                return result
        return None

    def _handle(self, message: Arrival | Events) -> None:
        if isinstance(message, Arrival):
            self._begin(message.fetcher, message.identity)
        elif message.turn == message.fetcher.turn:
            self._store(message)

    def _begin(self, fetcher: Fetcher, identity: LogIdentity) -> None:
        """Have a fetcher read from the position that the database has."""
        for other in [each for each, node in self._nodes.items() if each is not fetcher and node.log == identity.log]:
            if not other.is_failing:
                self._stand_aside(fetcher, other, identity)
                return
            # The broker has another address now.
            self._forget(other)
            other.begin(None)
        self._doubles.discard(fetcher)
        node = self._persist(lambda: self._database.node(identity.log, identity.nsqd))
        if node is not None:
            self._nodes[fetcher] = node
            logger.info("%s: storing events from position %d on", identity.nsqd, node.position)
            fetcher.begin(node.position)

    def _store(self, message: Events) -> None:
        fetcher = message.fetcher
        node = self._nodes[fetcher]
        failures = self._outage.total
        written: TraceNode | None
        try:
            written = self._persist(lambda: self._database.write(node, message.events))
        except MovedError as moved:
            if self._outage.total == failures or moved.position != message.events.following:
                self._stand_by(fetcher, moved)
                return
            # The connection was lost after the database had stored the events, and before it could say so.
            written = replace(node, position=moved.position)
        if written is not None:
            for text in _gaps_in(message.events):
                logger.warning("%s: %s; gap_log has a row of them", node.nsqd, text)
            self._nodes[fetcher] = written
            self._event_count += message.events.rows
            self._lags[fetcher] = max(0, message.end - written.position)

    def _stand_by(self, fetcher: Fetcher, moved: MovedError) -> None:
        """Leave a broker to another shipper for a while."""
        node = self._nodes[fetcher]
        logger.info("%s: %s; standing by", node.nsqd, moved)
        fetcher.begin(None)
        self._standby[fetcher] = time.monotonic() + self._options.standby_s, LogIdentity(node.log, node.nsqd)

    def _stand_aside(self, fetcher: Fetcher, other: Fetcher, identity: LogIdentity) -> None:
        """Leave a broker to the fetcher of another address of it, while that one can read."""
        if fetcher not in self._doubles:
            addresses = f"{fetcher.source.address} and {other.source.address}"
            logger.warning("%s are the same broker: the first one is not used", addresses)
        if self._options.is_once:
            fetcher.end()
            return
        self._doubles.add(fetcher)
        self._standby[fetcher] = time.monotonic() + self._options.standby_s, identity

    def _forget(self, fetcher: Fetcher) -> None:
        """Forget a fetcher that has ended, or that does not read its broker any more."""
        for known in (self._nodes, self._standby, self._lags):
            known.pop(fetcher, None)
        self._doubles.discard(fetcher)

    def _tend(self) -> None:
        """Do the tasks that are due: go on after standing by, remove old rows, report."""
        now_s = time.monotonic()
        for fetcher in [fetcher for fetcher, (at_s, _) in self._standby.items() if at_s <= now_s]:
            self._begin(fetcher, self._standby.pop(fetcher)[1])
        if self._retention.is_due(now_s):
            self._persist(lambda: self._retention.remove_some(self._database))
        if now_s - self._reported_s > REPORT_S:
            behind = sum(self._lags.values())
            logger.info(
                "stored %d events in %.0f s, %d are waiting", self._event_count, now_s - self._reported_s, behind
            )
            self._event_count, self._reported_s = 0, now_s


def _gaps_in(events: TraceColumns) -> Iterator[str]:
    """Yield a text for each gap in events."""
    row = events.kinds.find(LOST_EVENTS)
    if row < 0:
        return
    counts = array("q", events.counts)
    while row >= 0:
        is_known = events.count_bits[row >> 3] & 1 << (row & 7)
        number = f"{counts[row]}" if is_known else "an unknown number of"
        yield f"{number} events were overwritten or damaged before they were read"
        row = events.kinds.find(LOST_EVENTS, row + 1)
