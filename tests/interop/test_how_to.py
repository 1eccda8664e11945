"""docs/how-to.md does what it says: each section is followed as it stands, in an empty home directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.process import ROOT
from tests.support.machine import Machine
from tests.support.pages import Block, sections_of
from tests.support.reader import Reader

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(400)]

PAGE = ROOT / "docs" / "how-to.md"
SECTIONS = sections_of(PAGE)
# Changes the users and services of the machine; tests/meta/test_contrib.py looks at the unit.
NOT_FOLLOWED = ("Run as a systemd service",)
GO_WAIT_S = 120
BLOCK_WAIT_S = 60.0
PROGRAMS = ("curl", "openssl", "php", "go", "tar")


def obstacle(blocks: list[Block]) -> str:
    """Return what a section needs and this machine lacks, or an empty string."""
    text = "\n".join(block.text for block in blocks if block.language == "sh")
    for program in PROGRAMS:
        if f"{program} " in text and shutil.which(program) is None:
            return f"{program} is not installed"
    if (
        "php " in text
        and "curl" not in subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout
    ):
        return "php has no extension for curl"
    return ""


def fetch_modules(commands: str, directory: Path) -> dict[str, str]:
    """Fetch the Go modules of a section into this machine's cache, as a namespace has no network.

    Returns: settings by which Go finds them there. Skips the test where they cannot be had.
    """
    wanted = re.findall(r"^go get (\S+)$", commands, re.MULTILINE)
    if not wanted:
        return {}
    directory.mkdir()
    environment = os.environ | {"GOFLAGS": "-mod=mod"}

    def go(*words: str) -> str:
        command = ["go", *words]
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=GO_WAIT_S, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    go("mod", "init", "example.com/fetched")
    go("get", *wanted)
    names = ("GOMODCACHE", "GOCACHE")
    return dict(zip(names, go("env", *names).splitlines(), strict=True)) | {"GONOSUMDB": "*"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(Machine(tmp_path), PAGE, wait_s=BLOCK_WAIT_S)
    yield reader
    reader.close()


@pytest.mark.parametrize("title", [title for title in SECTIONS if title not in NOT_FOLLOWED])
def test_a_section_can_be_followed_word_by_word(title: str, reader: Reader, tmp_path: Path) -> None:
    if missing := obstacle(SECTIONS[title]):
        pytest.skip(missing)
    commands = "\n".join(block.text for block in SECTIONS[title])
    reader.machine.environment |= fetch_modules(commands, tmp_path / "modules")
    for block in SECTIONS[title]:
        reader.follow(block)
    log = (reader.machine.home / "pyqd.log").read_text()
    assert "Traceback" not in log
