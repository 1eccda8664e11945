"""Versions of the trace database's schema, for Alembic."""
