"""Page that compares the consumers of a channel."""

from __future__ import annotations

import time
from typing import Any, Final

from flask import Blueprint, render_template

from pyqd.admin.access.roles import UserRole
from pyqd.admin.pages.forms import blueprint
from pyqd.admin.pages.tables import PageColumn, table_of
from pyqd.admin.site import Site
from pyqd.admin.stats import topology_order
from pyqd.client.compared_consumers import Looks

CLIENT: Final = PageColumn("client", "Client", lambda row: (row["hostname"], row["remote_address"]))
NUMBERS: Final = (
    PageColumn("user_agent", "User agent", lambda row: row["user_agent"]),
    PageColumn("attributes", "Attributes"),
    PageColumn("in_flight", "In flight", lambda row: row["in_flight_count"], is_number=True),
    PageColumn("ready", "RDY", lambda row: row["ready_count"], is_number=True),
    PageColumn("finished", "Finished", lambda row: row["finish_count"], is_number=True),
    PageColumn("requeued", "Requeued", lambda row: row["requeue_count"], is_number=True),
    PageColumn("messages", "Messages", lambda row: row["message_count"], is_number=True),
    PageColumn("connected", "Connected", lambda row: row["connected"], is_number=True),
)
# Of tables of clients, with the attributes that nsqadmin shows: of one channel on all brokers.
CLIENT_COLUMNS: Final = (CLIENT, PageColumn("node", "Node", topology_order), *NUMBERS)
# Of one broker; rows have a topic and a channel too.
CLIENT_COLUMNS_OF_NODE: Final = (
    CLIENT,
    PageColumn("channel", "Channel", lambda row: (row["topic"], row["channel"])),
    *NUMBERS,
)
COLUMNS = (
    PageColumn("client", "Client", lambda row: (row.client["hostname"], row.client["remote_address"])),
    PageColumn("node", "Node", lambda row: row.client["node"]),
    PageColumn("marks", "Differs", lambda row: len(row.marks), is_number=False),
    PageColumn("rate", "Finished /s", lambda row: row.rate, is_number=True),
    PageColumn("share", "Share", lambda row: row.share, is_number=True),
    PageColumn("in_flight", "In flight", lambda row: row.client["in_flight_count"], is_number=True),
    PageColumn("ready", "RDY", lambda row: row.client["ready_count"], is_number=True),
    PageColumn("took", "Time per message", lambda row: row.took_s or 0.0, is_number=True),
    PageColumn("finished", "Finished", lambda row: row.client["finish_count"], is_number=True),
    PageColumn("requeued", "Requeued", lambda row: row.requeued_share, is_number=True),
    PageColumn("timed_out", "Timed out", lambda row: row.timed_out_share, is_number=True),
    PageColumn("connected", "Connected", lambda row: row.client["connected"], is_number=True),
)


def consumers(site: Site) -> Blueprint:
    looks = Looks()

    def show(topic: str, channel: str) -> str | tuple[str, int]:
        site.require(UserRole.VIEW, topic)
        stats = site.cluster.stats_of(topic, channel, clients=True)
        found = stats.value.channel(channel)
        if found is None:
            return render_template("missing.html", topic=topic, channel=channel), 404
        rows = looks.compare((topic, channel), found.clients, time.monotonic())
        return render_template(
            "consumers.html",
            topic=topic,
            channel=channel,
            depth=found.sums["depth"],
            table=table_of(rows, COLUMNS, text_of=lambda row: client_text(row.client), sort="rate"),
            failures=stats.failures,
        )

    return blueprint("consumers", {"/topics/<topic>/<channel>/consumers": show})


def client_text(client: Any) -> str:
    """Return the text of a client that a search looks at."""
    place = f"{client['topic']}/{client['channel']} " if "channel" in client else ""
    return f"{place}{client['hostname']} {client['client_id']} {client['remote_address']} {client['user_agent']}"
