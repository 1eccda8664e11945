"""Columns of tables of clients, with the attributes that nsqadmin shows."""

from __future__ import annotations

from typing import Any, Final

from pyqd.admin.pages.tables import Column
from pyqd.admin.stats import topology_order

CLIENT: Final = Column("client", "Client", lambda row: (row["hostname"], row["remote_address"]))
NUMBERS: Final = (
    Column("user_agent", "User agent", lambda row: row["user_agent"]),
    Column("attributes", "Attributes"),
    Column("in_flight", "In flight", lambda row: row["in_flight_count"], is_number=True),
    Column("ready", "RDY", lambda row: row["ready_count"], is_number=True),
    Column("finished", "Finished", lambda row: row["finish_count"], is_number=True),
    Column("requeued", "Requeued", lambda row: row["requeue_count"], is_number=True),
    Column("messages", "Messages", lambda row: row["message_count"], is_number=True),
    Column("connected", "Connected", lambda row: row["connected"], is_number=True),
)
# Of one channel on all brokers.
COLUMNS: Final = (CLIENT, Column("node", "Node", topology_order), *NUMBERS)
# Of one broker; rows have a topic and a channel too.
COLUMNS_OF_NODE: Final = (CLIENT, Column("channel", "Channel", lambda row: (row["topic"], row["channel"])), *NUMBERS)


def text_of(client: Any) -> str:
    """Return the text of a client that a search looks at."""
    place = f"{client['topic']}/{client['channel']} " if "channel" in client else ""
    return f"{place}{client['hostname']} {client['client_id']} {client['remote_address']} {client['user_agent']}"
