"""Command for the life of one message. Brokers record the events; the program pyq_trace stores and shows them."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import click

from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.exits import UnsupportedError
from pyqd.tools.ctl.frame import command
from pyqd.tools.ctl.messages import ids_of
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import CtlSession

# Run as a module: the directory of the programs need not be in PATH.
MODULE: Final = "pyqd.tools.pyq_trace"
# The choice of --json and --table for the other program, which decides as this one does without it.
FORMS: Final = {True: ("--json",), False: ("--table",), None: ()}


@command(
    "GET /trace/log?max_bytes=1 at each broker, to find out whether it records events. Then pyq_trace reads its"
    " database."
)
@click.argument("message_id", metavar="ID")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.pass_obj
def trace(session: CtlSession, message_id: str, arguments: tuple[str, ...]) -> int:
    """Show the life of a message: runs `pyq_trace show ID ARGUMENT...`.

    It needs brokers that record events, and the database that `pyq_trace ship` makes of them. If no broker records
    events, the command says so and ends with exit code 6. Options of pyq_trace stand behind two dashes.
    """
    ids_of((message_id,))
    found = ask(session.brokers(), probe)
    missing = [failure.error for failure in found.failures if isinstance(failure.error, UnsupportedError)]
    session.failures += [failure for failure in found.failures if failure.error not in missing]
    for error in missing:
        say(f"{error}; it does not record what becomes of messages")
    if missing and not found.answers:
        raise UnsupportedError(
            "messages cannot be traced here; `pyqctl peek` shows those that wait, with their attempts"
        )
    form = FORMS[session.flags.get("as_json")]
    command = [sys.executable, "-m", MODULE, "show", *form, message_id, *arguments]
    return subprocess.run(command, check=False).returncode


def probe(broker: AskedBroker) -> None:
    """Ask whether a broker records events. Raises: ClientError."""
    broker.send("GET", "/trace/log", {"max_bytes": 1})
