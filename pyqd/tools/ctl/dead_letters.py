"""Commands on dead letters: list them, and return them to the topic that they came from.

Source: docs/http.md, "Dead letters".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import click

from pyqd.client.core.commands import check_topic
from pyqd.client.dead_letters import (
    RETURNED,
    find_dead_letter_topic,
    read_limits,
    read_messages,
    return_dead_letters,
    returnable_states,
    select_dead_letters,
)
from pyqd.client.errors import NotFoundError, SettingError
from pyqd.primitives.quantities import format_size
from pyqd.tools.ctl.administration import check_names, topic_argument
from pyqd.tools.ctl.completion import complete_topics
from pyqd.tools.ctl.counters import read_stats
from pyqd.tools.ctl.exits import FAILED, OK
from pyqd.tools.ctl.frame import CtlGroup, command, yes_option
from pyqd.tools.ctl.messages import body_option, ids_of
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.output import say
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.settings import channel_argument
from pyqd.tools.ctl.table import Fitted, Row, TableColumn, messages_text, plain_columns, timestamp

# Lent to a dead-letter topic without channels, which holds its messages where nothing can cancel them.
CHANNEL: Final = "pyqctl"
COLUMNS: Final = plain_columns(Node="node", Dead_letter="id", New_ID="new_id", State="state")


@click.group(cls=CtlGroup, name="dead-letters")
def dead_letters() -> None:
    """Show and return messages that a channel could not handle in its maximum number of attempts."""


target_option = click.option(
    "--dead-letter-topic",
    metavar="NAME",
    shell_complete=complete_topics,
    help="the dead-letter topic of a client's own retry policy, which brokers do not know",
)


@command(
    "GET /channel/limits?topic=&channel= at each broker, which names the dead-letter topic.",
    "GET /stats?format=json&topic= there, and GET /channel/messages?topic=&channel=&state= for each channel of that"
    " topic, and with state=dead_letter for CHANNEL.",
    name="list",
)
@topic_argument
@channel_argument
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="messages of each list")
@body_option
@target_option
@click.pass_obj
def list_letters(
    session: CtlSession, topic: str, channel: str, limit: int, body: str, dead_letter_topic: str | None
) -> None:
    """List the dead letters of a channel, and those that wait to be published.

    The dead letters are those that the channels of the dead-letter topic hold, or the topic itself if it has none.
    """
    check_names(topic, channel)
    check_target(topic, dead_letter_topic)
    unknown: dict[str, list[str]] = {}

    def call(broker: AskedBroker) -> list[Row]:
        limits = read_limits(broker, topic, channel)
        waiting = read_messages(broker, topic, channel, "dead_letter", limit, body)[0]
        rows = [{**row, "topic": topic, "channel": channel} for row in waiting]
        target = dead_letter_topic or limits["dead_letter_topic"]
        if target is None:
            unknown[broker.address] = similar_topics(broker, topic)
        else:
            rows += [row for name in holders(broker, target) for row in letters(broker, target, name, limit, body)]
        return rows

    found = session.ask_holders(call)
    rows = [{"node": answer.node.address, **row} for answer in found for row in answer.value]
    shown = {"topic": topic, "channel": channel, "messages": rows}
    for address, names in sorted(unknown.items()):
        perhaps = f"; perhaps {', '.join(names)}" if names else ""
        say(f"{address}: {without_target(topic, channel)}{perhaps}")
    session.output.show(shown, lambda: letters_table(rows))


def check_target(topic: str, target: str | None) -> None:
    """Check the option --dead-letter-topic. Raises: SettingError."""
    if target is not None:
        check_topic(target)
        if target == topic:
            raise SettingError(f"--dead-letter-topic: {topic} is the topic itself")


def without_target(topic: str, channel: str) -> str:
    return (
        f"channel {channel} of topic {topic} has no dead-letter topic; `pyqctl limits` sets one, and"
        " --dead-letter-topic names the one of a client's own retry policy"
    )


def similar_topics(broker: AskedBroker, topic: str) -> list[str]:
    """Return the topics whose names contain that of a topic: a client may have its dead letters there."""
    names = [entry["topic_name"] for entry in read_stats(broker).topics]
    return [name for name in names if topic in name and name != topic]


def holders(broker: AskedBroker, topic: str) -> list[str | None]:
    """Return the channels of a topic; None for the topic itself if it has none. Raises: ClientError."""
    found = read_stats(broker, topic).topics
    if not found:
        return []
    return [channel["channel_name"] for channel in found[0]["channels"]] or [None]


def letters(broker: AskedBroker, topic: str, channel: str | None, limit: int, body: str) -> list[Row]:
    """Return the messages that wait in a channel. Raises: ClientError."""
    rows: list[Row] = []
    for state in returnable_states(channel):
        if len(rows) < limit:
            rows += read_messages(broker, topic, channel, state, limit - len(rows), body)[0]
    return [{**row, "topic": topic, "channel": channel} for row in rows]


@command(
    "GET /channel/limits?topic=&channel=, GET /stats?format=json and, of the dead-letter topic, GET"
    " /channel/messages?topic=&channel=&state=&body=base64 at each broker, before the question.",
    "If the dead-letter topic has no channel: POST /channel/create?topic=&channel=pyqctl and /topic/pause before, and"
    " afterwards POST /mpub?topic=&binary=true with the other messages, /channel/delete and /topic/unpause.",
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
@target_option
@click.option("--shared", is_flag=True, help="also if channels of other topics have this dead-letter topic")
@yes_option
@click.pass_obj
def return_letters(
    session: CtlSession,
    topic: str,
    channel: str,
    ids: tuple[str, ...],
    from_channel: str | None,
    limit: int,
    dead_letter_topic: str | None,
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
    check_target(topic, dead_letter_topic)
    choice = Choice(topic, channel, from_channel, limit, wanted, shared, dead_letter_topic)
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
            batch = answer.value
            returned = return_dead_letters(answer.node, batch.topic, batch.channel, batch.rows, topic, CHANNEL)
            for result in returned:
                results.append({"node": answer.node.address, **result})
                if result["error"] is not None:
                    say(result["error"])
    finally:
        # After Ctrl-C too: these messages have returned.
        shown = {"topic": topic, "channel": channel, "results": results}
        session.output.show(shown, lambda: Fitted(COLUMNS, results))
    missing = (wanted or frozenset()) - {row["id"] for row in results}
    if missing:
        text = f"no such dead letters wait: {', '.join(sorted(missing))}"
        raise NotFoundError("MESSAGE_NOT_FOUND", shown=text)
    return OK if all(row["state"] == RETURNED for row in results) else FAILED


def letters_table(rows: Sequence[Row]) -> Fitted:
    columns = [
        TableColumn("Node", "node"),
        TableColumn("Held by", "held_by", style="bold"),
        TableColumn("ID", "id", style="bold"),
        TableColumn("State", "state", rank=2),
        TableColumn("Published", "timestamp", timestamp, is_number=True, rank=1),
        TableColumn("Size", "size", format_size, is_number=True, rank=3),
    ]
    if any("body" in row for row in rows):
        columns.append(TableColumn("Body", "body"))
    held = [{**row, "held_by": "/".join(name for name in (row["topic"], row["channel"]) if name)} for row in rows]
    return Fitted(columns, held)


class Choice(NamedTuple):
    """Choice of dead letters to return. wanted: their ids; None for all.

    target: the dead-letter topic of a client's own policy; None for the one that the broker knows.
    """

    topic: str
    channel: str
    from_channel: str | None
    limit: int
    wanted: frozenset[str] | None
    shared: bool
    target: str | None


class LetterBatch(NamedTuple):
    """Dead letters of one broker. channel: the one that holds them; None as the topic itself does."""

    topic: str
    channel: str | None
    rows: list[Row]
    receivers: list[str]


def batch_of(broker: AskedBroker, choice: Choice) -> LetterBatch:
    """Return the dead letters to return from a broker. Raises: ClientError."""
    holding = find_dead_letter_topic(broker, choice.topic, choice.channel, choice.target)
    if holding is None:
        raise SettingError(f"{broker.address}: {without_target(choice.topic, choice.channel)}")
    target = holding.target
    if holding.others and not choice.shared and choice.wanted is None:
        raise SettingError(
            f"{broker.address}: topic {target} has dead letters of {', '.join(holding.others)} too, and does not tell"
            " whose they are: name the ids, or add --shared"
        )
    name = holder_of(broker, target, holding.held_by, choice.from_channel)
    rows = list(itertools.islice(select_dead_letters(broker, target, name, choice.wanted), choice.limit))
    return LetterBatch(target, name, rows, holding.receivers)


def holder_of(broker: AskedBroker, target: str, held_by: list[str], given: str | None) -> str | None:
    """Return the channel that holds the dead letters; None as the topic itself does. Raises: SettingError."""
    if given is None and len(held_by) < 2:
        return held_by[0] if held_by else None
    if given in held_by:
        return given
    raise SettingError(
        f"{broker.address}: the channels of topic {target} are {', '.join(held_by) or 'none'}: choose one with"
        " --from-channel"
    )


def question(topic: str, batches: Sequence[LetterBatch], total: int) -> str:
    receivers = sorted({name for batch in batches for name in batch.receivers})
    sources = ", ".join(dict.fromkeys(batch.topic for batch in batches))
    return (
        f"Publish {messages_text(total)} of topic {sources} in topic {topic}, and cancel them there? These channels"
        f" receive them: {', '.join(receivers) or 'none yet'}."
    )


for each_command in (list_letters, return_letters):
    dead_letters.add_command(each_command)
