"""Measure command-line tools of pyqd and of NSQ in turns, against one broker.

    python -m bench.tools --nsq-tools PATH-OF-THEIR-DIRECTORY

Tool and broker have a core each. A run is one process of a tool, from its start to its end, with a topic of its own;
afterwards the broker must have every message.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cli import choose_cores
from bench.server import REPOSITORY, Server, Target, running
from bench.setting import Cores

RUN_S = 600.0


@dataclass(frozen=True)
class Tool:
    """A tool to measure. name: in this repository. original: of NSQ. load: runs it once; returns the wall time in s."""

    name: str
    original: str
    load: Callable[["Run"], float]


@dataclass(frozen=True)
class Run:
    """One run of a tool. command: the beginning of its command line. core: its only one; None for any."""

    command: tuple[str, ...]
    server: Server
    topic: str
    messages: int
    body_bytes: int
    core: int | None
    directory: Path

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.tcp_address)

    def records(self) -> Path:
        """Return a file with a line per message."""
        path = self.directory / f"{self.messages}-{self.body_bytes}"
        if not path.exists():
            with path.open("wb") as file:
                file.writelines(b"%0*d\n" % (self.body_bytes, number) for number in range(self.messages))
        return path

    def timed(self, *arguments: str, stdin: Path | None = None) -> float:
        """Run the tool to its end; return the time in s. Raises: SystemExit if it fails."""

        def pin() -> None:
            if self.core is not None:
                os.sched_setaffinity(0, {self.core})

        with open(os.devnull if stdin is None else stdin, "rb") as source:
            began_s = time.monotonic()
            done = subprocess.run(
                [*self.command, *arguments],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=REPOSITORY,
                env=os.environ | {"GOMAXPROCS": "1"},
                preexec_fn=pin,
                timeout=RUN_S,
                check=False,
            )
            took_s = time.monotonic() - began_s
        if done.returncode:
            sys.exit(f"{' '.join(self.command)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        return took_s

    def message_count(self) -> int:
        """Return the number of messages that the broker has received for the topic."""
        connection = http.client.HTTPConnection(*self.server.http_address, timeout=30)
        connection.request("GET", f"/stats?format=json&topic={self.topic}")
        topics = json.loads(connection.getresponse().read())["topics"]
        connection.close()
        return sum(topic["message_count"] for topic in topics)


def publish_lines(run: Run) -> float:
    """Publish a file. Returns: the time in s."""
    took_s = run.timed(f"--topic={run.topic}", f"--nsqd-tcp-address={run.address}", stdin=run.records())
    count = run.message_count()
    if count != run.messages:
        sys.exit(f"{' '.join(run.command)}: the broker has {count} of {run.messages} messages")
    return took_s


TOOLS = (Tool("to_pyq", "to_nsq", publish_lines),)


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
    parser = argparse.ArgumentParser(prog="python -m bench.tools", description=__doc__.partition("\n")[0])
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
