"""Flags of pyq_to_http, and the checks that the command line must pass.

Source: docs/tools/pyq_to_http.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyqd import __version__
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.primitives.goflags import DURATION, FlagType
from pyqd.tools.client_options import NO_TIMEOUT_S
from pyqd.tools.common import (
    Fatal,
    HttpTimeoutFlags,
    Sources,
    ToolOptions,
    declare_flag,
    declare_repeated,
    require_one_kind,
)
from pyqd.tools.targets import Targets, targets_for
from pyqd.tools.to_http.address import AddressError
from pyqd.tools.to_http.delivery import DeliveryRequest, get_requests, post_requests

CONTENT_TYPE: Final = "application/octet-stream"
MODES: Final = ("round-robin", "hostpool", "epsilon-greedy")
# Headers that frame a request or a connection.
RESERVED: Final = ("connection", "content-length", "transfer-encoding")


def _float_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


FLOAT: Final = FlagType("float", _float_of, lambda value: f"{value:g}")


@dataclass(frozen=True, kw_only=True)
class ToHttpOptions(HttpTimeoutFlags, Sources, ToolOptions):
    """Flags of pyq_to_http."""

    topic: str = declare_flag("", "topic to consume")
    channel: str = declare_flag("nsq_to_http", "channel to consume")
    max_in_flight: int = declare_flag(200, "max number of messages to allow in flight")
    post: tuple[str, ...] = declare_repeated("URL of POST requests with the message in the body")
    get: tuple[str, ...] = declare_repeated("URL of GET requests, in which the message takes the place of %s")
    header: tuple[str, ...] = declare_repeated("header of the requests, as 'Name: value'")
    content_type: str = declare_flag(CONTENT_TYPE, "the Content-Type used for POST requests")
    mode: str = declare_flag(
        "hostpool", "choice of the URL: round-robin, hostpool, epsilon-greedy; any other word: each message goes to all"
    )
    n: int = declare_flag(100, "number of concurrent requests")
    sample: float = declare_flag(1.0, "share of the messages to send, from 0 to 1", kind=FLOAT)
    status_every: int = declare_flag(250, "number of messages between two status lines; 0 for none")
    http_client_request_timeout_ns: int = declare_flag(20 * SECOND_NS, "timeout for HTTP request", kind=DURATION)
    retries: int = declare_flag(2, "number of times that a request is repeated before its message is requeued")
    retry_delay_ns: int = declare_flag(
        100 * MILLISECOND_NS, "delay of the first retry; doubles with each", kind=DURATION
    )

    def check(self) -> None:
        """Check all flags. Raises: Fatal."""
        self.headers()
        if not self.topic or not self.channel:
            raise Fatal("--topic and --channel are required")
        if self.content_type != CONTENT_TYPE:
            if not self.post:
                raise Fatal("--content-type only used with --post")
            if not self.content_type:
                raise Fatal("--content-type requires a value when used")
        require_one_kind(self.nsqd_tcp_address, self.lookupd_http_address)
        if not self.get and not self.post:
            raise Fatal("--get or --post required")
        if self.get and self.post:
            raise Fatal("use --get or --post not both")
        self.requests()
        if not 0.0 <= self.sample <= 1.0:
            raise Fatal("ERROR: --sample must be between 0.0 and 1.0")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.n <= 0:
            raise Fatal("--n should be positive")
        others = {
            "http-client-connect-timeout": self.http_client_connect_timeout_ns,
            "http-client-request-timeout": self.http_client_request_timeout_ns,
            "retries": self.retries,
            "retry-delay": self.retry_delay_ns,
        }
        for name, value in others.items():
            if value < 0:
                raise Fatal(f"--{name} must not be negative")

    @property
    def connect_timeout_s(self) -> float:
        """Limit for connecting; that of no limit is a day."""
        return self.http_client_connect_timeout_ns / SECOND_NS or NO_TIMEOUT_S

    @property
    def request_timeout_s(self) -> float:
        """Limit of a request; that of no limit is a day."""
        return self.http_client_request_timeout_ns / SECOND_NS or NO_TIMEOUT_S

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.post or self.get

    def headers(self) -> dict[str, str]:
        """Return the headers of all requests. Raises: Fatal."""
        found = {"User-Agent": f"pyq_to_http v{__version__}"}
        if self.post:
            found["Content-Type"] = self.content_type
        for text in self.header:
            name, _, value = (part.strip() for part in text.partition(":"))
            if not name or not value or not name.isprintable() or not value.isprintable():
                raise Fatal("--header value format should be 'key=value'")
            if name.lower() in RESERVED:
                raise Fatal(f"--header: {name} is set by the tool")
            found = {known: each for known, each in found.items() if known.lower() != name.lower()}
            found[name] = value
        return found

    def requests(self) -> list[Callable[[bytes], DeliveryRequest]]:
        """Return, by URL, a function from messages to requests. Raises: Fatal."""
        make = post_requests if self.post else get_requests
        try:
            return [make(url) for url in self.addresses]
        except AddressError as error:
            raise Fatal(str(error)) from None

    def targets(self) -> Targets | None:
        """Return the choice among the URLs; None for all of them."""
        return targets_for(self.mode, len(self.addresses)) if self.mode in MODES else None
