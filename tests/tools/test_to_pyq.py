"""to_pyq and to_nsq: records of standard input become messages on every broker."""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.publish_broker import OK, Publish, ok, publish_brokers
from tests.support.scripted_broker import ERROR, RESPONSE, frame
from tests.support.server import wait_until
from tests.support.tools import Tools, bodies_of, tools_environment

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TOOL = "to_pyq"
BROKER = "--nsqd-tcp-address=127.0.0.1:1"


def test_records_become_messages_in_order_without_the_empty_ones(run, broker, address, topic) -> None:
    result = run(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", stdin=b"one\n\n\ntwo\r\n\xff\x00three\n")
    assert (result.code, result.out) == (0, b"")
    assert bodies_of(broker, topic, 3) == [b"one", b"two\r", b"\xff\x00three"]


def test_empty_input_makes_no_topic(run, broker, address, topic) -> None:
    assert run(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}").code == 0
    assert broker.topic(topic) is None


def test_the_delimiter_may_be_any_byte(run, broker, address, topic) -> None:
    result = run(TOOL, f"--topic={topic}", "--delimiter=;", f"--nsqd-tcp-address={address}", stdin=b"a\nb;c;;d;")
    assert result.code == 0
    assert bodies_of(broker, topic, 3) == [b"a\nb", b"c", b"d"]


def test_each_record_goes_to_every_broker_once(run, broker, address, topic) -> None:
    with publish_brokers(1) as (second,):
        addresses = [f"--nsqd-tcp-address={each}" for each in (address, second.address, address)]
        assert run(TOOL, f"--topic={topic}", *addresses, stdin=b"one\n").code == 0
        assert second.bodies()[-1].endswith(b"one")
    assert bodies_of(broker, topic, 1) == [b"one"]


def test_a_record_is_published_as_soon_as_it_ends(start, broker, address, topic) -> None:
    running = start(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", has_stdin=True)
    running.write(b"one\ntw")
    broker.wait_for_topic(topic, message_count=1)
    running.write(b"o\n")
    broker.wait_for_topic(topic, message_count=2)
    assert running.wait().code == 0
    assert bodies_of(broker, topic, 2) == [b"one", b"two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0(start, broker, address, topic, number) -> None:
    running = start(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", has_stdin=True)
    running.write(b"one\npart of a record")
    broker.wait_for_topic(topic, message_count=1)
    assert running.stop(number).code == 0
    assert bodies_of(broker, topic, 1) == [b"one"]


def test_the_first_message_that_a_broker_refuses_ends_it_with_1(run, broker, address, topic) -> None:
    stdin = b"one\n" + b"x" * (2 << 20) + b"\n"
    result = run(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", stdin=stdin)
    assert result.code == 1
    assert "E_BAD_MESSAGE" in result.mistake()
    assert bodies_of(broker, topic, 1) == [b"one"]


def test_options_of_the_producer_reach_the_broker(start, broker, address, topic) -> None:
    options = ("--producer-opt=client_id,me", "--producer-opt=hostname,here", "--producer-opt=deflate")
    running = start(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", *options, has_stdin=True)
    running.write(b"one\n")
    broker.wait_for_topic(topic, message_count=1)
    producers = broker.http("GET", "/stats", format="json").json()["producers"]
    (client,) = [each for each in producers if each["client_id"] == "me"]
    assert (client["hostname"], client["deflate"]) == ("here", True)
    assert client["user_agent"].startswith(("to_pyq/", "to_nsq/"))
    assert running.wait().code == 0


def test_a_rate_limits_the_messages_of_a_second(start, broker, address, topic) -> None:
    running = start(TOOL, f"--topic={topic}", "--rate=20", f"--nsqd-tcp-address={address}", has_stdin=True)
    began_s = time.monotonic()
    running.write(b"x\n" * 11)
    result = running.wait()
    # The first message may be sent at once, and each of the others 50 ms later at the earliest.
    assert time.monotonic() - began_s >= 10 * 0.05 - 0.02
    assert (result.code, len(bodies_of(broker, topic, 11))) == (0, 11)
    assert "Throttling messages rate to max:20/second" in result.err


# Behaviour that the original does not have.


def test_a_last_record_without_a_delimiter_keeps_its_last_byte(run_ours, broker, address, topic) -> None:
    assert run_ours(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", stdin=b"one\nthree").code == 0
    assert bodies_of(broker, topic, 2) == [b"one", b"three"]


def test_a_name_that_no_topic_can_have_is_refused(run_ours) -> None:
    result = run_ours(TOOL, "--topic=bad topic", BROKER)
    assert result.code == 1
    assert "'bad topic' is not the name of a topic" in result.mistake()


def test_it_has_a_version_and_a_help(run_ours) -> None:
    version, help_text = run_ours(TOOL, "--version"), run_ours(TOOL, "--help")
    assert (version.code, version.out.split()[0], help_text.code) == (0, b"to_pyq", 0)
    assert b"--delimiter string" in help_text.out


def test_arguments_behind_the_flags_are_ignored_with_a_warning(run_ours, topic) -> None:
    result = run_ours(TOOL, f"--topic={topic}", "extra", BROKER)
    assert (result.code, result.mistake()) == (1, "--nsqd-tcp-address required")
    assert 'WARNING: unexpected argument "extra"; it is ignored' in result.err


def test_input_of_any_shape_arrives_whole(run_ours, broker, address, topic) -> None:
    chance = random.Random(7)
    records = [chance.randbytes(chance.choice((1, 3, 100, 70_000))).replace(b"\n", b" ") for _ in range(400)]
    stdin = b"\n".join(records)
    assert run_ours(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", stdin=stdin).code == 0
    assert bodies_of(broker, topic, len(records)) == records


def test_a_file_and_nothing_can_be_its_input(broker, address, topic, tmp_path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"one\ntwo\n")
    command = [*Tools().command(TOOL), f"--topic={topic}", f"--nsqd-tcp-address={address}"]
    for source in (path, Path("/dev/null")):
        with source.open("rb") as stdin:
            assert (
                subprocess.run(command, stdin=stdin, env=tools_environment(), timeout=30, check=False).returncode == 0
            )
    assert bodies_of(broker, topic, 2) == [b"one", b"two"]


def test_input_that_is_closed_ends_it_with_1(topic) -> None:
    command = shlex.join([*Tools().command(TOOL), f"--topic={topic}", BROKER]) + " <&-"
    done = subprocess.run(
        ["bash", "-c", command], env=tools_environment(), timeout=30, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "cannot read standard input: it is closed" in done.stderr


def test_a_batch_that_is_too_big_for_the_broker_is_split(start_ours) -> None:
    def at_most_two(publish: Publish) -> bytes | None:
        if publish.line.startswith(b"MPUB") and publish.body.count(b"x") > 2:
            return frame(ERROR, b"E_BAD_BODY MPUB body too big 100 > 50")
        return frame(RESPONSE, OK)

    with publish_brokers(1) as (small,):
        small.answer = at_most_two
        running = start_ours(TOOL, "--topic=t", f"--nsqd-tcp-address={small.address}", has_stdin=True)
        running.write(b"x1\nx2\nx3\nx4\nx5\n")
        assert running.wait().code == 0
        taken = [publish.body for publish in small.published if publish.body.count(b"x") <= 2]
    assert [bytes((b"12345"[index],)) for index in range(5)] == [
        piece[:1] for body in taken for piece in body.split(b"x")[1:]
    ]


def test_a_broker_that_is_lost_while_the_input_waits_ends_it_with_1(start_ours) -> None:
    with publish_brokers(1) as (lost,):
        lost.answer = lambda publish: None
        running = start_ours(TOOL, "--topic=t", f"--nsqd-tcp-address={lost.address}", has_stdin=True)
        running.write(b"one\n")
        wait_until(lambda: running.process.poll() is not None, "its end")
        result = running.wait()
        assert result.code == 1
        assert "may have been published" in result.mistake()
        # Nothing is published twice.
        assert len(lost.published) == 1


def test_a_signal_waits_for_answers_that_are_under_way(start_ours) -> None:
    with publish_brokers(1) as (slow,):

        def late(publish: Publish) -> bytes | None:
            assert slow.released.wait(20)
            return ok(publish)

        slow.answer = late
        running = start_ours(TOOL, "--topic=t", f"--nsqd-tcp-address={slow.address}", has_stdin=True)
        running.write(b"one\n")
        slow.wait(lambda: len(slow.published) == 1, "a message")
        running.process.send_signal(signal.SIGTERM)
        slow.released.set()
        assert running.wait().code == 0


@pytest.mark.slow
def test_a_signal_while_a_broker_hangs_ends_it_with_1(start_ours) -> None:
    with publish_brokers(1) as (hanging,):
        hanging.answer = lambda publish: b""
        running = start_ours(TOOL, "--topic=t", f"--nsqd-tcp-address={hanging.address}", has_stdin=True)
        running.write(b"one\n")
        hanging.wait(lambda: len(hanging.published) == 1, "a message")
        result = running.stop()
    assert result.code == 1
    assert result.mistake() == "stopped; the brokers have not confirmed the last records within 5 s"


def test_input_waits_while_a_broker_hangs(start_ours) -> None:
    with publish_brokers(1) as (slow,):

        def late(publish: Publish) -> bytes | None:
            assert slow.released.wait(30)
            return ok(publish)

        slow.answer = late
        running = start_ours(TOOL, "--topic=t", f"--nsqd-tcp-address={slow.address}", has_stdin=True)
        record = b"x" * 999_999 + b"\n"
        # More than the window and all buffers hold: the rest is written when the broker goes on.
        writer = threading.Thread(target=lambda: [running.write(record) for _ in range(60)])
        writer.start()
        slow.wait(lambda: bool(slow.published), "a message")
        writer.join(0.5)
        assert writer.is_alive()
        slow.released.set()
        writer.join(30)
        assert running.wait().code == 0
        assert sum(publish.body.count(b"x") for publish in slow.published) == 60 * 999_999
