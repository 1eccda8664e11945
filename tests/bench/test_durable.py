"""Tiny runs of the durable benchmark against real servers."""

import os
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import brokers, durable
from bench.brokers import PROTOCOLS, Client, Nats, Nsq
from bench.durable import ROWS, Asker, DurableLoad, Row
from bench.server import Figures, RunError, Target
from bench.setting import Cores, Setting

SETTING = Setting(cores=Cores())
SMALL_BATCHES = replace(ROWS["batches"], batch=5, outstanding=2)
IN_TURN = replace(ROWS["in-turn"], topics=3, outstanding=5)
FRAME_OK = b"\0\0\0\x06\0\0\0\0OK"
HEARTBEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"
# Paths of the distribution's packages; NATS has no package.
PROGRAMS = {"redis": "redis-server", "beanstalkd": "beanstalkd", "nats": "nats-server"}


@pytest.fixture(params=["pyqd", *PROGRAMS])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return a server; skip the test when its program is not there."""
    name = request.param
    for other in PROGRAMS:
        monkeypatch.delenv(other.upper(), raising=False)
    if name in PROGRAMS:
        found = shutil.which(os.environ.get(name.upper()) or PROGRAMS[name])
        if found is None:
            pytest.skip(f"no {PROGRAMS[name]}: {name.upper()} may name one")
        monkeypatch.setenv(name.upper(), found)
    return brokers.find_brokers()[-1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "WARM_S", 0.0)
    monkeypatch.setattr(durable, "WARM_BYTES", 1 << 20)
    # Long enough for an answer within it on a busy machine.
    monkeypatch.setattr(durable, "MEASURED_S", 1.0)
    monkeypatch.setattr(durable, "TRACED_S", 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("row", [ROWS["1x1"], SMALL_BATCHES, IN_TURN], ids=["1x1", "batches", "in-turn"])
def test_a_row_is_measured(server: Target, row: Row) -> None:
    figures = durable.measure(server, row, SETTING)
    assert figures["rate_per_s"] > 0
    assert 0 < figures["answer_p50_us"] <= figures["answer_p99_us"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize(
    "row", [replace(ROWS["1x64"], connections=2, topics=2), SMALL_BATCHES, IN_TURN], ids=["1x64", "batches", "in-turn"]
)
def test_flushes_are_counted(server: Target, row: Row) -> None:
    assert durable.trace(server, row, SETTING)["flushes_per_message"] > 0


def test_the_bare_disk_is_measured(tmp_path: Path) -> None:
    figures = durable.measure_disk(replace(SETTING, data_root=tmp_path))
    assert figures["rate_per_s"] > 0
    assert figures["answer_p50_us"] <= figures["answer_p99_us"]


@pytest.mark.slow
def test_each_contender_of_a_row_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []

    def trace(target: Target, _row: Row, _setting: Setting) -> Figures:
        traced.append(target.name)
        return {"flushes_per_message": 1.0}

    monkeypatch.setattr(durable, "trace", trace)
    monkeypatch.setattr(durable, "find_brokers", lambda: [Target.parse("sink")])
    monkeypatch.setattr("shutil.which", lambda _: "strace")
    study = durable.study(SETTING, 1.0)
    assert study.contenders == ["sink", durable.DISK]
    assert "flushes_per_message" in study.run("1x1", "sink")
    assert "flushes_per_message" not in study.run("1x1", "sink")
    assert traced == ["sink"]
    assert not study.can("50x1", durable.DISK)


def test_brokers_without_a_program_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("REDIS", "BEANSTALKD", "NATS"):
        monkeypatch.delenv(variable, raising=False)
    assert [each.name for each in brokers.find_brokers()] == ["pyqd"]
    assert "redis is left out: REDIS does not name a program" in capsys.readouterr().out
    monkeypatch.setenv("NATS", "/no/such/program")
    with pytest.raises(ValueError, match="NATS: no such program: /no/such/program"):
        brokers.find_brokers()


def test_connections_share_the_topics_or_cycle_through_them() -> None:
    shared = [client.topics for client in replace(ROWS["topics"], connections=3, topics=2).clients()]
    assert shared == [("t000",), ("t001",), ("t000",)]
    assert [client.topics for client in replace(ROWS["in-turn"], topics=2).clients()] == [("t000", "t001")]


def load_on(connection: socket.socket, name: str, row: Row) -> DurableLoad:
    connection.setblocking(False)
    return DurableLoad(row, [Asker(PROTOCOLS[name], row, connection, row.clients()[0])])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("pyqd", b"\0\0\0\x0f\0\0\0\x01E_PUB_FAILED"),
        ("redis", b"-ERR no\r\n"),
        ("beanstalkd", b"OUT_OF_MEMORY\r\n"),
        ("nats", b'MSG i 1 9\r\n{"error":'),
        ("nats", b"PING\r\n-ERR\r\n"),
    ],
)
def test_an_answer_that_is_no_ok_ends_a_load(name: str, answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        with pytest.raises(RunError, match="an answer that is no OK"):
            load_on(ours, name, ROWS["1x1"]).run(seconds=5)


def answer_in_pieces(peer: socket.socket, size: int, answer: bytes, received: list[bytes]) -> None:
    """Answer each request, a byte at a time, until the other side hangs up."""
    while request := peer.recv(size, socket.MSG_WAITALL):
        received.append(request)
        for index in range(len(answer)):
            peer.sendall(answer[index : index + 1])


@pytest.mark.parametrize(
    ("name", "answer", "batch"),
    [
        ("pyqd", FRAME_OK, 1),
        ("pyqd", HEARTBEAT + FRAME_OK, 5),
        ("redis", b"$15\r\n1700000000000-0\r\n", 1),
        ("beanstalkd", b"INSERTED 1\r\nINSERTED 2\r\n", 2),
        ("nats", b'PING\r\nMSG i 1 9\r\n{"stream":"t","seq":1}\r\n', 1),
    ],
)
def test_answers_count_whatever_pieces_they_come_in(name: str, answer: bytes, batch: int) -> None:
    ours, theirs = socket.socketpair()
    row = Row("", 1, 3, batch=batch)
    received: list[bytes] = []
    request = PROTOCOLS[name].request("t000", durable.BODY, batch, Client(0, ("t000",)))
    thread = threading.Thread(target=answer_in_pieces, args=(theirs, len(request), answer, received))
    with theirs:
        with ours:
            thread.start()
            load = load_on(ours, name, row)
            figures = load.run(seconds=0.2)
        thread.join()
    assert load.answered == len(received) > 0
    assert set(received) == {request}
    assert 0 < figures["answer_p50_us"] <= figures["answer_max_us"]


def test_a_connection_that_is_closed_ends_a_load() -> None:
    ours, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)
    with ours, theirs, pytest.raises(RunError, match="closed a connection"):
        load_on(ours, "pyqd", ROWS["1x1"]).run(seconds=5)


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
        with pytest.raises(RunError, match="no stream for t000"):
            Nats().prepare(listener.getsockname()[:2], ["t000"])
        thread.join()


def test_a_batch_of_nsq_has_one_answer_and_one_size() -> None:
    client = Client(0, ("t000",))
    request = Nsq().request("t000", b"body", 3, client)
    assert request == b"MPUB t000\n" + b"\0\0\0\x1c" + b"\0\0\0\x03" + b"\0\0\0\x04body" * 3
