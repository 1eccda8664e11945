"""One task of a drain: reads a range of a topic's log from its broker and lands it as Parquet, a file for each day.

It is safe to run a task twice, at the same time or later, to kill it, and to let it outlive its driver: see jobs.table.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyqd.primitives.errors import StorageError
from pyqd_spark.brokers import (
    BrokerClient,
    BrokerError,
    LogPage,
    PositionBeyondEndError,
    PositionGoneError,
    TopicNotFoundError,
    UnreachableError,
)
from pyqd_spark.decode import ahead, batch_of, decode
from pyqd_spark.discovery import DataLossError
from pyqd_spark.jobs.plan import DAMAGE, RESET, RETENTION, Gap, PlannedRange
from pyqd_spark.jobs.rows import COLUMNS, SCHEMA, RowGroups
from pyqd_spark.landing import Landed, Landing, make_directories, not_shared, partition_directory, write_file
from pyqd_spark.options import BrokerOptions

UNREACHABLE: Final = "unreachable"
DATA_LOSS: Final = "data loss"
STORAGE: Final = "storage"
REFUSED: Final = "refused"

US_PER_DAY: Final = 86_400_000_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangeTask:
    """Input of a task. number: the range's place in the plan. hidden: the directory of the attempt.

    done_path: see JobTable.done_path. address: of the broker that serves the range's node.
    """

    table: str
    number: int
    range: PlannedRange
    address: str
    hidden: str
    done_path: str
    connection: BrokerOptions
    compression: str
    fail_on_data_loss: bool


@dataclass
class RangeRead:
    """Content of a range found by reading it. bytes: of bodies."""

    rows: int = 0
    bytes: int = 0
    gaps: list[Gap] = field(default_factory=list)


def drain_range(task: RangeTask) -> dict[str, Any]:
    """Land a range, unless it has landed.

    Returns: the content of its done file; or `number`, `error` and `kind` if it failed.
    """
    if os.path.exists(task.done_path):
        with open(task.done_path, "rb") as file:
            done: dict[str, Any] = json.load(file)
        return done
    if not os.path.isdir(os.path.dirname(task.done_path)):
        return {"number": task.number, "kind": STORAGE, "error": not_shared(task.table)}
    try:
        return landed(task)
    except DataLossError as error:
        kind, text = DATA_LOSS, str(error)
    except UnreachableError as error:
        kind, text = UNREACHABLE, str(error)
    except StorageError as error:
        kind, text = STORAGE, str(error)
    except BrokerError as error:
        kind, text = REFUSED, str(error)
    return {"number": task.number, "kind": kind, "error": text}


def landed(task: RangeTask) -> dict[str, Any]:
    """Land a range and write its done file. Raises: DataLossError, BrokerError, StorageError."""
    started_s = time.monotonic()
    found = RangeRead()
    with Days(task) as days:
        for batch in batches(task, found):
            days.add(batch)
        kept = days.keep_earlier() if found.rows < task.range.records else []
        found.rows += sum(more for _, more in kept)
        settle(task, found)
        files = [*(file for file, _ in kept), *days.land()]
    done = {
        "number": task.number,
        "rows": found.rows,
        "bytes": found.bytes,
        "gaps": [vars(gap) for gap in found.gaps],
        "files": files,
        "seconds": round(time.monotonic() - started_s, 3),
    }
    write_file(task.done_path, json.dumps(done).encode(), temporary=task.hidden)
    return done


def batches(task: RangeTask, found: RangeRead) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order, and record them and the gaps in `found`.

    Raises: DataLossError if records are gone and that is an error; BrokerError.
    """
    part = task.range
    first = part.first
    with BrokerClient(task.address, task.connection) as client:
        while first < part.stop:
            try:
                for page in ahead(client.pages(part.topic, part.node, first, part.stop)):
                    yield from rows_of(task, page, first, found)
                    first = page.next if page.next > first else part.stop
            except PositionGoneError as error:
                resumed = min(error.earliest, part.stop)
                lose(task, found, Gap(part.topic, part.node, first, resumed, None, RETENTION))
                first = resumed
            except (TopicNotFoundError, PositionBeyondEndError):
                lose(task, found, Gap(part.topic, part.node, first, part.stop, None, RESET))
                first = part.stop


def rows_of(task: RangeTask, page: LogPage, first: int, found: RangeRead) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a page. A damaged page is an error, or its sound records are taken; first: the requested
    position.

    Raises: DataLossError, TopicNotFoundError.
    """
    part = task.range
    if page.created != part.created:
        raise TopicNotFoundError(f"{task.address}: topic {part.topic} was deleted and re-created")
    try:
        columns = decode(page.data, first, True, not task.fail_on_data_loss)
    except ValueError as error:
        where = f"topic {part.topic}, node {part.node}: the page from position {page.first}"
        if task.fail_on_data_loss:
            raise DataLossError(f"{where} is damaged: {error}") from None
        logger.warning("%s is left out, as it is damaged: %s", where, error)
        return
    if columns.damaged:
        logger.warning("%d damaged messages from position %d on are left out", columns.damaged, page.first)
    if columns.rows:
        found.rows += columns.rows
        found.bytes += len(columns.bodies or b"")
        yield batch_of(columns, part.topic, part.node, 0).select(COLUMNS)


def settle(task: RangeTask, found: RangeRead) -> None:
    """Compare the records read with the plan, so that each gap gets its number of messages.

    Raises: DataLossError, if that is an error.
    """
    part = task.range
    missing = part.records - found.rows
    if missing <= 0:
        found.gaps.clear()
    elif not found.gaps:
        lose(task, found, Gap(part.topic, part.node, part.first, part.stop, missing, DAMAGE))
    elif len(found.gaps) == 1:
        found.gaps[0] = replace(found.gaps[0], records=missing)


def lose(task: RangeTask, found: RangeRead, gap: Gap) -> None:
    """Record a gap. Raises: DataLossError, if that is an error."""
    if task.fail_on_data_loss:
        raise DataLossError(describe(gap))
    found.gaps.append(gap)


def describe(gap: Gap) -> str:
    count = "an unknown number of" if gap.records is None else str(gap.records)
    why = {
        RETENTION: "were removed by retention before they were read",
        DAMAGE: "are damaged or missing on the broker's disk",
        RESET: "are gone with the topic, which was deleted",
    }[gap.reason]
    where = f"from position {gap.first} " + (f"to {gap.stop}" if gap.stop > gap.first else "on")
    return f"topic {gap.topic}, node {gap.node}: {count} messages {where} {why}"


class Days:
    """Files of one range, one for each day of publishing, in UTC.

    Used as a context manager it discards files that have not landed.
    """

    def __init__(self, task: RangeTask) -> None:
        self.task = task
        self.groups: dict[int, RowGroups] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, which may be of several days. Raises: StorageError."""
        bounds = pc.min_max(batch["timestamp"])
        low, high = bounds["min"].value // US_PER_DAY, bounds["max"].value // US_PER_DAY
        if low == high:
            self.group(low).add(batch)
            return
        days = batch["timestamp"].cast(pa.date32()).cast(pa.int32())
        for day in sorted(pc.unique(days).to_pylist()):
            self.group(day).add(batch.filter(pc.equal(days, day)))

    def group(self, day: int) -> RowGroups:
        """Return the row groups of a day. day: since 1970."""
        group = self.groups.get(day)
        if group is None:
            part = self.task.range
            date = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
            directory = os.path.join(self.task.table, partition_directory([("topic", part.topic), ("day", date)]))
            make_directories(directory)
            landing = Landing(
                directory,
                f"{part.name}.parquet",
                SCHEMA,
                compression=self.task.compression,
                temporary=self.task.hidden,
            )
            group = self.groups[day] = RowGroups(landing)
        return group

    def land(self) -> list[dict[str, Any]]:
        """Make all files visible. Returns: the path within the table, rows and bytes of each."""
        return [self.described(group.land()) for _, group in sorted(self.groups.items())]

    def keep_earlier(self) -> list[tuple[dict[str, Any], int]]:
        """Keep the files of an earlier attempt at this range if that attempt could read more messages of the range.

        Returns: the done file's entry of each, and how many more rows it has than were read now.
        """
        part = self.task.range
        below = os.path.join(self.task.table, partition_directory([("topic", part.topic)]))
        kept = []
        for path in sorted(glob.glob(os.path.join(glob.escape(below), "day=*", f"{glob.escape(part.name)}.parquet"))):
            mine = next((day for day, group in self.groups.items() if group.landing.path == path), None)
            rows = pq.read_metadata(path).num_rows
            again = self.groups[mine].rows if mine is not None else 0
            if rows > again:
                if mine is not None:
                    self.groups.pop(mine).landing.discard()
                kept.append((self.described(Landed(path, rows, os.path.getsize(path))), rows - again))
        return kept

    def described(self, landed: Landed) -> dict[str, Any]:
        return {"path": os.path.relpath(landed.path, self.task.table), "rows": landed.rows, "bytes": landed.bytes}

    def __enter__(self) -> Days:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.groups.values():
            with contextlib.suppress(StorageError):
                group.landing.discard()
