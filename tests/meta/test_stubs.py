"""Every compiled module has its C interface and its types, and the types are those of the module."""

import subprocess
import sys

import pytest

from tests.meta.repository import ROOT, own_files_of, relative

STUBTEST_ALLOWED = ROOT / "tests" / "meta" / "stubtest-allowed.txt"


def compiled_stems() -> list[str]:
    return [path.stem for path in own_files_of(".pyx") if path.parent == ROOT / "pyx"]


@pytest.mark.parametrize("suffix", [".pxd", ".pyi"])
def test_every_compiled_module_has_its_interface_beside_it(suffix: str) -> None:
    absent = [stem for stem in compiled_stems() if not (ROOT / "pyqd" / "hot" / f"{stem}{suffix}").exists()]
    assert absent == []


def test_every_stub_belongs_to_a_compiled_module() -> None:
    stubs = {path.stem for path in own_files_of(".pyi") if path.parent == ROOT / "pyqd" / "hot"}
    assert sorted(stubs - set(compiled_stems())) == []


def test_compiled_sources_open_with_a_docstring() -> None:
    sources = {relative(path): path.read_text() for path in own_files_of(".pyx")}
    bare = [name for name, text in sources.items() if not text.startswith(('"""', 'r"""'))]
    assert bare == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stubs_say_what_the_compiled_modules_do() -> None:
    modules = [f"pyqd.hot.{stem}" for stem in compiled_stems()]
    if not modules:
        pytest.skip("nothing is compiled")
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml")]
    command += ["--ignore-unused-allowlist", "--allowlist", str(STUBTEST_ALLOWED), *modules]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
