"""The load generator against a peer that is the test itself, over a socket pair."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyqd.hot.tools.loadgen import Load, LoadError
from pyqd.tools.bench.outcome import ChannelCount, LoadReport

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


def sized(counter: int) -> bytes:
    return struct.pack(">iQ", BODY_BYTES, counter) + b"x" * (BODY_BYTES - 8)


def pub(counter: int) -> bytes:
    return b"PUB t\n" + sized(counter)


def mpub(first: int, count: int) -> bytes:
    data = b"".join(map(sized, range(first, first + count)))
    return b"MPUB t\n" + struct.pack(">ii", len(data) + 4, count) + data


def leave(far: socket.socket, *finished: int) -> None:
    """Expect that messages are finished and that the consumer leaves then, and confirm it."""
    expect(far, b"".join(map(fin, finished)) + b"CLS\n")
    far.sendall(CLOSE_WAIT)


def run_load(load: Load, deadline_s: float) -> LoadReport:
    """Run a load until it is complete, at the latest until deadline_s seconds have passed. Raises: LoadError."""
    load.start()
    load.advance(deadline_s)
    return load.report()


def publish(messages: int, script: Callable[[socket.socket], None], **how: Any) -> LoadReport:
    load = Load(messages=messages, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", **{"batch": 1, "outstanding": 1, **how})
        report: LoadReport = run_load(load, DEADLINE_S)
    assert (report.confirmed, report.timed_out) == (messages, False)
    return report


def consume(messages: int, script: Callable[[socket.socket], None]) -> LoadReport:
    load = Load(messages=messages, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_consumers([fd], rdy=7)
        report: LoadReport = run_load(load, DEADLINE_S)
    return report


def test_a_batch_of_one_is_a_pub_with_the_counter_first_in_the_body() -> None:
    def script(far: socket.socket) -> None:
        for counter in range(3):
            expect(far, pub(counter))
            far.sendall(OK)

    publish(3, script, outstanding=2)


def test_a_larger_batch_is_an_mpub() -> None:
    def script(far: socket.socket) -> None:
        for first in (0, 2):
            expect(far, mpub(first, 2))
            far.sendall(OK)

    publish(4, script, batch=2)


def test_each_message_is_finished_and_the_end_is_confirmed_by_close_wait() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        far.sendall(message(1) + message(0))
        leave(far, 1, 0)

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
        leave(far, 0, 0, 9, 1)

    report = consume(2, script)
    assert (report.received, report.unique, report.duplicates, report.foreign) == (4, 2, 1, 1)


@pytest.mark.slow
def test_a_lost_message_ends_at_the_deadline() -> None:
    load = Load(messages=2, body_bytes=BODY_BYTES)
    near, far = socket.socketpair()
    with near, far:
        far.sendall(message(1))
        load.add_consumers([near.fileno()], rdy=1)
        report = run_load(load, 0.5)
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


@pytest.mark.slow
def test_an_idle_connection_answers_heartbeats() -> None:
    load = Load(messages=0, body_bytes=BODY_BYTES)
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(DEADLINE_S)
        far.sendall(HEARTBEAT + HEARTBEAT)
        load.add_idlers([near.fileno()])
        report = run_load(load, 0.5)
        expect(far, b"NOP\nNOP\n")
    assert report.heartbeats == 2
    assert not report.timed_out


def test_with_a_rate_messages_are_sent_whatever_is_unanswered_and_latency_begins_at_the_intended_time() -> None:
    count, rate_per_s = 100, 1000.0

    def script(far: socket.socket) -> None:
        for counter in range(count):
            expect(far, pub(counter))
        far.sendall(OK * count)

    report = publish(count, script, rate_per_s=rate_per_s)
    assert (report.answers.count, report.behind.count) == (count, count)
    # No answer came before the last message was sent, so the first one waited for all intended times after its own.
    assert report.answers.most >= (count - 1) / rate_per_s * 1e9


@pytest.mark.slow
def test_a_generator_that_does_not_spin_sleeps_between_intended_times() -> None:
    count = 1000

    def script(far: socket.socket) -> None:
        for counter in range(count):
            expect(far, pub(counter))
        far.sendall(OK * count)

    began_s, cpu_began_s = time.monotonic(), time.thread_time()
    publish(count, script, rate_per_s=5_000.0)
    assert time.thread_time() - cpu_began_s < (time.monotonic() - began_s) / 2


def test_with_a_rate_all_connections_are_used_in_turn() -> None:
    def script(first: int) -> Callable[[socket.socket], None]:
        def play(far: socket.socket) -> None:
            for counter in (first, first + 2, first + 4):
                expect(far, pub(counter))
                far.sendall(OK)

        return play

    load = Load(messages=6, body_bytes=BODY_BYTES)
    with peer(script(0)) as one, peer(script(1)) as other:
        load.add_publishers([one, other], topic="t", batch=1, outstanding=1, rate_per_s=100_000.0)
        report = run_load(load, DEADLINE_S)
    assert (report.confirmed, report.timed_out) == (6, False)


def publish_and_consume(commands: list[bytes], **how: Any) -> LoadReport:
    """Confirm these commands, one a message, and then deliver the messages to a consumer."""
    counters = range(len(commands))
    published = threading.Event()

    def publisher(far: socket.socket) -> None:
        expect(far, b"".join(commands))
        far.sendall(OK * len(commands))
        published.set()

    def consumer(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        assert published.wait(DEADLINE_S)
        far.sendall(b"".join(map(message, counters)))
        leave(far, *counters)

    load = Load(messages=len(commands), body_bytes=BODY_BYTES)
    with peer(consumer) as subscribed, peer(publisher) as publishing:
        load.add_consumers([subscribed], rdy=7)
        load.add_publishers([publishing], topic="t", batch=1, outstanding=len(commands), **how)
        report: LoadReport = run_load(load, DEADLINE_S)
    return report


def test_the_latency_of_every_answer_and_of_every_message_is_counted() -> None:
    report = publish_and_consume([pub(0), pub(1)])
    assert (report.answers.count, report.deliveries.count, report.behind.count) == (2, 2, 0)
    assert 0 < report.deliveries.quantile(0.5) <= report.deliveries.quantile(0.99) <= report.deliveries.most


def test_a_deferred_message_that_comes_before_its_due_time_is_early() -> None:
    report = publish_and_consume([b"DPUB t 60000\n" + sized(0)], defer_ms=60_000)
    assert (report.early, report.deliveries.count, report.deliveries.most) == (1, 1, 0)


def test_each_channel_has_a_tally_of_its_own() -> None:
    def script(*counters: int) -> Callable[[socket.socket], None]:
        def play(far: socket.socket) -> None:
            expect(far, b"RDY 7\n")
            far.sendall(b"".join(message(counter) for counter in counters))
            leave(far, *counters)

        return play

    load = Load(messages=2, body_bytes=BODY_BYTES, channels=2)
    with peer(script(0, 0, 1)) as one, peer(script(1, 7, 0)) as other:
        load.add_consumers([one], rdy=7, channel=0)
        load.add_consumers([other], rdy=7, channel=1)
        report = run_load(load, DEADLINE_S)
    assert report.channels == (
        ChannelCount(unique=2, duplicates=1, foreign=0),
        ChannelCount(unique=2, duplicates=0, foreign=1),
    )
    assert (report.received, report.unique, report.duplicates, report.foreign) == (6, 4, 1, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"channels": 0}, "channels must be 1 to 1024"),
        ({"channels": 1025}, "channels must be 1 to 1024"),
        ({"body_bytes": 7}, "body_bytes"),
        ({"body_bytes": 1_048_577}, "body_bytes"),
    ],
)
def test_bodies_and_channels_have_limits(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Load(**{"messages": 1, "body_bytes": BODY_BYTES, **change})


def test_a_channel_that_the_load_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="channels 0 to 1: 2"):
        Load(messages=1, body_bytes=BODY_BYTES, channels=2).add_consumers([], rdy=1, channel=2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"defer_ms": 1}, "batch of 1"),
        ({"batch": 1, "rate_per_s": -1.0}, "rate_per_s must be 0 to"),
        ({"batch": 1, "rate_per_s": float("nan")}, "rate_per_s must be 0 to"),
        ({"batch": 0}, "batch"),
        ({"outstanding": 0}, "batch"),
        ({"batch": 3}, "batch"),
        ({"batch": 4, "outstanding": 2_000_000}, "bytes"),
    ],
)
def test_publishers_that_cannot_be_are_refused(change: dict[str, Any], text: str) -> None:
    load = Load(messages=4, body_bytes=BODY_BYTES)
    with pytest.raises(ValueError, match=text):
        load.add_publishers([], topic="t", **{"batch": 2, "outstanding": 1, **change})


def test_a_load_runs_once() -> None:
    load = Load(messages=0, body_bytes=BODY_BYTES)
    run_load(load, 0.0)
    with pytest.raises(ValueError, match="once"):
        run_load(load, 0.0)


def test_an_endless_load_publishes_until_it_is_finished_and_waits_for_the_answers() -> None:
    answered = threading.Event()

    def script(far: socket.socket) -> None:
        for counter in range(2):
            expect(far, pub(counter))
        assert answered.wait(DEADLINE_S)
        far.sendall(OK + OK)

    load = Load(messages=None, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", batch=1, outstanding=2)
        load.start()
        assert not load.advance(0.01)
        load.finish()
        answered.set()
        assert load.advance(DEADLINE_S)
        counts, report = load.counts(), load.report()
    assert (counts.sent, counts.confirmed) == (2, 2)
    assert (report.messages, report.timed_out) == (2, False)


def test_an_interrupt_by_another_thread_ends_the_wait_and_what_is_finished_can_still_end() -> None:
    released = threading.Event()

    def script(far: socket.socket) -> None:
        expect(far, pub(0))
        load.interrupt()
        assert released.wait(DEADLINE_S)
        far.sendall(OK)

    load = Load(messages=None, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", batch=1, outstanding=1)
        load.start()
        assert not load.advance(DEADLINE_S)
        load.finish()
        released.set()
        assert load.advance(DEADLINE_S)


def test_messages_of_others_are_counted_with_their_bytes_and_finished_until_there_are_enough() -> None:
    def foreign(counter: int, size: int) -> bytes:
        data = struct.pack(">qH", 1, 1) + f"{counter:016x}".encode() + b"y" * size
        return struct.pack(">ii", len(data) + 4, 2) + data

    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        # The second is larger than the input buffer, and the third has no space for a counter.
        far.sendall(foreign(0, 0) + foreign(1, 400_000) + foreign(2, 3))
        leave(far, 0, 1, 2)

    load = Load(messages=3, body_bytes=BODY_BYTES, tallied=False)
    with peer(script) as fd:
        load.add_consumers([fd], rdy=7)
        load.start()
        assert load.advance(DEADLINE_S)
        counts = load.counts()
    assert (counts.received, counts.received_bytes) == (3, 400_003)


def test_consumers_that_leave_finish_what_is_on_its_way() -> None:
    def script(far: socket.socket) -> None:
        expect(far, b"RDY 7\n")
        expect(far, b"CLS\n")
        far.sendall(message(0) + CLOSE_WAIT)
        expect(far, fin(0))

    load = Load(messages=None, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_consumers([fd], rdy=7)
        load.start()
        load.leave()
        assert load.advance(DEADLINE_S)
        assert load.counts().received == 1


def test_with_a_rate_a_batch_is_sent_at_the_time_of_its_first_message() -> None:
    count, batch, rate_per_s = 40, 4, 1000.0

    def script(far: socket.socket) -> None:
        for first in range(0, count, batch):
            expect(far, mpub(first, batch))
        far.sendall(OK * (count // batch))

    report = publish(count, script, batch=batch, rate_per_s=rate_per_s)
    assert (report.answers.count, report.behind.count) == (count // batch, count // batch)
    # The first batch waited for the intended times of all others.
    assert report.answers.most >= (count - batch) / rate_per_s * 1e9


def test_latencies_of_a_warm_up_are_forgotten() -> None:
    def script(far: socket.socket) -> None:
        expect(far, pub(0))
        far.sendall(OK)

    load = Load(messages=1, body_bytes=BODY_BYTES)
    with peer(script) as fd:
        load.add_publishers([fd], topic="t", batch=1, outstanding=1)
        load.start()
        assert load.advance(DEADLINE_S)
        assert (load.answers().count, load.answers().most > 0) == (1, True)
        load.reset_latencies()
        assert (load.answers().count, load.answers().most) == (0, 0)
