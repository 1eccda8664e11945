"""Thread that reads the event log of one broker ahead of the writer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyqd.client.errors import ClientError
from pyqd.hot.wire.trace_events import TraceColumns
from pyqd.trace.outage import Outage
from pyqd.trace.source import EventPage, LogIdentity, TraceSource

WAIT_MS: Final = 10_000
# A page with so many events is probably followed by others, which are read at once.
FULL_PAGE_EVENTS: Final = 20_000

logger = logging.getLogger("pyqd.trace")


@dataclass(frozen=True)
class Arrival:
    """Message of a fetcher to the writer: the broker has been reached, and the fetcher waits for `begin`."""

    fetcher: Fetcher
    identity: LogIdentity


@dataclass(frozen=True)
class Events:
    """Message of a fetcher to the writer: events that follow a position. turn: of the `begin` that they belong to."""

    fetcher: Fetcher
    turn: int
    events: TraceColumns
    end: int


@dataclass(frozen=True)
class Ended:
    """Message of a fetcher to the writer: all is read, or the fetcher has given up with an error."""

    fetcher: Fetcher
    error: ClientError | None


Message = Arrival | Events | Ended


class Fetcher(threading.Thread):
    """Reader of one broker.

    put: hands a message to the writer, and waits if the writer is behind. interval_s: time between two requests to a
    broker that has few events. is_once: end at the end of the log. stopped: set to end all fetchers.
    """

    def __init__(
        self,
        source: TraceSource,
        put: Callable[[Message], None],
        stopped: threading.Event,
        *,
        interval_s: float,
        is_once: bool,
    ) -> None:
        super().__init__(name=f"trace of {source.address}", daemon=True)
        self.source = source
        self._put = put
        self._stopped = stopped
        self._interval_s = interval_s
        self._is_once = is_once
        self._begun = threading.Condition()
        self.turn = 0
        # None: wait for `begin`.
        self._position: int | None = None
        self._outage = Outage()
        # In place of `source`, from the next attempt on.
        self._renewed: TraceSource | None = None
        self._is_ended = False

    @property
    def is_failing(self) -> bool:
        """True from a failure to the next success."""
        return self._outage.count > 0

    def renew(self, source: TraceSource) -> None:
        """Use another connection to the same address from the next attempt on: the login may have changed."""
        self._renewed = source

    def end(self) -> None:
        """End the thread soon, also while others go on."""
        self._is_ended = True
        self.begin(None)

    def _is_over(self) -> bool:
        return self._is_ended or self._stopped.is_set()

    def begin(self, position: int | None) -> None:
        """Read from a position on; None: read nothing until the next call. Pages of turns before are obsolete."""
        with self._begun:
            self.turn += 1
            self._position = position
            self._begun.notify_all()

    def _next(self) -> tuple[int, int]:
        """Wait until there is a position to read from. Returns: the turn and the position."""
        with self._begun:
            while self._position is None and not self._is_over():
                self._begun.wait(self._interval_s)
            return self.turn, self._position or 0

    def run(self) -> None:
        error = None
        while not self._is_over() and error is None:
            try:
                self._read()
                break
            except ClientError as failure:
                if self._is_once and self._outage.count:
                    error = failure
                else:
                    self._outage.note(f"cannot read the event log: {failure}")
                    self._stopped.wait(self._outage.next_s())
            if self._renewed is not None:
                self.source.close()
                self.source, self._renewed = self._renewed, None
        self.source.close()
        self._put(Ended(self, error))

    def _read(self) -> None:
        """Read until stopped or, if once, until the end of the log. Raises: ClientError."""
        while not self._is_over():
            self.begin(None)
            identity = self.source.identity()
            self._put(Arrival(self, identity))
            if self._read_log(identity.log):
                return

    def _read_log(self, log: str) -> bool:
        """Read one log. Returns: whether that was all; False if the address leads to another log now."""
        last_turn = position = 0
        while True:
            turn, expected = self._next()
            if self._is_over():
                return True
            position = max(expected, position) if turn == last_turn else expected
            last_turn = turn
            started_s = time.monotonic()
            page = self.source.read(expected, position, 0 if self._is_once else WAIT_MS)
            if page.log != log:
                return False
            if page.end < expected:
                self._outage.note(_shortened(self.source.address, page.end, expected))
                self._stopped.wait(self._outage.next_s())
                continue
            self._outage.recovered(f"{self.source.address}: reading the event log again")
            position = page.next
            self._hand_over(turn, expected, page)
            if self._is_once and position >= page.end:
                return True
            if page.events.rows < FULL_PAGE_EVENTS:
                self._stopped.wait(max(0.0, self._interval_s - (time.monotonic() - started_s)))

    def _hand_over(self, turn: int, expected: int, page: EventPage) -> None:
        """Put the events of a page, unless it is obsolete."""
        events = page.events
        if events.damaged:
            logger.warning("%s: %d blocks of the event log are damaged", self.source.address, events.damaged)
        if events.following == expected:
            return
        with self._begun:
            if self.turn == turn:
                self._position = events.following
        self._put(Events(self, turn, events, page.end))


def _shortened(address: str, end: int, position: int) -> str:
    return (
        f"{address}: the event log ends at position {end}, but events up to {position} are stored: the data directory "
        "is an older copy. docs/trace.md tells how to go on"
    )
