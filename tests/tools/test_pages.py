"""Examples in docs/tools: each section is followed unchanged, beside a broker and a lookup daemon."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.repository import ROOT, project
from tests.support.machine import Machine
from tests.support.pages import SHELLS, sections_of
from tests.support.reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGES = (
    "pyqctl.md",
    "pyq_bench.md",
    "to_pyq.md",
    "pyq_tail.md",
    "pyq_stat.md",
    "pyq_to_file.md",
    "pyq_to_nsq.md",
    "pyq_to_http.md",
)
SECTIONS = {page: sections_of(ROOT / "docs" / "tools" / page) for page in PAGES}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine on which all programs of this repository are installed."""
    machine = Machine(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, place in project()["project"]["scripts"].items():
        module, _, function = place.partition(":")
        code = f"import sys; from {module} import {function} as main; sys.argv[0] = {name!r}; sys.exit(main())"
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
        (programs / name).chmod(0o755)
    machine.environment["PATH"] = f"{programs}:{machine.environment['PATH']}"
    machine.environment["PYTHONPATH"] = str(ROOT)
    # Paths of tests are long, and a table of 80 columns would fold them.
    machine.environment["COLUMNS"] = "200"
    yield machine
    machine.close()


@pytest.mark.parametrize(
    ("page", "title"),
    [
        (page, title)
        for page, titles in SECTIONS.items()
        for title, blocks in titles.items()
        if any(block.language in SHELLS for block in blocks)
    ],
)
def test_a_section_can_be_followed_word_by_word(page: str, title: str, machine: Machine) -> None:
    reader = Reader(machine, ROOT / "docs" / "tools" / page)
    reader.open_terminal("pyqlookupd", machine.directory / "pyqlookupd.log")
    (machine.home / "data").mkdir()
    reader.start_broker("pyqd --data-path=data --broadcast-address=127.0.0.1 --lookupd-tcp-address=127.0.0.1:4160")
    for block in SECTIONS[page][title]:
        reader.follow(block)
    assert "Traceback" not in (machine.directory / "broker.log").read_text()
    reader.close()
