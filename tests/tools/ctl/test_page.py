"""docs/tools/pyqctl.md names what pyqctl has. tests/tools/test_pages.py runs its examples."""

from __future__ import annotations

import re

import click
import pytest

from pyqd.tools.ctl import exits
from pyqd.tools.ctl.app import cli
from pyqd.tools.ctl.contexts import CONTEXT_VARIABLE, VARIABLES
from pyqd.tools.ctl.frame import shared_options
from tests.support.pages import FENCE, SHELLS
from tests.support.server import REPOSITORY
from tests.tools.ctl.pictures import PICTURES
from tests.tools.ctl.test_command_line import commands

PAGE = (REPOSITORY / "docs" / "tools" / "pyqctl.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """Return the cells of the first table in a section."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_command_is_in_the_table_with_its_arguments() -> None:
    named = [text for row in rows("Commands") for text in re.findall("`([^`]+)`", row[0])]
    expected = []
    for words, command in commands():
        arguments = [
            param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
        ]
        shown = {"[[TOPIC_PATTERN]]": "[TOPIC_PATTERN]"}
        expected.append(" ".join([*words, *(shown.get(argument, argument) for argument in arguments)]))
    assert sorted(named) == sorted(
        text.replace("{bash|zsh|fish}", "SHELL").replace(" [ARGUMENT]...", "") for text in expected
    )


def test_every_shared_option_is_in_the_table_with_its_variable() -> None:
    found = {cell: row[1].strip("`") for row in rows("Brokers and logins") for cell in re.findall("`([^`]+)`", row[0])}
    variables = {**VARIABLES, "context": CONTEXT_VARIABLE}
    expected = {
        name: variables.get(str(option.name), "")
        for option in shared_options()
        for name in (*option.opts, *option.secondary_opts)
    }
    assert found == expected


def test_exit_codes_are_those_of_the_code() -> None:
    codes = sorted(value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int))
    assert [int(row[0]) for row in rows("Exit codes")] == codes


def test_every_picture_is_on_the_page() -> None:
    shown = set(re.findall(r"\]\(pyqctl/(\w+)\.svg\)", PAGE))
    assert shown == PICTURES.keys()


def examples() -> list[tuple[str, ...]]:
    """Return the words of each command line of pyqctl in the page."""
    found = []
    for language, block in FENCE.findall(PAGE):
        if language in SHELLS:
            for line in re.split(r"[\n|;]", block):
                if match := re.search(r"(?:^|\s)pyqctl (.*?)(?: [<>] .*)?$", line.split(" #")[0]):
                    found.append(tuple(re.findall(r"'[^']*'|\S+", match[1])))
    return found


@pytest.mark.parametrize("words", examples(), ids=" ".join)
def test_options_in_the_examples_exist(words: tuple[str, ...]) -> None:
    command: click.Command = cli
    left = list(words)
    while isinstance(command, click.Group) and left[0] in command.commands:
        command = command.commands[left.pop(0)]
    assert not isinstance(command, click.Group), words
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    used = {word.split("=")[0] for word in left[: left.index("--") if "--" in left else None] if word.startswith("--")}
    assert used <= known
