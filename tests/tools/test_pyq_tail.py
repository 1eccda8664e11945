"""pyq_tail and nsq_tail: messages are printed, one a line, and finished."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time

import pytest

from pyqd.tools.message_lines import TerminalLines, is_json, visible
from tests.support.nsq import Client
from tests.support.readiness import is_readable
from tests.support.server import free_port, wait_until
from tests.support.tools import Tools, tools_environment

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TOOL = "pyq_tail"
NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
BODIES = [b"one", b"", b'{"a": 1}', b"two\nlines\r", b"\x00\xff\x1b[31m"]


def settled(broker, topic, channel, **fields):
    """Wait until nothing of the channel is left."""
    broker.wait_for_channel(topic, channel, **{"depth": 0, "in_flight_count": 0, **fields})


@pytest.mark.parametrize("arguments", [("--topic=bad topic",), ("--topic=t", "--channel=bad channel")])
def test_a_name_that_is_not_valid_exits_with_1(run, arguments) -> None:
    assert run(TOOL, *arguments, NSQD).code == 1


def test_each_message_is_a_line_and_is_finished(start, broker, address, topic, publish) -> None:
    bodies = [body for body in BODIES if body]
    publish(*bodies)
    running = start(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}")
    wait_until(lambda: running.out == b"".join(body + b"\n" for body in bodies), "all lines")
    settled(broker, topic, "c")
    publish(b"later")
    assert running.wait_for_lines(len(bodies) + 2)[-1] == b"later"
    settled(broker, topic, "c")
    assert running.stop().code == 0


def test_it_ends_after_n_messages(run, address, topic, publish) -> None:
    publish(b"1", b"2", b"3", b"4")
    result = run(TOOL, f"--topic={topic}", "--channel=c", "-n", "3", f"--nsqd-tcp-address={address}")
    assert (result.code, sorted(result.out.split())) == (0, [b"1", b"2", b"3"])


def test_lines_begin_with_the_topic_if_that_is_wanted(run, address, topic, publish) -> None:
    publish(b"one")
    result = run(TOOL, f"--topic={topic}", "--channel=c", "-n=1", "--print-topic", f"--nsqd-tcp-address={address}")
    assert result.out == f"{topic} | one\n".encode()


def test_several_topics_are_followed(start, address, topic, publish) -> None:
    other = f"{topic}-other"
    publish(b"1")
    publish(b"2", to=other)
    running = start(TOOL, f"--topic={topic}", f"--topic={other}", "--channel=c", f"--nsqd-tcp-address={address}")
    assert sorted(running.wait_for_lines(2)) == [b"1", b"2"]
    assert running.stop().code == 0


def test_without_a_channel_it_has_an_ephemeral_one_of_its_own(start, broker, address, topic, publish) -> None:
    publish(b"for another channel")
    with Client(broker.tcp_address) as client:
        client.sub(topic, "other")
        broker.wait_for_channel(topic, "other", depth=1)
        running = start(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}")
        wait_until(lambda: len(broker.topic(topic)["channels"]) == 2, "its channel")
        names = [channel["channel_name"] for channel in broker.topic(topic)["channels"]]
        assert sum(bool(re.fullmatch("tail[0-9]{6}#ephemeral", name)) for name in names) == 1
        publish(b"seen")
        assert running.wait_for_lines(1) == [b"seen"]
        assert running.stop().code == 0
        wait_until(lambda: len(broker.topic(topic)["channels"]) == 1, "the end of its channel")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0(start, broker, address, topic, number) -> None:
    running = start(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}")
    broker.wait_for_channel(topic, "c", client_count=1)
    assert running.stop(number).code == 0


def test_a_broker_that_cannot_be_reached_ends_it_with_1(run, address, topic) -> None:
    port = free_port()
    result = run(TOOL, f"--topic={topic}", f"--nsqd-tcp-address={address}", f"--nsqd-tcp-address=127.0.0.1:{port}")
    assert result.code == 1
    assert f"127.0.0.1:{port}" in result.mistake()


def test_a_lookup_daemon_that_cannot_be_reached_is_asked_again(start, topic) -> None:
    port = free_port()
    running = start(TOOL, f"--topic={topic}", f"--lookupd-http-address=127.0.0.1:{port}")
    running.wait_for_error(f"127.0.0.1:{port}")
    assert running.process.poll() is None
    assert running.stop().code == 0


def test_brokers_are_found_by_lookup_daemons(start, lookup, registration, topic, publish) -> None:
    publish(b"one")
    registration.register(topic)
    running = start(TOOL, f"--topic={topic}", "--channel=c", f"--lookupd-http-address={lookup.http_address}")
    assert running.wait_for_lines(1) == [b"one"]
    assert running.stop().code == 0


def test_options_of_the_consumer_reach_the_broker(start, broker, address, topic) -> None:
    options = (
        "--consumer-opt=client_id,me",
        "--consumer-opt=snappy",
        "--max-in-flight=7",
        "--consumer-opt=user_agent,x",
    )
    running = start(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}", *options)
    broker.wait_for_channel(topic, "c", client_count=1)
    wait_until(lambda: broker.channel(topic, "c")["clients"][0]["ready_count"] == 7, "RDY 7")
    (client,) = broker.channel(topic, "c")["clients"]
    assert (client["client_id"], client["snappy"]) == ("me", True)
    assert client["user_agent"].startswith(("pyq_tail/", "nsq_tail/"))
    assert running.stop().code == 0


def test_output_that_cannot_be_written_ends_it_with_1(tools, address, topic, publish) -> None:
    publish(b"one")
    command = [*tools.command(TOOL), f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, env=tools_environment(), stdout=full, stderr=subprocess.PIPE, timeout=30, check=False
        )
    assert done.returncode == 1
    assert b"ERROR: failed to write to" in done.stderr


def test_it_dies_of_sigpipe_when_its_reader_has_gone(tools, broker, address, topic, publish) -> None:
    publish(b"one")
    command = [*tools.command(TOOL), f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}"]
    process = subprocess.Popen(command, env=tools_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    process.stdout.close()
    publish(b"unseen")
    assert process.wait(30) == -signal.SIGPIPE
    # It is not finished, and comes again. The original leaves it to the timeout.
    broker.wait_for_channel(topic, "c", depth=int(not tools.are_originals), in_flight_count=int(tools.are_originals))


# Behaviour that the original does not have.


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (("--topic-pattern=t", NSQD), "--lookupd-http-address must be specified with --topic-pattern"),
        (("--topic-pattern=(", LOOKUPD), '--topic-pattern "("'),
        (("--topic=t", "--topic-refresh=0s", NSQD), "--topic-refresh should be positive"),
        (("--topic=t", "--max-in-flight=-1", NSQD), "invalid max_in_flight ! -1 < 0"),
        (("--topic=t", "--color=red", NSQD), "--color must be auto, always or never"),
        (("--topic=t", "--consumer-opt=deflate", "--consumer-opt=snappy", NSQD), "cannot enable both"),
    ],
)
def test_a_mistake_in_its_own_options_exits_with_1(run_ours, arguments, mistake) -> None:
    result = run_ours(TOOL, *arguments)
    assert result.code == 1
    assert result.mistake().startswith(mistake)


def test_after_n_messages_these_are_finished_and_no_others(run_ours, broker, address, topic, publish) -> None:
    publish(*(b"%d" % number for number in range(20)))
    result = run_ours(TOOL, f"--topic={topic}", "--channel=c", "-n", "7", f"--nsqd-tcp-address={address}")
    assert (result.code, len(result.out.split())) == (0, 7)
    broker.wait_for_channel(topic, "c", depth=13, in_flight_count=0)


def test_topics_that_match_a_pattern_are_followed_also_later_ones(
    start_ours, lookup, registration, topic, publish
) -> None:
    first, later, other = f"{topic}-orders", f"{topic}-late-orders", f"{topic}-bills"
    for name in (first, other):
        publish(b"of %s" % name.encode(), to=name)
        registration.register(name)
    patterns = (f"--topic-pattern=^{topic}.*orders$", "--topic-pattern=no such topic")
    running = start_ours(
        TOOL, *patterns, "--channel=c", "--topic-refresh=50ms", f"--lookupd-http-address={lookup.http_address}"
    )
    running.wait_for_lines(1)
    publish(b"of %s" % later.encode(), to=later)
    registration.register(later)
    assert running.wait_for_lines(2) == [b"of %s" % first.encode(), b"of %s" % later.encode()]
    assert running.stop(signal.SIGHUP).code == 0


def test_sighup_stays_ignored_if_it_is(broker, address, topic, publish) -> None:
    command = shlex.join(
        [*Tools().command(TOOL), f"--topic={topic}", "--channel=c", "-n", "1", f"--nsqd-tcp-address={address}"]
    )
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' HUP; exec {command}"], env=tools_environment(), stdout=subprocess.PIPE
    )
    broker.wait_for_channel(topic, "c", client_count=1)
    process.send_signal(signal.SIGHUP)
    publish(b"one")
    assert (process.communicate(timeout=30)[0], process.returncode) == (b"one\n", 0)


def test_closed_output_is_a_mistake(address, topic, publish, broker) -> None:
    publish(b"one")
    command = shlex.join([*Tools().command(TOOL), f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}"])
    done = subprocess.run(
        ["bash", "-c", f"{command} >&-"], env=tools_environment(), stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert done.returncode == 1
    assert b"cannot write to standard output: it is closed" in done.stderr
    assert broker.channel(topic, "c") is None


def test_a_reader_that_does_not_read_does_not_keep_it_from_ending(broker, address, topic, publish) -> None:
    publish(*(b"x" * 10_000 for _ in range(20)))
    command = [*Tools().command(TOOL), f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address}"]
    process = subprocess.Popen(command, env=tools_environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()
    broker.wait_for_channel(topic, "c", in_flight_count=0)
    # None is lost: all that were not printed as a whole are there.
    assert broker.channel(topic, "c")["depth"] >= 13


def test_json_has_colours_on_a_terminal(address, topic, publish) -> None:
    publish(b'{"key": [1, "text"]}', b"plain \x1b[31m")
    command = [*Tools().command(TOOL), f"--topic={topic}", "--channel=c", "-n=2", f"--nsqd-tcp-address={address}"]
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in tools_environment().items() if key != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    deadline_s = time.monotonic() + 30
    while b"plain" not in shown and time.monotonic() < deadline_s:
        if is_readable(ours, 1):
            shown += os.read(ours, 1000)
    assert process.wait(30) == 0
    os.close(ours)
    assert b"\x1b[" in shown.splitlines()[0]
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", shown) == b'{"key": [1, "text"]}\r\nplain \\x1b[31m\r\n'


class TestLinesForATerminal:
    def test_a_text_keeps_its_length_and_line_ends(self):
        assert visible(b"a\tb\nc") == "a\tb\nc"

    def test_control_characters_and_other_bytes_become_escapes(self):
        assert visible(b"\x1b]0;x\x07\r\xff \xc2\x9b") == r"\x1b]0;x\x07\x0d\xff \x9b"

    @pytest.mark.parametrize(
        ("body", "is_object"),
        [(b'{"a": 1}', True), (b" [1]", True), (b"1", False), (b"{", False), (b"[" * 100_000, False), (b"\xff", False)],
    )
    def test_only_objects_and_arrays_are_json(self, body, is_object):
        assert is_json(body) is is_object

    def test_a_long_line_is_not_wrapped(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "20")
        body = json.dumps({"key": "word " * 30}).encode()
        shown = TerminalLines(print_topic=True, is_forced=True)("t", [body])
        assert re.sub(rb"\x1b\[[0-9;]*m", b"", shown) == b"t | " + body + b"\n"
