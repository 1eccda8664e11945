"""Commands on single messages: peek, cancel, reschedule, deliver-now, publish, trace."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from pyqd.client.dead_letters import ID_HEADER, read_messages
from pyqd.client.errors import ClientError, NotConnectedError, NotFoundError, SettingError
from pyqd.primitives.durations import MILLISECOND_NS
from pyqd.primitives.quantities import format_size
from pyqd.primitives.timestamps import parse_timestamp
from pyqd.tools.ctl.administration import channel_argument, check_names, require_pyqd, topic_argument
from pyqd.tools.ctl.cluster import Answer, Failure, ask
from pyqd.tools.ctl.completion import complete_channels
from pyqd.tools.ctl.exits import FAILED, OK, UnsupportedError
from pyqd.tools.ctl.facts import local_data_path
from pyqd.tools.ctl.frame import command, duration, yes_option
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import Fitted, Row, TableColumn, messages_text, number, plain_columns, timestamp
from pyqd.trace import DATABASE_VARIABLE, TRACES

COUNT_HEADER: Final = "x-nsq-message-count"
RESULT_COLUMNS: Final = plain_columns(Node="node", ID="id", Channel="channel", Status="status", Was="was")
PUBLISHED_COLUMNS: Final = plain_columns(Node="node", Topic="topic", ID="id", Messages="count")

STATES: Final = ("ready", "in_flight", "deferred", "dead_letter")
MESSAGE_ID: Final = re.compile("[0-9a-fA-F]{16}", re.ASCII)
# Run as a module: the directory of the programs need not be in PATH.
MODULE: Final = "pyqd.tools.pyq_trace"
# The choice of --json and --table for the other program, which decides as this one does without it.
FORMS: Final = {True: ("--json",), False: ("--table",), None: ()}

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
channel_option = click.option(
    "--channel", shell_complete=complete_channels, help="only on this channel  [default: on each channel]"
)
body_option = click.option("--body", type=click.Choice(("text", "base64", "none")), default="text", show_default=True)
delay_option = click.option(
    "--in", "delay_ns", type=duration, metavar="DURATION", help="deliver after a delay, such as 90s"
)
time_option = click.option("--at", metavar="TIME", help="deliver at a time, such as 2026-11-21T04:15:00Z")


@command("GET /channel/messages?topic=&channel=&state=&limit=&after=&body= at each broker, page by page.")
@topic_argument
@channel_argument
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="messages of each broker"
)
@body_option
@click.option("--after", metavar="CURSOR", help="begin behind a page: the cursor in its `next`; for one broker")
@click.pass_obj
def peek(
    session: CtlSession, topic: str, channel: str | None, state: str, limit: int, body: str, after: str | None
) -> None:
    """Show messages without consuming them. At most 4096 bytes of a body are shown.

    Without CHANNEL: the messages that the topic itself holds, because it is paused or has no channel.
    """
    check_names(topic, channel)
    if after is not None:
        session.only_broker("a cursor is for one broker")

    def call(broker: AskedBroker) -> tuple[list[Row], str | None]:
        return read_messages(broker, topic, channel, state, limit, body, after)

    found = session.ask_holders(call)
    rows = [{"node": answer.node.address, **row} for answer in found for row in answer.value[0]]
    following = {answer.node.address: answer.value[1] for answer in found if answer.value[1] is not None}
    shown = {"topic": topic, "channel": channel, "state": state, "messages": rows, "next": following}
    session.output.show(shown, lambda: messages_table(rows, state, len(found) > 1))


def ids_of(ids: tuple[str, ...]) -> list[str]:
    """Return the ids of a command. Raises: SettingError if there is none, or one is invalid."""
    found = standard_input().decode(errors="replace").split() if ids == ("-",) else list(ids)
    if not found:
        raise SettingError("standard input has no ids")
    for text in found:
        if not MESSAGE_ID.fullmatch(text):
            raise SettingError(f"{text!r} is no message id: it has 16 hex digits")
    return found


def change(session: CtlSession, verb: str, topic: str, ids: list[str], channel: str | None, **query: Any) -> int:
    """Change messages, print the results, and return the exit code.

    Each id is sent to one broker after the other until one has it. Brokers with different node ids share no id.
    """
    brokers = session.brokers()
    rows: list[Row] = []
    for message_id in ids:
        found = find_and_change(session, brokers, verb, {"topic": topic, "id": message_id, "channel": channel, **query})
        rows += [{"id": message_id, "was": None, **row} for row in found]
    session.output.show({"topic": topic, "results": rows}, lambda: Fitted(RESULT_COLUMNS, rows))
    return OK if all(row["status"] == "done" for row in rows) else FAILED


def find_and_change(session: CtlSession, brokers: list[AskedBroker], verb: str, query: Row) -> list[Row]:
    """Return the results of a change at the broker that has the message; none, and a note of the failure, if none has
    it or a broker that may have it does not answer.
    """
    missing: Failure | None = None
    silent: Failure | None = None
    for broker in brokers:
        try:
            answer = broker.post(f"/message/{verb}", **query)
        except NotFoundError as error:
            missing = Failure(broker.address, error)
        except ClientError as error:
            silent = Failure(broker.address, error)
        else:
            return [{"node": broker.address, **result} for result in answer["results"]]
    failure = silent or missing
    assert failure is not None, "there is a broker"
    session.failures.append(failure)
    return []


CHANGED: Final = " at one broker after the other until one has the message, for each ID."


@command("POST /message/cancel?topic=&id=&channel=" + CHANGED)
@topic_argument
@ids_argument
@channel_option
@yes_option
@click.pass_obj
def cancel(session: CtlSession, topic: str, ids: tuple[str, ...], channel: str | None, yes: bool) -> int:
    """Finish messages unread, after a question.

    Each ID has 16 hex digits; a lone - reads them from standard input, one a line. A message that a client has stays
    as it is, with the status in_flight.
    """
    check_names(topic, channel)
    wanted = ids_of(ids)
    on = "all channels" if channel is None else f"channel {channel}"
    session.confirm(f"Cancel {messages_text(len(wanted))} of topic {topic} on {on}?", yes)
    return change(session, "cancel", topic, wanted, channel)


@command("POST /message/reschedule?topic=&id=&channel=&defer= or &due=" + CHANGED)
@topic_argument
@ids_argument
@channel_option
@delay_option
@time_option
@click.pass_obj
def reschedule(
    session: CtlSession, topic: str, ids: tuple[str, ...], channel: str | None, delay_ns: int | None, at: str | None
) -> int:
    """Change the due time of messages: give --in or --at.

    Each ID has 16 hex digits; a lone - reads them from standard input, one a line. A message that a client has stays
    as it is, with the status in_flight.
    """
    check_names(topic, channel)
    when = due_query(delay_ns, at)
    if not when:
        raise SettingError("give a delay with --in, or a time with --at")
    return change(session, "reschedule", topic, ids_of(ids), channel, **when)


@command("POST /message/deliver_now?topic=&id=&channel=" + CHANGED, name="deliver-now")
@topic_argument
@ids_argument
@channel_option
@click.pass_obj
def deliver_now(session: CtlSession, topic: str, ids: tuple[str, ...], channel: str | None) -> int:
    """Deliver deferred messages now.

    Each ID has 16 hex digits; a lone - reads them from standard input, one a line.
    """
    check_names(topic, channel)
    return change(session, "deliver_now", topic, ids_of(ids), channel)


def due_query(delay_ns: int | None, at: str | None) -> dict[str, int]:
    """Return the parameters for a delay or a due time; none without both. Raises: SettingError."""
    if delay_ns is not None and at is not None:
        raise SettingError("give --in or --at, not both")
    if delay_ns is not None:
        return {"defer": -(-delay_ns // MILLISECOND_NS)}
    if at is None:
        return {}
    try:
        return {"due": parse_timestamp(at, time.time_ns()) // MILLISECOND_NS}
    except ValueError as error:
        raise SettingError(f"--at: {at!r} is no time such as 2026-11-21T04:15:00Z: {error}") from None


@command(
    "POST /pub?topic=&defer= or &due=, once, at the first broker that answers GET /ping with OK; with --lines"
    " POST /mpub instead.",
    "With --at, and with --in for --lines, GET /drain before, because nsqd would ignore the time.",
)
@topic_argument
@click.argument("body", required=False)
@click.option("--file", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="publish the file's content")
@click.option("--lines", is_flag=True, help="publish each line as a message: all of them, or none")
@delay_option
@time_option
@click.pass_obj
def publish(
    session: CtlSession,
    topic: str,
    body: str | None,
    file: str | None,
    lines: bool,
    delay_ns: int | None,
    at: str | None,
) -> None:
    """Publish BODY, or standard input, and print the message's id.

    Nothing is sent twice: after a failure on the way the message may be published or not. With --lines the id is that
    of the first message. nsqd tells no ids.
    """
    check_names(topic, None)
    when = due_query(delay_ns, at)
    data = body_of(body, file)
    broker = healthy(session)
    if "due" in when or (when and lines):
        require_pyqd(session, [broker], "--at" if at else "--in with --lines")
    reply = broker.send("POST", "/mpub" if lines else "/pub", {"topic": topic, **when}, data)
    row = {
        "node": broker.address,
        "topic": topic,
        "id": reply.headers.get(ID_HEADER),
        "count": int(reply.headers.get(COUNT_HEADER) or (len(lines_of(data)) if lines else 1)),
    }
    session.output.show(row, lambda: Fitted(PUBLISHED_COLUMNS, [row]))


def body_of(body: str | None, file: str | None) -> bytes:
    """Return the bytes to publish. Raises: SettingError."""
    if body is not None and file is not None:
        raise SettingError("give BODY or --file, not both")
    if file is not None:
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise SettingError(f"cannot read {file}: {error.strerror}") from None
    if body is not None and body != "-":
        # Bytes of the command line that are no text come back as they were.
        return body.encode(errors="surrogateescape")
    return standard_input()


def standard_input() -> bytes:
    """Return all bytes of standard input. Raises: SettingError."""
    if sys.stdin is None:
        raise SettingError("cannot read standard input: it is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise SettingError(f"cannot read standard input: {error.strerror or error}") from None


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines that are messages: the broker skips empty ones."""
    return [line for line in data.split(b"\n") if line]


def healthy(session: CtlSession) -> AskedBroker:
    """Return the first broker that is healthy. Raises: NotConnectedError if there is none."""
    reasons: list[str] = []
    for broker in session.brokers():
        try:
            reply = broker.request("GET", "/ping", retry=False)
        except NotConnectedError as error:
            reasons.append(str(error))
            continue
        if reply.status == 200:
            return broker
        reasons.append(f"{broker.address}: {reply.body[:200].decode(errors='replace')}")
    raise NotConnectedError("; ".join(reasons))


def messages_table(rows: Sequence[Row], state: str, several_nodes: bool) -> Fitted:
    columns = [
        *([TableColumn("Node", "node")] if several_nodes else []),
        TableColumn("ID", "id", style="bold"),
        TableColumn("Published", "timestamp", timestamp, is_number=True, rank=3),
        number("Attempts", "attempts", 4),
        TableColumn("Size", "size", format_size, is_number=True, rank=2),
    ]
    if state == "in_flight":
        columns.append(TableColumn("Deadline", "deadline", timestamp, is_number=True, rank=1))
        columns.append(TableColumn("Client", "client", client_text))
    else:
        columns.append(TableColumn("Due", "due", timestamp, is_number=True, rank=1))
    if any("body" in row for row in rows):
        columns.append(TableColumn("Body", "body"))
    return Fitted(columns, rows)


def client_text(client: Row) -> str:
    return f"{client['client_id']} {client['remote_address']}"


@command(
    "GET /trace/log?max_bytes=1 at each broker, to find out whether it records events. Then pyq_trace reads its"
    " database."
)
@click.argument("message_id", metavar="ID")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.pass_obj
def trace(session: CtlSession, message_id: str, arguments: tuple[str, ...]) -> int:
    """Show the life of a message: runs `pyq_trace show ID ARGUMENT...`.

    It needs brokers that record events, and the database that `pyq_trace ship` makes of them. If no broker records
    events, the command says so and ends with exit code 6. Options of pyq_trace stand behind two dashes.

    Without --from and PYQD_TRACE_DATABASE the database is the one that `pyqd up` makes, trace.db in the data directory
    of a broker on this machine; if there is none, it is trace.db in the current directory.
    """
    ids_of((message_id,))
    found = ask(session.brokers(), probe)
    missing = [failure.error for failure in found.failures if isinstance(failure.error, UnsupportedError)]
    session.failures += [failure for failure in found.failures if failure.error not in missing]
    for error in missing:
        say(f"{error}; it does not record what becomes of messages")
    if missing and not found.answers:
        raise UnsupportedError(
            "messages cannot be traced here; `pyqctl peek` shows those that wait, with their attempts"
        )
    form = FORMS[session.flags.get("as_json")]
    named = os.environ.get(DATABASE_VARIABLE) or any(each.startswith("--from") for each in arguments)
    database = () if named else database_of(found.answers)
    command = [sys.executable, "-m", MODULE, "show", *database, *form, message_id, *arguments]
    return subprocess.run(command, check=False).returncode


def database_of(answers: Sequence[Answer[AskedBroker, Any]]) -> tuple[str, ...]:
    """Return the option that names the database beside the data of a broker; none without such a file."""
    for answer in answers:
        with contextlib.suppress(ClientError):
            found = local_data_path(answer.node, answer.node.get("/info"))
            path = "" if found is None else os.path.join(found[1], TRACES)
            if os.path.isfile(path):
                return (f"--from=sqlite:///{path}",)
    return ()


def probe(broker: AskedBroker) -> None:
    """Ask whether a broker records events. Raises: ClientError."""
    broker.send("GET", "/trace/log", {"max_bytes": 1})
