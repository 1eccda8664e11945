#!/usr/bin/env python3
"""Kill the driver and an executor of `pyq_spark lifecycle`, and look for every message in its table.

    scripts/kills/lifecycle_kills.py                  700,000 messages of each of two brokers: some 5 million events
    scripts/kills/lifecycle_kills.py --messages=20000 --driver-kills=2

`pyq_bench` fills both brokers and finishes all messages, with every message traced. The job runs on executors of their
own (Spark's local-cluster). Its driver is killed with its process group at random moments, then the command is run
again and an executor is killed. The table must have each message once, finished.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from harness import Loop, Program, main, wait_until

MASTER = "local-cluster[2,1,1024]"
EXECUTOR = b"CoarseGrainedExecutorBackend"
LOAD_S = 1_200.0
RUN_S = 1_800.0
START_S = 300.0


class LifecycleKills(Loop):
    """The run. table: the job's; attempts: directories of its runs."""

    COUNT = ("--driver-kills", 1)
    SECONDS = 2.5
    OPTIONS = (("--messages", {"type": int, "default": 700_000, "help": "of each broker (%(default)s)"}),)

    def start(self) -> None:
        brokers = [self.broker(name, "--trace-topic=*", "--log-level=warn") for name in ("one", "two")]
        for broker in brokers:
            command = [sys.executable, "-m", "pyqd.tools.pyq_bench", "consume", f"--count={self.given.messages}"]
            command += [f"--nsqd-tcp-address={broker.tcp_address}", f"--nsqd-http-address={broker.http_address}"]
            subprocess.run([*command, "--connections=2"], check=True, timeout=LOAD_S, stdout=subprocess.DEVNULL)
        self.table = self.directory / "lives"
        self.attempts: set[Path] = set()
        self.job = Program(
            *(self.directory / "pyq_spark.log", "-m", "pyqd_spark.cli", "lifecycle", "--quiet", f"--master={MASTER}"),
            *(word for broker in brokers for word in ("--nsqd", broker.http_address)),
            *("--path", str(self.table), "--report", str(self.directory / "report.json")),
        )

    def _run_job(self) -> "subprocess.Popen[bytes]":
        """Start the job, and return at a random time after it has begun to read, in a directory of its own."""
        process = self.job.start(start_new_session=True)
        self.stack.callback(self.job.kill)

        def attempt() -> set[Path]:
            if process.poll() is not None:
                raise RuntimeError(f"the job does not begin: {self.job.log_tail()}")
            return set((self.table / "_pyqd" / "attempts").glob("*/events")) - self.attempts

        self.attempts |= wait_until(attempt, "a run of the job", START_S)
        self.pause()
        return process

    def fault(self, _number: int) -> None:
        process = self._run_job()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def finish(self) -> None:
        process = self._run_job()
        self.killed = executors_of(process.pid)[:1]
        for pid in self.killed:
            os.kill(pid, signal.SIGKILL)
        self.code = process.wait(RUN_S)

    def check(self) -> dict[str, Any]:
        import pyarrow.parquet as pq

        keys: set[tuple[str, str]] = set()
        outcomes: Counter[str] = Counter()
        rows = 0
        for path in self.table.glob("topic=*/day=*/*.parquet"):
            found = pq.ParquetFile(path).read(columns=["node", "message_id", "outcome"])
            rows += found.num_rows
            keys.update(zip(found["node"].to_pylist(), found["message_id"].to_pylist(), strict=True))
            outcomes.update(found["outcome"].to_pylist())
        messages = 2 * self.given.messages
        is_exact = rows == len(keys) == messages == outcomes["finished"]
        return {
            "messages": messages,
            "rows": rows,
            "distinct": len(keys),
            "outcomes": dict(outcomes),
            "run": json.loads((self.directory / "report.json").read_text())["run"] if self.code == 0 else {},
            "driver_kills": self.given.count,
            "executor_kills": len(self.killed),
            "log": "" if self.code == 0 else self.job.log_tail(),
            "ok": is_exact and self.code == 0 and len(self.killed) == 1,
        }


def executors_of(group: int) -> list[int]:
    """Return the processes of executors in a process group."""
    found = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(directory.name)
            if os.getpgid(pid) == group and EXECUTOR in (directory / "cmdline").read_bytes():
                found.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main(LifecycleKills))
