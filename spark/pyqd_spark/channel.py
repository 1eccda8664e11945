"""Drain of channels into Parquet files: `format("pyqd-channel")`. Reading it consumes the messages.

Each task is a client of the channel. A task receives a batch of messages and lands it as one file, which is on stable
storage under its name before the first FIN is sent. The next batch is received during the landing. The rows of the
table are the manifest: one for each file. So a kill loses no message; messages that were landed and not finished are
delivered again, with their ids.

    taken ---> filling ---> landing (a thread) ---> FIN ---> a row of the manifest
    RDY: both together, at most

For brokers without replay, such as nsqd. Source: docs/nsq/tcp-protocol.md, "RDY", "FIN", "TOUCH", "CLS".
"""

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyqd.client.core.connection import CloseWait, Event, Messages, Refusal
from pyqd.client.errors import RefusedError
from pyqd_spark.brokers import BrokerClient, BrokerError, TopicNotFoundError, UnreachableError
from pyqd_spark.landing import COMPRESSION, COMPRESSIONS, Landing, escape, local_path, make_directories, not_shared
from pyqd_spark.nsq_client import TCP_CONNECTION, BrokenError, BrokerTarget, NsqClient, TcpConnection
from pyqd_spark.options import CONNECTION, Option, OptionError, count_from, parse_options, parse_text

SOURCE: Final = "pyqd-channel"
BATCH_MESSAGES: Final = 10_000
BATCH_BYTES: Final = 64 << 20
IDLE_TIMEOUT_MS: Final = 10_000
# Assumed size of a message before the first one has come; nsqd's --max-msg-size.
MESSAGE_BYTES_GUESS: Final = 1 << 20
# A batch that does not fill is landed after this time, or after a quarter of the lease.
FILL_LONGEST_S: Final = 5.0
RETRY_WAIT_S: Final = 0.5
NOT_FINISHED_CODES: Final = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")

MANIFEST: Final = (
    "file string, node string, topic string, channel string, count bigint, first_id string, last_id string, "
    "unfinished bigint"
)
MANIFEST_SCHEMA: Final = pa.schema(
    [
        (name, pa.int64() if kind == "bigint" else pa.string())
        for name, kind in (column.split() for column in MANIFEST.split(", "))
    ]
)
FILE_SCHEMA: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("node", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ns", pa.int64()),
        ("id", pa.string()),
        ("attempts", pa.int32()),
    ]
)

logger = logging.getLogger(__name__)


def parse_compression(text: str) -> str:
    """Return the compression of the files. Raises: ValueError."""
    if text not in COMPRESSIONS:
        raise ValueError(f"expected one of {', '.join(COMPRESSIONS)}")
    return text


OPTIONS: Final = (
    *CONNECTION,
    *TCP_CONNECTION,
    Option("topic", parse_text),
    Option("channel", parse_text),
    Option("path", local_path),
    Option("connections", count_from(1, 1000), 1),
    Option("maxMessages", count_from(1)),
    Option("idleTimeoutMs", count_from(100, 86_400_000), IDLE_TIMEOUT_MS),
    Option("maxDurationMs", count_from(100)),
    Option("batchMessages", count_from(1, 10_000_000), BATCH_MESSAGES),
    Option("batchBytes", count_from(1024, 1 << 30), BATCH_BYTES),
    Option("msgTimeoutMs", count_from(1000, 86_400_000)),
    Option("compression", parse_compression, COMPRESSION),
)


@dataclass(frozen=True)
class ChannelReadSettings:
    """Options of a drain, as sent to the executors. Times in seconds, None for no bound."""

    tcp: TcpConnection
    topic: str
    channel: str
    path: str
    connections: int
    max_messages: int | None
    idle_timeout_s: float
    max_duration_s: float | None
    batch_messages: int
    batch_bytes: int
    msg_timeout_ms: int | None
    compression: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "ChannelReadSettings":
        """Return the settings. Raises: OptionError."""
        values = parse_options(SOURCE, options, OPTIONS)
        for name in ("topic", "channel", "path"):
            if values[name] is None:
                raise OptionError(f"{SOURCE}: option {name} is needed")
        for name in ("topic", "channel"):
            if any(not "!" <= letter <= "~" for letter in values[name]):
                raise OptionError(f"{SOURCE}: option {name}={values[name]!r}: not a valid name")
        return cls(
            tcp=TcpConnection.of(SOURCE, values),
            topic=values["topic"],
            channel=values["channel"],
            path=os.path.abspath(values["path"]),
            connections=values["connections"],
            max_messages=values["maxMessages"],
            idle_timeout_s=values["idleTimeoutMs"] / 1000,
            max_duration_s=None if values["maxDurationMs"] is None else values["maxDurationMs"] / 1000,
            batch_messages=values["batchMessages"],
            batch_bytes=values["batchBytes"],
            msg_timeout_ms=values["msgTimeoutMs"],
            compression=values["compression"],
        )


@dataclass(frozen=True)
class ChannelPartition(InputPartition):
    """One connection to one broker. share: number of messages it may take; None for all."""

    target: BrokerTarget
    share: int | None


@dataclass(frozen=True)
class ManifestRow:
    """One file of the manifest. unfinished: number of its messages whose FIN is known to have failed."""

    file: str
    node: str
    topic: str
    channel: str
    count: int
    first_id: str
    last_id: str
    unfinished: int


@dataclass
class TakenBatch:
    """Received messages that are not finished. touched_s: start of the first message's lease.

    frames: the messages: see pyqd.client.core.connection.
    """

    started_s: float
    touched_s: float
    frames: list[tuple[Any, ...]] = field(default_factory=list)
    size_bytes: int = 0

    def ids(self) -> list[bytes]:
        return [message_id for _, _, _, message_id, _ in self.frames]

    def commands(self, name: bytes, behind: bytes = b"\n") -> bytes:
        return b"".join([b"%s %s%s" % (name, message_id, behind) for message_id in self.ids()])


def land(settings: ChannelReadSettings, node: str, batch: TakenBatch) -> ManifestRow:
    """Write a batch as one file of the directory under a unique name. Raises: StorageError."""
    _, timestamps_ns, attempts, ids, bodies = zip(*batch.frames, strict=True)
    count = len(ids)
    times = pa.array(timestamps_ns, pa.int64())
    columns = [
        pa.array(bodies, pa.binary()),
        pa.array([settings.topic] * count, pa.string()),
        pa.array([settings.channel] * count, pa.string()),
        pa.array([node] * count, pa.string()),
        times.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False),
        times,
        pa.array(ids, pa.binary()).cast(pa.string()),
        pa.array(attempts, pa.int32()),
    ]
    first, last = ids[0].decode(), ids[-1].decode()
    # Random: a batch taken again after a kill may have the same ends and other messages.
    name = f"messages-{escape(settings.topic)}-{escape(settings.channel)}-{first}-{secrets.token_hex(8)}.parquet"
    with Landing(settings.path, name, FILE_SCHEMA, compression=settings.compression) as landing:
        landing.write(pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA))
        landed = landing.land()
    return ManifestRow(landed.path, node, settings.topic, settings.channel, count, first, last, 0)


class ChannelDrain:
    """One task: takes messages from one broker until there are none, or the share is reached.

    `rows` has the rows of the manifest; `finished` counts messages, including those landed twice.
    """

    def __init__(self, settings: ChannelReadSettings, partition: ChannelPartition) -> None:
        self.settings = settings
        self.partition = partition
        self.rows: list[ManifestRow] = []
        self.finished = 0
        self._node = partition.target.address
        self._lease_s = 60.0
        self._rdy_max = 2500
        self._rdy = 0
        self._taken_count = 0
        self._taken_bytes = 0
        self._filling: TakenBatch | None = None
        self._landing: TakenBatch | None = None
        self._future: Future[ManifestRow] | None = None
        # Files of the last few batches, whose FINs may still fail: by message id, the index of the row.
        self._sent: list[tuple[int, frozenset[bytes]]] = []
        now_s = time.monotonic()
        self._message_s = now_s
        self._stop_s = None if settings.max_duration_s is None else now_s + settings.max_duration_s
        # Deadline of reconnecting since a connection broke and nothing was finished.
        self._give_up_s: float | None = None

    def run(self) -> list[ManifestRow]:
        """Drain, reconnecting when the connection breaks. Raises: RefusedError, UnreachableError, StorageError."""
        with contextlib.ExitStack() as stack:
            # Closed after the end of the thread, which writes to one of them.
            self._wake, self._wake_writer = os.pipe()
            stack.callback(os.close, self._wake)
            stack.callback(os.close, self._wake_writer)
            os.set_blocking(self._wake, False)
            self._pool = stack.enter_context(ThreadPoolExecutor(1, "landing"))
            while True:
                client = self._connected()
                started_s, leaving = time.monotonic(), False
                try:
                    self._consume(client)
                    leaving = True
                    self._leave(client)
                    return self.rows
                except BrokenError as error:
                    lived_s = 0.0 if leaving else time.monotonic() - started_s
                    logger.warning("%s; connecting again", error)
                    self._forget()
                    self._note_break(error, lived_s)
                except BaseException:
                    with contextlib.suppress(BrokerError):
                        self._leave(client)
                    raise
                finally:
                    client.close()

    def _note_break(self, error: BrokenError, lived_s: float) -> None:
        """Allow another connection, unless connections have broken for too long without a finished message.

        lived_s: useful life of the connection. Raises: UnreachableError.
        """
        patience_s = self.settings.tcp.connection.retry_timeout_s
        now_s = time.monotonic()
        if self._give_up_s is None or lived_s > patience_s:
            self._give_up_s = now_s + patience_s
            return
        left_s = self._give_up_s - now_s
        if left_s <= 0:
            raise UnreachableError(f"{error}; the connection breaks repeatedly, tried for {patience_s:g} s")
        time.sleep(min(RETRY_WAIT_S, left_s))

    def _connected(self) -> NsqClient:
        """Subscribe. Raises: RefusedError, UnreachableError."""
        patience_s = self.settings.tcp.connection.retry_timeout_s
        deadline_s = time.monotonic() + patience_s if self._give_up_s is None else self._give_up_s
        broken: BrokerError
        while True:
            try:
                return self._subscribed()
            except (BrokenError, UnreachableError) as error:
                broken = error
            except RefusedError as error:
                if error.code != "E_TOO_MANY_CONNECTIONS":
                    raise
                broken = error
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise UnreachableError(f"{broken}, tried for {patience_s:g} s")
            time.sleep(min(RETRY_WAIT_S, left_s))

    def _subscribed(self) -> NsqClient:
        settings = self.settings
        lease = {} if settings.msg_timeout_ms is None else {"msg_timeout": settings.msg_timeout_ms}
        client = settings.tcp.open(self.partition.target, **lease)
        try:
            self._lease_s = client.identity.get("msg_timeout", 60_000) / 1000
            self._rdy_max = client.identity.get("max_rdy_count", 2500)
            client.send(f"SUB {settings.topic} {settings.channel}\n".encode())
            client.expect(b"OK", f"subscribing to {settings.topic}, channel {settings.channel}")
            self._node = self._node_of(client)
        except BaseException:
            client.close()
            raise
        self._rdy = 0
        self._message_s = time.monotonic()
        return client

    def _node_of(self, client: NsqClient) -> str:
        """Return the id of the broker: pyqd's node, else its TCP address."""
        target = self.partition.target
        if target.is_tcp or not client.returns_ids:
            return client.address
        # The caller retries, so this client must not.
        with BrokerClient(target.address, replace(self.settings.tcp.connection, retry_timeout_s=0.0)) as http:
            try:
                return http.positions(self.settings.topic).node
            except TopicNotFoundError:
                return client.address

    def _target_count(self) -> int:
        """Return the wanted number of messages in a batch, bounded by the options and the broker's RDY limit."""
        mean_bytes = self._taken_bytes // self._taken_count if self._taken_count else MESSAGE_BYTES_GUESS
        by_bytes = self.settings.batch_bytes // max(1, mean_bytes)
        return max(1, min(self.settings.batch_messages, self._rdy_max // 2, by_bytes))

    def _left(self) -> int | None:
        """Return how many more messages may be unfinished or received."""
        return None if self.partition.share is None else self.partition.share - self.finished

    def _rdy_command(self, finishing: int = 0) -> bytes:
        """Return the RDY to send before this many FINs; empty if it hardly changes."""
        wanted = min(2 * self._target_count(), self._rdy_max)
        left = self._left()
        if self._is_time_up():
            wanted = 0
        elif left is not None:
            wanted = min(wanted, left - finishing)
        if wanted == self._rdy or self._rdy < wanted < self._rdy * 5 // 4:
            return b""
        self._rdy = wanted
        return b"RDY %d\n" % wanted

    def _consume(self, client: NsqClient) -> None:
        """Take, land and finish messages until the end has come and all are finished. Raises: BrokenError
        among others.
        """
        while True:
            self._settle(client)
            self._start_landing()
            if self._is_over():
                return
            self._touch(client)
            rdy = self._rdy_command()
            if rdy:
                client.send(rdy)
            self._receive(client)

    def _is_over(self) -> bool:
        if self._filling is not None or self._future is not None:
            return False
        now_s = time.monotonic()
        return self._left() == 0 or self._is_time_up() or now_s - self._message_s >= self.settings.idle_timeout_s

    def _is_time_up(self) -> bool:
        return self._stop_s is not None and time.monotonic() >= self._stop_s

    def _is_full(self) -> bool:
        batch = self._filling
        if batch is None:
            return False
        if len(batch.frames) >= self._target_count() or batch.size_bytes >= self.settings.batch_bytes:
            return True
        in_hand = len(batch.frames) + (len(self._landing.frames) if self._landing is not None else 0)
        fill_s = min(FILL_LONGEST_S, self._lease_s / 4, self.settings.idle_timeout_s / 2)
        return in_hand == self._left() or self._is_time_up() or time.monotonic() - batch.started_s >= fill_s

    def _start_landing(self) -> None:
        """Land the filling batch if it is due and no other is landing."""
        if self._future is None and self._filling is not None and self._is_full():
            self._landing, self._filling = self._filling, None
            self._future = self._pool.submit(land, self.settings, self._node, self._landing)
            self._future.add_done_callback(lambda _: os.write(self._wake_writer, b"."))

    def _settle(self, client: NsqClient) -> None:
        """Send the FINs of the landed batch."""
        if self._future is None or self._landing is None or not self._future.done():
            return
        row = self._future.result()
        batch, self._landing, self._future = self._landing, None, None
        count = len(batch.frames)
        rdy = self._rdy_command(finishing=count)
        # Recorded before the FINs are sent: if the connection breaks, the file exists and its messages may come again.
        self.rows.append(row)
        self._sent = [*self._sent[-7:], (len(self.rows) - 1, frozenset(batch.ids()))]
        client.send(rdy + batch.commands(b"FIN"))
        self.finished += count
        self._give_up_s = None

    def _touch(self, client: NsqClient) -> None:
        """Send TOUCH for messages whose lease would end."""
        now_s = time.monotonic()
        for batch in (self._landing, self._filling):
            if batch is not None and now_s - batch.touched_s > self._lease_s / 3:
                batch.touched_s = now_s
                client.send(batch.commands(b"TOUCH"))

    def _receive(self, client: NsqClient) -> None:
        # Short enough to notice the end of a lease, and the landing time of a batch that does not fill.
        wait_s = min(0.5, self._lease_s / 6, self.settings.idle_timeout_s / 4)
        try:
            events = client.receive(wait_s, self._wake)
        except TimeoutError:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 64)
            return
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Messages):
            now_s = self._message_s = time.monotonic()
            if self._filling is None:
                self._filling = TakenBatch(now_s, now_s)
            size_bytes = sum(len(frame[-1]) for frame in event.frames)
            self._filling.frames += event.frames
            self._filling.size_bytes += size_bytes
            self._taken_count += len(event.frames)
            self._taken_bytes += size_bytes
        elif isinstance(event, Refusal):
            self._note_error(event.data)

    def _note_error(self, text: bytes) -> None:
        """Count a message that could not be finished; it will be delivered again. Raises: RefusedError."""
        said = text.decode(errors="replace")
        if said.split(" ", 1)[0] not in NOT_FINISHED_CODES:
            raise RefusedError(said, self.partition.target.address)
        words = text.split(b" ")
        if words[0] == b"E_FIN_FAILED" and len(words) > 2:
            for index, ids in self._sent:
                if words[2] in ids:
                    self.rows[index] = replace(self.rows[index], unfinished=self.rows[index].unfinished + 1)
        logger.info("%s: %s", self.partition.target.address, said)

    def _leave(self, client: NsqClient) -> None:
        """Requeue the messages in hand and wait for the answer to CLS: the broker has then seen every FIN before it."""
        if self._future is not None:
            # If it lands all the same, its messages come again.
            self._future.cancel()
        client.send(b"RDY 0\n" + self._requeued() + b"CLS\n")
        while True:
            try:
                events = client.receive(client.timeout_s)
            except TimeoutError:
                raise BrokenError(f"{client.address}: CLS: no answer for {client.timeout_s:g} s") from None
            for event in events:
                self._take(event)
            if any(isinstance(event, CloseWait) for event in events):
                break
        # Messages that were on their way.
        client.send(self._requeued())

    def _requeued(self) -> bytes:
        """Return the commands that requeue the messages in hand, so that other clients need not wait for the leases to
        end.
        """
        batches = [batch for batch in (self._landing, self._filling) if batch is not None]
        self._landing = self._filling = self._future = None
        return b"".join([batch.commands(b"REQ", b" 0\n") for batch in batches])

    def _forget(self) -> None:
        """Drop the messages in hand after a break: they come again. A landing file gets its row.

        Raises: StorageError.
        """
        if self._future is not None:
            row = self._future.result()
            self.rows.append(replace(row, unfinished=row.count))
        self._landing = self._filling = self._future = None
        self._sent = []


class PyqdChannelReader(DataSourceReader):
    """Reader that drains a channel; its rows are the manifest."""

    def __init__(self, settings: ChannelReadSettings) -> None:
        self.settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each connection to each broker. Raises: BrokerError, StorageError."""
        make_directories(self.settings.path)
        brokers = self.settings.tcp.targets(self.settings.topic)
        if not brokers:
            raise UnreachableError(f"{SOURCE}: no lookup daemon knows a broker with topic {self.settings.topic}")
        targets = [target for target in brokers for _ in range(self.settings.connections)]
        if self.settings.max_messages is None:
            return [ChannelPartition(target, None) for target in targets]
        share, more = divmod(self.settings.max_messages, len(targets))
        shares = [share + (index < more) for index in range(len(targets))]
        return [ChannelPartition(target, each) for target, each in zip(targets, shares, strict=True) if each]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Drain, and return the manifest. All messages are landed and finished before the first row is returned."""
        if not isinstance(partition, ChannelPartition):
            return iter(())
        if not os.path.isdir(self.settings.path):
            # Before any message is taken: files on an executor's own disk would be lost.
            raise BrokerError(f"{SOURCE}: {not_shared(self.settings.path)}")
        rows = ChannelDrain(self.settings, partition).run()
        columns = {name: [getattr(row, name) for row in rows] for name in MANIFEST_SCHEMA.names}
        return iter([pa.RecordBatch.from_pydict(columns, schema=MANIFEST_SCHEMA)])


class PyqdChannelDataSource(DataSource):
    """format("pyqd-channel")"""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return MANIFEST

    def reader(self, schema: StructType) -> PyqdChannelReader:  # noqa: ARG002
        options: Mapping[str, Any] = dict(self.options)
        return PyqdChannelReader(ChannelReadSettings.of(options))
