"""GET /ping, /info, /stats, /metrics, /durability and /openapi.json.

Source: docs/nsq/http-api.md, "/ping and /info", "GET /stats"; docs/http.md.
"""

import functools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyqd import __version__
from pyqd.api.rights import OPEN, STATUS
from pyqd.api.stats_text import stats_text
from pyqd.broker.broker import Broker
from pyqd.broker.stats import (
    STEPS_PER_PAUSE,
    Selection,
    StatsDict,
    Steps,
    head_stats,
    shown_producers,
    topic_stats,
    topics_shown,
)
from pyqd.broker.topic import Topic
from pyqd.hot.diskqueue.log import Log
from pyqd.http.messages import JSON, PROMETHEUS, TEXT, Request, Response, Route, json_response, text_response, to_json
from pyqd.http.query import UrlQuery
from pyqd.metrics.identity import Identity
from pyqd.metrics.prometheus import Metrics
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import MILLISECOND_NS, SECOND_NS
from pyqd.primitives.errors import StorageError
from pyqd.primitives.memory import memory_stats
from pyqd.primitives.nsq_compat import NSQ_VERSION, PYQD_VERSION

DAMAGE_HEADER = "X-Pyqd-Damage"
TOPICS_PER_SLICE = 256
# Damaged and refusing topics, and files set aside, beyond this number are counted only.
TOPICS_NAMED_MAX = 100


class StatusRoutes:
    """Routes that report the state of the daemon, and how safe its data is."""

    def __init__(self, broker: Broker, identity: Identity, metrics: Metrics) -> None:
        self.broker = broker
        self.identity = identity
        self.metrics = metrics

    def routes(self) -> list[Route]:
        # Requests that come every few seconds, by Prometheus and the web admin, are not logged.
        return [
            Route("GET", "/ping", self.ping, common_headers=False, right=OPEN, any_site=True),
            Route("GET", "/info", self.info, right=STATUS),
            Route("GET", "/stats", self.stats, right=STATUS),
            Route("GET", "/metrics", self.scrape, common_headers=False, logged=False, right=STATUS),
            Route("GET", "/durability", self.durability, logged=False, right=STATUS),
            Route("GET", "/openapi.json", lambda _request: Response(200, openapi(), JSON), right=STATUS),
        ]

    def ping(self, _request: Request) -> Response:
        """Return whether the last write succeeded. A header counts the damage found, which is no failure."""
        health = self.broker.health()
        response = text_response(health, 200 if health == "OK" else 500)
        damage_count = self.broker.damage.found_count
        if damage_count:
            response.headers = ((DAMAGE_HEADER, str(damage_count)),)
        return response

    def info(self, _request: Request) -> Response:
        options = self.broker.options
        identity = self.identity
        return json_response(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": identity.hostname,
                "http_port": identity.http_port,
                "tcp_port": identity.tcp_port,
                "start_time": identity.start_ns // SECOND_NS,
                "max_heartbeat_interval": options.max_heartbeat_interval_ns,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                PYQD_VERSION: __version__,
            }
        )

    def stats(self, request: Request) -> Response:
        """Return the counters as JSON, or as text for people. Switches: yes."""
        query = request.query()
        selection = selection_of(query)
        selected = topics_shown(self.broker, selection)
        topics = None if selected is None else stats_in_slices(selected, selection)
        head = head_stats(self.broker, self.identity.start_ns // SECOND_NS)
        if lookup_daemons := list(self.identity.lookup_daemons()):
            # Without them the keys are nsqd's alone.
            head["lookup_daemons"] = lookup_daemons
        if (trace := self.broker.tracing.stats()) is not None:
            head["trace"] = trace
        memory = memory_stats() if selection.include_mem else None
        producers = None
        if selection.include_clients and topics is not None:
            producers = shown_producers(self.identity.producers(), selection, Steps(yield_to_loop))
        if query.get("format") == "json":
            return Response(200, content_type=JSON, pieces=stats_json(head, topics, memory, producers))
        uptime_ns = time.monotonic_ns() - self.identity.begun_ns
        page = stats_text(head, uptime_ns, topics or [], memory, producers or [])
        return Response(200, content_type=TEXT, pieces=[text.encode(errors="backslashreplace") for text in page])

    def scrape(self, _request: Request) -> Response:
        """Return all metrics as Prometheus' text. Switches: yes."""
        return Response(200, content_type=PROMETHEUS, pieces=self.metrics.pieces())

    def durability(self, _request: Request) -> Response:
        """Return the state of syncs, disk and damage. Switches: yes."""
        broker, options = self.broker, self.broker.options
        message_count, byte_count, damaged = 0, 0, []
        has_damage = broker.damage.found_count > 0
        for index, topic in enumerate(list(broker.topics.values()), 1):
            log = topic.log
            if log.directory is not None and log.synced_end < log.end:
                message_count += log.end - log.synced_end
                byte_count += unsynced_bytes(log)
            if has_damage and log.damage.found_count:
                damaged.append({"topic": topic.name, **log.damage.as_dict()})
            if index % TOPICS_PER_SLICE == 0:
                yield_to_loop()
        return json_response(
            {
                "health": broker.health(),
                "sync_every": options.sync_every,
                "sync_timeout_ms": options.sync_timeout_ns // MILLISECOND_NS,
                "unsynced_messages": message_count,
                "unsynced_bytes": byte_count,
                "last_sync": broker.synced_at_ns or None,
                "sync_failures": broker.sync_failure_count,
                "write_failures": broker.write_failure_count,
                "last_stop": broker.last_stop,
                "damage": broker.damage.as_dict(),
                "damaged_topics": damaged[:TOPICS_NAMED_MAX],
                "set_aside": [each._asdict() for each in broker.set_aside[:TOPICS_NAMED_MAX]],
                "refusing_topics": list(broker.short_of_room)[:TOPICS_NAMED_MAX],
                "disk_free_bytes": self.free_bytes(),
                "disk_free_min_bytes": broker.reserve.floor_bytes,
            }
        )

    def free_bytes(self) -> int | None:
        try:
            return self.broker.files.free_bytes(self.broker.root)
        except StorageError:
            return None


@functools.cache
def openapi() -> bytes:
    """Return the description of all routes, which `make pages` writes."""
    return Path(__file__).parents[1].joinpath("openapi.json").read_bytes()


def stats_in_slices(topics: Iterable[Topic], selection: Selection) -> Iterator[StatsDict]:
    """Yield the statistics of each topic, taken when the topic is reached. Switches: yes.

    A caller that kept all of them would make the garbage collector walk over them again and again and hold the loop.
    """
    step = Steps(yield_to_loop)
    for topic in topics:
        if topic.exiting:
            continue
        stats = topic_stats(topic, selection, step)
        if stats is not None:
            yield stats
        step()


def selection_of(query: UrlQuery) -> Selection:
    return Selection(
        topic=query.get("topic") or "",
        channel=query.get("channel") or "",
        include_clients=query.flag("include_clients"),
        include_mem=query.flag("include_mem"),
    )


def stats_json(
    head: StatsDict,
    topics: Iterable[StatsDict] | None,
    memory: dict[str, int] | None,
    producers: list[StatsDict] | None,
) -> list[bytes]:
    """Return the JSON of all statistics in pieces. Switches: yes."""
    parts = [to_json(head)[:-1], b',"topics":']
    if topics is None:
        parts.append(b"null")
    else:
        parts.append(b"[")
        for topic in topics:
            parts += topic_json(topic)
            parts.append(b",")
        # JSON has no comma after the last topic.
        parts[-1] = b"]" if parts[-1] == b"," else b"[]"
    if memory is not None:
        parts += [b',"memory":', to_json(memory)]
    parts.append(b',"producers":')
    parts += list_json(producers) if producers else [b"null"]
    parts.append(b"}")
    return parts


def list_json(clients: list[StatsDict]) -> Iterator[bytes]:
    """Yield the JSON of a list of clients in slices. Switches: if it is long."""
    yield b"["
    for start in range(0, len(clients), STEPS_PER_PAUSE):
        if start:
            yield_to_loop()
            yield b","
        yield to_json(clients[start : start + STEPS_PER_PAUSE])[1:-1]
    yield b"]"


def topic_json(topic: StatsDict) -> Iterator[bytes]:
    """Yield the JSON of a topic in parts. Switches: if it has many channels or clients."""
    slices = list(channel_slices(topic["channels"]))
    if len(slices) <= 1 and not any(map(has_many_clients, topic["channels"])):
        yield to_json(topic)
        return
    before, after = to_json({**topic, "channels": []}).split(b'"channels":[]', 1)
    yield before + b'"channels":['
    for number, channels in enumerate(slices):
        if number:
            yield_to_loop()
            yield b","
        if has_many_clients(channels[0]):
            yield from channel_json(channels[0])
        else:
            yield to_json(channels)[1:-1]
    yield b"]" + after


def channel_json(channel: StatsDict) -> Iterator[bytes]:
    """Yield the JSON of a channel with many clients in parts. Switches: yes."""
    before, after = to_json({**channel, "clients": []}).split(b'"clients":[]', 1)
    yield before + b'"clients":'
    yield from list_json(channel["clients"])
    yield after


def channel_slices(channels: Iterable[StatsDict]) -> Iterator[list[StatsDict]]:
    """Yield the channels in slices that are short with their clients; one with many clients is a slice of its own."""
    piece: list[StatsDict] = []
    size = 0
    for channel in channels:
        cost = 1 + len(channel["clients"] or ())
        if piece and size + cost > STEPS_PER_PAUSE:
            yield piece
            piece, size = [], 0
        piece.append(channel)
        size += cost
    if piece:
        yield piece


def has_many_clients(channel: StatsDict) -> bool:
    return len(channel["clients"] or ()) >= STEPS_PER_PAUSE


def unsynced_bytes(log: Log) -> int:
    """Return the bytes that the next sync of a log writes; it writes whole pages."""
    ranges, _ = log.dirty_ranges()
    return sum(length for _, _, length in ranges)
