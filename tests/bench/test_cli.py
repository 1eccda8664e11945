"""Refusals of the benchmark before its first run, and its report of the machine."""

import json
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, runner, series
from bench.procfs import read_file_system
from bench.server import Target
from bench.setting import Cores, Setting
from bench.workloads import find
from tests.bench.made_up import made_up_run

SMALL = find("mpub").scaled(0.0001)
NO_CORE = 9999


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return standard error of a refused command line."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def speaking(path: Path, version: str) -> Path:
    return program(path, f"#!/bin/sh\necho '{version}'\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--target", "sink", f"--server-core={NO_CORE}"], "core 9999 for the server: this process may use"),
        (["run", "--target", "sink", f"--generator-core={NO_CORE}"], "core 9999 for the generator: this process may"),
        (["run", "--target", "sink", "--data-root=/no/such/place"], "no data directory can be made (--data-root)"),
        (["run", "--target", "sink", "--results=/dev/null/results"], "no results can be written (--results, --into)"),
        (["run", "--target", "sink", "--scale=0"], "a number above 0 is needed: 0"),
        (["run", "--target", "sink", "--scale=nan"], "a number above 0 is needed: nan"),
        (["run", "--target", "sink", "-w", "memory-1m"], "sink can take none of these workloads"),
        (["compare", "--with", "sink", "--with", "sink"], "two servers are called sink"),
        (
            ["compare", "--with", "no-such-server"],
            "neither pyqd, sink, sink-store, sink-sync, nor an executable: no-such-server",
        ),
        (["run", "--target", "sink", "--batch=5"], "another shape is that of one workload: name it by -w"),
        (["run", "--target", "sink", "-w", "mpub", "--batch=0"], "a whole number from 1 on is needed: 0"),
        (["run", "--target", "sink", "-w", "mpub", "--rdy=5"], "mpub has no --rdy"),
        (["run", "--target", "sink", "-w", "mpub", "--rate=5"], "mpub has no --rate"),
        (["run", "--target", "sink", "-w", "mpub", "--size=7"], "--size: a message has at least 8 bytes"),
        (["run", "--target", "sink", "-w", "e2e", "--channels=2"], "e2e has no --channels"),
        (["run", "--target", "sink", "-w", "e2e", "--rate=5"], "are sent one by one: --batch=1"),
        (["load", "--nsqd-tcp-address=127.0.0.1"], "HOST:PORT is needed, with a port of 1 to 65535: 127.0.0.1"),
        (["load", "--nsqd-tcp-address=127.0.0.1:x"], "HOST:PORT is needed"),
        (["load", "--nsqd-tcp-address=127.0.0.1:65536"], "HOST:PORT is needed"),
        (["load", "--nsqd-tcp-address=:4150"], "HOST:PORT is needed"),
    ],
)
def test_impossible_arguments_are_refused_before_the_first_run(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSQD", raising=False)
    monkeypatch.delattr(runner, "run_once")
    places = [] if arguments[0] == "load" or any("--results" in each for each in arguments) else ["--results"]
    assert text in refusal([*arguments, *places, *[str(tmp_path)] * len(places)], capsys)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("#!/bin/sh\nexit 0\n", "is neither nsqd nor pyqd: to -version it says nothing"),
        ("#!/bin/sh\necho 'other v1.0'\n", "is neither nsqd nor pyqd: to -version it says 'other v1.0'"),
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "is neither nsqd nor pyqd: to -version it says 'broken'"),
        ("#!/no/such/interpreter\n", "cannot be asked for its -version"),
        ("\x7fELF", "cannot be asked for its -version"),
    ],
)
def test_an_executable_that_is_no_broker_is_refused(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path / "nsqd", content)
    said = refusal(["compare", "--nsqd", str(path), "--results", str(tmp_path)], capsys)
    assert f"{path} {text}" in said


def test_an_executable_is_found_by_its_name_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = speaking(tmp_path / "some-nsqd", "nsqd v1.2.1 (built w/go1.16)")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    target = Target.parse("some-nsqd")
    assert (target.name, target.command, target.program) == ("some-nsqd", (str(path),), "nsqd")
    assert target.version() == "nsqd v1.2.1 (built w/go1.16)"


def test_another_pyqd_is_distinguished_from_that_of_this_tree_and_from_an_nsqd(tmp_path: Path) -> None:
    path = speaking(tmp_path / "pyqd", "pyqd v0.0.1")
    target = Target.parse(str(path))
    assert (target.name, target.program) == (str(path), "pyqd")
    arguments = cli.make_parser().parse_args(["compare", "--nsqd", str(path)])
    assert [found.name for found in cli.choose_targets(arguments)[0]] == ["pyqd", str(path)]


def test_an_executable_that_cannot_be_started_is_the_problem_of_its_run(tmp_path: Path) -> None:
    path = program(tmp_path / "nsqd", "\x7fELF")
    result = runner.run_once(SMALL, Target(name="nsqd", command=(str(path),)), Setting())
    assert result.problem.startswith(f"ServerError: {path} cannot be started: ")


def test_a_core_that_there_is_not_is_the_problem_of_its_run() -> None:
    result = runner.run_once(SMALL, Target.parse("sink"), Setting(cores=Cores(server=NO_CORE)))
    assert f"cannot be started on cores ({NO_CORE},)" in result.problem


def test_a_data_root_that_went_away_is_the_problem_of_its_run(tmp_path: Path) -> None:
    result = runner.run_once(SMALL, Target.parse("sink"), Setting(data_root=tmp_path / "gone"))
    assert result.problem.startswith("FileNotFoundError: ")


def test_one_core_for_both_programs_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_run(monkeypatch)
    monkeypatch.setattr(runner, "pin_generator", lambda cores: None)
    core = min(os.sched_getaffinity(0))
    arguments = ["run", "--target", "sink", "-w", "mpub", f"--server-core={core}", f"--generator-core={core}"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    assert "no core of their own each" in capsys.readouterr().out


def test_a_load_on_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    # Bound, so that no other process gets the port, but without a listener.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert cli.main(["load", f"--nsqd-tcp-address=127.0.0.1:{port}"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"python -m bench load: 127.0.0.1:{port}: [Errno 111] Connection refused\n"


@pytest.mark.parametrize(("file_system", "warned"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("", False)])
def test_a_session_names_its_file_system_and_warns_of_one_in_memory(
    file_system: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made_up_run(monkeypatch)
    monkeypatch.setattr(series, "read_file_system", lambda path: file_system)
    path = tmp_path / "series.json"
    arguments = ["run", "--target", "sink", "--unpinned", "--data-root", str(tmp_path), "--into", str(path)]
    assert cli.main([*arguments, "-w", "mpub", "-w", "disk-publish", "-w", "pub-sync-1"]) == 0
    printed = capsys.readouterr()
    assert (f"{tmp_path} is {file_system}, which is memory: disk-publish, pub-sync-1 will" in printed.err) is warned
    assert f"data directories: in {tmp_path}, {file_system}" in printed.out
    assert json.loads(path.read_text())["sessions"][0]["data"] == {"path": str(tmp_path), "file_system": file_system}
    assert cli.main([*arguments, "-w", "mpub"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_the_file_system_of_a_path_is_that_of_the_mount_it_is_under() -> None:
    assert read_file_system(Path("/proc/self/fd")) == "proc"
    assert read_file_system(Path("/")) not in ("", "proc")


@pytest.mark.slow
def test_sinks_are_measured_in_turn_unless_a_workload_excludes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_run(monkeypatch)
    monkeypatch.delenv("NSQD", raising=False)
    path = tmp_path / "series.json"
    arguments = ["compare", "--with", "sink", "--with", "sink-store", "--unpinned", "--pairs=2", "--into", str(path)]
    assert cli.main([*arguments, "-w", "mpub", "-w", "memory-1m", "-w", "consume-tls"]) == 0
    runs = {
        entry["workload"]["name"]: [run["target"] for run in entry["runs"]]
        for entry in json.loads(path.read_text())["workloads"]
    }
    assert runs == {
        "mpub": ["pyqd", "sink", "sink-store"] * 2,
        "memory-1m": ["pyqd"] * 2,
        "consume-tls": ["pyqd"] * 2,
    }
    printed = capsys.readouterr()
    assert "run 10 of 10" in printed.err
    assert "pyqd / sink  pyqd / sink-store" in printed.out
    assert "alone" not in printed.out
    assert cli.main([*arguments, "--resume", "-w", "mpub", "-w", "memory-1m"]) == 0
    assert "run 1 of" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_workload_of_another_shape_is_run_as_it_is_asked_for_and_no_goal_is_held_against_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shaped = ["--messages=99", "--batch=10", "--size=64", "--connections=2", "--outstanding=3", "--consumers=1"]
    shaped += ["--rdy=7"]
    arguments = ["run", "--target", "sink", "-w", "e2e", *shaped, "--results", str(tmp_path), "--unpinned"]
    assert cli.main(arguments) == 0
    assert "at least" not in capsys.readouterr().out
    [path] = tmp_path.glob("*.json")
    (workload,) = series.Series.read(path).workloads.values()
    assert (workload.messages, workload.batch, workload.body_bytes) == (100, 10, 64)
    assert (workload.publishers, workload.outstanding, workload.consumers, workload.rdy) == (2, 3, 1, 7)
    assert workload.name.startswith("e2e, messages 99, batch 10,")
