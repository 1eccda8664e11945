"""Runs the versions of the schema on the connection of the caller."""

from alembic import context

from pyqd.trace.versions import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()
