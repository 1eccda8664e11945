"""Lookup daemons in turns: /lookup and REGISTER per second, and memory.

Each run has fresh daemons: 10 brokers register 1,000 topics with 2 channels each, then one kept HTTP connection asks
for random topics. The memory is that of a daemon with 1,000 brokers that register the same topics. Commands and
requests are sent many at a time, so that the daemon and not the round trip is measured.
"""

import os
import random
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.server import Figures, RunError, Server, Target, nsqd_options, running
from bench.setting import Setting, read_memory
from bench.study import Study
from pyqd.tools.bench.connections import Address, receive_exactly
from pyqd.tools.bench.process import read_cpu_time

TOPICS, CHANNELS = 1000, 2
FEW, MANY = 10, 1000
AT_ONCE = 250
REQUESTS_AT_ONCE = 50
LOOKUP_S = 3.0
WAIT_S = 60.0
OK = struct.pack(">i", 2) + b"OK"
IDENTITY = b'{"broadcast_address":"10.0.%d.%d","hostname":"node","tcp_port":4150,"http_port":4151,"version":"1.3.0"}'


def register(server: Server, number: int, commands: list[bytes]) -> socket.socket:
    """Connect a broker and register its topics. Returns: its connection. Raises: RunError."""
    connection = socket.create_connection(server.tcp_address, WAIT_S)
    body = IDENTITY % (number >> 8, number & 255)
    connection.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    receive_exactly(connection, struct.unpack(">i", receive_exactly(connection, 4))[0])
    for start in range(0, len(commands), AT_ONCE):
        part = commands[start : start + AT_ONCE]
        connection.sendall(b"".join(part))
        answer = receive_exactly(connection, len(part) * len(OK))
        if answer != OK * len(part):
            raise RunError(f"REGISTER was refused: {answer[:200]!r}")
    return connection


def register_commands() -> list[bytes]:
    """Return the commands of one broker."""
    return [
        b"REGISTER topic%d%b\n" % (topic, channel)
        for topic in range(TOPICS)
        for channel in (b"", *(b" channel%d" % number for number in range(CHANNELS)))
    ]


def look_up(server: Server, seconds: float) -> int:
    """Ask for random topics for so long. Returns: the number of answers. Raises: RunError."""
    rng, count, end_s = random.Random(1), 0, time.monotonic() + seconds
    with socket.create_connection(server.http_address, WAIT_S) as connection:
        while time.monotonic() < end_s:
            topics = [rng.randrange(TOPICS) for _ in range(REQUESTS_AT_ONCE)]
            connection.sendall(
                b"".join(b"GET /lookup?topic=topic%d HTTP/1.1\r\nHost: x\r\n\r\n" % each for each in topics)
            )
            count += read_answers(connection, len(topics))
    return count


def read_answers(connection: socket.socket, count: int) -> int:
    received = b""
    for _ in range(count):
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += connection.recv(1 << 20)
        head = received[:end].lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(received) < end + 4 + size:
            received += connection.recv(1 << 20)
        if not head.startswith(b"http/1.1 200") or b'"producers"' not in received[end : end + 4 + size]:
            raise RunError(f"/lookup has no producers: {received[: end + 4 + size]!r}")
        received = received[end + 4 + size :]
    return count


def run(target: Target, setting: Setting, scale: float) -> Figures:
    commands = register_commands()
    cores = setting.cores.of(target)
    with running(target, cores=cores) as server:
        before, begun_s = read_cpu_time(server.pid), time.monotonic()
        brokers = [register(server, number, commands) for number in range(FEW)]
        between, between_s = read_cpu_time(server.pid), time.monotonic()
        registered = FEW * len(commands)
        answered = look_up(server, LOOKUP_S * scale)
        lookup_s, lookup_cpu = time.monotonic() - between_s, read_cpu_time(server.pid) - between
    for each in brokers:
        each.close()
    with running(target, cores=cores) as server:
        many_s = time.monotonic()
        brokers = [register(server, number, commands) for number in range(max(1, round(MANY * scale)))]
        took_s, memory = time.monotonic() - many_s, read_memory(server.pid)
    for each in brokers:
        each.close()
    return {
        "REGISTER per s": registered / (between_s - begun_s),
        "CPU of a REGISTER, us": (between - before).total_s * 1e6 / registered,
        "/lookup per s": answered / lookup_s,
        "CPU of a /lookup, us": lookup_cpu.total_s * 1e6 / answered,
        "memory_mb": memory.rss_bytes / 1e6,
        "time of its registrations, s": took_s,
    }


def study(setting: Setting, scale: float) -> Study:
    def options(tcp: Address, http: Address, data_path: Path) -> Sequence[str]:
        return nsqd_options(tcp, http, data_path)[:2]

    commands: dict[str, tuple[str, ...]] = {"pyqlookupd": (sys.executable, "-m", "pyqd.apps.lookupd")}
    if given := os.environ.get("NSQLOOKUPD"):
        commands["nsqlookupd"] = (given,)
    return Study(
        rows={"lookup": "1,000 topics with 2 channels each"},
        contenders=list(commands),
        run=lambda _row, name: run(Target(name, commands[name], options=options), setting, scale),
    )
