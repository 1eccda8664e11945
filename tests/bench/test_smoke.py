"""Every workload in a tiny size through a real server: what is measured here is whether measuring works."""

import importlib.util
import json
import math
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("bench.loadgen", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, report, runner
from bench.connections import Connections, Handshake, HandshakeError
from bench.runner import Cores, Result, Setting
from bench.server import Server, ServerError, Target, running
from bench.workloads import WORKLOADS, Workload, find

# Some thousand messages, a dozen idle connections.
SCALE = 0.0025
# Nothing is pinned: tests share their cores with others.
SETTING = Setting(cores=Cores())


def broker(request: pytest.FixtureRequest, name: str) -> Target:
    """Return the target of that name; skip the test when it is not there."""
    if name == "nsqd":
        path = request.config.getoption("--nsqd")
        if path is None:
            pytest.skip("no nsqd was given")
        return Target.parse(path)
    if name == "pyqd" and importlib.util.find_spec("pyqd.apps.daemon") is None:
        pytest.skip("this tree has no daemon")
    return Target.parse(name)


@pytest.fixture(params=["pyqd", "sink", "nsqd"])
def target(request: pytest.FixtureRequest) -> Target:
    return broker(request, request.param)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.name))
def test_a_workload_loses_nothing_and_doubles_nothing(workload: Workload, target: Target) -> None:
    if target.name == "sink" and workload.upgrade:
        pytest.skip("the sink upgrades nothing")
    small = workload.scaled(SCALE)
    result = runner.run_once(small, target, SETTING)
    assert result.problem == ""
    assert (result.losses, result.duplicates, result.foreign) == (0, 0, 0)
    assert result.messages == small.messages
    assert result.figures
    assert all(math.isfinite(value) for value in result.figures.values())


def test_a_session_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--target", "sink", "-w", "mpub", "--scale", "0.0005", "--repeat", "2", "--unpinned"]
    assert cli.main([*arguments, "--results", str(tmp_path)]) == 0
    assert "messages, k/s" in capsys.readouterr().out
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    [workload] = document["workloads"]
    assert workload["workload"]["name"] == "mpub"
    assert [run["losses"] for run in workload["runs"]] == [0, 0]
    assert workload["summary"]["targets"]["sink"]["rate_per_s"]["count"] == 2


def test_without_an_nsqd_compare_says_that_pyqd_runs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSQD", raising=False)
    arguments = cli.make_parser().parse_args(["compare", "--pairs", "3"])
    targets, count = cli.choose_targets(arguments)
    assert ([target.name for target in targets], count) == (["pyqd"], 3)
    assert "alone" in capsys.readouterr().out


def test_targets_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(workload: Workload, target: Target, setting: Setting) -> Result:
        return Result(workload=workload.name, target=target.name, messages=0)

    monkeypatch.setattr(runner, "run_once", run_once)
    targets = [Target(name="a", command=()), Target(name="b", command=())]
    names = [result.target for result in runner.alternate(find("mpub"), targets, 2, SETTING)]
    assert names == ["a", "b", "a", "b"]


def test_the_ratio_is_taken_pair_by_pair_and_leaves_failed_pairs_out() -> None:
    rates = [("a", 30.0), ("b", 10.0), ("a", 8.0), ("b", 2.0), ("a", 9.0), ("b", 1.0)]
    results = [Result(workload="w", target=name, messages=1, figures={"rate_per_s": rate}) for name, rate in rates]
    results[4] = Result(workload="w", target="a", messages=1, problem="lost")
    assert report.pair_ratios(results, ["a", "b"], "rate_per_s") == [3.0, 4.0]
    assert "FAILED a: lost" in report.workload_table(find("mpub"), results)


def test_a_server_that_does_not_start_is_a_problem_and_not_an_exception() -> None:
    result = runner.run_once(find("mpub").scaled(SCALE), Target(name="false", command=("false",)), SETTING)
    assert result.problem.startswith("ServerError: the server ended with status 1")


def test_a_server_that_dies_is_told_from_a_closed_connection() -> None:
    def kill(server: Server) -> None:
        server.process.kill()
        server.process.wait()
        server.require_alive()

    with running(Target.parse("sink")) as server, pytest.raises(ServerError, match="status -9"):
        kill(server)


@pytest.mark.parametrize("name", ["pyqd", "nsqd"])
def test_a_refused_handshake_says_what_was_answered(request: pytest.FixtureRequest, name: str) -> None:
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
def test_what_is_published_over_http_are_messages_of_the_size_that_was_asked_for(
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
