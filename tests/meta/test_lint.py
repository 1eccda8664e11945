"""The linters are content. They run as tests, so that no change passes without them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(tool: str, *arguments: str) -> None:
    """Run a tool of the environment that runs the tests; it may look for others there by name."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    command = [str(scripts / tool), *arguments]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_has_nothing_to_say() -> None:
    run("ruff", "check", ".")


def test_mypy_has_nothing_to_say() -> None:
    run("mypy")


def test_cython_lint_has_nothing_to_say() -> None:
    run("cython-lint", "pyx", "pyqd/hot")
