"""Modules of the benchmark under the directives of the debug build, which the release build does not have.

tests/apps/test_wheel.py translates the modules of the package under these directives.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# As setup.py does it, but the benchmark's modules alone, into another directory, and without a C compiler.
TRANSLATE = """
import os, sys
import setup
from Cython.Build import cythonize

cythonize(
    [extension for extension in setup.find_extensions() if extension.name.startswith("bench.")],
    build_dir=sys.argv[1],
    include_path=["."],
    compiler_directives=setup.DIRECTIVES,
    nthreads=os.cpu_count() or 1,
    force=True,
    quiet=True,
)
"""


def test_cython_accepts_the_benchmark_under_the_directives_of_the_debug_build(tmp_path: Path) -> None:
    settings = {"PYQD_DEBUG": "1", "PYQD_WERROR": "1", "PYQD_BUILD_BENCH": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    translated = {path.stem for path in tmp_path.rglob("*.c")}
    assert translated == {path.stem for path in (ROOT / "bench").rglob("*.pyx")}
