"""Notifications of administrators' actions, sent to an HTTP endpoint one at a time, and the line of each in the log.

Source: docs/nsq/admin-and-tools.md, "Notifications".
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Sized
from typing import Any, Final

from pyqd.primitives.http_client import fetch

# Notifications wait here while the endpoint is slow.
QUEUE_MAX: Final = 10_000
ANONYMOUS: Final = "anonymous"
HEADERS: Final = {"Content-Type": "application/json"}

logger = logging.getLogger(__name__)
# Logins and changes: who did what, and from where. An operator who wants fewer lines in the log still wants these.
audit_logger: Final = logging.getLogger("pyqd.admin.audit")
audit_logger.setLevel(logging.INFO)


def failed(failures: Sized) -> str:
    return f"failed={len(failures)}" if failures else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The HTTP request behind an action. user: name by login, header or basic authentication; may be empty."""

    user: str
    remote_ip: str
    user_agent: str
    url: str


class Notifier:
    """Sends notifications in a thread of its own, in order. endpoint: URL; without one, actions are only logged."""

    def __init__(self, endpoint: str = "", timeout_s: float = 5.0) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        if endpoint:
            self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
            self._thread.start()

    def notify(self, action: str, caller: Caller, details: str = "", **place: str) -> None:
        """Log an action, and queue its notification. details: for the log only, as the notification is nsqadmin's.

        place: topic, channel and node, in this order, if it has them.
        """
        self.audit(action, caller, details, **place)
        if self._thread is None:
            return
        message: dict[str, Any] = {"action": action} | {name: value for name, value in place.items() if value}
        message["timestamp"] = int(time.time())
        message |= {name: value for name, value in dataclasses.asdict(caller).items() if value or name != "user"}
        message["via"] = socket.gethostname()
        try:
            self._waiting.put_nowait(json.dumps(message, separators=(",", ":")).encode())
        except queue.Full:
            logger.error(
                "%s: %d notifications wait already: the one of %s is dropped", self.endpoint, QUEUE_MAX, action
            )

    def audit(self, action: str, caller: Caller, details: str = "", **place: str) -> None:
        """Log an action, without a notification."""
        words = [*(f"{name}={value}" for name, value in place.items() if value), details]
        text = " ".join(words).strip()
        audit_logger.info("%s %s by %s from %s", action, text, caller.user or ANONYMOUS, caller.remote_ip)

    def close(self) -> None:
        """Send the queued notifications, for at most the time of one request, and end the thread."""
        if self._thread is not None:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(self.timeout_s)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            try:
                # The answer does not matter.
                fetch(self.endpoint, body, HEADERS, timeout_s=self.timeout_s)
            except (OSError, ValueError, http.client.HTTPException) as error:
                logger.error("failed to send a notification to %s: %s", self.endpoint, error)
