"""MPUBs in slices: the view of other clients between slices, and the remaining messages after an interruption.

The daemon stores small batches in slices, and stops between two slices for as long as a file is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsq import Client, dpub, int32, mpub, mpub_body, pub, sized
from tests.support.server import Daemon, patched_pyqd, wait_until

pytestmark = pytest.mark.slow

SLICED = """
import os
import sys
from pyqd.broker.broker import Broker
from pyqd.hot.broker.intake import set_limits_for_tests
from pyqd.net.loop_driver import LoopDriver

set_limits_for_tests(2000, 5000)
brokers = []
load, run_wakes = Broker.load, LoopDriver.run_wakes

def load_and_note(self):
    brokers.append(self)
    load(self)

def run_or_hold(self):
    busy = any(topic.busy for broker in brokers for topic in broker.topics.values())
    if busy and os.path.exists(sys.argv[0] + ".hold"):
        if os.path.exists(sys.argv[0] + ".begun"):
            self.after_poll.stop()
            self.again = self.hub.loop.timer(0.005)
            self.again.start(self.run_wakes)
            return
        open(sys.argv[0] + ".begun", "w").close()
    run_wakes(self)

Broker.load, LoopDriver.run_wakes = load_and_note, run_or_hold
"""

COUNT = 500
BATCH = [b"%04d" % number for number in range(COUNT)]


class Sliced:
    """Daemon that a test can stop between two slices of a batch, by means of two files."""

    def __init__(self, directory: Path, *flags: str) -> None:
        program = directory / "sliced.py"
        self.hold_file = directory / "sliced.py.hold"
        self.begun_file = directory / "sliced.py.begun"
        self.daemon = Daemon(patched_pyqd(program, SLICED), directory / "daemon", flags).start()

    def hold(self) -> None:
        """From now on stop behind the first slice of a batch."""
        self.hold_file.touch()

    def wait_until_begun(self) -> None:
        """Return when a batch is under way; one slice of it is stored soon, and no other."""
        wait_until(self.begun_file.exists, "a batch is under way")

    def no_pause(self) -> None:
        """Store the queued batches."""
        self.hold_file.unlink()
        self.begun_file.unlink()


@pytest.fixture
def sliced(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sliced]:
    made = Sliced(tmp_path, *getattr(request, "param", ()))
    try:
        yield made
    finally:
        made.daemon.kill()


def read_all(sliced: Sliced, count: int) -> list[bytes]:
    """Consume messages of the topic."""
    with Client(sliced.daemon.tcp_address) as consumer:
        consumer.sub("t", "c", rdy_count=count)
        bodies = []
        for message in consumer.read_messages(count):
            bodies.append(message.body)
            consumer.fin(message)
        return bodies


def deferred_batch(topic: str, delay_ms: int, bodies: list[bytes]) -> bytes:
    """Return a DMPUB that gives each message its own delay."""
    body = int32(len(bodies)) + b"".join(struct.pack(">q", delay_ms) + sized(each) for each in bodies)
    return b"DMPUB %s each\n%s" % (topic.encode(), sized(body))


@pytest.mark.parametrize("sliced", [(), ("--sync-every=1",)], indirect=True, ids=["plain", "sync each"])
def test_commands_behind_a_sliced_batch_are_answered_behind_it(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        # In one piece: the batch lies in the buffer that all connections share.
        client.send(pub("t", b"first") + mpub("t", BATCH) + pub("t", b"behind") + mpub("t", BATCH[:200]))
        client.expect_ok(4)
        client.send(mpub("t", [b"x" * 1000] * 400))
        client.expect_ok()
        client.expect_alive()
    expected = [b"first", *BATCH, b"behind", *BATCH[:200], *[b"x" * 1000] * 400]
    assert read_all(sliced, len(expected)) == expected


def test_other_publishers_to_the_topic_wait_and_all_other_clients_do_not(sliced: Sliced) -> None:
    address = sliced.daemon.tcp_address
    with Client(address) as first, Client(address) as second, Client(address) as third, Client(address) as fourth:
        sliced.hold()
        first.send(mpub("t", BATCH))
        sliced.wait_until_begun()
        second.send(pub("t", b"second"))
        third.send(mpub("t", [b"third", b"third too"]))
        fourth.send(pub("u", b"other"))
        fourth.expect_ok()
        sliced.daemon.wait_for_topic("t", depth=0, message_count=0)
        sliced.no_pause()
        for client in (first, second, third):
            client.expect_ok()
    bodies = read_all(sliced, COUNT + 3)
    at = bodies.index(BATCH[0])
    assert bodies[at : at + COUNT] == BATCH
    at = bodies.index(b"third")
    assert bodies[at : at + 2] == [b"third", b"third too"]
    assert b"second" in bodies


def test_the_answer_to_a_sliced_batch_has_the_ids_of_its_messages(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        client.identify(message_ids=True)
        client.send(mpub("t", BATCH))
        answer = client.read_frame().data
    assert answer.startswith(b"OK ")
    _, first_id, count = answer.split()
    assert int(count) == COUNT
    with Client(sliced.daemon.tcp_address) as consumer:
        consumer.sub("t", "c", rdy_count=1)
        assert consumer.read_message().id == first_id


def test_deferred_batches_are_sliced_too(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        client.sub("t", "c")
        client.send(deferred_batch("t", 3_000_000, BATCH) + b"DMPUB t 3000000\n" + mpub_body(BATCH))
        client.expect_ok(2)
    with Client(sliced.daemon.tcp_address) as client:
        sliced.hold()
        client.send(deferred_batch("t", 0, BATCH))
        sliced.wait_until_begun()
        with Client(sliced.daemon.tcp_address) as other:
            other.send(dpub("t", 3_000_000, b"late"))
            sliced.no_pause()
            other.expect_ok()
        client.expect_ok()
    sliced.daemon.wait_for_channel("t", "c", deferred_count=2 * COUNT + 1, depth=COUNT)
    assert sorted(read_all(sliced, COUNT)) == BATCH


def test_http_publishes_are_sliced_and_wait_like_all_others(sliced: Sliced) -> None:
    reply = sliced.daemon.http("POST", "/mpub", topic="t", body=b"\n".join(BATCH))
    assert (reply.status, reply.headers["x-nsq-message-count"]) == (200, str(COUNT))
    with Client(sliced.daemon.tcp_address) as client:
        sliced.hold()
        client.send(mpub("t", BATCH))
        sliced.wait_until_begun()
        sliced.no_pause()
        for number in range(3):
            assert sliced.daemon.http("POST", "/pub", topic="t", body=b"%d" % number).status == 200
        client.expect_ok()
    bodies = read_all(sliced, 2 * COUNT + 3)
    assert bodies[:COUNT] == BATCH
    assert sorted(bodies[COUNT:]) == sorted([*BATCH, b"0", b"1", b"2"])


def test_a_bad_message_at_the_end_of_a_large_batch_refuses_all_of_it(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        body = mpub_body([*BATCH, b"last"])
        client.send(b"MPUB t\n" + body[: -len(sized(b"last"))] + int32(0) + b"last")
        client.expect_fatal("E_BAD_MESSAGE", f"MPUB invalid message({COUNT}) body size 0")
    sliced.daemon.wait_for_topic("t", message_count=0)


def test_a_kill_during_a_batch_keeps_none_of_it_and_all_acknowledged_messages(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        client.send(mpub("t", BATCH) + pub("t", b"before"))
        client.expect_ok(2)
        sliced.hold()
        client.send(mpub("t", [b"torn"] * 1000))
        sliced.wait_until_begun()
        sliced.daemon.kill()
    sliced.no_pause()
    sliced.daemon.start()
    sliced.daemon.wait_for_topic("t", depth=COUNT + 1, message_count=COUNT + 1)
    with Client(sliced.daemon.tcp_address) as client:
        client.send(pub("t", b"after"))
        client.expect_ok()
    assert read_all(sliced, COUNT + 2) == [*BATCH, b"before", b"after"]


def test_a_stop_in_the_middle_leaves_nothing_of_the_batch(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        client.send(pub("t", b"before"))
        client.expect_ok()
        sliced.hold()
        client.send(mpub("t", BATCH))
        sliced.wait_until_begun()
        sliced.daemon.stop()
    sliced.no_pause()
    sliced.daemon.start()
    sliced.daemon.wait_for_topic("t", depth=1, message_count=1)


def test_a_client_that_leaves_in_the_middle_leaves_all_of_its_batch_and_the_topic_free(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        sliced.hold()
        client.send(mpub("t", BATCH))
        sliced.wait_until_begun()
    with Client(sliced.daemon.tcp_address) as other:
        other.send(pub("t", b"other"))
        sliced.no_pause()
        other.expect_ok()
    sliced.daemon.wait_for_topic("t", depth=COUNT + 1)
    assert read_all(sliced, COUNT + 1) == [*BATCH, b"other"]


def test_a_topic_deleted_in_the_middle_refuses_the_batch(sliced: Sliced) -> None:
    with Client(sliced.daemon.tcp_address) as client:
        sliced.hold()
        client.send(mpub("t", BATCH))
        sliced.wait_until_begun()
        assert sliced.daemon.http("POST", "/topic/delete", topic="t").status == 200
        client.expect_fatal("E_MPUB_FAILED", "MPUB failed exiting")
    assert sliced.daemon.http("GET", "/ping").status == 200
    sliced.no_pause()
    with Client(sliced.daemon.tcp_address) as client:
        client.send(mpub("t", BATCH))
        client.expect_ok()
    sliced.daemon.wait_for_topic("t", depth=COUNT)
