"""Broker under load: its answer to IDENTIFY, its process, the errors of connections in words for the user, and a topic.

By default the topic is a new one, which is deleted afterwards. No other topic is ever deleted.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Any, Final

from pyqd.client.core.commands import check_topic
from pyqd.client.errors import ClientError
from pyqd.client.http import HttpClient
from pyqd.primitives.addresses import TcpAddress, split_address
from pyqd.tools.bench.connections import Address, Connections, ForeignError, Handshake, LoadHandshakeError, expect_ok
from pyqd.tools.bench.process import serving_process
from pyqd.tools.common import Fatal, log, user_agent

TOOL: Final = "pyq_bench"
TOKEN_VARIABLE: Final = "PYQD_TOKEN"
TIMEOUT_S: Final = 5.0
# Words in the errors of brokers, and the remedy for each.
REMEDIES: Final = (
    ("TLS required", "pyq_bench does not speak TLS; measure a broker that runs without --tls-required"),
    ("E_AUTH_DISABLED", "the broker demands no authorization; leave out --auth-secret"),
    ("E_AUTH", "is --auth-secret right?"),
    ("E_UNAUTHORIZED", "the secret of --auth-secret does not permit this topic or channel"),
    ("E_BAD_MESSAGE", "lower --size, or raise the broker's --max-msg-size"),
    ("E_BAD_BODY", "lower --size or --batch-size, or raise the broker's --max-msg-size and --max-body-size"),
    ("E_PUB_FAILED", "the broker's log has the cause; is its disk full?"),
    ("E_MPUB_FAILED", "the broker's log has the cause; is its disk full?"),
    ("has brought no message", "--channel names one that has messages, --timeout sets the limit"),
    ("connection closed", "has the broker stopped? its log has the cause"),
    ("Connection reset", "has the broker stopped? its log has the cause"),
    ("Broken pipe", "has the broker stopped? its log has the cause"),
)


def with_remedy(text: str) -> str:
    return next((f"{text}; {remedy}" for word, remedy in REMEDIES if word in text), text)


@dataclass(frozen=True)
class BenchTarget:
    """A broker. rdy_max: the highest RDY that it takes. process: its id, None if it is on another machine."""

    name: str
    address: Address
    version: str
    rdy_max: int
    process: int | None
    timeout_s: float
    secret: str = field(default="", repr=False)

    def open(self, count: int, topic: str = "", channel: str = "") -> Connections:
        """Return connections that are ready for load, subscribed if there is a channel. Raises: Fatal."""
        handshake = Handshake(identify(), topic, channel, secret=self.secret)
        try:
            return Connections.open(self.address, count, handshake, timeout_s=self.timeout_s)
        except (OSError, LoadHandshakeError) as error:
            raise Fatal(reason(self.name, error)) from None


def identify() -> dict[str, Any]:
    """Return the fields of IDENTIFY; there are none for output buffers, which so have the broker's settings."""
    hostname = socket.gethostname()
    return {
        "client_id": hostname.partition(".")[0],
        "hostname": hostname,
        "user_agent": user_agent(TOOL),
        "feature_negotiation": True,
    }


def probe(address: str, secret: str, timeout_s: float) -> BenchTarget:
    """Return the broker at an address. Raises: Fatal, with the remedy."""
    try:
        place = split_address(address)
    except ValueError as error:
        raise Fatal(f"--nsqd-tcp-address: {error}") from None
    if not isinstance(place, TcpAddress):
        raise Fatal(f"--nsqd-tcp-address: {address} has no port; pyq_bench needs host:port, such as 127.0.0.1:4150")
    host_and_port = place.host or "127.0.0.1", place.port
    try:
        with socket.create_connection(host_and_port, timeout=timeout_s) as connection:
            connection.sendall(Handshake(identify()).preamble())
            answer = json.loads(expect_ok(connection))
            process = serving_process(connection)
    except (OSError, LoadHandshakeError, ValueError) as error:
        raise Fatal(reason(address, error)) from None
    if answer.get("auth_required") and not secret:
        raise Fatal(f"{address} demands authorization; give --auth-secret")
    name, rdy_max = str(answer.get("version", "unknown")), int(answer.get("max_rdy_count", 2500))
    return BenchTarget(address, host_and_port, name, rdy_max, process, timeout_s, secret)


def reason(address: str, error: Exception) -> str:
    """Return the text for a connection that could not be opened, with the remedy."""
    if isinstance(error, ForeignError) and str(error) == "HTTP":
        return f"{address} speaks HTTP; give the address of the TCP protocol, whose port is 4150 by default"
    if isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError):
        # The codec idna of the socket module. UnicodeDecodeError comes from an answer that is no text.
        return f"cannot find the host of {address}: {error}"
    if isinstance(error, (ForeignError, ValueError)):
        return f"{address} does not speak NSQ's protocol; give the TCP address of nsqd or pyqd"
    if isinstance(error, TimeoutError):
        return f"{address} gave no answer in time; is it the TCP address of nsqd or pyqd? --timeout sets the limit"
    if isinstance(error, LoadHandshakeError):
        return f"{address}: {with_remedy(str(error))}"
    if isinstance(error, socket.gaierror):
        return f"cannot find the host of {address}: {error.strerror}"
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot connect to {address}: {cause}; is the broker running, and is this its TCP address?"


@dataclass(frozen=True)
class BenchTopic:
    """A topic. http: deletes it at the end; None if it stays. is_new: it has a name that nobody else knows."""

    name: str
    is_new: bool
    http: HttpClient | None

    def clean_up(self) -> None:
        """Delete the topic if this run has made it and shall not leave it."""
        if self.http is None:
            return
        try:
            reply = self.http.request("POST", "/topic/delete", {"topic": self.name}, retry=False)
            failure = "" if reply.status in (200, 404) else f"status {reply.status}"
        except ClientError as error:
            failure = str(error)
        finally:
            self.http.close()
        if failure:
            log(f"WARNING: topic {self.name} is not deleted: {failure}; delete it with: pyqctl delete {self.name}")


def prepare(target: BenchTarget, name: str, http_address: str, keeps: bool, deletes: bool) -> BenchTopic:
    """Return the topic for a measurement. name: of the user, may be empty. Raises: Fatal, InvalidNameError."""
    is_new = not name
    if name:
        check_topic(name)
        if keeps:
            raise Fatal("--keep-topic is for a topic without a name; leave it out: a topic of --topic stays by default")
    elif deletes:
        raise Fatal("--delete-topic needs --topic; a topic without a name is deleted by default")
    name = name or f"pyq_bench-{secrets.token_hex(4)}"
    if keeps or not (is_new or deletes):
        return BenchTopic(name, is_new, None)
    http = reached(target, http_address, is_new)
    if exists(http, name):
        raise Fatal(
            f"topic {name} exists already, and pyq_bench deletes only topics that it makes; omit --delete-topic"
        )
    return BenchTopic(name, is_new, http)


def reached(target: BenchTarget, http_address: str, is_new: bool) -> HttpClient:
    """Return the client of the broker's HTTP API, which deletes topics. Raises: Fatal if it does not answer."""
    host, port = target.address
    address = http_address or str(TcpAddress(host, port + 1))
    remedy = "--nsqd-http-address names its HTTP address; " + (
        "--keep-topic leaves the topic, --topic uses one of yours" if is_new else "omit --delete-topic to leave it"
    )
    try:
        http = HttpClient(address, token=os.environ.get(TOKEN_VARIABLE), timeout_s=TIMEOUT_S, retry_timeout_s=0.0)
        info = http.json("/info")
    except ClientError as error:
        raise Fatal(f"no HTTP API to delete the topic with afterwards: {error}; {remedy}") from None
    # A guessed address may be that of another broker.
    if not http_address and (not isinstance(info, dict) or info.get("tcp_port") != port):
        raise Fatal(f"cannot delete the topic afterwards: {address} is not the HTTP API of {target.name}; {remedy}")
    return http


def exists(http: HttpClient, name: str) -> bool:
    """Return whether the broker has a topic. Raises: Fatal."""
    try:
        stats = http.json("/stats", format="json", topic=name, include_clients="false")
    except ClientError as error:
        raise Fatal(f"cannot tell whether topic {name} exists: {error}") from None
    topics = stats.get("topics") or () if isinstance(stats, dict) else ()
    return any(each.get("topic_name") == name for each in topics)
