"""Frame of pyq_trace's commands: types of options, the database, exit codes."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pyqd.client.errors import SettingError
from pyqd.primitives.durations import MICROSECOND_NS, parse_duration
from pyqd.primitives.quantities import DAY_NS, parse_size
from pyqd.primitives.timestamps import parse_timestamp
from pyqd.tools.ctl.table import printable
from pyqd.trace import DATABASE_VARIABLE, TRACES

if TYPE_CHECKING:
    from pyqd.trace.database import Database

PROGRAM: Final = "pyq_trace"
DEFAULT_DATABASE: Final = f"sqlite:///{TRACES}"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

_DAYS = re.compile(r"(\d+)d(.*)", re.ASCII)

F = TypeVar("F", bound=Callable[..., Any])


def span(text: str) -> timedelta:
    """Return a duration, as the type of an option: days, then a duration of Go."""
    match = _DAYS.fullmatch(text)
    days, rest = (int(match[1]), match[2] or "0") if match else (0, text)
    try:
        length_ns = days * DAY_NS + parse_duration(rest)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration such as 500ms, 90s, 1h30m or 30d") from None
    if length_ns < 0:
        raise click.BadParameter(f"{text!r} is negative")
    try:
        return timedelta(microseconds=length_ns // MICROSECOND_NS)
    except OverflowError:
        raise click.BadParameter(f"{text!r} is longer than {timedelta.max.days} days") from None


def size(text: str) -> int:
    """Return a number of bytes, as the type of an option."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def instant(text: str) -> datetime:
    """Return a point in time, as the type of an option."""
    try:
        timestamp_ns = parse_timestamp(text, time.time_ns())
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}: give -10m, or 2026-11-23T12:00:00Z") from None
    return EPOCH + timedelta(microseconds=timestamp_ns // MICROSECOND_NS)


def database_option(*names: str, help: str) -> Callable[[F], F]:
    return click.option(
        "url",
        *names,
        envvar=DATABASE_VARIABLE,
        default=DEFAULT_DATABASE,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help=help,
    )


def reading_options(function: F) -> F:
    """Add the options of commands that query the database."""
    as_json = click.option(
        "as_json", "--json/--table", default=None, help="print JSON or a table  [default: a table on a terminal]"
    )
    follow = click.option("-f", "--follow", is_flag=True, help="go on, and print what is new; Ctrl-C ends")
    return database_option("--from", help="database to read")(follow(as_json(function)))


@contextlib.contextmanager
def opened(url: str) -> Iterator[Database]:
    """Open a database for queries. Raises: SettingError if it is a file that does not exist."""
    from pyqd.trace.database import Database

    database = Database(url)
    if not database.store.exists():
        raise SettingError(f"{database.name}: no such file; `{PROGRAM} ship` makes it, --from names another database")
    with contextlib.closing(database):
        yield database


def say(text: str) -> None:
    click.echo(f"{PROGRAM}: {printable(text)}", err=True)
