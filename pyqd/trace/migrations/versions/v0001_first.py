"""First version: publications, deliveries, other events, gaps, and the views on them.

Each statement may be repeated: a kill within an upgrade leaves a part of the tables in MariaDB.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from pyqd.trace.column_types import BIG, BODY, UtcTime, ascii_text, free_text

revision = "0001"
down_revision = None

NAME = ascii_text(64)
TEXT = free_text(128)

VIEWS = {
    "publish_log": """
        SELECT r.message_id, r.topic, n.nsqd, r.client, r.size, r.body, r.published_at, r.due_at
        FROM trace_publications AS r JOIN trace_nodes AS n ON n.node_id = r.node_id""",
    "consume_log": """
        SELECT r.message_id, r.topic, r.channel, n.nsqd, r.client, r.attempt, r.sent_at, r.outcome, r.outcome_at
        FROM trace_deliveries AS r JOIN trace_nodes AS n ON n.node_id = r.node_id""",
    "event_log": """
        SELECT r.message_id, r.topic, r.channel, n.nsqd, r.event, r.happened_at, r.client, r.attempt, r.delay_ms,
            r.due_at, r.reason
        FROM trace_events AS r JOIN trace_nodes AS n ON n.node_id = r.node_id""",
    "bulk_event_log": """
        SELECT r.message_id, r.topic, r.channel, n.nsqd, r.event, r.happened_at, r.reason, r.message_count
        FROM trace_bulk_events AS r JOIN trace_nodes AS n ON n.node_id = r.node_id""",
    "gap_log": """
        SELECT n.nsqd, r.position, r.event_count, r.noticed_at, r.reason
        FROM trace_gaps AS r JOIN trace_nodes AS n ON n.node_id = r.node_id""",
}


def upgrade() -> None:
    """Make tables, indexes and views."""
    make_nodes()
    make_publications()
    make_deliveries()
    make_events()
    for name, query in VIEWS.items():
        op.execute(f"DROP VIEW IF EXISTS {name}")
        op.execute(f"CREATE VIEW {name} AS {query}")


def table(name: str, *columns: sa.Column[Any]) -> None:
    """Make a table."""
    # SQLite: rows lie in the tree of the key, which saves another tree.
    options: dict[str, Any] = {"sqlite_with_rowid": False, "mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
    op.create_table(name, *columns, if_not_exists=True, **options)


def index(name: str, of: str, *columns: str, where: str | None = None) -> None:
    """Make an index. where: of the rows that it has; MySQL has no such indexes, and does without this one."""
    bind = op.get_bind()
    if where is not None and bind.dialect.name not in ("sqlite", "postgresql"):
        return
    # MySQL has no IF NOT EXISTS for indexes.
    if name not in {found["name"] for found in sa.inspect(bind).get_indexes(of)}:
        condition = None if where is None else sa.text(where)
        op.create_index(name, of, list(columns), sqlite_where=condition, postgresql_where=condition)


def key() -> tuple[sa.Column[Any], ...]:
    """Return the columns of the key of a row."""
    return (
        sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("position", BIG, primary_key=True, autoincrement=False),
    )


def make_nodes() -> None:
    """Make the tables of brokers and of portions of their rows."""
    table(
        "trace_nodes",
        sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("log", ascii_text(128), nullable=False, unique=True),
        sa.Column("nsqd", TEXT, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("event_at", UtcTime),
        sa.Column("shipped_at", UtcTime),
    )
    table(
        "trace_portions",
        sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("first_position", BIG, primary_key=True, autoincrement=False),
        sa.Column("end_position", BIG, nullable=False),
        sa.Column("oldest_at", UtcTime, nullable=False),
        sa.Column("newest_at", UtcTime, nullable=False),
        sa.Column("row_count", BIG, nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
    )


def make_publications() -> None:
    """Make the table of published messages."""
    table(
        "trace_publications",
        *key(),
        sa.Column("message_id", ascii_text(16), nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("client", TEXT),
        sa.Column("user_agent", TEXT),
        sa.Column("size", sa.Integer),
        sa.Column("body", BODY),
        sa.Column("published_at", UtcTime, nullable=False),
        sa.Column("due_at", UtcTime),
    )
    index("trace_publications_id", "trace_publications", "message_id")
    index("trace_publications_time", "trace_publications", "topic", "published_at")


def make_deliveries() -> None:
    """Make the table of deliveries."""
    table(
        "trace_deliveries",
        *key(),
        sa.Column("message_id", ascii_text(16), nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("channel", NAME, nullable=False),
        sa.Column("client", TEXT),
        sa.Column("user_agent", TEXT),
        sa.Column("attempt", sa.Integer),
        sa.Column("stored_at", UtcTime),
        sa.Column("sent_at", UtcTime, nullable=False),
        sa.Column("outcome", ascii_text(16), nullable=False),
        sa.Column("outcome_at", UtcTime),
    )
    index("trace_deliveries_id", "trace_deliveries", "message_id")
    index("trace_deliveries_time", "trace_deliveries", "topic", "channel", "sent_at")
    # Few deliveries do not end with FIN.
    columns = "topic", "channel", "sent_at"
    index("trace_deliveries_unfinished", "trace_deliveries", *columns, where="outcome <> 'finished'")


def make_events() -> None:
    """Make the tables of other events: of one message, of many messages, lost."""
    table(
        "trace_events",
        *key(),
        sa.Column("message_id", ascii_text(16), nullable=False),
        sa.Column("topic", NAME, nullable=False),
        sa.Column("channel", NAME),
        sa.Column("event", ascii_text(16), nullable=False),
        sa.Column("happened_at", UtcTime, nullable=False),
        sa.Column("client", TEXT),
        sa.Column("attempt", sa.Integer),
        sa.Column("delay_ms", BIG),
        sa.Column("due_at", UtcTime),
        sa.Column("reason", TEXT),
    )
    index("trace_events_id", "trace_events", "message_id")
    index("trace_events_time", "trace_events", "topic", "channel", "event", "happened_at")
    table(
        "trace_bulk_events",
        *key(),
        sa.Column("message_id", ascii_text(16)),
        sa.Column("topic", NAME),
        sa.Column("channel", NAME),
        sa.Column("event", ascii_text(16), nullable=False),
        sa.Column("happened_at", UtcTime, nullable=False),
        sa.Column("reason", TEXT),
        sa.Column("message_count", BIG),
    )
    table(
        "trace_gaps",
        *key(),
        sa.Column("event_count", BIG),
        sa.Column("noticed_at", UtcTime, nullable=False),
        sa.Column("reason", TEXT),
    )
