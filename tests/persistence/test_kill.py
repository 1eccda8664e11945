"""State after SIGKILL: messages in each state, due times, counters, pauses, confirmed FINs."""

import time
from collections.abc import Sequence

import pytest

from tests.persistence.views import deferred_in
from tests.support.nsq import Client, Message
from tests.support.server import Daemon, wait_until
from tests.support.storage import broker_on

pytestmark = [pytest.mark.slow, pytest.mark.flags("-max-bytes-per-file=65536")]

MS_NS = 1_000_000


def subscribe(daemon: Daemon, topic: str = "t", channel: str = "c", rdy_count: int = 100) -> Client:
    client = Client(daemon.tcp_address)
    client.sub(topic, channel, rdy_count=rdy_count)
    return client


def publish(daemon: Daemon, bodies: Sequence[bytes]) -> None:
    with Client(daemon.tcp_address) as client:
        client.pub_each("t", bodies)


def take_all(daemon: Daemon, count: int, channel: str = "c") -> dict[bytes, Message]:
    """Finish exactly so many messages. Returns: the messages by their bodies."""
    with subscribe(daemon, channel=channel) as client:
        messages = client.finish_exactly(count)
    assert len({message.id for message in messages}) == count
    return {message.body: message for message in messages}


def test_a_message_in_flight_comes_again_as_a_second_delivery(daemon):
    with subscribe(daemon) as client:
        publish(daemon, [b"1", b"2", b"3"])
        seen = {message.body: message for message in client.read_messages(3)}
        client.expect_alive()
    daemon.kill_and_start()
    again = take_all(daemon, 3)
    for body, message in seen.items():
        assert (again[body].id, again[body].timestamp_ns) == (message.id, message.timestamp_ns)
        assert (message.attempts, again[body].attempts) == (1, 2)


def test_a_deferred_message_in_flight_comes_again_as_a_second_delivery(daemon):
    with subscribe(daemon) as client:
        client.dpub("t", 1, b"deferred")
        message = client.read_message()
        assert message.attempts == 1
        for attempts in (2, 3):
            client.req(message, 0)
            message = client.read_message()
            assert message.attempts == attempts
        client.expect_alive()
    daemon.kill_and_start()
    assert take_all(daemon, 1)[b"deferred"].attempts == 4


def test_a_delivery_that_a_kill_kept_from_being_sent_counts_as_an_attempt(daemon):
    for path, names in (("topic", {}), ("channel", {"channel": "c"})):
        daemon.http("POST", f"/{path}/create", topic="t", **names)
    limited = daemon.http("POST", "/channel/limits", topic="t", channel="c", max_attempts="1", dead_letter_topic="dead")
    assert limited.status == 200
    with Client(daemon.tcp_address) as client:
        client.identify(output_buffer_timeout=30_000, output_buffer_size=64 * 1024)
        client.sub("t", "c")
        client.rdy(10)
        publish(daemon, [b"one", b"two"])
        daemon.wait_for_channel("t", "c", in_flight_count=2)
        daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)
    with subscribe(daemon, "dead") as client:
        assert {message.body for message in client.read_messages(2)} == {b"one", b"two"}


@pytest.mark.parametrize("channel", ["c", "d"])
def test_a_finished_message_is_not_delivered_again(daemon, channel):
    with subscribe(daemon) as client, subscribe(daemon, channel="d", rdy_count=0):
        publish(daemon, [b"%d" % number for number in range(20)])
        for message in client.read_messages(20):
            if int(message.body) % 3:
                client.fin(message)
        # Commands of a connection are processed in order: with this answer every FIN has been.
        client.expect_alive()
    daemon.kill_and_start()
    daemon.kill_and_start()
    expected = {b"%d" % number for number in range(20) if channel == "d" or number % 3 == 0}
    assert set(take_all(daemon, len(expected), channel)) == expected


@pytest.mark.parametrize("kills", [1, 2])
def test_due_times_are_kept_to_the_millisecond(daemon, kills):
    with subscribe(daemon) as client:
        client.pub("t", b"requeued")
        message = client.read_message()
        before_ns = time.time_ns()
        client.req(message, 60_000)
        client.dpub("t", 90_000, b"deferred")
        after_ns = time.time_ns()
    for _ in range(kills):
        daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=0, deferred_count=2, in_flight_count=0, requeue_count=1)
    daemon.kill()
    due_ns = dict(deferred_in(broker_on(daemon.data_path).topic("t").channel("c")))
    for body, delay_ms in ((b"requeued", 60_000), (b"deferred", 90_000)):
        assert before_ns + delay_ms * MS_NS <= due_ns[body] <= after_ns + delay_ms * MS_NS
    daemon.start()


def test_a_deferred_message_comes_at_its_time_when_the_daemon_was_killed_before(daemon):
    with subscribe(daemon) as client:
        start_ns = time.time_ns()
        client.dpub("t", 1500, b"deferred")
    daemon.kill_and_start()
    with subscribe(daemon) as client:
        message = client.read_message()
        assert (message.body, message.attempts) == (b"deferred", 1)
        assert time.time_ns() - start_ns >= 1500 * MS_NS
        client.fin(message)
        client.expect_alive()


def test_counters_and_depths_are_kept(daemon):
    with subscribe(daemon, rdy_count=4) as client, subscribe(daemon, channel="d", rdy_count=0):
        publish(daemon, [b"%d" % number for number in range(10)])
        with Client(daemon.tcp_address) as publisher:
            publisher.dpub("t", 60_000, b"deferred")
        first, second, third, _ = client.read_messages(4)
        client.rdy(0)
        client.fin(first)
        client.req(second, 0)
        client.req(third, 60_000)
        client.expect_alive()
    daemon.kill_and_start()
    daemon.wait_for_topic("t", message_count=11, depth=0)
    daemon.wait_for_channel("t", "c", depth=8, deferred_count=2, in_flight_count=0, message_count=11, requeue_count=2)
    daemon.wait_for_channel("t", "d", depth=10, deferred_count=1, in_flight_count=0, message_count=11, requeue_count=0)


def test_a_time_out_is_counted_over_a_kill(daemon):
    with Client(daemon.tcp_address) as client:
        client.identify(msg_timeout=1000)
        client.sub("t", rdy_count=1)
        client.pub("t", b"slow")
        assert client.read_message().attempts == 1
        assert client.read_message().attempts == 2
    daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", timeout_count=1, depth=1)
    assert take_all(daemon, 1)[b"slow"].attempts >= 2


@pytest.mark.parametrize("paused", [True, False])
def test_pauses_of_topics_and_channels_survive_a_kill(daemon, paused):
    with subscribe(daemon, rdy_count=0) as client, subscribe(daemon, channel="d", rdy_count=0):
        client.pub("t", b"before")
    daemon.kill()
    # A broker that is abandoned counts as killed, as far as its files go.
    topic = broker_on(daemon.data_path).topic("t")
    topic.channel("c").pause(True)
    topic.pause(True)
    if not paused:
        topic.channel("c").pause(False)
        topic.pause(False)
    daemon.start()
    daemon.kill_and_start()
    daemon.wait_for_topic("t", paused=paused)
    daemon.wait_for_channel("t", "c", paused=paused, depth=1)
    daemon.wait_for_channel("t", "d", paused=False, depth=1)
    with Client(daemon.tcp_address) as client:
        client.pub("t", b"after")
    daemon.wait_for_topic("t", depth=1 if paused else 0)
    daemon.wait_for_channel("t", "c", depth=1 if paused else 2)
    assert set(take_all(daemon, 1 if paused else 2, "d")) == ({b"before"} if paused else {b"before", b"after"})


def test_ephemeral_topics_and_channels_are_gone(daemon):
    with subscribe(daemon, channel="c#ephemeral", rdy_count=0) as client, subscribe(daemon, "u#ephemeral") as other:
        client.pub("t", b"kept")
        other.pub("u#ephemeral", b"gone")
    daemon.kill_and_start()
    assert set(daemon.topics()) == {"t"}
    assert (daemon.topic("t") or {})["channels"] == []
    daemon.wait_for_topic("t", message_count=1)


def test_kills_while_the_daemon_starts_change_nothing(daemon):
    with subscribe(daemon, rdy_count=30) as client:
        publish(daemon, [b"%d" % number + bytes(2000) for number in range(100)])
        messages = client.read_messages(30)
        client.rdy(0)
        for message in messages[::2]:
            client.fin(message)
        client.req(messages[1], 60_000)
        client.expect_alive()
    daemon.kill()
    for step in range(12):
        daemon._spawn()
        # Not a wait for something: the kill comes earlier or later in the start.
        time.sleep(0.004 * step)
        daemon.kill()
    daemon.start()
    daemon.wait_for_channel("t", "c", depth=84, deferred_count=1, message_count=100, requeue_count=1)
    finished = {message.body for message in messages[::2]}
    assert not finished & set(take_all(daemon, 84))


def test_messages_that_no_channel_has_been_given_go_to_the_first_one(daemon):
    with Client(daemon.tcp_address) as client:
        client.mpub("t", [b"1", b"2"])
        client.dpub("t", 60_000, b"deferred")
    daemon.kill_and_start()
    daemon.wait_for_topic("t", depth=3)
    assert set(take_all(daemon, 2)) == {b"1", b"2"}
    daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=0, deferred_count=1)


def test_files_of_drained_segments_go_after_a_kill_too(daemon):
    def segments() -> int:
        return len(list((daemon.data_path / "topics" / "t.topic" / "log").iterdir()))

    with subscribe(daemon) as client:
        publish(daemon, [bytes(20_000)] * 30)
        for message in client.read_messages(30):
            client.fin(message)
        client.expect_alive()
    daemon.kill_and_start()
    # The active segment and two spares stay.
    wait_until(lambda: segments() <= 3, "drained segments are removed")
