"""GET /durability."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker.broker import NODE_FILE
from tests.api.conftest import HttpApp
from tests.support.server import Daemon, pyqd, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


def state_of(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.http("GET", "/durability").json()
    return found


def test_messages_count_until_a_sync_covers_them(app: HttpApp) -> None:
    # This broker has no syncer.
    before = app.get("/durability").json()
    app.post("/mpub?topic=unsynced", b"a\nb\nc")
    after = app.get("/durability").json()
    assert after["unsynced_messages"] - before["unsynced_messages"] == 3
    assert after["unsynced_bytes"] > before["unsynced_bytes"]
    assert (after["last_sync"], after["last_stop"], after["damage"]["count"]) == (None, "new", 0)
    assert after["disk_free_bytes"] > after["disk_free_min_bytes"] > 0


def test_ephemeral_messages_do_not_count(app: HttpApp) -> None:
    before = app.get("/durability").json()
    app.post("/pub?topic=gone%23ephemeral", b"a")
    assert app.get("/durability").json()["unsynced_messages"] == before["unsynced_messages"]


def recovery_of(daemon: Daemon) -> list[str]:
    """Return what the log tells of recoveries, oldest first, without their durations."""
    lines = [line for line in daemon.log_text().splitlines() if " INFO: recovery: " in line]
    return [line.split(" INFO: recovery: ")[1].rsplit("; in ", 1)[0] for line in lines]


def test_a_sync_covers_the_messages_and_a_start_tells_the_last_stop(tmp_path: Path) -> None:
    daemon = Daemon(pyqd(), tmp_path / "data", ("-sync-timeout=50ms",))
    try:
        daemon.start()
        assert state_of(daemon)["last_stop"] == "new"
        daemon.http("POST", "/pub", b"a", topic="t")
        wait_until(lambda: state_of(daemon)["unsynced_messages"] == 0, "a sync")
        assert state_of(daemon)["last_sync"] > 0
        daemon.kill()
        daemon.start()
        assert state_of(daemon)["last_stop"] == "kill"
        daemon.stop()
        daemon.start()
        assert state_of(daemon)["last_stop"] == "clean"
        daemon.kill()
        # The machine has another boot id after a power failure.
        (node,) = tmp_path.rglob(NODE_FILE)
        node.write_text(json.dumps({**json.loads(node.read_text()), "boot": "another"}))
        daemon.start()
        assert state_of(daemon)["last_stop"] == "power_failure"
        found = "recovered 1 topic, 0 channels, 1 message to deliver and 0 deferred; no damage found"
        assert recovery_of(daemon) == [
            f"the last run was killed; {found}",
            f"the last run ended with the machine: a power failure or a reset; {found}",
        ]
    finally:
        daemon.kill()
