"""Every workload in a tiny size through a real server: the test is whether measuring works."""

import json
import math
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, figures, runner, stock
from bench.accounts import Account
from bench.server import Server, ServerError, Target, running
from bench.setting import Cores, Result, Setting
from bench.workloads import WORKLOADS, Workload, find
from pyqd.tools.bench.connections import Connections, Handshake, HandshakeError
from pyqd.tools.bench.outcome import ChannelCount, LoadReport
from tests.bench.brokers import broker
from tests.bench.made_up import made_up_run

# Each test is a run of a benchmark.
pytestmark = pytest.mark.slow

# Some thousand messages, a dozen idle connections.
SCALE = 0.0025
# Nothing is pinned: tests share their cores with others.
SETTING = Setting(cores=Cores())


@pytest.fixture(params=["pyqd", "sink", "sink-store", "nsqd"])
def target(request: pytest.FixtureRequest) -> Target:
    return broker(request, request.param)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.name))
def test_a_workload_loses_nothing_and_doubles_nothing(workload: Workload, target: Target) -> None:
    if target.program == "sink" and (workload.upgrade or workload.kind in ("memory", "start")):
        pytest.skip("the sink upgrades nothing, keeps nothing, and has no statistics")
    small = replace(workload.scaled(SCALE), age_s=0.0)
    result = runner.run_once(small, target, SETTING)
    assert result.problem == ""
    assert (result.losses, result.duplicates, result.foreign) == (0, 0, 0)
    assert result.messages == small.messages
    assert result.figures
    assert set(result.figures) <= {figure.key for figure in figures.FIGURES} | {"start_s_least", "start_s_most"}
    assert all(math.isfinite(value) for value in result.figures.values())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("pub-1x1", {"answer_p50_us", "answer_p99_us", "answer_p999_us", "answer_max_us"}),
        ("e2e", {"answer_p50_us", "latency_p50_us", "latency_max_us"}),
        ("latency-10k", {"answer_p50_us", "latency_p99_us", "latency_p999_us", "behind_p99_us", "behind_max_us"}),
        ("fanout-16", {"published_per_s", "delivered_per_s", "latency_p50_us"}),
        ("deferred-lateness", {"lateness_p50_us", "lateness_p99_us", "lateness_max_us", "early_count"}),
    ],
)
def test_a_workload_has_the_figures_that_it_is_there_for(name: str, keys: set[str]) -> None:
    small = replace(find(name).scaled(SCALE), age_s=0.0)
    result = runner.run_once(small, Target.parse("sink"), SETTING)
    assert result.problem == ""
    assert keys <= set(result.figures)


def test_a_loss_in_one_channel_and_a_duplicate_in_another_do_not_cancel_out() -> None:
    counts = (ChannelCount(unique=5, duplicates=0, foreign=0), ChannelCount(4, 0, 0), ChannelCount(5, 1, 0))
    load_report = LoadReport(
        messages=5,
        confirmed=5,
        received=15,
        unique=14,
        duplicates=1,
        foreign=0,
        heartbeats=0,
        elapsed_s=1.0,
        published_s=1.0,
        consumed_s=1.0,
        worked_s=1.0,
        timed_out=False,
        channels=counts,
    )
    result = runner.consumption_result(find("fanout-16"), Target.parse("sink"), load_report, Account(), {})
    assert (result.losses, result.duplicates) == (1, 1)
    assert "channel 1: 1 lost, 0 twice, 0 foreign; channel 2: 0 lost, 1 twice, 0 foreign" in result.problem


def test_a_session_prints_tables_and_writes_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--target", "sink", "-w", "mpub", "--scale", "0.0005", "--repeat", "2", "--unpinned"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "messages, k/s" in printed.out
    assert "run 2 of 2" in printed.err
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    [workload] = document["workloads"]
    assert workload["workload"]["name"] == "mpub"
    assert [run["losses"] for run in workload["runs"]] == [0, 0]
    assert path.with_suffix(".md").exists()


def test_sessions_share_one_file_and_resume_makes_the_missing_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_up_run(monkeypatch)
    path = tmp_path / "series.json"
    arguments = ["run", "--target", "sink", "-w", "mpub", "--unpinned", "--into", str(path), "--repeat"]

    def runs() -> int:
        return len(json.loads(path.read_text())["workloads"][0]["runs"])

    assert cli.main([*arguments, "2"]) == 0
    assert cli.main([*arguments, "1"]) == 0
    assert runs() == 3
    assert cli.main([*arguments, "5", "--resume"]) == 0
    assert runs() == 5
    assert cli.main([*arguments, "5", "--resume"]) == 0
    assert runs() == 5


def test_no_pair_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_up_run(monkeypatch)
    path = tmp_path / "series.json"
    arguments = ["run", "--target", "sink", "-w", "mpub", "--unpinned", "--into", str(path)]
    assert cli.main([*arguments, "--minutes=-1"]) == 0
    assert json.loads(path.read_text())["workloads"][0]["runs"] == []


def test_a_failed_run_is_the_exit_status_and_is_in_the_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_run(monkeypatch, problem="3 lost")
    arguments = ["run", "--target", "sink", "-w", "mpub", "--unpinned", "--results", str(tmp_path)]
    assert cli.main(arguments) == 1
    assert "FAILED sink: 3 lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--target", "sink", "--resume"], "--resume needs --into"),
        (["run", "--target", "sink", "--repeat", "0"], "at least one"),
        (["run", "--target", "no-such-server"], "neither pyqd"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "wanted"),
    [([], ["compare"]), (["-w", "mpub"], ["compare", "-w", "mpub"]), (["list"], ["list"]), (["--help"], ["--help"])],
)
def test_a_command_that_is_not_named_is_compare(given: list[str], wanted: list[str]) -> None:
    assert cli.with_command(given) == wanted


@pytest.mark.slow
def test_without_an_nsqd_compare_measures_pyqd_alone(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker(request, "pyqd")
    monkeypatch.delenv("NSQD", raising=False)
    arguments = ["compare", "-w", "mpub", "--scale", "0.0005", "--pairs", "2", "--unpinned"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    assert "alone" in capsys.readouterr().out
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert [run["target"] for run in document["workloads"][0]["runs"]] == ["pyqd", "pyqd"]
    assert "pyqd v" in document["sessions"][0]["targets"][0]["version"]


def test_an_nsqd_is_measured_on_one_core_and_on_two(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = broker(request, "nsqd")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    arguments = cli.make_parser().parse_args(["compare", "--nsqd", nsqd.command[0]])
    targets, count = cli.choose_targets(arguments)
    assert [(target.program, target.core_count) for target in targets] == [("pyqd", 1), ("nsqd", 1), ("nsqd", 2)]
    assert [dict(target.environment).get("GOMAXPROCS") for target in targets] == [None, "1", "2"]
    assert count == 5
    assert nsqd.version().startswith("nsqd v")
    one_core = cli.make_parser().parse_args(["compare", "--one-core", "--nsqd", nsqd.command[0]])
    assert len(cli.choose_targets(one_core)[0]) == 2


def test_a_server_on_two_cores_shares_that_of_a_generator_which_then_sleeps() -> None:
    setting = Setting(cores=Cores(server=3, generator=5))
    one, two = Target(name="a", command=()), Target(name="b", command=(), core_count=2)
    assert (setting.cores.of(one), setting.cores.of(two)) == ((3,), (3, 5))
    assert (setting.of(one).cores.generator, setting.of(two).cores.generator) == (5, None)
    assert Cores().of(two) == ()


def test_targets_run_in_turn() -> None:
    targets = [Target(name="a", command=()), Target(name="b", command=())]
    order = [(pair, target.name) for pair, target in runner.alternate(targets, 2)]
    assert order == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_the_memory_queue_of_an_nsqd_is_raised_so_that_it_writes_no_files() -> None:
    assert find("mpub").flags_of("pyqd") == ()
    assert find("mpub").flags_of("nsqd") == ("-mem-queue-size=8000000",)
    assert find("mpub").scaled(0.001).flags_of("nsqd") == ()
    assert find("disk-publish").flags_of("nsqd") == find("disk-publish").flags_of("pyqd") == ("-mem-queue-size=0",)
    assert find("latency-50k").flags_of("nsqd") == find("start-10m").flags_of("nsqd") == ()


def test_a_long_workload_has_fewer_runs_than_pairs() -> None:
    workload = Workload(name="w", kind="memory", what="", runs_max=2)
    assert (workload.runs(1), workload.runs(5), find("mpub").runs(5)) == (1, 2, 5)


@pytest.mark.slow
def test_a_depth_that_is_not_right_after_a_start_is_a_problem(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "START_DEADLINE_S", 0.5)
    monkeypatch.setattr(stock, "fill", lambda workload, server, setting: "")
    result = runner.run_once(find("start-10m").scaled(0.0001), broker(request, "pyqd"), SETTING)
    assert result.problem.startswith("ServerError:")


def test_a_server_that_does_not_start_is_a_problem_and_not_an_exception() -> None:
    result = runner.run_once(find("mpub").scaled(SCALE), Target(name="false", command=("false",)), SETTING)
    assert result.problem.startswith("ServerError: the server ended with status 1")


def test_a_dead_server_is_distinguished_from_a_closed_connection() -> None:
    def kill(server: Server) -> None:
        server.process.kill()
        server.process.wait()
        server.require_alive()

    with running(Target.parse("sink")) as server, pytest.raises(ServerError, match="status -9"):
        kill(server)


@pytest.mark.parametrize("name", ["pyqd", "nsqd"])
def test_a_refused_handshake_reports_the_answer(request: pytest.FixtureRequest, name: str) -> None:
    handshake = Handshake(topic="t", channel="not/a/channel")
    with running(broker(request, name)) as server, pytest.raises(HandshakeError, match="E_BAD_CHANNEL"):
        Connections.open(server.tcp_address, 1, handshake, timeout_s=10.0)


@pytest.mark.parametrize("name", ["pyqd", "nsqd"])
def test_an_error_frame_is_the_problem_of_its_run(request: pytest.FixtureRequest, name: str) -> None:
    flags = ("-max-msg-size=100",)
    result = runner.run_once(find("pub").scaled(SCALE), broker(request, name), Setting(flags=flags))
    assert "E_BAD_MESSAGE PUB message too big 200 > 100" in result.problem


def test_a_refused_request_is_the_problem_of_its_run(request: pytest.FixtureRequest) -> None:
    flags = ("-max-msg-size=100",)
    result = runner.run_once(find("http-pub").scaled(SCALE), broker(request, "pyqd"), Setting(flags=flags))
    assert "refused: HTTP/1.1 413" in result.problem


def test_an_upgrade_that_is_not_granted_is_the_problem_of_its_run(request: pytest.FixtureRequest) -> None:
    flags = ("-snappy=false",)
    result = runner.run_once(find("consume-snappy").scaled(SCALE), broker(request, "pyqd"), Setting(flags=flags))
    assert result.problem.startswith("HandshakeError: snappy was not granted")


@pytest.mark.parametrize("name", ["http-pub", "http-mpub", "http-mpub-lines"])
def test_messages_published_over_http_have_the_requested_size(
    request: pytest.FixtureRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    publish = runner.KINDS["http_publish"]

    def look(workload: Workload, target: Target, server: Server, setting: Setting) -> Result:
        result = publish(workload, target, server, setting)
        host, port = server.http_address
        with urllib.request.urlopen(f"http://{host}:{port}/stats?format=json", timeout=10) as reply:
            seen.extend(json.load(reply)["topics"])
        return result

    monkeypatch.setitem(runner.KINDS, "http_publish", look)
    small = find(name).scaled(SCALE)
    assert runner.run_once(small, broker(request, "pyqd"), SETTING).problem == ""
    [topic] = seen
    assert (topic["message_count"], topic["message_bytes"]) == (small.messages, small.messages * small.body_bytes)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="neither pyqd"):
        Target.parse("no-such-server")


def test_messages_must_be_whole_batches() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Workload(name="w", kind="publish", what="", messages=201, batch=200)
