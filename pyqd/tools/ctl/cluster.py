"""Brokers of a target, asked at the same time, also those that lookup daemons name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pyqd.client.errors import ClientError, ProtocolError
from pyqd.client.trust import TrustedBrokers
from pyqd.primitives.addresses import TcpAddress
from pyqd.tools.ctl.contexts import CtlTarget
from pyqd.tools.ctl.nodes import AskedBroker, AskedLookupDaemon, AskedNode, https_address

THREADS_MAX: Final = 32
WITHOUT_TOKEN: Final = "%s is asked without the token: a lookup daemon tells this address, and no --trusted-broker does"

N = TypeVar("N", bound=AskedNode)
T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[N, T]):
    """Answer of one daemon to a call."""

    node: N
    value: T


@dataclass(frozen=True)
class Failure:
    """Error of one daemon. address: as it was given, or as a lookup daemon named it."""

    address: str
    error: ClientError


@dataclass(frozen=True)
class Answers(Generic[N, T]):
    """Answers of several daemons to one call, in the order of the daemons, and the errors of the others."""

    answers: list[Answer[N, T]]
    failures: list[Failure]


class TargetCluster:
    """Brokers and lookup daemons of a target, with their connections."""

    def __init__(self, target: CtlTarget, timeout_s: float) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self.failures: list[Failure] = []
        # Brokers of lookup daemons that are asked without the token, because the operator has not named them.
        self.strangers: list[str] = []
        self._token = target.token()
        self._trusted = TrustedBrokers(target.settings.trusted_brokers)
        self._brokers: dict[str, AskedBroker] = {}
        self._lookup_daemons: dict[str, AskedLookupDaemon] = {}

    def close(self) -> None:
        for node in (*self._brokers.values(), *self._lookup_daemons.values()):
            node.close()

    def lookup_daemons(self) -> list[AskedLookupDaemon]:
        """Return the lookup daemons; none if addresses of brokers are given."""
        settings = self.target.settings
        for address in settings.lookupd_http_addresses:
            if address not in self._lookup_daemons:
                made = AskedLookupDaemon(
                    address, self.target, settings.lookupd_token, self.timeout_s, tls=self.target.wants_tls
                )
                self._lookup_daemons[address] = made
        return list(self._lookup_daemons.values())

    def brokers(self) -> list[AskedBroker]:
        """Return the brokers: those given, or those that the lookup daemons name now. Raises: ClientError.

        A lookup daemon that does not answer is noted in `failures`, if another one answers.
        """
        given = self.target.settings.nsqd_http_addresses
        addresses = dict.fromkeys(given, True) if given else self._found()
        self.strangers = [address for address, is_trusted in addresses.items() if self._token and not is_trusted]
        for address, is_trusted in addresses.items():
            if address not in self._brokers:
                self._brokers[address] = self.new_broker(address, self.timeout_s, is_trusted=is_trusted)
        return [self._brokers[address] for address in addresses]

    def new_broker(self, address: str, timeout_s: float, *, is_trusted: bool) -> AskedBroker:
        """Return a client of a broker, with the token if the broker is trusted."""
        # Read again: the file may have another token by now.
        token = self.target.token() if is_trusted else None
        return AskedBroker(address, self.target, token, timeout_s, tls=self.target.wants_tls)

    def _found(self) -> dict[str, bool]:
        """Return the addresses that the lookup daemons tell, and whether each is trusted. Raises: ClientError."""
        found = ask(self.lookup_daemons(), named_brokers)
        if found.failures and not found.answers:
            raise found.failures[0].error
        self.failures += found.failures
        places = dict.fromkeys(place for answer in found.answers for place in answer.value)
        if not self.target.wants_tls:
            return {str(place): self._trusted.has(str(place)) for place in places}
        secured: dict[str, bool] = {}
        failures: list[Failure] = []
        for place in places:
            try:
                secured[https_address(place, self.timeout_s)] = self._trusted.has(str(place))
            except ClientError as error:
                failures.append(Failure(str(place), error))
        self.failures += failures
        if failures and not secured:
            raise failures[0].error
        return secured


def named_brokers(daemon: AskedLookupDaemon) -> list[TcpAddress]:
    """Return the HTTP address of each broker that a lookup daemon knows. Raises: ClientError."""
    return [http_address_of(node) for node in nodes_of(daemon)]


def nodes_of(daemon: AskedLookupDaemon) -> list[dict[str, Any]]:
    """Return the entries of the brokers in GET /nodes. Raises: ClientError."""
    found = daemon.get("/nodes").get("producers")
    if not isinstance(found, list) or not all(
        isinstance(node, dict)
        and isinstance(node.get("broadcast_address"), str)
        and isinstance(node.get("http_port"), int)
        for node in found
    ):
        raise ProtocolError(f"{daemon.address}: GET /nodes: not the answer of a lookup daemon")
    return found


def http_address_of(node: Mapping[str, Any]) -> TcpAddress:
    return TcpAddress(node["broadcast_address"], node["http_port"])


def ask(nodes: Iterable[N], call: Callable[[N], T]) -> Answers[N, T]:
    """Make a call at each daemon, at the same time, and return answers and errors."""
    asked = list(nodes)

    def one(node: N) -> Answer[N, T] | Failure:
        try:
            return Answer(node, call(node))
        except ClientError as error:
            return Failure(node.address, error)

    if len(asked) > 1:
        with ThreadPoolExecutor(min(THREADS_MAX, len(asked))) as pool:
            results = list(pool.map(one, asked))
    else:
        results = [one(node) for node in asked]
    return Answers(
        [result for result in results if isinstance(result, Answer)],
        [result for result in results if isinstance(result, Failure)],
    )
