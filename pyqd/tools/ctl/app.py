"""The command line of pyqctl: all commands, and its `main`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from pyqd.primitives.nsq_compat import VERSIONS
from pyqd.primitives.program_start import begin_program, is_stdout_closed
from pyqd.tools.ctl import (
    administration,
    consumers,
    dead_letters,
    doctor,
    drain,
    listing,
    messages,
    settings,
    setup,
    watch,
)
from pyqd.tools.ctl.exits import FAILED
from pyqd.tools.ctl.frame import Root
from pyqd.tools.ctl.output import say

PROGRAM: Final = "pyqctl"
WIDTH_CHARS: Final = 110


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH_CHARS})
@click.version_option(VERSIONS, message="%(prog)s %(version)s")
def cli() -> None:
    """Operate brokers: pyqd, and nsqd as far as it can.

    The brokers are those of --nsqd-http-address, or those that lookup daemons name, or those of a context; without any,
    the one at 127.0.0.1:4151. Output is a table on a terminal, and JSON otherwise.
    """


for command in (
    listing.topics,
    listing.channels,
    listing.nodes,
    watch.watch,
    consumers.consumers,
    administration.create,
    administration.pause,
    administration.unpause,
    administration.empty,
    administration.delete,
    messages.publish,
    messages.peek,
    messages.cancel,
    messages.reschedule,
    messages.deliver_now,
    settings.seek,
    settings.limits,
    settings.retention,
    dead_letters.dead_letters,
    drain.drain,
    doctor.doctor,
    messages.trace,
    setup.context,
    setup.completion,
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    begin_program(PROGRAM, "; a change may already be made")
    if is_stdout_closed():
        say("cannot write to standard output: it is closed; nothing is done")
        return FAILED
    try:
        cli.main(None if argv is None else list(argv), prog_name=PROGRAM)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    raise AssertionError("click ends by SystemExit")


if __name__ == "__main__":
    sys.exit(main())
