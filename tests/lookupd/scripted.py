"""A lookup daemon in the test's own process that does as the test says: well behaved, or not."""

from __future__ import annotations

import gc
import json
import struct
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.server import StreamServer

WAIT_S = 10.0
MAGIC = b"  V1"
INFO = {"broadcast_address": "127.0.0.1", "hostname": "h", "http_port": 4161, "tcp_port": 4160, "version": "9.9"}
CHUNK_BYTES = 1 << 16
TICK_S = 0.0005


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class Talk:
    """One connection of a broker. commands: the lines that came, without IDENTIFY's body; identity: that body."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.commands: list[str] = []
        self.identity: dict[str, Any] = {}
        self._unread = b""

    def read(self, count: int) -> bytes:
        while len(self._unread) < count:
            self._more()
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def lines(self) -> list[str]:
        """Return the next complete lines, at least one."""
        while b"\n" not in self._unread:
            self._more()
        whole, _, self._unread = self._unread.rpartition(b"\n")
        lines = whole.decode().split("\n")
        self.commands += lines
        return lines

    def _more(self) -> None:
        data = self.socket.recv(CHUNK_BYTES)
        if not data:
            raise EOFError
        self._unread += data

    def introduce(self, info: dict[str, Any] | None = None) -> None:
        """Read magic and IDENTIFY, and answer."""
        self.read_identity()
        self.socket.sendall(framed(json.dumps(INFO if info is None else info).encode()))

    def read_identity(self) -> None:
        assert self.read(len(MAGIC)) == MAGIC
        assert self.read(len(b"IDENTIFY\n")) == b"IDENTIFY\n"
        (size,) = struct.unpack(">i", self.read(4))
        self.identity = json.loads(self.read(size))

    def serve(self) -> None:
        """Answer every command with OK until the broker leaves."""
        while True:
            self.socket.sendall(framed(b"OK") * len(self.lines()))


def behave(talk: Talk) -> None:
    talk.introduce()
    talk.serve()


class ScriptedLookupd:
    """script: the conversation with each connection from now on; the connection closes when it returns."""

    def __init__(self, script: Callable[[Talk], object] = behave, host: str = "127.0.0.1", port: int = 0) -> None:
        self.script = script
        self.talks: list[Talk] = []
        self.running: list[Any] = []
        self.server = StreamServer((host, port), self._handle)
        self.server.start()
        self.port: int = self.server.server_port or 0
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _handle(self, socket: Any, _address: Any) -> None:
        talk = Talk(socket)
        self.talks.append(talk)
        self.running.append(gevent.getcurrent())
        try:
            self.script(talk)
        except (EOFError, OSError):
            pass
        finally:
            self.running.remove(gevent.getcurrent())
            socket.close()

    @property
    def commands(self) -> list[str]:
        """Commands of the present connection."""
        return self.talks[-1].commands if self.talks else []

    def has_more_than(self, talk_count: int) -> bool:
        """Return whether there were more connections than so many."""
        return len(self.talks) > talk_count

    def drop(self) -> None:
        """Close all connections."""
        gevent.killall(list(self.running))

    def stop(self) -> None:
        self.server.stop()
        self.drop()


class LoopWatch:
    """Within the block: longest_s is the most CPU time of this thread between two timers of the loop.

    The collector of the test's process is off: it walks over all that pytest has loaded.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s = 0.0
        self._timer = gevent.get_hub().loop.timer(TICK_S, TICK_S)

    def __enter__(self) -> LoopWatch:
        gc.disable()
        self._last_s = time.thread_time()
        self._timer.start(self._tick)
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.stop()
        self._timer.close()
        gc.enable()

    def _tick(self) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s


def wait_for(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop run until condition() is true. Raises: AssertionError."""
    with gevent.Timeout(WAIT_S, AssertionError(f"not within {WAIT_S} s: {what}")):
        while not condition():
            gevent.sleep(0.002)
