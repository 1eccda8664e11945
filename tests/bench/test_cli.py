"""Refusals of the benchmark before its first run, and its report of the machine."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, runner
from bench.server import ServerError, Target
from bench.setting import IN_MEMORY, Cores, Setting, read_file_system
from bench.workloads import WORKLOADS, find
from tests.bench.brokers import broker

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
        (["run", "--target", "sink", "--data-root=/no/such/place"], "no data directory or no results can be made"),
        (["run", "--target", "sink", "--results=/dev/null/results"], "no data directory or no results can be made"),
        (["run", "--target", "sink", "--scale=0"], "a number above 0 is needed: 0"),
        (["run", "--target", "sink", "--scale=nan"], "a number above 0 is needed: nan"),
        (["run", "--target", "sink", "--repeat", "0"], "a whole number from 1 on is needed: 0"),
        (["run", "--target", "sink", "-w", "no-such-row"], "no row no-such-row: there are mpub, "),
        (["compare", "--with", "sink", "--with", "sink"], "two servers are called sink"),
        (
            ["compare", "--with", "no-such-server"],
            "neither pyqd, sink, sink-store, nor an executable: no-such-server",
        ),
    ],
)
def test_impossible_arguments_are_refused_before_the_first_run(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSQD", raising=False)
    monkeypatch.delattr(runner, "run_once")
    places = [] if any("--results" in each for each in arguments) else ["--results", str(tmp_path)]
    assert text in refusal([*arguments, *places], capsys)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("#!/bin/sh\nexit 0\n", "is neither nsqd nor pyqd: to -version it says ''"),
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
    assert [found.name for found in cli.choose_targets(arguments)] == ["pyqd", str(path)]


def test_a_target_may_have_flags_and_is_called_by_them() -> None:
    target = Target.parse("pyqd --sync-fin --trace-topic='*'")
    assert target.flags == ("--sync-fin", "--trace-topic=*")
    assert target.name == "pyqd --sync-fin --trace-topic='*'"


def test_a_server_that_cannot_be_started_is_the_problem_of_its_run(tmp_path: Path) -> None:
    path = program(tmp_path / "nsqd", "\x7fELF")
    with pytest.raises(ServerError, match=f"{path} cannot be started: "):
        runner.run_once(SMALL, Target(name="nsqd", command=(str(path),)), Setting())
    with pytest.raises(ServerError, match=rf"cannot be started on cores \({NO_CORE},\)"):
        runner.run_once(SMALL, Target.parse("sink"), Setting(cores=Cores(server=NO_CORE)))
    with pytest.raises(ServerError, match="the server ended with status 1"):
        runner.run_once(SMALL, Target(name="false", command=("false",)), Setting())


@pytest.mark.parametrize(("file_system", "warned"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("", False)])
def test_a_session_warns_of_a_file_system_in_memory(
    file_system: str, warned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "read_file_system", lambda path: file_system)
    cli.require_places(Setting(data_root=tmp_path), tmp_path)
    assert (f"{tmp_path} is memory" in capsys.readouterr().err) is warned


def test_the_file_system_of_a_path_is_that_of_the_mount_it_is_under() -> None:
    assert read_file_system(Path("/proc/self/fd")) == "proc"
    assert read_file_system(Path("/")) not in ("", "proc")
    assert read_file_system(Path("/dev/shm")) in IN_MEMORY


def test_sinks_are_left_out_of_workloads_that_they_cannot_take() -> None:
    names = [each.name for each in WORKLOADS if not runner.measurable(each, Target.parse("sink-store"))]
    assert names == [
        *("http-pub", "http-mpub-lines", "consume-tls", "consume-snappy", "consume-deflate"),
        *("idle", "memory-1m", "start-empty", "start-10m"),
    ]
    assert all(runner.measurable(each, Target.parse("pyqd")) for each in WORKLOADS)


def test_a_session_prints_tables_and_writes_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--target", "sink", "-w", "mpub", "--scale", "0.0005", "--repeat", "2", "--unpinned"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "| mpub | messages, k/s |" in printed.out
    assert "run 2: mpub sink, pair 2" in printed.err
    assert "no core of their own each" in printed.out
    [path] = tmp_path.glob("*.json")
    assert [run["problem"] for run in json.loads(path.read_text())["runs"]] == ["", ""]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], ["compare"]),
        (["-w", "mpub"], ["compare", "-w", "mpub"]),
        (["list"], ["list"]),
        (["--help"], ["--help"]),
        (["--durable", "-w", "1x1"], ["durable", "-w", "1x1"]),
    ],
)
def test_a_command_that_is_not_named_is_compare(given: list[str], wanted: list[str]) -> None:
    assert cli.with_command(given) == wanted


@pytest.mark.slow
def test_without_an_nsqd_compare_measures_pyqd_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSQD", raising=False)
    arguments = ["compare", "-w", "mpub", "--scale", "0.0005", "--pairs", "2", "--unpinned"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    assert "alone" in capsys.readouterr().out
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert [run["contender"] for run in document["runs"]] == ["pyqd", "pyqd"]
    assert any("pyqd v" in each for each in document["conditions"])


def test_an_nsqd_is_measured_on_one_core_and_on_two(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = broker(request, "nsqd")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    targets = cli.choose_targets(cli.make_parser().parse_args(["compare", "--nsqd", nsqd.command[0]]))
    assert [(target.program, target.core_count) for target in targets] == [("pyqd", 1), ("nsqd", 1), ("nsqd", 2)]
    assert [dict(target.environment).get("GOMAXPROCS") for target in targets] == [None, "1", "2"]
    one_core = cli.make_parser().parse_args(["compare", "--one-core", "--nsqd", nsqd.command[0]])
    assert len(cli.choose_targets(one_core)) == 2


def test_a_server_on_two_cores_shares_that_of_a_generator_which_then_sleeps() -> None:
    setting = Setting(cores=Cores(server=3, generator=5))
    one, two = Target(name="a", command=()), Target(name="b", command=(), core_count=2)
    assert (setting.cores.of(one), setting.cores.of(two)) == ((3,), (3, 5))
    assert (setting.of(one).spin, setting.of(two).spin) == (True, False)
    assert Cores().of(two) == ()
