"""pyq_to_nsq and nsq_to_nsq: messages are published to other brokers, and finished when these have them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.nsq import Client
from tests.support.publish_broker import Publish, ok, publish_brokers
from tests.support.server import Daemon, free_port, running, wait_until
from tests.support.tools import bodies_of, finished

TOOL = "pyq_to_nsq"
NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
DESTINATION = "--destination-nsqd-tcp-address=127.0.0.1:1"
# Messages that fail come again soon.
QUICK = (
    "--consumer-opt=max_requeue_delay,10ms",
    "--consumer-opt=backoff_multiplier,10ms",
    "--consumer-opt=output_buffer_size,-1",
)


@pytest.fixture(scope="module")
def second(implementation, tmp_path_factory) -> Iterator[Daemon]:
    """Another broker, which takes messages of 100 bytes at most."""
    directory = tmp_path_factory.mktemp("second")
    with running(Daemon(implementation, directory, ("-max-msg-size=100",))) as started:
        yield started


@pytest.fixture
def forward(start, address, topic):
    def start_it(*arguments, to):
        destinations = [f"--destination-nsqd-tcp-address=127.0.0.1:{each.tcp_port}" for each in to]
        base = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}")
        return start(TOOL, *base, *destinations, *arguments)

    return start_it


def test_messages_keep_their_topic_and_are_finished(forward, publish, broker, second, topic) -> None:
    bodies = [b"%d" % number for number in range(1000)] + [b"\x00\xff\n"]
    publish(*bodies)
    tool = forward(to=[second])
    finished(broker, topic)
    assert sorted(bodies_of(second, topic, len(bodies))) == sorted(bodies)
    publish(b"later")
    second.wait_for_topic(topic, message_count=len(bodies) + 1)
    finished(broker, topic)
    assert tool.stop().code == 0


def test_several_topics_become_one(forward, publish, broker, topic) -> None:
    other, destination = f"{topic}-b", f"{topic}-all"
    publish(b"1")
    publish(b"2", to=other)
    tool = forward(f"--topic={other}", f"--destination-topic={destination}", to=[broker])
    finished(broker, topic)
    finished(broker, other)
    assert tool.stop(signal.SIGINT).code == 0
    assert sorted(bodies_of(broker, destination, 2)) == [b"1", b"2"]


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "whatever"])
def test_destinations_have_their_turns(forward, publish, broker, second, topic, mode) -> None:
    destination = f"{topic}-there"
    for each in (broker, second):
        with Client(each.tcp_address) as client:
            client.sub(destination, "c")
    publish(*[b"%d" % number for number in range(10)])
    tool = forward(f"--mode={mode}", f"--destination-topic={destination}", to=[broker, second])
    finished(broker, topic)
    assert tool.stop().code == 0
    assert [each.topic(destination)["message_count"] for each in (broker, second)] == [5, 5]


@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
def test_a_destination_that_is_down_is_avoided(start, publish, broker, address, topic, mode) -> None:
    destination = f"{topic}-there"
    bodies = [b"%d" % number for number in range(20)]
    publish(*bodies)
    tool = start(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}", f"--mode={mode}", *QUICK,
                 f"--destination-nsqd-tcp-address=127.0.0.1:{free_port()}", f"--destination-topic={destination}",
                 f"--destination-nsqd-tcp-address={address}")  # fmt: skip
    # A message between two states is in none of nsqd's counts, as if all were finished.
    broker.wait_for_topic(destination, message_count=len(bodies))
    finished(broker, topic)
    assert tool.stop().code == 0
    assert sorted(bodies_of(broker, destination, len(bodies))) == sorted(bodies)


def test_a_destination_that_is_slow_from_the_start_gets_a_message_once(start, publish, broker, address, topic) -> None:
    def late(message: Publish) -> bytes:
        time.sleep(1.5)
        return ok(message)

    publish(b"one")
    with publish_brokers(1) as (slow,):
        slow.answer = late
        tool = start(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}",
                     f"--destination-nsqd-tcp-address={slow.address}", *QUICK)  # fmt: skip
        finished(broker, topic, requeue_count=0)
        assert tool.stop().code == 0
        assert slow.bodies() == [b"one"]


@pytest.mark.parametrize(
    ("arguments", "bodies", "expected"),
    [
        (("--require-json-field=a",), [b'{"a": 1}', b'{"b": 1}', b"no"], [b'{"a": 1}']),
        (
            ("--require-json-field=a", "--require-json-value=7"),
            [b'{"a": 7}', b'{"a": "7"}', b'{"a": 8}', b'{"a": 7.0, "b": "<"}'],
            [b'{"a": 7}', b'{"a": "7"}', b'{"a": 7.0, "b": "<"}'],
        ),
        (
            ("--whitelist-json-field=b", "--whitelist-json-field=a"),
            [b'{"a": 1.0, "b": "<&>", "c": 2}', b'{"c": 1}'],
            [b'{"a":1,"b":"\\u003c\\u0026\\u003e"}', b"{}"],
        ),
    ],
)
def test_json_is_filtered(forward, publish, broker, second, topic, arguments, bodies, expected) -> None:
    publish(*bodies)
    tool = forward(*arguments, to=[second])
    finished(broker, topic)
    assert tool.stop().code == 0
    assert bodies_of(second, topic, len(expected)) == expected
    assert second.topic(topic)["message_count"] == len(expected)
    assert ("ERROR: Unable to decode json: no" in tool.err) is (b"no" in bodies)


def test_a_message_without_the_field_of_a_wanted_value_comes_again(forward, publish, broker, second, topic) -> None:
    publish(b'{"b": 1}')
    tool = forward("--require-json-field=a", "--require-json-value=x", *QUICK, to=[second])
    wait_until(lambda: (broker.channel(topic, "c") or {"requeue_count": 0})["requeue_count"] >= 2, "two requeues")
    assert tool.stop().code == 0
    assert "ERROR: missing field to check required value" in tool.err
    assert second.topic(topic) is None


def test_status_lines_come_after_every_so_many_messages(forward, publish, broker, second, topic) -> None:
    publish(*[b"%d" % number for number in range(250)])
    tool = forward("--status-every=100", to=[second])
    finished(broker, topic)
    assert tool.stop().code == 0
    times = r"99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
    assert len(re.findall(rf"\[aggregate\]: finished 100 - {times}\n", tool.err)) == 2


@pytest.mark.parametrize("tools", ["ours"], indirect=True)
class TestWhatTheOriginalLacks:
    def test_a_message_that_is_too_large_does_not_hold_up_the_others(
        self, forward, publish, broker, second, topic
    ) -> None:
        bodies = [b"%d" % number for number in range(20)]
        publish(*bodies[:10], bytes(101), *bodies[10:])
        tool = forward("--consumer-opt=max_backoff_duration,0", to=[second])
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, deferred_count=1)
        assert tool.stop().code == 0
        assert sorted(bodies_of(second, topic, 20)) == sorted(bodies)
        assert "ERROR: 1 messages are requeued: " in tool.err

    def test_a_message_that_fails_is_kept_however_often(self, forward, publish, broker, second, topic) -> None:
        publish(bytes(101))
        tool = forward(*QUICK, "--consumer-opt=max_backoff_duration,0", to=[second])
        wait_until(lambda: (broker.channel(topic, "c") or {"requeue_count": 0})["requeue_count"] > 6, "requeues")
        assert tool.stop().code == 0
        counts = broker.channel(topic, "c")
        assert counts["depth"] + counts["deferred_count"] == 1
