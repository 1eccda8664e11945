"""Drain: topics of any number of brokers into a table of Parquet files, each message once, run after run.

A run is planned, written down, carried out and committed, in this order (jobs.plan, jobs.table, jobs.ranges). A run
that was cut short is carried out first, as it was planned, whatever the options are now; then newer messages are
planned.

The log is read by position: no message is acknowledged and no channel moves. So retention may remove unread messages,
unless a channel holds them: `hold` names a channel that is created before the first read and moved after each commit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pyqd.primitives.timestamps import parse_timestamp
from pyqd_spark.brokers import (
    BrokerClient,
    BrokerError,
    Positions,
    TopicNotFoundError,
    UnreachableError,
    find_brokers,
    topics_known,
)
from pyqd_spark.discovery import DataLossError
from pyqd_spark.jobs.errors import DrainError
from pyqd_spark.jobs.plan import RESET, RETENTION, Gap, LogSource, Plan, SourceProgress, between, cut, rows_per_file
from pyqd_spark.jobs.progress import JobProgress as Shown
from pyqd_spark.jobs.ranges import UNREACHABLE, RangeTask, describe, drain_range
from pyqd_spark.jobs.report import Report, report_of
from pyqd_spark.jobs.runner import Runner
from pyqd_spark.jobs.table import JobTable, RunCommit
from pyqd_spark.landing import COMPRESSION
from pyqd_spark.options import BrokerOptions
from pyqd_spark.read_options import EARLIEST, LATEST

ROWS_PER_FILE: Final = 1_000_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DrainOptions:
    """Options of a drain. path: of the table.

    topics, pattern: names, or a regular expression that the whole name matches; neither: all topics. start: EARLIEST,
    LATEST or a time, for topics that are new to the table. rows_per_file: at most. fail_on_data_loss: unreadable
    messages are an error, else a gap in the report. hold: a channel.
    """

    path: str
    connection: BrokerOptions
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: str = EARLIEST
    rows_per_file: int = ROWS_PER_FILE
    compression: str = COMPRESSION
    fail_on_data_loss: bool = True
    hold: str | None = None


@dataclass
class FoundLogs:
    """Positions at the brokers. by_source: the readable ones. notes: the missing brokers and topics, one
    sentence each.
    """

    by_source: dict[LogSource, Positions] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def drain(options: DrainOptions, runner: Runner, shown: Shown) -> list[Report]:
    """Bring the table up to date.

    Returns: a report of each run that was carried out: the one cut short before, and the new one. Raises: DrainError,
    DataLossError, BrokerError, TableError, StorageError, ValueError.
    """
    table = JobTable(options.path)
    start_ns(options.start)
    reports = []
    with table.locked():
        attempt = table.begin_attempt()
        plan = table.open_plan()
        if plan is not None:
            shown.say(f"run {plan.run} was cut short and goes on: {len(plan.ranges)} ranges")
            reports.append(carry_out(table, plan, attempt, options, runner, shown))
            attempt = table.begin_attempt()
        commit = table.last_commit()
        found = look(options, commit.progress)
        plan = make_plan(options, commit, found, runner.cores, time.time())
        if plan.ranges or plan.gaps or plan.after != commit.progress:
            hold(options, plan, found, commit)
            table.write_plan(plan, attempt)
            reports.append(carry_out(table, plan, attempt, options, runner, shown, found))
        elif not reports:
            reports.append(report_of(plan, [], [], time.time(), found.notes))
        table.end_attempts()
    return reports


def start_ns(start: str) -> int | None:
    """Return the time of a start, ns since 1970; None for the words. Raises: ValueError."""
    if start in (EARLIEST, LATEST):
        return None
    try:
        return parse_timestamp(start, time.time_ns())
    except ValueError:
        raise ValueError(
            f"start {start!r} is invalid: expected earliest, latest, a time such as 2026-11-21T04:15:00Z, or -90m"
        ) from None


def look(options: DrainOptions, known: Iterable[LogSource]) -> FoundLogs:
    """Return the positions of the wanted topics and of those in the table.

    Raises: UnreachableError if a broker does not answer, TopicNotFoundError if no broker has a named topic. If data
    loss is allowed, the rest is drained instead, and the notes name the missing ones.
    """
    names, failures = wanted(options)
    at = start_ns(options.start)
    lookup = find_brokers(options.connection)
    found = FoundLogs(notes=[str(failure) for failure in lookup.failures])
    unreachable = [str(failure) for failure in failures if options.connection.nsqd]
    for address in lookup.addresses:
        try:
            with BrokerClient(address, options.connection) as client:
                for name in sorted(names & set(client.topics())):
                    with contextlib.suppress(TopicNotFoundError):
                        positions = client.positions(name, at)
                        found.by_source[LogSource(name, positions.node)] = positions
        except UnreachableError as error:
            unreachable.append(str(error))
    if unreachable and options.fail_on_data_loss:
        raise UnreachableError("; ".join(unreachable))
    found.notes += unreachable
    there = {source.topic for source in found.by_source}
    missing = [f"no broker has topic {name}" for name in options.topics if name not in there]
    if missing and options.fail_on_data_loss:
        raise TopicNotFoundError("; ".join(missing))
    found.notes += missing
    found.notes += [
        f"node {source.node} of topic {source.topic} was not found: what it has since the last run is not in the table"
        for source in sorted(known)
        if source.topic in names and source not in found.by_source
    ]
    return found


def wanted(options: DrainOptions) -> tuple[set[str], list[BrokerError]]:
    """Return the names of the topics to drain, and the errors of brokers. Raises: UnreachableError, ValueError."""
    if options.topics:
        return set(options.topics), []
    names, failures = topics_known(options.connection)
    if options.pattern is not None:
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise ValueError(f"topics pattern {options.pattern!r}: {error}") from None
        names = {name for name in names if pattern.fullmatch(name)}
    return names, failures


def make_plan(options: DrainOptions, commit: RunCommit, found: FoundLogs, cores: int, now_s: float) -> Plan:
    """Return the next run: all records between the end of the last one and the end of the brokers' logs.

    Raises: DataLossError if some of them are gone and that is an error.
    """
    after = dict(commit.progress)
    plan = Plan(commit.run + 1, now_s, list(commit.left), after, carried=len(commit.left))
    topics = {source.topic for source in commit.progress}
    firsts: dict[LogSource, int] = {}
    for source, positions in sorted(found.by_source.items()):
        firsts[source] = first_of(options, commit.progress.get(source), source.topic in topics, positions, plan.gaps)
        after[source] = SourceProgress(positions.next, positions.created)
    total = sum(between(first, found.by_source[source].next) for source, first in firsts.items())
    rows_max = rows_per_file(total, cores, options.rows_per_file)
    for source, first in firsts.items():
        ranges, gaps = cut(found.by_source[source], first, rows_max)
        plan.ranges += ranges
        plan.gaps += gaps
    if plan.gaps and options.fail_on_data_loss:
        raise DataLossError("; ".join(describe(gap) for gap in plan.gaps))
    return plan


def first_of(
    options: DrainOptions, before: SourceProgress | None, topic_known: bool, positions: Positions, gaps: list[Gap]
) -> int:
    """Return the position to read on from in a source; gaps: receives the missing records."""
    source = LogSource(positions.topic, positions.node)
    if before is None:
        if topic_known or options.start == EARLIEST:
            return positions.earliest
        return positions.next if options.start == LATEST or positions.at is None else positions.at
    if before.created != positions.created or before.next > positions.next:
        gaps.append(Gap(*source, before.next, before.next, None, RESET))
        return positions.earliest
    if before.next < positions.earliest:
        missing = between(before.next, positions.earliest)
        if missing:
            gaps.append(Gap(*source, before.next, positions.earliest, missing, RETENTION))
        return positions.earliest
    return before.next


def carry_out(
    table: JobTable,
    plan: Plan,
    attempt: str,
    options: DrainOptions,
    runner: Runner,
    shown: Shown,
    found: FoundLogs | None = None,
) -> Report:
    """Read the ranges of a plan that have not landed, and commit the plan. Raises: DrainError, BrokerError,
    StorageError.
    """
    started_s = time.time()
    done = landed_ranges(table, plan)
    for number in table.done(plan.run).keys() - done.keys():
        os.unlink(table.done_path(plan.run, number))
    left = [number for number in range(len(plan.ranges)) if number not in done]
    addresses, unreachable = serving(options.connection, {plan.ranges[number].node for number in left}, plan, found)
    tasks, failed = [], []
    for number in left:
        part = plan.ranges[number]
        address = addresses.get(part.node)
        if address is None:
            why = "; ".join(unreachable) or "no broker has its topic"
            failed.append({"number": number, "kind": UNREACHABLE, "error": f"node {part.node} is not found: {why}"})
            continue
        tasks.append(
            RangeTask(
                table=table.path,
                number=number,
                range=part,
                address=address,
                hidden=table.attempt_path(attempt),
                done_path=table.done_path(plan.run, number),
                connection=options.connection,
                compression=options.compression,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        )
    rows = sum(part.records for part in plan.ranges)
    with shown.following(f"run {plan.run}", len(plan.ranges), rows, lambda: tally(table, plan)):
        failed += [outcome for outcome in runner.run(drain_range, tasks) if "error" in outcome]
    done = landed_ranges(table, plan)
    return finish(table, plan, attempt, options, done, failed, started_s, unreachable)


def landed_ranges(table: JobTable, plan: Plan) -> dict[int, dict[str, Any]]:
    """Return the landed ranges of a plan whose files are unchanged, by place in the plan."""
    return {
        number: done
        for number, done in table.done(plan.run).items()
        if number < len(plan.ranges) and all(is_there(table, file) for file in done["files"])
    }


def is_there(table: JobTable, file: dict[str, Any]) -> bool:
    """Return whether a file still has the size that it landed with."""
    try:
        return os.path.getsize(os.path.join(table.path, file["path"])) == int(file["bytes"])
    except OSError:
        return False


def tally(table: JobTable, plan: Plan) -> tuple[int, int]:
    """Return the number of ranges and rows of a plan that have landed so far."""
    done = table.done(plan.run)
    return len(done), sum(each["rows"] for each in done.values())


def serving(
    connection: BrokerOptions, nodes: set[str], plan: Plan, found: FoundLogs | None
) -> tuple[dict[str, str], list[str]]:
    """Return the address of each node, and the errors of brokers. found: recent positions, if there are any."""
    if found is not None:
        seen = {source.node: positions.address for source, positions in found.by_source.items()}
        if nodes <= set(seen):
            return seen, found.notes
    addresses: dict[str, str] = {}
    failures: list[str] = []
    if not nodes:
        return addresses, failures
    topics = sorted({part.topic for part in plan.ranges if part.node in nodes})
    for address in find_brokers(connection).addresses:
        try:
            with BrokerClient(address, connection) as client:
                node = node_of(client, topics)
                if node is not None:
                    addresses[node] = address
        except BrokerError as error:
            failures.append(str(error))
    return addresses, failures


def node_of(client: BrokerClient, topics: Sequence[str]) -> str | None:
    """Return the node name of a client's broker, as any topic of it tells; None if the broker has no topic."""
    for topic in [*topics, *client.topics()]:
        try:
            return client.positions(topic).node
        except TopicNotFoundError:
            continue
    return None


def finish(
    table: JobTable,
    plan: Plan,
    attempt: str,
    options: DrainOptions,
    done: dict[int, dict[str, Any]],
    failed: list[dict[str, Any]],
    started_s: float,
    unreachable: list[str],
) -> Report:
    """Commit a run after everything has landed, or everything reachable if that is enough.

    Raises: DrainError.
    """
    left = [number for number in range(len(plan.ranges)) if number not in done]
    passing = {outcome["number"] for outcome in failed if outcome["kind"] == UNREACHABLE}
    if left and (options.fail_on_data_loss or not passing.issuperset(left)):
        reasons = sorted({str(outcome["error"]) for outcome in failed}) or ["a task ended without a result"]
        raise DrainError(
            f"run {plan.run}: {len(left)} of {len(plan.ranges)} ranges have not landed: {'; '.join(reasons[:5])}"
            + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
        )
    report = report_of(plan, list(done.items()), left, started_s, unreachable)
    commit = RunCommit(plan.run, plan.after, [plan.ranges[number] for number in left], asdict(report))
    table.write_commit(commit, attempt)
    release(options, plan, left)
    return report


def hold(options: DrainOptions, plan: Plan, found: FoundLogs, commit: RunCommit) -> None:
    """Create the channel that holds unread messages, on topics that do not have it yet.

    Raises: BrokerError.
    """
    if options.hold is None:
        return
    for source, positions in found.by_source.items():
        before = commit.progress.get(source)
        starts = [part.first for part in plan.ranges if (part.topic, part.node) == source]
        start = min([*starts, plan.after[source].next if before is None else positions.next])
        with BrokerClient(positions.address, options.connection) as client:
            query = {"topic": source.topic, "channel": options.hold, "start": start}
            reply = client.request("POST", "/channel/create", query)
            if reply.status != 200:
                raise client.refusal("/channel/create", query, reply)


def release(options: DrainOptions, plan: Plan, left: Sequence[int]) -> None:
    """Move the channel to the start of the next run. A failure is harmless: messages are kept for longer."""
    if options.hold is None:
        return
    waiting = {LogSource(plan.ranges[number].topic, plan.ranges[number].node) for number in left}
    nodes = {source.node for source in plan.after}
    addresses, _ = serving(options.connection, nodes, plan, None)
    for source, progress in plan.after.items():
        address = addresses.get(source.node)
        if address is None or source in waiting:
            continue
        query = {"topic": source.topic, "channel": options.hold, "to": progress.next}
        with BrokerClient(address, options.connection) as client:
            try:
                reply = client.request("POST", "/channel/seek", query)
            except UnreachableError as error:
                logger.warning("channel %s of %s stays where it is: %s", options.hold, source.topic, error)
                continue
            if reply.status != 200:
                refusal = client.refusal("/channel/seek", query, reply)
                logger.warning("channel %s of %s stays where it is: %s", options.hold, source.topic, refusal)


def write_report(reports: Sequence[Report], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump([asdict(report) for report in reports], file, indent=1)
        file.write("\n")
