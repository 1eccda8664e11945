"""Servers of PostgreSQL and MariaDB for tests: started on empty directories and unix sockets, stopped by their pid.

They run as an unprivileged user, because PostgreSQL refuses to run as root. Programs are those of Debian's packages
postgresql and mariadb-server-core.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.server import START_WAIT_S, free_port, wait_until

UNPRIVILEGED = "nobody"
POSTGRESQL_DIRECTORIES = "/usr/lib/postgresql"


def programs_of_postgresql() -> Path | None:
    """Return the directory of the newest PostgreSQL's programs; None without one."""
    found = sorted(Path(POSTGRESQL_DIRECTORIES).glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    inside = shutil.which("postgres")
    return Path(inside).resolve().parent if inside else None


def program_of_mariadb() -> str | None:
    """Return the path of MariaDB's server; None without one."""
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def as_unprivileged() -> dict[str, Any]:
    """Return arguments of subprocess for another user than root; none if this process is not root's."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(UNPRIVILEGED)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """A database server: one process at a time over one directory.

    is_synced: commits wait for the disk. Without it they survive a kill of the server, not one of the machine.
    """

    scheme: str

    def __init__(self, directory: Path, is_synced: bool = False) -> None:
        self.directory = directory
        self.is_synced = is_synced
        self.log_path = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        identity = as_unprivileged()
        if identity:
            os.chown(directory, identity["user"], identity["group"])

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @abc.abstractmethod
    def arguments(self) -> Sequence[str]:
        """Return the command of the server."""

    @abc.abstractmethod
    def url(self, database: str) -> str:
        """Return the URL of a database."""

    @abc.abstractmethod
    def connect(self, database: str | None = None) -> Any:
        """Return a connection of the driver; of the server's own database without a name."""

    def start(self) -> None:
        """Start the process and wait until a client can connect."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.arguments(), cwd=self.directory, stdout=log, stderr=log, **as_unprivileged()
            )
        wait_until(self._answers, f"an answer of {self.arguments()[0]}, see {self.log_path}", START_WAIT_S)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server has ended: {self.log_path.read_text()[-2000:]}")
        try:
            self.connect().close()
        except Exception:
            # Each driver has its own class of errors.
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            # Children of PostgreSQL that were stopped would never notice the end of the first process.
            self.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT if self.scheme == "postgresql" else signal.SIGTERM)
            try:
                self._process.wait(START_WAIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and, for SIGSTOP and SIGCONT, to all its processes."""
        assert self._process is not None
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False
        )
        for pid in (self.pid, *map(int, found.stdout.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def execute(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements, each in its own transaction. Returns: rows of the last one."""
        connection = self.connect(database)
        rows: list[Any] = []
        try:
            for statement in statements:
                cursor = connection.cursor()
                cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()
        return rows

    def new_database(self, name: str) -> str:
        """Make an empty database in place of one with this name. Returns: its URL."""
        self.execute(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
        return self.url(name)


class Postgresql(Server):
    """PostgreSQL. Its directory is made by initdb, in a second."""

    scheme = "postgresql"

    def __init__(self, directory: Path, is_synced: bool = False) -> None:
        super().__init__(directory, is_synced)
        programs = programs_of_postgresql()
        assert programs is not None
        self._programs = programs
        command = [
            str(programs / "initdb"),
            f"--pgdata={directory / 'data'}",
            "--no-sync",
            "--auth=trust",
            "--username=pyqd",
            "--locale=C",
            "--encoding=UTF8",
        ]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, **as_unprivileged())

    def arguments(self) -> Sequence[str]:
        return [
            str(self._programs / "postgres"),
            f"-D{self.directory / 'data'}",
            f"-k{self.directory}",
            "-clisten_addresses=",
            "-cmax_connections=20",
            f"-cfsync={'on' if self.is_synced else 'off'}",
        ]

    def url(self, database: str) -> str:
        return f"postgresql://pyqd@/{database}?host={self.directory}"

    def connect(self, database: str | None = None) -> Any:
        import psycopg

        return psycopg.connect(
            f"host={self.directory} user=pyqd dbname={database or 'postgres'} connect_timeout=5", autocommit=True
        )


class Mariadb(Server):
    """MariaDB, without its own tables and so without users: it starts on an empty directory in half a second."""

    scheme = "mariadb"

    def __init__(self, directory: Path, is_synced: bool = False) -> None:
        super().__init__(directory, is_synced)
        self.port = free_port()
        data = directory / "data"
        data.mkdir()
        identity = as_unprivileged()
        if identity:
            os.chown(data, identity["user"], identity["group"])
        # The files of a new directory are complete after the first stop: a server that is killed before would not start
        # again.
        self.start()
        self.stop()

    def arguments(self) -> Sequence[str]:
        program = program_of_mariadb()
        assert program is not None
        return [
            program,
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-grant-tables",
            "--innodb-log-file-size=64M",
            f"--innodb-flush-log-at-trx-commit={1 if self.is_synced else 2}",
        ]

    def url(self, database: str) -> str:
        return f"mariadb://root@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Any:
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, connect_timeout=5
        )


@contextlib.contextmanager
def running(kind: Callable[..., Server], is_synced: bool = False) -> Iterator[Server]:
    """Run a server for a block, in a directory that the unprivileged user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="pyqd-database-"))
    server = None
    try:
        server = kind(directory, is_synced)
        server.start()
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)
