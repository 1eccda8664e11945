"""Drain: end the work of a daemon that is about to stop, so that its clients notice as little as possible.

From `begin` on, new consumers are refused, and nothing more is delivered. Consumers can finish what they have in
flight. The drain is complete when nothing is in flight with a connected consumer any more, or at its deadline: messages
still in flight then go to another consumer after the next start, with their attempts.

Publishes are refused just before the end. Producers of NSQ's clients know one broker each and report a refusal as an
error, so that they fail no longer than the daemon is gone.

Source: docs/http.md, "Drain".
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from pyqd.broker.broker import Broker
from pyqd.net.greenlets import spawn
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS, format_duration
from pyqd.tcp.connection import Connection

POLL_S = 0.05
# Publishes that came before they are refused get so long to be stored and answered.
SETTLED_S = 0.1
CONNECTIONS_PER_SLICE = 256

logger = logging.getLogger(__name__)


class Drain:
    """The drain of one daemon. connections: returns the clients.

    syncing: returns whether publishers wait for a sync. on_begin: functions that are called when it begins.
    on_complete: called once when it is complete.
    """

    def __init__(
        self,
        broker: Broker,
        connections: Callable[[], set[Connection]],
        *,
        syncing: Callable[[], bool] = bool,
        on_begin: Sequence[Callable[[], None]] = (),
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self.complete = False
        self._broker = broker
        self._connections = connections
        self._syncing = syncing
        self._on_begin = on_begin
        self._on_complete = on_complete
        self._deadline_ns = 0
        self._greenlet: gevent.Greenlet[..., None] | None = None

    @property
    def began(self) -> bool:
        """True once `begin` was called."""
        return self._greenlet is not None

    def begin(self, timeout_ns: int) -> None:
        """Begin, or give a drain that has begun another deadline. Switches: no."""
        self._deadline_ns = time.monotonic_ns() + timeout_ns
        if self._greenlet is not None:
            return
        logger.info("NSQ: draining for at most %s: new consumers are refused", format_duration(timeout_ns))
        self._broker.begin_drain()
        for function in self._on_begin:
            function()
        self._greenlet = spawn(self._run)

    def progress(self) -> dict[str, Any]:
        """Return the answer of GET /drain; times in ms, and the process id of the daemon."""
        return {
            "draining": self.began,
            "complete": self.complete,
            "remaining_ms": self._remaining_ns() // MILLISECOND_NS if self.began else 0,
            "in_flight": self._in_flight(),
            "consumers": len(self._consumers()),
            "pid": os.getpid(),
        }

    def _remaining_ns(self) -> int:
        return max(self._deadline_ns - time.monotonic_ns(), 0)

    def _in_flight(self) -> int:
        return sum(each.output.in_flight for each in self._consumers())

    def stop(self) -> None:
        """Stop waiting for consumers."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def _consumers(self) -> list[Connection]:
        return [each for each in self._connections() if each.output.channel is not None and not each.gone]

    def _run(self) -> None:
        # A SUB that waits for an auth server finds the broker draining when it goes on, so none comes after these.
        for index, connection in enumerate(self._consumers()):
            if index % CONNECTIONS_PER_SLICE == CONNECTIONS_PER_SLICE - 1:
                yield_to_loop()
            connection.stop_deliveries()
        while (in_flight := self._in_flight()) and (remaining_ns := self._remaining_ns()):
            gevent.sleep(min(POLL_S, remaining_ns / SECOND_NS))
        logger.info("NSQ: publishes are refused")
        self._broker.refuse_publishes()
        gevent.sleep(SETTLED_S)
        while self._syncing() and (remaining_ns := self._remaining_ns()):
            gevent.sleep(min(POLL_S, remaining_ns / SECOND_NS))
        self.complete = True
        if in_flight:
            logger.warning(
                "NSQ: drained: %d messages are in flight at the deadline; they are redelivered after the next start",
                in_flight,
            )
        else:
            logger.info("NSQ: drained: no message is in flight")
        self._on_complete()
