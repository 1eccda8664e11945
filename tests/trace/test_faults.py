"""Databases that fail: a clear answer, no row lost, none doubled."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from pyqd.trace import DatabaseError, SchemaError, UrlError
from pyqd.trace.database import Database
from pyqd.trace.retention import Retention
from pyqd.trace.shipper import ShipOptions, Shipper
from tests.support import small_disk
from tests.support.databases import Server
from tests.support.server import wait_until
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog
from tests.support.trace_shipping import TIMEOUT_S, clients, ids_of, publish, ship_once, shipping, wait_for_ids
from tests.trace.conftest import Servers

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

MESSAGES = list(range(1, 7))


@pytest.fixture
def broker(brokers: list[TraceBroker]) -> TraceBroker:
    """A broker that has published half of the messages."""
    publish(1, 3)(brokers[0].log)
    return brokers[0]


def check_outage(
    database: Database,
    broker: TraceBroker,
    caplog: pytest.LogCaptureFixture,
    begin: Callable[[], object],
    end: Callable[[], object],
    said: str,
) -> None:
    """Check that a shipper waits through an outage, says its reason, and stores all events afterwards."""
    caplog.set_level(logging.INFO)
    database.upgrade()
    with shipping(database, clients(broker.address)):
        wait_for_ids(database, "one", MESSAGES[:3])
        begin()
        try:
            broker.change(publish(4, 3))
            wait_until(lambda: said in caplog.text, f"the words {said!r}")
        finally:
            end()
        wait_until(lambda: "is used again" in caplog.text, "the end of the outage")
    assert ids_of(database, "one") == MESSAGES
    assert "trying again" in caplog.text


@pytest.mark.parametrize(
    ("kind", "said"), [("postgresql", "Connection refused"), ("mariadb", "Can't connect to MySQL server")]
)
def test_a_server_that_is_down_is_awaited(
    servers: Servers, broker: TraceBroker, caplog: pytest.LogCaptureFixture, kind: str, said: str
) -> None:
    server = servers.get(kind)
    database = Database(server.new_database("down"))
    check_outage(database, broker, caplog, server.kill, server.start, said)
    database.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_that_hangs_is_awaited(
    servers: Servers, broker: TraceBroker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    server = servers.get(kind)
    database = Database(server.new_database("hangs"), answer_s=1.0)
    check_outage(
        database,
        broker,
        caplog,
        lambda: server.send_signal(signal.SIGSTOP),
        lambda: server.send_signal(signal.SIGCONT),
        f"cannot write to {database.name}",
    )
    database.close()


@pytest.mark.parametrize(
    ("kind", "begin", "end", "said"),
    [
        (
            "postgresql",
            "ALTER DATABASE readonly SET default_transaction_read_only = on",
            "ALTER DATABASE readonly RESET default_transaction_read_only",
            "in a read-only transaction",
        ),
        ("mariadb", "SET GLOBAL tx_read_only = ON", "SET GLOBAL tx_read_only = OFF", "in a READ ONLY transaction"),
    ],
)
def test_a_read_only_server_is_awaited(
    request: pytest.FixtureRequest,
    broker: TraceBroker,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    begin: str,
    end: str,
    said: str,
) -> None:
    server: Server = request.getfixturevalue(kind)
    database = Database(server.new_database("readonly"))

    def change(statement: str) -> None:
        server.execute(statement)
        # The setting is that of new connections.
        database.engine.dispose()

    check_outage(database, broker, caplog, lambda: change(begin), lambda: change(end), said)
    database.close()


def test_a_read_only_file_is_refused_with_its_name(sqlite_url: str) -> None:
    Database(sqlite_url).upgrade()
    path = sqlite_url.removeprefix("sqlite:///")
    database = Database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(DatabaseError, match=r"cannot write to sqlite:///.*: attempt to write a readonly database"):
        database.node("log", "broker:4151")


def test_a_full_disk_is_awaited(tmp_path: Path, broker: TraceBroker, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk.mounted_or_skipped(tmp_path / "disk", 1 << 20) as disk:
        database = Database(f"sqlite:///{disk}/trace.db")
        ballast = disk / "ballast"
        check_outage(
            database, broker, caplog, lambda: small_disk.fill(ballast), ballast.unlink, "database or disk is full"
        )
        database.close()


def test_a_locked_file_is_awaited(sqlite_url: str, broker: TraceBroker, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(sqlite_url, answer_s=0.05)
    database.upgrade()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    check_outage(
        database,
        broker,
        caplog,
        lambda: other.execute("BEGIN IMMEDIATE"),
        lambda: other.execute("COMMIT"),
        "database is locked",
    )
    other.close()
    database.close()


def test_a_file_that_is_removed_is_not_written_to_any_more(sqlite_url: str, broker: TraceBroker) -> None:
    database = Database(sqlite_url)
    shipper = Shipper(database, clients(broker.address), Retention(), ShipOptions(interval_s=0.01))
    ended: list[SchemaError] = []

    def run() -> None:
        with pytest.raises(SchemaError) as caught:
            shipper.run()
        ended.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    try:
        wait_until(lambda: path.exists() and len(published_in(path)) == 3, "the first messages", TIMEOUT_S)
        path.unlink()
        broker.change(publish(4, 3))
        thread.join(TIMEOUT_S)
    finally:
        shipper.stop()
        thread.join()
        database.close()
    assert f"{path}: the file was removed or replaced while it was in use: start `pyq_trace ship` again" in str(ended)
    # The next start has all events that the broker still has.
    other = Database(sqlite_url)
    assert ship_once(other, broker) == []
    assert ids_of(other, "one") == MESSAGES
    other.close()


def published_in(path: Path) -> list[tuple[str]]:
    """Return the ids of the messages in a file, without a connection of the shipper's."""
    with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.OperationalError):
        return connection.execute("SELECT message_id FROM publish_log").fetchall()
    return []


def test_a_dropped_table_is_named_with_the_remedy_and_no_event_is_skipped(
    empty_url: str, broker: TraceBroker, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(empty_url)

    def drop() -> None:
        with database.engine.begin() as connection:
            connection.execute(sa.text("DROP VIEW event_log"))
            connection.execute(sa.text("DROP TABLE trace_events"))

    def repair() -> None:
        # As the message says, and then as the next start of the shipper does.
        with database.engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE trace_schema"))
        other = Database(empty_url)
        assert other.upgrade()
        other.close()

    def event(log: TraceLog) -> None:
        publish(4, 3)(log)
        log.add("touched", 4, channel="a")

    caplog.set_level(logging.INFO)
    database.upgrade()
    with shipping(database, clients(broker.address)):
        wait_for_ids(database, "one", MESSAGES[:3])
        drop()
        broker.change(event)
        wait_until(lambda: "missing are trace_events: to have" in caplog.text, "the remedy")
    repair()
    with shipping(database, clients(broker.address)):
        wait_for_ids(database, "one", MESSAGES)
    database.close()


def test_a_schema_of_a_newer_version_is_refused(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    database.upgrade()
    node = database.node("log", "broker:4151")
    with database.transaction("test") as connection:
        connection.execute(sa.text("UPDATE trace_schema SET version_num = '9999'"))
    newer = "version 9999 of a newer pyqd, this one knows 0002: upgrade this pyqd"
    with pytest.raises(SchemaError, match=newer):
        database.upgrade()
    with pytest.raises(SchemaError, match=newer):
        database.write(node, TraceLog().decoded())


def test_a_database_without_tables_is_named_as_such(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(SchemaError, match="no tables of traces: `pyq_trace ship` makes them"):
        database.nodes()
    database.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("trace.db", "no URL of a database such as sqlite:///trace.db"),
        ("oracle://host/x", "traces cannot be stored in 'oracle'"),
        ("postgresql+asyncpg://u:secret@host/x", "postgresql://u:***@host/x: the driver 'asyncpg' is not supported"),
        ("postgresql://u:secret@host:/x", "wrong host or port"),
        ("postgresql://u:secret@host:abc/x", "wrong host or port"),
        ("postgresql://u:secret@[::1/x", "wrong host or port"),
        ("mysql://u:secret@host/x?ssl-mode=REQUIRED", "unknown option 'ssl-mode' in the URL of the database"),
        ("mariadb://u:secret@host/x?connect_timeout=soon", "an option has a wrong value: "),
        ("sqlite:///trace.db?timeout=soon", "sqlite:///trace.db?timeout=soon: an option has a wrong value: "),
        ("mysql://u:secret@host:65536/x", "mysql://u:***@host:65536/x: the port 65536 is none from 1 to 65535"),
    ],
)
def test_a_wrong_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(UrlError) as caught:
        Database(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_option_of_the_driver_may_be_in_a_url() -> None:
    Database("mysql://u@host/x?connect_timeout=3&charset=utf8mb4&ssl_ca=ca.pem&local_infile=0").close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_cause_of_a_connection_that_breaks_in_a_statement_is_named(
    databases: Callable[[str], Database], kind: str
) -> None:
    database = databases(kind)
    own, kill, said = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})", "due to administrator command"),
        "mariadb": ("SELECT connection_id()", "KILL {}", r"\((1927|2006|2013)\)"),
    }[kind]

    def write() -> None:
        with database.transaction("write to") as connection:
            number = connection.exec_driver_sql(own).scalar()
            with database.engine.connect() as other:
                other.exec_driver_sql(kill.format(number))
            # Not by SQLAlchemy, as the rows of a batch.
            connection.connection.cursor().execute("DELETE FROM trace_gaps")

    with pytest.raises(DatabaseError, match=said):
        write()


def test_errors_show_no_password() -> None:
    database = Database("postgresql://user:secret@127.0.0.1:1/x")
    with pytest.raises(DatabaseError) as caught:
        database.nodes()
    assert "postgresql://user:***@127.0.0.1:1/x" in str(caught.value)
    assert "secret" not in str(caught.value)
