"""Effect of an internal error in a handler of the HTTP API on the daemon."""

import sys
from pathlib import Path

import pytest

from tests.support.server import Daemon, DaemonError, Implementation, wait_until

pytestmark = pytest.mark.slow

WITH_AN_ERROR = """
from pyqd.api.status import StatusRoutes

def info(self, request):
    raise {error}("an invariant")

StatusRoutes.info = info
from pyqd.apps.daemon import main
raise SystemExit(main())
"""


def daemon_with(error: str, directory: Path) -> Daemon:
    daemon = Daemon(Implementation("pyqd", (sys.executable, "-c", WITH_AN_ERROR.format(error=error))), directory)
    return daemon.start()


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
