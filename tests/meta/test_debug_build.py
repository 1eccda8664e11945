"""All modules under the directives of the debug build, which the release build does not have; warnings are errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# As setup.py does it, but into another directory, and without a C compiler.
TRANSLATE = """
import gc, os, sys
import setup
from Cython.Build import cythonize

# As in setup.py: collections would find nothing.
gc.set_threshold(200_000)
cythonize(
    setup.find_extensions(),
    build_dir=sys.argv[1],
    include_path=["."],
    compiler_directives=setup.DIRECTIVES,
    nthreads=os.cpu_count() or 1,
    force=True,
    quiet=True,
)
"""


def test_cython_accepts_every_module_under_the_directives_of_the_debug_build(tmp_path: Path) -> None:
    settings = {"PYQD_DEBUG": "1", "PYQD_WERROR": "1", "PYQD_BUILD_BENCH": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    translated = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.c")}
    sources = [path for directory in ("pyx/*", "bench", "tests/support") for path in ROOT.glob(f"{directory}/*.pyx")]
    assert translated == {path.relative_to(ROOT).with_suffix(".c") for path in sources}
