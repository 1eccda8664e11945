"""Files of the journal over kills, power failures and stops of the daemon with --sync-every=1."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nsq import Client
from tests.support.nsqd_data import snapshot
from tests.support.preloaded import completed
from tests.support.server import Daemon, wait_until

WAIT_S = 120
MAGIC = b"PYQDJRNL"
# In the header of a segment: so many bytes are on stable storage.
SYNCED_AT = 56
SYNC_EACH = "-sync-every=1"
NO_SYNC = "-sync-timeout=1h"
OFTEN = "-sync-timeout=200ms"

pytestmark = [pytest.mark.slow, pytest.mark.flags(SYNC_EACH, NO_SYNC)]


def start(daemon: Daemon, *flags: str) -> None:
    daemon.flags = flags
    daemon.start()


def journal_of(daemon: Daemon) -> Path:
    return daemon.data_path / "journal"


def files_of(daemon: Daemon) -> set[str]:
    """Return the names of the files that have a commit."""
    found = set()
    for path in journal_of(daemon).glob("*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                found.add(path.name)
    return found


def node_of(daemon: Daemon) -> dict[str, Any]:
    return dict(json.loads((daemon.data_path / "node.json").read_text()))


def publish_journaled(daemon: Daemon, topic: str = "t") -> list[bytes]:
    """Publish until a commit has gone to a new file of the journal, once there is one. Returns: the bodies."""
    bodies: list[bytes] = []
    before = files_of(daemon)

    def is_there() -> bool:
        with Client(daemon.tcp_address) as client:
            client.pub(topic, b"%d" % len(bodies))
        bodies.append(b"%d" % len(bodies))
        return bool(files_of(daemon) - before)

    wait_until(is_there, "a commit in the journal", WAIT_S)
    with Client(daemon.tcp_address) as client:
        client.pub(topic, b"last")
    return [*bodies, b"last"]


def delivered(daemon: Daemon, count: int) -> list[bytes]:
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=1000)
        messages = client.finish_exactly(count)
    return sorted(message.body for message in messages)


def fail_power(daemon: Daemon) -> None:
    """Discard the unsynced bytes, and have the next start be on another boot."""
    node = node_of(daemon)
    (daemon.data_path / "node.json").write_text(json.dumps({**node, "boot": "another"}))
    for segment in (daemon.data_path / "topics" / "t.topic" / "log").glob("*.seg"):
        content = segment.read_bytes()
        synced = int.from_bytes(content[SYNCED_AT : SYNCED_AT + 8], "little")
        segment.write_bytes(content[:synced].ljust(len(content), b"\0"))


def run_command(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyqd.apps.cli", *words]
    return completed(command, wait_s=60)


def test_inspect_and_export_have_the_messages_of_the_journal_after_a_power_failure(daemon: Daemon) -> None:
    bodies = publish_journaled(daemon)
    daemon.kill()
    exported = str(daemon.data_path.parent / "exported")
    inspect, export = ("inspect", "--json", str(daemon.data_path)), ("export", f"--from={daemon.data_path}", exported)
    fail_power(daemon)
    before = snapshot(daemon.data_path)
    inspected = run_command(daemon, *inspect)
    assert [queue["depth"] for queue in json.loads(inspected.stdout)["queues"]] == [len(bodies)]
    assert inspected.returncode == 0
    assert f"topic t: {len(bodies)} messages" in run_command(daemon, *export).stdout
    assert snapshot(daemon.data_path) == before
    daemon.start()


def test_files_of_a_killed_run_are_removed_at_once_by_a_sync_of_everything(daemon: Daemon) -> None:
    bodies = publish_journaled(daemon)
    daemon.kill()
    former = files_of(daemon)
    assert former
    start(daemon, SYNC_EACH, NO_SYNC)
    wait_until(lambda: not former & files_of(daemon), "a sync is complete", WAIT_S)
    bodies += publish_journaled(daemon)
    daemon.kill()
    fail_power(daemon)
    start(daemon, SYNC_EACH, NO_SYNC)
    assert delivered(daemon, len(bodies)) == sorted(bodies)


def test_journaled_messages_survive_two_power_failures(daemon: Daemon) -> None:
    bodies = publish_journaled(daemon)
    for _ in range(2):
        daemon.kill()
        fail_power(daemon)
        start(daemon, SYNC_EACH, NO_SYNC)
        bodies += publish_journaled(daemon)
    daemon.kill()
    start(daemon, SYNC_EACH, NO_SYNC)
    assert delivered(daemon, len(bodies)) == sorted(bodies)


def test_a_start_without_the_flag_replays_the_journal_and_removes_it(daemon: Daemon) -> None:
    bodies = publish_journaled(daemon)
    daemon.kill()
    fail_power(daemon)
    start(daemon, OFTEN)
    assert delivered(daemon, len(bodies)) == sorted(bodies)
    wait_until(lambda: not files_of(daemon), "a sync is complete", WAIT_S)
    daemon.stop()


def test_a_clean_stop_leaves_no_journal(daemon: Daemon) -> None:
    bodies = publish_journaled(daemon)
    daemon.stop()
    assert not journal_of(daemon).exists()
    start(daemon, SYNC_EACH, NO_SYNC)
    assert delivered(daemon, len(bodies)) == sorted(bodies)


def test_a_data_directory_with_a_journal_can_be_inspected(daemon: Daemon) -> None:
    publish_journaled(daemon)
    daemon.kill()
    done = completed([sys.executable, "-m", "pyqd.apps.cli", "inspect", str(daemon.data_path)])
    assert (done.returncode, done.stderr) == (0, "")
    assert "t" in done.stdout
    start(daemon)
