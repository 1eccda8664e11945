"""Consuming a channel from a pool of brokers: RDY, in flight, touches, retries, drain; the same for both faces.

Messages arrive in `ready`, from which the faces take them. A message is in flight from its arrival until its answer.
If its connection is lost, it can no longer be answered, and the broker delivers it again. A message that timed out may
come again on the same connection: its first copy is lost then. Lost messages that no user has seen yet are dropped from
`ready`.

Methods without a remark are called with the engine's lock held.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyqd.client.codecs import Codec
from pyqd.client.connecting import BrokerPool, Connector, Lookup
from pyqd.client.core import commands
from pyqd.client.core.connection import CloseWait, CommandAnswer, Event, Messages, Ready, Refusal
from pyqd.client.core.flow import ConsumerFlow, FlowSettings, SetRdy
from pyqd.client.engine.link import Link
from pyqd.client.engine.timers import Timer
from pyqd.client.errors import AnsweredError, ClientError, ClosedError, ProtocolError, SettingError, refusal
from pyqd.client.message import Message, Requeue, requeue_delay_s
from pyqd.client.outgoing import Delay, encode
from pyqd.client.publishing import Publication, Publishing
from pyqd.client.settings import check_range
from pyqd.primitives.addresses import Address

# Errors that leave the connection open: the message was answered too late.
LATE_CODES: Final = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")
MSG_TIMEOUT_MS: Final = 60_000
DEAD_LETTER_S: Final = 30.0
# A broker that has not answered CLS by then is not waited for.
CLOSE_WAIT_S: Final = 5.0
# Time after CLOSE_WAIT in which nsqd may still send a message: its goroutine that sends messages may have taken one
# just before. pyqd sends none.
CROSSING_S: Final = 0.1
TOUCHES_PER_TIMEOUT: Final = 4
TOUCH_S_MIN: Final = 0.05
# Brokers cut a delay to their --max-req-timeout. More milliseconds would overflow the nanoseconds of nsqd.
REQUEUE_MS_MAX: Final = 1 << 40
MAX_IN_FLIGHT: Final = 1 << 31
# A program that waits for a message while all that it may have are unanswered has perhaps forgotten to answer.
UNANSWERED_S: Final = 10.0
# A consumer that has worked goes on trying for this time if all brokers refuse it: a login service may be down.
REFUSED_S: Final = 60.0


@dataclass(frozen=True)
class RetryPolicy:
    """Treatment of messages whose handler fails. Times are in seconds.

    A failed message is delivered again after delay x attempts, at most max_delay. With max_attempts, a message that has
    failed so often goes to dead_letter_topic; no message is ever dropped.
    """

    max_attempts: int = 0
    delay: float = 90.0
    max_delay: float = 900.0
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "delay", "max_delay"):
            check_range(name, getattr(self, name), 0, 1e9)
        if bool(self.max_attempts) is not (self.dead_letter_topic is not None):
            raise SettingError("max_attempts and dead_letter_topic are given together")
        if self.dead_letter_topic is not None:
            commands.check_topic(self.dead_letter_topic)

    def delay_after(self, attempts: int) -> float:
        """Return the delay after a failure, in seconds. attempts: deliveries so far."""
        return min(self.delay * attempts, self.max_delay)


def check_max_in_flight(count: object) -> None:
    """Check the parameter. Raises: SettingError."""
    if type(count) is not int or not 1 <= count <= MAX_IN_FLIGHT:
        raise SettingError(f"max_in_flight={count!r}: expected a number from 1; pause() stops the intake")


class Subscription:
    """A link that is subscribed, and its messages in flight, oldest first.

    is_confirmed: the broker answered SUB. is_closing: it has sent CLOSE_WAIT, or is overdue with it. has_ended: no
    message can come any more. held_requeues: REQs that wait for is_closing.
    """

    def __init__(self, msg_timeout_s: float) -> None:
        self.messages: dict[bytes, Message] = {}
        self.msg_timeout_s = msg_timeout_s
        self.is_confirmed = False
        self.is_closing = False
        self.has_ended = False
        self.held_requeues: list[bytes] = []


class Consumption:
    """One consumer of one channel, over all brokers that have the topic.

    on_ready: called after messages were added to `ready`, and when the consumption ends.
    """

    def __init__(
        self,
        connector: Connector,
        addresses: Iterable[Address],
        lookup: Lookup | None,
        topic: str,
        channel: str,
        *,
        max_in_flight: int,
        codec: Codec | None,
        retry: RetryPolicy,
        auto_touch: bool,
        flow: FlowSettings,
        on_ready: Callable[[], None],
    ) -> None:
        commands.check_topic(topic)
        commands.check_channel(channel)
        check_max_in_flight(max_in_flight)
        self.topic = topic
        self.channel = channel
        self.codec = codec
        self.retry = retry
        self.ready: deque[Message] = deque()
        self.is_stopping = False
        self.error: ClientError | None = None
        self.finished_count = self.requeued_count = self.dead_letter_count = self.late_count = 0
        self.received_count = 0
        self.flow = ConsumerFlow(max_in_flight, flow, random.Random())
        self.pool = BrokerPool(connector, self, addresses, lookup)
        self._addresses = tuple(addresses)
        self._connector = connector
        self._engine = connector.engine
        self._auto_touch = auto_touch
        self.on_ready = on_ready
        self._subscriptions: dict[Link, Subscription] = {}
        self._flow_timer: Timer | None = None
        self._flow_timer_s = 0.0
        self._dead_letters: Publishing | None = None
        self._has_worked = False
        self._refused_since_s: float | None = None
        self._answer_timer: Timer | None = None
        # Whether a loop has asked for the next message and left one unanswered.
        self.leaves_unanswered = False

    # Events of links.

    def link_events(self, link: Link, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Ready):
                self._connected(link)
            elif link not in self._subscriptions:
                # Closed by an event before.
                return
            elif isinstance(event, Messages):
                self._received(link, event.frames)
            elif isinstance(event, Refusal):
                if self._refused(link, event.data):
                    return
            elif isinstance(event, CommandAnswer):
                self._confirmed(link)
            elif isinstance(event, CloseWait):
                self._agreed_to_close(link)

    def _connected(self, link: Link) -> None:
        if self.is_stopping:
            link.close()
            return
        link.send(commands.sub(self.topic, self.channel))
        info = link.core.info
        subscription = Subscription(int(info.get("msg_timeout") or MSG_TIMEOUT_MS) / 1000)
        self._subscriptions[link] = subscription
        if self._auto_touch:
            self._touch_later(link, subscription)
        self.apply(self.flow.connected(link, int(info.get("max_rdy_count") or 2500), time.monotonic()))

    def _confirmed(self, link: Link) -> None:
        """Note that the broker has answered SUB. Before that a refusal counts as one more failure to connect."""
        subscription = self._subscriptions.get(link)
        if subscription is not None and not subscription.is_confirmed:
            subscription.is_confirmed = True
            self.pool.connected(link)
            self.error = self._refused_since_s = None
            self._has_worked = True

    def _received(self, link: Link, frames: list[tuple[Any, ...]]) -> None:
        now_s = time.monotonic()
        subscription = self._subscriptions[link]
        in_flight = subscription.messages
        messages = [Message(self, link, link.broker, frame, now_s) for frame in frames]
        replaced_count = 0
        for message in messages:
            former = in_flight.setdefault(message.key, message)
            if former is not message:
                # The broker has taken the first copy back: an answer to it would answer this delivery.
                former.is_lost = True
                replaced_count += 1
                del in_flight[message.key]
                in_flight[message.key] = message
        self.received_count += len(messages)
        self.flow.received(link, len(messages), now_s)
        if replaced_count:
            self._drop_ready()
            self.apply(self.flow.released(link, replaced_count, now_s))
            # A copy may have come twice in one batch, or the connection may be lost now.
            messages = [message for message in messages if not message.is_lost]
        if self.is_stopping:
            for message in messages:
                self._give_back(message)
            return
        if self.retry.max_attempts:
            messages = [message for message in messages if not self._is_spent(message)]
        if messages:
            self.ready.extend(messages)
            self.on_ready()

    def _is_spent(self, message: Message) -> bool:
        """Move a message to the dead-letter topic if its attempts are over before its handler could count them."""
        if message.attempts <= self.retry.max_attempts:
            return False
        self._publish_dead_letter(message)
        return True

    def _refused(self, link: Link, data: bytes) -> bool:
        """Handle an error frame; return whether the link is closed now."""
        if data.split(b" ", 1)[0].decode(errors="replace") in LATE_CODES:
            self.late_count += 1
            self._stop_touching(link, data)
            said = data.decode(errors="replace")
            self._engine.log(logging.INFO, "%s: %s; the message may be delivered again", link.broker, said)
            return False
        link.fail(refusal(data, link.broker, f"{self.topic}/{self.channel}"))
        return True

    def _stop_touching(self, link: Link, data: bytes) -> None:
        """Touch a message no more that has timed out. data: such as E_TOUCH_FAILED TOUCH 0123456789abcdef failed ..."""
        if data.startswith(b"E_TOUCH_FAILED"):
            subscription = self._subscriptions[link]
            for word in data.split():
                message = subscription.messages.get(word)
                if message is not None:
                    message.touched_s = math.inf

    def link_lost(self, link: Link, error: Exception) -> None:
        subscription = self._subscriptions.pop(link, None)
        if subscription is not None:
            self._lose(subscription)
            self._drop_ready()
        self.pool.lost(link, error)
        self.apply(self.flow.disconnected(link, time.monotonic()))
        if self._is_hopeless(link, error):
            self.error = self.pool.lasting_error()
        if self.is_stopping or self.error is not None:
            self.on_ready()

    def _is_hopeless(self, link: Link, error: Exception) -> bool:
        """True if the consumer ends with an error: all brokers refuse it for a reason that lasts."""
        # Wrong bytes after a good beginning are an accident; at the beginning they are those of a wrong port.
        if self.pool.lasting_error() is None or (link.was_ready and isinstance(error, ProtocolError)):
            self._refused_since_s = None
            return False
        now_s = time.monotonic()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        return not self._has_worked or now_s - self._refused_since_s >= REFUSED_S

    def _drop_ready(self) -> None:
        """Drop the lost messages that no user has seen. Threads take from `ready` meanwhile."""
        for _ in range(len(self.ready)):
            try:
                message = self.ready.popleft()
            except IndexError:
                return
            if not message.is_lost:
                self.ready.append(message)

    def _lose(self, subscription: Subscription) -> None:
        for message in subscription.messages.values():
            message.is_lost = True
        subscription.messages.clear()

    # Answers to messages; called by users' threads, without the lock.

    def finish(self, message: Message) -> None:
        """Finish a message. Raises: AnsweredError. Takes the lock."""
        with self._engine.lock:
            self._finish(message)

    def finish_many(self, messages: Iterable[Message]) -> None:
        """Finish messages. Raises: AnsweredError, after the others are finished. Takes the lock."""
        answered = 0
        with self._engine.lock:
            for message in messages:
                if message.is_answered:
                    answered += 1
                else:
                    self._finish(message)
        if answered:
            raise AnsweredError(f"{answered} of the messages were answered before")

    def _finish(self, message: Message, *, is_success: bool = True) -> None:
        if not self._answer(message):
            return
        link: Link = message.link
        # RDY first: the broker may send the next message as soon as it has read FIN.
        now_s = time.monotonic()
        changes = self.flow.finished(link, now_s) if is_success else self.flow.released(link, 1, now_s)
        if changes:
            self.apply(changes)
        link.send(commands.fin(message.key))
        self.finished_count += 1
        self._after_answer(link)

    def requeue(self, message: Message, delay: Delay | None, backoff: bool) -> None:
        """Requeue a message. Raises: AnsweredError, SettingError. Takes the lock."""
        delay_s = self.retry.delay_after(message.attempts) if delay is None else requeue_delay_s(delay)
        with self._engine.lock:
            self._requeue(message, delay_s, backoff)

    def _requeue(self, message: Message, delay_s: float, backoff: bool) -> None:
        if not self._answer(message):
            return
        link: Link = message.link
        self.apply(self.flow.requeued(link, time.monotonic(), backoff))
        command = commands.req(message.key, min(REQUEUE_MS_MAX, round(delay_s * 1000)))
        # The RDY command may have found the connection broken.
        subscription = self._subscriptions.get(link)
        if self.is_stopping and subscription is not None and not subscription.is_closing:
            # Before CLOSE_WAIT the broker could deliver the message to this connection again, where it would time out.
            subscription.held_requeues.append(command)
        else:
            link.send(command)
        self.requeued_count += 1
        self._after_answer(link)

    def _give_back(self, message: Message) -> None:
        """Requeue a message that no user has seen, without delay."""
        if not message.is_answered:
            self._requeue(message, 0.0, False)

    def _answer(self, message: Message) -> bool:
        """Note an answer; return False if the message is lost. Raises: AnsweredError."""
        if message.is_answered:
            raise AnsweredError(f"message {message.id} was answered before")
        message.is_answered = True
        subscription = self._subscriptions.get(message.link)
        if message.is_lost or subscription is None:
            self.late_count += 1
            text = "%r: its connection to %s is lost; it will be delivered again"
            if subscription is not None:
                text = "%r: the answer comes too late; %s has delivered the message again"
            self._engine.log(logging.INFO, text, message, message.broker)
            return False
        del subscription.messages[message.key]
        return True

    def _after_answer(self, link: Link) -> None:
        if self.is_stopping:
            self._close_if_done(link)
            self.on_ready()
        self._arm_flow()

    def touch(self, message: Message) -> None:
        """Touch a message. Raises: AnsweredError. Takes the lock."""
        with self._engine.lock:
            if message.is_answered:
                raise AnsweredError(f"message {message.id} was answered before")
            if not message.is_lost:
                message.touched_s = time.monotonic()
                message.link.send(commands.touch(message.key))

    def handle_failure(self, message: Message, error: BaseException) -> None:
        """Requeue or bury a message whose handler raised. Takes the lock."""
        if isinstance(error, Requeue):
            self.requeue(message, error.delay, error.backoff)
            return
        with self._engine.lock:
            if message.is_answered:
                return
            if not isinstance(error, Exception):
                # The program ends, or a task is cancelled: the message is not to blame.
                self._requeue(message, 0.0, False)
            elif self.retry.max_attempts and message.attempts >= self.retry.max_attempts:
                if not message.is_lost:
                    self.apply(self.flow.failed(message.link, time.monotonic()))
                self._publish_dead_letter(message)
            else:
                self._requeue(message, self.retry.delay_after(message.attempts), True)

    # Dead letters.

    def _publish_dead_letter(self, message: Message) -> None:
        """Publish a message to the dead-letter topic. It stays in flight until the broker has the copy."""
        if message.is_lost:
            # The message will be delivered again, and fail again.
            self._requeue(message, 0.0, False)
            return
        topic = self.retry.dead_letter_topic
        assert topic is not None
        if self._dead_letters is None:
            lookup = None if self.pool.lookup is None else self.pool.lookup.copy(None)
            self._dead_letters = Publishing(self._connector, self._addresses, lookup)
        body = encode(message.body, None)
        publication = Publication(commands.pub(topic, body), len(body), time.monotonic() + DEAD_LETTER_S)
        publication.on_done = lambda publication: self._dead_letter_published(message, publication)
        self._engine.log(
            logging.WARNING,
            "message %s of %s/%s failed %d times: moving it to topic %s",
            message.id, self.topic, self.channel, message.attempts, topic,
        )  # fmt: skip
        self._dead_letters.submit(publication, at_once=False)

    def _dead_letter_published(self, message: Message, publication: Publication) -> None:
        if message.is_answered or message.is_lost:
            return
        if publication.error is None:
            self.dead_letter_count += 1
            self._finish(message, is_success=False)
        else:
            text = "cannot publish message %s to the dead-letter topic: %s; requeued"
            self._engine.log(logging.ERROR, text, message.id, publication.error)
            self._requeue(message, self.retry.max_delay, False)

    # Time.

    def apply(self, changes: list[SetRdy]) -> None:
        """Send the RDY commands that the flow control asks for."""
        for link, count in changes:
            if isinstance(link, Link) and link.is_open:
                link.send(commands.rdy(count))
        self._arm_flow()

    def _arm_flow(self) -> None:
        deadline_s = self.flow.next_deadline
        if deadline_s is None or (self._flow_timer is not None and self._flow_timer_s <= deadline_s):
            return
        if self._flow_timer is not None:
            self._flow_timer.cancel()
        self._flow_timer_s = deadline_s
        self._flow_timer = self._engine.call_later(max(0.0, deadline_s - time.monotonic()), self._tick_flow)

    def _tick_flow(self) -> None:
        self._flow_timer = None
        self.apply(self.flow.tick(time.monotonic()))

    def _touch_later(self, link: Link, subscription: Subscription) -> None:
        """Touch the messages in flight of a link before they time out, as long as it is open."""
        interval_s = max(TOUCH_S_MIN, subscription.msg_timeout_s / TOUCHES_PER_TIMEOUT)

        def touch() -> None:
            if self._subscriptions.get(link) is not subscription:
                return
            now_s = time.monotonic()
            # A copy: a command that finds the connection broken empties the table.
            for message in list(subscription.messages.values()):
                if now_s - message.touched_s >= interval_s:
                    message.touched_s = now_s
                    link.send(commands.touch(message.key))
            self._touch_later(link, subscription)

        self._engine.call_later(interval_s, touch)

    # Control.

    def start(self) -> None:
        """Connect. Called whenever the program waits for a message."""
        if not self.pool.has_started and not self.is_stopping:
            self.pool.start()
        if self.leaves_unanswered and self._answer_timer is None and self.flow.in_flight >= self.flow.max_in_flight:
            self._answer_timer = self._engine.call_later(
                UNANSWERED_S, partial(self._warn_of_unanswered, self._progress())
            )

    def _progress(self) -> tuple[int, ...]:
        dead_letters = 0 if self._dead_letters is None else self._dead_letters.pending_count
        return self.received_count, self.finished_count, self.requeued_count, self.late_count, dead_letters

    def _warn_of_unanswered(self, progress: tuple[int, ...]) -> None:
        """Warn, once, if nothing has happened since the program began to wait."""
        if self.is_stopping or progress != self._progress() or progress[-1]:
            self._answer_timer = None
            return
        self._engine.log(
            logging.WARNING,
            "%s/%s: no message comes before one of the %d unanswered ones is finished or requeued, because "
            "max_in_flight is %d; `with message:` finishes each",
            self.topic, self.channel, self.flow.in_flight, self.flow.max_in_flight,
        )  # fmt: skip

    def stop(self) -> None:
        """Take no more messages, and give back those that no user has seen. May be repeated."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.apply(self.flow.stop(time.monotonic()))
        # A copy: CLS may find the connection broken, which ends the subscription.
        for link in list(self._subscriptions):
            link.send(commands.CLS, soon=True)
            self._engine.call_later(CLOSE_WAIT_S, partial(self._end_intake, link))
        # Threads take from `ready` without the lock.
        with contextlib.suppress(IndexError):
            while True:
                self._give_back(self.ready.popleft())
        self.on_ready()

    def _agreed_to_close(self, link: Link) -> None:
        """Note CLOSE_WAIT: the broker delivers no message to this link that is requeued from now on."""
        subscription = self._subscriptions[link]
        if subscription.is_closing:
            return
        subscription.is_closing = True
        self._send_held(link, subscription)
        if link.core.gives_ids:
            self._end_intake(link)
        else:
            self._engine.call_later(CROSSING_S, partial(self._end_intake, link))

    def _end_intake(self, link: Link) -> None:
        """Note that the broker sends no more messages on a link, or does not answer CLS."""
        subscription = self._subscriptions.get(link)
        if subscription is not None and not subscription.has_ended:
            subscription.is_closing = subscription.has_ended = True
            self._send_held(link, subscription)
            self._close_if_done(link)
            self.on_ready()

    def _send_held(self, link: Link, subscription: Subscription) -> None:
        for command in subscription.held_requeues:
            link.send(command)
        subscription.held_requeues.clear()

    def _close_if_done(self, link: Link) -> None:
        """Close a link that brings no more messages, once all are answered.

        A message that crossed CLS on the way would otherwise time out at the broker: it is given back.
        """
        subscription = self._subscriptions.get(link)
        if subscription is not None and subscription.has_ended and not subscription.messages:
            # Before the flush, which may find the connection broken.
            del self._subscriptions[link]
            link.flush()
            link.close()
            self.flow.disconnected(link, time.monotonic())

    @property
    def in_flight(self) -> int:
        """Number of messages that are not answered."""
        return sum(len(subscription.messages) for subscription in self._subscriptions.values())

    @property
    def is_drained(self) -> bool:
        """True if the consumer was stopped, all its messages are answered, and no more can come."""
        return self.is_stopping and not self._subscriptions

    def close(self) -> None:
        """Close all links. The brokers deliver unanswered messages again."""
        self.stop()
        for link, subscription in list(self._subscriptions.items()):
            self._send_held(link, subscription)
        self.pool.close()
        for subscription in self._subscriptions.values():
            self._lose(subscription)
        self._subscriptions.clear()
        if self._dead_letters is not None:
            self._dead_letters.close()
        self.on_ready()

    def forget_links(self) -> None:
        """In the child of a fork: the parent goes on consuming, the child has nothing."""
        self.is_stopping = True
        self.error = ClosedError("the consumer belongs to the process that has forked: make another one here")
        self.pool.forget_links()
        self.ready.clear()
        for subscription in self._subscriptions.values():
            self._lose(subscription)
        self._subscriptions.clear()
        if self._dead_letters is not None:
            self._dead_letters.forget_links()

    def stats(self) -> dict[str, Any]:
        """Return counters, and the state of each broker."""
        return {
            "received": self.received_count,
            "finished": self.finished_count,
            "requeued": self.requeued_count,
            "dead_letters": self.dead_letter_count,
            "answered_late": self.late_count,
            "in_flight": self.in_flight,
            "ready": len(self.ready),
            "backoff_level": self.flow.backoff_level,
            "brokers": self.pool.stats(),
        }
