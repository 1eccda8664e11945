"""Traces into databases: events per second of the shipper's writer and of SQLAlchemy's executemany, in turns.

PostgreSQL and MariaDB of this machine run on empty directories, SQLite on a file. All events are decoded from blocks
as brokers write them. `executemany` stores each event as a dict, in a table with the columns of an event, a key of node
and position, and indexes by message and by time. `pyq_trace` is the way of `pyq_trace ship`; afterwards the queries of
`pyq_trace show` tell the stories of some messages.
"""

from __future__ import annotations

import atexit
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.server import Figures, RunError
from bench.setting import Setting
from bench.study import Study
from pyqd.fallback import trace_rows
from pyqd.fallback.trace_events import Decoded
from pyqd.hot.wire.trace_events import decode
from pyqd.trace.column_types import UtcTime
from pyqd.trace.database import Database
from pyqd.trace.stores.sqlite import SETTINGS
from pyqd.trace.story import stories_of
from tests.support import trace_blocks as blocks
from tests.support.databases import Mariadb, Postgresql, program_of_mariadb, programs_of_postgresql, running

EVENTS = 1_000_000
# Messages of a pass of the broker, which have topic, client and time in common.
AT_ONCE = 30
EVENTS_OF_A_MESSAGE = 4
START_NS = 1_795_177_302_000_000_000
PASS_NS = 300_000
FIRST_ID = 0x0C5F0E5B2AC07000
ID_STEP = 4096
# Passes between the start of a delivery and its end.
ENDED_AFTER = 3
CONSUMERS = 50
PASSES_OF_A_BLOCK = 20
ANSWER_BYTES = 2 << 20
SHOWN = 200
COLUMNS = (
    "position",
    "message_id",
    "topic",
    "channel",
    "client",
    "user_agent",
    "attempt",
    "body",
    "delay_ms",
    "reason",
)


def answers(pass_count: int) -> Iterator[bytes]:
    """Yield answers of /trace/log with the life of the messages of so many passes."""
    answer: list[bytes] = []
    first = 1
    for start in range(0, pass_count + ENDED_AFTER + 1, PASSES_OF_A_BLOCK):
        count, entries = block_entries(range(start, start + PASSES_OF_A_BLOCK), pass_count)
        if count:
            answer.append(blocks.record(blocks.block(first, count, *entries), seq=first))
            first += count
        if sum(map(len, answer)) >= ANSWER_BYTES:
            yield b"".join(answer)
            answer.clear()
    if answer:
        yield b"".join(answer)


def block_entries(passes: range, pass_count: int) -> tuple[int, list[bytes]]:
    """Return the number of events of some passes, and their entries."""
    entries = [blocks.place(b"orders"), blocks.place(b"orders", b"email"), blocks.channels(1, 2)]
    entries.append(blocks.client(b"10.0.0.1:53412", b"pyqd-client/1.0"))
    entries += [blocks.client(f"10.0.0.2:{50_000 + number}".encode(), b"go-nsq/1.1.0") for number in range(CONSUMERS)]
    count = 0
    for number in passes:
        at_ns = START_NS + number * PASS_NS
        if number < pass_count:
            entries.append(blocks.context(1, at_ns, 1))
            entries += [blocks.event("published", guid, value=200, stored=True) for guid in ids(number)]
            count += 2 * AT_ONCE
        for kind, since in (("sent", 1), ("finished", ENDED_AFTER)):
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
            *(sa.Column(name, sa.String(128)) for name in ("topic", "channel", "client", "user_agent", "reason")),
            sa.Column("attempt", sa.Integer),
            sa.Column("size", sa.Integer),
            sa.Column("body", sa.LargeBinary),
            sa.Column("due_at", UtcTime),
            sa.Column("delay_ms", sa.BigInteger),
            sa.Index("plain_events_time", "topic", "channel", "happened_at"),
        )
        metadata.create_all(self.engine)

    def write(self, decoded: Decoded) -> None:
        """Store events."""
        columns = trace_rows.lists(decoded)
        rows = [
            {
                **{name: columns[name][row] for name in COLUMNS},
                "nsqd": "broker-1.example.org:4151",
                "happened_at": datetime.fromtimestamp(columns["timestamp_ns"][row] / 1e9, timezone.utc),
                "event": columns["kind"][row],
                "size": columns["size_bytes"][row],
                "due_at": None,
            }
            for row in range(decoded.rows)
        ]
        with self.engine.begin() as connection:
            connection.execute(sa.insert(self.events), rows)


def set_up_sqlite(connection: Any, _record: object) -> None:
    for setting in SETTINGS:
        connection.execute(setting)


class Shipped:
    """The shipper's writer."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.database.upgrade()
        self.node = self.database.node("benchmark", "broker-1.example.org:4151")

    def write(self, decoded: Decoded) -> None:
        """Store events."""
        self.node = self.database.write(self.node, decoded)


def stored_per_s(write: Callable[[Decoded], None], pass_count: int) -> float:
    """Return the events per second of a writer, decoding included."""
    data = list(answers(pass_count))
    expected = event_count = 0
    begun_s = time.perf_counter()
    for answer in data:
        decoded = decode(answer, expected)
        write(decoded)
        expected = decoded.following
        event_count += decoded.rows
    return event_count / (time.perf_counter() - begun_s)


def story_ms(database: Database, pass_count: int) -> float:
    """Return the mean time of the queries about a message. Raises: RunError if a story has no end."""
    rng = random.Random(1)
    begun_s = time.perf_counter()
    for _ in range(SHOWN):
        (story,) = stories_of(database, f"{rng.choice(ids(rng.randrange(pass_count))):016x}")
        if not story.is_over:
            raise RunError(f"a story without an end: {story}")
    return 1e3 * (time.perf_counter() - begun_s) / SHOWN


def study(_setting: Setting, scale: float) -> Study:
    stack = ExitStack()
    atexit.register(stack.close)
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    new_url: dict[str, Callable[[str], str]] = {"SQLite": lambda name: f"sqlite:///{directory / name}.db"}
    if programs_of_postgresql():
        new_url["PostgreSQL"] = stack.enter_context(running(Postgresql, is_synced=True)).new_database
    if program_of_mariadb():
        new_url["MariaDB"] = stack.enter_context(running(Mariadb, is_synced=True)).new_database
    pass_count = max(1, round(EVENTS * scale / EVENTS_OF_A_MESSAGE / AT_ONCE))
    turns = iter(range(1 << 30))

    def run(row: str, way: str) -> Figures:
        url = new_url[row](f"events{next(turns)}")
        if way == "executemany":
            return {"rate_per_s": stored_per_s(Plain(Database(url).store.url).write, pass_count)}
        shipped = Shipped(url)
        rate = stored_per_s(shipped.write, pass_count)
        found = {"rate_per_s": rate, "queries of `show`, ms": story_ms(shipped.database, pass_count)}
        shipped.database.close()
        return found

    rows = {name: f"{name}, {pass_count * AT_ONCE * EVENTS_OF_A_MESSAGE:,} events" for name in new_url}
    return Study(rows=rows, contenders=["pyq_trace", "executemany"], run=run)
