"""Traces into databases: events per second of the shipper's writer against SQLAlchemy's executemany.

`python -m bench.trace_ship` starts PostgreSQL and MariaDB of this machine on empty directories, and uses a file of
SQLite beside. All events are decoded from blocks as brokers write them. The two ways take turns in each database:

- `executemany`: each event becomes a dict, and `connection.execute(insert(events), rows)` stores the batch in one table
  with the columns of an event, a key of node and position, and indexes by message and by time;
- `pyq_trace`: the way of `pyq_trace ship`, with its tables, views and indexes.

With `--late` every delivery ends several batches after its start, so that each outcome is an update.

`python -m bench.trace_ship --show --events=10000000` fills each database by `pyq_trace`'s way instead, and times the
story of a message: the queries of `pyq_trace show ID`, and the whole command, which mostly starts Python.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from pyqd.fallback import trace_rows
from pyqd.hot.wire.trace_events import TraceColumns, decode
from pyqd.primitives.command_line import CommandParser
from pyqd.trace.column_types import UtcTime
from pyqd.trace.database import Database
from pyqd.trace.stores.sqlite import SETTINGS
from pyqd.trace.story import stories_of
from tests.support import trace_blocks as blocks
from tests.support.databases import Mariadb, Postgresql, program_of_mariadb, programs_of_postgresql, running

# Messages of a pass of the broker, which have topic, client and time in common.
AT_ONCE = 30
EVENTS_OF_A_MESSAGE = 4
START_NS = 1_795_177_302_000_000_000
PASS_NS = 300_000
FIRST_ID = 0x0C5F0E5B2AC07000
ID_STEP = 4096
# Passes between the start of a delivery and its end.
SOON, LATE = 3, 3_000
CONSUMERS = 50
PASSES_OF_A_BLOCK = 20
ANSWER_BYTES = 2 << 20
# Messages that are looked up, by queries and by the command.
SHOWN, SHOWN_BY_COMMAND = 200, 10


def answers(message_count: int, ended_after: int) -> Iterator[bytes]:
    """Yield answers of /trace/log with the life of so many messages.

    ended_after: passes between the sending of a message and its FIN.
    """
    pass_count = message_count // AT_ONCE
    answer: list[bytes] = []
    first = 1
    for start in range(0, pass_count + ended_after + 1, PASSES_OF_A_BLOCK):
        end = min(start + PASSES_OF_A_BLOCK, pass_count + ended_after + 1)
        count, entries = block_entries(start, end, pass_count, ended_after)
        if count:
            answer.append(blocks.record(blocks.block(first, count, *entries), seq=first))
            first += count
        if sum(map(len, answer)) >= ANSWER_BYTES:
            yield b"".join(answer)
            answer.clear()
    if answer:
        yield b"".join(answer)


def block_entries(start: int, end: int, pass_count: int, ended_after: int) -> tuple[int, list[bytes]]:
    """Return the number of events of some passes, and their entries."""
    entries = [blocks.place(b"orders"), blocks.place(b"orders", b"email"), blocks.channels(1, 2)]
    entries.append(blocks.client(b"10.0.0.1:53412", b"pyqd-client/1.0"))
    entries += [blocks.client(f"10.0.0.2:{50_000 + number}".encode(), b"go-nsq/1.1.0") for number in range(CONSUMERS)]
    count = 0
    for number in range(start, end):
        at_ns = START_NS + number * PASS_NS
        if number < pass_count:
            entries.append(blocks.context(1, at_ns, 1))
            entries += [blocks.event("published", guid, value=200, stored=True) for guid in ids(number)]
            count += 2 * AT_ONCE
        for kind, since in (("sent", 1), ("finished", ended_after)):
            if 0 <= number - since < pass_count:
                entries.append(blocks.context(2, at_ns + 1, 2 + (number - since) % CONSUMERS))
                entries += [blocks.event(kind, guid, attempt=1) for guid in ids(number - since)]
                count += AT_ONCE
    return count, entries


def ids(number: int) -> range:
    """Return the ids of the messages of a pass."""
    first = FIRST_ID + number * AT_ONCE * ID_STEP
    return range(first, first + AT_ONCE * ID_STEP, ID_STEP)


class Plain:
    """The table and the statement of the usual way."""

    def __init__(self, url: sa.URL) -> None:
        self.engine = sa.create_engine(url)
        if url.get_backend_name() == "sqlite":
            # The same settings as the shipper's, so that the statements are compared and not the syncs.
            sa.event.listen(self.engine, "connect", set_up_sqlite)
        metadata = sa.MetaData()
        self.events = sa.Table(
            "plain_events",
            metadata,
            sa.Column("nsqd", sa.String(128), primary_key=True),
            sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("happened_at", UtcTime),
            sa.Column("event", sa.String(16)),
            sa.Column("message_id", sa.String(16), index=True),
            sa.Column("topic", sa.String(64)),
            sa.Column("channel", sa.String(64)),
            sa.Column("client", sa.String(128)),
            sa.Column("user_agent", sa.String(128)),
            sa.Column("attempt", sa.Integer),
            sa.Column("size", sa.Integer),
            sa.Column("body", sa.LargeBinary),
            sa.Column("due_at", UtcTime),
            sa.Column("delay_ms", sa.BigInteger),
            sa.Column("reason", sa.String(128)),
            sa.Index("plain_events_time", "topic", "channel", "happened_at"),
        )
        metadata.drop_all(self.engine)
        metadata.create_all(self.engine)

    def write(self, decoded: TraceColumns) -> None:
        """Store events."""
        columns = trace_rows.lists(decoded)
        rows = [
            {
                "nsqd": "broker-1.example.org:4151",
                "position": columns["position"][row],
                "happened_at": utc(columns["timestamp_ns"][row]),
                "event": columns["kind"][row],
                "message_id": columns["message_id"][row],
                "topic": columns["topic"][row],
                "channel": columns["channel"][row],
                "client": columns["client"][row],
                "user_agent": columns["user_agent"][row],
                "attempt": columns["attempt"][row],
                "size": columns["size_bytes"][row],
                "body": columns["body"][row],
                "due_at": None,
                "delay_ms": columns["delay_ms"][row],
                "reason": columns["reason"][row],
            }
            for row in range(decoded.rows)
        ]
        with self.engine.begin() as connection:
            connection.execute(sa.insert(self.events), rows)


def utc(timestamp_ns: int) -> datetime:
    """Return a timestamp, to the microsecond."""
    return datetime.fromtimestamp(timestamp_ns / 1e9, timezone.utc)


def set_up_sqlite(connection: Any, _record: object) -> None:
    """Set up a connection as the shipper does."""
    for setting in SETTINGS:
        connection.execute(setting)


class Shipped:
    """The shipper's writer."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.database.upgrade()
        self.node = self.database.node("benchmark", "broker-1.example.org:4151")

    def write(self, decoded: TraceColumns) -> None:
        """Store events."""
        self.node = self.database.write(self.node, decoded)


def measure(write: Callable[[TraceColumns], None], message_count: int, ended_after: int) -> float:
    """Return the events per second of a writer, decoding included."""
    data = list(answers(message_count, ended_after))
    expected = event_count = 0
    started_s = time.perf_counter()
    for answer in data:
        decoded = decode(answer, expected)
        write(decoded)
        expected = decoded.following
        event_count += decoded.rows
    return event_count / (time.perf_counter() - started_s)


@contextlib.contextmanager
def databases() -> Iterator[dict[str, Callable[[str], str]]]:
    """Run the servers for a block. Returns: by name, a function that makes an empty database and returns its URL."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyqd-bench-")))
        found: dict[str, Callable[[str], str]] = {"SQLite": lambda name: f"sqlite:///{directory / name}.db"}
        if programs_of_postgresql():
            found["PostgreSQL"] = stack.enter_context(running(Postgresql, is_synced=True)).new_database
        if program_of_mariadb():
            found["MariaDB"] = stack.enter_context(running(Mariadb, is_synced=True)).new_database
        yield found


def compare(new_url: Callable[[str], str], options: Namespace) -> tuple[list[float], list[float]]:
    """Return the figures of both ways in one database, in turn."""
    plain: list[float] = []
    shipped: list[float] = []
    ended_after = LATE if options.late else SOON
    for turn in range(options.turns):
        url = Database(new_url(f"plain{turn}")).store.url
        plain.append(measure(Plain(url).write, options.events // 4, ended_after))
        writer = Shipped(new_url(f"shipped{turn}"))
        shipped.append(measure(writer.write, options.events // 4, ended_after))
    return plain, shipped


def fill(url: str, event_count: int) -> Database:
    """Store events."""
    writer = Shipped(url)
    expected = 0
    for answer in answers(event_count // EVENTS_OF_A_MESSAGE, SOON):
        decoded = decode(answer, expected)
        writer.write(decoded)
        expected = decoded.following
    return writer.database


def median_ms(act: Callable[[str], object], event_count: int, turns: int) -> tuple[float, float]:
    """Return the median and the longest time of an act on messages spread over all."""
    messages = event_count // EVENTS_OF_A_MESSAGE
    rng = random.Random(1)
    times = []
    for _ in range(turns):
        pass_number, place = divmod(rng.randrange(messages - AT_ONCE), AT_ONCE)
        message_id = f"{ids(pass_number)[place]:016x}"
        started_s = time.perf_counter()
        act(message_id)
        times.append(1000 * (time.perf_counter() - started_s))
    return statistics.median(times), max(times)


def show(new_url: Callable[[str], str], options: Namespace) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the times of the queries and of the command."""
    url = new_url("shown")
    database = fill(url, options.events)

    def query(message_id: str) -> None:
        (story,) = stories_of(database, message_id)
        assert story.is_over, message_id

    def command(message_id: str) -> None:
        program = [sys.executable, "-m", "pyqd.tools.pyq_trace", "show", message_id, f"--from={url}"]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)

    queries = median_ms(query, options.events, SHOWN)
    commands = median_ms(command, options.events, SHOWN_BY_COMMAND)
    database.close()
    return queries, commands


def print_shows(options: Namespace) -> None:
    """Measure `show` and print a table."""
    print("| database | queries, ms (longest) | command, ms (longest) |\n| --- | ---: | ---: |")
    with databases() as found:
        for name, new_url in found.items():
            if options.only in (None, name):
                (query, longest), (command, command_longest) = show(new_url, options)
                print(f"| {name} | {query:.1f} ({longest:.1f}) | {command:.0f} ({command_longest:.0f}) |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = CommandParser(prog="python -m bench.trace_ship", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events that the shipper stores in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--late", action="store_true", help="end each delivery in a later batch")
    parser.add_argument("--only", help="name of one database")
    parser.add_argument("--show", action="store_true", help="time the story of a message among so many events")
    options = parser.parse_args(argv)
    if options.show:
        print_shows(options)
        return
    print("| database | executemany, events/s | pyq_trace, events/s | ratio |\n| --- | ---: | ---: | ---: |")
    with databases() as found:
        for name, new_url in found.items():
            if options.only in (None, name):
                plain, shipped = compare(new_url, options)
                ratios = [new / old for old, new in zip(plain, shipped, strict=True)]
                print(
                    f"| {name} | {statistics.median(plain):,.0f} | {statistics.median(shipped):,.0f} | "
                    f"{statistics.median(ratios):.1f} ({min(ratios):.1f} .. {max(ratios):.1f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
