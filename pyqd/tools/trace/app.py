"""The command line of pyq_trace: all commands, and its `main`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from pyqd.client.errors import ClientError
from pyqd.primitives.nsq_compat import VERSIONS
from pyqd.tools.ctl.exits import FAILED, INTERRUPTED, USAGE, code_of
from pyqd.tools.trace import reading
from pyqd.tools.trace.frame import PROGRAM, say
from pyqd.tools.trace.ship import ship

WIDTH_CHARS: Final = 110
EXTRA: Final = ("sqlalchemy", "alembic")


class Commands(click.Group):
    """All commands. Errors become a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            ctx.exit(super().invoke(ctx) or 0)
        except ClientError as error:
            say(str(error))
            ctx.exit(code_of(error))
        except ModuleNotFoundError as error:
            if error.name not in EXTRA:
                raise
            say(f"{error}: pip install 'pyqd[trace]'")
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            from pyqd.tools.common import exit_by_sigpipe

            ctx.exit(exit_by_sigpipe())
        except Exception as error:
            ctx.exit(reported(error))


def reported(error: Exception) -> int:
    """Report an error of the database, and return the exit code. Raises: any other error."""
    # SQLAlchemy is loaded by commands that use it.
    from pyqd.trace import TraceError, UrlError

    if not isinstance(error, TraceError):
        raise error
    say(str(error))
    return USAGE if isinstance(error, UrlError) else FAILED


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH_CHARS})
@click.version_option(VERSIONS, message="%(prog)s %(version)s")
def cli() -> None:
    """Keep and show the life of messages.

    Brokers write an event for each act on a message, for topics that are switched on by --trace-topic. `ship` stores
    the events in a database: SQLite, PostgreSQL, MariaDB or MySQL. The other commands query it.
    """


for command in (ship, reading.show, reading.find, reading.stats):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns: the exit code."""
    try:
        cli.main(None if argv is None else list(argv), prog_name=PROGRAM)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    raise AssertionError("click ends by SystemExit")
