"""A small HTTP server in a thread that answers as a test says: a lookup daemon, or a broker that misbehaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.http_target import Answer as Reply
from tests.support.http_target import HttpTarget, Taken

# Status, headers, body; None: the connection is closed without an answer. If the headers have a Content-Length other
# than the body's, the connection is closed after the body.
Answer = tuple[int, dict[str, str], bytes] | None
Handler = Callable[[str, dict[str, str]], Answer]


class HttpStub:
    """answer: returns the answer to a path and its query.

    requests: the received requests, in order. tokens: their headers Authorization, or None.
    """

    def __init__(self, answer: Handler) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str | None] = []
        self._answer = answer
        target = HttpTarget(self._respond)
        self.address, self.stop = target.address, target.stop

    def _respond(self, taken: Taken) -> Reply:
        parts = urlsplit(taken.path)
        query = dict(parse_qsl(parts.query))
        self.tokens.append(taken.headers.get("Authorization"))
        self.requests.append((parts.path, query))
        found = self._answer(parts.path, query)
        return Reply(is_silent=True) if found is None else Reply(*found)


@contextmanager
def http_stub(answer: Handler) -> Iterator[HttpStub]:
    stub = HttpStub(answer)
    try:
        yield stub
    finally:
        stub.stop()


def json_answer(shown: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(shown).encode()


def cut_off(answer: Answer, byte_count: int) -> Answer:
    """Return an answer whose connection ends after so many bytes of the body."""
    assert answer is not None
    status, headers, body = answer
    assert byte_count < len(body)
    return status, {**headers, "Content-Length": str(len(body))}, body[:byte_count]


def lookup_answers(producers_of: dict[str, list[str]]) -> Handler:
    """Return the answers of a lookup daemon that knows these topics, by HTTP addresses of their brokers."""

    def row(address: str) -> dict[str, object]:
        host, _, port = address.rpartition(":")
        return {
            "broadcast_address": host,
            "hostname": "h",
            "http_port": int(port),
            "tcp_port": int(port),
            "version": "1.3.0",
        }

    def answer(path: str, query: dict[str, str]) -> Answer:
        if path == "/lookup":
            if query["topic"] not in producers_of:
                return json_answer({"message": "TOPIC_NOT_FOUND"}, 404)
            return json_answer({"channels": [], "producers": list(map(row, producers_of[query["topic"]]))})
        if path == "/topics":
            return json_answer({"topics": list(producers_of)})
        if path == "/ping":
            return json_answer({})
        assert path == "/nodes", path
        addresses = dict.fromkeys(address for found in producers_of.values() for address in found)
        return json_answer({"producers": list(map(row, addresses))})

    return answer
