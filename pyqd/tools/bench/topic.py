"""Topic of a measurement: by default a new one, which is deleted afterwards. No other topic is ever deleted."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Final

from pyqd.client.core.commands import check_topic
from pyqd.client.errors import ClientError
from pyqd.client.http import HttpClient
from pyqd.primitives.addresses import TcpAddress
from pyqd.tools.bench.target import BenchTarget
from pyqd.tools.common import Fatal, log

TOKEN_VARIABLE: Final = "PYQD_TOKEN"
TIMEOUT_S: Final = 5.0


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
