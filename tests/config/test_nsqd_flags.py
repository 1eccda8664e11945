"""Every flag of nsqd 1.3 is a flag here, whatever it does."""

import re
import subprocess

import pytest

from pyqd.config import options
from scripts.pages.flags import NSQD_FLAGS


def test_every_flag_of_nsqd_is_a_flag_here(request: pytest.FixtureRequest) -> None:
    nsqd = request.config.getoption("--nsqd")
    if nsqd:
        usage = subprocess.run([nsqd, "--help"], capture_output=True, text=True, timeout=20, check=False).stderr
        assert set(re.findall(r"^  -([a-z0-9-]+)", usage, re.MULTILINE)) == NSQD_FLAGS
    assert NSQD_FLAGS - {flag.name for flag in options.FLAGS} == set()
