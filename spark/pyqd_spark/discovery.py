"""Discovery of the requested topics, their nodes, and their readable positions."""

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from pyqd_spark.brokers import (
    BrokerClient,
    BrokerError,
    Positions,
    TopicNotFoundError,
    UnreachableError,
    find_brokers,
    topics_known,
)
from pyqd_spark.read_options import ReadSettings

# Positions by topic and node id.
Found = dict[tuple[str, str], Positions]

# A stream meets the same loss at each look-up; it is logged again after this time.
TOLD_AGAIN_S: Final = 60.0
_told_s: dict[str, float] = {}

logger = logging.getLogger(__name__)


class DataLossError(Exception):
    """Requested messages cannot be read any more, or may be lost. The text names them and the reason."""


def lose(settings: ReadSettings, text: str) -> None:
    """Raise the error, or log it and go on, as failOnDataLoss says. Raises: DataLossError."""
    if settings.fail_on_data_loss:
        raise DataLossError(f"{text}. To go on without them set failOnDataLoss=false")
    now_s = time.monotonic()
    if now_s - _told_s.get(text, -TOLD_AGAIN_S) >= TOLD_AGAIN_S:
        _told_s[text] = now_s
        logger.warning("%s; going on, as failOnDataLoss is false", text)


def topics_asked(settings: ReadSettings) -> list[str]:
    """Return the names of the requested topics, whether they exist or not. Raises: BrokerError, DataLossError."""
    if settings.pattern is None:
        return list(settings.topics or settings.nodes_of)
    names, failures = topics_known(settings.connection)
    for failure in failures:
        lose(settings, f"which topics there are is not known for sure: {failure}")
    matches = re.compile(settings.pattern).fullmatch
    return sorted(name for name in names if matches(name))


def addresses_of(settings: ReadSettings, topic: str) -> list[str]:
    """Return the brokers that may have a topic. Raises: BrokerError, DataLossError."""
    lookup = find_brokers(settings.connection, topic)
    for failure in lookup.failures:
        lose(settings, f"who has topic {topic} is not known for sure: {failure}")
    return lookup.addresses


class Discovery:
    """Look-ups at brokers over cached connections. Belongs to one thread."""

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings
        self._client_of: dict[str, BrokerClient] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"settings": self.settings, "_client_of": {}}

    def client(self, address: str) -> BrokerClient:
        if address not in self._client_of:
            self._client_of[address] = BrokerClient(address, self.settings.connection)
        return self._client_of[address]

    def close(self) -> None:
        for client in self._client_of.values():
            client.close()
        self._client_of.clear()

    def places(self) -> dict[str, list[str]]:
        """Return the addresses that may have each topic. Raises: BrokerError, DataLossError."""
        return {topic: addresses_of(self.settings, topic) for topic in topics_asked(self.settings)}

    def find(self, places: Mapping[str, Iterable[str]] | None = None, time_ns: int | None = None) -> Found:
        """Return the readable positions by topic and node.

        places: of `places`; looked up if missing. time_ns: for `at` of the answers. Raises: BrokerError, DataLossError.
        """
        found: Found = {}
        for topic, addresses in (self.places() if places is None else places).items():
            for address in addresses:
                self._ask(found, topic, address, time_ns)
        self._keep_assigned(found)
        return found

    def _ask(self, found: Found, topic: str, address: str, time_ns: int | None) -> None:
        try:
            one = self.client(address).positions(topic, time_ns)
        except TopicNotFoundError:
            return
        except UnreachableError as error:
            lose(self.settings, f"topic {topic} cannot be read where it may be: {error}")
            return
        # A node may have several addresses.
        found.setdefault((topic, one.node), one)

    def _keep_assigned(self, found: Found) -> None:
        assigned = {(topic, node) for topic, nodes in self.settings.nodes_of.items() for node in nodes}
        if not assigned:
            return
        for topic, node in sorted(assigned - set(found)):
            lose(self.settings, f"topic {topic} is not there at node {node}, which the option assign names")
        for key in set(found) - assigned:
            del found[key]


def check_topics(settings: ReadSettings, found: Found) -> None:
    """Check that every named topic exists at some node. Raises: DataLossError, BrokerError."""
    missing = sorted(set(settings.topics) - {topic for topic, _ in found})
    if missing:
        where = ", ".join(settings.connection.nsqd or settings.connection.lookupd)
        raise BrokerError(f"no broker has topic {', '.join(missing)} (asked: {where})")
