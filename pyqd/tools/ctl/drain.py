"""Command that drains a broker. Source: docs/http.md, "Drain"."""

from __future__ import annotations

import socket
import time
from typing import Any, Final

import click

from pyqd.client.errors import NotConnectedError, SettingError
from pyqd.primitives.durations import format_duration
from pyqd.tools.ctl.exits import PartlyDoneError
from pyqd.tools.ctl.frame import command, duration, yes_option
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import messages_text

POLL_S: Final = 0.2
# After its deadline the broker writes everything to disk, and gives up after two minutes without progress.
STOP_S: Final = 150.0


@command(
    "POST /drain?timeout= at the broker, then GET /drain five times a second until it is gone.",
    "With lookup daemons, GET /nodes at each of them, before.",
)
@click.argument("node", required=False)
@click.option(
    "--for",
    "for_ns",
    type=duration,
    metavar="DURATION",
    help="longest wait for messages in flight  [default: --drain-timeout of the broker, or 30s]",
)
@click.option("--no-wait", is_flag=True, help="begin the drain, and end at once")
@yes_option
@click.pass_obj
def drain(session: CtlSession, node: str | None, for_ns: int | None, no_wait: bool, yes: bool) -> None:
    """Have a broker finish its messages in flight, and stop, after a question.

    NODE is an address that `pyqctl nodes` shows; with one broker it is not needed. The broker refuses new consumers at
    once, and publishes at the end. Messages that no consumer has stay on its disk.
    """
    broker = broker_of(session, node)
    state = broker.get("/drain")
    session.confirm(
        f"Drain and stop the broker {broker.address}, with {messages_text(state['in_flight'])} in flight and"
        f" {state['consumers']:,} consumers?",
        yes,
    )
    timeout = None if for_ns is None else format_duration(for_ns)
    begun = broker.post("/drain", timeout=timeout)
    show(session, broker, begun, None)
    if no_wait:
        return
    deadline_s = time.monotonic() + begun["remaining_ms"] / 1000 + STOP_S
    progress: dict[str, Any] | None = begun
    while progress is not None:
        if time.monotonic() > deadline_s:
            raise PartlyDoneError(f"{broker.address}: still runs {STOP_S:.0f} s after the deadline; see its log")
        time.sleep(POLL_S)
        before, progress = progress, progress_of(broker, progress)
        if progress is not None and progress["in_flight"] != before["in_flight"]:
            show(session, broker, progress, None)
    show(session, broker, None, "stopped")


def broker_of(session: CtlSession, node: str | None) -> AskedBroker:
    """Return the broker to drain. Raises: SettingError, ClientError."""
    brokers = session.brokers()
    found = [broker for broker in brokers if node in (None, broker.address)]
    if len(found) != 1:
        known = ", ".join(broker.address for broker in brokers)
        raise SettingError(f"{f'{node!r} is no broker' if node else 'a drain is for one broker'}: name one of {known}")
    return found[0]


def progress_of(broker: AskedBroker, before: dict[str, Any]) -> dict[str, Any] | None:
    """Return the progress; the former one if the broker is slow to answer, None if it is gone. Raises: ClientError.

    A service manager may start it again at once: a new process does not drain.
    """
    try:
        found: dict[str, Any] = broker.get("/drain")
        return found if found["draining"] else None
    except NotConnectedError:
        return before if is_listening(broker) else None


def is_listening(broker: AskedBroker) -> bool:
    place = broker.place
    try:
        if place.path:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(broker.timeout_s)
                connection.connect(place.path)
        else:
            socket.create_connection((place.host, place.port), broker.timeout_s).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def show(session: CtlSession, broker: AskedBroker, progress: dict[str, Any] | None, state: str | None) -> None:
    if session.output.is_json:
        session.output.show_line({"node": broker.address, "state": state or "draining", **(progress or {})})
    elif progress is None:
        session.output.line(f"{broker.address}: {state}")
    else:
        consumers = f"{progress['consumers']:,} consumers"
        session.output.line(f"{broker.address}: {messages_text(progress['in_flight'])} in flight with {consumers}")
