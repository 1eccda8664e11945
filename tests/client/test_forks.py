"""Producers and consumers in the child of a fork."""

import subprocess
import sys

import pytest

PROGRAM = """
import os
from pyqd.client import Producer

producer = Producer("127.0.0.1:1")
producer.close()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_a_fork_after_a_producer_was_closed_writes_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
