"""pyq_bench: loads, their figures, and what they leave on the broker."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pyqd.tools.pyq_bench import main
from tests.support.authd import AuthServer
from tests.support.nsq import Client
from tests.support.publish_broker import publish_brokers
from tests.support.scripted_broker import RESPONSE, frame
from tests.support.server import Daemon, Implementation, free_port, running, wait_until
from tests.support.tools import Result, Run

# Each test is a run of a benchmark.
pytestmark = pytest.mark.slow

TOOL = "pyq_bench"
NEW_TOPIC = "pyq_bench-"


def figures_of(result: Result) -> dict[str, Any]:
    """Return the JSON of a run that has no problem."""
    assert result.code == 0, result.err
    (line,) = result.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["problems"] == []
    return found


def new_topics(broker: Daemon) -> list[str]:
    return [name for name in broker.topics() if name.startswith(NEW_TOPIC)]


@pytest.fixture
def addresses(address: str, http_address: str) -> tuple[str, str]:
    return f"--nsqd-tcp-address={address}", f"--nsqd-http-address={http_address}"


@pytest.fixture
def bench(run_ours: Run, addresses: tuple[str, str]) -> Run:
    def function(tool: str, *arguments: str, stdin: bytes = b"") -> Result:
        return run_ours(TOOL, tool, *addresses, *arguments, stdin=stdin)

    return function


# Loads.


def test_publish_counts_answers_and_leaves_nothing_behind(bench: Run, broker: Daemon) -> None:
    found = figures_of(bench("publish", "--count=20000", "--size=100", "--json"))
    assert (found["messages"], found["size_bytes"], found["unfinished"]) == (20_000, 100, 0)
    assert found["latency_ns"]["answers"]["count"] == 100
    assert found["bytes_per_s"] == pytest.approx(100 * found["messages_per_s"], rel=0.01)
    assert found["broker_cpu"]["seconds"] >= 0
    assert new_topics(broker) == []


def test_publish_fills_a_topic_of_the_user(bench: Run, broker: Daemon, topic: str) -> None:
    found = figures_of(
        bench("publish", f"--topic={topic}", "--count=30", "--batch-size=1", "--size=50", "--connections=2", "--json")
    )
    assert found["topic"] == topic
    broker.wait_for_topic(topic, message_count=30, message_bytes=1500)


def test_publish_ends_after_its_duration_without_a_count(bench: Run) -> None:
    found = figures_of(bench("publish", "--runfor=200ms", "--warm-up=100ms", "--json"))
    # The clock of the run ends it, never early.
    assert found["seconds"] >= 0.2
    assert found["messages"] > 0


def test_publish_keeps_a_rate_and_counts_latencies_from_the_intended_times(bench: Run) -> None:
    found = figures_of(bench("publish", "--rate=2000", "--count=400", "--batch-size=10", "--json"))
    assert (found["messages"], found["latency_ns"]["answers"]["count"]) == (400, 40)
    # The last batch is sent after 390 / 2000 s.
    assert found["seconds"] >= 0.195


def test_consume_fills_a_new_topic_and_gets_every_message_once(bench: Run, broker: Daemon) -> None:
    found = figures_of(bench("consume", "--count=30001", "--size=64", "--json"))
    assert (found["messages"], found["unfinished"], found["duplicates"]) == (30_001, 0, 0)
    assert found["bytes_per_s"] == pytest.approx(64 * found["messages_per_s"], rel=0.01)
    assert new_topics(broker) == []


def test_consume_takes_messages_of_any_size_from_a_channel_of_the_user(bench: Run, broker: Daemon, topic: str) -> None:
    with Client(broker.tcp_address) as client:
        client.sub(topic, "c")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"a", b"bb", b"c" * 300_000])
    found = figures_of(bench("consume", f"--topic={topic}", "--channel=c", "--count=3", "--json"))
    assert found["messages"] == 3
    broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0)


def test_consume_of_a_topic_with_too_few_messages_ends_after_the_timeout_and_leaves_nothing_in_flight(
    bench: Run, broker: Daemon, topic: str
) -> None:
    with Client(broker.tcp_address) as client:
        client.sub(topic, "c")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"message"] * 5)
    begun_s = time.monotonic()
    result = bench("consume", f"--topic={topic}", "--channel=c", "--count=10", "--timeout=300ms", "--json")
    assert time.monotonic() - begun_s < 15.0
    assert (result.code, json.loads(result.out)["messages"]) == (1, 5)
    assert f"channel c of topic {topic} has brought no message for 0.3 s; --channel names" in result.err
    broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, requeue_count=0)


def test_consume_of_a_topic_ends_after_its_duration_and_leaves_nothing_in_flight(
    bench: Run, broker: Daemon, topic: str
) -> None:
    with Client(broker.tcp_address) as client:
        client.sub(topic, "theirs")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"message"] * 10)
    found = figures_of(bench("consume", f"--topic={topic}", "--runfor=100ms", "--json"))
    assert found["channel"].endswith("#ephemeral")
    # Nobody else's channel is touched, and that of the run is gone.
    broker.wait_for_channel(topic, "theirs", depth=10, in_flight_count=0)
    wait_until(lambda: broker.channel(topic, found["channel"]) is None, "the end of the channel")


def test_latency_measures_every_message_from_its_intended_time(bench: Run, broker: Daemon) -> None:
    found = figures_of(bench("latency", "--rate=1000", "--count=300", "--connections=2", "--json"))
    latencies = found["latency_ns"]
    assert (found["messages"], latencies["deliveries"]["count"], latencies["answers"]["count"]) == (300, 300, 300)
    deliveries = latencies["deliveries"]
    assert 0 < deliveries["p50"] <= deliveries["p99"] <= deliveries["p99_99"] <= deliveries["max"]
    assert found["seconds"] >= 0.299
    assert new_topics(broker) == []


def test_latency_without_a_count_lasts_as_long_as_it_is_told(bench: Run) -> None:
    found = figures_of(bench("latency", "--rate=500", "--runfor=400ms", "--warm-up=100ms", "--json"))
    assert 0 < found["latency_ns"]["deliveries"]["count"] <= 250
    assert found["unfinished"] == 0


def test_latency_of_a_topic_of_the_user_warns_of_messages_of_others(bench: Run, broker: Daemon, topic: str) -> None:
    with Client(broker.tcp_address) as client:
        client.pub(topic, b"\xff" * 8)
    result = bench("latency", f"--topic={topic}", "--rate=1000", "--count=100", "--json")
    found = figures_of(result)
    assert (found["unfinished"], found["channel"].endswith("#ephemeral")) == (0, True)
    assert "1 messages in the channel are not of this run" in result.err


def test_the_summary_is_text_for_people_and_progress_goes_to_standard_error(bench: Run, address: str) -> None:
    result = bench("publish", "--runfor=2300ms", "--rate=1000", "--batch-size=1")
    lines = result.out.decode().splitlines()
    assert lines[0].startswith(f"publish: {address} (version ")
    assert [line.split()[0] for line in lines[1:]] == ["messages", "rate", "answers", "broker", "generator"]
    assert re.search(r" publishing: \d+ s, ", result.err)
    assert "messages/s" in result.err
    assert result.code == 0


def test_a_quiet_run_prints_its_summary_alone(bench: Run) -> None:
    result = bench("latency", "--rate=1000", "--runfor=1500ms", "--quiet")
    assert [line for line in result.err.splitlines() if "WARNING" not in line] == []


def test_a_deadline_that_has_passed_begins_at_once(bench: Run) -> None:
    assert figures_of(bench("publish", "--count=200", "--deadline=2020-01-01 00:00:00", "--json"))["messages"] == 200


# Topics.


def test_a_new_topic_stays_if_it_is_to_be_kept(bench: Run, broker: Daemon) -> None:
    found = figures_of(bench("publish", "--count=200", "--keep-topic", "--json"))
    assert new_topics(broker) == [found["topic"]]
    broker.http("POST", "/topic/delete", topic=found["topic"])


def test_a_topic_that_the_run_has_made_is_deleted_if_told(bench: Run, broker: Daemon, topic: str) -> None:
    figures_of(bench("publish", f"--topic={topic}", "--delete-topic", "--count=200", "--json"))
    assert broker.topic(topic) is None


def test_a_topic_that_was_there_before_is_never_deleted(bench: Run, broker: Daemon, topic: str) -> None:
    with Client(broker.tcp_address) as client:
        client.pub(topic, b"precious")
    result = bench("publish", f"--topic={topic}", "--delete-topic", "--count=200")
    assert (result.code, result.out) == (1, b"")
    assert f"topic {topic} exists already" in result.err
    broker.wait_for_topic(topic, message_count=1)


def test_without_the_http_api_no_topic_is_made_that_could_not_be_deleted(bench: Run, broker: Daemon) -> None:
    result = bench("publish", "--count=200", f"--nsqd-http-address=127.0.0.1:{free_port()}")
    assert result.code == 1
    assert "no HTTP API to delete the topic with afterwards" in result.err
    assert "--keep-topic leaves the topic" in result.err
    assert new_topics(broker) == []


# Ends.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_measurement_with_the_summary_so_far(start_ours, broker, addresses, number) -> None:
    tool = start_ours(TOOL, "publish", *addresses, "--rate=1000", "--batch-size=1", "--runfor=10m")
    tool.wait_for_error("publishing: ")
    result = tool.stop(number)
    assert result.code == 0
    assert b", ended by a signal" in result.out
    assert new_topics(broker) == []


def test_a_signal_while_the_topic_is_filled_cleans_up(start_ours, broker, addresses) -> None:
    tool = start_ours(TOOL, "consume", *addresses, "--count=999999937", "--size=8")
    tool.wait_for_error("filling the topic: ")
    result = tool.stop(signal.SIGINT)
    assert (result.code, result.out) == (0, b"")
    assert "stopped before the measurement began" in result.err
    assert new_topics(broker) == []


def test_a_broker_that_dies_is_named_after_the_summary_so_far(
    start_ours, implementation: Implementation, tmp_path: Path
) -> None:
    daemon = Daemon(implementation, tmp_path / "dying").start()
    try:
        tool = start_ours(
            TOOL, "publish", f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}", "--rate=1000", "--batch-size=1",
            f"--nsqd-http-address=127.0.0.1:{daemon.http_port}", "--runfor=10m",
        )  # fmt: skip
        tool.wait_for_error("publishing: ")
    finally:
        daemon.kill()
    result = tool.wait()
    assert result.code == 1
    assert b"  messages   " in result.out
    assert "has the broker stopped? its log has the cause" in result.mistake()
    assert "is not deleted: " in result.err
    assert "delete it with: pyqctl delete pyq_bench-" in result.err


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (("publish", "--size=7"), "--size must be [8,1048576]"),
        (("publish", "--connections=0"), "--connections must be [1,10000]"),
        (("publish", "--count=201"), "--count must be a multiple of --batch-size: 201 is not one of 200"),
        (("publish", "--size=1000000", "--batch-size=100"), "--size x --batch-size x --outstanding must be at most "),
        (("publish", "--deadline=noon"), '--deadline must be a time in UTC, as "2026-11-24 12:00:00", not "noon"'),
        (("latency", "--rate=0"), "--rate must be [1,1000000000]"),
        (("publish", "--nsqd-tcp-address=4150"), "missing colon before the port"),
        (("publish", "--nsqd-tcp-address=/run/nsqd.sock"), "pyq_bench needs host:port"),
        (("publish", "--nsqd-tcp-address=127.0.0.1:1"), "cannot connect to 127.0.0.1:1: Connection refused; is the"),
        (("publish", "soon"), "unknown arguments: [soon]"),
    ],
)
def test_a_mistake_is_named_and_exits_with_1(arguments, mistake, capsys) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert mistake in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        ((), "a command is needed; the commands are publish, consume, latency"),
        (("pubish",), "unknown command: pubish; did you mean publish?"),
        (("--json", "publish"), "flag provided but not defined: -json"),
        (("publish", "--rdy=1"), "flag provided but not defined: -rdy"),
        (("consume", "--rate=1"), "flag provided but not defined: -rate"),
        (("publish", "--runfor=5"), 'invalid value "5" for flag -runfor'),
    ],
)
def test_a_mistake_in_the_syntax_exits_with_2(arguments, mistake, capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert mistake in capsys.readouterr().err


def test_help_names_the_commands_and_each_command_has_its_flags(capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    assert all(f"pyq_bench {command}: " in out for command in ("publish", "consume", "latency"))
    with pytest.raises(SystemExit):
        main(["latency", "--help"])
    assert "(default 1000)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (("publish", "--topic=a b"), "'a b' is not the name of a topic"),
        (("consume", "--channel=a b"), "'a b' is not the name of a channel"),
        (("consume", "--rdy=2501"), "--rdy must be at most 2500, the --max-rdy-count of "),
        (("publish", "--keep-topic", "--topic=t"), "--keep-topic is for a topic without a name"),
        (("publish", "--delete-topic"), "--delete-topic needs --topic"),
        (("publish", "--size=1000000", "--batch-size=10", "--outstanding=1"), "lower --size or --batch-size"),
    ],
)
def test_what_the_broker_would_refuse_is_named_with_the_remedy(bench: Run, broker, arguments, mistake) -> None:
    result = bench(*arguments, "--runfor=1s")
    assert result.code == 1
    assert mistake in result.err
    assert new_topics(broker) == []


def test_the_http_port_is_told_from_the_tcp_port(run_ours: Run, http_address: str) -> None:
    result = run_ours(TOOL, "publish", f"--nsqd-tcp-address={http_address}")
    assert (result.code, result.out) == (1, b"")
    assert f"{http_address} speaks HTTP; give the address of the TCP protocol" in result.err


def test_a_host_name_that_cannot_exist_is_named(run_ours: Run) -> None:
    result = run_ours(TOOL, "publish", "--nsqd-tcp-address=a..b:4150")
    assert (result.code, result.out) == (1, b"")
    assert "cannot find the host of a..b:4150: " in result.err


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (b"", " gave no answer in time; is it the TCP address of nsqd or pyqd?"),
        (b"220 mail.example.org ESMTP\r\n", " does not speak NSQ's protocol"),
        (frame(RESPONSE, b"OK"), " does not speak NSQ's protocol"),
        (frame(RESPONSE, b'{"auth_required": true, "version": "1.3.0"}'), " demands authorization; give --auth-secret"),
    ],
)
def test_a_server_that_is_no_broker_for_us_is_named(answer, mistake, capsys) -> None:
    with publish_brokers(1) as (server,):
        server.greeting = answer
        assert main(["publish", f"--nsqd-tcp-address={server.address}", "--timeout=300ms"]) == 1
        assert f"{server.address}{mistake}" in capsys.readouterr().err


def test_a_broker_that_answers_no_command_ends_a_run_without_a_duration(capsys) -> None:
    with publish_brokers(1) as (silent,):
        silent.answer = lambda _: b""
        base = (f"--nsqd-tcp-address={silent.address}", "--topic=t", "--timeout=300ms")
        assert main(["publish", *base, "--count=200", "--connections=1"]) == 1
    assert "the broker has done nothing for 0.3 s" in capsys.readouterr().err


def test_a_broker_that_demands_authorization_gets_the_secret(
    run_ours: Run, implementation: Implementation, tmp_path: Path
) -> None:
    authd = AuthServer()
    try:
        flags = [f"-auth-http-address={authd.address}"]
        with running(Daemon(implementation, tmp_path / "guarded", flags)) as daemon:
            base = ("--keep-topic", "--count=200", "--json", f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}")
            figures = figures_of(run_ours(TOOL, "consume", "--auth-secret=swordfish", *base))
            assert figures["messages"] == 200
            assert {query.secret for query in authd.queries} == {"swordfish"}
    finally:
        authd.stop()
