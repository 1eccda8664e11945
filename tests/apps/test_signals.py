"""Signals that come to a program before it is ready for them, and signals without a meaning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.server import Daemon, free_port, listens, pyqd, running, wait_until
from tests.support.tools import tools_environment

pytestmark = pytest.mark.slow

WAIT_S = 30.0
DAEMONS = {
    "pyqd": ["pyqd.apps.cli", "--tcp-address=127.0.0.1:0"],
    "pyqlookupd": ["pyqd.apps.lookup_cli", "--tcp-address=127.0.0.1:0"],
    "pyqadmin": ["pyqd.apps.admin", "--nsqd-http-address=127.0.0.1:1"],
}
# The program sends itself a SIGHUP when it begins to load the event loop, which takes most of a start.
EARLY_HANGUP = """
import os, signal, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "gevent":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Watch())
"""


@contextmanager
def started(
    words: list[str], directory: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program as a process of its own, whose log is the file `log`."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=directory,
            env=environment or tools_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def wait_for_handler(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Wait until a program catches or ignores a signal."""

    def is_set() -> bool:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn", "SigCgt"))]
        return any(mask >> (number - 1) & 1 for mask in masks)

    wait_until(is_set, f"{number.name} does not end it", WAIT_S)


@pytest.mark.parametrize("program", DAEMONS)
def test_a_hangup_during_the_start_of_a_daemon_does_not_end_it(
    tmp_path: Path, program: str, certificates: Certificates
) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY_HANGUP)
    environment = tools_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    port = free_port()
    words = [*DAEMONS[program], f"--http-address=127.0.0.1:{port}", *certificates.server_flags()]
    with started(words, tmp_path, environment) as process:
        wait_until(lambda: process.poll() is not None or listens(process.pid, port), "the daemon listens", WAIT_S)
        process.terminate()
        log = (tmp_path / "log").read_text()
        assert process.wait(WAIT_S) == 0, log
    if program != "pyqadmin":
        assert log.count("TLS: reloaded certificates") == 1


@pytest.mark.parametrize("program", DAEMONS)
def test_a_daemon_goes_on_after_signals_without_a_meaning(tmp_path: Path, program: str) -> None:
    port = free_port()
    numbers = [signal.SIGUSR1] if program == "pyqd" else [signal.SIGUSR1, signal.SIGUSR2]
    with started([*DAEMONS[program], f"--http-address=127.0.0.1:{port}"], tmp_path) as process:
        wait_until(lambda: listens(process.pid, port), "the daemon listens", WAIT_S)
        for number in numbers:
            process.send_signal(number)
        time.sleep(0.2)
        process.terminate()
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["pyqd.tools.pyq_tail", "--topic=t", "--nsqd-tcp-address=TCP"],
        ["pyqd.tools.to_pyq", "--topic=t", "--nsqd-tcp-address=TCP"],
        ["pyqd.tools.pyqctl", "--nsqd-http-address=HTTP", "watch", "--interval=100ms"],
        ["pyqd.tools.pyq_trace", "ship", "--nsqd-http-address=HTTP", "--to=sqlite:///trace.db"],
    ],
    ids=lambda words: words[0].rpartition(".")[2],
)
def test_a_tool_goes_on_after_signals_without_a_meaning(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "broker").mkdir()
    with running(Daemon(pyqd(), tmp_path / "broker")) as broker:
        places = {"TCP": broker.tcp_address, "HTTP": broker.http_address}
        for name, (host, port) in places.items():
            words = [word.replace(name, f"{host}:{port}") if word.endswith(f"={name}") else word for word in words]
        with started(words, tmp_path) as process:
            wait_for_handler(process, signal.SIGUSR1)
            os.kill(process.pid, signal.SIGUSR1)
            os.kill(process.pid, signal.SIGUSR2)
            time.sleep(0.5)
            assert process.poll() is None, (tmp_path / "log").read_text()
