"""Commands on a channel's place and limits, and on a topic's retention."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from pyqd.primitives.durations import parse_duration
from pyqd.primitives.quantities import format_size, parse_size
from pyqd.tools.ctl.administration import check_names, places, topic_argument
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.frame import command, yes_option
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import NODE, STATE, Fitted, Row, TableColumn, count, messages_text, number, per_second

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT: Final = "default"
POSITION: Final = re.compile("[0-9]+", re.ASCII)
RETENTION: Final = ("bytes", "time")

channel_argument = click.argument("channel", shell_complete=complete_channels)


def show(session: CtlSession, rows: Sequence[Row], view: Callable[[Sequence[Row]], RenderableType]) -> None:
    session.output.show({"nodes": rows}, lambda: view(rows))


def ask_each(session: CtlSession, brokers: Sequence[AskedBroker], call: Callable[[AskedBroker], Row]) -> list[Row]:
    """Return the answers of the brokers that have the topic and the channel. Raises: ClientError."""
    return [{"node": answer.node.address, **answer.value} for answer in session.ask_holders(call, brokers)]


def holders(brokers: Sequence[AskedBroker], rows: Sequence[Row]) -> list[AskedBroker]:
    """Return the brokers that have answered, so that the others fail only once."""
    answered = {row["node"] for row in rows}
    return [broker for broker in brokers if broker.address in answered]


@command("POST /channel/seek?topic=&channel=&to=&dry_run= at each broker: with dry_run=true, then without.")
@topic_argument
@channel_argument
@click.argument("place")
@click.option("-n", "--dry-run", is_flag=True, help="show the effect and change nothing")
@yes_option
@click.pass_obj
def seek(session: CtlSession, topic: str, channel: str, place: str, dry_run: bool, yes: bool) -> None:
    """Move a channel to a place of its topic, after a question that shows the effect.

    PLACE is earliest, latest, a position, a time such as 2026-11-21T04:15:00Z, or a duration before now such as -90m,
    which stands behind two dashes: pyqctl seek orders email -- -90m. Messages from there on are delivered again; those
    before it count as finished.
    """
    check_names(topic, channel)
    brokers = session.brokers()
    if POSITION.fullmatch(place) and len(brokers) > 1:
        session.only_broker("a position is one of a single broker")

    def call(broker: AskedBroker, dry: bool) -> Row:
        query = {"topic": topic, "channel": channel, "to": place, "dry_run": "true" if dry else None}
        return broker.post("/channel/seek", **query)

    if dry_run or not yes:
        rows = ask_each(session, brokers, lambda broker: call(broker, True))
        if dry_run:
            show(session, rows, seeks_table)
            return
        again, skipped = (sum(row[key] for row in rows) for key in ("redeliver", "skip"))
        brokers = holders(brokers, rows)
        effect = f"{messages_text(again)} delivered again, {messages_text(skipped)} skipped"
        session.confirm(f"Move channel {channel} of topic {topic} to {place}{places(brokers)}: {effect}?", yes)
    show(session, ask_each(session, brokers, lambda broker: call(broker, False)), seeks_table)


@command(
    "GET /channel/limits?topic=&channel= at each broker; with an option, POST"
    " /channel/limits?topic=&channel=&rate=&burst=&max_attempts=&dead_letter_topic= instead."
)
@topic_argument
@channel_argument
@click.option("--rate", metavar="NUMBER", help="messages a second, 0.5 too; 0 for no limit")
@click.option("--burst", metavar="NUMBER", help="messages delivered at once after a pause")
@click.option("--max-attempts", metavar="NUMBER", help="deliveries before a message is a dead letter; 0 for no limit")
@click.option("--dead-letter-topic", metavar="TOPIC", shell_complete=complete_topics, help="topic of dead letters")
@click.pass_obj
def limits(
    session: CtlSession,
    topic: str,
    channel: str,
    rate: str | None,
    burst: str | None,
    max_attempts: str | None,
    dead_letter_topic: str | None,
) -> None:
    """Show the limits of a channel, or change those that are given.

    They hold on each broker: two brokers with a rate of 50 deliver up to 100 messages a second together.
    """
    check_names(topic, channel)
    names = {"topic": topic, "channel": channel}
    given = {"rate": rate, "burst": burst, "max_attempts": max_attempts, "dead_letter_topic": dead_letter_topic}
    changes = {name: value for name, value in given.items() if value is not None}

    def call(broker: AskedBroker) -> Row:
        if changes:
            return broker.post("/channel/limits", **names, **changes)
        return broker.get("/channel/limits", **names)

    show(session, ask_each(session, session.brokers(), call), limits_table)


def retained_bytes(text: str) -> int | str:
    """Return the number of bytes in a text such as 512MiB, or "default", as the type of an option."""
    if text == DEFAULT:
        return text
    try:
        return parse_size(text)
    except ValueError:
        text = f"{text!r} is no size such as 1073741824, 512MiB or 1GiB, nor {DEFAULT!r}"
        raise click.BadParameter(text) from None


def retained_time(text: str) -> str:
    """Return a duration, or "default", as the type of an option."""
    if text == DEFAULT:
        return text
    try:
        parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration such as 72h, nor {DEFAULT!r}") from None
    return text


@command("GET /topic/retention?topic= at each broker; with an option, POST /topic/retention?topic=&bytes=&time= then.")
@topic_argument
@click.option(
    "--bytes", "bytes_", type=retained_bytes, metavar="SIZE", help="keep the newest bytes, such as 1GiB; 0 for none"
)
@click.option(
    "--time", "time_", type=retained_time, metavar="DURATION", help="keep messages for a time, such as 72h; 0 for none"
)
@yes_option
@click.pass_obj
def retention(session: CtlSession, topic: str, bytes_: int | str | None, time_: str | None, yes: bool) -> None:
    """Show how long a topic keeps finished messages, or change it.

    "default" stands for the flags of the broker. A change that may remove kept messages comes after a question.
    """
    check_names(topic, None)
    brokers = session.brokers()
    rows = ask_each(session, brokers, lambda broker: broker.get("/topic/retention", topic=topic))
    changes = {"bytes": bytes_, "time": time_}
    if any(value is not None for value in changes.values()):
        if any(keeps_less(row, changes) for row in rows):
            now = "; ".join(f"{row['node']}: {count(row['bytes'])} bytes, {row['time']}" for row in rows)
            session.confirm(f"Topic {topic} keeps finished messages as follows: {now}. Keep fewer?", yes)
        held_by = holders(brokers, rows)
        rows = ask_each(session, held_by, lambda broker: broker.post("/topic/retention", topic=topic, **changes))
    show(session, rows, retentions_table)


def keeps_less(row: Row, changes: Row) -> bool:
    """Return whether a change may remove messages that are kept now. The value behind "default" is not known."""
    for name in RETENTION:
        now, wanted = number_of(row[name]), changes[name]
        if wanted is not None and now and (wanted == DEFAULT or number_of(wanted) < now):
            return True
    return False


def number_of(value: int | str) -> int:
    """Return a number of bytes as it is, and a duration in nanoseconds."""
    return value if isinstance(value, int) else parse_duration(value)


def seeks_table(rows: Sequence[Row]) -> Fitted:
    columns = (
        NODE,
        number("From", "from", 3),
        number("To", "to", 2),
        number("Delivered again", "redeliver"),
        number("Of these finished", "finished", 5),
        number("Skipped", "skip"),
        number("In flight", "in_flight", 6),
        number("Deferred", "deferred", 7),
        number("Depth", "depth", 1),
        STATE,
    )
    return Fitted(columns, [{**row, "state": "dry run" if row["dry_run"] else "done"} for row in rows])


def limits_table(rows: Sequence[Row]) -> Fitted:
    columns = (
        NODE,
        per_second("Rate/s", "rate"),
        per_second("Burst", "burst", 2),
        number("Attempts", "max_attempts"),
        TableColumn("Dead-letter topic", "dead_letter_topic"),
        number("Dead letters", "dead_letter_count"),
        number("Waiting", "dead_letters_waiting", 1),
        TableColumn("Waiting for", "waiting_for"),
    )
    return Fitted(columns, rows)


def retentions_table(rows: Sequence[Row]) -> Fitted:
    columns = (
        NODE,
        TableColumn("Bytes", "bytes", format_size, is_number=True),
        TableColumn("Time", "time", is_number=True),
        TableColumn("Bytes from", "bytes_origin"),
        TableColumn("Time from", "time_origin"),
    )
    origins = ("flag of the broker", "topic")
    return Fitted(
        columns,
        [
            {**row, **{f"{key}_origin": origins[row[f"own_{key}"] is not None] for key in ("bytes", "time")}}
            for row in rows
        ],
    )
