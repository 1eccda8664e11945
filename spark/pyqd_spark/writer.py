"""Tables to topics: the task side of `df.write.format("pyqd")` and `writeStream`.

At least once: a row is published when its broker has said OK. Rows that a lost broker has not confirmed are published
again to the next one. So a row may be published twice. With `withId=true` each body starts with an id that the same row
of the same task has in every attempt: query, batch, partition and index.

A task sends commands ahead of their answers, up to a window, and keeps the unanswered rows.
"""

import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType, TimestampType

from pyqd.client.errors import RefusedError
from pyqd.primitives.backoff import NO_JITTER, Backoff
from pyqd_spark.brokers import BrokerError, UnreachableError
from pyqd_spark.frames import OFFSET_BYTES, BodyColumn
from pyqd_spark.nsq_client import OK, TCP_CONNECTION, BrokenError, BrokerTarget, NsqClient, TcpConnection
from pyqd_spark.options import CONNECTION, Option, OptionError, count_from, parse_flag, parse_options, parse_text

# nsqd's default of --max-body-size.
BODY_BYTES_MAX: Final = 5_242_880
WINDOW_COMMANDS: Final = 32
WINDOW_BYTES: Final = 16 << 20
# A broker may close a connection that is silent for two of its heartbeats, 60 s.
IDLE_LONGEST_S: Final = 20.0
RETRY_FIRST_S: Final = 0.05
RETRY_LONGEST_S: Final = 2.0
# Unread answers wait in buffers during sending: this number fits both sides' buffers.
DPUB_COMMANDS: Final = 250

SOURCE: Final = "pyqd"
OPTIONS: Final = (
    *CONNECTION,
    *TCP_CONNECTION,
    Option("topic", parse_text),
    Option("maxBodyBytes", count_from(1024, 2**31 - 1), BODY_BYTES_MAX),
    Option("withId", parse_flag, False),
    Option("writeId", parse_text),
)
# Spark passes on options of its own.
STREAM_OPTIONS: Final = (*OPTIONS, Option("checkpointLocation", str), Option("queryName", str))

DEFERRED_UNTIL: Final = "deferred_until"
DEFER_MS: Final = "defer_ms"
# Columns of this format's reader that a writer ignores, so that a table that was read can be written as it is.
READ_COLUMNS: Final = frozenset(
    {"partition", "node", "offset", "timestamp", "timestamp_ns", "id", "attempts", "channel"}
)

# Characters that would break a command's line; other invalid names are refused by the broker.
_LINE_BREAKING = re.compile(r"[^!-~]")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteSettings:
    """Options and schema of a write, as sent to the executors."""

    tcp: TcpConnection
    topic: str | None
    due_column: str | None
    body_bytes_max: int
    with_id: bool
    write_id: str

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, known: Iterable[Option] = OPTIONS) -> "WriteSettings":
        """Return the settings of a write from its options and its columns.

        Raises: OptionError for options, ValueError for columns.
        """
        values = parse_options(SOURCE, options, known)
        return cls(
            tcp=TcpConnection.of(SOURCE, values),
            topic=values["topic"],
            due_column=check_columns(schema, values["topic"]),
            body_bytes_max=values["maxBodyBytes"],
            with_id=values["withId"],
            write_id=values["writeId"] or uuid.uuid4().hex,
        )


def check_columns(schema: StructType, topic: str | None) -> str | None:
    """Check the columns of a table to be written. Returns: the column with due times, or None.

    Raises: ValueError, OptionError if no topic is named.
    """
    allowed: dict[str, tuple[type, ...]] = {
        "value": (BinaryType, StringType),
        "topic": (StringType,),
        DEFERRED_UNTIL: (TimestampType,),
        DEFER_MS: (ShortType, IntegerType, LongType),
    }
    for field in schema.fields:
        if field.name in READ_COLUMNS:
            continue
        if field.name not in allowed:
            known = ", ".join(allowed)
            raise ValueError(f'{SOURCE}: cannot write column "{field.name}": written are {known}; select those')
        if not isinstance(field.dataType, allowed[field.name]):
            wanted = " or ".join(kind().simpleString() for kind in allowed[field.name])
            raise ValueError(f"{SOURCE}: column {field.name} is {field.dataType.simpleString()} and has to be {wanted}")
    if "value" not in schema.names:
        raise ValueError(f"{SOURCE}: no column value, the messages' bodies, among {', '.join(schema.names)}")
    if topic is None and "topic" not in schema.names:
        raise OptionError(f"{SOURCE}: no topic: give the option topic, or a column topic")
    due = [name for name in (DEFERRED_UNTIL, DEFER_MS) if name in schema.names]
    if len(due) > 1:
        raise ValueError(f"{SOURCE}: columns {DEFERRED_UNTIL} and {DEFER_MS} both say when a message is due; drop one")
    return due[0] if due else None


@dataclass
class Published(WriterCommitMessage):
    """Result of a task. rows: answered with OK. repeated: of these, sent again because an answer was missing."""

    partition: int
    rows: int
    repeated: int
    brokers: tuple[str, ...]


class TopicRun(NamedTuple):
    """Rows of one topic, in order. number: of earlier rows of the topic in this task."""

    topic: str
    column: BodyColumn
    number: int


class Piece(NamedTuple):
    """Rows sent in one go whose answers are due. answers: their number."""

    run: TopicRun
    first: int
    end: int
    answers: int
    bytes: int


class TaskPublisher:
    """Publisher of one task: its connection, its unanswered rows, and the order of brokers after failures.

    start: index of the first broker. label: the beginning of the ids, or empty for none.
    """

    def __init__(self, settings: WriteSettings, start: int, label: str = "") -> None:
        self.settings = settings
        self.rows = 0
        self.repeated = 0
        self.brokers: dict[str, None] = {}
        self._label = label.encode()
        self._turn = start
        self._client: NsqClient | None = None
        self._waiting: deque[Piece] = deque()
        self._waiting_bytes = 0
        self._answered = 0  # of the oldest waiting piece

    def publish(self, run: TopicRun) -> None:
        """Send the rows of a run; some answers may still be due. Raises: BrokerError."""
        self._send_all([(run, 0, run.column.rows)])

    def flush(self) -> None:
        """Wait for all answers. Raises: BrokerError."""
        while self._waiting:
            try:
                self._read_answers()
            except BrokenError as error:
                self._send_all(self._give_up(error))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _send_all(self, todo: list[tuple[TopicRun, int, int]]) -> None:
        """Send rows of runs. If the connection breaks, its unanswered rows are sent again before them."""
        while todo:
            client = self._connected()
            run, first, end = todo[0]
            piece, data = self._built(client, run, first, end)
            todo[:1] = [(run, piece.end, end)] if piece.end < end else []
            # From here on the piece belongs to the window: a connection that breaks may have delivered it.
            self._waiting.append(piece)
            self._waiting_bytes += piece.bytes
            try:
                self._send(client, data)
                while self._is_full():
                    self._read_answers()
            except BrokenError as error:
                todo[:0] = self._give_up(error)

    def _is_full(self) -> bool:
        """Return whether answers must be read before more is sent."""
        if not self._waiting:
            return False
        too_many = len(self._waiting) >= WINDOW_COMMANDS or self._waiting_bytes > WINDOW_BYTES
        return too_many or self._waiting[-1].answers > 1

    def _send(self, client: NsqClient, data: bytes) -> None:
        try:
            client.send(data)
        except RefusedError as error:
            raise refusal(error) from error

    def _built(self, client: NsqClient, run: TopicRun, first: int, end: int) -> tuple[Piece, bytes]:
        """Return as many rows as fit into a command, or into several for a broker without DMPUB."""
        if run.column.times is not None and not client.returns_ids:
            data, behind = self._dpubs(run, first, end)
            return Piece(run, first, behind, behind - first, len(data)), data
        data, behind = self._batch(run, first, end)
        return Piece(run, first, behind, 1, len(data)), data

    def _batch(self, run: TopicRun, first: int, end: int) -> tuple[bytes, int]:
        if run.column.times is None:
            head = f"MPUB {run.topic}\n"
        else:
            head = f"DMPUB {run.topic} {'@each' if self.settings.due_column == DEFERRED_UNTIL else 'each'}\n"
        bytes_max = self.settings.body_bytes_max
        return run.column.command(head.encode(), first, end, bytes_max, self._label, run.number)

    def _dpubs(self, run: TopicRun, first: int, end: int) -> tuple[bytes, int]:
        """Return a DPUB for each row, for nsqd, which only knows delays."""
        now_ms = time.time_ns() // 1_000_000 if self.settings.due_column == DEFERRED_UNTIL else 0
        plain = run.column._replace(times=None)
        times = memoryview(run.column.times).cast("B").cast("q")
        out = []
        size = 0
        row = first
        while row < min(end, first + DPUB_COMMANDS) and size < self.settings.body_bytes_max:
            # A batch of one has two sizes and a count before the body: DPUB has only the inner size.
            batch, _ = plain.command(b"", row, row + 1, 0, self._label, run.number)
            delay_ms = times[row] - now_ms
            if now_ms:
                delay_ms = max(0, delay_ms)
            out.append(f"DPUB {run.topic} {delay_ms}\n".encode() + batch[8:])
            size += len(batch)
            row += 1
        return b"".join(out), row

    def _read_answers(self) -> None:
        """Wait for the answers of the oldest piece. Raises: BrokerError, BrokenError among them."""
        client = self._client
        assert client is not None
        piece = self._waiting[0]
        while self._answered < piece.answers:
            try:
                answer = client.response(f"publishing to topic {piece.run.topic}")
            except RefusedError as error:
                raise refusal(error) from error
            if answer.split(b" ", 1)[0] != OK:
                raise RefusedError(f"{answer[:100]!r} instead of OK", client.address)
            self._answered += 1
        self._answered = 0
        self._waiting.popleft()
        self._waiting_bytes -= piece.bytes
        self.rows += piece.end - piece.first
        self.brokers[client.address] = None

    def _give_up(self, error: BrokerError) -> list[tuple[TopicRun, int, int]]:
        """Close the connection to a broker that failed; the next broker is used. Returns: the unanswered rows."""
        logger.warning("%s; going on with the next broker", error)
        assert self._client is not None
        left = self._client.answered()
        while self._waiting and left >= self._waiting[0].answers - self._answered:
            left -= self._waiting[0].answers - self._answered
            self._read_answers()
        again = [(piece.run, piece.first, piece.end) for piece in self._waiting]
        self.repeated += sum(end - first for _, first, end in again)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._answered = 0
        self.close()
        self._turn += 1
        return again

    def _connected(self) -> NsqClient:
        """Return the connection, or a new one to the first reachable broker, round robin.

        Raises: UnreachableError naming all brokers if none was reachable for retryTimeoutMs; RefusedError.
        """
        if self._client is not None and not self._waiting and time.monotonic() - self._client.used_s > IDLE_LONGEST_S:
            self.close()
        if self._client is not None:
            return self._client
        patience_s = self.settings.tcp.connection.retry_timeout_s
        deadline_s = time.monotonic() + patience_s
        delays = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, jitter=NO_JITTER)
        while True:
            self._client, failures = self._try_each()
            if self._client is not None:
                return self._client
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise UnreachableError(f"no broker can be reached, tried for {patience_s:g} s: " + "; ".join(failures))
            time.sleep(min(delays.next_s(), left_s))

    def _try_each(self) -> tuple[NsqClient | None, list[str]]:
        """Connect to the next reachable broker, round robin.

        Returns: the connection or None, and the errors of the brokers tried before.
        """
        failures: list[str] = []
        try:
            targets: Sequence[BrokerTarget] = self.settings.tcp.targets()
        except UnreachableError as error:
            return None, [str(error)]
        for _ in targets:
            try:
                return self.settings.tcp.open(targets[self._turn % len(targets)]), failures
            except RefusedError as error:
                if error.code != "E_TOO_MANY_CONNECTIONS":
                    raise
                failures.append(str(error))
            except (BrokenError, UnreachableError) as error:
                failures.append(str(error))
            self._turn += 1
        return None, failures or ["there are none"]


def refusal(error: RefusedError) -> BrokerError:
    """Return the error for a broker's answer: a broker that is stopping counts as unreachable."""
    if error.text.endswith("exiting"):
        return BrokenError(str(error))
    if error.code == "E_BAD_BODY":
        return BrokerError(f"{error}; the option maxBodyBytes has to be the broker's --max-body-size at most")
    return error


class TopicRuns:
    """Converter of a task's batches into runs of one topic. Counts the rows, for errors and ids."""

    def __init__(self, settings: WriteSettings) -> None:
        self.settings = settings
        self.count = 0
        self._numbers: dict[str, int] = {}

    def runs(self, batch: pa.RecordBatch) -> Iterator[TopicRun]:
        """Yield the rows of a batch, in order within each topic. Raises: ValueError for a row that is not a message."""
        values = batch.column("value")
        if values.type not in OFFSET_BYTES:
            values = values.cast(pa.binary())
        self._check(values)
        times = self._times(batch)
        if self.settings.topic is not None:
            yield self._run(self.settings.topic, values, times)
        else:
            yield from self._by_topic(batch.column("topic"), values, times)
        self.count += len(values)

    def _check(self, values: pa.Array) -> None:
        if values.null_count:
            self._bad_row(values.is_null(), "value is null")
        empty = pc.equal(pc.binary_length(values), 0)
        if pc.any(empty).as_py():
            self._bad_row(empty, "value is empty, and a message has one byte at least")

    def _bad_row(self, wrong: pa.Array, what: str) -> None:
        row = self.count + pc.index(wrong, True).as_py()
        raise ValueError(f"row {row} of the partition: {what}")

    def _times(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the due times of the rows in ms: since 1970, or from now on; 0 for null."""
        if self.settings.due_column is None:
            return None
        times = batch.column(self.settings.due_column)
        if self.settings.due_column == DEFERRED_UNTIL:
            # Rounded up, so that no message is delivered before its time.
            micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
            times = pc.divide(pc.add(pc.max_element_wise(micros, 0), 999), 1000)
        else:
            times = times.cast(pa.int64())
            negative = pc.less(times, 0)
            if pc.any(negative).as_py():
                self._bad_row(negative, f"{DEFER_MS} is negative")
        return times.fill_null(0)

    def _by_topic(self, topics: pa.Array, values: pa.Array, times: pa.Array | None) -> Iterator[TopicRun]:
        if topics.null_count:
            self._bad_row(topics.is_null(), "topic is null")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) > 1:
            # Stable: the order within a topic stays.
            order = pc.sort_indices(encoded.indices)
            values = values.take(order)
            times = None if times is None else times.take(order)
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(encoded.indices).to_pylist()}
        first = 0
        for code, name in enumerate(names):
            count = counts[code]
            yield self._run(name, values.slice(first, count), None if times is None else times.slice(first, count))
            first += count

    def _run(self, topic: str, values: pa.Array, times: pa.Array | None) -> TopicRun:
        if not topic or _LINE_BREAKING.search(topic):
            raise ValueError(f"topic name {topic!r} is not valid")
        number = self._numbers.get(topic, 0)
        self._numbers[topic] = number + len(values)
        return TopicRun(topic, BodyColumn.of(values, times), number)


def publish_batches(
    settings: WriteSettings, batches: Iterable[pa.RecordBatch], partition: int, label: str
) -> Published:
    """Publish all rows and return when the brokers have said OK to each. label: the beginning of the ids."""
    rows = TopicRuns(settings)
    publisher = TaskPublisher(settings, partition, label if settings.with_id else "")
    try:
        for batch in batches:
            if batch.num_rows:
                for run in rows.runs(batch):
                    publisher.publish(run)
        publisher.flush()
    finally:
        publisher.close()
    return Published(partition, publisher.rows, publisher.repeated, tuple(publisher.brokers))


def log_published(what: str, messages: Iterable[Any]) -> None:
    done = [message for message in messages if message is not None]
    rows, repeated = sum(each.rows for each in done), sum(each.repeated for each in done)
    logger.info("%s: %d rows published, %d sent more than once", what, rows, repeated)


class PyqdArrowWriter(DataSourceArrowWriter):
    """Publisher of a table. Raises: OptionError, ValueError, before any task starts."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise ValueError(f'{SOURCE}: published messages cannot be overwritten: use mode("append")')
        self.settings = WriteSettings.of(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return publish_batches(self.settings, iterator, partition, f"{self.settings.write_id}/0/{partition}/")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log_published(f"write {self.settings.write_id}", messages)


class PyqdStreamArrowWriter(DataSourceStreamArrowWriter):
    """Publisher of a stream's batches. Raises: OptionError, ValueError, before any task starts."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:  # noqa: ARG002
        # Spark sets overwrite in output mode "complete": each batch publishes the whole result again, as intended.
        self.settings = WriteSettings.of(options, schema, STREAM_OPTIONS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        partition, query, batch = 0, None, None
        if context is not None:
            partition = context.partitionId()
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
        label = f"{query or self.settings.write_id}/{batch or 0}/{partition}/"
        return publish_batches(self.settings, iterator, partition, label)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_published(f"batch {batchId}", messages)
