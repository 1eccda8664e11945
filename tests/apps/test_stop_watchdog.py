"""A stop on a disk that does not answer ends with a log line and a code, and a slow stop is not cut short."""

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from pyqd.apps.stop_watchdog import StopWatchdog
from tests.support.server import REPOSITORY, free_port

pytestmark = pytest.mark.slow

WAIT_S = 30.0
LIMIT_S = 0.5
# The daemon, whose syncs wait in a way of their own from SIGTERM on. Arguments: the way, then flags.
PROGRAM = f"""
import ctypes, signal, sys, time
from functools import partial
from pyqd.apps import daemon, stop_watchdog
from pyqd.diskqueue.files import Files

stop_watchdog.TIMER_LATER_S = 0.5
daemon.StopWatchdog = partial(stop_watchdog.StopWatchdog, limit_s={LIMIT_S}, report_s=0.1)
waits = dict(
    hung=lambda: time.sleep({2 * WAIT_S}),
    # Called with the interpreter's lock held, as a store to a page is.
    locked=lambda: ctypes.PyDLL(None).sleep({int(2 * WAIT_S)}),
    slow=lambda: time.sleep({LIMIT_S} / 2),
)
wait, sync, stop = waits[sys.argv.pop(1)], Files.sync, daemon.Daemon.stop

def sync_late(files, *place):
    wait()
    sync(files, *place)

def stop_late(self):
    Files.sync = sync_late
    stop(self)

daemon.Daemon.stop = stop_late
sys.exit(daemon.main())
"""


def stopped(directory: Path, way: str) -> tuple[int, str]:
    """Start and stop a daemon with two topics on a disk that waits. Returns: exit code and log."""
    http = f"127.0.0.1:{free_port()}"
    daemon = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way, f"-data-path={directory}", f"-http-address={http}", "-tcp-address="
         f"127.0.0.1:{free_port()}", "-sync-timeout=1h"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    try:
        assert daemon.stderr is not None
        log = ""
        while "HTTP: listening" not in log:
            log += daemon.stderr.readline()
        for topic in ("one", "two"):
            urllib.request.urlopen(f"http://{http}/pub?topic={topic}", b"body", timeout=WAIT_S).close()
        daemon.send_signal(signal.SIGTERM)
        log += daemon.communicate(timeout=WAIT_S)[1]
    finally:
        daemon.kill()
        daemon.wait()
    return daemon.returncode, log


def test_a_stop_on_a_disk_that_hangs_ends_with_an_error(tmp_path: Path) -> None:
    code, log = stopped(tmp_path, "hung")
    assert code == 1
    assert "WARNING: stopping: the disk has completed no write" in log
    assert "ERROR: cannot complete the stop: the disk has completed no write" in log
    assert '"clean": false' in (tmp_path / "node.json").read_text()


def test_a_stop_whose_thread_holds_the_interpreters_lock_ends_too(tmp_path: Path) -> None:
    code, log = stopped(tmp_path, "locked")
    assert code == 1
    assert "most recent call first" in log
    assert "in sync_late" in log


def test_a_stop_that_goes_on_is_left_alone_however_long_it_takes(tmp_path: Path) -> None:
    code, log = stopped(tmp_path, "slow")
    assert code == 0
    assert "NSQ: bye" in log
    assert '"clean": true' in (tmp_path / "node.json").read_text()


def test_a_stop_without_memory_for_a_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    watch = StopWatchdog(lambda: 0)
    watch.start()
    watch.finish()
    assert "cannot start the thread that watches the stop: can't start new thread" in caplog.text
