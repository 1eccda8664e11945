"""Loops of kills in scripts/kills: short runs of them, and their modules."""

import importlib
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

from tests.support.server import REPOSITORY

SCRIPTS = REPOSITORY / "scripts" / "kills"
WAIT_S = 100


def run_loop(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a loop. Returns: its exit code and its report."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def module_of(name: str) -> ModuleType:
    """Return a module of the loops, which import each other as scripts do."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return importlib.import_module(name)
