"""Trace events of brokers for Spark: positions of the logs, and ranges of them, whose events become Parquet files.

Source: docs/trace.md, "Reading" and "Columns".
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import pyqd
from pyqd.client.errors import ProtocolError
from pyqd.client.http import Reply
from pyqd_spark.brokers import BrokerClient, BrokerError, OtherNodeError, check_format, find_brokers
from pyqd_spark.jobs.errors import JobError
from pyqd_spark.landing import Landing, not_shared
from pyqd_spark.options import BrokerOptions

PATH: Final = "/trace/log"
TRACE_PAGE_BYTES: Final = 2 << 20
# A range is not cut smaller than this only to keep more tasks busy, nor into more pieces than this.
EVENTS_PER_RANGE_MIN: Final = 100_000
RANGES_MAX: Final = 256

LOST: Final = "lost_events"
EPHEMERAL: Final = "ephemeral"

SCHEMA: Final = pa.schema(
    [
        ("node", pa.string()),
        ("position", pa.int64()),
        ("timestamp_ns", pa.int64()),
        ("kind", pa.string()),
        ("message_id", pa.string()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("client", pa.string()),
        ("attempt", pa.int32()),
        ("size_bytes", pa.int32()),
        ("due_ns", pa.int64()),
        ("count", pa.int64()),
        ("reason", pa.string()),
    ]
)
_SPARK_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int"}
# The same for Spark.
DDL: Final = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in SCHEMA)


class LogEnd(NamedTuple):
    """Log of a broker. oldest, end: positions of the oldest event that is kept, and after the newest."""

    node: str
    address: str
    oldest: int
    end: int


@dataclass(frozen=True)
class EventRange:
    """Events of one broker with positions in [first, stop). is_first: no range of this run comes before it."""

    node: str
    first: int
    stop: int
    is_first: bool


class TraceLogClient(BrokerClient):
    """Client of a broker's trace log."""

    def log_end(self) -> LogEnd:
        """Return the positions of the log. Raises: BrokerError, UnreachableError."""
        reply = self.trace_log(0, 1)
        oldest, end = (int(self._header(reply, name)) for name in ("x-pyqd-oldest", "x-pyqd-end"))
        return LogEnd(self._header(reply, "x-pyqd-node"), self.address, oldest, end)

    def trace_log(self, position: int, bytes_max: int = TRACE_PAGE_BYTES) -> Reply:
        """Return the blocks from a position on. Raises: BrokerError, UnreachableError."""
        query = {"position": position, "max_bytes": bytes_max}
        reply = self.request("GET", PATH, query)
        if reply.status == HTTPStatus.NOT_FOUND:
            raise BrokerError(f"{self.address}: the broker has no event log: it is nsqd, or an older pyqd")
        if reply.status != HTTPStatus.OK:
            raise self.refusal(PATH, query, reply)
        check_format(self.address, reply.headers.get("x-pyqd-format"))
        return reply

    def events(self, part: EventRange) -> Iterator[pa.RecordBatch]:
        """Yield the events of a range. Raises: BrokerError, UnreachableError; JobError without compiled modules."""
        try:
            from pyqd.hot.wire.trace_events import decode
        except ImportError as error:
            # The zip for executors has Python modules only.
            raise JobError(
                f"{socket.gethostname()} cannot decode trace events: {error}: install pyqd {pyqd.__version__} in the "
                "Python of the executors, its zip is not enough for this job"
            ) from None
        position = expected = part.first
        while expected < part.stop:
            reply = self.trace_log(position)
            node = self._header(reply, "x-pyqd-node")
            if node != part.node:
                raise OtherNodeError(f"{self.address} is served by node {node}, and no longer by {part.node}")
            decoded = decode(reply.body, expected, True)
            if decoded.rows:
                yield batch_of(decoded, part)
            expected = max(expected, decoded.following)
            following = int(self._header(reply, "x-pyqd-next"))
            if following <= position:
                return
            position = following

    def _header(self, reply: Reply, name: str) -> str:
        try:
            return reply.headers[name]
        except KeyError:
            raise ProtocolError(f"{self.address}: {PATH}: the answer has no header {name}") from None


def batch_of(decoded: Any, part: EventRange) -> pa.RecordBatch:
    """Return decoded events that are in a range. A gap that reaches into the next range is cut off at its end."""
    from pyqd.fallback.trace_rows import record_batch

    table = pa.Table.from_batches([record_batch(decoded)])
    positions = table["position"]
    table = table.filter(pc.less(positions, part.stop))
    columns = {field.name: table[field.name].cast(field.type) for field in SCHEMA if field.name != "node"}
    columns["count"] = _cut(columns, part)
    columns["node"] = pa.array([part.node] * table.num_rows, pa.string())
    whole = pa.table(columns).select(SCHEMA.names)
    if not part.is_first:
        # The range before has it, unless the number of events is known.
        unknown = pc.and_(pc.equal(whole["kind"], LOST), pc.is_null(whole["count"]))
        whole = whole.filter(pc.invert(pc.and_(unknown, pc.equal(whole["position"], part.first))))
    batches = whole.combine_chunks().to_batches()
    return batches[0] if batches else SCHEMA.empty_table().to_batches()[0]


def _cut(columns: dict[str, Any], part: EventRange) -> Any:
    """Return the counts, those of gaps not beyond the range."""
    is_gap = pc.equal(columns["kind"], LOST)
    longest = pc.subtract(pa.scalar(part.stop, pa.int64()), columns["position"])
    cut = pc.min_element_wise(columns["count"], longest, skip_nulls=False)
    return pc.if_else(is_gap, cut, columns["count"])


def look(connection: BrokerOptions) -> list[LogEnd]:
    """Return the logs of all brokers. Raises: UnreachableError if one of them does not answer, BrokerError."""
    found: dict[str, LogEnd] = {}
    for address in find_brokers(connection).addresses:
        with TraceLogClient(address, connection) as client:
            log = client.log_end()
            found[log.node] = log
    return list(found.values())


def cut(node: str, first: int, stop: int, cores: int) -> list[EventRange]:
    """Return adjacent ranges of about the same size for the events of a broker."""
    count = max(1, min((stop - first) // EVENTS_PER_RANGE_MIN, 2 * cores, RANGES_MAX))
    edges = [first + (stop - first) * number // count for number in range(count + 1)]
    return [EventRange(node, edges[at], edges[at + 1], at == 0) for at in range(count) if edges[at] < edges[at + 1]]


@dataclass(frozen=True)
class EventTask:
    """Task of a run: the events of a range into a file. number: of the range. directory: shared with the driver."""

    number: int
    range: EventRange
    address: str
    directory: str
    connection: BrokerOptions


def land_events(task: EventTask) -> dict[str, Any]:
    """Write the events of a range as Parquet, those on many messages excepted.

    Returns: `rows`; `many`, the events on many messages and gaps; `ignored`, the number of events on many messages that
    do not tell which ones; or `error` if the broker failed. Raises: StorageError.
    """
    if not os.path.isdir(task.directory):
        return {"error": not_shared(task.directory)}
    many = Many()
    name = f"events-{task.number:05d}.parquet"
    try:
        with (
            TraceLogClient(task.address, task.connection) as client,
            Landing(task.directory, name, SCHEMA) as landing,
        ):
            for batch in _without_many(client.events(task.range), many):
                landing.write(batch)
            landed = landing.land()
    except (BrokerError, JobError) as error:
        return {"error": str(error)}
    return {"rows": landed.rows, "many": many.rows, "ignored": many.ignored}


@dataclass
class Many:
    """Events on many messages, and gaps.

    ignored: number of those of ephemeral topics and channels, which do not tell the messages that they dropped. An
    ephemeral channel without a ready consumer has one for each batch, so that all would not fit into memory.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    ignored: int = 0

    def add(self, found: pa.RecordBatch) -> None:
        told = found.filter(pc.not_equal(pc.fill_null(found.column("reason"), ""), EPHEMERAL))
        self.rows += told.to_pylist()
        self.ignored += found.num_rows - told.num_rows


def _without_many(batches: Iterator[pa.RecordBatch], many: Many) -> Iterator[pa.RecordBatch]:
    """Yield batches without the events on many messages and the gaps, which are added to `many`."""
    for batch in batches:
        is_one = pc.and_(pc.is_null(batch["count"]), pc.not_equal(batch["kind"], LOST))
        if pc.all(is_one).as_py():
            yield batch
        else:
            many.add(batch.filter(pc.invert(is_one)))
            yield batch.filter(is_one)
