"""Command-line tools of pyqd and of NSQ in turns, against one broker.

Tool and broker have a core each. A run is one process of a tool, with a topic of its own. Of to_pyq the whole time of
the process counts. The rate of a tool that consumes is that between the times at which a twentieth of the messages is
finished, and all but a twentieth: neither the start of the process nor the wait for the last sync is a part of it.
Afterwards the other side must have every message.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.accounts import read_stock
from bench.server import REPOSITORY, Figures, RunError, Server, Target, address_text, running
from bench.setting import Setting
from bench.study import Study
from pyqd.client import Producer

MESSAGES = 100_000
BODY_BYTES = 100
BATCH = 1000
CHANNEL = "bench"
POLL_S = 0.005
EDGE = 0.05
RUN_S = 600.0
STOP_S = 60.0
# Tools, their originals, and the share of the messages: requests of HTTP cost much more.
TOOLS = {
    "to_pyq": ("to_nsq", 1.0),
    "pyq_to_file": ("nsq_to_file", 1.0),
    "pyq_to_nsq": ("nsq_to_nsq", 1.0),
    "pyq_to_http": ("nsq_to_http", 0.1),
}


def body(number: int) -> bytes:
    return b"%0*d" % (BODY_BYTES, number)


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool. command: the beginning of its command line."""

    tool: str
    command: tuple[str, ...]
    server: Server
    messages: int
    directory: Path
    topic: str = "bench"
    copy: str = "bench-copy"

    @contextmanager
    def process(self, *arguments: str, stdin: str = os.devnull) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the tool for a block. Raises: RunError if it fails."""
        with (self.directory / "log").open("w+b") as log, open(stdin, "rb") as source:
            process = subprocess.Popen(
                [*self.command, *arguments],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=REPOSITORY,
                env=os.environ | {"GOMAXPROCS": "1"},
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(STOP_S)
            log.seek(0)
            if process.returncode:
                raise RunError(f"it ended with {process.returncode}: {log.read()[-500:].decode(errors='replace')}")

    def publish_lines(self) -> float:
        """Publish a file with a line per message. Returns: the time in s."""
        path = self.directory / "lines"
        path.write_bytes(b"".join(b"%s\n" % body(number) for number in range(self.messages)))
        address = f"--nsqd-tcp-address={address_text(self.server.tcp_address)}"
        begun_s = time.monotonic()
        with self.process(f"--topic={self.topic}", address, stdin=str(path)) as process:
            process.wait(RUN_S)
            took_s = time.monotonic() - begun_s
        self.require(read_stock(self.server, self.topic).message_count)
        return took_s

    def require(self, arrived: int) -> None:
        if arrived != self.messages:
            raise RunError(f"{arrived} of {self.messages} messages have arrived")

    def options(self) -> Sequence[str]:
        """Return the flags that name the place to which a tool passes messages on."""
        if self.tool == "pyq_to_file":
            # The original ends the wait for a batch that is not full by the interval alone.
            return (f"--output-dir={self.directory}/out", "--sync-interval=1s")
        if self.tool == "pyq_to_nsq":
            to = address_text(self.server.tcp_address)
            return (f"--destination-nsqd-tcp-address={to}", f"--destination-topic={self.copy}", "--status-every=0")
        return (f"--post=http://{address_text(self.server.http_address)}/pub?topic={self.copy}", "--status-every=0")

    def arrived(self) -> int:
        if self.tool != "pyq_to_file":
            return read_stock(self.server, self.copy).message_count
        files = (self.directory / "out").iterdir()
        return len({int(line) for path in files for line in path.read_bytes().splitlines()})

    def pass_on(self) -> float:
        """Let a tool consume the messages of a filled channel. Returns: the time for all at its rate, in s."""
        (self.directory / "out").mkdir()
        self.server.post("/channel/create", topic=self.topic, channel=CHANNEL)
        address = address_text(self.server.tcp_address)
        with Producer(address) as producer:
            for start in range(0, self.messages, BATCH):
                producer.publish_many(self.topic, map(body, range(start, min(start + BATCH, self.messages))))
        base = (f"--topic={self.topic}", f"--channel={CHANNEL}", f"--nsqd-tcp-address={address}")
        samples = [(time.monotonic(), 0)]
        with self.process(*base, *self.options()):
            while samples[-1][1] < self.messages:
                time.sleep(POLL_S)
                samples.append((time.monotonic(), self.messages - read_stock(self.server, self.topic).kept))
        self.require(self.arrived())
        inner = [sample for sample in samples if EDGE <= sample[1] / self.messages <= 1 - EDGE]
        first, last = (inner[0], inner[-1]) if inner and inner[0][1] < inner[-1][1] else (samples[0], samples[-1])
        return (last[0] - first[0]) / (last[1] - first[1]) * self.messages


def run(target: Target, tool: str, command: tuple[str, ...], setting: Setting, scale: float) -> Figures:
    messages = max(1, round(MESSAGES * TOOLS[tool][1] * scale))
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        running(target, cores=setting.cores.of(target), data_root=setting.data_root) as server,
    ):
        server.post("/topic/create", topic="bench")
        made = ToolRun(tool, command, server, messages, Path(directory))
        return {"rate_per_s": messages / (made.publish_lines() if tool == "to_pyq" else made.pass_on())}


def study(setting: Setting, scale: float) -> Study:
    originals = os.environ.get("NSQ_TOOLS")
    brokers = {each.name: each for each in map(Target.parse, filter(None, ("pyqd", os.environ.get("NSQD"))))}
    rows = {f"{tool} {broker}": (tool, brokers[broker]) for broker in brokers for tool in TOOLS}

    def measure(row: str, contender: str) -> Figures:
        tool, target = rows[row]
        own = (sys.executable, "-m", f"pyqd.tools.{tool}")
        command = own if contender == "pyqd" else (str(Path(originals or "") / TOOLS[tool][0]),)
        return run(target, tool, command, setting, scale)

    what = {row: f"{tool} against {target.name}, messages of {BODY_BYTES} B" for row, (tool, target) in rows.items()}
    return Study(rows=what, contenders=["pyqd", *(["NSQ"] if originals else [])], run=measure)
