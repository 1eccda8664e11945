"""Page that compares the consumers of a channel."""

from __future__ import annotations

import time

from flask import Blueprint, render_template

from pyqd.admin.access.roles import Role
from pyqd.admin.consumers import Consumer, Looks
from pyqd.admin.pages import clients
from pyqd.admin.pages.browser import refused
from pyqd.admin.pages.tables import Column, table_of
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError

COLUMNS = (
    Column("client", "Client", lambda row: (row.client["hostname"], row.client["remote_address"])),
    Column("node", "Node", lambda row: row.client["node"]),
    Column("marks", "Differs", lambda row: len(row.marks), is_number=False),
    Column("rate", "Finished /s", lambda row: row.rate, is_number=True),
    Column("share", "Share", lambda row: row.share, is_number=True),
    Column("in_flight", "In flight", lambda row: row.client["in_flight_count"], is_number=True),
    Column("ready", "RDY", lambda row: row.client["ready_count"], is_number=True),
    Column("took", "Time per message", lambda row: row.took_s or 0.0, is_number=True),
    Column("finished", "Finished", lambda row: row.client["finish_count"], is_number=True),
    Column("requeued", "Requeued", lambda row: row.requeued_share, is_number=True),
    Column("timed_out", "Timed out", lambda row: row.timed_out_share, is_number=True),
    Column("connected", "Connected", lambda row: row.client["connected"], is_number=True),
)


def consumers(site: Site) -> Blueprint:
    """Return the route."""
    routes = Blueprint("consumers", __name__)
    looks = Looks()

    def show(topic: str, channel: str) -> str | tuple[str, int]:
        site.require(Role.VIEW, topic)
        producers = site.cluster.producers_of(topic)
        stats = site.cluster.stats(producers.value, topic, channel, clients=True)
        found = next((each for each in stats.value.channels() if each.channel == channel), None)
        if found is None:
            return render_template("missing.html", topic=topic, channel=channel), 404
        rows = looks.compare((topic, channel), found.clients, time.monotonic())
        return render_template(
            "consumers.html",
            topic=topic,
            channel=channel,
            depth=found.sums["depth"],
            table=table_of(rows, COLUMNS, text_of=consumer_text, sort="rate"),
            failures=producers.failures + stats.failures,
        )

    routes.add_url_rule("/topics/<topic>/<channel>/consumers", "show", show)
    routes.register_error_handler(UpstreamError, refused)
    return routes


def consumer_text(consumer: Consumer) -> str:
    return clients.text_of(consumer.client)
