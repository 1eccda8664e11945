"""Traces into databases: events per second of the writer of `pyq_trace ship`, and the time of `pyq_trace show`.

PostgreSQL and MariaDB of this machine run on empty directories, SQLite on a file. All events are decoded from blocks
as brokers write them. Afterwards the queries of `show` tell the stories of some messages.
"""

from __future__ import annotations

import atexit
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.server import Figures, RunError
from bench.setting import Setting
from bench.study import Study
from pyqd.hot.wire.trace_events import decode
from pyqd.trace.database import Database
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


def stored_per_s(database: Database, pass_count: int) -> float:
    """Return the events per second of the shipper's writer, decoding included."""
    data = list(answers(pass_count))
    node = database.node("benchmark", "broker-1.example.org:4151")
    expected = event_count = 0
    begun_s = time.perf_counter()
    for answer in data:
        decoded = decode(answer, expected)
        node = database.write(node, decoded)
        expected = decoded.following
        event_count += decoded.rows
    return event_count / (time.perf_counter() - begun_s)


def story_ms(database: Database, pass_count: int) -> float:
    """Return the median time of the queries about a message. Raises: RunError if a story has no end."""
    rng = random.Random(1)
    times = []
    for _ in range(SHOWN):
        message_id = f"{rng.choice(ids(rng.randrange(pass_count))):016x}"
        begun_s = time.perf_counter()
        (story,) = stories_of(database, message_id)
        times.append(time.perf_counter() - begun_s)
        if not story.is_over:
            raise RunError(f"a story without an end: {story}")
    return 1e3 * median(times)


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

    def run(row: str, _contender: str) -> Figures:
        database = Database(new_url[row](f"events{next(turns)}"))
        database.upgrade()
        rate = stored_per_s(database, pass_count)
        found = {"rate_per_s": rate, "queries of `show`, ms": story_ms(database, pass_count)}
        database.close()
        return found

    rows = {name: f"{name}, {pass_count * AT_ONCE * EVENTS_OF_A_MESSAGE:,} events" for name in new_url}
    return Study(rows=rows, contenders=["pyq_trace"], run=run)
