"""Fixtures for tests of traces: databases on real servers, and logs of events in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from pyqd.trace import schema
from pyqd.trace.database import Database, TraceNode
from tests.support.databases import Mariadb, Postgresql, Server, program_of_mariadb, programs_of_postgresql, running
from tests.support.trace_broker import TraceBroker
from tests.support.trace_log import TraceLog

Store = Callable[[], TraceNode]
KINDS = ("sqlite", "postgresql", "mariadb")


class Servers:
    """Servers that are started when a test needs them first, and stopped at the end of the session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        """Return a running server. Skips the test if this machine has none."""
        if name not in self._running:
            kind, program = {
                "postgresql": (Postgresql, programs_of_postgresql()),
                "mariadb": (Mariadb, program_of_mariadb()),
            }[name]
            if program is None:
                pytest.skip(f"no server of {name} here: `make env` installs it for root")
            self._running[name] = self._stack.enter_context(running(kind))
        return self._running[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture
def postgresql(servers: Servers) -> Server:
    return servers.get("postgresql")


@pytest.fixture
def mariadb(servers: Servers) -> Server:
    return servers.get("mariadb")


@pytest.fixture(params=KINDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """URL of a database without tables, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/trace.db"
    return servers.get(request.param).new_database("fresh")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a file of SQLite that does not exist yet."""
    return f"sqlite:///{tmp_path}/trace.db"


@pytest.fixture(scope="session")
def databases(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Database]]:
    """Function that returns the database of a kind without rows. Making tables takes longer than most tests."""
    opened: dict[str, Database] = {}

    def get(kind: str) -> Database:
        if kind not in opened:
            if kind == "sqlite":
                url = f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/trace.db"
            else:
                url = servers.get(kind).new_database("trace")
            opened[kind] = Database(url)
            opened[kind].upgrade()
        # A test may have killed the server.
        opened[kind].engine.dispose()
        with opened[kind].transaction("empty") as connection:
            for table in schema.metadata.sorted_tables:
                connection.execute(sa.delete(table))
        opened[kind]._recent.clear()
        return opened[kind]

    yield get
    for database in opened.values():
        database.close()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, databases: Callable[[str], Database]) -> Database:
    """A database with empty tables, of each kind."""
    return databases(request.param)


@pytest.fixture
def sqlite(databases: Callable[[str], Database]) -> Database:
    """A database of SQLite with empty tables, for what does not depend on the kind."""
    return databases("sqlite")


@pytest.fixture
def log() -> TraceLog:
    return TraceLog()


@pytest.fixture
def store(database: Database, log: TraceLog) -> Store:
    """Function that stores the events which the log has got since the last call. Returns: the node after them."""
    node = database.node("log", "broker:4151")

    def store_() -> TraceNode:
        nonlocal node
        node = database.write(node, log.decoded(node.position))
        return node

    return store_


@pytest.fixture
def brokers() -> Iterator[list[TraceBroker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(TraceBroker(name).serving()) for name in ("one", "two")]
