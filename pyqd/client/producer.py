"""Producer for blocking code: threads, gevent, scripts.

Source: docs/client.md, "Producers".
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from pyqd.client.codecs import CodecOption, codec_of
from pyqd.client.connecting import BrokerPool, Connector, Lookup
from pyqd.client.core import commands
from pyqd.client.engine.engine import Engine
from pyqd.client.errors import BufferFullError, ClosedError
from pyqd.client.faces import OneFace
from pyqd.client.outgoing import (
    Delay,
    Time,
    encode,
    many_command,
    one_command,
    parse_due,
    published_id,
    published_ids,
    split_outgoing,
)
from pyqd.client.publish_future import PublishFuture
from pyqd.client.publishing import DONE, Publication, Publishing
from pyqd.client.settings import check_names, check_range, check_timeout, make_settings, parse_targets

if TYPE_CHECKING:
    from pyqd.client.http import ChannelResult
    from pyqd.client.http_group import HttpGroup

# Bytes that a pending publication takes beside its body.
OVERHEAD_BYTES = 200
TIMEOUT_S = 30.0
CLOSE_S = 5.0
EXIT_S = 2.0


class ProducerBase(OneFace):
    """Set-up that the blocking and the asyncio producer share: engine, connections, lookup."""

    def __init__(
        self,
        *nsqd: str | Iterable[str],
        lookupd: str | Iterable[str] | None = None,
        timeout: float | None = None,
        codec: CodecOption = None,
        max_pending_bytes: int = 64 << 20,
        retry_unanswered: bool = True,
        **settings: Any,
    ) -> None:
        self.codec = codec_of(codec)
        check_range("max_pending_bytes", max_pending_bytes, 1, 1e15)
        check_names(settings)
        self._targets = targets = parse_targets(nsqd, lookupd)
        if timeout is None:
            timeout = TIMEOUT_S if targets.timeout is None else targets.timeout
        check_timeout(timeout)
        self.settings = make_settings({**targets.settings, **settings})
        self.timeout = timeout
        self.max_pending_bytes = max_pending_bytes
        self._engine = engine = Engine("pyqd producer", self)
        try:
            self._connector = Connector(engine, self.settings)
            lookup = Lookup(engine, targets.lookupd, self.settings, None) if targets.lookupd else None
            self._publishing = Publishing(
                self._connector,
                targets.brokers,
                lookup,
                retry_unanswered=retry_unanswered,
                not_connected_s=self.settings.not_connected_timeout,
            )
        except BaseException:
            engine.close()
            engine.join()
            raise
        self._begin_driving()

    def _begin_driving(self) -> None:
        """Prepare to drive a new engine, or that of the child of a fork. Blocking threads need nothing."""

    def _after_fork(self) -> None:
        """Begin without connections, in the child of a fork: the parent publishes the messages submitted before."""
        self._publishing.forget_links()
        self._begin_driving()

    def _at_exit(self) -> None:
        """Close, because the interpreter ends: submitted messages get little time more."""
        engine = self._engine
        with engine.lock:
            engine.wait(lambda: self._publishing.pending_count == 0, time.monotonic() + EXIT_S)
        self._disconnect()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.is_closed:
            warnings.warn("a producer was not closed", ResourceWarning, stacklevel=1, source=self)
            engine.abandon(partial(close_links, self._publishing, engine))

    def _begin_connecting(self) -> BrokerPool:
        """Connect to all brokers; the caller holds the lock. Raises: ClosedError."""
        if self._publishing.is_closed:
            raise ClosedError("the producer is closed")
        self._publishing.pool.start()
        return self._publishing.pool

    def _one(self, topic: str, body: Any, delay: Delay | None, at: Time | None, timeout: float | None) -> Publication:
        data = body if type(body) is bytes and body and self.codec is None else encode(body, self.codec)
        due = None if delay is None and at is None else parse_due(delay, at)
        command = commands.pub(topic, data) if due is None else one_command(topic, data, due)
        deadline_s = time.monotonic() + (self.timeout if timeout is None else timeout)
        return Publication(command, len(data) + OVERHEAD_BYTES, deadline_s)

    def _many(
        self, topic: str, messages: Iterable[Any], delay: Delay | None, at: Time | None, timeout: float | None
    ) -> tuple[Publication | None, int]:
        bodies, dues = split_outgoing(messages, self.codec, parse_due(delay, at))
        if not bodies:
            return None, 0
        size = sum(map(len, bodies)) + OVERHEAD_BYTES
        deadline_s = time.monotonic() + (self.timeout if timeout is None else timeout)
        return Publication(many_command(topic, bodies, dues), size, deadline_s), len(bodies)

    def _is_full(self) -> bool:
        return self._publishing.pending_bytes >= self.max_pending_bytes

    def _full_error(self) -> BufferFullError:
        return BufferFullError(
            f"{self._publishing.pending_bytes} bytes wait to be published; max_pending_bytes={self.max_pending_bytes}"
        )

    def _disconnect(self) -> None:
        with self._engine.lock:
            close_links(self._publishing, self._engine)
        self._engine.run_outside()
        self._engine.join()

    def _http(self) -> HttpGroup:
        """Return the HTTP API of the brokers, by a connection per call: such calls are rare."""
        from pyqd.client.http_group import HttpGroup

        return HttpGroup(self._targets, self.settings, self.timeout)

    def stats(self) -> dict[str, Any]:
        """Return counters of publications, and the state of each broker."""
        with self._engine.lock:
            return self._publishing.stats()


class Producer(ProducerBase):
    """Publishes messages to any of several brokers; many threads may share one.

    nsqd: addresses such as `host:4150`, paths of unix sockets, or URLs. lookupd: lookup daemons to ask for brokers.
    timeout: seconds until a publish without an answer fails; that of the URL, or 30, if None. codec: encodes bodies:
    "json", "msgpack", a pydantic model, or an object with encode() and decode(). max_pending_bytes: bytes of messages
    that may wait for a connection or an answer. retry_unanswered: publish a message again if the connection broke
    before the answer; the message may then exist twice. settings: see pyqd.client.settings.Settings.

    Raises: SettingError.
    """

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now instead of at the first publish, and wait until each broker that was given has been reached.

        Raises: the error of a broker that was not reached within connect_timeout: NotConnectedError, TlsError,
        AuthenticationError, RefusedError, ProtocolError. The producer goes on trying. ClosedError.
        """
        with self._engine.lock:
            pool = self._begin_connecting()
            self._engine.wait(pool.has_tried_all)
            error = pool.unreached_error()
        if error is not None:
            raise error

    def publish(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None, timeout: float | None = None
    ) -> str | None:
        """Publish a message; return its id when the broker has it, or None if the broker returns no ids.

        delay: seconds until the message is delivered, or a timedelta. at: time of its delivery, as an aware datetime or
        in Unix seconds. Raises: RefusedError (TooBigError, QuotaError, AuthenticationError), NotConnectedError,
        UnansweredError, TimedOutError, BufferFullError, ClosedError, SettingError.
        """
        return published_id(self._run(self._one(topic, body, delay, at, timeout)))

    def publish_many(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        delay: Delay | None = None,
        at: Time | None = None,
        timeout: float | None = None,
    ) -> list[str] | None:
        """Publish all messages or none; return their ids, or None if the broker returns no ids.

        messages: bodies, or Outgoing with a due time of its own. A broker that is not pyqd gets messages with due times
        one by one: some of them may then be published if others fail. Raises: as publish().
        """
        publication, count = self._many(topic, messages, delay, at, timeout)
        return [] if publication is None else published_ids(self._run(publication), count)

    def _run(self, publication: Publication) -> bytes:
        """Submit a publication, and wait for the broker's answer."""
        engine, publishing = self._engine, self._publishing
        with engine.lock:
            if publishing.pending_bytes >= self.max_pending_bytes:
                self._wait_for_space(publication.deadline_s)
            link = publishing.submit(publication, at_once=True)
            try:
                if link is not None:
                    engine.receive_from(link)
                if publication.progress != DONE and not engine.wait(
                    publication.is_done, publication.deadline_s, publication
                ):
                    publishing.abandon(publication, publishing.timed_out(publication))
            except BaseException:
                publishing.abandon(publication, ClosedError("interrupted"))
                raise
        if publication.error is not None:
            raise publication.error
        return publication.answer

    def _wait_for_space(self, deadline_s: float) -> None:
        if self._is_full() and not self._engine.wait(lambda: not self._is_full(), deadline_s):
            raise self._full_error()

    def submit(
        self, topic: str, body: Any, *, delay: Delay | None = None, at: Time | None = None
    ) -> Future[str | None]:
        """Publish without waiting; return a future of the id. Waits only while max_pending_bytes are pending.

        Raises: BufferFullError if they still are after the timeout, SettingError, ClosedError.
        """
        publication = self._one(topic, body, delay, at, None)
        engine, publishing = self._engine, self._publishing
        with engine.lock:
            if publishing.pending_bytes >= self.max_pending_bytes:
                self._wait_for_space(publication.deadline_s)
            publishing.submit(publication, at_once=False)
        return PublishFuture(engine, publication)

    def cancel(self, topic: str, message_id: str) -> list[ChannelResult]:
        """Finish a message unread in each channel; return the results by channel. Over HTTP, of pyqd only.

        Raises: NotFoundError if no broker has the message; NotConnectedError, RefusedError, TlsError, SettingError.
        """
        return self._http().cancel(topic, message_id)

    def reschedule(
        self, topic: str, message_id: str, *, delay: Delay | None = None, at: Time | None = None
    ) -> list[ChannelResult]:
        """Change the due time of a message; return the results by channel. Raises: as cancel()."""
        return self._http().reschedule(topic, message_id, delay, at)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every submitted message has its answer; return False if the timeout (seconds) came first."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self._engine.lock:
            return self._engine.wait(lambda: self._publishing.pending_count == 0, deadline_s)

    def close(self, timeout: float | None = None) -> None:
        """Wait for the answers to submitted messages, at most timeout seconds (5 by default), and disconnect."""
        if self._engine.is_closed:
            return
        self.flush(CLOSE_S if timeout is None else timeout)
        self._disconnect()


def close_links(publishing: Publishing, engine: Engine) -> None:
    """Close everything; pending publications fail."""
    if publishing.pending_count:
        text = "closed with %d messages that no broker has acknowledged"
        engine.log(logging.WARNING, text, publishing.pending_count)
    publishing.close()
    engine.close()
