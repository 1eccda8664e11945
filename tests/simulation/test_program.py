"""`make simulate` with a defect: it is found, shrunk, and printed as a test that fails with it and passes without."""

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from pyqd.diskqueue.unsynced import Names
from tests.simulation.model import Violation
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


def test_a_removed_rule_is_found_and_the_printed_test_shows_it(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    printed = done.stdout[done.stdout.index("def test_seed_") :]
    assert printed.count('            ("') + printed.count("            ('") <= STEPS_MAX
    found: dict[str, Callable[[Callable[..., None]], None]] = {}
    exec(printed, found)
    (test,) = [function for name, function in found.items() if name.startswith("test_seed_")]
    test(simulate)
    monkeypatch.setattr(Names, "changed", forget)
    with pytest.raises(Violation):
        test(simulate)
