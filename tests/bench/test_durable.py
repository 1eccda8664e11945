"""Tiny runs of the durable benchmark against real servers: measuring works, and an early OK is found."""

import json
import os
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench.durable_load", reason="built only with PYQD_BUILD_BENCH=1")

from bench import cli, durable, durable_servers
from bench.durable import ROWS, Durable, Row
from bench.durable_load import DurableLoad
from bench.durable_protocols import Client, Nats, Nsq, ProtocolError
from bench.durable_servers import Broker
from bench.server import Target
from bench.setting import Cores, Setting
from pyqd.hot.tools.loadgen import LoadError
from tests.bench.brokers import broker as target_of

SETTING = Setting(cores=Cores())
SECONDS = 0.05
# Long enough for an answer within it on a busy machine.
MEASURED_S = 0.3
SMALL_BATCHES = replace(ROWS[4], batch=5, outstanding=2)
IN_TURN = replace(ROWS[-1], topics=3, outstanding=5)
FRAME_OK = b"\0\0\0\x06\0\0\0\0OK"
HEARTBEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"
# Paths of the distribution's packages; NATS has no package.
PROGRAMS = {"redis": "redis-server", "beanstalkd": "beanstalkd", "nats": "nats-server"}


def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str) -> Broker:
    """Return a server; skip the test when its program is not there."""
    if name not in PROGRAMS:
        return durable_servers.of_target(target_of(request, name))
    variable = name.upper()
    found = shutil.which(os.environ.get(variable) or PROGRAMS[name])
    if found is None:
        pytest.skip(f"no {PROGRAMS[name]}: {variable} may name one")
    monkeypatch.setenv(variable, found)
    made = durable_servers.of_environment(name)
    assert made is not None
    return made


@pytest.fixture(params=["pyqd", "redis", "beanstalkd", "nats"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return named(request, monkeypatch, request.param)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "WARM_S", 0.0)
    monkeypatch.setattr(durable, "WARM_BYTES", 1 << 20)


def needs_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")


@pytest.mark.slow
@pytest.mark.parametrize("row", [ROWS[0], SMALL_BATCHES, IN_TURN], ids=lambda row: str(row.name))
def test_a_row_is_measured(server: Broker, row: Row) -> None:
    figures = durable.measure(server, row, SETTING, MEASURED_S)
    assert figures["rate_per_s"] > 0
    assert 0 < figures["p50_us"] <= figures["p99_us"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [replace(ROWS[1], connections=2, topics=2), SMALL_BATCHES, IN_TURN], ids=["1x64", "batches", "in-turn"]
)
def test_no_ok_is_early_and_each_is_seen(server: Broker, row: Row) -> None:
    needs_strace()
    verdict = durable.verify(server, row, SETTING, SECONDS)
    assert verdict.violations == []
    assert verdict.proven > 0


@pytest.mark.slow
def test_flushes_are_counted(server: Broker) -> None:
    needs_strace()
    assert durable.count_flushes(server, ROWS[0], SETTING, MEASURED_S)["flushes_per_message"] >= 1


@pytest.mark.slow
def test_an_ok_that_does_not_wait_for_the_disk_is_found(request: pytest.FixtureRequest) -> None:
    needs_strace()
    pyqd = durable_servers.of_target(target_of(request, "pyqd"))
    careless = replace(pyqd, arguments=durable_servers.nsq_arguments())
    verdict = durable.verify(careless, ROWS[1], SETTING, SECONDS)
    assert verdict.violations
    assert "no flush begun after its request was received" in verdict.violations[0].text


@pytest.mark.parametrize("kind", [durable.APPEND, durable.OVERWRITE])
def test_the_bare_disk_is_measured(kind: str, tmp_path: Path) -> None:
    figures = durable.measure_disk(kind, replace(SETTING, data_root=tmp_path), SECONDS)
    assert figures["rate_per_s"] > 0
    assert figures["p50_us"] <= figures["p99_us"]


@pytest.mark.slow
def test_the_command_writes_a_page_and_every_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = replace(durable_servers.of_target(Target.parse("sink")), setting="keeps nothing")
    monkeypatch.setattr(durable, "choose_brokers", lambda others: [sink])
    monkeypatch.setattr(durable, "pin_generator", lambda cores: None)
    small = ["--repeat=2", f"--seconds={SECONDS}", "--row=1x1", "--row=batches", "--unpinned"]
    assert cli.main(["--durable", *small, f"--results={tmp_path}"]) == 0
    [page] = tmp_path.glob("durable-*.md")
    assert "| load | figure | sink | bare append | bare overwrite |" in page.read_text()
    assert "1 connection, 4 batches of 200 outstanding | messages/s |" in page.read_text()
    document = json.loads(page.with_suffix(".json").read_text())
    runs = [(each["row"], each["server"], len(each["figures"])) for each in document["runs"]]
    assert runs == [("1x1", "sink", 2), ("1x1", "bare append", 2), ("1x1", "bare overwrite", 2), ("batches", "sink", 2)]
    assert "1 connection, 1 outstanding" in capsys.readouterr().out


@pytest.mark.slow
def test_a_failed_run_is_reported_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    sink = durable_servers.of_target(Target.parse("sink"))
    broken = replace(sink, name="broken", command=("false",))
    series = Durable([broken, sink], [ROWS[1]], SETTING)
    series.measure(1, SECONDS)
    assert series.cell(ROWS[1], "broken", "rate_per_s", 0) == "-"
    assert series.cell(ROWS[1], "sink", "rate_per_s", 0) != "-"
    [failure] = series.failures
    assert failure.startswith("1x64 broken, run 1 of 1: ServerError")
    assert f"FAILED {failure}" in capsys.readouterr().err


@pytest.mark.slow
def test_an_early_ok_fails_the_command(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    needs_strace()
    pyqd = durable_servers.of_target(target_of(request, "pyqd"))
    careless = replace(pyqd, arguments=durable_servers.nsq_arguments())
    monkeypatch.setattr(durable, "choose_brokers", lambda others: [careless])
    monkeypatch.setattr(durable, "pin_generator", lambda cores: None)
    monkeypatch.setattr(durable, "TRACED_S", SECONDS)
    assert cli.main(["--durable", "--verify", "--row=1x64", "--unpinned"]) == 1


def test_brokers_without_a_program_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("REDIS", "BEANSTALKD", "NATS"):
        monkeypatch.delenv(variable, raising=False)
    assert [each.name for each in durable.choose_brokers([])] == ["pyqd"]
    assert "redis is left out: REDIS does not name a program" in capsys.readouterr().out
    monkeypatch.setenv("NATS", "/no/such/program")
    with pytest.raises(ValueError, match="NATS: no such program: /no/such/program"):
        durable.choose_brokers([])


def test_small_rows_keep_their_kind() -> None:
    assert [(row.small().connections, row.small().topics) for row in ROWS] == [
        (1, 1),
        (1, 1),
        (4, 1),
        (4, 1),
        (1, 1),
        (4, 4),
        (1, 100),
    ]
    assert [client.topics for client in ROWS[5].small().clients()] == [("t000",), ("t001",), ("t002",), ("t003",)]


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        (b"\0\0\0\x0f\0\0\0\x01E_PUB_FAILED", ()),
        (b"-ERR no\r\n", (b"$", b"")),
        (b"OUT_OF_MEMORY\r\n", (b"INSERTED ",)),
        (b'MSG i 1 9\r\n{"error":', (b"MSG ", b'{"stream":')),
        (b"PING\r\n-ERR\r\n", (b"MSG ", b'{"stream":')),
    ],
)
def test_an_answer_that_is_no_ok_ends_a_load(answers: bytes, lines: tuple[bytes, ...]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answers)
        load = DurableLoad([ours.fileno()], [[b"request"]], outstanding=1, lines=lines)
        with pytest.raises(LoadError, match="an answer that is no OK"):
            load.run(seconds=5)


def answer_in_pieces(peer: socket.socket, answer: bytes, received: list[bytes]) -> None:
    """Answer each request of 4 bytes, a byte at a time, until the other side hangs up."""
    while request := peer.recv(4, socket.MSG_WAITALL):
        received.append(request)
        for index in range(len(answer)):
            peer.sendall(answer[index : index + 1])


@pytest.mark.parametrize(
    ("answer", "lines", "answers"),
    [
        (FRAME_OK, (), 1),
        (HEARTBEAT + FRAME_OK, (), 1),
        (b"$15\r\n1700000000000-0\r\n", (b"$", b""), 1),
        (b"INSERTED 1\r\nINSERTED 2\r\n", (b"INSERTED ",), 2),
        (b'PING\r\nMSG i 1 9\r\n{"stream":"t","seq":1}\r\n', (b"MSG ", b'{"stream":'), 1),
    ],
)
def test_answers_count_whatever_pieces_they_come_in(answer: bytes, lines: tuple[bytes, ...], answers: int) -> None:
    ours, theirs = socket.socketpair()
    received: list[bytes] = []
    thread = threading.Thread(target=answer_in_pieces, args=(theirs, answer, received))
    with theirs:
        with ours:
            thread.start()
            load = DurableLoad([ours.fileno()], [[b"abcd", b"efgh"]], outstanding=3, answers=answers, lines=lines)
            report = load.run(seconds=0.05)
        thread.join()
    assert report.answered == answers * len(received) > 0
    assert received == ([b"abcd", b"efgh"] * len(received))[: len(received)]
    assert report.latency.count <= len(received)
    assert 0 < report.latency.p50_ns <= report.latency.max_ns


def test_a_connection_that_is_closed_ends_a_load() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(LoadError, match="closed a connection"):
        DurableLoad([ours.fileno()], [[b"abcd"]], outstanding=1).run(seconds=5)


def test_a_stream_that_cannot_be_created_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.recv(4096)
                connection.sendall(b"PONG\r\n")
                connection.recv(4096)
                connection.sendall(b'MSG inbox00000 1 20\r\n{"error":{"code":503}}\r\n')

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(ProtocolError, match="no stream for t000"):
            Nats().prepare(listener.getsockname()[:2], ["t000"])
        thread.join()


def test_a_batch_of_nsq_has_one_answer_and_one_size() -> None:
    client = Client(0, ("t000",))
    request = Nsq().request("t000", b"body", 3, client)
    assert request == b"MPUB t000\n" + b"\0\0\0\x1c" + b"\0\0\0\x03" + b"\0\0\0\x04body" * 3
    assert Nsq().answers(3) == 1
