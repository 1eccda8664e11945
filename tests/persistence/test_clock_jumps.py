"""A daemon whose wall clock jumps by an hour: ids, due times, time-outs, retention."""

import re
import time

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.shifted_clock import Clock
from tests.support.shifted_clock import clock as clock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flags("-retention-time=30m", "-max-bytes-per-file=65536", "-msg-timeout=1s"),
]

HOUR_S = 3600
HALF_HOUR_MS = 1800 * 1000
# Messages that are due by a clock that jumped ahead are found within 10 s.
LOOK_AGAIN_S = 20.0
# On a busy machine, and less than a look takes.
LATE_S = 5.0


@pytest.fixture
def daemon(clock: Clock, daemon: Daemon) -> Daemon:
    daemon.http("POST", "/topic/create", None, topic="t")
    daemon.http("POST", "/channel/create", None, topic="t", channel="c")
    return daemon


def publish(daemon: Daemon, body: bytes, defer_ms: int = 0) -> None:
    query = {"defer": str(defer_ms)} if defer_ms else {}
    assert daemon.http("POST", "/pub", body, topic="t", **query).status == 200


def test_ids_and_timeouts_do_not_notice_an_hour_back_and_forth(daemon: Daemon, clock: Clock) -> None:
    ids = []
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=1)
        for shift_s in (0, -HOUR_S, -HOUR_S // 2, 0, HOUR_S, 0):
            clock.shift(shift_s)
            publish(daemon, b"x")
            message = client.read_message()
            again = client.read_message()
            assert (again.id, again.attempts) == (message.id, 2), "the time-out of a second came"
            client.fin(again)
            ids.append(message.id)
        daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)
        clock.shift(-HOUR_S)
        client.close()
        daemon.restart()
        publish(daemon, b"x")
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=1)
        message = client.read_message()
        client.fin(message)
        ids.append(message.id)
    assert ids == sorted(set(ids))


def test_due_times_follow_the_clock(daemon: Daemon, clock: Clock) -> None:
    publish(daemon, b"in half an hour", HALF_HOUR_MS)
    clock.shift(-HOUR_S)
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=10)
        publish(daemon, b"soon, by the new time", 50)
        message = client.read_message()
        assert message.body == b"soon, by the new time"
        client.fin(message)
        daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0, deferred_count=1)
        clock.shift(HOUR_S)
        wait_until(lambda: (daemon.channel("t", "c") or {})["deferred_count"] == 0, "it is due", LOOK_AGAIN_S)
        message = client.read_message()
        assert message.body == b"in half an hour"
        client.fin(message)
        daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)


def test_the_delay_of_a_requeue_does_not_follow_the_clock(daemon: Daemon, clock: Clock) -> None:
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=1)
        for jump_s in (-HOUR_S, 2 * HOUR_S):
            publish(daemon, b"again in a second")
            message = client.read_message()
            client.req(message, 1000)
            began_s = time.monotonic()
            daemon.wait_for_channel("t", "c", in_flight_count=0, deferred_count=1)
            clock.shift(jump_s)
            again = client.read_message()
            assert (again.id, again.attempts) == (message.id, 2)
            assert 0.9 < time.monotonic() - began_s < LATE_S
            client.fin(again)


def test_the_times_of_daemon_and_clients_in_stats_do_not_follow_the_clock(daemon: Daemon, clock: Clock) -> None:
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c")
        for shift_s in (-HOUR_S, HOUR_S):
            clock.shift(shift_s)
            text = daemon.http("GET", "/stats").body.decode()
            assert re.search(r"^uptime [0-9.]+m?s$", text, re.MULTILINE), text
            assert re.search(r" connected: [0-9.]+m?s$", text, re.MULTILINE), text


def kept(daemon: Daemon) -> int:
    """Return how many messages are kept, finished or not."""
    records = daemon.http("GET", "/topic/positions", topic="t").json()["records"]
    assert isinstance(records, int)
    return records


def test_retention_keeps_no_less_after_a_clock_step_back_and_resumes_when_the_clock_is_right(
    daemon: Daemon, clock: Clock
) -> None:
    for _ in range(12):
        publish(daemon, bytes(20_000))
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=10)
        for _ in range(12):
            client.fin(client.read_message())
    daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)
    clock.shift(-HOUR_S)
    publish(daemon, b"x")
    assert kept(daemon) == 13
    clock.shift(HOUR_S)
    wait_until(lambda: kept(daemon) < 5, "finished messages of an hour ago go", LOOK_AGAIN_S)
