"""A series of runs as it grows, in one or several sessions, and its JSON file."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.procfs import read_cpu_model, read_file_system, read_memory_total
from bench.server import REPOSITORY, Target
from bench.setting import Result, Setting
from bench.workloads import Workload

FORMAT = 2


class SeriesError(Exception):
    """The file is not a series, or does not fit the runs to be added."""


@dataclass(frozen=True)
class Run:
    """One run in its place: those of one pair of one session stood next to each other in time."""

    session: int
    pair: int
    result: Result


@dataclass
class Series:
    """All runs, by workload in the order of first appearance; sessions in their JSON form."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    workloads: dict[str, Workload] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def begin(self, session: dict[str, Any], workloads: Sequence[Workload]) -> None:
        """Begin a session with these workloads. Raises: SeriesError when one is here with other sizes."""
        for workload in workloads:
            known = self.workloads.get(workload.name)
            if known is not None and replace(known, what=workload.what) != workload:
                raise SeriesError(f"{workload.name}: the runs that are here already had other sizes or flags")
        if self.sessions and session["server_flags"] != self.sessions[0]["server_flags"]:
            raise SeriesError("the runs that are here already had other flags of the servers")
        for workload in workloads:
            self.workloads[workload.name] = workload
            self.runs.setdefault(workload.name, [])
        self.sessions.append(session)

    def add(self, pair: int, result: Result) -> None:
        """Add a run of the session that began last."""
        self.runs[result.workload].append(Run(session=len(self.sessions) - 1, pair=pair, result=result))

    def good(self, workload: str, target: str) -> int:
        """Return how many runs of the workload and target had no problem."""
        return sum(run.result.target == target and not run.result.problem for run in self.runs.get(workload, ()))

    def core_counts(self) -> dict[str, int]:
        """Return the targets in the order of first appearance, each with the cores it could use."""
        return {target["name"]: target["core_count"] for session in self.sessions for target in session["targets"]}

    def programs(self) -> dict[str, str]:
        """Return the targets, each with the program that it is: pyqd, nsqd or sink."""
        return {target["name"]: target["program"] for session in self.sessions for target in session["targets"]}

    def as_document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "sessions": self.sessions,
            "workloads": [
                {
                    "workload": asdict(workload),
                    "runs": [
                        {"session": run.session, "pair": run.pair, **asdict(run.result)} for run in self.runs[name]
                    ],
                }
                for name, workload in self.workloads.items()
            ],
        }

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> "Series":
        """Return the series in a JSON document. Raises: SeriesError if it is no series of this format."""
        if document.get("format") != FORMAT:
            raise SeriesError(f"not a series of format {FORMAT}")
        try:
            found = cls(sessions=list(document["sessions"]))
            for entry in document["workloads"]:
                workload = Workload(**{key: frozen(value) for key, value in entry["workload"].items()})
                found.workloads[workload.name] = workload
                found.runs[workload.name] = [as_run(run) for run in entry["runs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SeriesError(f"written by another version of the benchmark: {error!r}") from error
        return found

    @classmethod
    def read(cls, path: Path) -> "Series":
        """Return the series in a file. Raises: SeriesError, with the path, if there is no readable one."""
        try:
            document = json.loads(path.read_text())
            return cls.of_document(document if isinstance(document, dict) else {})
        except (OSError, ValueError, SeriesError) as error:
            raise SeriesError(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Replace the file atomically, so that an interruption leaves the old one or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(path.name + ".part")
        written.write_text(json.dumps(self.as_document(), indent=1) + "\n")
        written.replace(path)


def frozen(value: Any) -> Any:
    """Return a value of JSON as Workload holds it."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def as_run(entry: dict[str, Any]) -> Run:
    fields = dict(entry)
    return Run(session=fields.pop("session"), pair=fields.pop("pair"), result=Result(**fields))


def read_commit() -> str:
    """Return git's name for the state of this checkout; "" without git."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--tags"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_session(targets: Sequence[Target], setting: Setting, command: str) -> dict[str, Any]:
    """Return time, machine and settings of a session. Raises: ValueError if a target is not a server."""
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "commit": read_commit(),
        "machine": {
            "cpu": read_cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": read_memory_total(),
            "kernel": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "server_core": setting.cores.server,
            "generator_core": setting.cores.generator,
        },
        "targets": [
            {
                "name": target.name,
                "program": target.program,
                "core_count": target.core_count,
                "cores": list(setting.cores.of(target)),
                "version": target.version(),
            }
            for target in targets
        ],
        "data": {"path": str(setting.data_path()), "file_system": read_file_system(setting.data_path())},
        "server_flags": list(setting.flags),
    }
