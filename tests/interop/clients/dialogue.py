"""The lines a client script and its test say to one another.

A script runs one client library as either a producer or a consumer. It reads commands from standard input and writes
events to standard output, both one JSON object a line, bodies in base64. The test so decides every step, and the
script's event loop never meets pytest's.

Commands: ``pub``, ``mpub`` (topic, bodies), ``dpub`` (topic, bodies, delay_ms) of a producer; ``fin``, ``touch``,
``fin_twice`` (id), ``req`` (id, delay_ms, backoff), ``cls`` of a consumer; ``close`` of both, the last one: the script
then leaves with status 0.

Events: ``connected`` (a producer may publish), ``published``, ``failed`` (error), ``message`` (id, attempts, body),
``heartbeat``, ``close_wait`` (the daemon agreed to CLS), ``answered`` (error: of the second FIN, or empty).
"""

import argparse
import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Command:
    """One command of the test. Delays are in milliseconds."""

    op: str
    topic: str = ""
    bodies: list[bytes] = field(default_factory=list)
    delay_ms: int = 0
    backoff: bool = False
    id: str = ""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["producer", "consumer"], required=True)
    parser.add_argument("--lookupd", default="", help="host:port of a lookup daemon, instead of --address")
    parser.add_argument("--address", default="", help="host:port of the daemon; several with commas")
    parser.add_argument("--topic", default="")
    parser.add_argument("--channel", default="")
    parser.add_argument("--max-in-flight", type=int, default=1)
    parser.add_argument("--heartbeat-ms", type=int, default=30_000)
    parser.add_argument("--msg-timeout-ms", type=int, default=60_000)
    parser.add_argument("--auth-secret", default="", help="what the client says in AUTH; empty for no AUTH")
    parser.add_argument("--upgrades", default="", help="of the connection: tls_v1, snappy, deflate; with commas")
    parser.add_argument("--ca-file", default="", help="the authority that signed the daemon's certificate")
    return parser.parse_args()


def read_commands(lines: Iterable[bytes] | None = None) -> Iterator[Command]:
    """Yield the test's commands until ``close``, which comes last; a closed pipe counts as ``close``."""
    for line in sys.stdin.buffer if lines is None else lines:
        fields: dict[str, Any] = json.loads(line)
        fields["bodies"] = [base64.b64decode(body) for body in fields.get("bodies", [])]
        command = Command(**fields)
        yield command
        if command.op == "close":
            return
    yield Command("close")


def report(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def report_message(message_id: str, attempts: int, body: bytes) -> None:
    report("message", id=message_id, attempts=attempts, body=base64.b64encode(body).decode())


def report_second_answer(finish: Callable[[], object]) -> None:
    """Finish a message twice, and write the error of the second time."""
    finish()
    try:
        finish()
    except Exception as error:
        report("answered", error=f"{type(error).__name__}: {error}")
    else:
        report("answered", error="")


def on_thread(hand_over: Callable[[Command], object]) -> None:
    """Read commands on a thread of their own, handing each over to the event loop; returns at once.

    The thread ends with ``close``, so that no interpreter shuts down while it still waits in a read.
    """
    import threading

    def run() -> None:
        for command in read_commands():
            hand_over(command)

    threading.Thread(target=run, name="commands", daemon=True).start()
