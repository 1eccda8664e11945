"""Measure command-line tools of pyqd and of NSQ in turns, against one broker.

    python -m bench.tools --nsq-tools PATH-OF-THEIR-DIRECTORY

Tool and broker have a core each. A run is one process of a tool, with a topic of its own. Of to_pyq the whole time of
the process counts; of tools that run on, the time in which they pass messages on: see bench/tool_drains.py. Afterwards
the other side must have every message.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cli import choose_cores
from bench.server import Target, running
from bench.setting import Cores
from bench.tool_drains import to_broker, to_files, to_http
from bench.tool_run import Run
from pyqd.primitives.command_line import CommandParser


@dataclass(frozen=True)
class Tool:
    """A tool to measure. name: in this repository. original: of NSQ. load: runs it once; returns the wall time in s."""

    name: str
    original: str
    load: Callable[[Run], float]


def publish_lines(run: Run) -> float:
    """Publish a file. Returns: the time in s."""
    took_s = run.timed(f"--topic={run.topic}", f"--nsqd-tcp-address={run.address}", stdin=run.records())
    count = run.message_count()
    if count != run.messages:
        run.fail(f"the broker has {count} of {run.messages} messages")
    return took_s


TOOLS = (
    Tool("to_pyq", "to_nsq", publish_lines),
    Tool("pyq_to_file", "nsq_to_file", to_files),
    Tool("pyq_to_nsq", "nsq_to_nsq", to_broker),
    Tool("pyq_to_http", "nsq_to_http", to_http),
)


def commands_of(tool: Tool, originals: Path | None) -> Mapping[str, tuple[str, ...]]:
    """Return the command lines of a tool and its original, by name."""
    commands: dict[str, tuple[str, ...]] = {tool.name: (sys.executable, "-m", f"pyqd.tools.{tool.name}")}
    if originals is not None:
        commands[tool.original] = (str(originals / tool.original),)
    return commands


def measure(
    tool: Tool, target: Target, originals: Path | None, cores: Cores, repeat: int, messages: int, body_bytes: int
) -> list[str]:
    """Return the rows of a table: median and range of each tool's rate, and the median ratio to the original."""
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, running(target, cores=cores.of(target)) as server:
        for number in range(repeat):
            for name, command in commands_of(tool, originals).items():
                topic = f"{name}-{number}"
                run = Run(command, server, topic, messages, body_bytes, cores.generator, Path(directory))
                rates.setdefault(name, []).append(messages / tool.load(run))
    return rows(target.name, rates, tool)


def rows(broker: str, rates: Mapping[str, Sequence[float]], tool: Tool) -> list[str]:
    """Return the rows of a table for the rates of a tool and its original."""
    lines = []
    for name, found in rates.items():
        ratio = ""
        if tool.original in rates and name == tool.name:
            ratios = [ours / theirs for ours, theirs in zip(found, rates[tool.original], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
        median, least, most = statistics.median(found), min(found), max(found)
        lines.append(f"| {name} | {broker} | {median:,.0f} ({least:,.0f} .. {most:,.0f}) | {ratio} |")
    return lines


def main() -> None:
    """Print the rates as a table."""
    parser = CommandParser(prog="python -m bench.tools", description=__doc__.partition("\n")[0])
    parser.add_argument("--nsq-tools", type=Path, help="directory of NSQ's tools; without it only pyqd's are measured")
    parser.add_argument("--nsqd", help="measure against this nsqd too")
    parser.add_argument("--tool", action="append", choices=[tool.name for tool in TOOLS], help="only these")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--server-core", type=int, default=None)
    parser.add_argument("--generator-core", type=int, default=None)
    parser.add_argument("--unpinned", action="store_true", help="leave the cores to the kernel")
    given = parser.parse_args()
    targets = [Target.parse(name) for name in ("pyqd", given.nsqd) if name]
    cores = choose_cores(given)
    print("| tool | broker | messages/s | ratio |\n| --- | --- | ---: | ---: |")
    for tool in TOOLS:
        if given.tool and tool.name not in given.tool:
            continue
        for target in targets:
            found = measure(tool, target, given.nsq_tools, cores, given.repeat, given.messages, given.body_bytes)
            print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
