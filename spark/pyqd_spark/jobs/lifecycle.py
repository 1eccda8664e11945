"""Lifecycle: the trace logs of any number of brokers into a table of lives, each message and channel once.

A run has these steps, and a run that was cut short goes on with the first one that is not done:

1. plan: ranges of the logs, from the end of the run before to the present end; `plan.json`.
2. compute, into the directory of an attempt: the events as they are, one file for each range; then the lives that are
   over, and the events of the others.
3. `written.json`: the names of these files, and those that they get in the table. The attempt counts from here on.
4. move the files. Each rename takes effect once, however often the step is repeated.
5. `commit.json`: the run is over.

Files of an attempt that was killed before step 3 are never moved, so tasks that outlive their driver add nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyqd_spark.brokers import BrokerError, UnreachableError
from pyqd_spark.jobs.errors import JobError, TableError
from pyqd_spark.jobs.lives import LIFE, lives_of, open_events, table_rows, with_released
from pyqd_spark.jobs.progress import JobProgress
from pyqd_spark.jobs.reading import read_table, settings
from pyqd_spark.jobs.runner import OnSpark, Runner
from pyqd_spark.jobs.table import JOB_FILE, JobTable, encoded
from pyqd_spark.jobs.trace_log import DDL, LOST, EventRange, EventTask, LogEnd, cut, land_events, look
from pyqd_spark.landing import make_directories, sync_path, uri_of, write_file
from pyqd_spark.options import BrokerOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "lifecycle"
PARQUET: Final = ".parquet"
EVENTS: Final = "events"
OVER: Final = "over"
OPEN: Final = "open"
# Of a partition of the work. Spark's fixed number of 200 would cost more than the work of most runs.
EVENTS_PER_PARTITION: Final = 200_000
PARTITIONS: Final = "spark.sql.shuffle.partitions"
# The default cannot be read by all programs.
TIMES: Final = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True)
class LifecycleOptions:
    """Options of a run. path: of the table."""

    path: str
    connection: BrokerOptions
    compression: str = "zstd"


@dataclass
class RunReport:
    """Figures of a run. events: read. lost: events that were overwritten or damaged before they were read.

    unknown: gaps of unknown size. rows: new lives in the table. repeated: lives that the table had. open: lives that
    are not over.
    """

    run: int
    events: int = 0
    lost: int = 0
    unknown: int = 0
    rows: int = 0
    repeated: int = 0
    open: int = 0
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if no event is missing."""
        return not (self.lost or self.unknown)


@dataclass
class LifePlan:
    """Plan of a run. after: position of each broker's next run."""

    run: int
    ranges: list[EventRange] = field(default_factory=list)
    after: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, shown: dict[str, Any]) -> LifePlan:
        return cls(shown["run"], [EventRange(**part) for part in shown["ranges"]], shown["after"])


class LifeTable(JobTable):
    """Table of lives: a table with plans and commits of its own."""

    @property
    def open_path(self) -> str:
        return os.path.join(self.state, OPEN)

    def check_job(self) -> None:
        """Mark the table as one of lives. Raises: TableError if it is another one."""
        path = os.path.join(self.state, JOB_FILE)
        if not os.path.exists(path):
            if self.numbers():
                raise TableError(f"{self.path} is a table of another job: give a directory that is new")
            write_file(path, encoded({"job": JOB}))

    def last(self) -> tuple[int, dict[str, int], dict[str, Any]]:
        """Return the number of the last finished run, its positions and its report."""
        for run in reversed(self.numbers()):
            found = self.state_of(run, "commit.json", dict)
            if found is not None:
                return run, found["after"], found["report"]
        return 0, {}, asdict(RunReport(0))


def update(
    options: LifecycleOptions, spark: SparkSession, shown: JobProgress, runner: Runner | None = None
) -> RunReport:
    """Bring the table up to date. Returns: figures of the last run; its `run` stays the same if nothing is new.

    Raises: BrokerError, JobError, StorageError.
    """
    table = LifeTable(options.path)
    runner = runner or OnSpark(spark, JOB)
    with table.locked():
        last, after, _ = table.last()
        plan = table.state_of(last + 1, "plan.json", LifePlan.from_json)
        if plan is not None:
            shown.say(f"run {plan.run} was cut short and goes on")
            last, after = carry_out(table, plan, options, spark, runner).run, plan.after
        plan = make_plan(last + 1, after, look(options.connection), runner.cores)
        if not plan.ranges:
            return RunReport(**table.last()[2])
        make_directories(table.run_path(plan.run))
        table.write_state(plan.run, "plan.json", asdict(plan))
        return carry_out(table, plan, options, spark, runner)


def follow(
    options: LifecycleOptions,
    spark: SparkSession,
    shown: JobProgress,
    interval_s: float,
    tell: Callable[[RunReport], None],
) -> NoReturn:
    """Bring the table up to date from time to time, until interrupted. tell: called with each run that read something.

    A broker that does not answer makes a run wait for the next turn. Raises: JobError, StorageError.
    """
    last = 0
    while True:
        try:
            report = update(options, spark, shown)
        except BrokerError as error:
            shown.say(f"{error}; trying again")
        else:
            if report.run != last:
                tell(report)
            last = report.run
        time.sleep(interval_s)


def make_plan(run: int, after: dict[str, int], logs: list[LogEnd], cores: int) -> LifePlan:
    """Return the next run. Raises: JobError if a log has become shorter."""
    plan = LifePlan(run, after=dict(after))
    for log in logs:
        first = after.get(log.node, log.oldest)
        if log.end < first:
            raise JobError(
                f"{log.address}: the event log ends at position {log.end}, but the table has events up to {first}: the "
                "data directory is an older copy; write to a new table"
            )
        plan.ranges += cut(log.node, first, log.end, cores)
        plan.after[log.node] = log.end
    return plan


def carry_out(
    table: LifeTable, plan: LifePlan, options: LifecycleOptions, spark: SparkSession, runner: Runner
) -> RunReport:
    """Do the steps of a run that are not done."""
    written = table.state_of(plan.run, "written.json", dict)
    if written is None:
        attempt = table.attempt_path(table.begin_attempt())
        written = compute(table, plan, attempt, options, spark, runner)
        table.write_state(plan.run, "written.json", written)
    move(table, plan, written)
    table.write_state(plan.run, "commit.json", {"after": plan.after, "report": written["report"]})
    table.end_attempts()
    remove_old(table, plan.run)
    return RunReport(**written["report"])


def fetch(plan: LifePlan, directory: str, options: LifecycleOptions, runner: Runner) -> list[dict[str, Any]]:
    """Read the events of a run into files. Returns: the results of the tasks. Raises: UnreachableError, BrokerError."""
    addresses = {log.node: log.address for log in look(options.connection)}
    missing = sorted({part.node for part in plan.ranges} - addresses.keys())
    if missing:
        raise UnreachableError(f"no broker has the node {', '.join(missing)}, whose events the run has planned")
    make_directories(directory)
    tasks = [
        EventTask(number, part, addresses[part.node], directory, options.connection)
        for number, part in enumerate(plan.ranges)
    ]
    results = runner.run(land_events, tasks)
    failed = sorted({result["error"] for result in results if "error" in result})
    if failed:
        raise BrokerError(f"run {plan.run} cannot read all events: {'; '.join(failed)}")
    return results


def compute(
    table: LifeTable, plan: LifePlan, attempt: str, options: LifecycleOptions, spark: SparkSession, runner: Runner
) -> dict[str, Any]:
    """Write the results of a run below the directory of an attempt. Returns: the content of written.json."""
    from pyspark import StorageLevel

    started_s = time.time()
    directory = os.path.join(attempt, EVENTS)
    results = fetch(plan, directory, options, runner)
    many = [row for result in results for row in result["many"]]
    gaps = [row for row in many if row["kind"] == LOST]
    events_read = sum(result["rows"] + result["ignored"] for result in results) + len(many) - len(gaps)
    report = RunReport(plan.run, events_read)
    report.lost = sum(row["count"] or 0 for row in gaps)
    report.unknown = sum(row["count"] is None for row in gaps)
    sources = [directory, os.path.join(table.open_path, f"{plan.run - 1:08d}")]
    events = spark.read.schema(DDL).parquet(*(uri_of(path) for path in sources if os.path.isdir(path)))
    count = 1 + (report.events + open_count(table, plan.run - 1)) // EVENTS_PER_PARTITION
    with settings(spark, {TIMES: "TIMESTAMP_MICROS", PARTITIONS: str(count)}):
        # One exchange serves all groups and joins, as each is by message.
        events = with_released(spark, events.repartition(count, "node", "topic", "message_id"), many)
        events = events.persist(StorageLevel.DISK_ONLY)
        lives = lives_of(spark, events, many).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            over = new_rows(table, spark, lives, report)
            write(over, os.path.join(attempt, OVER), options, ["topic", "day"])
            write(open_events(events, lives), os.path.join(attempt, OPEN), options, [])
        finally:
            lives.unpersist()
            events.unpersist()
    return written_of(table, plan, attempt, report, started_s)


def open_count(table: LifeTable, run: int) -> int:
    """Return the number of open events that a run has left."""
    import pyarrow.parquet as pq

    paths = files_below(os.path.join(table.open_path, f"{run:08d}"))
    return sum(pq.ParquetFile(path).metadata.num_rows for path in paths)


def new_rows(table: LifeTable, spark: SparkSession, lives: DataFrame, report: RunReport) -> DataFrame:
    """Return the rows of lives that are over, without those that the table has."""
    from pyspark.sql import functions as f

    is_continued = f.expr("is_over AND NOT is_whole")
    found = lives.agg(
        f.count(f.when(~f.col("is_over"), 1)).alias("open"), f.count(f.when(is_continued, 1)).alias("continued")
    ).first()
    report.open = found["open"] if found else 0
    if not found or not found["continued"] or not table.partitions():
        return table_rows(lives.where("is_over"))
    continued = table_rows(lives.where(is_continued))
    known = read_table(spark, table.path).select(*LIFE)
    report.repeated = continued.join(known, LIFE, "left_semi").count()
    whole = table_rows(lives.where("is_over AND is_whole"))
    return whole.unionByName(continued.join(known, LIFE, "left_anti"))


def write(frame: DataFrame, path: str, options: LifecycleOptions, directories: list[str]) -> None:
    if directories:
        frame = frame.repartition(*directories)
    else:
        frame = frame.coalesce(max(1, frame.sparkSession.sparkContext.defaultParallelism))
    frame.write.partitionBy(*directories).option("compression", options.compression).parquet(uri_of(path))


def written_of(table: LifeTable, plan: LifePlan, attempt: str, report: RunReport, started_s: float) -> dict[str, Any]:
    """Return the moves of a run's files, after these are on stable storage."""
    import pyarrow.parquet as pq

    moves = []
    for kind in (OVER, OPEN):
        for number, path in enumerate(files_below(os.path.join(attempt, kind))):
            inside = os.path.relpath(os.path.dirname(path), os.path.join(attempt, kind))
            directory = os.path.join(OPEN, f"{plan.run:08d}") if kind == OPEN else inside
            target = os.path.join(directory, f"lives-{plan.run:08d}-{number:05d}{PARQUET}")
            if kind == OVER:
                report.rows += pq.ParquetFile(path).metadata.num_rows
            else:
                target = os.path.join(os.path.basename(table.state), target)
            sync_path(path)
            moves.append({"from": os.path.relpath(path, table.path), "to": os.path.normpath(target)})
    report.seconds = round(time.time() - started_s, 3)
    return {"moves": moves, "report": asdict(report)}


def files_below(path: str) -> list[str]:
    """Return the Parquet files below a directory, in order."""
    found = [os.path.join(directory, name) for directory, _, names in os.walk(path) for name in names]
    return sorted(
        name for name in found if name.endswith(PARQUET) and not os.path.basename(name).startswith((".", "_"))
    )


def move(table: LifeTable, plan: LifePlan, written: dict[str, Any]) -> None:
    """Give the files of a run their names in the table; those that have them stay. Raises: JobError."""
    directories = set()
    for each in written["moves"]:
        source, target = (os.path.join(table.path, each[name]) for name in ("from", "to"))
        make_directories(os.path.dirname(target))
        directories.add(os.path.dirname(target))
        if os.path.exists(source):
            os.rename(source, target)
        elif not os.path.exists(target):
            raise JobError(f"run {plan.run}: {target} is missing, and so is {source}; restore one of them")
    for directory in directories:
        sync_path(directory)


def remove_old(table: LifeTable, run: int) -> None:
    """Remove the state that only earlier runs needed."""
    if os.path.isdir(table.open_path):
        for name in os.listdir(table.open_path):
            if name != f"{run:08d}":
                shutil.rmtree(os.path.join(table.open_path, name), ignore_errors=True)
    for number in table.numbers():
        if number < run:
            shutil.rmtree(table.run_path(number), ignore_errors=True)
