"""Measure the cost of many topics: creation over HTTP, memory, mappings, /stats, stop and start.

    python -m bench.many_topics --topics 50000 --channels 1
    python -m bench.many_topics --topics 3000 --channels 3 --target /path/to/nsqd

One connection creates every topic and its channels, one request after the other, and publishes one message to each
topic. Then the server is stopped and started again, and one message of every hundredth topic is consumed.
"""

import http.client
import re
import socket
import statistics
import sys
import time
from pathlib import Path

from bench.server import Server, Target, running
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.tools.bench.process import TICKS_PER_SECOND

PARTS = 10
ANSWER_TIMEOUT_S = 120.0
POLL_S = 0.02
CONSUMED_EVERY = 100
MEGA = 1e6


class Client:
    """One kept HTTP connection to a server."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(*server.http_address, timeout=ANSWER_TIMEOUT_S)

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return the body of the answer. Raises: SystemExit for any other status than 200."""
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            sys.exit(f"{method} {path} answered {answer.status}: {content.decode(errors='replace')}")
        return content

    def timed(self, method: str, path: str) -> float:
        """Return the seconds until the whole answer was there."""
        started_s = time.perf_counter()
        self.ask(method, path)
        return time.perf_counter() - started_s


def create(client: Client, first: int, count: int, channel_count: int) -> None:
    """Create topics with their channels, one request after the other."""
    for number in range(first, first + count):
        client.ask("POST", f"/topic/create?topic=topic{number}")
        for channel in range(channel_count):
            client.ask("POST", f"/channel/create?topic=topic{number}&channel=channel{channel}")


def memory_of(pid: int) -> dict[str, float]:
    """Return the resident memory of a process in MB: all of it, and the private part without files."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {key: re.search(rf"^{key}:\s+(\d+)", status, re.MULTILINE) for key in ("VmRSS", "RssAnon")}
    return {key: int(match[1]) * 1024 / MEGA for key, match in found.items() if match is not None}


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def mapping_count_of(pid: int) -> int:
    """Return how many mappings a process has."""
    with Path(f"/proc/{pid}/maps").open("rb") as maps:
        return sum(1 for _ in maps)


def wait_until_answering(server: Server) -> float:
    """Return the seconds until /ping answers OK."""
    started_s = time.perf_counter()
    while True:
        server.require_alive()
        try:
            if Client(server).ask("GET", "/ping") == b"OK":
                return time.perf_counter() - started_s
        except OSError:
            if time.perf_counter() - started_s > ANSWER_TIMEOUT_S:
                raise
        time.sleep(POLL_S)


def consume_one(server: Server, topic: str) -> None:
    """Take one message of a topic and finish it."""
    with socket.create_connection(server.tcp_address, timeout=ANSWER_TIMEOUT_S) as consumer:
        consumer.sendall(f"  V2SUB {topic} channel0\nRDY 1\n".encode())
        received = b""
        while len(received) < 10 + 34:
            piece = consumer.recv(4096)
            if not piece:
                sys.exit(f"no message of {topic}: {received!r}")
            received += piece
        message_id = received[10 + 8 + 10 : 10 + 8 + 26]
        consumer.sendall(b"FIN " + message_id + b"\nCLS\n")
        while b"CLOSE_WAIT" not in received:
            received += consumer.recv(4096)


def show(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def show_memory(when: str, pid: int) -> None:
    memory = memory_of(pid)
    show(f"memory, {when}", f"{memory['VmRSS']:.0f} MB, of these {memory['RssAnon']:.0f} MB not of files")
    show(f"mappings, {when}", str(mapping_count_of(pid)))


def measure(server: Server, topic_count: int, channel_count: int, publish: bool) -> None:
    """Print a row for each figure."""
    client = Client(server)
    part = max(1, topic_count // PARTS)
    times_ms = []
    cpu_s = cpu_of(server.pid)
    with Progress("creation", topic_count, "topics") as progress:
        for first in range(0, topic_count, part):
            started_s = time.perf_counter()
            create(client, first, min(part, topic_count - first), channel_count)
            times_ms.append((time.perf_counter() - started_s) * 1e3 / min(part, topic_count - first))
            progress.advance(min(part, topic_count - first))
    total_s = statistics.fmean(times_ms) * topic_count / 1e3
    show("creation", f"{total_s:.1f} s, of these {cpu_of(server.pid) - cpu_s:.1f} s on a processor")
    show("creation of a topic, first tenth, last tenth", f"{times_ms[0]:.2f} ms, {times_ms[-1]:.2f} ms")
    show_memory("after creation", server.pid)
    if publish:
        started_s = time.perf_counter()
        with Progress("publishing", topic_count, "messages") as progress:
            for number in range(topic_count):
                client.ask("POST", f"/pub?topic=topic{number}", b"one message")
                progress.advance()
        show("one message to each topic", f"{time.perf_counter() - started_s:.1f} s")
        show_memory("after publishing", server.pid)
    show("/stats", f"{client.timed('GET', '/stats?format=json') * 1e3:.0f} ms")
    started_s = time.perf_counter()
    server.stop()
    show("stop", f"{time.perf_counter() - started_s:.2f} s")
    server.start()
    started_s = wait_until_answering(server)
    show("start until /ping answers", f"{started_s:.2f} s, of these {cpu_of(server.pid):.2f} s on a processor")
    show_memory("after the start", server.pid)
    if publish and channel_count:
        for number in range(0, topic_count, CONSUMED_EVERY):
            consume_one(server, f"topic{number}")
    started_s = time.perf_counter()
    server.stop()
    show("second stop", f"{time.perf_counter() - started_s:.2f} s")


def main() -> None:
    """Measure one server."""
    parser = CommandParser(prog="python -m bench.many_topics", description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=3000)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--target", default="pyqd", help="pyqd, or the path of an nsqd or a pyqd")
    parser.add_argument("--no-publish", action="store_true", help="create the topics, and leave them empty")
    parser.add_argument("--data-root", type=Path, help="directory in which the data directory is made")
    parser.add_argument("flags", nargs="*", help="further flags of the server, after --")
    given = parser.parse_args()
    target = Target.parse(given.target)
    show(target.name, f"{given.topics} topics, {given.channels} channels each")
    with running(target, data_root=given.data_root, flags=given.flags) as server:
        measure(server, given.topics, given.channels, not given.no_publish)


if __name__ == "__main__":
    main()
