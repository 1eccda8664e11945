"""An auth server for tests: HTTP on a loopback port, in a thread, whose answers a test changes as it goes."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.http_target import Answer as Reply
from tests.support.http_target import HttpTarget, Taken


class Query(NamedTuple):
    """One request: method, path without the query, the values by name, the headers, and the query as it came."""

    method: str
    path: str
    values: dict[str, list[str]]
    headers: dict[str, str]
    raw: str

    @property
    def secret(self) -> str:
        return self.values["secret"][0]


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def entry(
    topic: str = ".*", channels: tuple[str, ...] = (".*",), permissions: str = "subscribe publish"
) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": permissions.split()}


def state(*entries: dict[str, Any], ttl: Any = 3600, identity: str = "bob", identity_url: str = "http://bob") -> Answer:
    answer = {"ttl": ttl, "identity": identity, "identity_url": identity_url, "authorizations": list(entries)}
    return Answer(200, json.dumps(answer).encode())


class AuthServer:
    """answer: called with each query in a thread; it may wait until `released` is set."""

    def __init__(self, answer: Callable[[Query], Answer] | None = None, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer or (lambda _query: state(entry()))
        self.queries: list[Query] = []
        self.released = threading.Event()
        self._target = HttpTarget(self._respond, context)
        self.port, self.address = self._target.port, self._target.address

    def _respond(self, taken: Taken) -> Reply:
        parts = urlsplit(taken.path)
        asked = json.loads(taken.body) if taken.method == "POST" else parse_qs(parts.query, keep_blank_values=True)
        headers = {name.lower(): value for name, value in taken.headers.items()}
        query = Query(taken.method, parts.path, asked, headers, parts.query)
        self.queries.append(query)
        status, body, more = self.answer(query)
        return Reply(status, {**dict(more), "Connection": "close"}, body)

    def stop(self) -> None:
        self.released.set()
        self._target.stop()
