"""Consumer for blocking code: iteration, batches, handlers in threads.

Source: docs/client.md, "Consumers".
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from pyqd.client.codecs import CodecOption, codec_of
from pyqd.client.connecting import BrokerPool, Connector, Lookup
from pyqd.client.consumption import Consumption, RetryPolicy, check_max_in_flight
from pyqd.client.core.flow import FlowSettings, SetRdy
from pyqd.client.engine.engine import Engine
from pyqd.client.errors import ClosedError, SettingError
from pyqd.client.faces import OneFaceIterable
from pyqd.client.message import Message
from pyqd.client.settings import check_names, make_settings, parse_targets
from pyqd.client.stop_signals import STOP_SIGNALS

DRAIN_S = 30.0
CLOSE_S = 1.0
CLOSED = "the consumer is closed: take messages inside of its `with` block, and before drain() and close()"
COROUTINE = "the handler is a coroutine function: its consumer is pyqd.client.aio.Consumer"
# Options of flow control besides backoff.
FLOW_NAMES = ("backoff_failures", "backoff_first_s", "backoff_jitter", "low_rdy_idle_s", "low_rdy_s", "redistribute_s")

Handler = TypeVar("Handler", bound=Callable[[Message], Any])
logger = logging.getLogger("pyqd.client")


def check_concurrency(concurrency: object) -> None:
    """Check the parameter of handler(). Raises: SettingError, with advice if it is the function itself."""
    if callable(concurrency):
        raise SettingError("the decorator has parentheses: @consumer.handler()")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise SettingError(f"concurrency={concurrency!r}: expected a number from 1")


def check_count(count: int) -> None:
    """Check the parameter of fetch(). Raises: SettingError."""
    if count < 1:
        raise SettingError(f"count={count}: expected a number from 1")


def check_handler(handler: Callable[..., Any]) -> None:
    """Check the handler of a blocking consumer. Raises: SettingError for a coroutine function."""
    if inspect.iscoroutinefunction(handler):
        raise SettingError(COROUTINE)


def call_handler(handler: Callable[[Message], Any], message: Message) -> None:
    """Call the handler of a blocking consumer. Raises: as the handler; SettingError if it returns a coroutine.

    The coroutine would never run, and its message would be finished without any effect.
    """
    result = handler(message)
    if result is not None and inspect.iscoroutine(result):
        result.close()
        raise SettingError(COROUTINE)


class ConsumerBase(OneFaceIterable):
    """Set-up that the blocking and the asyncio consumer share: engine, connections, lookup."""

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd: str | Iterable[str] | None = None,
        *,
        lookupd: str | Iterable[str] | None = None,
        max_in_flight: int = 1,
        codec: CodecOption = None,
        retry: RetryPolicy | None = None,
        auto_touch: bool = True,
        backoff: float = 120.0,
        **settings: Any,
    ) -> None:
        made = codec_of(codec)
        flow = {name: settings[name] for name in FLOW_NAMES if name in settings}
        settings = {name: value for name, value in settings.items() if name not in flow}
        check_names(settings)
        targets = parse_targets(nsqd, lookupd)
        self.settings = make_settings({**targets.settings, **settings})
        self.topic = topic
        self.channel = channel
        self._handler: Callable[[Message], Any] | None = None
        self._concurrency = 1
        # Threads or tasks of the handler.
        self._workers: list[Any] = []
        self._engine = engine = Engine(f"pyqd consumer of {topic}/{channel}", self)
        try:
            lookup = Lookup(engine, targets.lookupd, self.settings, topic) if targets.lookupd else None
            self._consumption = Consumption(
                Connector(engine, self.settings),
                targets.brokers,
                lookup,
                topic,
                channel,
                max_in_flight=max_in_flight,
                codec=made,
                retry=retry or RetryPolicy(),
                auto_touch=auto_touch,
                flow=FlowSettings(backoff_max_s=backoff, **flow),
                on_ready=engine.wake_waiters,
            )
        except BaseException:
            engine.close()
            engine.join()
            raise
        self._begin_driving()

    def _begin_driving(self) -> None:
        """Prepare to drive a new engine, or that of the child of a fork. Blocking threads need nothing."""

    def _after_fork(self) -> None:
        """Refuse to go on, in the child of a fork: the parent has the messages and consumes on."""
        self._consumption.forget_links()
        self._begin_driving()

    def _at_exit(self) -> None:
        """Close, because the interpreter ends."""
        with self._engine.lock:
            self._consumption.stop()
        self._disconnect()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.is_closed:
            warnings.warn("a consumer was not closed", ResourceWarning, stacklevel=1, source=self)
            engine.abandon(partial(close_links, self._consumption, engine))

    def _begin_connecting(self) -> BrokerPool:
        """Connect to all brokers; the caller holds the lock. Raises: ClosedError."""
        if self._has_ended():
            raise ClosedError("the consumer is closed")
        self._consumption.start()
        return self._consumption.pool

    def _has_news(self) -> bool:
        consumption = self._consumption
        return bool(consumption.ready) or consumption.is_stopping or consumption.error is not None

    def _has_ended(self) -> bool:
        """True if no message will come. Raises: ClosedError in the child of a fork."""
        if isinstance(self._consumption.error, ClosedError):
            raise self._consumption.error
        return self._engine.is_closed or self._consumption.is_stopping

    def _register(self, function: Callable[[Message], Any], concurrency: int) -> None:
        """Note the handler. Raises: SettingError if there is one."""
        if self._handler is not None:
            raise SettingError("the consumer has a handler already")
        self._handler = function
        self._concurrency = concurrency
        if self.max_in_flight < concurrency:
            self.max_in_flight = concurrency

    def _fetched(self, first: Message | None, count: int) -> list[Message]:
        """Return a message and up to count - 1 others that have arrived. Raises: ClosedError if none will come."""
        if first is None:
            if self._consumption.is_stopping:
                raise ClosedError(CLOSED)
            return []
        messages = [first]
        with contextlib.suppress(IndexError):
            while len(messages) < count:
                messages.append(self._consumption.ready.popleft())
        return messages

    def _disconnect(self) -> None:
        with self._engine.lock:
            if self._engine.is_closed:
                return
            close_links(self._consumption, self._engine)
        self._engine.run_outside()
        self._engine.join()

    @property
    def max_in_flight(self) -> int:
        """Maximum number of messages that are not answered, over all brokers."""
        return self._consumption.flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        check_max_in_flight(count)
        self._change_flow(partial(self._consumption.flow.set_max_in_flight, count))

    def pause(self) -> None:
        """Take no more messages until resume(). Those in flight may be answered."""
        self._change_flow(self._consumption.flow.pause)

    def resume(self) -> None:
        """End pause()."""
        self._change_flow(self._consumption.flow.resume)

    def _change_flow(self, change: Callable[[float], list[SetRdy]]) -> None:
        with self._engine.lock:
            self._consumption.apply(change(time.monotonic()))
            self._engine.flush()

    def is_starved(self) -> bool:
        """Return whether the messages in flight of a broker are at least 85 % of its share of max_in_flight.

        A user who collects messages answers them then, because few or no more will come before.
        """
        with self._engine.lock:
            return self._consumption.flow.is_starved

    def finish_many(self, messages: Iterable[Message]) -> None:
        """Finish messages. Raises: AnsweredError if some were answered before, after the others are finished."""
        self._consumption.finish_many(messages)

    def stop(self) -> None:
        """Take no more messages, and let iteration and handlers end. Does not wait; signal handlers may call it."""
        # post() takes no lock: the interrupted thread may hold it.
        self._engine.post(self._consumption.stop)

    def stats(self) -> dict[str, Any]:
        """Return counters of messages, and the state of each broker."""
        with self._engine.lock:
            return self._consumption.stats()


class Consumer(ConsumerBase):
    """Receives the messages of a channel from all brokers that have the topic; many threads may share one.

    nsqd: addresses such as `host:4150`, paths of unix sockets, or URLs. lookupd: lookup daemons to ask for brokers.
    max_in_flight: messages that may be unanswered at a time, over all brokers; more make fast handlers faster. codec:
    decodes `message.value`. retry: treatment of messages whose handler fails. auto_touch: keep messages from timing out
    while they are handled. backoff: longest pause in seconds after failures; 0 for none. settings: see
    pyqd.client.settings.Settings, and for flow control pyqd.client.core.flow.FlowSettings.

    Raises: SettingError.
    """

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now instead of when messages are wanted, and wait until each broker that was given has been reached.

        Raises: the error of a broker that was not reached within connect_timeout: NotConnectedError, TlsError,
        AuthenticationError, RefusedError, ProtocolError. The consumer goes on trying. ClosedError.
        """
        with self._engine.lock:
            pool = self._begin_connecting()
            self._engine.wait(pool.has_tried_all)
            error = pool.unreached_error()
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until stop(), drain() or close().

        Raises: ClosedError if it begins after that; AuthenticationError, TlsError, ProtocolError.
        """
        if self._engine.is_closed:
            raise ClosedError(CLOSED)
        while True:
            message = self._take(None)
            if message is None:
                return
            yield message
            if not message.is_answered:
                self._consumption.leaves_unanswered = True

    def _take(self, deadline_s: float | None) -> Message | None:
        """Return the next message; None at the end, or after the deadline."""
        engine, consumption = self._engine, self._consumption
        while True:
            # Without contextlib.suppress(), which costs more than the rest of this.
            try:
                return consumption.ready.popleft()
            except IndexError:
                pass
            with engine.lock:
                if self._has_ended():
                    return None
                consumption.start()
                is_in_time = engine.wait(self._has_news, deadline_s)
                if not is_in_time and not consumption.ready:
                    return None
                if consumption.error is not None and not consumption.ready and not consumption.is_stopping:
                    raise consumption.error
            # A message that is there may be gone by now: other threads take messages without the lock.

    def fetch(self, count: int = 1, timeout: float | None = None) -> list[Message]:
        """Return up to count messages: as soon as there is one, those that are there; none after timeout seconds.

        Raises: ClosedError, AuthenticationError, TlsError, ProtocolError.
        """
        check_count(count)
        return self._fetched(self._take(None if timeout is None else time.monotonic() + timeout), count)

    def handler(self, concurrency: int = 1) -> Callable[[Handler], Handler]:
        """Return a decorator: the function handles each message, in that many threads, after run() or start().

        The message is finished when the function returns, and requeued by the retry policy if it raises. max_in_flight
        is raised to the number of threads.
        """
        check_concurrency(concurrency)

        def register(function: Handler) -> Handler:
            check_handler(function)
            self._register(function, concurrency)
            return function

        return register

    def start(self) -> None:
        """Start the handler's threads. Raises: ClosedError, SettingError."""
        if self._handler is None:
            raise SettingError("no handler: decorate a function with @consumer.handler()")
        if self._engine.is_closed:
            raise ClosedError(CLOSED)
        if self._workers:
            return
        for number in range(self._concurrency):
            name = f"{self._engine.name}: handler {number}"
            worker = threading.Thread(target=self._work, args=(self._handler,), name=name, daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work(self, handler: Callable[[Message], Any]) -> None:
        """Thread of a handler."""
        while True:
            try:
                message = self._take(None)
            except ClosedError as error:
                # The handler has forked, and this is the child. A thread that is started here would keep it alive.
                logger.error("handler of %s/%s: %s", self.topic, self.channel, error)
                return
            except Exception as error:
                # run() raises it.
                logger.error("consumer of %s/%s ends: %s", self.topic, self.channel, error)
                self.stop()
                return
            if message is None:
                return
            try:
                with message:
                    call_handler(handler, message)
            except Exception:
                logger.exception("handler of %s/%s failed for message %s", self.topic, self.channel, message.id)
            except BaseException as error:
                # A handler that ends its thread, as by sys.exit(), must not end the consumer.
                logger.error("handler of %s/%s raised %r for message %s", self.topic, self.channel, error, message.id)

    def run(self, drain_timeout: float = DRAIN_S) -> int:
        """Handle messages until stop(), SIGTERM or SIGINT; then drain and return an exit code for sys.exit().

        0: every message that was taken is answered. 1: some were not, within drain_timeout seconds; the broker delivers
        them again. Raises: AuthenticationError, TlsError, ProtocolError, SettingError, ClosedError.
        """
        with STOP_SIGNALS.stopping(self.stop):
            self.start()
            with self._engine.lock:
                consumption = self._consumption
                self._engine.wait(lambda: consumption.is_stopping or consumption.error is not None)
            is_drained = self.drain(drain_timeout)
        if consumption.error is not None:
            raise consumption.error
        return 0 if is_drained else 1

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more messages, wait until those in flight are answered, and disconnect.

        timeout: seconds; 30 by default. Returns whether all were answered; the broker delivers the others again.
        """
        deadline_s = time.monotonic() + (DRAIN_S if timeout is None else timeout)
        engine = self._engine
        with engine.lock:
            if not engine.is_closed:
                self._consumption.stop()
                engine.wait(lambda: self._consumption.is_drained, deadline_s)
            is_drained = self._consumption.is_drained
        self._disconnect()
        self._join_workers(time.monotonic() + CLOSE_S if is_drained else deadline_s)
        return is_drained

    def close(self) -> None:
        """Disconnect. Messages that are not answered are delivered again, to any consumer of the channel.

        A handler that does not end within a second goes on in its thread.
        """
        with self._engine.lock:
            if not self._engine.is_closed:
                self._consumption.stop()
        self._disconnect()
        self._join_workers(time.monotonic() + CLOSE_S)

    def _join_workers(self, deadline_s: float) -> None:
        """Wait until the handler's threads have ended. One of them may call this."""
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, deadline_s - time.monotonic()))


def close_links(consumption: Consumption, engine: Engine) -> None:
    """Close everything after sending the queued commands."""
    engine.flush()
    consumption.close()
    engine.close()
