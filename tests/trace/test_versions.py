"""The tables are made and upgraded by themselves."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from pyqd.trace import SchemaError, schema, versions
from pyqd.trace.database import Database
from pyqd.trace.migrations.versions.v0001_first import VIEWS
from pyqd.trace.versions import VERSION_TABLE, Versions
from tests.support.trace_log import TraceLog
from tests.support.trace_tables import rows_of

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("trace_nodes", sa.Column("comment", sa.String(20)))
"""


@pytest.fixture
def with_next(tmp_path: Path) -> Versions:
    """Versions of a later pyqd, which has one more."""
    directory = tmp_path / "migrations"
    shutil.copytree(versions.DIRECTORY, directory)
    (directory / "versions" / "v0003_comment.py").write_text(NEXT)
    return Versions(directory, "0003")


@pytest.mark.slow
def test_the_tables_are_those_that_the_program_uses(empty_url: str) -> None:
    database = Database(empty_url)
    assert database.upgrade()
    inspector = sa.inspect(database.engine)
    assert set(inspector.get_table_names()) == {*schema.metadata.tables, VERSION_TABLE}
    assert set(inspector.get_view_names()) == set(VIEWS)
    for table in schema.metadata.sorted_tables:
        found = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
        assert found == {column.name: column.nullable for column in table.columns}, table.name
        assert list(found) == [column.name for column in table.columns], table.name
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
        assert key == [column.name for column in table.primary_key], table.name
        indexes = {index["name"] for index in inspector.get_indexes(table.name)}
        assert {index.name for index in table.indexes} <= indexes
    database.close()


def test_the_views_have_the_columns_that_the_documentation_promises(sqlite: Database) -> None:
    inspector = sa.inspect(sqlite.engine)
    columns = {name: [column["name"] for column in inspector.get_columns(name)] for name in VIEWS}
    assert columns["publish_log"] == [
        "message_id",
        "topic",
        "nsqd",
        "client",
        "size",
        "body",
        "published_at",
        "due_at",
    ]
    assert columns["consume_log"] == [
        "message_id",
        "topic",
        "channel",
        "nsqd",
        "client",
        "attempt",
        "sent_at",
        "outcome",
        "outcome_at",
    ]


def test_the_newest_version_is_the_last_one_that_is_there() -> None:
    assert Versions().known[0] == versions.NEWEST


@pytest.mark.slow
def test_several_processes_may_make_the_tables_at_once(empty_url: str) -> None:
    databases = [Database(empty_url) for _ in range(4)]
    with ThreadPoolExecutor(len(databases)) as pool:
        made = list(pool.map(Database.upgrade, databases))
    assert sorted(made) == [False, False, False, True]
    for database in databases:
        database.close()


@pytest.mark.slow
def test_several_connections_may_open_a_new_file_of_sqlite_at_once(tmp_path: Path) -> None:
    # SQLite refused a few of a hundred without waiting.
    together = threading.Barrier(8)

    def open_it(url: str) -> None:
        database = Database(url)
        together.wait()
        with database.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        database.close()

    with ThreadPoolExecutor(together.parties) as pool:
        for number in range(60):
            list(pool.map(open_it, [f"sqlite:///{tmp_path}/{number}.db"] * together.parties))


@pytest.mark.slow
def test_making_the_tables_goes_on_where_a_killed_process_has_left_it(empty_url: str) -> None:
    database = Database(empty_url)
    database.upgrade()
    with database.engine.begin() as connection:
        for statement in ("DROP TABLE trace_schema", "DROP VIEW gap_log", "DROP TABLE trace_gaps"):
            connection.execute(sa.text(statement))
    assert database.upgrade()
    assert rows_of(database, "gap_log", "position") == []
    database.close()


@pytest.mark.slow
def test_rows_survive_an_upgrade(empty_url: str, with_next: Versions, log: TraceLog) -> None:
    database = Database(empty_url)
    database.upgrade()
    log.add("published", 1)
    database.write(database.node("log", "broker:4151"), log.decoded())
    later = Database(empty_url, versions=with_next)
    with pytest.raises(SchemaError, match="old version 0002: `pyq_trace ship` of this pyqd upgrades them"):
        later.nodes()
    assert later.upgrade()
    assert not later.upgrade()
    assert len(rows_of(later, "publish_log")) == 1
    with pytest.raises(SchemaError, match="version 0003 of a newer pyqd"):
        database.nodes()
    for opened in (database, later):
        opened.close()


@pytest.fixture
def first_only(tmp_path: Path) -> Versions:
    """Versions of the first pyqd that had traces."""
    directory = tmp_path / "first"
    shutil.copytree(versions.DIRECTORY, directory)
    (directory / "versions" / "v0002_search.py").unlink()
    return Versions(directory, "0001")


@pytest.mark.slow
def test_tables_of_the_first_version_are_upgraded_with_their_rows(
    empty_url: str, first_only: Versions, log: TraceLog
) -> None:
    first = Database(empty_url, versions=first_only)
    first.upgrade()
    log.add("dropped", 0, channel="a", reason="emptied", count=3)
    first.write(first.node("log", "broker:4151"), log.decoded())
    first.close()
    database = Database(empty_url)
    assert database.upgrade()
    assert [row["message_count"] for row in rows_of(database, "bulk_event_log", "happened_at")] == [3]
    indexes = {index["name"] for index in sa.inspect(database.engine).get_indexes("trace_bulk_events")}
    assert "trace_bulk_events_reason" in indexes
    database.close()
