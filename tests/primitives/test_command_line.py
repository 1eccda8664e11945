"""Mistakes on the command lines of tools."""

import subprocess
import sys
from typing import Any

import pytest

from pyqd.primitives.command_line import CommandParser


def tool(**settings: Any) -> CommandParser:
    parser = CommandParser(prog="tool", **settings)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("-w", "--workload", required=True)
    parser.add_argument("words", nargs="*")
    return parser


def tool_of_commands() -> CommandParser:
    parser = CommandParser(prog="tool", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("drain").add_argument("--path", required=True)
    commands.add_parser("replay").add_argument("--to", required=True)
    return parser


def mistake(parser: CommandParser, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(arguments)
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mesages=3"], "tool: unknown flag --mesages; did you mean --messages? (tool --help lists all flags)\n"),
        (
            ["-w", "pub", "--szie", "3"],
            "tool: unknown flag --szie; did you mean --size? (tool --help lists all flags)\n",
        ),
        (["--colour"], "tool: unknown flag --colour (tool --help lists all flags)\n"),
        (
            ["--messages=3"],
            "tool: the following arguments are required: -w/--workload (tool --help lists all flags)\n",
        ),
        (
            ["-w", "pub", "--size=x"],
            "tool: argument --size: invalid int value: 'x' (tool --help lists all flags)\n",
        ),
    ],
)
def test_a_mistake_is_one_line_and_a_misspelt_flag_comes_with_the_nearest(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake(tool(), arguments, capsys) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hlep", "drain"], "tool: unknown flag --hlep; did you mean --help? (tool --help lists all flags)\n"),
        (
            ["drain", "--pth=x"],
            "tool drain: unknown flag --pth; did you mean --path? (tool drain --help lists all flags)\n",
        ),
        (["drain", "--to=x"], "tool drain: unknown flag --to (tool drain --help lists all flags)\n"),
    ],
)
def test_a_flag_behind_a_command_is_one_of_that_command(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake(tool_of_commands(), arguments, capsys) == said


def test_a_flag_may_be_abbreviated_if_abbreviations_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool().parse_args(["--work=pub"]).workload == "pub"
    said = mistake(tool(allow_abbrev=False), ["--work=pub"], capsys)
    assert said == "tool: unknown flag --work; did you mean --workload? (tool --help lists all flags)\n"


def test_words_after_two_dashes_are_no_flags() -> None:
    given = tool().parse_args(["-w", "pub", "--", "--mesages=3", "x"])
    assert given.words == ["--mesages=3", "x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["pyqd.apps.cli", "inspect", "--verfy"], "did you mean --verify? (pyqd inspect --help lists all flags)"),
        (
            ["pyqd_spark.cli", "drain", "--lookpud=x"],
            "did you mean --lookupd? (pyq_spark drain --help lists all flags)",
        ),
        (["tests.simulation", "--sede=1"], "did you mean --seed? (python -m tests.simulation --help lists all flags)"),
    ],
)
def test_the_tools_report_a_misspelt_flag_in_one_line(command: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.rstrip().endswith(said)
