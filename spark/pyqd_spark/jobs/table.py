"""Directory of a drained table: rows, runs, attempts and the lock, which together make it exact.

topic=T/day=D/log-*.parquet   the rows; the only files that a reader of the table opens
_pyqd/lock                    held by the one process that changes the table
_pyqd/listing                 held by readers that list files, and in turn by a compaction for a short time
_pyqd/runs/N/plan.json        ranges of run N, written before anything is read
_pyqd/runs/N/done/R.json      range R of it has landed: its files and counts
_pyqd/runs/N/commit.json      all ranges have landed: start of the next run, and the report
_pyqd/attempts/A/             hidden files of one attempt at a run, by one driver and its tasks

A task writes into the directory of its attempt and renames from there, first its files and then its done file. A new
attempt first removes the directories of all others. From then on no task that outlived its driver can land a file: the
source of its rename is gone. So the content of a named file is final before a later run or a compaction opens it.

Spark skips everything under `_pyqd`, because the name begins with `_` and has no `=`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyqd.primitives.errors import storage_error
from pyqd_spark.jobs.errors import TableError
from pyqd_spark.jobs.plan import LogSource, Plan, PlannedRange, SourceProgress, progress_from, progress_rows
from pyqd_spark.landing import local_path, make_directories, sync_path, write_file

FORMAT: Final = 1
STATE: Final = "_pyqd"
# In tables of other jobs than drains.
JOB_FILE: Final = "job.json"
RUNS_KEPT: Final = 100

T = TypeVar("T")


@dataclass
class RunCommit:
    """Result of a finished run for the next one. left: ranges that remain for the next run. report: see jobs.report."""

    run: int
    progress: dict[LogSource, SourceProgress] = field(default_factory=dict)
    left: list[PlannedRange] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, shown: dict[str, Any]) -> RunCommit:
        left = [PlannedRange(**each) for each in shown["left"]]
        return cls(shown["run"], progress_from(shown["progress"]), left, shown["report"])


class JobTable:
    """Table's directory. path: of a local or network file system, or a file: URL. Raises: ValueError."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(local_path(path))
        self.state = os.path.join(self.path, STATE)
        self.runs = os.path.join(self.state, "runs")
        self.attempts = os.path.join(self.state, "attempts")

    def run_path(self, run: int, *names: str) -> str:
        return os.path.join(self.runs, f"{run:08d}", *names)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the table, which is created if it is missing. Raises: TableError if another process holds the lock."""
        make_directories(self.runs)
        make_directories(self.attempts)
        path = os.path.join(self.state, "lock")
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TableError(
                    f"{self.path} is being changed by another drain or compaction; run again when that has ended"
                ) from None
            self.check_format()
            self.check_job()
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep a compaction from exchanging directories while a reader lists the table's files."""
        with self._listing(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Wait for the readers that are listing, and keep new ones waiting."""
        with self._listing(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _listing(self, mode: int) -> Iterator[None]:
        self.must_exist()
        path = os.path.join(self.state, "listing")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except PermissionError:
            # Read-only: a user who may only read the table may wait as well.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, mode)
            yield
        finally:
            os.close(fd)

    def check_format(self) -> None:
        """Check the table's format. Raises: TableError for a later one."""
        path = os.path.join(self.state, "table.json")
        if not os.path.exists(path):
            write_file(path, encoded({"format": FORMAT}))
        found = _read(path).get("format")
        if found != FORMAT:
            raise TableError(
                f"{self.path} has format {found}, and this version reads format {FORMAT}; use a later pyq_spark"
            )

    def check_job(self) -> None:
        """Check that the table is one of this job. Raises: TableError."""
        if os.path.exists(os.path.join(self.state, JOB_FILE)):
            raise TableError(f"{self.path} is a table of another job: give a directory that is new")

    def begin_attempt(self) -> str:
        """Remove the hidden files of earlier attempts, so that they can land nothing more. The lock is held.

        Returns: the new attempt's name.
        """
        self.end_attempts()
        name = secrets.token_hex(8)
        make_directories(os.path.join(self.attempts, name))
        return name

    def end_attempts(self) -> None:
        """Remove the directories of all attempts. Each is renamed first, which takes effect at once and as a whole."""
        for name in os.listdir(self.attempts):
            path = os.path.join(self.attempts, name)
            if not name.startswith("over-"):
                over = os.path.join(self.attempts, f"over-{name}")
                try:
                    os.rename(path, over)
                except OSError as error:
                    raise storage_error("rename", path, error) from error
                path = over
            shutil.rmtree(path, ignore_errors=True)
        sync_path(self.attempts)

    def attempt_path(self, attempt: str) -> str:
        """Return the directory for the hidden files of an attempt."""
        return os.path.join(self.attempts, attempt)

    def numbers(self) -> list[int]:
        """Return the numbers of the existing runs, in order."""
        try:
            return sorted(int(name) for name in os.listdir(self.runs) if name.isdigit())
        except FileNotFoundError:
            return []

    def state_of(self, run: int, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the parsed content of a file of a run; None if there is none. Raises: TableError."""
        path = self.run_path(run, name)
        if not os.path.exists(path):
            return None
        try:
            return parse(_read(path))
        except (KeyError, TypeError) as error:
            raise TableError(f"cannot use {path}: its content is damaged: {error!r}; restore it") from None

    def write_state(self, run: int, name: str, content: dict[str, Any], attempt: str | None = None) -> None:
        """Write a file of a run, whose directory exists. attempt: whose directory has the hidden file."""
        temporary = None if attempt is None else self.attempt_path(attempt)
        write_file(self.run_path(run, name), encoded(content), temporary=temporary)

    def last_commit(self) -> RunCommit:
        """Return the commit of the last finished run; of a new table, a run 0. Raises: TableError."""
        for run in reversed(self.numbers()):
            commit = self.state_of(run, "commit.json", RunCommit.from_json)
            if commit is not None:
                return commit
        return RunCommit(0)

    def open_plan(self) -> Plan | None:
        """Return the plan of an unfinished run; None if there is none. Raises: TableError."""
        return self.state_of(self.last_commit().run + 1, "plan.json", Plan.from_json)

    def write_plan(self, plan: Plan, attempt: str) -> None:
        """Write a plan before any of its ranges is read."""
        make_directories(self.run_path(plan.run, "done"))
        self.write_state(plan.run, "plan.json", plan.to_json(), attempt)

    def done_path(self, run: int, number: int) -> str:
        """Return the path of a range's done file. number: its place in the plan."""
        return self.run_path(run, "done", f"{number:06d}.json")

    def done(self, run: int) -> dict[int, dict[str, Any]]:
        """Return the done files of a run, by the range's place in the plan."""
        directory = self.run_path(run, "done")
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".json") and not name.startswith(".")]
        except FileNotFoundError:
            return {}
        return {int(name.removesuffix(".json")): _read(os.path.join(directory, name)) for name in sorted(names)}

    def write_commit(self, commit: RunCommit, attempt: str) -> None:
        """Finish a run; then remove the files that only an unfinished run needs, and old runs."""
        content = {
            "run": commit.run,
            "progress": progress_rows(commit.progress),
            "left": [vars(each) for each in commit.left],
            "report": commit.report,
        }
        self.write_state(commit.run, "commit.json", content, attempt)
        self.end_attempts()
        shutil.rmtree(self.run_path(commit.run, "done"), ignore_errors=True)
        for run in self.numbers()[:-RUNS_KEPT]:
            shutil.rmtree(self.run_path(run), ignore_errors=True)

    def must_exist(self) -> None:
        """Check that a drain has created the directory. Raises: TableError."""
        if not os.path.isdir(self.state):
            raise TableError(
                f"{self.path} is no drained table: it has no directory {STATE}; give the path that a drain wrote to"
            )

    def partitions(self) -> list[str]:
        """Return the directories that hold rows, relative to the table's, in order."""
        found = []
        for topic in sorted(_names_with(self.path, "topic=")):
            found += [os.path.join(topic, day) for day in sorted(_names_with(os.path.join(self.path, topic), "day="))]
        return found


def _names_with(directory: str, prefix: str) -> list[str]:
    return [entry.name for entry in os.scandir(directory) if entry.is_dir() and entry.name.startswith(prefix)]


def encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            shown = json.load(file)
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError as error:
        raise TableError(f"cannot use {path}: its content is damaged: {error}; restore it") from None
    if not isinstance(shown, dict):
        raise TableError(f"cannot use {path}: its content is damaged: no JSON object; restore it")
    return shown
