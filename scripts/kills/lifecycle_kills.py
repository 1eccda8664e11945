#!/usr/bin/env python3
"""Kill the driver and an executor of `pyq_spark lifecycle`, and look for every message in its table.

    scripts/kills/lifecycle_kills.py                  700,000 messages of each of two brokers: some 5 million events
    scripts/kills/lifecycle_kills.py --messages=20000 --driver-kills=2

`pyq_bench` fills both brokers and finishes all messages, with every message traced. The job runs on executors of their
own (Spark's local-cluster). Its driver is killed with its process group at random moments, then the command is run
again and an executor is killed. The table must have each message once, finished.

Exit code: 0 if it has, 1 otherwise, 2 for bad usage.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyqd.primitives.command_line import CommandParser
from pyqd.testing import BrokerProcess

MASTER = "local-cluster[2,1,1024]"
EXECUTOR = "CoarseGrainedExecutorBackend"
POLL_S = 0.05
LOAD_S = 1_200.0
RUN_S = 1_800.0
START_S = 300.0


def load(broker: BrokerProcess, count: int) -> None:
    """Publish messages and finish them."""
    command = [sys.executable, "-m", "pyqd.tools.pyq_bench", "consume", f"--count={count}", "--connections=2"]
    command += [f"--nsqd-tcp-address={broker.tcp_address}", f"--nsqd-http-address={broker.http_address}"]
    subprocess.run(command, check=True, timeout=LOAD_S, stdout=subprocess.DEVNULL)


class Job:
    """The command, one process after the other."""

    def __init__(self, brokers: list[BrokerProcess], table: Path, log: Path) -> None:
        addresses = [word for broker in brokers for word in ("--nsqd", broker.http_address)]
        self._command = [sys.executable, "-m", "pyqd_spark.cli", "lifecycle", "--quiet", f"--master={MASTER}"]
        self._command += ["--path", str(table), *addresses, "--report", str(table.parent / "report.json")]
        self._log = log
        self._seen: set[Path] = set()
        self.table = table

    def start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def wait_for_attempt(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until a run has begun to read, in a directory of its own. Raises: RuntimeError."""
        deadline_s = time.monotonic() + START_S
        attempts = self.table / "_pyqd" / "attempts"
        while not (found := set(attempts.glob("*/events")) - self._seen):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the job does not begin: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_S)
        self._seen |= found


def executors_of(group: int) -> list[int]:
    """Return the processes of executors in a process group."""
    found = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(directory.name)
            if os.getpgid(pid) == group and EXECUTOR.encode() in (directory / "cmdline").read_bytes():
                found.append(pid)
    return found


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Do everything. Returns: the report."""
    rng = random.Random(arguments.seed)
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        brokers = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            brokers.append(
                stack.enter_context(BrokerProcess(directory / name, ("--trace-topic=*", "--log-level=warn")))
            )
        for broker in brokers:
            load(broker, arguments.messages)
        loaded_s = time.monotonic() - started_s
        job = Job(brokers, directory / "lives", directory / "pyq_spark.log")
        for _ in range(arguments.driver_kills):
            process = job.start()
            try:
                job.wait_for_attempt(process)
                time.sleep(rng.uniform(0.0, arguments.interval))
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        process = job.start()
        stack.callback(process.kill)
        job.wait_for_attempt(process)
        time.sleep(rng.uniform(0.0, arguments.interval))
        killed = executors_of(process.pid)[:1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        code = process.wait(RUN_S)
    report = json.loads((directory / "report.json").read_text())["run"] if code == 0 else {}
    return {
        "messages": 2 * arguments.messages,
        **check(directory / "lives"),
        "events": report.get("events"),
        "open": report.get("open"),
        "lost_events": report.get("lost"),
        "last_run_s": report.get("seconds"),
        "driver_kills": arguments.driver_kills,
        "executor_kills": len(killed),
        "exit_code": code,
        "load_s": round(loaded_s, 1),
        "seconds": round(time.monotonic() - started_s, 1),
        "log": "" if code == 0 else (directory / "pyq_spark.log").read_text(errors="replace")[-2000:],
    }


def check(table: Path) -> dict[str, Any]:
    """Return the counts of a table."""
    import pyarrow.parquet as pq

    keys: set[tuple[str, str]] = set()
    outcomes: Counter[str] = Counter()
    rows = 0
    for path in table.glob("topic=*/day=*/*.parquet"):
        found = pq.ParquetFile(path).read(columns=["node", "message_id", "outcome"])
        rows += found.num_rows
        keys.update(zip(found["node"].to_pylist(), found["message_id"].to_pylist(), strict=True))
        outcomes.update(found["outcome"].to_pylist())
    return {"rows": rows, "distinct": len(keys), "outcomes": dict(outcomes)}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=700_000, help="of each broker")
    parser.add_argument("--driver-kills", type=int, default=1)
    parser.add_argument(
        "--interval", type=float, default=5.0, help="longest time from the first read to a kill, seconds"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="lifecycle-kills-", ignore_cleanup_errors=True) as directory:
        report = run(arguments, Path(directory))
    for name, value in report.items():
        print(
            f"{name.replace('_', ' ')}: {value:,}" if isinstance(value, int) else f"{name.replace('_', ' ')}: {value}"
        )
    is_exact = report["rows"] == report["distinct"] == report["messages"] == report["outcomes"].get("finished")
    return 0 if is_exact and report["exit_code"] == 0 and report["executor_kills"] == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
