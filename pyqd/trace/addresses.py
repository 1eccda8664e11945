"""URLs of trace databases: from the operator's text to a store."""

from __future__ import annotations

import importlib
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from pyqd.trace import UrlError
from pyqd.trace.stores.mysql import MysqlStore
from pyqd.trace.stores.postgresql import PostgresqlStore
from pyqd.trace.stores.sqlite import SqliteStore
from pyqd.trace.stores.store import ANSWER_S, Store

# Driver by scheme, and the class.
KINDS: Final[dict[str, tuple[str, type[Store]]]] = {
    "sqlite": ("pysqlite", SqliteStore),
    "postgresql": ("psycopg", PostgresqlStore),
    "postgres": ("psycopg", PostgresqlStore),
    "mysql": ("pymysql", MysqlStore),
    "mariadb": ("pymysql", MysqlStore),
}
MODULES: Final = {"pysqlite": "sqlite3", "psycopg": "psycopg", "pymysql": "pymysql"}
EXAMPLES: Final = "sqlite:///trace.db, postgresql://user@host/database, mysql://user@host/database"


def store_of(text: str, answer_s: float = ANSWER_S) -> Store:
    """Return the store for a URL. Raises: UrlError."""
    try:
        url = sa.make_url(text)
    except ArgumentError:
        raise UrlError(f"{text!r} is no URL of a database such as {EXAMPLES}") from None
    except ValueError:
        # The text is not shown: the part that is no number may be one of the password.
        raise UrlError(f"the URL of the database has a wrong host or port; possible are {EXAMPLES}") from None
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise UrlError(f"{shown(url)}: the port {url.port} is none from 1 to 65535")
    scheme, _, driver = url.drivername.partition("+")
    found = KINDS.get(scheme)
    if found is None:
        raise UrlError(f"traces cannot be stored in {scheme!r}; possible are {EXAMPLES}")
    own_driver, kind = found
    if driver not in ("", own_driver):
        raise UrlError(f"{shown(url)}: the driver {driver!r} is not supported, leave it out for {own_driver!r}")
    try:
        importlib.import_module(MODULES[own_driver])
    except ImportError as error:
        raise UrlError(f"{shown(url)}: {error}: pip install 'pyqd[trace]'") from None
    name = "postgresql" if scheme == "postgres" else scheme
    return kind(url.set(drivername=f"{name}+{own_driver}"), answer_s)


def shown(url: sa.URL) -> str:
    """Return a URL without its password."""
    return url.set(drivername=url.drivername.partition("+")[0]).render_as_string(hide_password=True)
