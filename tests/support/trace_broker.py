"""Broker that has nothing but an event log, served over HTTP like pyqd's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.http_stub import Answer, HttpStub
from tests.support.trace_log import TraceLog

WAIT_S_MAX = 0.5


class TraceBroker:
    """A broker. log_id: identity of its log. refusal: answer to every request, in place of the right one.

    token: of clients, which it demands.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.log_id = f"log of {name}"
        self.log = TraceLog()
        self.refusal: Answer | None = None
        self.token: str | None = None
        self.max_bytes = 1 << 20
        self._changed = threading.Condition()
        self._stub: HttpStub | None = None

    @property
    def address(self) -> str:
        assert self._stub is not None
        return self._stub.address

    @property
    def requests(self) -> list[tuple[str, dict[str, str]]]:
        """The requests so far: path and query."""
        assert self._stub is not None
        return self._stub.requests

    def change(self, change: Callable[[TraceLog], Any]) -> None:
        """Change the log, and wake the readers that wait."""
        with self._changed:
            change(self.log)
            self._changed.notify_all()

    @contextmanager
    def serving(self) -> Iterator[TraceBroker]:
        self._stub = HttpStub(self._answer)
        try:
            yield self
        finally:
            self._stub.stop()

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        assert self._stub is not None
        if self.token is not None and self._stub.tokens[-1] != f"Bearer {self.token}":
            return 403, {}, b'{"message":"FORBIDDEN"}'
        if path == "/info":
            return 200, {}, json.dumps({"broadcast_address": self.name, "http_port": 4151}).encode()
        assert path == "/trace/log", path
        position = int(query["position"])
        with self._changed:
            wait_s = min(WAIT_S_MAX, int(query.get("wait_ms", "0")) / 1000)
            if wait_s:
                self._changed.wait_for(lambda: self.log.next > position, wait_s)
            data, following = self.log.answer(position, min(self.max_bytes, int(query["max_bytes"])))
            positions = {"Next": following, "Oldest": self.log.oldest, "End": self.log.next}
            headers = {f"X-Pyqd-{name}": str(value) for name, value in positions.items()}
            return 200, {"X-Pyqd-Format": "2", "X-Pyqd-Node": self.log_id, **headers}, data
