#!/usr/bin/env python3
"""Restart brokers one after the other under load, and count what clients notice.

Brokers register with a lookup daemon. Each has a publisher that waits for every OK, and consumers that find it by
/lookup and have messages in flight; some messages are deferred. A message is lost if its OK came and no consumer got
it, and early if it came before its due time. A publisher may lose its connection and connect again; any error frame,
and any connection that is refused, is an error.
"""

import contextlib
import http.client
import random
import struct
import sys
import threading
import time
from typing import Any

from harness import (
    ERROR,
    HOST,
    MESSAGE,
    WAIT_S,
    Link,
    Loop,
    Program,
    RestartedBroker,
    asked,
    free_port,
    main,
    sized,
    wait_until,
)

TOPIC, CHANNEL = "orders", "audit"
DELAY_MS = 700
DEFERRED_SHARE = 0.1
WORK_S_MAX = 0.004
RDY = 50
SETTLE_S = 60.0
CLOCK_S = 0.002


class RollingRestarts(Loop):
    """The run. confirmed, due_of, found: messages by number, with due times and numbers of deliveries."""

    COUNT = ("--restarts", 50)
    SECONDS = 0.15
    OPTIONS = (("--brokers", {"type": int, "default": 3, "help": "number of brokers (%(default)s)"}),)

    def start(self) -> None:
        self.lock = threading.Lock()
        self.stopping, self.ended = threading.Event(), threading.Event()
        self.confirmed: set[int] = set()
        self.due_of: dict[int, float] = {}
        self.found: dict[int, int] = {}
        self.early = self.reconnects = 0
        self.longest_s = 0.0
        self.errors: list[str] = []
        tcp_port, self.lookupd_port = free_port(), free_port()
        lookupd = Program(
            *(self.directory / "lookupd.log", "-m", "pyqd.apps.lookupd", f"--tcp-address={HOST}:{tcp_port}"),
            f"--http-address={HOST}:{self.lookupd_port}",
        )
        lookupd.start()
        self.stack.callback(lookupd.stop)
        wait_until(lambda: asked(self.lookupd_port, "GET", "/info"), "the lookup daemon")
        self.brokers = []
        for index in range(self.given.brokers):
            broker = RestartedBroker(self.directory / f"broker{index}", f"--lookupd-tcp-address={HOST}:{tcp_port}")
            self.stack.callback(broker.stop)
            self.brokers.append(broker)
            for path in (f"/topic/create?topic={TOPIC}", f"/channel/create?topic={TOPIC}&channel={CHANNEL}"):
                asked(broker.http_port, "POST", path)
        self.stack.callback(self.join)
        self.stack.callback(self.ended.set)
        self.stack.callback(self.stopping.set)
        self.work(self._discover)
        for index, broker in enumerate(self.brokers):
            self.work(self._publish, broker.tcp_port, random.Random(-index))

    def fault(self, number: int) -> None:
        self.brokers[number % len(self.brokers)].restart()
        self.pause()

    def finish(self) -> None:
        self.stopping.set()
        with contextlib.suppress(RuntimeError):
            wait_until(lambda: self.confirmed <= self.found.keys(), "all messages", SETTLE_S)

    def check(self) -> dict[str, Any]:
        lost = len(self.confirmed - self.found.keys())
        return {
            "restarts": self.given.count,
            "confirmed": len(self.confirmed),
            "lost": lost,
            "early": self.early,
            "delivered_again": sum(count - 1 for count in self.found.values()),
            "reconnects": self.reconnects,
            "errors": self.errors,
            "longest_wait_ms": round(self.longest_s * 1000),
            "ok": not (lost or self.early or self.errors),
        }

    def _publish(self, port: int, rng: random.Random) -> None:
        """Publish one message after the other, each confirmed."""
        last_s = time.monotonic()
        while not self.stopping.is_set():
            try:
                link = Link(port, b"  V2")
            except OSError as error:
                self.errors.append(f"connect: {error}")
                time.sleep(0.05)
                continue
            with contextlib.suppress(ConnectionError), link.socket:
                while not self.stopping.is_set():
                    is_deferred = rng.random() < DEFERRED_SHARE
                    with self.lock:
                        number = len(self.due_of) + 1
                        self.due_of[number] = time.time() + DELAY_MS / 1000 if is_deferred else 0.0
                    command = b"DPUB orders %d\n" % DELAY_MS if is_deferred else b"PUB orders\n"
                    link.send(command + sized(struct.pack(">q", number)))
                    while not (frames := list(link.frames(WAIT_S))):
                        continue
                    for kind, data in frames:
                        if kind == ERROR:
                            self.errors.append(f"publish: {data!r}")
                        else:
                            self.confirmed.add(number)
                    self.longest_s = max(self.longest_s, time.monotonic() - last_s)
                    last_s = time.monotonic()
                    time.sleep(rng.random() * WORK_S_MAX)
            self.reconnects += 1

    def _consume(self, port: int, rng: random.Random) -> None:
        """Consume from a broker until it goes away."""
        with contextlib.suppress(OSError):
            link = Link(port, b"  V2SUB orders audit\nRDY %d\n" % RDY)
            with link.socket:
                while not self.ended.is_set():
                    for kind, data in link.frames(0.1):
                        if kind == ERROR:
                            self.errors.append(f"consume: {data!r}")
                        elif kind == MESSAGE:
                            self._take(data)
                            time.sleep(rng.random() * WORK_S_MAX)
                            link.send(b"FIN " + data[10:26] + b"\n")

    def _take(self, data: bytes) -> None:
        number = struct.unpack(">q", data[26:34])[0]
        with self.lock:
            self.early += time.time() < self.due_of[number] - CLOCK_S
            self.found[number] = self.found.get(number, 0) + 1

    def _discover(self) -> None:
        """Keep a consumer at each broker that the lookup daemon names."""
        threads: dict[int, threading.Thread] = {}
        while not self.ended.wait(0.1):
            with contextlib.suppress(OSError, http.client.HTTPException):
                found = asked(self.lookupd_port, "GET", f"/lookup?topic={TOPIC}") or {"producers": ()}
                for port in (producer["tcp_port"] for producer in found["producers"]):
                    if port not in threads or not threads[port].is_alive():
                        threads[port] = self.work(self._consume, port, random.Random(port))


if __name__ == "__main__":
    sys.exit(main(RollingRestarts))
