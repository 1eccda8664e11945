"""/stats as a page of text for people. Source: docs/nsq/http-api.md, "Text format"."""

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyqd.broker.stats import StatsDict
from pyqd.config.options import PROGRAM
from pyqd.config.settings import version_line
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, format_duration

LINES_PER_PIECE = 64

_UNITS = ((SECOND_NS, "s"), (MILLISECOND_NS, "ms"), (MICROSECOND_NS, "us"))


def stats_text(
    head: StatsDict,
    uptime_ns: int,
    topics: Iterable[StatsDict],
    memory: dict[str, int] | None,
    producers: Sequence[StatsDict],
    pause: Callable[[], None] = yield_to_loop,
) -> Iterator[str]:
    """Yield the page in pieces; the arguments are parts of the JSON form.

    pause: yields to the event loop between two pieces of many clients.
    """
    started = datetime.datetime.fromtimestamp(head["start_time"]).astimezone()
    timestamp = started.isoformat(timespec="seconds").replace("+00:00", "Z")
    lines = [
        f"{version_line(PROGRAM)}\n",
        f"start_time {timestamp}\n",
        f"uptime {format_duration(uptime_ns)}\n",
        f"\nHealth: {head['health']}\n",
    ]
    if lookup_daemons := head.get("lookup_daemons"):
        lines.append("\nLookup daemons:\n")
        lines += [f"   {lookup_daemon_text(peer)}\n" for peer in lookup_daemons]
    if memory is not None:
        lines.append("\nMemory:\n")
        lines += [f"   {name:<25}\t{value}\n" for name, value in memory.items()]
    lines.append("\nTopics:")
    yield "".join(lines)
    now_s = int(time.time())
    topic_count = 0
    for topic in topics:
        topic_count += 1
        yield from in_pieces(topic_text(topic, now_s), pause)
    if not topic_count:
        yield " None\n"
    yield "\nProducers:\n" if producers else "\nProducers: None\n"
    yield from in_pieces((f"   {client_text(client, now_s)}\n" for client in producers), pause)


def in_pieces(lines: Iterable[str], pause: Callable[[], None]) -> Iterator[str]:
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if len(piece) == LINES_PER_PIECE:
            yield "".join(piece)
            piece.clear()
            pause()
    if piece:
        yield "".join(piece)


def topic_text(topic: StatsDict, now_s: int) -> Iterable[str]:
    prefix = "*P " if topic["paused"] else "   "
    yield (
        f"\n{prefix}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: {latency_text(topic)}\n"
    )
    for channel in topic["channels"]:
        prefix = "   *P " if channel["paused"] else "      "
        yield (
            f"{prefix}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
            f"e2e%: {latency_text(channel)}\n"
        )
        for client in channel["clients"] or ():
            yield f"        {client_text(client, now_s)}\n"


def client_text(client: StatsDict, now_s: int) -> str:
    """Return a client in one line: its published messages if it published, else its consumption."""
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    name = f"[{client['version']} {name:<21}]"
    connected = format_duration(max(0, now_s - client["connect_ts"]) * SECOND_NS)
    counts = client.get("pub_counts")
    if counts:
        total = sum(count["count"] for count in counts)
        topics = ",".join(f"{count['topic']}={count['count']}" for count in counts)
        return f"{name} msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"{name} state: {client['state']} inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4} "
        f"fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {connected}"
    )


def lookup_daemon_text(peer: StatsDict) -> str:
    state = "registered" if peer["connected"] else "not registered"
    counts = f"reconnects: {peer['reconnect_count']:<4} registrations: {peer['registration_count']:<6}"
    error = f" last error: {peer['last_error']}" if peer["last_error"] else ""
    return f"[{peer['address']:<21}] {state:<14} {counts}{error}"


def latency_text(stats: StatsDict) -> str:
    percentiles = stats["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(short_duration(entry["value"]) for entry in percentiles)


def short_duration(duration_ns: float) -> str:
    """Return a duration with one decimal, in the largest unit of which it has more than one."""
    for unit_ns, unit in _UNITS:
        if duration_ns > unit_ns:
            return f"{duration_ns / unit_ns:.1f}{unit}"
    return f"{duration_ns:.1f}ns"
