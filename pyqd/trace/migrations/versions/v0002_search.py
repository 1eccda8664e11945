"""Second version: a column and indexes for searches among many rows.

Each statement may be repeated, as in the first version.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the column and the indexes."""
    table = "trace_publications"
    if "held" not in {found["name"] for found in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, sa.Column("held", sa.SmallInteger))
    # An ephemeral channel without a ready consumer adds an event for each batch. Searches look for the other ones.
    index("trace_bulk_events_reason", "trace_bulk_events", "topic", "reason")
    if op.get_bind().dialect.name in ("sqlite", "postgresql"):
        # Few messages are held, and few are delivered again. MySQL has no indexes on a part of the rows.
        index("trace_publications_held", table, "topic", "published_at", where="held IS NOT NULL")
        index("trace_deliveries_again", "trace_deliveries", "topic", "channel", "sent_at", where="attempt > 1")


def index(name: str, of: str, *columns: str, where: str | None = None) -> None:
    """Make an index. where: of the rows that it has."""
    condition = None if where is None else sa.text(where)
    options: dict[str, Any] = {"sqlite_where": condition, "postgresql_where": condition}
    # MySQL has no IF NOT EXISTS for indexes.
    if name not in {found["name"] for found in sa.inspect(op.get_bind()).get_indexes(of)}:
        op.create_index(name, of, list(columns), **options)
