"""One run of a command-line tool in bench.tools: its process, and what the broker says of its messages."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.server import REPOSITORY, Server
from pyqd.client import Producer

RUN_S = 600.0
STOP_S = 60.0
BATCH = 1000


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

    @property
    def http_address(self) -> str:
        return "{}:{}".format(*self.server.http_address)

    def body(self, number: int) -> bytes:
        """Return a message."""
        return b"%0*d" % (self.body_bytes, number)

    def records(self) -> Path:
        """Return a file with a line per message."""
        path = self.directory / f"{self.messages}-{self.body_bytes}"
        if not path.exists():
            with path.open("wb") as file:
                file.writelines(b"%s\n" % self.body(number) for number in range(self.messages))
        return path

    def publish(self, channel: str) -> None:
        """Publish the messages for a channel."""
        self._http("POST", f"/topic/create?topic={self.topic}")
        self._http("POST", f"/channel/create?topic={self.topic}&channel={channel}")
        with Producer(self.address) as producer:
            for start in range(0, self.messages, BATCH):
                numbers = range(start, min(start + BATCH, self.messages))
                producer.publish_many(self.topic, map(self.body, numbers))

    def timed(self, *arguments: str, stdin: Path | None = None) -> float:
        """Run the tool to its end; return the time in s. Raises: SystemExit if it fails."""
        with open(os.devnull if stdin is None else stdin, "rb") as source:
            began_s = time.monotonic()
            with self._process(arguments, source) as process:
                process.wait(RUN_S)
                took_s = time.monotonic() - began_s
                self._check(process)
        return took_s

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run the tool for a block, and stop it by SIGTERM. Raises: SystemExit if it fails."""
        with open(os.devnull, "rb") as source, self._process(arguments, source) as process:
            yield
            process.terminate()
            process.wait(STOP_S)
            self._check(process)

    @contextlib.contextmanager
    def _process(self, arguments: tuple[str, ...], source: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        def pin() -> None:
            if self.core is not None:
                os.sched_setaffinity(0, {self.core})

        with (self.directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*self.command, *arguments],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=REPOSITORY,
                env=os.environ | {"GOMAXPROCS": "1"},
                preexec_fn=pin,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(STOP_S)

    def _check(self, process: "subprocess.Popen[bytes]") -> None:
        if process.returncode:
            log = (self.directory / "log").read_text(errors="replace")
            self.fail(f"it ended with {process.returncode}: {log[-500:]}")

    def fail(self, text: str) -> None:
        """End the measurement."""
        sys.exit(f"{' '.join(self.command)}: {text}")

    def message_count(self, topic: str = "") -> int:
        """Return the number of messages that the broker has received for a topic."""
        return sum(int(found["message_count"]) for found in self._topics(topic or self.topic))

    def unfinished_count(self, channel: str) -> int:
        """Return the number of messages of a channel that are not finished."""
        names = ("depth", "in_flight_count", "deferred_count")
        (topic,) = self._topics(self.topic)
        (found,) = (each for each in topic["channels"] if each["channel_name"] == channel)
        return sum(int(found[name]) for name in names)

    def delete(self, topic: str) -> None:
        """Delete a topic, so that it takes no memory in the next runs."""
        self._http("POST", f"/topic/delete?topic={topic}")

    def _topics(self, topic: str) -> list[dict[str, Any]]:
        answer = json.loads(self._http("GET", f"/stats?format=json&topic={topic}&include_clients=false"))
        return list(answer["topics"])

    def _http(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(*self.server.http_address, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path)
            return connection.getresponse().read()
