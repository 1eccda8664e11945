"""docs/tools names the tools and options that there are; man pages are valid."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyqd.tools.client_options import OPTIONS
from tests.meta.repository import ROOT, project

INDEX = ROOT / "docs" / "tools" / "README.md"
MAN_PAGES = sorted((ROOT / "man").glob("*.1"))


def test_each_tool_has_a_page_and_the_index_names_it() -> None:
    scripts = project()["project"]["scripts"]
    tools = {name for name, place in scripts.items() if place.startswith("pyqd.tools.")}
    pages = {path.stem for path in INDEX.parent.glob("*.md")} - {"README"}
    linked = set(re.findall(r"^\| \[(\w+)\]\(\1\.md\)", INDEX.read_text(), re.MULTILINE))
    assert pages == linked
    assert linked <= tools
    assert {path.stem for path in MAN_PAGES} == pages


def test_the_index_names_every_option_of_the_client() -> None:
    section = INDEX.read_text().partition("## Options of the client")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(OPTIONS)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("path", MAN_PAGES, ids=lambda path: path.name)
def test_a_man_page_is_valid(path: Path) -> None:
    command = ["groff", "-man", "-ww", "-z", "-rLL=78n", "-Tutf8", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # Long lines of examples cannot be adjusted.
    warnings = [line for line in done.stderr.splitlines() if "adjust line" not in line and "break line" not in line]
    assert (warnings, done.returncode) == ([], 0)
