"""README's first five minutes, followed unchanged in a built clone."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.interop.process import ROOT, WAIT_S
from tests.support.machine import Machine
from tests.support.pages import sections_of
from tests.support.reader import Reader
from tests.support.server import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(400)]

PAGE = ROOT / "README.md"
CONSUMER = re.compile(r"\.venv/bin/python consume\S*\.py")


def is_built() -> bool:
    """Return True if `make run` has nothing to build, which would need a network and disturb the other tests."""
    question = ["make", "-s", "-q", "build"]
    return subprocess.run(question, cwd=ROOT, capture_output=True, timeout=WAIT_S, check=False).returncode == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader whose home directory is a clone: links to this checkout, without leftovers of runs."""
    if not is_built():
        pytest.skip("the build is not that of the sources: make build")
    machine = Machine(tmp_path)
    for entry in ROOT.iterdir():
        if entry.name not in ("data", ".git"):
            (machine.home / entry.name).symlink_to(entry)
    machine.environment["PYTHONUNBUFFERED"] = "1"  # as on a terminal
    yield Reader(machine, PAGE)
    machine.close()


def holds(log: Path, text: str) -> bool:
    return text in log.read_text()


def test_the_first_five_minutes_can_be_followed_word_by_word(reader: Reader) -> None:
    blocks = sections_of(PAGE)["The first five minutes"]
    publish = next(command for block in blocks for command in block.commands() if "/pub?" in command)
    consumers = 0
    for block in blocks:
        if block.language == "python":
            assert block.saved_as, f"{reader.what(block)}: the program is not saved, so nothing runs it"
        for command in block.commands() if block.language == "console" else ():
            if CONSUMER.fullmatch(command):
                # Consumers run until they are interrupted; each gets a message of its own.
                log = reader.machine.directory / f"consumer-{consumers}"
                consumer = reader.open_terminal(command, log)
                reader.run(publish, block)
                wait_until(partial(holds, log, "hello world"), f"{command} prints the message", WAIT_S)
                consumer.send_signal(signal.SIGINT)
                assert consumer.wait(WAIT_S) == 0, log.read_text()
                assert "Traceback" not in log.read_text()
                consumers += 1
            else:
                reader.run(command, block)
        if block.language != "console":
            reader.follow(block)
    reader.close()
    assert consumers == 2
