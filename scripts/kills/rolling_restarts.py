#!/usr/bin/env python3
"""Restart brokers one after the other under load, and count what clients notice.

Brokers register with a lookup daemon. Each has a publisher of its own that waits for every OK; some messages are
deferred. A consumer finds the brokers by the lookup daemon. Further connections to all brokers are made all the time. A
message is lost if its OK came and no consumer got it, and early if it came before its due time. A publisher's error
and a refused connection are errors.
"""

import contextlib
import http.client
import json
import logging
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness import HOST, WAIT_S, Loop, Program, main, wait_until

from pyqd.client import Consumer, Message, Producer

TOPIC, CHANNEL = "orders", "audit"
BROKERS = 3
DELAY_S = 0.7
DEFERRED_SHARE = 0.1
WORK_S_MAX = 0.004
RDY = 50
SETTLE_S = 60.0
RECONNECTING: dict[str, Any] = {"reconnect_max": 1.0}
CLOCK_S = 0.002
CONNECT_EVERY_S = 0.002


def asked(port: int, method: str, path: str) -> Any:
    """Return the JSON of an answer of loopback; None if it is refused or has none. Raises: OSError, HTTPException."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=WAIT_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == 200 and body[:1] in (b"{", b"[") else None


def free_port() -> int:
    """Return a port below those of outgoing connections: none of these takes it between a kill and the next start."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port


class RestartedBroker:
    """A broker that hands its sockets over to a new process. pid: of the process that serves."""

    def __init__(self, directory: Path, *flags: str) -> None:
        directory.mkdir()
        self.tcp_port, self.http_port = free_port(), free_port()
        self._program = Program(
            directory.parent / f"{directory.name}.log",
            *("-m", "pyqd.apps.daemon", f"--data-path={directory}", f"--tcp-address={HOST}:{self.tcp_port}"),
            *(f"--http-address={HOST}:{self.http_port}", f"--broadcast-address={HOST}", *flags),
        )
        self._wait_for(self._program.start().pid)

    def _wait_for(self, pid: int) -> None:
        wait_until(lambda: (asked(self.http_port, "GET", "/restart") or {}).get("pid") == pid, f"broker {pid}")
        self.pid = pid

    def restart(self) -> None:
        """Hand over to a new process. Raises: RuntimeError."""
        answer = asked(self.http_port, "POST", "/restart")
        if answer is None:
            raise RuntimeError(f"a restart was refused: {self._program.log_tail()}")
        self._wait_for(answer["pid"])

    def stop(self) -> None:
        """Stop the process that serves. It is no child of this one; its port tells of its end."""
        os.kill(self.pid, signal.SIGTERM)

        def refuses() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((HOST, self.http_port)) != 0

        wait_until(refuses, "the end of the broker")


class RollingRestarts(Loop):
    """The run. confirmed, due_of, found: messages by number, with due times and numbers of deliveries."""

    COUNT = ("--restarts", 50)
    SECONDS = 0.15

    def start(self) -> None:
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.confirmed: set[int] = set()
        self.due_of: dict[int, float] = {}
        self.found: Counter[int] = Counter()
        self.early = self.connections = 0
        self.longest_s = 0.0
        self.errors: list[str] = []
        tcp_port, http_port = free_port(), free_port()
        lookupd = Program(
            *(self.directory / "lookupd.log", "-m", "pyqd.apps.lookupd", f"--tcp-address={HOST}:{tcp_port}"),
            f"--http-address={HOST}:{http_port}",
        )
        lookupd.start()
        self.stack.callback(lookupd.stop)
        wait_until(lambda: asked(http_port, "GET", "/info"), "the lookup daemon")
        self.brokers = []
        for index in range(BROKERS):
            broker = RestartedBroker(self.directory / f"broker{index}", f"--lookupd-tcp-address={HOST}:{tcp_port}")
            self.stack.callback(broker.stop)
            self.brokers.append(broker)
            for path in (f"/topic/create?topic={TOPIC}", f"/channel/create?topic={TOPIC}&channel={CHANNEL}"):
                asked(broker.http_port, "POST", path)
        self.stack.callback(self.stopping.set)
        logging.getLogger("pyqd.client").setLevel(logging.ERROR)
        consumer = Consumer(TOPIC, CHANNEL, lookupd=f"{HOST}:{http_port}", max_in_flight=RDY, **RECONNECTING)
        consumer.handler()(self._take)
        self.stack.callback(consumer.drain)
        consumer.start()
        self.work(self._connect)
        for index, broker in enumerate(self.brokers):
            self.work(self._publish, broker, random.Random(-index))

    def fault(self, number: int) -> None:
        self.brokers[number % len(self.brokers)].restart()
        self.pause()

    def finish(self) -> None:
        self.stopping.set()
        self.join()
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
            "connections": self.connections,
            "errors": self.errors,
            "longest_wait_ms": round(self.longest_s * 1000),
            "ok": not (lost or self.early or self.errors),
        }

    def _publish(self, broker: RestartedBroker, rng: random.Random) -> None:
        with Producer(f"{HOST}:{broker.tcp_port}", **RECONNECTING) as producer:
            while not self.stopping.is_set():
                begun_s = time.monotonic()
                delay_s = DELAY_S if rng.random() < DEFERRED_SHARE else 0.0
                with self.lock:
                    number = len(self.due_of) + 1
                    self.due_of[number] = time.time() + delay_s
                producer.publish(TOPIC, struct.pack(">q", number), delay=delay_s or None)
                self.confirmed.add(number)
                self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
                time.sleep(rng.random() * WORK_S_MAX)

    def _take(self, message: Message) -> None:
        (number,) = struct.unpack(">q", message.body)
        with self.lock:
            self.early += time.time() < self.due_of[number] - CLOCK_S
            self.found[number] += 1

    def _connect(self) -> None:
        while not self.stopping.wait(CONNECT_EVERY_S):
            for broker in self.brokers:
                try:
                    socket.create_connection((HOST, broker.http_port), WAIT_S).close()
                except OSError as error:
                    self.errors.append(f"connect to HTTP: {error}")
                self.connections += 1


if __name__ == "__main__":
    sys.exit(main(RollingRestarts))
