"""Commands on dead letters: list them, and return them to the topic that they came from.

A dead letter is a message of the channel's dead-letter topic, so that it is held by a channel of that topic. Returning
publishes the body in the original topic and then cancels the dead letter: a kill between the two leaves both.

Source: docs/http.md, "Dead letters".
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from pyqd.client.errors import ClientError, NotFoundError, ProtocolError, SettingError
from pyqd.fallback.records import decode
from pyqd.tools.ctl import views
from pyqd.tools.ctl.administration import DONE, check_names, topic_argument
from pyqd.tools.ctl.completion import complete_channels
from pyqd.tools.ctl.counters import read_stats
from pyqd.tools.ctl.exits import FAILED, OK, PartlyDoneError
from pyqd.tools.ctl.frame import CtlGroup, command, yes_option
from pyqd.tools.ctl.messages import ID_HEADER, PAGE_MAX, ids_of, messages_of
from pyqd.tools.ctl.nodes import Broker
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import Session
from pyqd.tools.ctl.table import messages

Row = dict[str, Any]

# Made in a dead-letter topic without channels, which holds its messages where nothing can cancel them.
CHANNEL: Final = "pyqctl"
STATES: Final = ("ready", "deferred")
# Meanwhile no consumer gets a dead letter that is being returned; after a kill, it waits for the rest of this time.
HOLD_MS: Final = 60_000
RETURNED: Final = "returned"
FAILED_STATE: Final = "failed"
COLUMNS: Final = (("Node", "node"), ("Dead letter", "id"), ("New ID", "new_id"), ("State", "state"))

channel_argument = click.argument("channel", shell_complete=complete_channels)


@click.group(cls=CtlGroup, name="dead-letters")
def dead_letters() -> None:
    """Show and return messages that a channel could not handle in its maximum number of attempts."""


@command(
    "GET /channel/limits?topic=&channel= at each broker, which names the dead-letter topic.",
    "GET /stats?format=json&topic= there, and GET /channel/messages?topic=&channel=&state= for each channel of that"
    " topic, and with state=dead_letter for CHANNEL.",
    name="list",
)
@topic_argument
@channel_argument
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="messages of each list")
@click.option("--body", type=click.Choice(("text", "base64", "none")), default="text", show_default=True)
@click.pass_obj
def list_letters(session: Session, topic: str, channel: str, limit: int, body: str) -> None:
    """List the dead letters of a channel, and those that wait to be published.

    The dead letters are those that the channels of the dead-letter topic hold, or the topic itself if it has none.
    """
    check_names(topic, channel)

    def call(broker: Broker) -> list[Row]:
        limits = limits_of(broker, topic, channel)
        waiting = messages_of(broker, topic, channel, "dead_letter", limit, body)[0]
        rows = [{**row, "topic": topic, "channel": channel} for row in waiting]
        target = limits["dead_letter_topic"]
        if target is not None:
            rows += [row for name in holders(broker, target) for row in letters(broker, target, name, limit, body)]
        return rows

    found = session.ask_holders(call)
    rows = [{"node": answer.node.address, **row} for answer in found for row in answer.value]
    shown = {"topic": topic, "channel": channel, "messages": rows}
    session.output.show(shown, lambda: views.dead_letters(rows))


def limits_of(broker: Broker, topic: str, channel: str) -> Row:
    """Return the limits of a channel. Raises: ClientError."""
    return broker.get("/channel/limits", topic=topic, channel=channel)


def holders(broker: Broker, topic: str) -> list[str | None]:
    """Return the channels of a topic; None for the topic itself if it has none. Raises: ClientError."""
    found = read_stats(broker, topic).topics
    if not found:
        return []
    return [channel["channel_name"] for channel in found[0]["channels"]] or [None]


def letters(broker: Broker, topic: str, channel: str | None, limit: int, body: str) -> list[Row]:
    """Return the messages that wait in a channel. Raises: ClientError."""
    rows: list[Row] = []
    for state in STATES if channel is not None else STATES[:1]:
        if len(rows) < limit:
            rows += messages_of(broker, topic, channel, state, limit - len(rows), body)[0]
    return [{**row, "topic": topic, "channel": channel} for row in rows]


@command(
    "GET /channel/limits?topic=&channel=, GET /stats?format=json and, of the dead-letter topic, GET"
    " /channel/messages?topic=&channel=&state=&body=base64 at each broker, before the question.",
    "POST /channel/create?topic=&channel=pyqctl, if the dead-letter topic has no channel.",
    "For each dead letter, at its broker: GET /topic/log?topic=&from=&to=, if its body has more than 4096 bytes; POST"
    " /message/reschedule?topic=&channel=&id=&defer=60000, so that no consumer gets it meanwhile; POST"
    " /pub?topic=TOPIC; POST /message/cancel?topic=&channel=&id=.",
    name="return",
)
@topic_argument
@channel_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--from-channel", metavar="NAME", help="channel of the dead-letter topic that holds them, if it has several"
)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="messages of each broker"
)
@click.option("--shared", is_flag=True, help="also if channels of other topics have this dead-letter topic")
@yes_option
@click.pass_obj
def return_letters(
    session: Session,
    topic: str,
    channel: str,
    ids: tuple[str, ...],
    from_channel: str | None,
    limit: int,
    shared: bool,
    yes: bool,
) -> int:
    """Publish the dead letters of a channel in TOPIC again, and cancel them in the dead-letter topic.

    All channels of TOPIC receive them, not only CHANNEL, because NSQ publishes to topics. The messages get new ids, and
    their attempts begin at 1. With IDs only these dead letters return; a lone - reads the IDs from standard input. A
    kill between the two steps leaves a message in both topics, and loses none.
    """
    check_names(topic, channel)
    wanted = frozenset(ids_of(ids)) if ids else None
    choice = Choice(topic, channel, from_channel, limit, wanted, shared)
    batches = session.ask_holders(lambda broker: batch_of(broker, choice))
    for failure in session.failures:
        # Nothing is returned by halves, if the command is not meant for one of the brokers.
        if isinstance(failure.error, SettingError):
            raise session.failures.pop(session.failures.index(failure)).error
    total = sum(len(answer.value.rows) for answer in batches)
    if total:
        session.confirm(question(topic, [answer.value for answer in batches], total), yes)
    results: list[Row] = []
    try:
        for answer in batches:
            for result in returned(answer.node, answer.value, topic):
                results.append({"node": answer.node.address, **result})
                if result["error"] is not None:
                    say(result["error"])
    finally:
        # After Ctrl-C too: these messages have returned.
        shown = {"topic": topic, "channel": channel, "results": results}
        session.output.show(shown, lambda: views.outcomes(COLUMNS, results))
    missing = (wanted or frozenset()) - {row["id"] for row in results}
    if missing:
        raise NotFoundError("MESSAGE_NOT_FOUND", doing=f"dead letters {', '.join(sorted(missing))}")
    return OK if all(row["state"] == RETURNED for row in results) else FAILED


class Choice(NamedTuple):
    """Choice of dead letters to return. wanted: their ids; None for all."""

    topic: str
    channel: str
    from_channel: str | None
    limit: int
    wanted: frozenset[str] | None
    shared: bool


class Batch(NamedTuple):
    """Dead letters of one broker. channel: the one that holds them; None as the topic itself does."""

    topic: str
    channel: str | None
    rows: list[Row]
    receivers: list[str]


def batch_of(broker: Broker, choice: Choice) -> Batch:
    """Return the dead letters to return from a broker. Raises: ClientError."""
    target = limits_of(broker, choice.topic, choice.channel)["dead_letter_topic"]
    if target is None:
        raise SettingError(
            f"{broker.address}: channel {choice.channel} of topic {choice.topic} has no dead-letter topic;"
            " `pyqctl limits` sets one"
        )
    topics = {entry["topic_name"]: entry["channels"] for entry in read_stats(broker).topics}
    others = [
        f"{name}/{channel['channel_name']}"
        for name, channels in topics.items()
        for channel in channels
        if name != choice.topic and channel.get("limits", {}).get("dead_letter_topic") == target
    ]
    if others and not choice.shared and choice.wanted is None:
        raise SettingError(
            f"{broker.address}: topic {target} has dead letters of {', '.join(others)} too, and does not tell whose"
            " they are: name the ids, or add --shared"
        )
    held_by = [channel["channel_name"] for channel in topics.get(target, [])]
    name = holder_of(broker, target, held_by, choice.from_channel)
    rows = list(itertools.islice(chosen(broker, target, name, choice.wanted), choice.limit))
    return Batch(target, name, rows, [channel["channel_name"] for channel in topics.get(choice.topic, [])])


def holder_of(broker: Broker, target: str, held_by: list[str], given: str | None) -> str | None:
    """Return the channel that holds the dead letters; None as the topic itself does. Raises: SettingError."""
    if given is None and len(held_by) < 2:
        return held_by[0] if held_by else None
    if given in held_by:
        return given
    raise SettingError(
        f"{broker.address}: the channels of topic {target} are {', '.join(held_by) or 'none'}: choose one with"
        " --from-channel"
    )


def chosen(broker: Broker, target: str, channel: str | None, wanted: frozenset[str] | None) -> Iterator[Row]:
    """Yield the dead letters that wait in a channel, of these ids. Raises: ClientError."""
    missing = None if wanted is None else set(wanted)
    for state in STATES if channel is not None else STATES[:1]:
        after: str | None = None
        while True:
            rows, after = messages_of(broker, target, channel, state, PAGE_MAX, "base64", after)
            for row in rows:
                if missing is None or row["id"] in missing:
                    yield row
                    (missing or set()).discard(row["id"])
            if after is None or missing == set():
                break


def question(topic: str, batches: Sequence[Batch], total: int) -> str:
    """Return the question before dead letters return."""
    receivers = sorted({name for batch in batches for name in batch.receivers})
    sources = ", ".join(dict.fromkeys(batch.topic for batch in batches))
    return (
        f"Publish {messages(total)} of topic {sources} in topic {topic}, and cancel them there? These channels receive"
        f" them: {', '.join(receivers) or 'none yet'}."
    )


def returned(broker: Broker, batch: Batch, topic: str) -> Iterator[Row]:
    """Return dead letters, and yield the result of each; end after a failure of the broker."""
    channel = batch.channel
    if channel is None and batch.rows:
        broker.post("/channel/create", topic=batch.topic, channel=CHANNEL)
        channel = CHANNEL
    for row in batch.rows:
        result: Row = {"id": row["id"], "new_id": None, "state": FAILED_STATE, "error": None}
        names = {"topic": batch.topic, "channel": channel, "id": row["id"]}
        try:
            body = body_of(broker, batch.topic, row)
            held = status_of(broker.post("/message/reschedule", **names, defer=HOLD_MS))
            if held != DONE:
                yield {**result, "state": held}
                continue
            reply = broker.send("POST", "/pub", {"topic": topic}, body)
            result["new_id"] = reply.headers.get(ID_HEADER)
            after = status_of(broker.post("/message/cancel", **names))
        except PartlyDoneError as error:
            yield {**result, "error": str(error)}
            continue
        except ClientError as error:
            yield {**result, "error": str(error)}
            return
        yield {**result, "state": RETURNED if after == DONE else after}


def status_of(answer: Row) -> str:
    """Return the status of a change on one channel."""
    return str(answer["results"][0]["status"])


def body_of(broker: Broker, topic: str, row: Row) -> bytes:
    """Return the whole body of a dead letter. Raises: ClientError."""
    if not row["truncated"]:
        return base64.b64decode(row["body"])
    position = row["position"]
    if position is not None:
        reply = broker.send("GET", "/topic/log", {"topic": topic, "from": position, "to": position + 1})
        try:
            for record in decode(reply.body):
                if record.id.decode() == row["id"]:
                    return record.body
        except ValueError as error:
            raise ProtocolError(f"{broker.address}: GET /topic/log: {error}") from None
    raise PartlyDoneError(
        f"{broker.address}: dead letter {row['id']}: its body of {row['size']} bytes cannot be read, because the"
        " message is deferred; consume it instead"
    )


for each_command in (list_letters, return_letters):
    dead_letters.add_command(each_command)
