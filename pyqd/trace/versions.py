"""Version of the schema in a database: check, and upgrade by Alembic."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from pyqd.trace import SchemaError
from pyqd.trace.stores.store import Store

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "trace_schema"
DIRECTORY: Final = Path(__file__).parent / "migrations"
NEWEST: Final = "0002"


class Versions:
    """Versions that a program knows. newest: the last one in the directory.

    Alembic is imported when it is needed: a query with the right version does without.
    """

    def __init__(self, directory: Path = DIRECTORY, newest: str = NEWEST) -> None:
        self._directory = directory
        self.newest = newest

    @cached_property
    def _config(self) -> Config:
        from alembic.config import Config

        made = Config()
        made.set_main_option("script_location", str(self._directory).replace("%", "%%"))
        return made

    @cached_property
    def known(self) -> list[str]:
        """All versions, the newest first."""
        from alembic.script import ScriptDirectory

        return [revision.revision for revision in ScriptDirectory.from_config(self._config).walk_revisions()]

    def check(self, version: str | None) -> None:
        """Check the version of a database. Raises: SchemaError."""
        if version == self.newest:
            return
        if version is None:
            raise SchemaError("the database has no tables of traces: `pyq_trace ship` makes them when it starts")
        if version in self.known:
            raise SchemaError(f"the tables have the old version {version}: `pyq_trace ship` of this pyqd upgrades them")
        raise SchemaError(
            f"the tables have version {version} of a newer pyqd, this one knows {self.newest}: upgrade this pyqd"
        )

    def upgrade(self, connection: sa.Connection, store: Store) -> bool:
        """Make or upgrade the tables. Returns: whether something was done. Raises: SchemaError."""
        with store.upgrading(connection):
            from alembic import command

            version = current(connection)
            if version == self.newest:
                return False
            if version is not None and version not in self.known:
                self.check(version)
            attributes: dict[str, Any] = self._config.attributes
            attributes["connection"] = connection
            command.upgrade(self._config, "head")
        return True


def current(connection: sa.Connection) -> str | None:
    """Return the version of a database; None if it has no tables of traces."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
