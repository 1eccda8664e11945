"""Version of the schema in a database: check, and upgrade by Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from pyqd.trace.errors import SchemaError
from pyqd.trace.stores.store import Store

VERSION_TABLE: Final = "trace_schema"
DIRECTORY: Final = Path(__file__).parent / "migrations"


def config(directory: Path = DIRECTORY) -> Config:
    """Return Alembic's configuration for the versions in a directory."""
    made = Config()
    made.set_main_option("script_location", str(directory).replace("%", "%%"))
    return made


def current(connection: sa.Connection) -> str | None:
    """Return the version of a database; None without tables."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


class Versions:
    """Versions that this program knows."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._config = config(directory)
        script = ScriptDirectory.from_config(self._config)
        self.newest = script.get_current_head()
        self.known = {revision.revision for revision in script.walk_revisions()}

    def check(self, version: str | None) -> None:
        """Check the version of a database. Raises: SchemaError."""
        if version == self.newest:
            return
        if version is None:
            raise SchemaError("the database has no tables of traces: `pyq_trace ship` makes them")
        if version in self.known:
            raise SchemaError(f"the tables have the old version {version}: `pyq_trace ship` of this pyqd upgrades them")
        raise SchemaError(
            f"the tables have version {version} of a newer pyqd, this one knows {self.newest}: upgrade this pyqd"
        )

    def upgrade(self, connection: sa.Connection, store: Store) -> bool:
        """Make or upgrade the tables. Returns: whether something was done. Raises: SchemaError."""
        with store.upgrading(connection):
            version = current(connection)
            if version == self.newest:
                return False
            if version is not None and version not in self.known:
                self.check(version)
            attributes: dict[str, Any] = self._config.attributes
            attributes["connection"] = connection
            command.upgrade(self._config, "head")
        return True
