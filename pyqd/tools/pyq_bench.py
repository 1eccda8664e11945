"""Command `pyq_bench`: load for a broker, and the figures of the broker under it: rates, latencies, CPU time.

The load comes from the compiled generator in pyqd.hot.tools.loadgen, which also serves the benchmarks of pyqd.

Source: docs/tools/pyq_bench.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyqd.primitives.goflags import exit_with_mistake, suggestion
from pyqd.tools.bench.loads import Bench, StoppedError
from pyqd.tools.bench.options import AllOptions, Common, ConsumeOptions, LatencyOptions, PublishOptions
from pyqd.tools.bench.summary import BenchFigures
from pyqd.tools.bench.target import TOOL, prepare, probe
from pyqd.tools.common import EXIT_FATAL, EXIT_OK, Stdout, ToolOptions, log, refuse_arguments, run_tool

SYNOPSIS: Final = "Measures a broker: pyq_bench publish, pyq_bench consume or pyq_bench latency."
# For the page and its table.
Options = AllOptions


class Command(NamedTuple):
    """A command: its flags, its load, and a sentence for --help."""

    options: type[Common]
    load: Callable[[Bench, Any], Awaitable[BenchFigures]]
    help: str


COMMANDS: Final[Mapping[str, Command]] = {
    "publish": Command(PublishOptions, Bench.publish, "Publishes messages and counts the broker's answers."),
    "consume": Command(ConsumeOptions, Bench.consume, "Consumes and finishes messages as fast as they come."),
    "latency": Command(
        LatencyOptions, Bench.latency, "Publishes at a rate, consumes at once, and measures the time in between."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return run_command(name, arguments[1:])
    known = ", ".join(COMMANDS)
    if not name or not name.startswith("-"):
        what = f"unknown command: {name}{suggestion(name, COMMANDS)}" if name else "a command is needed"
        exit_with_mistake(TOOL, f"{what}; the commands are {known}")
    lines = "\n".join(f"  {TOOL} {name}: {command.help}" for name, command in COMMANDS.items())
    synopsis = f"{SYNOPSIS}\n\n{lines}\n\n{TOOL} COMMAND --help lists the flags of a command.\n"

    async def refuse(_: ToolOptions) -> int:
        exit_with_mistake(TOOL, f"the command comes first; the commands are {known}")

    return run_tool(TOOL, ToolOptions, arguments[:1], refuse, synopsis)


def run_command(name: str, argv: Sequence[str]) -> int:
    command = COMMANDS[name]

    async def run(options: Common) -> int:
        return await measure(command, options)

    return run_tool(f"{TOOL} {name}", command.options, argv, run, command.help, refuse_arguments)


async def measure(command: Command, options: Common) -> int:
    options.check()
    stdout = Stdout()
    target = probe(options.nsqd_tcp_address, options.auth_secret, options.timeout_s)
    topic = prepare(target, options.topic, options.nsqd_http_address, options.keep_topic, options.delete_topic)
    try:
        await asyncio.sleep(options.wait_s())
        figures = await command.load(Bench(target, topic), options)
    except StoppedError:
        log("stopped before the measurement began")
        return EXIT_OK
    finally:
        topic.clean_up()
    await stdout.write((figures.to_json() if options.json else figures.to_text()).encode() + b"\n")
    for warning in figures.warnings:
        log(f"WARNING: {warning}")
    for problem in figures.problems:
        log(f"ERROR: {problem}")
    return EXIT_FATAL if figures.problems else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
