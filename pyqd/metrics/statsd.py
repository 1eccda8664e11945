"""Pusher of the counters to a statsd server over UDP, with nsqd's keys, types and packets.

Every --statsd-interval all lines are made and packed whole into datagrams of at most --statsd-udp-packet-size bytes.
The datagrams are spread evenly over the interval less a second, so that neither end sees a burst. A datagram that
cannot be sent is lost. A stop sends the remaining datagrams at once.

Counters are sent as their growth. pyqd's counters outlive the process, so the first push sends the growth since the
start. If a topic or channel was deleted and created again, its counters begin at 0 (nsqd sends a negative number).

Source: docs/nsq/broker-semantics.md, "statsd".
"""

import logging
import time
from collections.abc import Iterable, Iterator

import gevent
from gevent import socket
from gevent.event import Event

from pyqd.broker.broker import Broker
from pyqd.broker.replay import no_pause
from pyqd.broker.stats import Selection, StatsDict, Steps, topic_stats
from pyqd.config.options import Options
from pyqd.metrics.identity import Identity
from pyqd.net.greenlets import spawn
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.addresses import TcpAddress, check_host, split_address
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import reason_of
from pyqd.primitives.memory import memory_stats
from pyqd.primitives.names import is_ephemeral_str

TOPICS_PER_SLICE = 16
CONNECT_S = 1.0
# Part of an interval that is kept for making the lines.
UNSPREAD_S = 1.0
LAST_SENDS_S = 1.0

COUNTERS = ("message_count", "message_bytes", "requeue_count", "timeout_count", "gc_runs")
TOPIC_KEYS = ("message_count", "message_bytes", "depth", "backend_depth")
CHANNEL_KEYS = (
    "message_count",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "client_count",
)
# Keys of statsd that differ from those of the statistics.
RENAMED = {"client_count": "clients", "gc_total_runs": "gc_runs"}
LATENCY_KEY = "e2e_processing_latency_"

NOTHING_OF_CLIENTS = Selection(include_clients=False, include_mem=False)

Entry = tuple[str, int]

logger = logging.getLogger(__name__)


def full_prefix(options: Options, identity: Identity) -> str:
    """Return --statsd-prefix with the daemon's address in place of %s and a dot at its end."""
    if not options.statsd_prefix:
        return ""
    host = options.broadcast_address
    host = f"[{host}]" if ":" in host else host
    port = options.broadcast_http_port or max(identity.http_port, 0)
    prefix = options.statsd_prefix.replace("%s", f"{host}:{port}".replace(".", "_").replace(":", "_"))
    return prefix if prefix.endswith(".") else prefix + "."


def topic_entries(topic: StatsDict, exclude_ephemeral: bool) -> Iterator[Entry]:
    head = f"topic.{topic['topic_name']}."
    for key in TOPIC_KEYS:
        yield head + key, topic[key]
    yield from latency_entries(head, topic)
    for channel in topic["channels"]:
        name = channel["channel_name"]
        if exclude_ephemeral and is_ephemeral_str(name):
            continue
        channel_head = f"{head}channel.{name}."
        for key in CHANNEL_KEYS:
            yield channel_head + RENAMED.get(key, key), channel[key]
        yield from latency_entries(channel_head, channel)


def latency_entries(head: str, stats: StatsDict) -> Iterator[Entry]:
    for percentile in stats["e2e_processing_latency"]["percentiles"] or ():
        yield f"{head}{LATENCY_KEY}{percentile['quantile'] * 100:.0f}", percentile["value"]


def is_counter(key: str) -> bool:
    """Return whether statsd is sent a value's growth instead of the value."""
    return key.rpartition(".")[2] in COUNTERS


def packed(lines: Iterable[bytes], size_max: int) -> Iterator[bytes]:
    """Yield datagrams of whole lines. A line longer than a datagram is sent alone."""
    gathered: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > size_max and gathered:
            yield b"".join(gathered)
            gathered, size = [], 0
        gathered.append(line)
        size += len(line)
    if gathered:
        yield b"".join(gathered)


class StatsdPusher:
    """Periodic sender of the counters. identity: complete once the daemon listens."""

    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity
        self._sent: dict[str, int] = {}
        self._stopping = Event()
        self._interval_s = 0.0
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Start to send, the first time after one interval; do nothing without an address."""
        options = self._broker.options
        if options.statsd_address:
            found = dict(self._entries(pause=False))
            self._sent = {key: value for key, value in found.items() if is_counter(key)}
            self._interval_s = options.statsd_interval_ns / SECOND_NS
            self._greenlet = spawn(self._run)

    def stop(self) -> None:
        """Send the remaining lines of this interval at once, then stop. Switches: yes."""
        if self._greenlet is not None:
            self._stopping.set()
            self._greenlet.join(LAST_SENDS_S)
            self._greenlet.kill(block=False)
            self._greenlet = None
            logger.info("STATSD: closing")

    def _run(self) -> None:
        interval_s = self._interval_s
        next_s = time.monotonic() + interval_s
        while not self._stopping.wait(max(0.0, next_s - time.monotonic())):
            try:
                self.push(max(0.0, interval_s - UNSPREAD_S))
            except Exception:
                logger.exception("STATSD: internal error")
            # Missed intervals are skipped, as Go's ticker does.
            next_s = max(next_s + interval_s, time.monotonic())

    def push(self, spread_s: float) -> None:
        """Send all counters once, spread over this many seconds. Switches: yes."""
        options = self._broker.options
        try:
            connection = connected(options.statsd_address)
        except (OSError, ValueError) as error:
            logger.error("failed to create UDP socket to statsd(%s) - %s", options.statsd_address, reason_of(error))
            return
        with connection:
            logger.info("STATSD: pushing stats to %s", options.statsd_address)
            packets = list(packed(self._lines(), options.statsd_udp_packet_size))
            for packet in packets:
                try:
                    connection.send(packet)
                except OSError as error:
                    # The error belongs to an earlier packet: the server does not listen.
                    logger.debug("STATSD: %s", reason_of(error))
                self._stopping.wait(spread_s / len(packets))

    def _lines(self) -> Iterator[bytes]:
        prefix = full_prefix(self._broker.options, self._identity)
        sent = {}
        for key, value in self._entries(pause=True):
            kind = "g"
            if is_counter(key):
                kind = "c"
                sent[key] = value
                before = self._sent.get(key, 0)
                value -= before if before <= value else 0
            yield f"{prefix}{key}:{value}|{kind}\n".encode()
        self._sent = sent

    def _entries(self, pause: bool) -> Iterator[Entry]:
        """Yield all keys and values. pause: yield to the loop in between."""
        options = self._broker.options
        exclude = options.statsd_exclude_ephemeral
        step = Steps(yield_to_loop) if pause else no_pause
        for index, topic in enumerate(self._broker.topics_by_name(), 1):
            if not topic.exiting and not (exclude and is_ephemeral_str(topic.name)):
                stats = topic_stats(topic, NOTHING_OF_CLIENTS, step)
                assert stats is not None, "no channel was asked for"
                yield from topic_entries(stats, exclude)
            if pause and index % TOPICS_PER_SLICE == 0:
                yield_to_loop()
        if options.statsd_mem_stats:
            for key, value in memory_stats().items():
                yield f"mem.{RENAMED.get(key, key)}", value


def connected(address: str) -> socket.socket:
    """Return a UDP socket to an address. Raises: OSError, ValueError. Switches: yes."""
    target = split_address(address)
    if not isinstance(target, TcpAddress):
        raise ValueError(f"address {address}: missing port in address")
    with gevent.Timeout(CONNECT_S, TimeoutError("i/o timeout")):
        check_host(target.host)
        found = socket.getaddrinfo(target.host or "localhost", target.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, resolved = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.connect(resolved)
        except BaseException:
            connection.close()
            raise
        return connection
