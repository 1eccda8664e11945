"""Effect of an internal error in a handler of the HTTP API on the daemon."""

from pathlib import Path

import pytest

from tests.support.server import Daemon, DaemonError, patched_pyqd, wait_until

pytestmark = pytest.mark.slow

WITH_AN_ERROR = """
from pyqd.api.status import StatusRoutes

def info(self, request):
    raise {error}("an invariant")

StatusRoutes.info = info
"""


def daemon_with(error: str, directory: Path) -> Daemon:
    implementation = patched_pyqd(directory / "with_an_error.py", WITH_AN_ERROR.format(error=error))
    return Daemon(implementation, directory / "daemon").start()


def test_a_broken_invariant_ends_the_daemon_and_the_next_start_recovers(tmp_path: Path) -> None:
    daemon = daemon_with("AssertionError", tmp_path)
    try:
        assert daemon.http("POST", "/pub", b"kept", topic="t").status == 200
        reply = daemon.http("GET", "/info")
        assert (reply.status, reply.json()) == (500, {"message": "INTERNAL_ERROR"})
        wait_until(daemon.has_ended, "the daemon ends")
        daemon.start()
        daemon.wait_for_topic("t", depth=1)
    finally:
        daemon.kill()


def test_any_other_error_is_answered_and_served_on_after(tmp_path: Path) -> None:
    daemon = daemon_with("KeyError", tmp_path)
    try:
        assert daemon.http("GET", "/info").status == 500
        assert daemon.http("GET", "/ping").status == 200
        assert daemon.http("POST", "/pub", b"kept", topic="t").status == 200
        assert "KeyError" in daemon.log_text()
        with pytest.raises(DaemonError, match="Traceback"):
            daemon.assert_healthy()
    finally:
        daemon.kill()
