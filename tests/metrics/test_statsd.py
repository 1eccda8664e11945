"""Packets to a statsd server: keys, types, values and sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pyqd.metrics.statsd import connected
from tests.support.nsq import Client
from tests.support.server import Daemon, Implementation, nsqd, pyqd
from tests.support.statsd import StatsdServer
from tests.support.two_servers import run_server

pytestmark = pytest.mark.slow

FLAGS = ("-statsd-interval=1100ms", "-statsd-prefix=a.%s.b", "-e2e-processing-latency-percentile=0.5,0.999")
MEMORY_KEYS = [
    ("mem.heap_objects", "g"),
    ("mem.heap_idle_bytes", "g"),
    ("mem.heap_in_use_bytes", "g"),
    ("mem.heap_released_bytes", "g"),
    ("mem.gc_pause_usec_100", "g"),
    ("mem.gc_pause_usec_99", "g"),
    ("mem.gc_pause_usec_95", "g"),
    ("mem.next_gc_bytes", "g"),
    ("mem.gc_runs", "c"),
]
CHANNEL = {
    "message_count": ("c", 4),
    "depth": ("g", 1),
    "backend_depth": ("g", 0),
    "in_flight_count": ("g", 1),
    "deferred_count": ("g", 1),
    "requeue_count": ("c", 1),
    "timeout_count": ("c", 0),
    "clients": ("g", 1),
}
TOPIC = {"message_count": ("c", 4), "message_bytes": ("c", 10), "depth": ("g", 0), "backend_depth": ("g", 0)}

Start = Callable[..., Daemon]


@pytest.fixture
def statsd() -> Iterator[StatsdServer]:
    server = StatsdServer()
    yield server
    server.close()


@pytest.fixture
def start(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return a function that starts a server with flags."""
    running = []

    def start_with(*flags: str, address: str) -> Daemon:
        running.append(run_server(implementation, tmp_path_factory, (f"-statsd-address={address}", *flags)))
        return next(running[-1])

    yield start_with
    for each in running:
        assert next(each, None) is None


def traffic(daemon: Daemon) -> Client:
    """Publish four messages; of one channel's one is finished, one deferred, one in flight, one left."""
    daemon.http("POST", "/topic/create", topic="a.b#ephemeral")
    daemon.http("POST", "/topic/create", topic="orders")
    daemon.http("POST", "/channel/create", topic="orders", channel="email")
    daemon.http("POST", "/channel/create", topic="orders", channel="log#ephemeral")
    consumer = Client(daemon.tcp_address)
    consumer.pub_each("orders", [b"1", b"22", b"333", b"4444"])
    consumer.sub("orders", "email", rdy_count=3)
    messages = consumer.read_messages(3)
    consumer.rdy(0)
    consumer.fin(messages[0])
    consumer.req(messages[1], 60_000)
    consumer.expect_alive()
    return consumer


def with_head(head: str, keys: dict[str, tuple[str, int]], latencies: bool) -> list[tuple[str, str]]:
    found = [(head + key, kind) for key, (kind, _) in keys.items()]
    return found + [(f"{head}e2e_processing_latency_{number}", "g") for number in ("100", "50") if latencies]


def prefix_of(daemon: Daemon) -> str:
    return f"a.127_0_0_1_{daemon.http_port}.b."


def test_keys_types_and_their_order(start: Start, statsd: StatsdServer) -> None:
    daemon = start(*FLAGS, address=f"127.0.0.1:{statsd.port}")
    with traffic(daemon):
        lines = statsd.read_round(prefix_of(daemon))
        while ("topic.orders.channel.log#ephemeral.depth", 4) not in [line[:2] for line in lines]:
            lines = statsd.read_round(prefix_of(daemon))
    assert [(line.key, line.kind) for line in lines] == [
        *with_head("topic.a.b#ephemeral.", TOPIC, False),
        *with_head("topic.fence.", TOPIC, False),
        *with_head("topic.orders.", TOPIC, True),
        *with_head("topic.orders.channel.email.", CHANNEL, True),
        *with_head("topic.orders.channel.log#ephemeral.", CHANNEL, True),
        *MEMORY_KEYS,
    ]


def test_gauges_are_sent_as_values_and_counters_as_differences(start: Start, statsd: StatsdServer) -> None:
    daemon = start(*FLAGS, address=f"127.0.0.1:{statsd.port}")
    expected = {
        **{f"topic.orders.{key}": entry for key, entry in TOPIC.items()},
        **{f"topic.orders.channel.email.{key}": entry for key, entry in CHANNEL.items()},
    }
    with traffic(daemon):
        grown: Counter[str] = Counter()
        while True:
            lines = statsd.read_round(prefix_of(daemon))
            grown.update({line.key: line.value for line in lines if line.kind == "c"})
            values = {line.key: grown[line.key] if line.kind == "c" else line.value for line in lines}
            if values["topic.orders.channel.email.deferred_count"] == 1:
                break
        assert {key: values[key] for key in expected} == {key: value for key, (_, value) in expected.items()}
        assert values["topic.orders.e2e_processing_latency_100"] > 1000
        lines = statsd.read_round(prefix_of(daemon))
    counters = {line.key: line.value for line in lines if line.kind == "c" and line.key in expected}
    assert set(counters.values()) == {0}


def test_packets_hold_whole_lines_and_a_longer_line_goes_alone(start: Start, statsd: StatsdServer) -> None:
    flags = (*FLAGS, "-statsd-udp-packet-size=150")
    daemon = start(*flags, address=f"127.0.0.1:{statsd.port}")
    with traffic(daemon):
        packets = statsd.read_packets()
        while not any(b"orders.channel.email" in packet for packet in packets):
            packets = statsd.read_packets()
    for packet, following in itertools.pairwise(packets):
        assert packet.endswith(b"\n")
        assert len(packet) <= 150
        assert len(packet) + following.index(b"\n") + 1 > 150, "the next line would have had room"


def test_ephemeral_topics_and_channels_can_be_left_out(start: Start, statsd: StatsdServer) -> None:
    flags = (*FLAGS, "-statsd-exclude-ephemeral", "-statsd-prefix=")
    daemon = start(*flags, address=f"127.0.0.1:{statsd.port}")
    with traffic(daemon):
        keys: list[str] = []
        while "topic.orders.channel.email.depth" not in keys:
            keys = [line.key for line in statsd.read_round("")]
    assert not any("ephemeral" in key for key in keys)


def test_a_server_that_is_not_there_is_tried_again(start: Start) -> None:
    absent = StatsdServer()
    absent.close()
    daemon = start(*FLAGS, address=f"127.0.0.1:{absent.port}")
    nowhere = start(*FLAGS, address="no-such-host.invalid:8125")
    for each, said in ((daemon, "STATSD: pushing stats to 127.0.0.1:"), (nowhere, "failed to create UDP socket")):
        with traffic(each) as client:
            while each.log_text().count(said) < 2:
                client.expect_alive()
        each.assert_healthy()


def test_pyqd_sends_the_lines_that_nsqd_sends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = request.config.getoption("--nsqd")
    if not path:
        pytest.skip("no --nsqd to compare with")
    found = []
    for implementation in (pyqd(), nsqd(path)):
        statsd = StatsdServer()
        runs = run_server(implementation, tmp_path_factory, (f"-statsd-address=127.0.0.1:{statsd.port}", *FLAGS))
        daemon = next(runs)
        with traffic(daemon):
            grown: Counter[str] = Counter()
            gauges: dict[str, int] = {}
            while gauges.get("topic.orders.channel.email.deferred_count") != 1:
                lines = statsd.read_round(prefix_of(daemon))
                grown.update({line.key: line.value for line in lines if line.kind == "c"})
                gauges = {line.key: line.value for line in lines if line.kind == "g"}
        compared = [
            (line.key, line.kind, grown[line.key] if line.kind == "c" else line.value)
            for line in lines
            if not line.key.startswith("mem.") and "latency" not in line.key
        ]
        found.append((compared, [(line.key, line.kind) for line in lines]))
        assert next(runs, None) is None
        statsd.close()
    assert found[0] == found[1]


def test_a_host_name_that_no_host_can_have_is_an_error_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match=r"^'a\.\.b' is no host name: "):
        connected("a..b:8125")
    assert capfd.readouterr().err == ""
