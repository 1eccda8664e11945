"""The types of the compiled modules are those of their stubs."""

import subprocess
import sys

import pytest

from tests.meta.layers import module_name
from tests.meta.repository import ROOT, own_files_of

STUBTEST_ALLOWED = ROOT / "tests" / "meta" / "stubtest-allowed.txt"


def compiled_modules() -> list[str]:
    sources = [path for path in own_files_of(".pyx") if path.is_relative_to(ROOT / "pyx")]
    return [module_name(path, ROOT) for path in sources]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stubs_say_what_the_compiled_modules_do() -> None:
    modules = compiled_modules()
    if not modules:
        pytest.skip("nothing is compiled")
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml")]
    command += ["--ignore-unused-allowlist", "--allowlist", str(STUBTEST_ALLOWED), *modules]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
