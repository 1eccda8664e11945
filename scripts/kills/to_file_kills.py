#!/usr/bin/env python3
"""Kill pyq_to_file (SIGKILL) at random moments under load, and look for every finished message in its files.

    scripts/kills/to_file_kills.py                        100 kills, a random encoding after each
    scripts/kills/to_file_kills.py --encoding=parquet     one encoding
    scripts/kills/to_file_kills.py --kills=5 --json

A publisher keeps messages with numbers in a channel of one broker. pyq_to_file writes them, is killed, and is started
again. After the last kill it writes the rest, and ends by SIGTERM. The broker has no message then: all are finished. A
number that is in none of the files, or not as it was published, is lost. Duplicates are allowed: messages are delivered
at least once. Files in the work directory count too, as far as they can be read; an incomplete end does not.

Everything is decided by --seed but the timing. Exit code: 0 if nothing was lost, 1 otherwise, 2 for bad usage.
"""

import argparse
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam

from pyqd.client import Producer
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from pyqd.testing import BrokerProcess

TOPIC = "numbers"
CHANNEL = "nsq_to_file"
# A killed instance's messages come again after the timeout.
BROKER_FLAGS = ("--msg-timeout=1s",)
BATCH = 500
DEPTH_MAX = 20_000
POLL_S = 0.02
# Instances that are killed while they may still be starting.
STARTING_SHARE = 0.2
DRAIN_S = 120.0
STOP_S = 30.0
GZIP_WINDOW_BITS = 31
ENCODINGS = {
    "lines": (),
    "work-dir": ("--work-dir={work}",),
    "rotated": ("--work-dir={work}", "--rotate-size=300000"),
    "gzip": ("--gzip", "--gzip-level=1", "--work-dir={work}", "--rotate-interval=300ms"),
    "zstd": ("--zstd", "--rotate-size=500000"),
    "parquet": ("--parquet", "--rotate-size=1000000"),
}
RECORD = re.compile(rb"([0-9]{9}) ([0-9]{9})(x*)")


def body_of(number: int) -> bytes:
    """Return the message with a number; the second number and the length check that it is whole."""
    return b"%09d %09d%s" % (number, 999_999_999 - number, b"x" * (number % 500))


def number_of(body: bytes) -> int | None:
    """Return the number of a whole message, None for anything else."""
    match = RECORD.fullmatch(body)
    return int(match[1]) if match and body == body_of(int(match[1])) else None


class Load:
    """Thread that keeps messages in the channel."""

    def __init__(self, broker: Any) -> None:
        self.published = 0
        self.error: Exception | None = None
        self._broker = broker
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the present batch. Raises: the error of a publish."""
        self._is_done.set()
        self._thread.join(STOP_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with Producer(self._broker.tcp_address) as producer:
                while not self._is_done.is_set():
                    if depth_of(self._broker) < DEPTH_MAX:
                        for _ in range(10):
                            numbers = range(self.published, self.published + BATCH)
                            producer.publish_many(TOPIC, map(body_of, numbers))
                            self.published += BATCH
                    else:
                        self._is_done.wait(POLL_S)
        except Exception as error:
            self.error = error


def depth_of(broker: Any, *more: str) -> int:
    """Return the number of messages in the topic and its channel. more: other counts of the channel to add."""
    topic = broker.topic_stats(TOPIC)
    if topic is None:
        return 0
    return int(topic["depth"] + sum(each["depth"] + sum(each[name] for name in more) for each in topic["channels"]))


class Tool:
    """pyq_to_file, one instance after the other."""

    def __init__(self, broker: Any, directory: Path) -> None:
        self.out, self.work = directory / "out", directory / "work"
        self._broker = broker
        self._log_path = directory / "pyq_to_file.log"

    def start(self, encoding: str) -> subprocess.Popen[bytes]:
        """Start an instance."""
        flags = [flag.format(work=self.work) for flag in ENCODINGS[encoding]]
        command = [sys.executable, "-m", "pyqd.tools.pyq_to_file", f"--topic={TOPIC}", f"--channel={CHANNEL}"]
        command += [f"--nsqd-tcp-address={self._broker.tcp_address}", f"--output-dir={self.out}", *flags]
        with self._log_path.open("ab") as log:
            return subprocess.Popen([*command, "--max-in-flight=500", "--sync-interval=100ms"], stdout=log, stderr=log)

    def sync_count(self) -> int:
        """Return the number of syncs of all instances so far."""
        return self._log_path.read_bytes().count(b" syncing ") if self._log_path.exists() else 0

    def wait_for_sync(self, before: int) -> None:
        """Wait until an instance has synced messages. Raises: RuntimeError."""
        deadline_s = time.monotonic() + STOP_S
        while self.sync_count() == before:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"pyq_to_file does not write: {self._log_path.read_text()[-2000:]}")
            time.sleep(POLL_S)


# Reading what the tool has written.


def bodies_in(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file, up to its end or an incomplete piece."""
    name = path.name
    if name.endswith((".partial", ".parquet")):
        yield from parquet_bodies(path)
    elif name.endswith(".gz"):
        yield from gzip_text(path.read_bytes()).split(b"\n")
    elif name.endswith(".zst"):
        yield from zstd_text(path.read_bytes()).split(b"\n")
    else:
        yield from path.read_bytes().split(b"\n")


def gzip_text(data: bytes) -> bytes:
    """Return the text of the complete members."""
    text = []
    while data:
        member = zlib.decompressobj(GZIP_WINDOW_BITS)
        try:
            part = member.decompress(data)
        except zlib.error:
            break
        if not member.eof:
            break
        text.append(part)
        data = member.unused_data
    return b"".join(text)


def zstd_text(data: bytes) -> bytes:
    """Return the text of a file of frames. A kill can cut the last one: it is left out."""
    magic = b"\x28\xb5\x2f\xfd"
    end = len(data)
    while end > 0:
        try:
            return bytes(cramjam.zstd.decompress(data[:end]))
        except cramjam.DecompressionError:
            end = data.rfind(magic, 0, end)
    return b""


def parquet_bodies(path: Path) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = path.read_bytes()
    # A kill between the conversion of a journal and its move leaves a Parquet file under the journal's name.
    if data.startswith(b"PAR1"):
        yield from pq.read_table(pa.BufferReader(data))["value"].to_pylist()
        return
    with contextlib.suppress(pa.ArrowInvalid, OSError):
        for batch in pa.ipc.open_stream(data):
            yield from batch.column("value").to_pylist()


def counts_in(directories: list[Path], count: int) -> "array[int]":
    """Return how often each number is in the files."""
    found = array("L", bytes(8 * count))
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file() and not path.name.endswith(".new"):
                for body in bodies_in(path):
                    number = number_of(body)
                    if number is not None and number < count:
                        found[number] += 1
    return found


class Run:
    """One run: broker, load, kills, check."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self._arguments = arguments
        self._rng = random.Random(arguments.seed)
        self._directory = directory
        self._starts = dict.fromkeys(ENCODINGS, 0)

    def _encoding(self) -> str:
        chosen = self._arguments.encoding or self._rng.choice(list(ENCODINGS))
        self._starts[chosen] += 1
        return str(chosen)

    def run(self, progress: Progress) -> dict[str, Any]:
        home = self._directory / "broker"
        home.mkdir()
        broker = BrokerProcess(home, BROKER_FLAGS)
        with contextlib.ExitStack() as stack:
            stack.callback(broker.close)
            broker.start()
            load = Load(broker)
            load.start()
            stack.callback(load.stop)
            tool = Tool(broker, self._directory)
            busy = self._kill(tool, progress)
            load.stop()
            is_drained, code = self._finish(broker, tool)
            return self._report(tool, load.published, busy, is_drained, code)

    def _kill(self, tool: Tool, progress: Progress) -> int:
        """Kill instances; return the number of those that had written something."""
        busy = 0
        for number in range(self._arguments.kills):
            before = tool.sync_count()
            process = tool.start(self._encoding())
            try:
                if self._rng.random() >= STARTING_SHARE:
                    tool.wait_for_sync(before)
                time.sleep(self._rng.uniform(0.0, 2 * self._arguments.interval))
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(STOP_S)
            busy += tool.sync_count() > before
            progress.move_to(number + 1, f"{busy} of them had synced files")
        return busy

    def _finish(self, broker: Any, tool: Tool) -> tuple[bool, int]:
        """Write the rest; return whether the channel is empty, and the exit code of the last instance."""
        process = tool.start(self._encoding())
        try:
            deadline_s = time.monotonic() + DRAIN_S
            counts = ("in_flight_count", "deferred_count")
            while (is_drained := depth_of(broker, *counts) == 0) is False and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
            process.send_signal(signal.SIGTERM)
            return is_drained, process.wait(STOP_S)
        finally:
            process.kill()

    def _report(self, tool: Tool, published: int, busy: int, is_drained: bool, code: int) -> dict[str, Any]:
        counts = counts_in([tool.out, tool.work], published)
        lost = [number for number, count in enumerate(counts) if not count]
        files = [path for directory in (tool.out, tool.work) for path in directory.rglob("*") if path.is_file()]
        return {
            "kills": self._arguments.kills,
            "kills_after_a_sync": busy,
            "messages": published,
            "lost": len(lost),
            "first_lost": lost[:10],
            "duplicates": sum(counts) - (published - len(lost)),
            "drained": is_drained,
            "last_exit_code": code,
            "files": len(files),
            "left_in_work_dir": sum(path.is_relative_to(tool.work) for path in files),
            "starts": self._starts,
        }


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--encoding", choices=ENCODINGS, help="a random one for each start without it")
    parser.add_argument("--interval", type=float, default=0.3, help="mean seconds of work until a kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse(sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="to-file-kills-", ignore_cleanup_errors=True) as directory,
        Progress("killing", arguments.kills, "kills", line_s=10.0) as progress,
    ):
        report = Run(arguments, Path(directory)).run(progress)
    if arguments.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name.replace('_', ' ')}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    is_complete = report["lost"] == 0 and report["drained"] and report["last_exit_code"] == 0
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
