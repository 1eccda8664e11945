"""The table of workloads. A new one is a new row; a new kind is a new function in bench.runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["publish", "http_publish", "consume", "consume_upgraded", "end_to_end", "idle"]
Upgrade = Literal["", "tls_v1", "snappy", "deflate"]


@dataclass(frozen=True)
class Workload:
    """One kind of load with its sizes.

    messages: in all, over all connections; a multiple of batch.    batch: messages in a command (1: PUB, more: MPUB)
    outstanding: unanswered commands of a publisher                 rdy: of each consumer
    identify: fields of IDENTIFY of those that subscribe            duration_s: of an idle load
    deadline_s: the load ends by then, complete or not      flags: of the server, besides those of the session
    lines: an /mpub with a message in each line             upgrade: what those that subscribe negotiate
    filler: what bodies are filled with
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
    lines: bool = False
    upgrade: Upgrade = ""
    filler: str = "x"

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


UPGRADES: tuple[tuple[str, Upgrade, int], ...] = (
    ("tls", "tls_v1", 2_000_000),
    ("snappy", "snappy", 2_000_000),
    ("deflate", "deflate", 2_000_000),
)
# Compresses about as well as the events of one service do.
EVENT = (
    '{"event":"order.created","shop":17,"customer":{"id":482913,"country":"DE","segment":"returning"},'
    '"items":[{"sku":"A-1199","count":2,"cents":1299},{"sku":"C-0042","count":1,"cents":450}],"paid":true}'
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
        name="http-pub",
        kind="http_publish",
        what="POST /pub of 200 B, 50 kept connections, one request at a time on each",
        messages=500_000,
        batch=1,
        publishers=50,
        outstanding=1,
    ),
    Workload(
        name="http-mpub",
        kind="http_publish",
        what="POST /mpub, binary, 100 x 200 B a request, 50 kept connections, one request at a time on each",
        messages=4_000_000,
        batch=100,
        publishers=50,
        outstanding=1,
    ),
    Workload(
        name="http-mpub-lines",
        kind="http_publish",
        what="POST /mpub, as http-mpub, but with a message in each line",
        messages=4_000_000,
        batch=100,
        publishers=50,
        outstanding=1,
        lines=True,
    ),
    *(
        Workload(
            name=f"consume-{name}",
            kind="consume_upgraded",
            what=f"consume a filled channel over {name} with FIN, RDY 2500, 4 connections",
            messages=messages,
            publishers=4,
            consumers=4,
            upgrade=upgrade,
            filler=EVENT,
        )
        for name, upgrade, messages in UPGRADES
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
