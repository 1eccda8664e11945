"""A broker that does as a test says, and notes each command of its clients with its time.

It answers IDENTIFY, SUB and CLS as nsqd does. Messages, heartbeats, errors and the end of a connection come when the
test says so, whatever RDY is. Several brokers share one journal. Source: docs/nsq/tcp-protocol.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.readiness import is_readable

WAIT_S = 20.0
MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
COMMANDS_WITH_BODY = ("IDENTIFY", "AUTH", "PUB")


@dataclass(frozen=True)
class Entry:
    """One command of a client, such as "RDY 5" or "FIN 1" with the number of the message; or "closed"."""

    time_s: float
    broker: str
    command: str


@dataclass
class Journal:
    """Commands of all clients of several brokers, in the order in which the brokers read them."""

    entries: list[Entry] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, broker: str, command: str) -> None:
        with self.changed:
            self.entries.append(Entry(time.monotonic(), broker, command))
            self.changed.notify_all()

    def of(self, broker: str) -> list[str]:
        with self.changed:
            return [entry.command for entry in self.entries if entry.broker == broker]

    def wait(self, is_reached: Callable[[], bool], text: str) -> None:
        with self.changed:
            if not self.changed.wait_for(is_reached, WAIT_S):
                raise AssertionError(f"no {text} in {[(entry.broker, entry.command) for entry in self.entries]}")


class ScriptedBroker:
    """One broker for one client at a time. It answers IDENTIFY when admit() has been called."""

    def __init__(self, name: str, journal: Journal, max_rdy_count: int = 2500) -> None:
        self.name = name
        self.journal = journal
        # False: CLOSE_WAIT comes when the test calls close_wait().
        self.answers_cls = True
        # Answers to IDENTIFY and SUB with this error, if there is one.
        self.identify_error = ""
        self.sub_error = ""
        self._max_rdy_count = max_rdy_count
        # Sent in the answer to IDENTIFY: the broker's time for a message.
        self.msg_timeout_ms = 60_000
        self.more_facts: dict[str, object] = {}
        self._admitted = threading.Event()
        self.is_asked = False
        self._message_count = 0
        self._client: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name=f"broker {name}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._listener.getsockname())

    # The test's side.

    def admit(self) -> None:
        """Let the client in, and every later one."""
        self._admitted.set()

    def deliver(self, *bodies: bytes, attempts: int = 1, before: Sequence[bytes] = ()) -> int:
        """Send messages together, behind the frames in `before`; return the number of the last one, counted from 1."""
        frames = list(before)
        for body in bodies:
            self._message_count += 1
            head = struct.pack(">qH16s", time.time_ns(), attempts, b"%016x" % self._message_count)
            frames.append(frame(MESSAGE, head + body))
        assert self._client is not None
        self._client.sendall(b"".join(frames))
        return self._message_count

    def heartbeat(self) -> None:
        self._send(RESPONSE, b"_heartbeat_")

    def error(self, text: str) -> None:
        self._send(ERROR, text.encode())

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that may be no frame at all."""
        assert self._client is not None
        self._client.sendall(data)

    def close_wait(self) -> None:
        self._send(RESPONSE, b"CLOSE_WAIT")

    def disconnect(self) -> None:
        """Close the connection, and admit no later one."""
        self._admitted.clear()
        assert self._client is not None
        self._client.shutdown(socket.SHUT_RDWR)

    def commands(self, *kinds: str) -> list[str]:
        """Return the commands so far; only those of these kinds if any are given."""
        return [command for command in self.journal.of(self.name) if not kinds or command.split()[0] in kinds]

    @property
    def rdy(self) -> int:
        """Last RDY of the present connection."""
        last = 0
        for command in self.commands("RDY", "closed"):
            last = 0 if command == "closed" else int(command.split()[1])
        return last

    def wait_for(self, command: str, times: int = 1) -> None:
        """Wait until a command has come so many times."""
        self.journal.wait(lambda: self.commands().count(command) >= times, f"{command} at {self.name} {times} times")

    def wait_for_client(self) -> None:
        """Wait until a client has sent IDENTIFY."""
        self.journal.wait(lambda: self.is_asked, f"IDENTIFY at {self.name}")

    def wait_for_rdy(self, is_reached: Callable[[int], bool]) -> None:
        """Wait until the last RDY is as wanted."""
        self.journal.wait(lambda: is_reached(self.rdy), f"awaited RDY at {self.name}")

    def stop(self) -> None:
        self._is_stopping = True
        self._admitted.set()
        # shutdown() wakes accept(); close() alone does not.
        for sock in (self._listener, self._client):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._listener.close()

    # The client's side.

    def _send(self, kind: int, data: bytes) -> None:
        assert self._client is not None
        self._client.sendall(frame(kind, data))

    def _serve(self) -> None:
        while not self._is_stopping:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._client = client
                with contextlib.suppress(OSError):
                    for command in self._read(client):
                        self._answer(command)
            if not self._is_stopping:
                self.journal.note(self.name, "closed")

    def _read(self, client: socket.socket) -> Iterator[str]:
        """Yield the client's commands, noted down, until its end of file."""
        # Without a buffer, so that select() tells whether the client has sent more.
        with client.makefile("rb", buffering=0) as stream:
            assert _read_exactly(stream, len(MAGIC)) == MAGIC
            for line in stream:
                words = line.decode().split()
                if words[0] in COMMANDS_WITH_BODY:
                    (size,) = struct.unpack(">i", _read_exactly(stream, 4))
                    _read_exactly(stream, size)
                elif words[0] in ("FIN", "REQ", "TOUCH"):
                    words[1] = str(int(words[1], 16))
                if words[0] == "IDENTIFY":
                    with self.journal.changed:
                        self.is_asked = True
                        self.journal.changed.notify_all()
                    self._admitted.wait(WAIT_S)
                    if is_readable(client, 0):
                        self.journal.note(self.name, "early")
                command = " ".join(words)
                self.journal.note(self.name, command)
                yield command

    def _facts(self) -> bytes:
        facts = {"max_rdy_count": self._max_rdy_count, "msg_timeout": self.msg_timeout_ms, "version": "1.3.0"}
        return json.dumps(facts | self.more_facts).encode()

    def _answer(self, command: str) -> None:
        if command == "IDENTIFY" and self.identify_error:
            self.error(self.identify_error)
        elif command == "IDENTIFY":
            self._send(RESPONSE, self._facts())
        elif command.startswith("SUB") and self.sub_error:
            self.error(self.sub_error)
        elif command.startswith(("SUB", "PUB")):
            self._send(RESPONSE, b"OK")
        elif command == "CLS" and self.answers_cls:
            self.close_wait()


def _read_exactly(stream: io.RawIOBase, size: int) -> bytes:
    """Return so many bytes. Raises: ConnectionError at the end of the file."""
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise ConnectionError("end of file")
        data += more
    return data


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


@contextlib.contextmanager
def scripted_brokers(*names: str, max_rdy_count: int = 2500) -> Iterator[list[ScriptedBroker]]:
    """Give brokers of these names with one journal; they stop at the end."""
    journal = Journal()
    with contextlib.ExitStack() as stack:
        brokers = [ScriptedBroker(name, journal, max_rdy_count) for name in names]
        for broker in brokers:
            stack.callback(broker.stop)
        yield brokers


def settle(broker: ScriptedBroker) -> None:
    """Wait until the client has read what the broker sent before."""
    answered = broker.commands().count("NOP")
    broker.heartbeat()
    broker.wait_for("NOP", times=answered + 1)
