"""Every workload in a tiny size through a real server: the test is whether measuring works."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import runner
from bench.accounts import read_stock
from bench.server import RunError, Server, ServerError, Target, running
from bench.setting import Cores, Setting
from bench.workloads import WORKLOADS, Workload, find
from pyqd.hot.tools.loadgen import Load, LoadError
from pyqd.tools.bench.connections import Connections, Handshake, LoadHandshakeError
from pyqd.tools.bench.outcome import ChannelCount, LoadCounts, LoadReport
from tests.bench.brokers import broker

# Each test is a run of a benchmark.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Some thousand messages, a dozen idle connections.
SCALE = 0.0025
# Nothing is pinned: tests share their cores with others.
SETTING = Setting(cores=Cores())
# Of a fan-out whose publishers wait for the slowest channel.
MESSAGES = 1000
BATCH = 50


@pytest.fixture(params=["pyqd", "sink", "sink-store", "nsqd"])
def target(request: pytest.FixtureRequest) -> Target:
    return broker(request, request.param)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.name))
def test_a_workload_loses_nothing_and_doubles_nothing(workload: Workload, target: Target) -> None:
    if not runner.measurable(workload, target):
        pytest.skip("the sink speaks no HTTP, upgrades nothing, keeps nothing, and has no statistics")
    figures = runner.run_once(workload.scaled(SCALE), target, SETTING)
    assert figures
    assert all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("pub-1x1", {"answer_p50_us", "answer_p99_us", "answer_p999_us", "answer_max_us"}),
        ("e2e", {"answer_p50_us", "latency_p50_us", "latency_max_us"}),
        ("latency-10k", {"answer_p50_us", "latency_p99_us", "latency_p999_us", "behind_p99_us", "behind_max_us"}),
        ("fanout-16", {"published_s", "delivered_per_s", "latency_p50_us"}),
    ],
)
def test_a_workload_has_the_figures_that_it_is_there_for(name: str, keys: set[str]) -> None:
    assert keys <= set(runner.run_once(find(name).scaled(SCALE), Target.parse("sink"), SETTING))


def report(*channels: ChannelCount) -> LoadReport:
    load = Load(messages=MESSAGES, body_bytes=200)
    return replace(load.report(), confirmed=MESSAGES, timed_out=False, channels=channels)


def test_a_loss_in_one_channel_and_a_duplicate_in_another_do_not_cancel_out() -> None:
    whole, lossy, doubled = ((MESSAGES, 0, 0), (MESSAGES - 1, 0, 0), (MESSAGES, 1, 0))
    found = report(*(ChannelCount(*counts) for counts in (whole, lossy, doubled)))
    text = "^channel 1: 1 lost, 0 twice, 0 foreign; channel 2: 0 lost, 1 twice, 0 foreign$"
    with running(Target.parse("sink")) as server, pytest.raises(RunError, match=text):
        runner.require_whole(server, found)


class PretendedLoad(Load):
    """Load on a pretended broker: a batch at a time is published, or delivered to two channels, one of them slowly."""

    consuming: bool
    sent = 0
    most = 0
    delivered = (0, 0)

    def start(self, *, spin: bool = False) -> None:
        assert spin

    def advance(self, seconds: float) -> bool:
        state = PretendedLoad
        if self.consuming:
            state.delivered = (min(state.sent, state.delivered[0] + 50), min(state.sent, state.delivered[1] + 10))
            return min(state.delivered) == MESSAGES
        state.sent += BATCH
        state.most = max(state.most, state.sent - min(state.delivered))
        return state.sent == MESSAGES

    def counts(self) -> LoadCounts:
        return LoadCounts(sent=self.sent)

    def report(self) -> LoadReport:
        channels = tuple(ChannelCount(count, 0, 0) for count in self.delivered)
        return replace(super().report(), confirmed=self.sent, channels=channels)


def test_publishers_of_a_limited_fan_out_wait_for_the_slowest_channel() -> None:
    publishing, consuming = (PretendedLoad(messages=MESSAGES, body_bytes=200) for _ in range(2))
    publishing.consuming, consuming.consuming = False, True
    found = runner.run_bounded(publishing, consuming, unconsumed=200, deadline_s=60.0)
    assert (found.timed_out, found.confirmed) == (False, MESSAGES)
    assert 200 <= PretendedLoad.most < 200 + BATCH


def test_every_channel_of_a_limited_fan_out_gets_every_message() -> None:
    load = replace(find("fanout-16").scaled(0.02), unconsumed=500)
    figures = runner.run_once(load, Target.parse("pyqd"), SETTING)
    assert min(figures["published_s"], figures["answer_p50_us"]) > 0


def test_the_memory_queue_of_an_nsqd_is_raised_so_that_it_writes_no_files() -> None:
    assert find("mpub").flags_of("pyqd") == ()
    assert find("mpub").flags_of("nsqd") == ("-mem-queue-size=8000000",)
    assert find("mpub").scaled(0.001).flags_of("nsqd") == ()
    assert find("pub-sync-1").flags_of("nsqd") == find("pub-sync-1").flags_of("pyqd") == ("-sync-every=1",)
    assert find("latency-50k").flags_of("nsqd") == find("start-10m").flags_of("nsqd") == ()


def test_a_start_that_is_never_complete_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "START_DEADLINE_S", 0.1)
    with running(Target.parse("sink")) as server, pytest.raises(ServerError, match="depth 1,000 not within"):
        runner.wait_for(server, lambda: False, "depth 1,000")


def test_a_dead_server_is_distinguished_from_a_closed_connection() -> None:
    def kill(server: Server) -> None:
        server.process.kill()
        server.process.wait()
        server.require_alive()

    with running(Target.parse("sink")) as server, pytest.raises(ServerError, match="status -9"):
        kill(server)


@pytest.mark.parametrize("name", ["pyqd", "nsqd"])
def test_a_refused_handshake_reports_the_answer(request: pytest.FixtureRequest, name: str) -> None:
    handshake = Handshake({"heartbeat_interval": 1})
    with running(broker(request, name)) as server, pytest.raises(LoadHandshakeError, match="E_BAD_BODY"):
        Connections.open(server.tcp_address, 1, handshake, timeout_s=10.0)


@pytest.mark.parametrize(
    ("name", "workload", "flag", "text"),
    [
        ("pyqd", "pub", "-max-msg-size=100", "E_BAD_MESSAGE PUB message too big 200 > 100"),
        ("nsqd", "pub", "-max-msg-size=100", "E_BAD_MESSAGE PUB message too big 200 > 100"),
        ("pyqd", "http-pub", "-max-msg-size=100", "refused: HTTP/1.1 413"),
        ("pyqd", "consume-snappy", "-snappy=false", "snappy was not granted"),
    ],
)
def test_a_refusal_is_the_problem_of_its_run(
    request: pytest.FixtureRequest, name: str, workload: str, flag: str, text: str
) -> None:
    with pytest.raises((LoadError, LoadHandshakeError), match=text):
        runner.run_once(find(workload).scaled(SCALE), broker(request, name), Setting(flags=(flag,)))


@pytest.mark.parametrize("name", ["http-pub", "http-mpub-lines"])
def test_messages_published_over_http_have_the_requested_size(request: pytest.FixtureRequest, name: str) -> None:
    small = find(name).scaled(SCALE)
    with running(broker(request, "pyqd")) as server:
        runner.run_publish(small, server, SETTING)
        assert read_stock(server, runner.TOPIC).message_count == small.messages
        with server.http() as client:
            [topic] = client.json("/stats", format="json")["topics"]
        assert topic["message_bytes"] == small.messages * small.body_bytes


def test_messages_must_be_whole_batches() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Workload(name="w", kind="publish", what="", messages=201, batch=200)
