"""Every command in the documentation exists, and its example of a configuration file works."""

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pyqd.config.options import DAEMON
from tests.meta.repository import ROOT, own_files_of, project, relative
from tests.meta.test_links import FENCE

INLINE = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<![\w-])--?([a-z][a-z0-9-]+)")
SHELL_LANGUAGES = ("sh", "bash", "console", "shell")


def documents() -> list[Path]:
    """Return the pages whose commands are ours; those on NSQ show flags and commands of other programs."""
    return [path for path in own_files_of(".md") if path.parent in (ROOT, ROOT / "docs", ROOT / "docs" / "how-to")]


def commands(text: str) -> Iterator[str]:
    """Yield the commands that a reader may type: lines of shell blocks, continued ones joined, and inline code."""
    for language, block in FENCE.findall(text):
        if language in SHELL_LANGUAGES:
            for line in block.replace("\\\n", " ").splitlines():
                yield line.strip().removeprefix("$ ").split(" #")[0].strip()
    yield from INLINE.findall(FENCE.sub("", text))


def make_targets_in(command: str) -> list[str]:
    """Return the make targets in a command line: neither options nor settings of variables."""
    found = []
    for part in re.split(r"&&|\|\||[;|]", command):
        words = part.strip().split(" ", 1)
        if words[0] == "make" and len(words) > 1:
            found += [word for word in shlex.split(words[1]) if "=" not in word and not word.startswith("-")]
    return found


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Commands with flags of their own, which the help of the program does not list.
SUBCOMMANDS = {
    "pyqd": (("up",), ("drain",), ("restart",)),
    "pyqadmin": (("user", "add"),),
    "pyqctl": (("peek",),),
    "pyq_trace": (("ship",), ("show",), ("find",), ("stats",)),
}


@cache
def flags_of(program: str) -> frozenset[str] | None:
    """Return the flags in a program's --help, without dashes; None while the program is not written."""
    module, _, function = project()["project"]["scripts"][program].partition(":")
    if importlib.util.find_spec(module) is None:
        return None
    code = f"import sys; sys.argv[0] = {program!r}; from {module} import {function} as main; sys.exit(main())"
    found: set[str] = set()
    for words in ((), *SUBCOMMANDS.get(program, ())):
        command = [sys.executable, "-c", code, *words, "--help"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        found.update(FLAG.findall(result.stdout + result.stderr))
    return frozenset(found)


def program_of(command: str) -> str | None:
    """Return which of our programs a command starts."""
    name = command.split()[0].rpartition("/")[2] if command.split() else ""
    return name if name in project()["project"]["scripts"] else None


def unknown_flags(command: str) -> list[str]:
    """Return the flags in a command that its program lacks. A bare `--flag` may belong to any of our programs."""
    program = program_of(command)
    if program is None and not re.fullmatch(r"--[a-z][a-z0-9-]+(=.*)?", command):
        return []
    programs = [program] if program else list(project()["project"]["scripts"])
    known = [flags_of(name) for name in programs]
    if None in known:
        return []
    words = [word.split("=")[0] for word in command.split()]
    named = [word.lstrip("-") for word in words if FLAG.fullmatch(word)]
    return [name for name in named if not any(flags is not None and name in flags for flags in known)]


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_make_targets_in_the_documentation_exist(path: Path) -> None:
    named = {target for command in commands(path.read_text()) for target in make_targets_in(command)}
    assert named <= make_targets()


@pytest.mark.slow
@pytest.mark.parametrize("path", documents(), ids=relative)
def test_flags_in_the_documentation_exist(path: Path) -> None:
    unknown = {command: flags for command in commands(path.read_text()) if (flags := unknown_flags(command))}
    assert unknown == {}


def test_every_make_target_is_in_its_help() -> None:
    targets = make_targets() - {"absent"}
    result = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert {line.split()[1] for line in result.stdout.splitlines()} == targets


def test_make_targets_are_read_from_commands() -> None:
    text = "`make sure-not` but\n```console\n$ make test ARGS='-k x'  # all\n$ cd x && make debug run\n```\n"
    assert [make_targets_in(command) for command in commands(text)] == [["test"], ["debug", "run"], ["sure-not"]]


def test_the_example_of_a_configuration_file_works(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    path = tmp_path / "pyqd.toml"
    path.write_text(example)
    settings = DAEMON.parse_settings([f"--config={path}"])
    assert settings.problems == ()
    assert [notice for notice in settings.notices if "there is no" in notice] == []
    assert len(settings.in_file) > 10


def test_the_version_has_its_entry_in_the_changelog() -> None:
    source = (ROOT / "pyqd" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert version is not None
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert version[1] in headings or len(headings) == 1, "before the first release all is unreleased"
