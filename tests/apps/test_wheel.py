"""The release works: from the source distribution to a wheel, installed away from any checkout, to a daemon."""

import importlib.util
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.meta.repository import own_files
from tests.support.machine import Machine
from tests.support.pages import sections_of
from tests.support.reader import Reader
from tests.support.server import REPOSITORY

BUILD_WAIT_S = 500
PAGE = REPOSITORY / "docs" / "install.md"

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "MANIFEST.in").exists(), reason="releases are not made from this copy"
)


def load_wheels() -> ModuleType:
    """Return scripts/build/wheels.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("wheels", REPOSITORY / "scripts" / "build" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


wheels: Any = load_wheels()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def link_dependencies(directory: Path) -> None:
    """Link all packages of this environment, pyqd aside, into a directory."""
    directory.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and "pyqd" not in entry.name:
            (directory / entry.name).symlink_to(entry)


def take_compiled(source: Path) -> bool:
    """Put the release build of this checkout where the build of a wheel in this directory looks for its own.

    Returns: False if there is none. Whatever differs in sources or flags is compiled again.
    """
    build, there = source / "build", REPOSITORY / "build" / "cython"
    if not (there / "release").exists():
        return False
    shutil.copytree(there / "release", build / "cython" / "release")
    shutil.copy(there / "inplace.stamp", build / "cython" / "wheel.stamp")
    library = build / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for module in (REPOSITORY / "pyqd" / "hot").glob("*/*.so"):
        path = library / module.relative_to(REPOSITORY)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A module is up to date if it is newer than its sources.
        shutil.copy(module, path)
    return True


@pytest.mark.slow
@pytest.mark.timeout(BUILD_WAIT_S + 100)
def test_the_wheel_built_of_the_source_distribution_runs_as_the_page_installs_it(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, log, dist = Path(sys.executable), tmp_path / "log", machine.home / "dist"
    sdist = wheels.build_sdist(python, log, dist)
    source = wheels.unpack(sdist, tmp_path / "unpacked")
    paths = [path.relative_to(REPOSITORY) for path in own_files()]
    assert [path for path in paths if path.parts[0][0] != "." and not (source / path).exists()] == []
    if not take_compiled(source):
        monkeypatch.setenv("PYQD_CFLAGS", "-O0 -g0 -w")
    wheels.build_client(python, source, log, dist)
    wheels.build_wheel(python, source, log, dist)

    link_dependencies(tmp_path / "dependencies")
    machine.environment["PYTHONPATH"] = str(tmp_path / "dependencies")
    reader = Reader(machine, PAGE)
    for block in sections_of(PAGE)["From a wheel"]:
        reader.follow(block)
    reader.close()

    environment = machine.home / "pyqd-env"
    # Isolated from the environment's variables, the suite finds libraries by a path file.
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{tmp_path / 'dependencies'}\n")
    wheels.try_out(environment / "bin" / "python", log)


def packed(directory: Path, *names: str) -> Path:
    """Return a wheel with all compiled modules there are, and some more files."""
    sources = [path.relative_to(REPOSITORY / "pyx") for path in (REPOSITORY / "pyx").glob("*/*.pyx")]
    compiled = [f"pyqd/hot/{path.with_suffix('.cpython-311.so')}" for path in sources]
    wheel = directory / "pyqd-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        shown = [str(path) for path in wheels.data_files()]
        manuals = [f"pyqd-1.data/{path}" for path in wheels.manuals()]
        for name in ["pyqd/", "pyqd/hot/__init__.py", "pyqd-1.dist-info/RECORD", *compiled, *shown, *manuals, *names]:
            archive.writestr(name, b"")
    return wheel


@pytest.mark.slow
@pytest.mark.parametrize(
    "stranger",
    [
        "pyqd/hot/primitives/heap.pyx",
        "pyqd/hot/primitives/heap.c",
        "bench/cost.py",
        "tests/test_heap.py",
        "pyqd/tests/test_heap.py",
        "pyqd/__init__.py",
        "pyqd/client/core/flow.py",
        "setup.py",
        "pyqd-1.data/data/share/man/man1/other.1",
        "pyqd-1.data/scripts/other",
    ],
)
def test_a_wheel_with_a_file_that_does_not_belong_in_it_is_refused(stranger: str, tmp_path: Path) -> None:
    wheels.check_contents(packed(tmp_path, "pyqd/hot/primitives/heap.pxd"))
    with pytest.raises(wheels.WheelError, match=stranger):
        wheels.check_contents(packed(tmp_path, stranger))


def test_a_wheel_without_a_compiled_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = packed(tmp_path)
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    for path in (REPOSITORY / "pyx").glob("*/*.pyx"):
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / "pyx" / "wire" / "novel.pyx").touch()
    with pytest.raises(wheels.WheelError, match=r"lacks \['pyqd/hot/wire/novel'\]"):
        wheels.check_contents(wheel)


def test_a_wheel_without_a_template_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = packed(tmp_path)
    novel = Path("pyqd_spark/jobs/templates/novel.html")
    there = wheels.data_files()
    monkeypatch.setattr(wheels, "data_files", lambda: there | {novel})
    with pytest.raises(wheels.WheelError, match=str(novel)):
        wheels.check_contents(wheel)


def interpreter(directory: Path, name: str, says: str) -> None:
    """Make a program that answers questions about its version as an interpreter does."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)


def test_one_interpreter_of_each_version_is_found(tmp_path: Path) -> None:
    on_path, managed = tmp_path / "bin", tmp_path / "pyenv"
    interpreter(on_path, "python3.10", "echo cpython 10 1 0 /usr")
    interpreter(on_path, "python3.11", "echo cpython 11 0 0 /usr")
    interpreter(on_path, "python3.12", "exit 127")
    interpreter(on_path, "python3.9", "echo cpython 9 1 0 /usr")
    for version in ("3.10.1", "3.11.1", "3.12.1", "3.13.1"):
        minor = version.split(".")[1]
        interpreter(managed / "versions" / version / "bin", f"python3.{minor}", f"echo cpython {minor} 1 0 /pyenv")
    interpreter(managed / "versions" / "3.14.0t" / "bin", "python3.14", "echo cpython 14 1 1 /pyenv")
    found = wheels.find_interpreters({"PATH": str(on_path), "PYENV_ROOT": str(managed), "UV_PYTHON_INSTALL_DIR": "/-"})
    # One without headers, or that does not run, makes way for the next; one without a GIL is of another kind.
    assert [(entry.version, entry.obstacle, entry.path.is_relative_to(on_path)) for entry in found] == [
        ("3.10", "", True),
        ("3.11", "", False),
        ("3.12", "", False),
        ("3.13", "", False),
    ]


def test_an_only_interpreter_of_a_version_without_headers_is_named_with_its_obstacle(tmp_path: Path) -> None:
    interpreter(tmp_path / "bin", "python3.13", "echo cpython 13 0 0 /usr")
    [found] = wheels.find_interpreters(
        {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": "/-", "UV_PYTHON_INSTALL_DIR": "/-"}
    )
    assert found.obstacle == "it has no Python.h"


def test_the_program_of_a_step_that_fails_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match=r"sh failed with exit code 3; the end of .*\n(.*\n)*because"):
        wheels.run(tmp_path / "log", shutil.which("sh"), "-c", "echo because; exit 3")
