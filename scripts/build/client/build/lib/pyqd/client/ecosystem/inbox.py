"""Messages of several consumers, collected for one thread that waits for all of them.

Each intake is a consumer of one topic and a thread that moves its messages to the inbox. The consumer's max_in_flight
bounds the number of messages in the inbox.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyqd.client import Consumer, Message
from pyqd.client.errors import AnsweredError, ClientError, ClosedError

FETCH_COUNT: Final = 100
# Longest wait of a thread for messages before it checks whether the intake is closed.
FETCH_S: Final = 0.5
# Pause after an error, which the consumer answers by connecting again.
ERROR_PAUSE_S: Final = 1.0
CLOSE_S: Final = 5.0

# Key of the messages that one user takes: channel of kombu and queue.
Owner = tuple[int, str]

logger = logging.getLogger("pyqd.client")


class InboxMessage(NamedTuple):
    """A message and the intake that it came from."""

    intake: QueueIntake
    message: Message


class Inbox:
    """Received messages by owner. An owner takes its messages in the order of arrival."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._received: dict[Owner, deque[InboxMessage]] = {}

    def put(self, received: InboxMessage) -> None:
        """Add a message. If its intake is paused, requeue it instead, so that another consumer gets it."""
        with self.changed:
            if not received.intake.is_paused:
                self._received.setdefault(received.intake.owner, deque()).append(received)
                self.changed.notify_all()
                return
        give_back(received.message)

    def take(self, owners: Callable[[], list[Owner]], timeout: float | None) -> InboxMessage | None:
        """Return a message of the first owner that has any; None after timeout seconds.

        owners: called before each look, since it can change while this thread waits.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while True:
                for owner in owners():
                    received = self._next(owner)
                    if received is not None:
                        return received
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self.changed.wait(left_s)

    def _next(self, owner: Owner) -> InboxMessage | None:
        """Return an owner's next message. Messages of lost connections are dropped: the broker delivers them again."""
        waiting = self._received.get(owner)
        while waiting:
            received = waiting.popleft()
            if not received.message.is_lost:
                return received
        return None

    def notify(self) -> None:
        """Wake the waiting thread: an owner can take messages again."""
        with self.changed:
            self.changed.notify_all()

    def requeue(self, intake: QueueIntake) -> None:
        """Requeue all messages of an intake that nobody has taken yet."""
        with self.changed:
            waiting = self._received.get(intake.owner, deque())
            kept = deque(received for received in waiting if received.intake is not intake)
            self._received[intake.owner] = kept
        for received in waiting:
            if received.intake is intake:
                give_back(received.message)


class QueueIntake:
    """Consumer of one topic whose messages go to an inbox.

    owner: for Inbox.take(). source: object that the user finds again with each message. accepts: messages for which it
    returns False are finished at once.
    """

    def __init__(
        self, consumer: Consumer, inbox: Inbox, owner: Owner, source: Any, accepts: Callable[[Message], bool]
    ) -> None:
        self.consumer = consumer
        self.owner = owner
        self.source = source
        self.is_paused = False
        self._inbox = inbox
        self._accepts = accepts
        self._closing = threading.Event()
        name = f"pyqd intake {consumer.topic}:{consumer.channel}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Receive nothing more, and requeue the messages that nobody has taken yet."""
        with self._inbox.changed:
            self.is_paused = True
        self.consumer.pause()
        self._inbox.requeue(self)

    def resume(self) -> None:
        """Receive again."""
        with self._inbox.changed:
            self.is_paused = False
        self.consumer.resume()

    def close(self) -> None:
        """Disconnect. The broker delivers unanswered messages again when they time out."""
        self._closing.set()
        self.pause()
        self.consumer.stop()
        self._thread.join(CLOSE_S)
        self.consumer.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                for message in self.consumer.fetch(FETCH_COUNT, FETCH_S):
                    self._receive(message)
            except ClosedError:
                return
            except ClientError as error:
                logger.warning("cannot fetch messages of topic %s: %s; retrying", self.consumer.topic, error)
                self._closing.wait(ERROR_PAUSE_S)

    def _receive(self, message: Message) -> None:
        if self._accepts(message):
            self._inbox.put(InboxMessage(self, message))
        else:
            finish(message)


def finish(message: Message) -> None:
    """Finish a message. After the loss of its connection this has no effect: the broker delivers the message again."""
    with contextlib.suppress(AnsweredError):
        message.finish()


def give_back(message: Message, delay_s: float = 0.0) -> None:
    """Requeue a message that was not processed. The consumer does not back off for that."""
    with contextlib.suppress(AnsweredError):
        message.requeue(delay_s, backoff=False)
