"""The load generator against a peer that is the test itself, over a socket pair."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.outcome import LoadReport

loadgen = pytest.importorskip("bench.loadgen", reason="built only with PYQD_BUILD_BENCH=1")

Load = loadgen.Load
LoadError = loadgen.LoadError

DEADLINE_S = 20.0
BODY_BYTES = 16
OK = struct.pack(">ii", 6, 0) + b"OK"
HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"
CLOSE_WAIT = struct.pack(">ii", 14, 0) + b"CLOSE_WAIT"


def message(counter: int) -> bytes:
    data = struct.pack(">qH", 1, 1) + f"{counter:016x}".encode() + struct.pack(">Q", counter) + bytes(BODY_BYTES - 8)
    return struct.pack(">ii", len(data) + 4, 2) + data


def fin(counter: int) -> bytes:
    return f"FIN {counter:016x}\n".encode()


def error(text: str) -> bytes:
    return struct.pack(">ii", len(text) + 4, 1) + text.encode()


@contextmanager
def peer(script: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run script on the far end of a socket pair and yield the near end; fail when the script did."""
    near, far = socket.socketpair()
    far.settimeout(DEADLINE_S)
    raised: list[BaseException] = []

    def play() -> None:
        try:
            script(far)
        except BaseException as failure:
            raised.append(failure)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        with near, far:
            yield near.fileno()
            thread.join(DEADLINE_S)
    finally:
        thread.join(DEADLINE_S)
    assert raised == []


def expect(connection: socket.socket, wanted: bytes) -> None:
    received = b""
    while len(received) < len(wanted):
        piece = connection.recv(len(wanted) - len(received))
        assert piece, f"closed after {received!r}"
        received += piece
    assert received == wanted


def body(counter: int) -> bytes:
    return struct.pack(">Q", counter) + b"x" * (BODY_BYTES - 8)


def consume(messages: int, script: Callable[[socket.socket], None]) -> LoadReport:
    load = Load(messages=messages, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_consumers([fd], rdy=7)
        report: LoadReport = load.run(DEADLINE_S)
    return report


def test_a_batch_of_one_is_a_pub_with_the_counter_first_in_the_body() -> None:
    def script(far: socket.socket) -> None:
        for counter in range(3):
            expect(far, b"PUB t\n" + struct.pack(">i", BODY_BYTES) + body(counter))
            far.sendall(OK)

    load = Load(messages=3, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", batch=1, outstanding=2)
        report = load.run(DEADLINE_S)
    assert (report.confirmed, report.timed_out) == (3, False)


def test_a_larger_batch_is_an_mpub() -> None:
    def script(far: socket.socket) -> None:
        for first in (0, 2):
            sized = b"".join(struct.pack(">i", BODY_BYTES) + body(counter) for counter in (first, first + 1))
            expect(far, b"MPUB t\n" + struct.pack(">ii", len(sized) + 4, 2) + sized)
            far.sendall(OK)

    load = Load(messages=4, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", batch=2, outstanding=1)
        report = load.run(DEADLINE_S)
    assert (report.confirmed, report.timed_out) == (4, False)


def test_each_message_is_finished_and_the_end_is_confirmed_by_close_wait() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        far.sendall(message(1) + message(0))
        expect(far, fin(1) + fin(0) + b"CLS\n")
        far.sendall(CLOSE_WAIT)

    report = consume(2, script)
    assert (report.received, report.unique, report.duplicates, report.foreign) == (2, 2, 0, 0)
    assert not report.timed_out


def test_frames_may_come_in_any_pieces() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        for byte in message(0) + HEARTBEAT + message(1):
            far.sendall(bytes([byte]))
        expect(far, fin(0) + b"NOP\n" + fin(1) + b"CLS\n")
        far.sendall(CLOSE_WAIT)

    report = consume(2, script)
    assert (report.unique, report.heartbeats) == (2, 1)


def test_a_message_delivered_twice_and_one_never_published_are_counted() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        far.sendall(message(0) + message(0) + message(9) + message(1))
        expect(far, fin(0) + fin(0) + fin(9) + fin(1) + b"CLS\n")
        far.sendall(CLOSE_WAIT)

    report = consume(2, script)
    assert (report.received, report.unique, report.duplicates, report.foreign) == (4, 2, 1, 1)


def test_a_lost_message_ends_at_the_deadline() -> None:
    load = Load(messages=2, body_bytes=BODY_BYTES)
    near, far = socket.socketpair()
    with near, far:
        far.sendall(message(1))
        load.add_consumers([near.fileno()], rdy=1)
        report = load.run(0.5)
    assert report.timed_out
    assert report.messages - report.unique >= 1


def test_an_error_frame_fails_the_load_with_its_text() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        far.sendall(error("E_FIN_FAILED FIN 0 failed ID not in flight"))

    with pytest.raises(LoadError, match="E_FIN_FAILED FIN 0 failed ID not in flight"):
        consume(1, script)


def test_a_closed_connection_fails_the_load() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        far.shutdown(socket.SHUT_WR)

    with pytest.raises(LoadError, match="closed by the server"):
        consume(1, script)


def test_an_idle_connection_answers_heartbeats() -> None:
    load = Load(messages=0, body_bytes=BODY_BYTES)
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(DEADLINE_S)
        far.sendall(HEARTBEAT + HEARTBEAT)
        load.add_idlers([near.fileno()])
        report = load.run(0.5)
        expect(far, b"NOP\nNOP\n")
    assert report.heartbeats == 2
    assert not report.timed_out


@pytest.mark.parametrize(
    "change", [{"batch": 0}, {"outstanding": 0}, {"batch": 3}, {"batch": 4, "outstanding": 2_000_000}]
)
def test_publishers_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    load = Load(messages=4, body_bytes=BODY_BYTES)
    with pytest.raises(ValueError, match=r"batch|bytes"):
        load.add_publishers([], topic="t", **{"batch": 2, "outstanding": 1, **change})


@pytest.mark.parametrize("body_bytes", [7, 1_048_577])
def test_bodies_have_room_for_the_counter_and_a_limit(body_bytes: int) -> None:
    with pytest.raises(ValueError, match="body_bytes"):
        Load(messages=1, body_bytes=body_bytes)


def test_a_load_runs_once() -> None:
    load = Load(messages=0, body_bytes=BODY_BYTES)
    load.run(0.0)
    with pytest.raises(ValueError, match="once"):
        load.run(0.0)
