"""A standalone Spark cluster on this machine: master, workers and drivers as processes of their own.

The executors have an interpreter of their own too, with Arrow and without pyqd: all of its code they get is sent to
them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server import wait_until

START_WAIT_S = 120.0
STOP_WAIT_S = 20.0
# Alone the drivers take less than two minutes on two slow cores; beside the other tests they took more than 150 s.
DRIVER_WAIT_S = 400.0
# Small heaps, and a compiler that starts fast and stops early.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
# Variables that would lead a Python process to the checkout.
HIDDEN = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")


@dataclass(frozen=True)
class Cluster:
    """master: its URL. python: the interpreter of the executors. work: directories of the workers."""

    master: str
    python: Path
    spark_home: Path
    work: Sequence[Path]

    def environment(self) -> dict[str, str]:
        """Return the environment of a driver, which sees the packages under test; the executors do not."""
        packages = {
            str(Path(spec.origin).parents[1])
            for name in ("pyqd", "pyqd_spark")
            if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
        }
        return clean_environment() | {
            "PYTHONPATH": os.pathsep.join(sorted(packages)),
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def run_driver(self, source: str, directory: Path, *arguments: str) -> Any:
        """Run a driver program in a process of its own; see `environment`.

        Returns: the last line it prints, read as JSON. Raises: AssertionError with all it wrote when it fails.
        """
        script = directory / "driver.py"
        script.write_text(source)
        result = subprocess.run(
            [sys.executable, str(script), self.master, *arguments],
            cwd=directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DRIVER_WAIT_S,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout.splitlines()[-1])


@contextmanager
def cluster(
    directory: Path,
    spark_home: Path,
    worker_count: int = 2,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    prefix: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Start a master and its workers, each worker with one core and a directory of its own; stop all at the end.

    host, port: of the master; 0 is any port. prefix: words before each command, such as those that enter a namespace.
    """
    processes: list[subprocess.Popen[bytes]] = []
    works = [directory / f"worker-{number}" for number in range(worker_count)]

    def start(name: str, class_name: str, host: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        with log.open("wb") as output:
            command = [
                *prefix,
                "env",
                "--chdir",
                str(directory),
                str(spark_home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{class_name}",
            ]
            processes.append(
                subprocess.Popen(
                    [*command, "--host", host, "--webui-port", "0", *arguments],
                    cwd=directory,
                    env=daemon_environment(spark_home),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    try:
        python = bare_python(directory / "python")
        log = start("master", "master.Master", host, "--port", str(port))
        master = wait_for_line(log, MASTER_URL)
        for number, work in enumerate(works):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            start(f"worker-{number}", "worker.Worker", "127.0.0.1", *options, master)
        wait_until(
            lambda: log.read_text().count("Registering worker") == worker_count, "workers registered", START_WAIT_S
        )
        yield Cluster(master, python, spark_home, works)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def bare_python(directory: Path) -> Path:
    """Make an environment with Arrow, which Spark needs there, and nothing else. Returns: its interpreter."""
    venv.create(directory, symlinks=True, with_pip=False)
    [packages] = directory.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("pyarrow")
    assert spec is not None
    assert spec.origin is not None
    (packages / "pyarrow").symlink_to(Path(spec.origin).parent)
    return directory / "bin" / "python"


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in HIDDEN}


def daemon_environment(spark_home: Path) -> Mapping[str, str]:
    return clean_environment() | {
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
    }


def wait_for_line(log: Path, pattern: re.Pattern[str]) -> str:
    """Wait until a line of a log matches. Returns: the first group. Raises: AssertionError with the log."""
    deadline_s = time.monotonic() + START_WAIT_S
    while (match := pattern.search(log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline_s, log.read_text(errors="replace")
        time.sleep(0.05)
    return match[1]
