"""Commands that read counters: topics, channels, nodes, watch."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import click

from pyqd.client.errors import ClientError
from pyqd.primitives.durations import SECOND_NS, format_duration
from pyqd.tools.ctl import views
from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.counters import Reading, Row, channel_rows, rates, read_stats, topic_rows
from pyqd.tools.ctl.exits import NO_ANSWER, OK, UnsupportedError, code_of
from pyqd.tools.ctl.frame import command, duration
from pyqd.tools.ctl.nodes import Broker
from pyqd.tools.ctl.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

STATS: Final = "GET /stats?format=json&include_clients=false&include_mem=false at each broker."
NODES: Final = "With lookup daemons, first GET /nodes at each of them."
TOPIC_SORTS: Final = ("name", "depth", "messages")
CHANNEL_SORTS: Final = ("name", "depth", "in-flight", "deferred", "clients", "dead-letters")
INTERVAL_NS_MIN: Final = SECOND_NS // 10
SORT_KEYS: Final = {
    "depth": "depth",
    "messages": "message_count",
    "in-flight": "in_flight_count",
    "deferred": "deferred_count",
    "clients": "client_count",
}


def is_literal(pattern: str) -> bool:
    """Return whether a pattern stands for one name only, which the broker can select."""
    return not any(character in pattern for character in "*?[")


def sorted_rows(rows: list[Row], sort: str) -> list[Row]:
    """Return rows with the greatest values first, or by name."""
    if sort == "name":
        return rows
    if sort == "dead-letters":
        return sorted(rows, key=lambda row: -((row["limits"] or {}).get("dead_letter_count", 0)))
    return sorted(rows, key=lambda row: -row[SORT_KEYS[sort]])


@command(STATS, NODES)
@click.argument("pattern", default="*", shell_complete=complete_topics)
@click.option("--by-node", is_flag=True, help="a line for each topic and broker")
@click.option("--sort", type=click.Choice(TOPIC_SORTS), default="name", show_default=True)
@click.pass_obj
def topics(session: Session, pattern: str, by_node: bool, sort: str) -> None:
    """List topics with their counters, summed over all brokers.

    PATTERN selects topics by name, as a shell does: 'orders*'.
    """
    name = pattern if is_literal(pattern) else None
    found = session.ask(session.brokers(), lambda broker: read_stats(broker, name))
    rows = sorted_rows(topic_rows([answer.value for answer in found], pattern, by_node=by_node), sort)
    session.output.show({"topics": rows}, lambda: views.topics(rows, by_node))


@command(STATS, NODES)
@click.argument("topic_pattern", default="*", shell_complete=complete_topics)
@click.argument("channel_pattern", default="*", shell_complete=complete_channels)
@click.option("--by-node", is_flag=True, help="a line for each channel and broker")
@click.option("--sort", type=click.Choice(CHANNEL_SORTS), default="name", show_default=True)
@click.pass_obj
def channels(session: Session, topic_pattern: str, channel_pattern: str, by_node: bool, sort: str) -> None:
    """List channels with their counters and limits, summed over all brokers.

    The patterns select topics and channels by name, as a shell does: 'orders*'.
    """
    name = topic_pattern if is_literal(topic_pattern) else None
    found = session.ask(session.brokers(), lambda broker: read_stats(broker, name))
    stats = [answer.value for answer in found]
    rows = sorted_rows(channel_rows(stats, topic_pattern, channel_pattern, by_node=by_node), sort)
    session.output.show({"channels": rows}, lambda: views.channels(rows, by_node))


@command(
    "GET /info, GET /stats?format=json&include_clients=false&include_mem=false and GET /drain at each broker.",
    "With lookup daemons, GET /nodes at each of them, before.",
)
@click.pass_obj
def nodes(session: Session) -> int:
    """List brokers with their state and counters."""
    brokers = session.brokers()
    found = ask(brokers, node_row)
    errors = {failure.address: failure.error for failure in found.failures}
    by_address = {answer.node.address: answer.value for answer in found.answers}
    rows = [by_address.get(broker.address) or lost_row(broker, errors[broker.address]) for broker in brokers]
    session.output.show({"nodes": rows}, lambda: views.nodes(rows))
    return code_of(found.failures[0].error) if found.failures else OK


def node_row(broker: Broker) -> Row:
    """Return facts and sums of a broker. Raises: ClientError."""
    info = broker.get("/info")
    stats = read_stats(broker)
    counted = [channel for topic in stats.topics for channel in topic["channels"]]
    drain = drain_of(broker)
    health = str(stats.head.get("health", ""))
    daemons = stats.head.get("lookup_daemons")
    state = "draining" if drain and drain["draining"] else "ok" if health == "OK" else health
    return {
        "node": broker.address,
        "state": state,
        "error": None,
        "kind": "nsqd" if drain is None else "pyqd",
        "nsq_version": info.get("version"),
        "hostname": info.get("hostname"),
        "broadcast_address": info.get("broadcast_address"),
        "tcp_port": info.get("tcp_port"),
        "http_port": info.get("http_port"),
        "start_time": info.get("start_time"),
        "topic_count": len(stats.topics),
        "channel_count": len(counted),
        "client_count": sum(channel["client_count"] for channel in counted),
        "depth": sum(item["depth"] for item in (*stats.topics, *counted)),
        "in_flight_count": sum(channel["in_flight_count"] for channel in counted),
        "deferred_count": sum(channel["deferred_count"] for channel in counted),
        "message_count": sum(topic["message_count"] for topic in stats.topics),
        "lookup_daemons": daemons,
    }


def lost_row(broker: Broker, error: ClientError) -> Row:
    """Return the row of a broker that has not answered."""
    state = "no answer" if code_of(error) == NO_ANSWER else "failed"
    return {"node": broker.address, "state": state, "error": str(error)}


def drain_of(broker: Broker) -> dict[str, Any] | None:
    """Return the progress of a drain; None for nsqd, which has none. Raises: ClientError."""
    try:
        return broker.get("/drain")
    except UnsupportedError:
        return None


@command("Every interval: " + STATS, NODES)
@click.argument("topic_pattern", default="*", shell_complete=complete_topics)
@click.argument("channel_pattern", default="*", shell_complete=complete_channels)
@click.option("--interval", "interval_ns", type=duration, default="2s", show_default=True, metavar="DURATION")
@click.option("-n", "--count", type=click.IntRange(min=1), help="end after so many readings with rates")
@click.option("--sort", type=click.Choice(CHANNEL_SORTS[:-1]), default="name", show_default=True)
@click.pass_obj
def watch(
    session: Session, topic_pattern: str, channel_pattern: str, interval_ns: int, count: int | None, sort: str
) -> None:
    """Show depths and rates of topics and channels, until Ctrl-C.

    The rates are per second, between two readings. "Done" counts finished messages, and those dropped by emptying.
    As JSON, each reading is an object on a line of its own, the first one without rates.
    """
    interval_s = max(interval_ns, INTERVAL_NS_MIN) / SECOND_NS
    brokers = session.brokers()
    name = topic_pattern if is_literal(topic_pattern) else None
    shown = readings(session, brokers, name, interval_s, count)
    lines = (
        {**reading, "rows": sorted_rows(watched(reading["rows"], topic_pattern, channel_pattern), sort)}
        for reading in shown
    )
    with contextlib.suppress(KeyboardInterrupt):
        if session.output.is_json:
            for line in lines:
                session.output.show_line(line)
        else:
            views.live(session.output.console(), lines, f"every {format_duration(round(interval_s * SECOND_NS))}")


def readings(
    session: Session, brokers: list[Broker], topic: str | None, interval_s: float, count: int | None
) -> Iterator[dict[str, Any]]:
    """Yield readings with rates, at an interval. Raises: ClientError if no broker answers the first time."""
    before: Reading | None = None
    # The search for the brokers is not repeated: those that it has missed are missing from each reading.
    missed = [str(failure.error) for failure in session.failures]
    done = 0
    while count is None or done <= count:
        began_s = time.monotonic()
        found = ask(brokers, lambda broker: read_stats(broker, topic))
        if before is None:
            session.noted(found)
            session.failures.clear()
        now = Reading(began_s, [answer.value for answer in found.answers])
        yield {
            "time_ns": time.time_ns(),
            "rows": watch_rows(before, now),
            "errors": missed + [str(failure.error) for failure in found.failures],
        }
        before = now
        done += 1
        if count is None or done <= count:
            time.sleep(max(0.0, began_s + interval_s - time.monotonic()))


def watch_rows(before: Reading | None, now: Reading) -> list[Row]:
    """Return a row for each channel, and for each topic that has none, with rates since the last reading."""
    grown = rates(before, now)
    rows = channel_rows(now.stats)
    with_channels = {row["topic"] for row in rows}
    rows += [{**row, "channel": None} for row in topic_rows(now.stats) if row["topic"] not in with_channels]
    for row in rows:
        found = grown.get((row["topic"], row["channel"]))
        for key, value in zip(("in", "done", "requeued", "timed_out"), found or (None,) * 4, strict=True):
            row[f"{key}_per_s"] = value
    return sorted(rows, key=lambda row: (row["topic"], row["channel"] or ""))


def watched(rows: list[Row], topic_pattern: str, channel_pattern: str) -> list[Row]:
    """Return the rows whose names match."""
    from fnmatch import fnmatchcase

    return [
        row
        for row in rows
        if fnmatchcase(row["topic"], topic_pattern) and fnmatchcase(row["channel"] or "", channel_pattern)
    ]
