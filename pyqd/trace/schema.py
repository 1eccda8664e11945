"""Tables of the trace database.

A row of a broker has as its key the number of the broker's log and the position of the event. All times are UTC with
microseconds. The views publish_log, consume_log, event_log, bulk_event_log and gap_log show the name of the broker in
place of the number, and leave out columns that only pyqd needs.

The tables and views are made by pyqd/trace/migrations/versions; a change here needs a new version there.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from pyqd.trace.column_types import BIG, BODY, UtcTime, ascii_text, free_text

NAME_CHARS: Final = 64
ID_CHARS: Final = 16
TEXT_CHARS: Final = 128
OUTCOME_CHARS: Final = 16

metadata: Final = sa.MetaData()


def _key() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("position", BIG, primary_key=True, autoincrement=False),
    )


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    # SQLite: rows lie in the tree of the key, which saves another tree.
    return sa.Table(name, metadata, *columns, sqlite_with_rowid=False, mysql_engine="InnoDB", mariadb_engine="InnoDB")


nodes: Final = _table(
    "trace_nodes",
    sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
    # Identity of the log: a broker whose data directory was removed begins another log.
    sa.Column("log", ascii_text(TEXT_CHARS), nullable=False, unique=True),
    sa.Column("nsqd", free_text(TEXT_CHARS), nullable=False),
    # Position of the first event that is not stored yet.
    sa.Column("position", BIG, nullable=False),
    sa.Column("event_at", UtcTime, nullable=True),
    sa.Column("shipped_at", UtcTime, nullable=True),
)

publications: Final = _table(
    "trace_publications",
    *_key(),
    sa.Column("message_id", ascii_text(ID_CHARS), nullable=False),
    sa.Column("topic", ascii_text(NAME_CHARS), nullable=False),
    sa.Column("client", free_text(TEXT_CHARS)),
    sa.Column("user_agent", free_text(TEXT_CHARS)),
    sa.Column("size", sa.Integer),
    sa.Column("body", BODY),
    sa.Column("published_at", UtcTime, nullable=False),
    sa.Column("due_at", UtcTime),
    # 1: the topic had no channel, or was paused, so that no channel has got the message at first.
    sa.Column("held", sa.SmallInteger),
    sa.Index("trace_publications_id", "message_id"),
    sa.Index("trace_publications_time", "topic", "published_at"),
)

deliveries: Final = _table(
    "trace_deliveries",
    *_key(),
    sa.Column("message_id", ascii_text(ID_CHARS), nullable=False),
    sa.Column("topic", ascii_text(NAME_CHARS), nullable=False),
    sa.Column("channel", ascii_text(NAME_CHARS), nullable=False),
    sa.Column("client", free_text(TEXT_CHARS)),
    sa.Column("user_agent", free_text(TEXT_CHARS)),
    sa.Column("attempt", sa.Integer),
    # Of the first delivery, if the event is in the same batch; otherwise the event has a row of its own.
    sa.Column("stored_at", UtcTime),
    sa.Column("sent_at", UtcTime, nullable=False),
    sa.Column("outcome", ascii_text(OUTCOME_CHARS), nullable=False),
    sa.Column("outcome_at", UtcTime),
    sa.Index("trace_deliveries_id", "message_id"),
    sa.Index("trace_deliveries_time", "topic", "channel", "sent_at"),
)

events: Final = _table(
    "trace_events",
    *_key(),
    sa.Column("message_id", ascii_text(ID_CHARS), nullable=False),
    sa.Column("topic", ascii_text(NAME_CHARS), nullable=False),
    sa.Column("channel", ascii_text(NAME_CHARS)),
    sa.Column("event", ascii_text(OUTCOME_CHARS), nullable=False),
    sa.Column("happened_at", UtcTime, nullable=False),
    sa.Column("client", free_text(TEXT_CHARS)),
    sa.Column("attempt", sa.Integer),
    sa.Column("delay_ms", BIG),
    sa.Column("due_at", UtcTime),
    sa.Column("reason", free_text(TEXT_CHARS)),
    sa.Index("trace_events_id", "message_id"),
    sa.Index("trace_events_time", "topic", "channel", "event", "happened_at"),
)

# Acts on many messages at once. They are few, except for those of ephemeral channels that drop messages.
bulk_events: Final = _table(
    "trace_bulk_events",
    *_key(),
    sa.Column("message_id", ascii_text(ID_CHARS)),
    sa.Column("topic", ascii_text(NAME_CHARS)),
    sa.Column("channel", ascii_text(NAME_CHARS)),
    sa.Column("event", ascii_text(OUTCOME_CHARS), nullable=False),
    sa.Column("happened_at", UtcTime, nullable=False),
    sa.Column("reason", free_text(TEXT_CHARS)),
    sa.Column("message_count", BIG),
    sa.Index("trace_bulk_events_reason", "topic", "reason"),
)

# Events that were overwritten or damaged before they were read.
gaps: Final = _table(
    "trace_gaps",
    *_key(),
    sa.Column("event_count", BIG),
    sa.Column("noticed_at", UtcTime, nullable=False),
    sa.Column("reason", free_text(TEXT_CHARS)),
)

# Rows of consecutive events of a broker, which retention removes together. size_bytes: an estimate of their size in the
# database, indexes included.
portions: Final = _table(
    "trace_portions",
    sa.Column("node_id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("first_position", BIG, primary_key=True, autoincrement=False),
    # After the last event.
    sa.Column("end_position", BIG, nullable=False),
    sa.Column("oldest_at", UtcTime, nullable=False),
    sa.Column("newest_at", UtcTime, nullable=False),
    sa.Column("row_count", BIG, nullable=False),
    sa.Column("size_bytes", BIG, nullable=False),
)

ROW_TABLES: Final = (publications, deliveries, events, bulk_events, gaps)
