#!/usr/bin/env python3
"""Restart brokers one after the other under load, and count what clients notice: `scripts/kills/rolling_restarts.py`.

Three brokers register with a lookup daemon. Each has publishers that wait for every OK, and consumers that find it by
/lookup and have messages in flight; some messages are deferred. A message is lost if its OK came and no consumer got
it, and early if it came before its due time. A publisher may lose its connection and connect again; any error frame,
and any connection that is refused, is an error.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress

TOPIC, CHANNEL = "orders", "audit"
DELAY_MS = 700
DEFERRED_SHARE = 0.1
WORK_S_MAX = 0.004
RDY = 50
SETTLE_S = 60.0
WAIT_S = 30.0
CLOCK_S = 0.002


class EndedError(Exception):
    """The server has closed the connection."""


class Link:
    """One connection of a client of NSQ. address: host and port."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"  V2")
        self.received = bytearray()

    def send(self, data: bytes) -> None:
        """Send all. Raises: EndedError."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise EndedError from error

    def frame(self) -> tuple[int, bytes]:
        """Return type and data of the next frame that is no heartbeat. Raises: EndedError, TimeoutError."""
        while True:
            size, kind = struct.unpack(">ii", self._take(8))
            data = self._take(size - 4)
            if data != b"_heartbeat_":
                return kind, data
            self.send(b"NOP\n")

    def _take(self, count: int) -> bytes:
        while len(self.received) < count:
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError as error:
                raise EndedError from error
            if not more:
                raise EndedError
            self.received += more
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken


class World:
    """All that clients saw. confirmed: message to its due time; found: messages that a consumer got."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.ended = threading.Event()
        self.number = 0
        self.confirmed: dict[int, float] = {}
        self.due_of: dict[int, float] = {}
        self.found: dict[int, int] = {}
        self.early = 0
        self.reconnects = 0
        self.errors: list[str] = []
        self.longest_s = 0.0

    def next_number(self, due_s: float) -> int:
        """Return the number of a new message."""
        with self.lock:
            self.number += 1
            self.due_of[self.number] = due_s
            return self.number

    def lost(self) -> set[int]:
        """Return the confirmed messages that no consumer has got."""
        return set(self.confirmed) - set(self.found)


def publish(world: World, address: tuple[str, int], rng: random.Random) -> None:
    """Publish one message after the other, each confirmed."""
    last_s = time.monotonic()
    while not world.stopping.is_set():
        try:
            link = Link(address)
        except OSError as error:
            world.errors.append(f"connect: {error}")
            time.sleep(0.05)
            continue
        with contextlib.suppress(EndedError), link.socket:
            while not world.stopping.is_set():
                deferred = rng.random() < DEFERRED_SHARE
                number = world.next_number(time.time() + DELAY_MS / 1000 if deferred else 0.0)
                body = struct.pack(">iq", 8, number)
                command = b"DPUB orders %d\n" % DELAY_MS if deferred else b"PUB orders\n"
                link.send(command + body)
                kind, data = link.frame()
                if kind == 0 and data == b"OK":
                    world.confirmed[number] = world.due_of[number]
                    world.longest_s = max(world.longest_s, time.monotonic() - last_s)
                    last_s = time.monotonic()
                else:
                    world.errors.append(f"publish: {data!r}")
                time.sleep(rng.random() * WORK_S_MAX)
        world.reconnects += 1


def consume(world: World, address: tuple[str, int], rng: random.Random) -> None:
    """Consume from a broker until it goes away."""
    with contextlib.suppress(EndedError, OSError):
        link = Link(address)
        with link.socket:
            link.send(b"SUB orders audit\n")
            kind, data = link.frame()
            if kind != 0:
                world.errors.append(f"subscribe: {data!r}")
                return
            link.send(b"RDY %d\n" % RDY)
            while not world.ended.is_set():
                kind, data = link.frame()
                if kind != 2:
                    continue
                number = struct.unpack(">q", data[26:34])[0]
                with world.lock:
                    world.early += time.time() < world.due_of[number] - CLOCK_S
                    world.found[number] = world.found.get(number, 0) + 1
                time.sleep(rng.random() * WORK_S_MAX)
                link.send(b"FIN " + data[10:26] + b"\n")


def discover(world: World, lookupd_port: int) -> None:
    """Keep a consumer at each broker that the lookup daemon names."""
    threads: dict[tuple[str, int], threading.Thread] = {}
    seed = 0
    while not world.ended.is_set():
        with contextlib.suppress(OSError, http.client.HTTPException):
            for producer in asked(lookupd_port, "GET", f"/lookup?topic={TOPIC}").get("producers", []):
                address = (producer["broadcast_address"], producer["tcp_port"])
                if address not in threads or not threads[address].is_alive():
                    seed += 1
                    threads[address] = threading.Thread(target=consume, args=(world, address, random.Random(seed)))
                    threads[address].start()
        time.sleep(0.1)
    for each in threads.values():
        each.join(WAIT_S)


def asked(port: int, method: str, path: str) -> Any:
    """Return the JSON of an answer; an empty dict if it has none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        body = connection.getresponse().read()
        return json.loads(body) if body.startswith(b"{") else {}
    finally:
        connection.close()


def free_port() -> int:
    """Return a port that nothing listens on, below those of outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until_it_answers(port: int) -> None:
    """Wait until /ping answers. Raises: SystemExit."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, http.client.HTTPException):
            asked(port, "GET", "/ping")
            return
        time.sleep(0.02)
    raise SystemExit(f"nothing answers on port {port}")


class Broker:
    """One broker. pid: of the process that serves now."""

    def __init__(self, directory: Path, lookupd_port: int) -> None:
        directory.mkdir()
        self.tcp_port, self.http_port = free_port(), free_port()
        command = [sys.executable, "-m", "pyqd.apps.daemon", f"--data-path={directory}"]
        command += [f"--tcp-address=127.0.0.1:{self.tcp_port}", f"--http-address=127.0.0.1:{self.http_port}"]
        command += ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address=127.0.0.1:{lookupd_port}"]
        with (directory.parent / f"{directory.name}.log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self.pid = self.process.pid
        until_it_answers(self.http_port)
        asked(self.http_port, "POST", f"/topic/create?topic={TOPIC}")
        asked(self.http_port, "POST", f"/channel/create?topic={TOPIC}&channel={CHANNEL}")

    def restart(self) -> None:
        """Hand over to a new process. Raises: SystemExit if it does not come up."""
        pid = asked(self.http_port, "POST", "/restart").get("pid")
        if pid is None:
            raise SystemExit("a restart was refused; see the broker's log")
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if asked(self.http_port, "GET", "/restart").get("pid") == pid:
                    self.pid = pid
                    self.process.poll()
                    return
            time.sleep(0.01)
        raise SystemExit(f"process {pid} does not serve")

    def stop(self) -> None:
        """Stop the process that serves."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


@contextlib.contextmanager
def cluster(directory: Path, count: int) -> Iterator[tuple[list[Broker], int]]:
    """Start a lookup daemon and brokers. Yields: the brokers and the HTTP port of the lookup daemon."""
    tcp_port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "pyqd.apps.lookupd", f"--tcp-address=127.0.0.1:{tcp_port}"]
    with ExitStack() as stack, (directory / "lookupd.log").open("wb") as log:
        lookupd = subprocess.Popen([*command, f"--http-address=127.0.0.1:{http_port}"], stderr=log)
        stack.callback(lookupd.wait)
        stack.callback(lookupd.terminate)
        until_it_answers(http_port)
        brokers = []
        for index in range(count):
            brokers.append(Broker(directory / f"broker{index}", tcp_port))
            stack.callback(brokers[-1].stop)
        yield brokers, http_port


def main() -> int:
    """Run, and print the figures. Returns: 1 if anything was lost, early or an error."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=50, help="restarts in all (default: %(default)s)")
    parser.add_argument("--brokers", type=int, default=3, help="number of brokers (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between two (default: %(default)s)")
    given = parser.parse_args()
    world = World()
    with tempfile.TemporaryDirectory(prefix="pyqd-rolling-") as directory, ExitStack() as stack:
        brokers, lookupd_port = stack.enter_context(cluster(Path(directory), given.brokers))
        threads = [threading.Thread(target=discover, args=(world, lookupd_port))]
        for index, broker in enumerate(brokers):
            address = ("127.0.0.1", broker.tcp_port)
            threads.append(threading.Thread(target=publish, args=(world, address, random.Random(-index))))
        for each in threads:
            each.start()
        try:
            with Progress(total=given.restarts, unit="restarts") as progress:
                for number in range(given.restarts):
                    brokers[number % len(brokers)].restart()
                    progress.advance()
                    time.sleep(given.pause)
            world.stopping.set()
            end_s = time.monotonic() + SETTLE_S
            while world.lost() and time.monotonic() < end_s:
                time.sleep(0.1)
        finally:
            world.stopping.set()
            world.ended.set()
            for broker in brokers:
                broker.stop()
            for each in threads:
                each.join(WAIT_S)
    lost = world.lost()
    again = sum(count - 1 for count in world.found.values())
    print(f"{given.restarts} restarts, {len(world.confirmed)} confirmed, {len(lost)} lost, {world.early} early")
    print(f"{again} delivered again, {world.reconnects} reconnects of publishers, {len(world.errors)} errors")
    print(f"longest time between two OKs of a publisher: {world.longest_s * 1000:.0f} ms")
    for text in world.errors[:10]:
        print(text)
    return 1 if lost or world.early or world.errors else 0


if __name__ == "__main__":
    sys.exit(main())
