"""Lookup daemons side by side: /lookup and REGISTER per second, and memory. `python -m bench.lookup --nsqlookupd PATH`.

Each part runs on fresh daemons in turn, the daemon on one core and this program on another:

- rates: 10 brokers register 1,000 topics with 2 channels each; then one kept HTTP connection asks for random topics;
- memory: 1,000 brokers register the same topics.

Commands and requests are sent many at a time, so that the daemon and not the round trip is measured.
"""

import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.procfs import read_memory
from bench.setting import Cores
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.process import CpuTime, read_cpu_time

TOPICS, CHANNELS = 1000, 2
FEW, MANY = 10, 1000
AT_ONCE = 250
REQUESTS_AT_ONCE = 50
LOOKUP_S = 3.0
WAIT_S = 60.0
OK = struct.pack(">i", 2) + b"OK"
MEGA = 1e6


@dataclass
class Rates:
    """Figures of one run. cpu_us: CPU time of the daemon per request."""

    register_per_s: float
    register_cpu_us: float
    lookup_per_s: float
    lookup_cpu_us: float


class Node:
    """Connection of one broker to a lookup daemon."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        identity = {
            "broadcast_address": f"10.0.{number >> 8}.{number & 255}",
            "hostname": f"node{number}",
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.3.0",
        }
        body = json.dumps(identity).encode()
        self.socket.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        size = struct.unpack(">i", self._take(4))[0]
        self._take(size)

    def register(self, commands: list[bytes]) -> None:
        """Send REGISTER commands, some at a time, and wait for their OKs."""
        for start in range(0, len(commands), AT_ONCE):
            part = commands[start : start + AT_ONCE]
            self.socket.sendall(b"".join(part))
            answer = self._take(len(part) * len(OK))
            if answer != OK * len(part):
                raise SystemExit(f"REGISTER was refused: {answer[:200]!r}")

    def _take(self, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            more = self.socket.recv(count - len(taken))
            if not more:
                raise SystemExit("the lookup daemon has closed the connection")
            taken += more
        return bytes(taken)


def register_commands() -> list[bytes]:
    """Return the commands of one broker."""
    return [
        command
        for topic in range(TOPICS)
        for command in (
            b"REGISTER topic%d\n" % topic,
            *(b"REGISTER topic%d channel%d\n" % (topic, channel) for channel in range(CHANNELS)),
        )
    ]


class LookupDaemon:
    """One lookup daemon in a process of its own, pinned to a core."""

    def __init__(self, command: list[str], core: int | None) -> None:
        self.tcp_port, self.http_port = free_port(), free_port()
        flags = [f"-tcp-address=127.0.0.1:{self.tcp_port}", f"-http-address=127.0.0.1:{self.http_port}"]
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
                connection.request("GET", "/ping")
                connection.getresponse().read()
                return
            time.sleep(0.02)
        raise SystemExit(f"{command[0]} does not answer")

    def cpu(self) -> CpuTime:
        """Return the CPU time so far."""
        return read_cpu_time(self.process.pid)


@contextlib.contextmanager
def running(command: list[str], core: int | None) -> Iterator[LookupDaemon]:
    """Run a lookup daemon for a block."""
    daemon = LookupDaemon(command, core)
    try:
        yield daemon
    finally:
        daemon.process.terminate()
        daemon.process.wait(WAIT_S)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def rates(command: list[str], core: int | None) -> Rates:
    """Measure one daemon."""
    commands = register_commands()
    with running(command, core) as daemon:
        nodes = [Node(daemon.tcp_port, number) for number in range(FEW)]
        before, began_s = daemon.cpu(), time.monotonic()
        for node in nodes:
            node.register(commands)
        register_s, register_cpu = time.monotonic() - began_s, daemon.cpu() - before
        registered = FEW * len(commands)
        before, began_s = daemon.cpu(), time.monotonic()
        asked = ask(daemon.http_port)
        lookup_s, lookup_cpu = time.monotonic() - began_s, daemon.cpu() - before
        return Rates(
            register_per_s=registered / register_s,
            register_cpu_us=register_cpu.total_s * MEGA / registered,
            lookup_per_s=asked / lookup_s,
            lookup_cpu_us=lookup_cpu.total_s * MEGA / asked,
        )


def ask(port: int) -> int:
    """Ask for random topics for LOOKUP_S. Returns: the number of answers."""
    rng, count, end_s = random.Random(1), 0, time.monotonic() + LOOKUP_S
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection, connection.makefile("rb") as answers:
        while time.monotonic() < end_s:
            requests = [b"GET /lookup?topic=topic%d HTTP/1.1\r\nHost: x\r\n\r\n" % rng.randrange(TOPICS)
                        for _ in range(REQUESTS_AT_ONCE)]  # fmt: skip
            connection.sendall(b"".join(requests))
            for _ in requests:
                size = 0
                if not answers.readline().startswith(b"HTTP/1.1 200"):
                    raise SystemExit("/lookup was refused")
                while (line := answers.readline()) != b"\r\n":
                    name, _, value = line.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                if b'"producers"' not in answers.read(size):
                    raise SystemExit("/lookup has no producers")
            count += REQUESTS_AT_ONCE
    return count


def memory_mb(command: list[str], core: int | None) -> tuple[float, float]:
    """Return the memory after the registrations of MANY brokers, in MB, and the seconds these took."""
    commands = register_commands()
    with running(command, core) as daemon:
        began_s = time.monotonic()
        nodes = []
        for number in range(MANY):
            nodes.append(Node(daemon.tcp_port, number))
            nodes[-1].register(commands)
        return read_memory(daemon.process.pid).rss_bytes / MEGA, time.monotonic() - began_s


def main() -> int:
    """Measure all parts and print the tables."""
    parser = CommandParser(prog="python -m bench.lookup", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--nsqlookupd", default=os.environ.get("NSQLOOKUPD"), help="path; default: the variable NSQLOOKUPD"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of the rates, in turns (default: %(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the part with 1,000 brokers")
    given = parser.parse_args()
    cores = Cores.choose()
    if cores.generator is not None:
        os.sched_setaffinity(0, {cores.generator})
    commands = {"pyqlookupd": [sys.executable, "-m", "pyqd.apps.lookupd"]}
    if given.nsqlookupd:
        commands["nsqlookupd"] = [given.nsqlookupd]
    found: dict[str, list[Rates]] = {name: [] for name in commands}
    with Progress(total=given.repeat * len(commands), unit="runs") as progress:
        for _ in range(given.repeat):
            for name, command in commands.items():
                found[name].append(rates(command, cores.server))
                progress.advance()
    print("| median | " + " | ".join(commands) + " |\n| --- |" + " ---: |" * len(commands))
    for field in ("register_per_s", "register_cpu_us", "lookup_per_s", "lookup_cpu_us"):
        values = [statistics.median(getattr(each, field) for each in found[name]) for name in commands]
        print(f"| {field} | " + " | ".join(f"{value:,.1f}" for value in values) + " |")
    if not given.no_memory:
        for name, command in commands.items():
            mb, seconds = memory_mb(command, cores.server)
            print(f"{name}: {MANY} brokers, {TOPICS} topics, {CHANNELS} channels: {mb:,.0f} MB, {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
