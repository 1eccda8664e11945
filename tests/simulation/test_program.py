"""`make simulate` with a defect: it is found, shrunk, and printed as a line that fails with it and passes without."""

import os
import re
import subprocess
import sys

import pytest

from pyqd.diskqueue.unsynced import Names
from tests.simulation.schedule import from_line, play, quiet
from tests.support.server import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCHEDULES = 400
STEPS_MAX = 6
RUN_S = 240
# The simulator without the rule that names of new channels are made durable. Arguments: those of the simulator.
PROGRAM = """
import sys
from pyqd.diskqueue.unsynced import Names
from tests.simulation.__main__ import main

Names.changed = lambda *change: None
sys.exit(main())
"""


def forget(_names: Names, _directory: str, *_ledgers: object) -> None:
    """Note nothing of a changed directory."""


def test_a_removed_rule_is_found_and_the_printed_schedule_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--seed=0", f"--schedules={SCHEDULES}", "--jobs=1"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    summary = re.search(r"(\d+) schedules, \d+ operations, \d+ faults, .*, 1 failures", done.stdout)
    assert summary is not None, done.stdout
    assert int(summary[1]) < SCHEDULES
    schedule, _, _ = from_line(done.stdout.splitlines()[-1])
    assert len(schedule.steps) <= STEPS_MAX
    with quiet() as failures:
        assert play(schedule, failures).failure is None
        monkeypatch.setattr(Names, "changed", forget)
        assert play(schedule, failures).failure is not None
