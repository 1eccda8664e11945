"""Command that compares the consumers of a channel, as the web admin does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from pyqd.client.compared_consumers import ComparedConsumer, Looks
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.quantities import format_span
from pyqd.tools.ctl.administration import check_names, not_found
from pyqd.tools.ctl.cluster import Answer, ask
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.counters import NodeStats, read_stats
from pyqd.tools.ctl.frame import command, duration
from pyqd.tools.ctl.listing import NODES
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import NODE, Fitted, Row, TableColumn, number, per_second

MARKS_STYLE: Final = "yellow"


@command("Twice: GET /stats?format=json&topic=&channel=&include_mem=false at each broker.", NODES)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("channel", shell_complete=complete_channels)
@click.option("--interval", "interval_ns", type=duration, default="2s", show_default=True, metavar="DURATION")
@click.pass_obj
def consumers(session: CtlSession, topic: str, channel: str, interval_ns: int) -> None:
    """Compare the consumers of a channel: rates, time per message, and marks of those that differ.

    Rates are per second, between two readings of the counters; an interval below 1.5s gives averages since each
    consumer has connected. The time per message is what a message spends with its client. Marks: slow, requeues,
    times_out and not_ready.
    """
    check_names(topic, channel)
    brokers, looks = session.brokers(), Looks()

    def read(broker: AskedBroker) -> NodeStats:
        return read_stats(broker, topic, channel, clients=True)

    first = clients_of(session.ask(brokers, read), topic, channel)
    looks.compare((topic, channel), first, time.monotonic())
    time.sleep(interval_ns / SECOND_NS)
    # The first reading has noted the brokers that fail.
    second = clients_of(ask(brokers, read).answers, topic, channel)
    found = looks.compare((topic, channel), second, time.monotonic())
    rows = [consumer_row(each) for each in sorted(found, key=lambda each: -each.rate)]
    session.output.show({"consumers": rows}, lambda: consumers_table(rows))


def clients_of(answers: Sequence[Answer[AskedBroker, NodeStats]], topic: str, channel: str) -> list[dict[str, Any]]:
    """Return the clients of a channel at all brokers. Raises: NotFoundError if no broker has the channel."""
    read = [each.value for each in answers]
    channels = [(stats.node, found) for stats in read for entry in stats.topics for found in entry["channels"]]
    if not channels:
        raise not_found(topic, channel)
    now_s = time.time()
    return [
        {**client, "node": node, "connected": max(0.0, now_s - client["connect_ts"]) * SECOND_NS}
        for node, found in channels
        for client in found["clients"] or ()
    ]


def consumer_row(found: ComparedConsumer) -> Row:
    client = found.client
    return {
        "node": client["node"],
        **{name: client.get(name) for name in ("client_id", "hostname", "remote_address", "user_agent")},
        "marks": found.marks,
        "finished_per_s": round(found.rate, 3),
        "share": round(found.share, 4),
        "seconds_per_message": found.took_s,
        "in_flight_count": client["in_flight_count"],
        "ready_count": client["ready_count"],
        "message_count": client["message_count"],
        "finish_count": client["finish_count"],
        "requeue_count": client["requeue_count"],
        "timeout_count": found.timed_out_count,
        "connected_s": round(client["connected"] / SECOND_NS),
    }


def consumers_table(rows: Sequence[Row]) -> Fitted:
    columns = (
        TableColumn("Client", "client_id", style="bold"),
        TableColumn("Address", "remote_address", rank=2),
        NODE._replace(style="", rank=8),
        TableColumn("Differs", "marks", marks_text, style=MARKS_STYLE),
        per_second("Finished/s", "finished_per_s"),
        TableColumn("Share", "share", "{:.0%}".format, is_number=True, rank=5),
        TableColumn("Per message", "seconds_per_message", span_text, is_number=True),
        number("In flight", "in_flight_count", 1),
        number("RDY", "ready_count", 3),
        number("Requeued", "requeue_count", 4),
        number("Timed out", "timeout_count", 4),
        number("Finished", "finish_count", 6),
        TableColumn("Connected", "connected_s", span_text, is_number=True, rank=7),
        TableColumn("User agent", "user_agent", rank=9),
    )
    return Fitted(columns, rows)


def marks_text(marks: Sequence[str]) -> str:
    return ", ".join(marks).replace("_", " ")


def span_text(seconds: float) -> str:
    return format_span(seconds * SECOND_NS)
