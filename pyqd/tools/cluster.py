"""HTTP questions of tools to lookup daemons and brokers: each address by a thread of its own.

Source: docs/nsq/lookupd.md and docs/nsq/http-api.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from pyqd.client.errors import ClientError, LookupFailedError, ProtocolError
from pyqd.client.http import HttpClient, Reply
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.names import is_valid_name_str
from pyqd.primitives.nsq_compat import https_port_in, status_line, unwrapped_answer
from pyqd.tools.common import Fatal, HttpTimeoutFlags, log

TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class Http:
    """Makes requests. token: of the lookup daemons or brokers; None without one."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    timeout_s: float = TIMEOUT_S
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, timeouts: HttpTimeoutFlags, token: str | None = None) -> Http:
        connect_ns, request_ns = timeouts.http_client_connect_timeout_ns, timeouts.http_client_request_timeout_ns
        return cls(connect_ns / SECOND_NS, request_ns / SECOND_NS, token)

    def get(self, address: str, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON object of an answer. A port that wants HTTPS says which one to use. Raises: ClientError."""
        client, reply = self._ask(address, path, query)
        port = https_port_in(reply.body) if reply.status == HTTPStatus.FORBIDDEN else 0
        if port:
            host = address.rpartition("://")[2].rpartition(":")[0]
            client, reply = self._ask(f"https://{host}:{port}", path, query)
        if reply.status != HTTPStatus.OK:
            raise LookupFailedError(f"{address}: {said(reply)}")
        answer = client.parsed(path, reply)
        if not isinstance(answer, dict):
            raise ProtocolError(f"{address}: {path}: the answer is no object")
        return unwrapped_answer(answer)

    def _ask(self, address: str, path: str, query: dict[str, object]) -> tuple[HttpClient, Reply]:
        with HttpClient(
            address, token=self.token, timeout_s=self.timeout_s, connect_timeout_s=self.connect_timeout_s
        ) as client:
            return client, client.request("GET", path, query, retry=False)

    async def get_from_all(
        self, addresses: Sequence[str], path: str, **query: object
    ) -> tuple[dict[str, dict[str, Any]], list[str]]:
        asked = [in_thread(partial(self.get, address, path, **query)) for address in addresses]
        results = await asyncio.gather(*asked, return_exceptions=True)
        answers: dict[str, dict[str, Any]] = {}
        errors: list[str] = []
        for address, result in zip(addresses, results, strict=True):
            if isinstance(result, ClientError):
                errors.append(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[address] = result
        return answers, errors


def said(reply: Reply) -> str:
    """Return the words of NSQ's tools for an answer that is not wanted."""
    return f"got response {status_line(reply.status)} {go_quote_str(reply.body[:1000].decode(errors='replace'))}"


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Return the future of work that a thread does. The end of the process does not wait for the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(set_result: Callable[[Any], None], result: object) -> None:
        if not future.done():
            set_result(result)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            done: tuple[Callable[[Any], None], object] = (future.set_exception, error)
        else:
            done = (future.set_result, result)
        try:
            loop.call_soon_threadsafe(finish, *done)
        except RuntimeError:
            # The loop is closed: the tool has ended.
            return

    threading.Thread(target=run, daemon=True).start()
    return future


# Topics.


class TopicPattern:
    """Regular expression in Go's syntax that a topic's name contains. Raises: Fatal."""

    def __init__(self, text: str) -> None:
        try:
            import re2
        except ModuleNotFoundError:
            raise Fatal("--topic-pattern needs a package: pip install 'pyqd[re2]'") from None
        options = re2.Options()
        options.log_errors = False
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
            raise Fatal(f"--topic-pattern {go_quote_str(text)}: {reason}") from None

    def matches(self, topic: str) -> bool:
        return self._pattern.search(topic) is not None


async def known_topics(http: Http, lookupd: Sequence[str]) -> list[str]:
    """Return the topics that the lookup daemons know, sorted. Some that do not answer are logged.

    Raises: LookupFailedError if none answers.
    """
    answers, errors = await http.get_from_all(lookupd, "/topics")
    if not answers:
        raise LookupFailedError(f"failed to query any nsqlookupd: {'; '.join(errors)}")
    for error in errors:
        log(f"WARNING: failed to query nsqlookupd {error}")
    names = {name for answer in answers.values() for name in answer.get("topics") or ()}
    return sorted(name for name in names if isinstance(name, str) and is_valid_name_str(name))


async def new_topics(
    http: Http, lookupd: Sequence[str], patterns: Sequence[TopicPattern], refresh_s: float
) -> AsyncIterator[str]:
    """Yield each topic that matches one of the patterns: those that there are at once, others when they come up."""
    seen: set[str] = set()
    while True:
        try:
            topics = await known_topics(http, lookupd)
        except LookupFailedError as error:
            log(f"ERROR: {error}; asking again in {refresh_s:g} s")
            topics = []
        for topic in topics:
            if topic not in seen and any(pattern.matches(topic) for pattern in patterns):
                seen.add(topic)
                yield topic
        await asyncio.sleep(refresh_s)
