"""The table of workloads. A new one is a new row; a new kind is a new function in bench.runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["publish", "consume", "end_to_end", "idle"]


@dataclass(frozen=True)
class Workload:
    """One kind of load with its sizes.

    messages: in all, over all connections; a multiple of batch.    batch: messages in a command (1: PUB, more: MPUB)
    outstanding: unanswered commands of a publisher                 rdy: of each consumer
    identify: fields of IDENTIFY of those that subscribe            duration_s: of an idle load
    deadline_s: the load ends by then, complete or not      flags: of the server, besides those of the session
    """

    name: str
    kind: Kind
    what: str
    messages: int = 0
    body_bytes: int = 200
    batch: int = 200
    publishers: int = 0
    outstanding: int = 4
    consumers: int = 0
    rdy: int = 2500
    idlers: int = 0
    identify: Mapping[str, int | str] = field(default_factory=dict)
    duration_s: float = 0.0
    deadline_s: float = 120.0
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.messages % self.batch:
            raise ValueError(f"{self.name}: {self.messages} messages are not a multiple of {self.batch}")

    def scaled(self, scale: float) -> "Workload":
        """Return the same workload with scale times the messages, idle connections and seconds."""
        messages = max(1, round(self.messages * scale / self.batch)) * self.batch if self.messages else 0
        return replace(
            self,
            messages=messages,
            idlers=max(1, round(self.idlers * scale)) if self.idlers else 0,
            duration_s=self.duration_s * scale,
        )


WORKLOADS = (
    Workload(
        name="mpub",
        kind="publish",
        what="publish 200 x 200 B a command into one topic, 4 connections",
        messages=8_000_000,
        publishers=4,
    ),
    Workload(
        name="pub",
        kind="publish",
        what="publish 200 B one by one, 4 connections, 64 commands outstanding on each",
        messages=1_000_000,
        batch=1,
        publishers=4,
        outstanding=64,
    ),
    Workload(
        name="pub-sync-1",
        kind="publish",
        what="publish 200 B one at a time with --sync-every=1, 1 connection",
        messages=2_000,
        batch=1,
        publishers=1,
        outstanding=1,
        flags=("-sync-every=1",),
    ),
    Workload(
        name="pub-sync-100",
        kind="publish",
        what="publish 200 B one at a time with --sync-every=1, 100 connections",
        messages=50_000,
        batch=1,
        publishers=100,
        outstanding=1,
        flags=("-sync-every=1",),
    ),
    Workload(
        name="consume-1",
        kind="consume",
        what="consume a filled channel with FIN, RDY 2500, 1 connection",
        messages=4_000_000,
        publishers=4,
        consumers=1,
    ),
    Workload(
        name="consume-4",
        kind="consume",
        what="consume a filled channel with FIN, RDY 2500, 4 connections",
        messages=4_000_000,
        publishers=4,
        consumers=4,
    ),
    Workload(
        name="e2e",
        kind="end_to_end",
        what="4 publishers (MPUB 200 x 200 B) and 4 consumers (RDY 2500) at once",
        messages=4_000_000,
        publishers=4,
        consumers=4,
    ),
    Workload(
        name="idle",
        kind="idle",
        what="5,000 subscribed connections with the default heartbeat of 30 s",
        idlers=5_000,
        duration_s=35.0,
    ),
    Workload(
        name="idle-hb5",
        kind="idle",
        what="5,000 subscribed connections with a heartbeat of 5 s",
        idlers=5_000,
        identify={"heartbeat_interval": 5000},
        duration_s=15.0,
    ),
)


def find(name: str) -> Workload:
    """Return the workload of that name. Raises: KeyError."""
    return {workload.name: workload for workload in WORKLOADS}[name]
