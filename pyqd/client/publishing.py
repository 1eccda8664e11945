"""Publishing through a pool of brokers: pipelines, failover and retries, the same for both faces.

A publication is a command with one answer. Brokers answer in order, so that each link keeps its unanswered publications
in a queue. After an error frame the broker has executed nothing behind the refused command: the following publications
are sent again, and so is the refused one if the broker stops. If a connection breaks without an error frame, its
unanswered publications may have been executed; they are sent again too, unless retry_unanswered is False, so that a
message may be published twice, but is never lost.

All methods are called with the engine's lock held.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

from pyqd.client.connecting import BrokerPool, Connector, Lookup
from pyqd.client.core.connection import CommandAnswer, Event, Ready, Refusal
from pyqd.client.engine.link import Link
from pyqd.client.engine.role import Waiter
from pyqd.client.errors import (
    ClientError,
    ClosedError,
    NotConnectedError,
    TimedOutError,
    UnansweredError,
    is_exiting,
    refusal,
)
from pyqd.primitives.addresses import Address

TICK_S: Final = 0.25
# A link whose oldest answer is overdue, and has no waiting user, is closed after this time without a byte.
SILENT_S: Final = 5.0

# A command, or a function that returns the bytes for a link and the number of the broker's answers.
Command = bytes | Callable[[Link], tuple[bytes, int]]

WAITING, SENT, DONE = 0, 1, 2


class Publication:
    """A command whose answer is awaited. answer: the data of the broker's response; error: instead of it.

    on_done: called when it is DONE. future: for the use of on_done. give_up_s: time when a publication that waits for a
    connection may fail; set while it is WAITING.
    """

    __slots__ = (
        "answer", "command", "deadline_s", "error", "future", "give_up_s", "may_have_happened", "on_done", "progress",
        "size", "waiter",
    )  # fmt: skip

    def __init__(self, command: Command, size: int, deadline_s: float) -> None:
        self.command = command
        self.size = size
        self.deadline_s = deadline_s
        self.give_up_s: float
        self.answer = b""
        self.error: ClientError | None = None
        self.progress = WAITING
        self.may_have_happened = False
        self.on_done: Callable[[Publication], None] | None = None
        self.future: Any = None
        self.waiter: Waiter | None = None

    def is_done(self) -> bool:
        return self.progress == DONE


def unanswered_error(cause: Exception) -> UnansweredError:
    """Return the error of a publication that was sent over a connection which broke."""
    error = UnansweredError(f"{cause}; the message may have been published")
    error.__cause__ = cause
    return error


class Publishing:
    """Publications through a pool of brokers.

    not_connected_s: time after which a publication without a connection fails; None for its deadline. An attempt to
    connect that has begun is awaited in addition, because a slow handshake must not fail each publication.
    """

    def __init__(
        self,
        connector: Connector,
        addresses: Iterable[Address],
        lookup: Lookup | None = None,
        *,
        retry_unanswered: bool = True,
        not_connected_s: float | None = None,
    ) -> None:
        self.pool = BrokerPool(connector, self, addresses, lookup)
        self.pending_bytes = 0
        self.pending_count = 0
        self.published_count = 0
        self.failed_count = 0
        self.retried_count = 0
        self.is_closed = False
        self._engine = connector.engine
        self._retry_unanswered = retry_unanswered
        self._not_connected_s = math.inf if not_connected_s is None else not_connected_s
        self._attempt_s = connector.settings.connect_timeout
        # Links that are ready, each with its unanswered publications.
        self._ready: list[tuple[Link, deque[Publication]]] = []
        self._unanswered: dict[Link, deque[Publication]] = {}
        self._next = 0
        self._waiting: deque[Publication] = deque()
        self._is_ticking = False
        # The latest deadline so far, and until when a publication may wait behind one with a later deadline.
        self._latest_s = 0.0
        self._is_mixed_until_s = 0.0

    def submit(self, publication: Publication, *, at_once: bool) -> Link | None:
        """Take a publication; return the link that it is sent through, None if there is none yet. Raises: ClosedError.

        at_once: send it before others, without waiting for the driver.
        """
        if self.is_closed:
            raise ClosedError("the producer is closed")
        self.pending_bytes += publication.size
        self.pending_count += 1
        if publication.deadline_s >= self._latest_s:
            self._latest_s = publication.deadline_s
        else:
            self._is_mixed_until_s = self._latest_s
        if not self._is_ticking:
            self._is_ticking = True
            self._engine.call_later(TICK_S, self._tick)
        if not self._ready:
            publication.give_up_s = time.monotonic() + self._not_connected_s
            self._waiting.append(publication)
            self.pool.start()
            if len(self._waiting) == 1:
                self.pool.hurry()
            return None
        return self._send(publication, at_once)

    def _send(self, publication: Publication, at_once: bool) -> Link:
        """Send a publication through the next ready link, and return the link."""
        ready = self._ready
        self._next = (self._next + 1) % len(ready)
        link, unanswered = ready[self._next]
        command = publication.command
        if not isinstance(command, bytes):
            command, answer_count = command(link)
            unanswered.extend([publication] * (answer_count - 1))
        publication.progress = SENT
        unanswered.append(publication)
        if at_once or len(unanswered) == 1:
            link.send_now(command)
        else:
            link.send(command, soon=True)
        return link

    def abandon(self, publication: Publication, error: ClientError) -> None:
        """End a publication whose user waits no longer. If it was sent, its answer is ignored."""
        if publication.progress == WAITING:
            self._waiting.remove(publication)
        self._finish(publication, error)

    def _finish(self, publication: Publication, error: ClientError | None) -> None:
        if publication.progress == DONE:
            return
        # Threads look at the progress without the lock, and then at the error.
        publication.error = error
        publication.progress = DONE
        # A future that is kept does not keep the message.
        publication.command = b""
        self.pending_bytes -= publication.size
        self.pending_count -= 1
        if error is None:
            self.published_count += 1
        else:
            self.failed_count += 1
        if publication.waiter is not None:
            publication.waiter.wake()
        if publication.on_done is not None:
            publication.on_done(publication)

    # Events of links.

    def link_events(self, link: Link, events: list[Event]) -> None:
        unanswered = self._unanswered.get(link)
        is_new = False
        for event in events:
            if type(event) is CommandAnswer:
                if unanswered:
                    publication = unanswered.popleft()
                    # One publication may have several answers, of which the last one counts.
                    if not unanswered or unanswered[0] is not publication:
                        publication.answer = event.data
                        self._finish(publication, None)
                    else:
                        publication.may_have_happened = True
            elif isinstance(event, Refusal):
                self._refused(link, event.data)
                return
            elif isinstance(event, Ready):
                self._connected(link)
                is_new = True
        # Not before the last event: an error frame right behind the answer to IDENTIFY refuses no publication.
        if is_new:
            self._send_waiting()

    def _connected(self, link: Link) -> None:
        self.pool.connected(link)
        self._unanswered[link] = unanswered = deque[Publication]()
        self._ready.append((link, unanswered))

    def _send_waiting(self) -> None:
        while self._waiting and self._ready:
            self._send(self._waiting.popleft(), False)

    def _refused(self, link: Link, data: bytes) -> None:
        """End the refused publication. The broker closes the connection; closing it here saves the wait."""
        error = refusal(data, link.broker)
        unanswered = self._unanswered[link]
        if not unanswered:
            # Nothing was refused: connecting again at once could go on for ever.
            link.fail(error)
            return
        if not is_exiting(error):
            self._finish(unanswered.popleft(), error)
        link.close()
        self._lost(link, error, is_refusal=True)

    def link_lost(self, link: Link, error: Exception) -> None:
        self._lost(link, error, is_refusal=False)

    def _lost(self, link: Link, error: Exception, *, is_refusal: bool) -> None:
        unanswered = self._unanswered.pop(link, None)
        self._ready = [entry for entry in self._ready if entry[0] is not link]
        self.pool.lost(link, error, is_refusal=is_refusal and not is_exiting(error))
        if unanswered:
            self._take_back(unanswered, error, is_refusal)
        lasting = self.pool.lasting_error()
        if lasting is not None:
            while self._waiting:
                publication = self._waiting.popleft()
                # Sent before over a connection that broke: the error must not say that nothing has happened.
                self._finish(publication, unanswered_error(lasting) if publication.may_have_happened else lasting)
        if self._waiting and not self._ready:
            self.pool.hurry()

    def _take_back(self, unanswered: deque[Publication], error: Exception, is_refusal: bool) -> None:
        """Send the unanswered publications of a lost link again, or end them."""
        now_s = time.monotonic()
        again: list[Publication] = []
        for publication in unanswered:
            if publication.progress == DONE or (again and again[-1] is publication):
                continue
            publication.may_have_happened |= not is_refusal
            publication.progress = WAITING
            if publication.may_have_happened and not self._retry_unanswered:
                self._finish(publication, unanswered_error(error))
            elif publication.deadline_s <= now_s:
                self._finish(publication, self.timed_out(publication))
            else:
                publication.give_up_s = now_s + self._not_connected_s
                again.append(publication)
        self.retried_count += len(again)
        # They come before older publications of other links, and are sent behind newer ones.
        self._is_mixed_until_s = self._latest_s
        self._waiting.extendleft(reversed(again))
        self._send_waiting()

    # Time.

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._is_ticking = self.pending_count > 0
        if self._is_ticking:
            self._engine.call_later(TICK_S, self._tick)
        else:
            self._latest_s = self._is_mixed_until_s = 0.0
        # Without a search: with equal timeouts the first publication of a queue has its earliest deadline.
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            publication = self._waiting.popleft()
            self._finish(publication, self.timed_out(publication))
        if self._waiting and not self._ready:
            self._end_unconnected(now_s)
            self.pool.hurry()
        is_mixed = now_s <= self._is_mixed_until_s
        if is_mixed:
            overdue = [each for each in self._waiting if each.deadline_s <= now_s]
            if overdue:
                self._waiting = deque(each for each in self._waiting if each.deadline_s > now_s)
            for publication in overdue:
                self._finish(publication, self.timed_out(publication))
        for link, unanswered in list(self._ready):
            # An impatient user is no reason to give a link up: others wait for answers on it.
            is_stuck = unanswered and (not unanswered[0].is_done() or now_s - link.heard_s > SILENT_S)
            if is_stuck and unanswered[0].deadline_s <= now_s:
                link.fail(UnansweredError(f"{link.broker}: no answer in time"))
            elif is_mixed and link.is_open:
                self._end_overdue(link, unanswered, now_s)

    def _end_unconnected(self, now_s: float) -> None:
        """End the publications that have waited long enough for a connection; all wait equally long."""
        begun_s = now_s - self._attempt_s if self.pool.is_connecting() else now_s
        limit = f"not_connected_timeout={self._not_connected_s:g}"
        while self._waiting and self._waiting[0].give_up_s <= begun_s:
            publication = self._waiting.popleft()
            self._finish(publication, self._unconnected(publication, limit))

    def _end_overdue(self, link: Link, unanswered: deque[Publication], now_s: float) -> None:
        """End the overdue publications behind one that has more time, for which the link stays, unless it is silent."""
        overdue = [each for each in unanswered if each.deadline_s <= now_s and not each.is_done()]
        if overdue and now_s - link.heard_s > SILENT_S:
            link.fail(UnansweredError(f"{link.broker}: no answer in time"))
            return
        for publication in overdue:
            self._finish(publication, self.timed_out(publication))

    def timed_out(self, publication: Publication) -> ClientError:
        """Return the error for a publication whose deadline is over."""
        if publication.may_have_happened or publication.progress == SENT:
            return TimedOutError("no answer in time; the message may have been published", may_have_happened=True)
        return self._unconnected(publication, "the timeout of the publish")

    def _unconnected(self, publication: Publication, limit: str) -> ClientError:
        """Return the error for a publication that waits no longer. limit: names the setting that has ended the wait."""
        text = f"no connection to a broker within {limit}: {self.pool.reasons()}"
        error: ClientError
        if publication.may_have_happened:
            error = TimedOutError(f"{text}; the message may have been published", may_have_happened=True)
        else:
            error = NotConnectedError(text)
        error.__cause__ = self.pool.last_error()
        return error

    # The end.

    def close(self) -> None:
        """Close all links; pending publications end with ClosedError."""
        if self.is_closed:
            return
        self.is_closed = True
        self.pool.close()
        for unanswered in self._unanswered.values():
            for publication in unanswered:
                self._finish(publication, ClosedError("the producer was closed before the answer"))
        while self._waiting:
            self._finish(self._waiting.popleft(), ClosedError("the producer was closed before the message was sent"))
        self._unanswered.clear()
        self._ready.clear()

    def forget_links(self) -> None:
        """In the child of a fork: begin without connections. The parent's publications have failed here."""
        self.pool.forget_links()
        for publication in chain(self._waiting, *self._unanswered.values()):
            if publication.progress != DONE:
                publication.error = ClosedError("submitted before the process forked: the parent publishes it")
                publication.progress = DONE
        self._unanswered.clear()
        self._ready.clear()
        self._waiting.clear()
        self.pending_bytes = self.pending_count = 0
        self._is_ticking = False

    def stats(self) -> dict[str, Any]:
        """Return counters and the state of each broker."""
        return {
            "published": self.published_count,
            "failed": self.failed_count,
            "retried": self.retried_count,
            "pending": self.pending_count,
            "pending_bytes": self.pending_bytes,
            "brokers": self.pool.stats(),
        }
