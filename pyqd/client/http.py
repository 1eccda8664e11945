"""HTTP client of brokers and lookup daemons, for calls that the TCP protocol lacks. Needs only the standard library.

A request that fails on the way is retried on a new connection for `retry_timeout_s`, so that a program outlasts a
broker's restart. A refusal by the broker raises an error at once. A client belongs to one thread.

Source: docs/http.md.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from pyqd.client.core.commands import check_channel, check_topic
from pyqd.client.core.tls import TlsNames, lasting_cause
from pyqd.client.errors import (
    AuthenticationError,
    ClientError,
    NotConnectedError,
    NotFoundError,
    ProtocolError,
    QuotaError,
    RefusedError,
    SettingError,
    TlsError,
    TooBigError,
)
from pyqd.client.refusals import REFUSED, sentence_for
from pyqd.client.settings import unix_address
from pyqd.primitives.addresses import HostNameError
from pyqd.primitives.backoff import NO_JITTER, Backoff
from pyqd.primitives.http_client import ANSWER_BYTES_MAX, AnswerTooLongError, HttpClientConnection
from pyqd.primitives.http_client import HttpAddress as HttpAddress
from pyqd.primitives.http_client import Reply as Reply
from pyqd.primitives.nsq_compat import https_port_in
from pyqd.primitives.peer_json import json_text

HTTP_PORT: Final = 4151
HTTPS_PORT: Final = 4152
TIMEOUT_S: Final = 30.0
RETRY_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.05
RETRY_LONGEST_S: Final = 2.0
# Status codes that a retry may cure. All others are answers.
PASSING_STATUS: Final = (429, 500, 502, 503, 504)
FORBIDDEN: Final = 403
QUOTA_CODES: Final = ("TOO_MANY_TOPICS", "TOO_MANY_CHANNELS")
NAMES: Final = TlsNames(
    port="is it the one of HTTPS? Where there is to be none, as with nsqlookupd, write http:// before the address"
)

logger = logging.getLogger(__name__)

Self = TypeVar("Self", bound="HttpClient")


def parse_http_address(text: str, tls: bool = False) -> HttpAddress:
    """Return the parts of an address. Raises: SettingError.

    text: `host:port`, `host`, a URL of http or https, or the path of a unix socket. tls: whether an address without a
    scheme means HTTPS. The port is 4151 or 4152 if none is given.
    """
    if text.startswith("/"):
        return HttpAddress("localhost", 0, False, unix_address(text).path)
    scheme, _, rest = text.rpartition("://")
    scheme = scheme.lower()
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError(f"{text!r} is no address: {error}") from None
    odd = parts.path.strip("/") or parts.query or parts.username is not None
    if scheme not in ("", "http", "https") or not host or odd:
        raise SettingError(f"expected host:port, or a URL of http or https, not {text!r}")
    secure = scheme == "https" or (tls and not scheme)
    return HttpAddress(host, port or (HTTPS_PORT if secure else HTTP_PORT), secure)


class HttpClient:
    """One connection to one address, kept open between requests and reconnected when it breaks.

    tls: whether an address without a scheme means HTTPS. new_context: makes the TLS context, for each connection.
    timeout_s: of one request, without progress. connect_timeout_s: of connecting, if it differs. retry_timeout_s: time
    for retries of a failing request. check_peer: as in HttpClientConnection. Raises: SettingError for the address.
    """

    # Words of remedies, for programs whose options have other names.
    names = NAMES

    def __init__(
        self,
        address: str,
        *,
        tls: bool = False,
        new_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float | None = None,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        check_peer: Callable[[str], None] = lambda _host: None,
    ) -> None:
        self.address = address
        self.place = parse_http_address(address, tls)
        self.timeout_s = timeout_s
        self.retry_timeout_s = retry_timeout_s
        # http.client would name the token in its error.
        if token and not (token.isascii() and token.isprintable()):
            raise SettingError("the token has characters that no header can have")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = HttpClientConnection(
            self.place,
            new_context=new_context,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            bytes_max=ANSWER_BYTES_MAX,
            check_peer=check_peer,
        )

    @property
    def is_open(self) -> bool:
        """True if a connection is kept from an earlier request."""
        return self._connection.is_open

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        *,
        retry: bool = True,
        within_s: float | None = None,
    ) -> Reply:
        """Send a request and return the answer, whatever its status.

        retry: retry after a failure on the way; only for requests that may be repeated. within_s: limit for one whole
        answer. Raises: NotConnectedError if there was no answer, or only ones about passing trouble, until the time was
        over; TlsError; SettingError.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        deadline_s = time.monotonic() + (self.retry_timeout_s if retry else 0)
        delays = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, jitter=NO_JITTER)
        while True:
            try:
                reply = self._once(method, target, body, within_s)
                if reply.status not in PASSING_STATUS or not retry:
                    return reply
                failure = f"answered {reply.status} {message_of(reply)}"
            except ClientError:
                self.close()
                raise
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failure = self._passing(error)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                tried = f", tried for {self.retry_timeout_s:g} s" if retry and self.retry_timeout_s else ""
                raise NotConnectedError(f"{self.address}: {method} {path}: {failure}{tried}")
            logger.info("%s: %s %s: %s; trying again", self.address, method, path, failure)
            time.sleep(min(delays.next_s(), left_s))

    def _passing(self, error: Exception) -> str:
        """Return the text of a failure that may pass. Raises: TlsError for one that lasts."""
        lasting = lasting_cause(error, self.names)
        if lasting is not None:
            raise TlsError(f"{self.address}: {lasting}") from error
        if isinstance(error, OSError):
            failure = error.strerror or str(error) or type(error).__name__
            if isinstance(error, http.client.RemoteDisconnected) and not self.place.secure:
                failure += " (so does a port that speaks TLS; is it tls=true?)"
            return failure
        if isinstance(error, http.client.BadStatusLine):
            return "the answer is not HTTP; is it the port of the TCP protocol?"
        if isinstance(error, http.client.IncompleteRead):
            return f"the connection ended within the answer, after {len(error.partial)} bytes of its body"
        return f"{type(error).__name__}: {error}"

    def _once(self, method: str, target: str, body: bytes | None, within_s: float | None) -> Reply:
        try:
            if self._connection.open() and self._headers and self.place.path is None and not self.place.secure:
                refusal = self._refusal_in_clear()
                if refusal is not None:
                    self.close()
                    return refusal
            return self._connection.exchange(method, target, body, self._headers, within_s=within_s)
        except HostNameError as error:
            raise NotConnectedError(f"{self.address}: {error}") from None
        except AnswerTooLongError as error:
            raise ProtocolError(f"{self.address}: {method} {target}: {error}") from None

    def _refusal_in_clear(self) -> Reply | None:
        """Return the answer of a daemon that takes HTTPS only; None if the daemon takes HTTP.

        Asked without the token: the token would have been read on the way by the time the daemon refuses it.
        """
        reply = self._connection.exchange("GET", "/ping")
        if reply.status == FORBIDDEN and https_port_in(reply.body):
            return reply
        # The other side may close after each answer.
        self._connection.open()
        return None

    def json(self, path: str, **query: object) -> Any:
        """Send a GET and return the answer's JSON. Raises: as `request`; RefusedError, ProtocolError."""
        return self._json_of("GET", path, query)

    def post(self, path: str, **query: object) -> Any:
        """Send a POST that may be repeated, and return the answer's JSON. Raises: as `json`."""
        return self._json_of("POST", path, query)

    def _json_of(self, method: str, path: str, query: Mapping[str, object]) -> Any:
        reply = self.request(method, path, query)
        if reply.status != 200:
            raise self.refusal(path, query, reply)
        return self.parsed(path, reply)

    def parsed(self, path: str, reply: Reply) -> Any:
        """Return the JSON of an answer. Raises: ProtocolError if it is not JSON."""
        try:
            return json.loads(json_text(reply.body))
        except ValueError as error:
            raise ProtocolError(f"{self.address}: {path}: the answer is no JSON: {error}") from None

    def refusal(self, path: str, query: Mapping[str, object], reply: Reply) -> ClientError:
        """Return the error for an answer with a status other than 200."""
        code = message_of(reply)
        asked = f"{path}?{urlencode(query)}: {reply.status}"
        if code == "TLS_REQUIRED":
            port = https_port_in(reply.body)
            return TlsError(
                f"{self.address}: {asked} {code}: it takes HTTPS only, at port {port}: give that port, and tls=true"
            )
        if reply.status == 400 and b"HTTP request to an HTTPS server" in reply.body:
            return TlsError(f"{self.address}: {asked} {code}: a port that speaks TLS; is it tls=true?")
        sentence = REFUSED if reply.status in (401, 403) and code not in QUOTA_CODES else sentence_for(code, query)
        shown = "" if sentence is None else f"{sentence} ({path}: {reply.status} {code})"
        if code in QUOTA_CODES:
            return QuotaError(code, self.address, asked, shown)
        if reply.status in (401, 403):
            return AuthenticationError(code, self.address, asked, shown)
        kind = {404: NotFoundError, 413: TooBigError}.get(reply.status, RefusedError)
        return kind(code, self.address, asked, shown)


class ChannelResult(NamedTuple):
    """Effect of a call on one message in one channel. channel: None while the topic holds the message.

    status: done, in_flight, finished, held or failed: see docs/http.md, "Single messages". was: ready or deferred,
    before it was done.
    """

    channel: str | None
    status: str
    was: str | None = None


class BrokerHttp(HttpClient):
    """HTTP client of one broker of pyqd: single messages, and facts about the broker.

    All calls may be repeated, and are after a failure on the way. If the first attempt succeeded and its answer was
    lost, the result of a cancelled message is `finished`.
    """

    def info(self) -> dict[str, Any]:
        """Return the fields of GET /info: version, broadcast_address, hostname, tcp_port, http_port."""
        return dict(self.json("/info"))

    def cancel(self, topic: str, message_id: str | bytes, channel: str | None = None) -> list[ChannelResult]:
        """Finish a message unread, on one channel or on all. Raises: NotFoundError, and as `json`."""
        return self._change("cancel", topic, message_id, channel)

    def reschedule(
        self,
        topic: str,
        message_id: str | bytes,
        channel: str | None = None,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
    ) -> list[ChannelResult]:
        """Deliver a message after a delay, or at a due time in Unix ms. Raises: NotFoundError, and as `json`."""
        if (delay_ms is None) is (due_ms is None):
            raise SettingError("a message is rescheduled by a delay or to a due time: give one of them")
        when = {"due": due_ms} if delay_ms is None else {"defer": delay_ms}
        return self._change("reschedule", topic, message_id, channel, **when)

    def deliver_now(self, topic: str, message_id: str | bytes, channel: str | None = None) -> list[ChannelResult]:
        """Deliver a deferred message at once. Raises: NotFoundError, and as `json`."""
        return self._change("deliver_now", topic, message_id, channel)

    def _change(
        self, verb: str, topic: str, message_id: str | bytes, channel: str | None, **more: object
    ) -> list[ChannelResult]:
        check_topic(topic)
        query = {"topic": topic, "id": message_id.decode() if isinstance(message_id, bytes) else message_id, **more}
        if channel is not None:
            check_channel(channel)
            query["channel"] = channel
        path = f"/message/{verb}"
        shown = self.post(path, **query)
        try:
            return [ChannelResult(row["channel"], row["status"], row.get("was")) for row in shown["results"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"{self.address}: {path}: not the answer of a broker: {error!r}") from None


def message_of(reply: Reply) -> str:
    """Return the error in an answer: the code in its JSON, or the beginning of its body."""
    try:
        return str(json.loads(reply.body)["message"])
    except (ValueError, KeyError, TypeError):
        return reply.body[:200].decode(errors="replace")
