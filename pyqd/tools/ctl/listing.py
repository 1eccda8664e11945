"""Commands that read counters: topics, channels, nodes, watch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from pyqd.client.errors import ClientError
from pyqd.primitives.nsq_compat import PYQD_VERSION
from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.counters import (
    channel_rows,
    channels_table,
    read_stats,
    topic_rows,
    topics_table,
)
from pyqd.tools.ctl.exits import NO_ANSWER, OK, UnsupportedError, code_of
from pyqd.tools.ctl.frame import command
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import NODE, STATE, Fitted, Row, TableColumn, number

STATS: Final = "GET /stats?format=json&include_clients=false&include_mem=false at each broker."
NODES: Final = "With lookup daemons, first GET /nodes at each of them."
TOPIC_SORTS: Final = ("name", "depth", "messages")
CHANNEL_SORTS: Final = ("name", "depth", "in-flight", "deferred", "clients", "dead-letters")
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
def topics(session: CtlSession, pattern: str, by_node: bool, sort: str) -> None:
    """List topics with their counters, summed over all brokers.

    PATTERN selects topics by name, as a shell does: 'orders*'.
    """
    name = pattern if is_literal(pattern) else None
    found = session.ask(session.brokers(), lambda broker: read_stats(broker, name))
    rows = sorted_rows(topic_rows([answer.value for answer in found], pattern, by_node=by_node), sort)
    session.output.show({"topics": rows}, lambda: topics_table(rows, by_node))


@command(STATS, NODES)
@click.argument("topic_pattern", default="*", shell_complete=complete_topics)
@click.argument("channel_pattern", default="*", shell_complete=complete_channels)
@click.option("--by-node", is_flag=True, help="a line for each channel and broker")
@click.option("--sort", type=click.Choice(CHANNEL_SORTS), default="name", show_default=True)
@click.pass_obj
def channels(session: CtlSession, topic_pattern: str, channel_pattern: str, by_node: bool, sort: str) -> None:
    """List channels with their counters and limits, summed over all brokers.

    The patterns select topics and channels by name, as a shell does: 'orders*'.
    """
    name = topic_pattern if is_literal(topic_pattern) else None
    found = session.ask(session.brokers(), lambda broker: read_stats(broker, name))
    stats = [answer.value for answer in found]
    rows = sorted_rows(channel_rows(stats, topic_pattern, channel_pattern, by_node=by_node), sort)
    session.output.show({"channels": rows}, lambda: channels_table(rows, by_node))


@command(
    "GET /info, GET /stats?format=json&include_clients=false&include_mem=false and GET /drain at each broker.",
    "With lookup daemons, GET /nodes at each of them, before.",
)
@click.pass_obj
def nodes(session: CtlSession) -> int:
    """List brokers with their state and counters."""
    brokers = session.brokers()
    found = ask(brokers, node_row)
    errors = {failure.address: failure.error for failure in found.failures}
    by_address = {answer.node.address: answer.value for answer in found.answers}
    rows = [by_address.get(broker.address) or lost_row(broker, errors[broker.address]) for broker in brokers]
    session.output.show({"nodes": rows}, lambda: nodes_table(rows))
    return code_of(found.failures[0].error) if found.failures else OK


def node_row(broker: AskedBroker) -> Row:
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
        PYQD_VERSION: info.get(PYQD_VERSION),
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


def lost_row(broker: AskedBroker, error: ClientError) -> Row:
    state = "no answer" if code_of(error) == NO_ANSWER else "failed"
    return {"node": broker.address, "state": state, "error": str(error)}


def drain_of(broker: AskedBroker) -> dict[str, Any] | None:
    """Return the progress of a drain; None for nsqd, which has none. Raises: ClientError."""
    try:
        return broker.get("/drain")
    except UnsupportedError:
        return None


def nodes_table(rows: Sequence[Row], now_s: float | None = None) -> Fitted:
    now = time.time() if now_s is None else now_s
    columns = (
        NODE,
        STATE,
        TableColumn("Kind", "kind", rank=3),
        TableColumn("Version", PYQD_VERSION, rank=10),
        TableColumn("NSQ", "nsq_version", rank=9),
        TableColumn("Host", "hostname", rank=8),
        TableColumn("Up", "up", is_number=True, rank=5),
        number("Topics", "topic_count", 6),
        number("Channels", "channel_count", 7),
        number("Clients", "client_count", 2),
        number("Depth", "depth"),
        number("In flight", "in_flight_count", 1),
        number("Deferred", "deferred_count", 4),
        TableColumn("Lookup", "lookup", rank=3),
    )
    return Fitted(columns, [{**row, **node_extras(row, now)} for row in rows])


def node_extras(row: Row, now_s: float) -> Row:
    daemons = row.get("lookup_daemons")
    start_s = row.get("start_time")
    return {
        "up": None if start_s is None else span(now_s - start_s),
        "lookup": daemons and f"{sum(daemon['connected'] for daemon in daemons)}/{len(daemons)}",
    }


def span(seconds: float) -> str:
    """Return a time span with its two greatest units, such as 3d 4h."""
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, unit_s in units:
        value, left = divmod(left, unit_s)
        if value or (parts and len(parts) < 2) or (unit == "s" and not parts):
            parts.append(f"{value}{unit}")
        if len(parts) == 2:
            break
    return " ".join(parts)
