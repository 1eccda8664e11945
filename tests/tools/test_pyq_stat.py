"""pyq_stat and nsq_stat: lines with the numbers of a channel."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pyqd.tools.pyq_stat import line_of, totals_of
from tests.support.certificates import Certificates
from tests.support.http_stub import http_stub, json_answer
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port, pyqd, running, wait_until
from tests.support.tools import tools_environment

TOOL = "pyq_stat"
NSQD = "--nsqd-http-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
NAMES = ("--topic=t", "--channel=c")
QUICK = "--interval=20ms"
HEADER = [
    b"------rate------+----------------depth----------------+--------------metadata---------------",
    b"ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
]


@pytest.fixture
def channel(broker, topic) -> Iterator[Client]:
    """A consumer of channel c that holds one of 3 messages; another one is deferred."""
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"1", b"2", b"3"])
        client.sub(topic, "c", rdy_count=2)
        first, _held = client.read_messages(2)
        client.rdy(0)
        client.req(first, 60_000)
        broker.wait_for_channel(topic, "c", in_flight_count=1, deferred_count=1, requeue_count=1)
        yield client


@pytest.mark.slow
def test_each_line_has_the_numbers_of_the_channel(run, topic, http_address, channel) -> None:
    result = run(TOOL, f"--topic={topic}", "--channel=c", "--count=2", QUICK, f"--nsqd-http-address={http_address}")
    line = b"      0       0 |       1       1       0     1     1 |       1       0            3       1"
    # Where the depth lies is the broker's affair.
    on_disk = b"      0       0 |       1       0       1     1     1 |       1       0            3       1"
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:2] == HEADER
    assert lines[2:] in ([line] * 2, [on_disk] * 2)


@pytest.mark.slow
def test_the_header_comes_again_after_25_polls(run, topic, http_address, channel) -> None:
    arguments = (f"--topic={topic}", "--channel=c", "--count=26", "--interval=1ms")
    lines = run(TOOL, *arguments, f"--nsqd-http-address={http_address}").out.splitlines()
    assert (lines[:2], lines[26:28], len(lines)) == (HEADER, HEADER, 30)


@pytest.mark.slow
def test_brokers_are_found_by_lookup_daemons(run, topic, lookup, registration, channel) -> None:
    registration.register(topic)
    address = f"--lookupd-http-address={lookup.http_address}"
    result = run(TOOL, f"--topic={topic}", "--channel=c", "--count=1", QUICK, address)
    assert (result.code, len(result.out.splitlines())) == (0, 3)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0(start, topic, http_address, channel, number) -> None:
    arguments = (f"--topic={topic}", "--channel=c", "--interval=1m")
    process = start(TOOL, *arguments, f"--nsqd-http-address={http_address}")
    process.wait_for_lines(2)
    assert process.stop(number).code == 0


def test_a_channel_that_no_broker_has_ends_it_with_1(run, topic, http_address, channel) -> None:
    result = run(TOOL, f"--topic={topic}", "--channel=other", f"--nsqd-http-address={http_address}")
    assert result.code == 1
    assert result.mistake() == f"ERROR: failed to find channel(other) in stats metadata for topic({topic})"


@pytest.mark.slow
def test_a_topic_that_no_broker_has_ends_it_with_1(run, topic, http_address) -> None:
    result = run(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-http-address={http_address}")
    assert result.code == 1
    assert result.mistake().startswith("ERROR: failed to get nsqd stats - failed to query any nsqd:")


@pytest.mark.slow
def test_a_topic_that_no_lookup_daemon_knows_ends_it_with_1(run, topic, lookup) -> None:
    result = run(TOOL, f"--topic={topic}", "--channel=c", f"--lookupd-http-address={lookup.http_address}")
    assert result.code == 1
    assert result.mistake().startswith("ERROR: failed to get topic producers - failed to query any nsqlookupd: ")
    assert "got response 404 Not Found" in result.mistake()


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "program"), [("nsqd-http-address", "nsqd"), ("lookupd-http-address", "nsqlookupd")])
def test_a_daemon_that_cannot_be_reached_ends_it_with_1(run, flag, program) -> None:
    result = run(TOOL, *NAMES, f"--{flag}=127.0.0.1:{free_port()}")
    assert result.code == 1
    assert result.mistake().startswith(f"ERROR: failed to get topic producers - failed to query any {program}: ")


@pytest.mark.slow
def test_one_broker_of_two_that_does_not_answer_ends_it_with_1(run, topic, http_address, channel) -> None:
    addresses = [f"--nsqd-http-address={address}" for address in (http_address, f"127.0.0.1:{free_port()}")]
    result = run(TOOL, f"--topic={topic}", "--channel=c", *addresses)
    assert result.code == 1
    assert result.mistake().startswith("ERROR: failed to get topic producers - ")


def test_a_broker_that_dies_ends_it_with_1(start, tmp_path) -> None:
    (tmp_path / "broker").mkdir()
    with running(Daemon(pyqd(), tmp_path / "broker")) as daemon:
        with Client(daemon.tcp_address) as client:
            client.sub("t", "c")
        process = start(TOOL, *NAMES, QUICK, f"--nsqd-http-address=127.0.0.1:{daemon.http_port}")
        process.wait_for_lines(3)
    result = process.wait()
    assert result.code == 1
    assert "ERROR: failed to get topic producers - " in result.err


@pytest.mark.slow
def test_it_dies_of_sigpipe_when_its_reader_has_gone(tools, topic, http_address, channel) -> None:
    arguments = (f"--topic={topic}", "--channel=c", QUICK, f"--nsqd-http-address={http_address}")
    process = subprocess.Popen([*tools.command(TOOL), *arguments], env=tools_environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == -signal.SIGPIPE


# Behaviour that the original does not have, and parts.


def test_a_topic_that_no_broker_has_is_named(run_ours, topic, http_address) -> None:
    result = run_ours(TOOL, f"--topic={topic}", "--channel=c", f"--nsqd-http-address={http_address}")
    assert result.mistake().endswith(f"any nsqd: topic {topic} does not exist at {http_address}; is --topic right?")


def test_a_topic_that_the_lookup_daemons_know_without_a_broker_is_named(run_ours) -> None:
    with http_stub(lambda path, query: json_answer({"channels": [], "producers": []})) as stub:
        result = run_ours(TOOL, *NAMES, f"--lookupd-http-address={stub.address}")
    assert result.code == 1
    assert result.mistake().endswith("any nsqd: the lookup daemons name no broker that has topic t")


@pytest.mark.slow
def test_a_signal_does_not_wait_for_an_answer(start_ours) -> None:
    released = threading.Event()

    def never(path, query):
        released.wait(30)

    with http_stub(never) as stub:
        process = start_ours(TOOL, *NAMES, "--http-client-request-timeout=1m", f"--nsqd-http-address={stub.address}")
        wait_until(lambda: bool(stub.requests), "a request")
        assert process.stop().code == 0
        released.set()


@pytest.mark.slow
def test_an_answer_that_does_not_come_in_time_ends_it_with_1(run) -> None:
    released = threading.Event()

    def late(path, query):
        released.wait(30)

    with http_stub(late) as stub:
        result = run(TOOL, *NAMES, "--http-client-request-timeout=100ms", f"--nsqd-http-address={stub.address}")
        released.set()
    assert result.code == 1
    assert result.mistake().startswith("ERROR: failed to get topic producers - failed to query any nsqd: ")


def test_numbers_of_several_brokers_are_added() -> None:
    def answer(**fields: int) -> dict[str, Any]:
        return {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", **fields}, {"channel_name": "d"}]}]}

    answers: list[dict[str, Any]] = [
        answer(depth=3, message_count=5),
        answer(depth=4, client_count=1),
        {"topics": None},
    ]
    assert totals_of(answers, "t", "c") == Counter(depth=7, message_count=5, client_count=1)
    assert totals_of(answers, "t", "e") is None


@pytest.mark.parametrize(
    ("before", "rates"),
    [
        (Counter(depth=0, message_count=0), "     50      45"),
        (Counter(depth=12, message_count=99), "      0       1"),
        # A broker that was restarted counts from the beginning.
        (Counter(depth=0, message_count=103), "     -1      -6"),
    ],
)
def test_rates_are_messages_per_second_without_fractions(before, rates) -> None:
    now = Counter(depth=10, backend_depth=4, message_count=100)
    assert line_of(now, before, 2.0).startswith(f"{rates} |      10       6       4     0     0 |")


@pytest.mark.slow
def test_a_broker_that_wants_https_is_asked_over_it(tools, tmp_path) -> None:
    certificates = Certificates(tmp_path)
    port = free_port()
    flags = (*certificates.server_flags(), f"-https-address=127.0.0.1:{port}", "-tls-required=true")
    with running(Daemon(pyqd(), tmp_path, flags)) as daemon:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, context=certificates.client_context(), timeout=20
            )
            with contextlib.closing(connection):
                connection.request("POST", path)
                assert connection.getresponse().status == 200
        done = subprocess.run(
            [*tools.command(TOOL), *NAMES, "--count=1", QUICK, f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"],
            env=tools_environment() | {"SSL_CERT_FILE": str(certificates.authority.path)},
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, b"", 3)
