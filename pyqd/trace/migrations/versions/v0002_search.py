"""Second version: a column and indexes for searches among many rows.

Each statement may be repeated, as in the first version.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pyqd.trace.migrations.versions.v0001_first import index

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the column and the indexes."""
    table = "trace_publications"
    if "held" not in {found["name"] for found in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, sa.Column("held", sa.SmallInteger))
    # An ephemeral channel without a ready consumer adds an event for each batch. Searches look for the other ones.
    index("trace_bulk_events_reason", "trace_bulk_events", "topic", "reason")
    # Few messages are held, and few are delivered again.
    index("trace_publications_held", table, "topic", "published_at", where="held IS NOT NULL")
    index("trace_deliveries_again", "trace_deliveries", "topic", "channel", "sent_at", where="attempt > 1")
