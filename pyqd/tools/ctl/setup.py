"""Commands that prepare pyqctl itself: contexts and shell completion. They send nothing."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from pyqd.client.errors import SettingError
from pyqd.tools.ctl.completion import SHELLS, complete_contexts
from pyqd.tools.ctl.contexts import SECRETS, VARIABLES, Context, unknown_context
from pyqd.tools.ctl.frame import CtlGroup, command, yes_option
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import Fitted, TableColumn, names

NOTHING: Final = "Nothing."
FILES: Final = ("token_file", "ca", "cert", "key")
HIDDEN: Final = "***"
COLUMNS: Final = (
    TableColumn("", "mark", style="green"),
    TableColumn("Name", "name", style="bold"),
    TableColumn("Brokers", "nsqd_http_addresses", names),
    TableColumn("Lookup daemons", "lookupd_http_addresses", names),
    TableColumn("Token", "token_text"),
    TableColumn("CA", "ca"),
    TableColumn("Certificate", "cert"),
)


@click.group(cls=CtlGroup)
def context() -> None:
    """Keep addresses, tokens and certificates under a name.

    They are in a file that only its owner can read: $XDG_CONFIG_HOME/pyqd/contexts.toml, by default
    ~/.config/pyqd/contexts.toml.
    """


@command(NOTHING)
@click.argument("name")
@yes_option
@click.pass_obj
def add(session: CtlSession, name: str, yes: bool) -> None:
    """Store the options of this command line as context NAME.

    The options are those that every command has: addresses, tokens, certificates. The first context becomes the
    current one. A context of that name is replaced, after a question.
    """
    given = {key: session.flags[key] for key in VARIABLES if key in session.flags}
    # The context is used from any directory.
    made = Context(**{key: os.path.abspath(value) if key in FILES else value for key, value in given.items()})
    if not made.nsqd_http_addresses and not made.lookupd_http_addresses:
        raise SettingError("a context needs an address: -a ADDRESS of a broker, or -l ADDRESS of a lookup daemon")
    made.check()
    file = session.context_file
    current, known = file.read()
    if name in known:
        session.confirm(f"Replace the context {name!r}?", yes)
    file.add(name, made)
    say(f"context {name!r} is stored in {file.path}" + ("" if current else ", and is the current one"))


@command(NOTHING)
@click.argument("name", shell_complete=complete_contexts)
@click.pass_obj
def use(session: CtlSession, name: str) -> None:
    """Make NAME the current context: the one for commands without addresses."""
    session.context_file.use(name)


@command(NOTHING, name="list")
@click.pass_obj
def list_contexts(session: CtlSession) -> None:
    """List the contexts, without their tokens. A star marks the current one."""
    current, known = session.context_file.read()
    rows: list[dict[str, Any]] = [
        {"name": name, "current": name == current, **shown(each)} for name, each in known.items()
    ]
    for_people = [
        {
            **row,
            "mark": "*" if row["current"] else "",
            "token_text": row.get("token") or row.get("token_file") or row.get("lookupd_token"),
        }
        for row in rows
    ]
    session.output.show({"contexts": rows}, lambda: Fitted(COLUMNS, for_people))


def shown(each: Context) -> dict[str, Any]:
    return {key: HIDDEN if key in SECRETS else value for key, value in each.given().items()}


@command(NOTHING)
@click.argument("name", shell_complete=complete_contexts)
@yes_option
@click.pass_obj
def remove(session: CtlSession, name: str, yes: bool) -> None:
    """Remove the context NAME, with its tokens."""
    _, known = session.context_file.read()
    if name not in known:
        raise unknown_context(name, known)
    session.confirm(f"Remove the context {name!r}?", yes)
    session.context_file.remove(name)


for each_command in (add, use, list_contexts, remove):
    context.add_command(each_command)


@command(
    "The printed script sends nothing. Completing the name of a topic or channel sends what `pyqctl channels` does, for"
    " at most a second."
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options, and names of topics, channels and contexts.

    \b
    bash:  pyqctl completion bash > ~/.local/share/bash-completion/completions/pyqctl
    zsh:   pyqctl completion zsh > ~/.zfunc/_pyqctl, where fpath has ~/.zfunc
    fish:  pyqctl completion fish > ~/.config/fish/completions/pyqctl.fish
    """
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    program = root.info_name or "pyqctl"
    click.echo(kind(root.command, {}, program, f"_{program.upper()}_COMPLETE").source())
