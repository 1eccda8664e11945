#!/usr/bin/env python3
"""Kill pyq_to_file (SIGKILL) at random moments under load, and look for every finished message in its files.

    scripts/kills/to_file_kills.py                        100 kills, a random encoding after each
    scripts/kills/to_file_kills.py --encoding=parquet     one encoding

A publisher keeps messages with numbers in a channel of one broker. pyq_to_file writes them, is killed, and is started
again. After the last kill it writes the rest, and ends by SIGTERM. The broker has no message then: all are finished. A
number that is in none of the files, or not as it was published, is lost. Duplicates are allowed: messages are delivered
at least once. Files in the work directory count too, as far as they can be read; an incomplete end does not.
"""

import contextlib
import re
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
from harness import POLL_S, Loop, Program, found_in, main, messages_in, wait_until

from pyqd.client import Producer

TOPIC = "numbers"
CHANNEL = "nsq_to_file"
BATCH = 500
DEPTH_MAX = 20_000
# Instances that are killed while they may still be starting.
STARTING_SHARE = 0.2
DRAIN_S = 120.0
GZIP_WINDOW_BITS = 31
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
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


# Reading what the tool has written.


def bodies_in(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file, up to its end or an incomplete piece."""
    if path.name.endswith((".partial", ".parquet")):
        yield from parquet_bodies(path.read_bytes())
    else:
        text = {".gz": gzip_text, ".zst": zstd_text}.get(path.suffix, bytes)(path.read_bytes())
        yield from text.split(b"\n")


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
    end = len(data)
    while end > 0:
        try:
            return bytes(cramjam.zstd.decompress(data[:end]))
        except cramjam.DecompressionError:
            end = data.rfind(ZSTD_MAGIC, 0, end)
    return b""


def parquet_bodies(data: bytes) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
                for number in map(number_of, bodies_in(path)):
                    if number is not None and number < count:
                        found[number] += 1
    return found


class ToFileKills(Loop):
    """The run. starts: of the tool, by encoding; busy: kills after it had written something."""

    SECONDS = 0.3
    OPTIONS = (("--encoding", {"choices": ENCODINGS, "help": "a random one for each start without it"}),)

    def start(self) -> None:
        self.starts = dict.fromkeys(ENCODINGS, 0)
        self.published = self.busy = 0
        self.out, self.work_path = self.directory / "out", self.directory / "work"
        # A killed instance's messages come again after the timeout.
        self.server = self.broker("broker", "--msg-timeout=1s")
        self.tool = Program(
            *(self.directory / "pyq_to_file.log", "-m", "pyqd.tools.pyq_to_file", f"--topic={TOPIC}"),
            *(f"--channel={CHANNEL}", f"--nsqd-tcp-address={self.server.tcp_address}", f"--output-dir={self.out}"),
            *("--max-in-flight=500", "--sync-interval=100ms"),
        )
        self.stack.callback(self.tool.kill)
        self._is_done = threading.Event()
        self.stack.callback(self._is_done.set)
        self._load = self.work(self._publish)

    def fault(self, _number: int) -> None:
        before = self._sync_count()
        self._start_tool()
        if self.rng.random() >= STARTING_SHARE:
            wait_until(lambda: self._sync_count() > before, "a file of pyq_to_file")
        self.pause()
        self.tool.kill()
        self.busy += self._sync_count() > before

    def note(self) -> str:
        return f"{self.busy} of them had synced files"

    def finish(self) -> None:
        self._is_done.set()
        self._load.join()
        self._start_tool()
        wait_until(lambda: messages_in(self.server.topic_stats(TOPIC)) == 0, "an empty channel", DRAIN_S)
        self.exit_code = self.tool.stop()

    def check(self) -> dict[str, Any]:
        found = found_in(counts_in([self.out, self.work_path], self.published))
        return {
            "kills": self.given.count,
            "kills_after_a_sync": self.busy,
            "messages": self.published,
            **found,
            "last_exit_code": self.exit_code,
            "starts": self.starts,
            "ok": not found["lost"] and self.exit_code == 0,
        }

    def _publish(self) -> None:
        with Producer(self.server.tcp_address) as producer:
            while not self._is_done.is_set():
                if messages_in(self.server.topic_stats(TOPIC)) < DEPTH_MAX:
                    for _ in range(10):
                        producer.publish_many(TOPIC, map(body_of, range(self.published, self.published + BATCH)))
                        self.published += BATCH
                else:
                    self._is_done.wait(POLL_S)

    def _start_tool(self) -> None:
        encoding = self.given.encoding or self.rng.choice(list(ENCODINGS))
        self.starts[encoding] += 1
        self.tool.start(*(flag.format(work=self.work_path) for flag in ENCODINGS[encoding]))

    def _sync_count(self) -> int:
        return self.tool.log_path.read_bytes().count(b" syncing ") if self.tool.log_path.exists() else 0


if __name__ == "__main__":
    sys.exit(main(ToFileKills))
