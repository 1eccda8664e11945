"""Tests of the steps that `make` takes in a fresh clone, and of how much it prints."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.meta.repository import ROOT, own_files, project


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with no environment, in which nothing is built."""
    copy = tmp_path_factory.mktemp("a clone")
    for path in own_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return copy


def would_do(clone: Path, target: str) -> list[str]:
    """Return the commands of a target, in their order, without carrying them out."""
    command = ["make", "--dry-run", "--no-print-directory", target]
    # Flags of a make around the tests are not for this one.
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_first_start_needs_neither_the_packages_of_tests_nor_the_benchmarks(clone: Path) -> None:
    commands = would_do(clone, "run")
    # Packages are installed while the extensions are compiled: neither waits for the other.
    assert commands.index("scripts/build/setup.sh --to-compile") < commands.index("scripts/build/setup.sh")
    assert commands[-1].startswith("exec .venv/bin/pyqd up --data-path=data")
    assert [command for command in commands if "--for-tests" in command or "PYQD_BUILD_BENCH" in command] == []


@pytest.mark.parametrize("target", ["test", "test-fast", "types", "bench", "flame", "cpu-cost"])
def test_a_target_that_needs_the_packages_of_tests_installs_them_first(clone: Path, target: str) -> None:
    commands = would_do(clone, target)
    assert commands.index("scripts/build/setup.sh") < commands.index("scripts/build/setup.sh --for-tests")


@pytest.mark.parametrize(
    ("target", "extra"),
    [("lint", "lint"), ("fmt", "lint"), ("dist", "dist"), ("wheels", "dist")],
)
def test_a_target_that_needs_few_packages_installs_these_alone(clone: Path, target: str, extra: str) -> None:
    commands = would_do(clone, target)
    assert f"scripts/build/setup.sh --with {extra}" in commands
    assert [command for command in commands if "--for-tests" in command or "PYQD_BUILD_BENCH" in command] == []


def test_the_web_site_needs_no_more_than_its_own_packages(clone: Path) -> None:
    commands = would_do(clone, "site")
    assert [line for line in commands if "setup.sh" in line or "setup.py" in line] == [
        "scripts/build/setup.sh --for-site"
    ]


def test_the_build_announces_its_long_steps_with_their_durations(clone: Path) -> None:
    count = len(list((clone / "pyx").rglob("*.pyx")))
    (line,) = [line for line in would_do(clone, "build") if f"build: compiling {count} modules (" in line]
    assert line.endswith(" s)'")


def test_a_first_start_prints_stages_and_no_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "$(READY)", "$(TOOLS)", "$(BUILT)", "$(BENCH_BUILT)", "dist", "site"):
        _, _, recipe = makefile.partition(f"\n{target}:")
        lines = recipe.partition("\n\n")[0].replace("\\\n", "").splitlines()[1:]
        assert lines, target
        assert [line for line in lines if not line.startswith("\t@")] == [], target


def test_every_extra_is_installed_for_the_tests() -> None:
    extras = project()["project"]["optional-dependencies"]
    setup = (ROOT / "scripts" / "build" / "setup.sh").read_text()
    places = [setup, *extras["dev"], *extras["spark-java"], *extras["server"]]
    named = ",".join(re.findall(r"(?:pyqd|\.)\[([a-z0-9,-]+)\]", " ".join(places)))
    # The packages of `testing` are the tests' own.
    assert set(extras) == {*named.split(","), "testing"}
