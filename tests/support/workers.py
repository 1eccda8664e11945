"""Workers of task libraries, as processes that tests start, stop and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.server import REPOSITORY, Daemon

STOP_S = 20.0

Worker = subprocess.Popen[bytes]


class Spawn(Protocol):
    """Function that runs Python with these arguments; variables: of the environment. Output goes to a file."""

    def __call__(self, *arguments: str, **variables: str) -> Worker: ...


def url_of(*daemons: Daemon) -> str:
    hosts = ",".join(f"127.0.0.1:{daemon.tcp_port}" for daemon in daemons)
    https = ",".join(f"127.0.0.1:{daemon.http_port}" for daemon in daemons)
    return f"pyqd://{hosts}?http={https}"


@contextmanager
def workers_in(directory: Path) -> Iterator[Spawn]:
    """Give a block a function that starts workers in a directory, each in a process group that the end kills."""
    started: list[Worker] = []

    def start(*arguments: str, **variables: str) -> Worker:
        environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{directory}"} | variables
        with (directory / f"worker-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            kill(process)


def kill(process: Worker) -> None:
    """Kill a worker with all its children, as the loss of its machine would."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)


def stop(process: Worker) -> int:
    """Stop a worker as a service manager does. Returns: its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(STOP_S)
