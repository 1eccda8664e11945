"""Client scripts as child processes: commands to them, events from them, every wait bounded."""

import base64
import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0

Event = dict[str, Any]


class ClientProcess:
    """One client script. Events go to ``events``, which several processes may share; each carries its ``source``."""

    def __init__(self, arguments: Sequence[str | Path], log: Path, events: "queue.Queue[Event] | None" = None) -> None:
        self.events: queue.Queue[Event] = events if events is not None else queue.Queue()
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [str(argument) for argument in arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._reader = threading.Thread(target=self._read_events, name=f"events of {log.stem}", daemon=True)
        self._reader.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "body" in event:
                event["body"] = base64.b64decode(event["body"])
            self.events.put({"source": self, **event})
        self.events.put({"source": self, "event": "end"})

    def send(self, op: str, *, bodies: Sequence[bytes] = (), **fields: str | int) -> None:
        assert self.process.stdin is not None
        encoded = [base64.b64encode(body).decode() for body in bodies]
        self.process.stdin.write(json.dumps({"op": op, "bodies": encoded, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def assert_running(self) -> None:
        """Assert that the script has not ended, showing its log if it has."""
        status = self.process.poll()
        assert status is None, f"ended with status {status}; {self.log.read_text(errors='replace')}"

    def next_event(self, timeout_s: float = WAIT_S) -> Event:
        """Take the next event.

        Raises:
            queue.Empty: none came within ``timeout_s`` seconds.
        """
        return self.events.get(timeout=timeout_s)

    def expect(self, kind: str) -> Event:
        """Take the next event other than a heartbeat (unless those are expected), which must be of this kind."""
        deadline = time.monotonic() + WAIT_S
        while True:
            event = self.next_event(max(0.0, deadline - time.monotonic()))
            if event["event"] == kind:
                return event
            assert event["event"] == "heartbeat", f"{event} instead of {kind}; {self.log.read_text(errors='replace')}"

    def publish(self, op: str, topic: str, *bodies: bytes, delay_ms: int = 0) -> None:
        """Publish and wait until the daemon has confirmed it."""
        self.send(op, topic=topic, bodies=bodies, delay_ms=delay_ms)
        self.expect("published")

    def finish(self, message: Event) -> None:
        self.send("fin", id=message["id"])

    def close(self) -> int:
        """Have the script close its client as the library does, and return the script's exit status."""
        self.send("close")
        status = self.process.wait(WAIT_S)
        self._release()
        return status

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._release()

    def _release(self) -> None:
        self._reader.join(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
