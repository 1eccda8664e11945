"""Tests of pyqd.apps.cli."""

import os
import subprocess
import sys

import pytest

from pyqd.apps import cli


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], ["--node-id=1", "-help"]])
def test_help_names_the_tools_before_the_flags_of_the_daemon(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0
    text, error = capsys.readouterr()
    assert error == ""
    for tool in cli.TOOLS:
        assert text.index(f"pyqd {tool} [--") < text.index("Usage of pyqd:")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("inspct", "; did you mean inspect?"),
        ("Import", "; did you mean import?"),
        (
            "begin",
            "; the commands are up, import, export, inspect, drain, restart; without a command the daemon starts",
        ),
        ("a\nb", "; the commands are up, import, export, inspect, drain, restart; without a command the daemon starts"),
        ("queues", "; a data directory is named by a flag, --data-path=queues"),
    ],
)
def test_an_unknown_command_is_named_and_starts_nothing(word, remedy, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queues").mkdir()
    with pytest.raises(SystemExit) as left:
        cli.main([word, "DIR"])
    assert left.value.code == 2
    quoted = word.replace("\n", "\\n")
    expected = f'pyqd: unknown command "{quoted}"{remedy} (pyqd --help lists all flags)\n'
    assert capsys.readouterr() == ("", expected)
    assert [path.name for path in tmp_path.rglob("*")] == ["queues"]


@pytest.mark.slow
def test_help_into_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "pyqd.apps.cli", "--help"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_without_a_tool_s_name_the_arguments_are_the_daemon_s(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("pyqd v")


@pytest.mark.parametrize("tool", cli.TOOLS)
def test_each_tool_explains_itself(tool, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([tool, "--help"])
    assert left.value.code == 0
    assert f"usage: pyqd {tool}" in capsys.readouterr().out


@pytest.mark.parametrize("tool", ["import", "export", "inspect"])
def test_a_tool_for_data_wants_a_directory(tool, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([tool])
    assert left.value.code == 2
