"""Durability of the brokers: the answers of GET /durability, and the time until a disk is full at its present rate.

Source: docs/http.md, "GET /durability".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyqd.admin.cluster import ClusterNode
from pyqd.admin.history import STEP_S
from pyqd.admin.shapes import ShapeError, answer_of, check_shape
from pyqd.admin.upstream import AbsentCallError, Upstream, UpstreamError

# An nsqd may be replaced by a pyqd at the same address.
ABSENT_POLLS: Final = 60
# Ten minutes: a slope of fewer points follows single segments, and short writes of other programs.
POINTS_MIN: Final = 60
# Beyond this, a forecast from one hour says nothing.
FORECAST_MAX_S: Final = 30 * 86_400.0

# Types in JSON by those of the fields.
KINDS: Final[Mapping[str, type]] = {
    "str": str,
    "bool": bool,
    "int": int,
    "int | None": int,
    "Mapping[str, int]": dict,
    "Sequence[Mapping[str, Any]]": list,
    "Sequence[str]": list,
}

DAMAGE: Final = {"count": (int,), "records_lost": (int,)}
DAMAGED_TOPIC: Final = {**DAMAGE, "topic": (str,), "bytes": (int,)}


@dataclasses.dataclass(frozen=True, slots=True)
class DurabilityState:
    """State of one broker. is_known: False for an nsqd, and for a broker that did not answer; the rest is empty then.

    last_stop: new, clean, kill or power_failure. damaged_topics: rows with topic, count, records_lost and bytes.
    """

    node: str
    hostname: str
    is_known: bool = False
    is_absent: bool = False
    health: str = ""
    sync_every: int = 0
    sync_timeout_ms: int = 0
    unsynced_messages: int = 0
    unsynced_bytes: int = 0
    last_sync: int = 0
    sync_failures: int = 0
    write_failures: int = 0
    last_stop: str = ""
    damage: Mapping[str, int] = dataclasses.field(default_factory=dict)
    damaged_topics: Sequence[Mapping[str, Any]] = ()
    refusing_topics: Sequence[str] = ()
    disk_free_bytes: int | None = None
    disk_free_min_bytes: int = 0

    @classmethod
    def of_answer(cls, node: ClusterNode, found: Mapping[str, Any]) -> DurabilityState:
        """Return the state in an answer. Raises: ShapeError."""
        names = {field.name for field in dataclasses.fields(cls)} & found.keys()
        known: dict[str, Any] = {name: found[name] for name in names if found[name] is not None}
        for field in dataclasses.fields(cls):
            kind = KINDS[str(field.type)]
            if not isinstance(known.get(field.name, kind()), kind):
                raise ShapeError(f"{field.name} is {known[field.name]!r:.100}")
        check_shape(known.setdefault("damage", {"count": 0, "records_lost": 0}), DAMAGE)
        for row in known.get("damaged_topics", ()):
            check_shape(row, DAMAGED_TOPIC)
        if not all(isinstance(topic, str) for topic in known.get("refusing_topics", ())):
            raise ShapeError("refusing_topics has no names")
        return cls(**{**known, "node": node.http_address, "hostname": node.hostname, "is_known": True})

    @property
    def room_bytes(self) -> float:
        """Bytes until publishing is refused; without end if the free space is not known."""
        return math.inf if self.disk_free_bytes is None else max(0, self.disk_free_bytes - self.disk_free_min_bytes)


class DurabilityReader:
    """Asks brokers for their durability, and those without this call only now and then."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._poll_count = 0
        # The poll at which an address is asked again.
        self._absent: dict[str, int] = {}

    def read(self, nodes: Iterable[ClusterNode]) -> dict[str, DurabilityState]:
        nodes = list(nodes)
        self._poll_count += 1
        self._absent = {node: poll for node, poll in self._absent.items() if poll > self._poll_count}
        asked = [node for node in nodes if node.http_address not in self._absent]
        answers, _ = self._upstream.for_each(asked, self._ask)
        found = {each.node: each for each in answers}
        for node in nodes:
            address = node.http_address
            if address in found and found[address].is_absent:
                self._absent[address] = self._poll_count + ABSENT_POLLS
            elif address not in found:
                found[address] = DurabilityState(address, node.hostname, is_absent=address in self._absent)
        return dict(sorted(found.items()))

    def _ask(self, node: ClusterNode) -> DurabilityState:
        try:
            found = self._upstream.get(node.http_address, "/durability")
        except AbsentCallError:
            return DurabilityState(node.http_address, node.hostname, is_absent=True)
        with answer_of(node.http_address, UpstreamError):
            return DurabilityState.of_answer(node, found)


def full_in_s(free_bytes: Sequence[float], room_bytes: float) -> float | None:
    """Return the seconds until publishing is refused at the rate of the last hour; None if that is not to be foreseen.

    free_bytes: as in the history, oldest first, NaN where there is none. The rate is the slope of the line with the
    least squares, because segments are reserved in steps.
    """
    if room_bytes <= 0:
        return 0.0
    points = [(number * STEP_S, value) for number, value in enumerate(free_bytes) if not math.isnan(value)]
    if len(points) < POINTS_MIN:
        return None
    middle_x = math.fsum(x for x, _ in points) / len(points)
    middle_y = math.fsum(y for _, y in points) / len(points)
    slope = math.fsum((x - middle_x) * (y - middle_y) for x, y in points)
    slope /= math.fsum((x - middle_x) ** 2 for x, _ in points)
    if slope >= 0:
        return None
    left_s = room_bytes / -slope
    return left_s if left_s <= FORECAST_MAX_S else None
