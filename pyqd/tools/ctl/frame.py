"""Frame of pyqctl's commands: options that every command has, help with the calls on the wire, exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from pyqd.client.errors import ClientError, NotConnectedError
from pyqd.primitives.durations import SECOND_NS, parse_duration
from pyqd.tools.ctl.completion import complete_contexts
from pyqd.tools.ctl.exits import INTERRUPTED, code_of
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import FLAGS_KEY, CtlSession

F = TypeVar("F", bound=Callable[..., Any])
SHARED: Final = "Options of every command"
WIRE: Final = "On the wire"


def duration(text: str) -> int:
    """Return the nanoseconds of a duration, as the type of an option."""
    try:
        duration_ns = parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration such as 250ms, 90s or 1h30m") from None
    if duration_ns < 0:
        raise click.BadParameter(f"{text!r} is negative")
    return duration_ns


def keep_flag(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep the value of a shared option; one after the command's name displaces one before it."""
    if value is None or value == ():
        return
    assert param.name is not None
    if param.name == "timeout_ns" and value < SECOND_NS // 1000:
        raise click.BadParameter("a timeout has at least 1ms", ctx, param)
    ctx.meta.setdefault(FLAGS_KEY, {})[param.name] = value


def shared_options() -> list[click.Option]:

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option([*names], callback=keep_flag, expose_value=False, **settings)

    return [
        option(
            "nsqd_http_addresses",
            "-a",
            "--nsqd-http-address",
            multiple=True,
            metavar="ADDRESS",
            help="HTTP address of a broker: host:port, a URL, or the path of a unix socket; may be repeated",
        ),
        option(
            "lookupd_http_addresses",
            "-l",
            "--lookupd-http-address",
            multiple=True,
            metavar="ADDRESS",
            help="HTTP address of a lookup daemon, which names the brokers; may be repeated",
        ),
        option(
            "trusted_brokers",
            "--trusted-broker",
            multiple=True,
            metavar="HOST",
            help="broker of the lookup daemons that gets the token: host, host:port, *.domain or network; may be"
            " repeated",
        ),
        option("-c", "--context", metavar="NAME", shell_complete=complete_contexts, help="context to use"),
        option("--token", metavar="TOKEN", help="token for the brokers; the process list shows it"),
        option("--token-file", type=click.Path(), metavar="FILE", help="file with the token for the brokers"),
        option("--lookupd-token", metavar="TOKEN", help="token for the lookup daemons"),
        option("--ca", type=click.Path(), metavar="FILE", help="use HTTPS; file of the authorities to trust"),
        option("--cert", type=click.Path(), metavar="FILE", help="use HTTPS; client certificate"),
        option("--key", type=click.Path(), metavar="FILE", help="key of the client certificate"),
        option("timeout_ns", "--timeout", type=duration, metavar="DURATION", help="limit of a request  [default: 10s]"),
        option(
            "as_json", "--json/--table", default=None, help="print JSON or a table  [default: a table on a terminal]"
        ),
    ]


def shared_names() -> frozenset[str]:
    return frozenset(str(option.name) for option in shared_options())


class HelpMixin(click.Command):
    """Help with the shared options in a section of their own, and with the calls on the wire.

    wire: lines of the section "On the wire".
    """

    wire: Sequence[str] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: the command's own, then the shared ones."""
        names = shared_names()
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            # Arguments are described by the text above.
            if record is not None and isinstance(param, click.Option):
                (shared if param.name in names else own).append(record)
        for title, records in (("Options", own), (SHARED, shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.wire:
            with formatter.section(WIRE):
                for line in self.wire:
                    formatter.write_text(line)
        super().format_epilog(ctx, formatter)


class CtlCommand(HelpMixin):
    """One command."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, then report the failures of single daemons."""
        session = ctx.obj
        assert isinstance(session, CtlSession)
        with contextlib.closing(session):
            try:
                code = super().invoke(ctx) or 0
            except ClientError:
                session.finish()
                raise
            ctx.exit(code or session.finish())


class CtlGroup(HelpMixin, click.Group):
    """Group of commands under one name, such as `context`."""

    command_class = CtlCommand


class Root(CtlGroup):
    """All commands. Errors of the client become a line on standard error and an exit code."""

    group_class = CtlGroup

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options()

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        ctx.obj = CtlSession(ctx.meta.setdefault(FLAGS_KEY, {}))
        try:
            super().invoke(ctx)
        except ClientError as error:
            say(str(error))
            if isinstance(error, NotConnectedError) and ctx.obj.uses_default_address:
                say("-a ADDRESS, -l ADDRESS or `pyqctl context add` name other brokers: pyqctl --help")
            ctx.exit(code_of(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Loads the asynchronous client, which no command needs.
            from pyqd.tools.common import exit_by_sigpipe

            ctx.exit(exit_by_sigpipe())


def command(*wire: str, name: str | None = None) -> Callable[[Callable[..., Any]], CtlCommand]:
    """Return a decorator that makes a command of a function, named like it. wire: the calls that it makes, for help."""

    def decorate(function: Callable[..., Any]) -> CtlCommand:
        made = click.command(name, cls=CtlCommand)(function)
        made.wire = wire
        return made

    return decorate


def yes_option(function: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="do not ask")(function)
