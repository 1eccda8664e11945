"""Delivery of messages by HTTP requests: the choice of an address, redirects, the rules of success, and retries.

Source: docs/tools/pyq_to_http.md; docs/nsq/admin-and-tools.md, "nsq_to_http".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyqd.primitives.backoff import Backoff
from pyqd.primitives.http_client import REDIRECTS, REDIRECTS_MAX, REPEATED, HttpAddress
from pyqd.tools.status_lines import status_lines
from pyqd.tools.targets import Targets
from pyqd.tools.to_http.address import Address, AddressError, Template
from pyqd.tools.to_http.connection import RequestError, RequestTimeoutError, ServerConnections, ServerResponse

# Failures of a server that may be over soon.
PASSING: Final = (429, 500, 502, 503, 504)
# Headers that are for the server of the address alone, not for others that it redirects to.
SECRET: Final = ("authorization", "cookie")
RETRY_DELAY_MAX_S: Final = 10.0


class DeliveryError(Exception):
    """A message was not delivered. may_pass: whether a retry soon may succeed."""

    def __init__(self, text: str, *, may_pass: bool) -> None:
        super().__init__(text)
        self.may_pass = may_pass


@dataclass(frozen=True)
class DeliveryRequest:
    """Request for one message."""

    method: str
    address: Address
    body: bytes = b""


class Sender:
    """Sends requests and follows redirects. headers: of all requests, by name."""

    def __init__(self, connections: ServerConnections, headers: Mapping[str, str], timeout_s: float) -> None:
        self._connections = connections
        self._timeout_s = timeout_s
        lower = {name.lower(): value for name, value in headers.items()}
        self._host = lower.get("host")
        self._has_credentials = "authorization" in lower
        own = {name: value for name, value in headers.items() if name.lower() != "host"}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in own.items())
        self._public = "".join(f"{name}: {value}\r\n" for name, value in own.items() if name.lower() not in SECRET)

    async def send(self, request: DeliveryRequest) -> ServerResponse:
        """Return the last response. Raises: RequestError; AddressError for a redirect that cannot be followed."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        first = request.address.origin
        for _ in range(REDIRECTS_MAX + 1):
            address = request.address
            left_s = deadline_s - loop.time()
            response = await self._connections.request(address.origin, self._encoded(request, first), left_s)
            if response.status not in REDIRECTS or not response.location:
                return response
            request = replace(request, address=address.joined(response.location))
            if response.status not in REPEATED:
                request = replace(request, method="GET", body=b"")
        raise RequestError(f"stopped after {REDIRECTS_MAX} redirects")

    def _encoded(self, request: DeliveryRequest, first: HttpAddress) -> bytes:
        """Return the bytes of a request. first: the server that the headers are meant for."""
        address = request.address
        is_first = address.origin == first
        host = self._host if self._host is not None and is_first else address.host
        headers = self._headers if is_first else self._public
        if address.credentials and not (self._has_credentials and is_first):
            headers += f"Authorization: {address.credentials}\r\n"
        head = f"{request.method} {address.target} HTTP/1.1\r\nHost: {host}\r\n{headers}"
        if request.method == "GET":
            return f"{head}\r\n".encode(errors="surrogateescape")
        return f"{head}Content-Length: {len(request.body)}\r\n\r\n".encode(errors="surrogateescape") + request.body


async def deliver(sender: Sender, request: DeliveryRequest) -> None:
    """Send a message. A GET succeeds by the status 200, a POST by any from 200 to 299. Raises: DeliveryError."""
    try:
        status = (await sender.send(request)).status
    except RequestTimeoutError as error:
        # The server is slow: more requests would make it slower.
        raise DeliveryError(str(error), may_pass=False) from None
    except RequestError as error:
        raise DeliveryError(str(error), may_pass=True) from None
    except AddressError as error:
        raise DeliveryError(str(error), may_pass=False) from None
    if status != 200 if request.method == "GET" else not 200 <= status < 300:
        raise DeliveryError(f"got status code {status}", may_pass=status in PASSING)


def post_requests(url: str) -> Callable[[bytes], DeliveryRequest]:
    """Return a function from messages to POST requests with the message as the body. Raises: AddressError."""
    address = Address.of(url)
    return lambda body: DeliveryRequest("POST", address, body)


def get_requests(url: str) -> Callable[[bytes], DeliveryRequest]:
    """Return a function from messages to GET requests with the message in the URL. Raises: AddressError."""
    template = Template(url)
    return lambda body: DeliveryRequest("GET", template.filled(body))


class Delivery:
    """Delivers messages to one address, or to all of them if there are no targets to choose from.

    requests: by address, a function from a message to its request. retry_delay_s: of the first retry; it doubles with
    each.
    """

    def __init__(
        self,
        sender: Sender,
        addresses: Sequence[str],
        requests: Sequence[Callable[[bytes], DeliveryRequest]],
        targets: Targets | None,
        retries: int,
        retry_delay_s: float,
        status_every: int,
    ) -> None:
        self._sender = sender
        self._requests = requests
        self._targets = targets
        self._retries = retries
        self._retry_delay_s = retry_delay_s
        self._all_status, self._status = status_lines(status_every, addresses)

    async def deliver(self, body: bytes) -> None:
        """Deliver a message. Raises: DeliveryError; some of all addresses may have it then."""
        began_s = time.monotonic()
        if self._targets is not None:
            await self._with_retries(self._to_one, self._targets, body)
        else:
            for target in range(len(self._requests)):
                await self._with_retries(self._to, target, body)
        self._all_status.note(time.monotonic() - began_s)

    async def _to_one(self, targets: Targets, body: bytes) -> None:
        began_s = time.monotonic()
        target = targets.choose(began_s)
        try:
            await self._to(target, body)
        except DeliveryError:
            targets.note(target, time.monotonic(), None)
            raise
        now_s = time.monotonic()
        targets.note(target, now_s, now_s - began_s)

    async def _to(self, target: int, body: bytes) -> None:
        began_s = time.monotonic()
        await deliver(self._sender, self._requests[target](body))
        self._status[target].note(time.monotonic() - began_s)

    async def _with_retries(self, attempt: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Repeat an attempt that fails in a way that may pass. Raises: DeliveryError of the last one."""
        delays = Backoff(self._retry_delay_s, RETRY_DELAY_MAX_S)
        for left in range(self._retries, -1, -1):
            try:
                await attempt(*arguments)
                return
            except DeliveryError as error:
                if not left or not error.may_pass:
                    raise
            await asyncio.sleep(delays.next_s())
