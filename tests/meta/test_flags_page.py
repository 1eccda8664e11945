"""docs/flags.md equals the page made from the table of options; docs/configuration.md has a working example."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyqd.config.options import FLAGS, parse_settings
from tests.meta.repository import ROOT

PAGE = ROOT / "docs" / "flags.md"
GUIDE = ROOT / "docs" / "configuration.md"


@pytest.mark.slow
def test_the_page_of_flags_matches_the_options() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "flags_page.py"), "--print"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True).stdout
    assert PAGE.read_text() == made, "run scripts/flags_page.py"


def test_the_page_names_every_flag_once() -> None:
    named = re.findall(r"^\| `--([a-z0-9-]+)`", PAGE.read_text(), re.MULTILINE)
    assert named == [flag.name for flag in FLAGS]


def test_the_example_of_a_configuration_file_works(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "pyqd.toml"
    path.write_text(example)
    settings = parse_settings([f"--config={path}"])
    assert settings.problems == ()
    assert [notice for notice in settings.notices if "there is no" in notice] == []
    assert len(settings.in_file) > 10
