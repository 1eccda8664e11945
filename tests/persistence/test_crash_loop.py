"""A short run of scripts/crash_loop.py, and that it sees what it is there to see."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "crash_loop.py"
WAIT_S = 100

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 20)]


def run(directory: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the script. Returns: its exit code and what it reports."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", f"--directory={directory}", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=directory,
        env=os.environ,
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def test_nothing_is_lost_over_some_kills(tmp_path):
    code, report = run(tmp_path, "--kills=8", "--seed=20", "--seconds=0.4", "--messages=800")
    assert report["notes"] == []
    assert (code, report["ok"], report["kills"]) == (0, True, 8)
    assert (report["lost"], report["not_drained"]) == (0, 0)
    assert report["acknowledged"] > 800
    assert report["delivered"] >= report["expected"] > 0
    changes = ("pauses", "channels_made", "channels_deleted", "seeks", "limits_set")
    assert sum(report[name] for name in changes) > 0


def test_a_daemon_that_forgets_is_found_out(tmp_path):
    forgetful = tmp_path / "forgetful"
    forgetful.write_text(
        f"""#!/bin/sh
for argument; do case $argument in -data-path=*) path=${{argument#-data-path=}}; esac; done
for ledger in "$path"/topics/*/plain.channel/ledger; do
    test -e "$ledger" && dd if=/dev/zero of="$ledger" bs=1 seek=24 count=8 conv=notrunc 2>/dev/null
done
exec {sys.executable} -m pyqd.apps.daemon "$@"
"""
    )
    forgetful.chmod(0o755)
    code, report = run(tmp_path, "--kills=2", "--seed=3", "--messages=300", f"--nsqd={forgetful}")
    assert (code, report["ok"]) == (1, False)
    assert report["notes"]
