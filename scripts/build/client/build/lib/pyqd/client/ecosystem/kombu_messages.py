"""Messages of the kombu transport: their bodies on the broker, their due times, and their answers.

A body is JSON: kombu's message with its headers and properties. Text stays readable in it; other payloads are base64.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Container
from datetime import datetime, timezone, tzinfo
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from pyqd.client import Message as ClientMessage
from pyqd.client.ecosystem.inbox import finish, give_back

# Name of the encoding in the messages.
TEXT: Final = "text"

logger = logging.getLogger("pyqd.client")


class Text:
    """Codec of kombu for payloads that are UTF-8."""

    def encode(self, body: bytes | str) -> str:
        """Return the text of a payload."""
        return body if isinstance(body, str) else body.decode()

    def decode(self, text: str) -> bytes:
        """Return a payload."""
        return text.encode()


def encode_payload(payload: dict[str, Any], **routing: str) -> bytes:
    """Return the body for a message of kombu. routing: exchange and routing key of a broadcast."""
    return str(dumps({**payload, **routing})).encode()


def decode_payload(body: bytes, encodings: Container[str]) -> dict[str, Any] | None:
    """Return the message of kombu in a body; None if the body is something else. encodings: of payloads, by name."""
    try:
        payload = loads(body.decode())
        return payload if is_message(payload, encodings) else None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        # kombu's decoders of dates, numbers and bytes raise any of these for a value of the wrong kind.
        return None


def is_message(payload: Any, encodings: Container[str]) -> bool:
    """Return True if a JSON value is a message of kombu. Raises: TypeError, KeyError, AttributeError if it is not."""
    headers, properties, content = payload["headers"], payload["properties"], payload["body"]
    encoding = properties.get("body_encoding")
    # A content with these encodings is passed on as it is.
    is_plain = not encoding or encoding.lower() == "utf-8"
    return (
        isinstance(headers, dict)
        and isinstance(properties, dict)
        and isinstance(properties.get("delivery_info", {}), dict)
        and isinstance(payload.get("routing_key", ""), str)
        and (is_plain or (encoding in encodings and isinstance(content, str)))
    )


def due_ms_of(payload: dict[str, Any]) -> int | None:
    """Return the due time of a task in Unix milliseconds, rounded up; None without one.

    Celery's header `eta` has it for tasks with a countdown too. Celery reports an eta that is no time when the task
    arrives, so that no error is raised here.
    """
    eta = payload["headers"].get("eta")
    if not isinstance(eta, str):
        return None
    try:
        # Python 3.10 does not know Z.
        due = datetime.fromisoformat(f"{eta[:-1]}+00:00" if eta.endswith("Z") else eta)
    except ValueError:
        return None
    if due.tzinfo is None:
        due = due.replace(tzinfo=default_timezone())
    since = due - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return -(-((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) // 1000)


def default_timezone() -> tzinfo:
    """Return the time zone of times without one: that of the Celery app, or UTC."""
    celery = sys.modules.get("celery")
    zone = celery.current_app.timezone if celery is not None else timezone.utc
    return zone if isinstance(zone, tzinfo) else timezone.utc


class QoS(virtual.QoS):  # type: ignore[misc]
    """Unanswered messages of a channel, and its prefetch count.

    Pools answer in their own threads. Dictionaries are safe for that, and so are the client's messages.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.unanswered: dict[str, ClientMessage] = {}

    def ack(self, delivery_tag: str) -> None:
        """Finish a message."""
        message = self.unanswered.pop(delivery_tag, None)
        if message is not None:
            finish(message)
        self._answered(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue a message, or move it to the dead-letter topic. Without such a topic it is finished and logged."""
        message = self.unanswered.get(delivery_tag)
        if message is not None:
            if requeue:
                give_back(message)
            else:
                self.channel.bury(message, "rejected")
            self.unanswered.pop(delivery_tag, None)
        self._answered(delivery_tag)

    def _answered(self, delivery_tag: str) -> None:
        self._quick_ack(delivery_tag)
        self.channel.wake()

    def restore_unacked(self) -> list[Any]:
        """Requeue all unanswered messages; return no errors, as kombu expects: a lost connection does the same."""
        self._flush()
        self._delivered.clear()
        while self.unanswered:
            _, message = self.unanswered.popitem()
            give_back(message)
        return []
