"""Load without measuring: the carried messages, and the report if a message was not carried exactly once."""

from dataclasses import replace

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, steady
from bench.server import running
from bench.steady import Carried
from bench.workloads import find
from pyqd.hot.tools.loadgen import Load, LoadError
from pyqd.tools.bench.connections import Connections, Handshake
from pyqd.tools.bench.outcome import LoadReport
from tests.bench.brokers import broker

# Each test is a run of a benchmark.
pytestmark = pytest.mark.slow

SMALL = replace(find("e2e"), messages=400)
GOOD = LoadReport(
    messages=4,
    confirmed=4,
    received=4,
    unique=4,
    duplicates=0,
    foreign=0,
    heartbeats=0,
    elapsed_s=1.5,
    published_s=1.0,
    consumed_s=1.5,
    worked_s=1.0,
    timed_out=False,
)


def test_rounds_go_through_a_server(request: pytest.FixtureRequest) -> None:
    with running(broker(request, "pyqd")) as server:
        carried = steady.keep_loaded(server.tcp_address, 0.1, SMALL)
    assert carried.messages >= SMALL.messages
    assert carried.problem == ""


def test_messages_left_by_an_earlier_load_end_the_load(request: pytest.FixtureRequest) -> None:
    with running(broker(request, "pyqd")) as server:
        load = Load(messages=1, body_bytes=SMALL.body_bytes)
        with Connections.open(server.tcp_address, 1, Handshake(), timeout_s=10.0) as connections:
            load.add_publishers(connections.fds(), topic=steady.TOPIC, batch=1, outstanding=1)
            assert load.run(20.0).confirmed == 1
        carried = steady.keep_loaded(server.tcp_address, 60.0, SMALL)
    assert carried.messages == SMALL.messages
    assert "0 lost, 1 twice, 0 never published, where what an interrupted load has left" in carried.problem


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (replace(GOOD, timed_out=True, unique=3), "not complete after 1.5 s: 1 lost, 0 twice, 0 never published"),
        (replace(GOOD, timed_out=True), "not complete after 1.5 s: 0 lost"),
        (replace(GOOD, duplicates=2), "0 lost, 2 twice, 0 never published"),
        (replace(GOOD, foreign=1), "0 lost, 0 twice, 1 never published"),
    ],
)
def test_a_round_that_did_not_carry_each_message_once_has_a_problem(report: LoadReport, text: str) -> None:
    assert steady.problem_of(report).startswith(text)
    assert steady.problem_of(GOOD) == ""


def test_a_load_with_a_problem_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["load", "--nsqd-tcp-address=127.0.0.1:4150", "--seconds=1"]
    monkeypatch.setattr(steady, "keep_loaded", lambda address, seconds: Carried(1234, "1 lost"))
    assert cli.main(arguments) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("1,234 messages went through\n", "FAILED: 1 lost\n")
    monkeypatch.setattr(steady, "keep_loaded", lambda address, seconds: Carried(1234))
    assert cli.main(arguments) == 0


def test_a_server_that_disconnects_under_load_is_distinguished_from_an_absent_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_off(address: tuple[str, int], seconds: float) -> Carried:
        raise LoadError("connection closed by the server")

    monkeypatch.setattr(steady, "keep_loaded", break_off)
    assert cli.main(["load", "--nsqd-tcp-address=[::1]:4150"]) == 1
    assert capsys.readouterr().err == "python -m bench load: ::1:4150: connection closed by the server\n"
