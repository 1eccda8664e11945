"""The table of workloads of brokers. A new one is a new row; a new kind is a new function in bench.runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["publish", "http_publish", "consume", "end_to_end", "idle", "memory", "start"]
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
    runs_max: runs of each server at most, for what takes long; 0: any
    rate_per_s: messages a second, sent at their times whatever the server does; 0: as answers come
    defer_ms: how long messages are deferred                channels: how many of the topic are consumed
    unconsumed: messages published but not yet consumed by every channel, at most; 0: any
    existing: the channel is there before the load
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
    identify: Mapping[str, int | str | bool] = field(default_factory=dict)
    duration_s: float = 0.0
    deadline_s: float = 120.0
    flags: tuple[str, ...] = ()
    lines: bool = False
    upgrade: Upgrade = ""
    filler: str = "x"
    runs_max: int = 0
    rate_per_s: float = 0.0
    defer_ms: int = 0
    channels: int = 1
    unconsumed: int = 0
    existing: bool = False

    def __post_init__(self) -> None:
        if self.messages % self.batch:
            raise ValueError(f"{self.name}: {self.messages} messages are not a multiple of {self.batch}")

    def flags_of(self, program: str) -> tuple[str, ...]:
        """Return the flags of a server. An nsqd may hold the whole load in memory, which is nsqd at its fastest.

        Otherwise it would write most of the load to files. It keeps its default if the flags already set its storage,
        if the rate is given and nothing piles up, and for starts, which need the files.
        """
        is_small = self.messages <= NSQD_IN_MEMORY_COUNT
        if program != "nsqd" or self.flags or self.rate_per_s or self.kind == "start" or is_small:
            return self.flags
        return (f"-mem-queue-size={self.messages}",)

    def scaled(self, scale: float) -> "Workload":
        """Return the same workload with scale times the messages, idle connections and seconds."""
        messages = max(1, round(self.messages * scale / self.batch)) * self.batch if self.messages else 0
        idlers = max(1, round(self.idlers * scale)) if self.idlers else 0
        return replace(self, messages=messages, idlers=idlers, duration_s=self.duration_s * scale)


UPGRADES: tuple[tuple[str, Upgrade, int], ...] = (
    ("tls", "tls_v1", 2_000_000),
    ("snappy", "snappy", 2_000_000),
    ("deflate", "deflate", 2_000_000),
)
# A client library's IDENTIFY with its defaults, without the fields for output buffers.
DEFAULT_CLIENT: Mapping[str, int | str | bool] = {
    "client_id": "bench",
    "hostname": "localhost",
    "user_agent": "bench/1.0",
    "feature_negotiation": True,
}
# Of each topic and channel, by default.
NSQD_IN_MEMORY_COUNT = 10_000
SYNCED = ("-sync-every=1",)
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
        messages=600_000,
        batch=1,
        publishers=4,
        outstanding=64,
    ),
    *(
        Workload(
            name=f"sync-fin-{consumers}x{rdy}",
            kind="consume",
            what=f"consume with --sync-every=1, for comparison with --sync-fin: {consumers} connections, RDY {rdy:,}",
            messages=messages,
            publishers=4,
            consumers=consumers,
            rdy=rdy,
            flags=SYNCED,
        )
        for consumers, rdy, messages in ((1, 1, 3_000), (1, 100, 100_000), (50, 10, 200_000), (4, 2500, 1_000_000))
    ),
    Workload(
        name="pub-sync-1",
        kind="publish",
        what="publish 200 B one at a time with --sync-every=1, 1 connection",
        messages=2_000,
        batch=1,
        publishers=1,
        outstanding=1,
        flags=SYNCED,
    ),
    Workload(
        name="pub-sync-100",
        kind="publish",
        what="publish 200 B one at a time with --sync-every=1, 100 connections",
        messages=50_000,
        batch=1,
        publishers=100,
        outstanding=1,
        flags=SYNCED,
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
    *(
        Workload(
            name=f"pub-1x{outstanding}",
            kind="publish",
            what=f"publish 200 B one by one, 1 connection, {outstanding:,} outstanding",
            messages=messages,
            batch=1,
            publishers=1,
            outstanding=outstanding,
        )
        for outstanding, messages in ((1, 100_000), (64, 600_000), (1024, 1_000_000))
    ),
    Workload(
        name="pub-50x1",
        kind="publish",
        what="publish 200 B one at a time, 50 connections",
        messages=500_000,
        batch=1,
        publishers=50,
        outstanding=1,
    ),
    Workload(
        name="e2e-50",
        kind="end_to_end",
        what="50 publishers (PUB 200 B one by one, 64 outstanding) and 50 consumers (RDY 200) at once",
        messages=600_000,
        batch=1,
        publishers=50,
        outstanding=64,
        consumers=50,
        rdy=200,
    ),
    Workload(
        name="e2e-1x1",
        kind="end_to_end",
        what="1 publisher (PUB 200 B one by one, 1,024 outstanding) and 1 consumer (RDY 2500) at once",
        messages=1_000_000,
        batch=1,
        publishers=1,
        outstanding=1024,
        consumers=1,
    ),
    *(
        Workload(
            name=f"e2e-{size >> 10}k",
            kind="end_to_end",
            what=f"as e2e with {size >> 10} KiB, {batch} a command and RDY 200",
            messages=messages,
            body_bytes=size,
            batch=batch,
            publishers=4,
            consumers=4,
            rdy=200,
        )
        for size, batch, messages in ((4096, 50, 400_000), (65536, 4, 60_000))
    ),
    *(
        Workload(
            name=f"latency-{rate // 1000}k",
            kind="end_to_end",
            what=f"PUB 200 B at {rate:,} a second, 4 connections; 2 consumers as clients are by default, RDY 200",
            messages=4 * rate,
            batch=1,
            publishers=4,
            outstanding=64,
            consumers=2,
            rdy=200,
            rate_per_s=rate,
            identify=DEFAULT_CLIENT,
        )
        for rate in (10_000, 50_000)
    ),
    Workload(
        name="fanout-16",
        kind="end_to_end",
        what="4 publishers (MPUB 200 x 200 B) into 1 topic with 16 channels, 1 consumer (RDY 2500) on each",
        messages=200_000,
        publishers=4,
        consumers=1,
        channels=16,
    ),
    Workload(
        name="dpub-64",
        kind="publish",
        what="DPUB 200 B one by one into a channel, due in 10 minutes, 1 connection, 64 outstanding",
        messages=600_000,
        batch=1,
        publishers=1,
        outstanding=64,
        defer_ms=600_000,
        existing=True,
    ),
    Workload(
        name="http-pub",
        kind="http_publish",
        what="POST /pub of 200 B, 50 kept connections, one request at a time on each",
        messages=300_000,
        batch=1,
        publishers=50,
        outstanding=1,
    ),
    Workload(
        name="http-mpub-lines",
        kind="http_publish",
        what="POST /mpub, a message in each line, 100 x 200 B, 50 kept connections, one request at a time on each",
        messages=4_000_000,
        batch=100,
        publishers=50,
        outstanding=1,
        lines=True,
    ),
    *(
        Workload(
            name=f"consume-{name}",
            kind="consume",
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
        name="memory-1m",
        kind="memory",
        what="memory for each of 1 M queued messages of 200 B, pages of files apart; nsqd holds them all in memory",
        messages=1_000_000,
        publishers=4,
    ),
    Workload(
        name="start-empty",
        kind="start",
        what="from exec until IDENTIFY and /ping are answered, without data; median of 5 starts a run",
    ),
    Workload(
        name="start-10m",
        kind="start",
        what="as start-empty, and until the depth is right, with 10 M queued messages of 200 B; one run of 5 starts",
        messages=10_000_000,
        publishers=4,
        deadline_s=300.0,
        runs_max=1,
    ),
)


def find(name: str) -> Workload:
    """Return the workload of that name. Raises: KeyError."""
    return {workload.name: workload for workload in WORKLOADS}[name]
