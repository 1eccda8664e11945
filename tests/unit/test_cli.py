"""Tests of pyqd.apps.cli."""

import pytest

from pyqd.apps import cli


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_names_the_tools_before_the_flags_of_the_daemon(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0
    text = capsys.readouterr().err
    assert text.index("pyqd import [--dry-run] DIR") < text.index("Usage of pyqd:")


def test_without_a_tool_s_name_the_arguments_are_the_daemon_s(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("pyqd v")


@pytest.mark.parametrize("tool", cli.TOOLS)
def test_each_tool_explains_itself_and_wants_a_directory(tool, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([tool, "--help"])
    assert left.value.code == 0
    assert f"usage: pyqd {tool}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        cli.main([tool])
    assert left.value.code == 2
