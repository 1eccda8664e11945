"""HTTP to brokers and lookup daemons, from many threads, with connections that stay open.

Source: docs/nsq/admin-and-tools.md, "Errors and partial failures".
"""

from __future__ import annotations

import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from pyqd.admin.shapes import parse_answer
from pyqd.client.errors import ClientError, NotConnectedError, SettingError
from pyqd.client.http import HttpClient, Reply, message_of
from pyqd.client.trust import TrustedBrokers
from pyqd.primitives.nsq_compat import https_port_in, status_line

# Open connections that are kept per address. More are made, and closed after use.
IDLE_MAX: Final = 8
# Brokers come and go: connections of addresses that nobody has asked for this long are closed.
UNUSED_S: Final = 300.0
WORKER_COUNT: Final = 128
# A kept connection that the other side has closed fails at once. Later failures may follow the work of the request.
CLOSED_WITHIN_S: Final = 1.0
# The time-out counts from byte to byte. A whole answer may take so many of them.
TIMEOUTS_PER_ANSWER: Final = 3
REFUSALS_OF_LOGIN: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

logger = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")


class UpstreamError(ClientError):
    """No broker or lookup daemon that was asked has answered, or one has refused. Its text names each failure."""


class AbsentCallError(UpstreamError):
    """The broker does not have the call: it is an nsqd, or an older pyqd."""


class Collected(NamedTuple):
    """Result of a query: items found, and one text for each broker or lookup daemon that failed."""

    value: Any
    failures: list[str]


class UpstreamServer(NamedTuple):
    """Server that answers the requests to an address. url: host:port, or https:// before it.

    is_named: the operator has named the address. has_token: requests carry the token.
    """

    url: str
    is_named: bool
    has_token: bool


# Every process that reaches a lookup daemon may register an address, and the answer from there is shown. So services
# that answer to local requests only, such as those with the credentials of a machine in a cloud, are not asked.


def check_registered(address: str, host: str, *, may_be_local: bool) -> None:
    """Check the host of an address that a lookup daemon tells. Raises: NotConnectedError if no broker is asked there.

    host: an IP address, or a name, which passes. may_be_local: whether the host may be this machine.
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or (ip.is_reserved and not ip.is_loopback):
        problem = "no broker listens there for other machines"
    elif ip.is_loopback and not may_be_local:
        problem = "it is this machine, where no lookup daemon is"
    else:
        return
    raise NotConnectedError(
        f"{address} is registered as a broker, and not asked: {problem}; --trusted-broker allows it"
    )


class Upstream:
    """Connections to brokers and lookup daemons.

    new_context: makes the TLS context of connections over HTTPS. timeout_s: of one request. token: sent with requests
    to `trusted` addresses, if not empty; is_token_secure: over HTTPS only. may_be_local: addresses that are not trusted
    may be on this machine. worker_count: requests of `for_each` that are under way at a time.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        connect_timeout_s: float = 2.0,
        new_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        token: str = "",
        is_token_secure: bool = False,
        trusted: TrustedBrokers | None = None,
        may_be_local: bool = True,
        worker_count: int = WORKER_COUNT,
    ) -> None:
        self._options: dict[str, Any] = {
            "timeout_s": timeout_s,
            "connect_timeout_s": connect_timeout_s,
            "new_context": new_context,
        }
        self._token = token
        self._is_token_secure = is_token_secure
        self._trusted = trusted or TrustedBrokers()
        self._may_be_local = may_be_local
        # By the address that a broker announces: the one that the operator has given for it.
        self._given: dict[str, str] = {}
        # Of servers that take HTTPS only: their URLs.
        self._secure: dict[str, str] = {}
        self._closed_within_s = min(CLOSED_WITHIN_S, timeout_s / 2)
        self._answer_within_s = TIMEOUTS_PER_ANSWER * timeout_s
        self._idle: dict[UpstreamServer, list[HttpClient]] = {}
        self._lock = Lock()
        self._used_s: dict[UpstreamServer, float] = {}
        self._swept_s = time.monotonic()
        # Time that each address has taken for its answers so far.
        self.spent_s: dict[str, float] = {}
        self._workers = ThreadPoolExecutor(worker_count, thread_name_prefix="upstream")

    def close(self) -> None:
        """Close all connections."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            idle, self._idle = self._idle, {}
        for clients in idle.values():
            for client in clients:
                client.close()

    def get(self, address: str, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the JSON object of an answer. address: host:port. Raises: UpstreamError."""
        reply = self.send("GET", address, path, query)
        try:
            found = parse_answer(reply.body)
        except (ValueError, RecursionError) as error:
            raise UpstreamError(f"GET {url_of(address)}{path}: the answer is no JSON: {error}") from None
        if not isinstance(found, dict):
            text = "the answer is not one of NSQ's daemons: no JSON object"
            raise UpstreamError(f"GET {url_of(address)}{path}: {text}")
        return found

    def post(self, address: str, path: str, query: Mapping[str, object] | None = None) -> bytes:
        """Send a POST and return the body of the answer. Raises: UpstreamError."""
        return self.send("POST", address, path, query).body

    def for_each(self, addresses: Iterable[A], call: Callable[[A], R]) -> tuple[list[R], list[str]]:
        """Call for all addresses at once. Returns: the results in the order of addresses, and the failures' texts.

        addresses: texts, or objects with an `http_address`. An answer of another form fails for its address only.
        """
        futures = [(address, self._workers.submit(call, address)) for address in addresses]
        results: list[R] = []
        failures: list[str] = []
        for address, future in futures:
            try:
                results.append(future.result())
            except UpstreamError as error:
                failures.append(str(error))
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                name = getattr(address, "http_address", address)
                failures.append(f"{name}: the answer is not one of NSQ's daemons: {error!r}")
        return results, failures

    def send(
        self,
        method: str,
        address: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Return the answer to a request if it is a success. Raises: UpstreamError."""
        url = f"{url_of(address)}{path}" + (f"?{urlencode(query)}" if query else "")
        logger.debug("%s %s", method, url)
        place = self._place_of(address)
        try:
            reply = self._exchange(method, address, place, path, query, body)
            port = https_port_in(reply.body) if reply.status == HTTPStatus.FORBIDDEN else 0
            if port and "://" not in place.url:
                with self._lock:
                    self._secure[address] = f"https://{place.url.rpartition(':')[0]}:{port}"
                place = self._place_of(address)
                reply = self._exchange(method, address, place, path, query, body)
        except ClientError as error:
            with self._lock:
                # The broker may listen elsewhere when it comes back.
                self._secure.pop(address, None)
            raise UpstreamError(f"{method} {url}: {error}") from error
        if reply.status != HTTPStatus.OK:
            is_absent = reply.status == HTTPStatus.NOT_FOUND and message_of(reply) == "NOT_FOUND"
            kind = AbsentCallError if is_absent else UpstreamError
            text = f"got response {status_line(reply.status)} {json.dumps(reply.body.decode(errors='replace'))}"
            withheld = self.withheld(address) if reply.status in REFUSALS_OF_LOGIN else ""
            failure = kind(f"{text} ({address} was asked without the token: {withheld})" if withheld else text)
            failure.code = message_of(reply)
            raise failure
        return reply

    def note_given(self, announced: str, given: str) -> None:
        """Send requests for the address that a broker announces to the one that the operator has given for it."""
        if announced != given:
            with self._lock:
                self._given[announced] = given

    def withheld(self, address: str) -> str:
        """Return why requests to an address go without the token; empty if they have it, or if there is no token."""
        place = self._place_of(address)
        if not self._token or place.has_token:
            return ""
        if not place.is_named:
            return "no --trusted-broker names it"
        return "it is not asked over HTTPS, and flags of TLS are given"

    def _place_of(self, address: str) -> UpstreamServer:
        """Return the server that answers for an address, as far as it is known now."""
        with self._lock:
            given, url = self._given.get(address, address), self._url_of(address)
        try:
            is_named = self._trusted.has(given)
        except SettingError:
            # Every process may register a text that is no address; the request fails for it.
            is_named = False
        may_have_token = is_named and (url.startswith("https://") or not self._is_token_secure)
        return UpstreamServer(url, is_named, bool(self._token) and may_have_token)

    def _exchange(
        self,
        method: str,
        address: str,
        place: UpstreamServer,
        path: str,
        query: Mapping[str, object] | None,
        body: bytes | None,
    ) -> Reply:
        client = self._take(place)
        # A change may take its time.
        within_s = self._answer_within_s if method == "GET" else None
        ask = partial(client.request, method, path, query, body, retry=False, within_s=within_s)
        # The other side may close a kept connection at any time. A request with a body may not be repeated.
        may_repeat = client.is_open and body is None
        started_s = time.monotonic()
        try:
            return ask()
        except NotConnectedError:
            if not may_repeat or time.monotonic() - started_s >= self._closed_within_s:
                raise
            return ask()
        finally:
            took_s = time.monotonic() - started_s
            with self._lock:
                self.spent_s[address] = self.spent_s.get(address, 0.0) + took_s
            self._give_back(place, client)

    def _take(self, place: UpstreamServer) -> HttpClient:
        with self._lock:
            idle = self._idle.get(place)
            if idle:
                return idle.pop()
        token = self._token if place.has_token else None
        if place.is_named:
            return HttpClient(place.url, token=token, **self._options)
        check = partial(check_registered, place.url, may_be_local=self._may_be_local)
        return HttpClient(place.url, token=token, check_peer=check, **self._options)

    def _give_back(self, place: UpstreamServer, client: HttpClient) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._used_s[place] = now_s
            unused = self._take_unused(now_s)
            idle = self._idle.setdefault(place, [])
            if len(idle) < IDLE_MAX:
                idle.append(client)
            else:
                unused.append(client)
        for each in unused:
            each.close()

    def _take_unused(self, now_s: float) -> list[HttpClient]:
        """Forget servers that nobody has asked lately, and what their addresses took. Returns: their connections."""
        if now_s - self._swept_s < UNUSED_S:
            return []
        self._swept_s = now_s
        gone = [place for place, used_s in self._used_s.items() if now_s - used_s >= UNUSED_S]
        for place in gone:
            del self._used_s[place]
        asked = {place.url for place in self._used_s}
        for address in [each for each in self.spent_s if self._url_of(each) not in asked]:
            del self.spent_s[address]
            self._secure.pop(address, None)
            self._given.pop(address, None)
        return [client for place in gone for client in self._idle.pop(place, ())]

    def _url_of(self, address: str) -> str:
        return self._secure.get(address) or self._given.get(address, address)


def url_of(address: str) -> str:
    """Return an address as a URL."""
    return address if "://" in address else f"http://{address}"
