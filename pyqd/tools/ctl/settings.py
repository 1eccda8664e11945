"""Commands on a channel's place and limits, and on a topic's retention."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from pyqd.primitives.durations import parse_duration
from pyqd.tools.ctl import views
from pyqd.tools.ctl.administration import check_names, places, topic_argument
from pyqd.tools.ctl.completion import complete_channels, complete_topics
from pyqd.tools.ctl.frame import command, yes_option
from pyqd.tools.ctl.nodes import Broker
from pyqd.tools.ctl.session import Session
from pyqd.tools.ctl.table import count, messages

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = dict[str, Any]

DEFAULT: Final = "default"
POSITION: Final = re.compile("[0-9]+", re.ASCII)
SIZE: Final = re.compile(r"([0-9]+)([KMGT]i?B?)?", re.ASCII | re.IGNORECASE)
POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
RETENTION: Final = ("bytes", "time")

channel_argument = click.argument("channel", shell_complete=complete_channels)


def show(session: Session, rows: Sequence[Row], view: Callable[[Sequence[Row]], RenderableType]) -> None:
    """Print the answers of brokers."""
    session.output.show({"nodes": rows}, lambda: view(rows))


def ask_each(session: Session, brokers: Sequence[Broker], call: Callable[[Broker], Row]) -> list[Row]:
    """Return the answers of the brokers that have the topic and the channel. Raises: ClientError."""
    return [{"node": answer.node.address, **answer.value} for answer in session.ask_holders(call, brokers)]


def holders(brokers: Sequence[Broker], rows: Sequence[Row]) -> list[Broker]:
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
def seek(session: Session, topic: str, channel: str, place: str, dry_run: bool, yes: bool) -> None:
    """Move a channel to a place of its topic, after a question that shows the effect.

    PLACE is earliest, latest, a position, a time such as 2026-11-21T04:15:00Z, or a duration before now such as -90m,
    which stands behind two dashes: pyqctl seek orders email -- -90m. Messages from there on are delivered again; those
    before it count as finished.
    """
    check_names(topic, channel)
    brokers = session.brokers()
    if POSITION.fullmatch(place) and len(brokers) > 1:
        session.only_broker("a position is one of a single broker")

    def call(broker: Broker, dry: bool) -> Row:
        query = {"topic": topic, "channel": channel, "to": place, "dry_run": "true" if dry else None}
        return broker.post("/channel/seek", **query)

    if dry_run or not yes:
        rows = ask_each(session, brokers, lambda broker: call(broker, True))
        if dry_run:
            show(session, rows, views.seeks)
            return
        again, skipped = (sum(row[key] for row in rows) for key in ("redeliver", "skip"))
        brokers = holders(brokers, rows)
        effect = f"{messages(again)} delivered again, {messages(skipped)} skipped"
        session.confirm(f"Move channel {channel} of topic {topic} to {place}{places(brokers)}: {effect}?", yes)
    show(session, ask_each(session, brokers, lambda broker: call(broker, False)), views.seeks)


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
    session: Session,
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

    def call(broker: Broker) -> Row:
        if changes:
            return broker.post("/channel/limits", **names, **changes)
        return broker.get("/channel/limits", **names)

    show(session, ask_each(session, session.brokers(), call), views.limits)


def retained_bytes(text: str) -> int | str:
    """Return the number of bytes in a text such as 512MiB, or "default", as the type of an option."""
    if text == DEFAULT:
        return text
    match = SIZE.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no size such as 1073741824, 512MiB or 1GiB, nor {DEFAULT!r}")
    return int(match[1]) << (10 * POWERS[(match[2] or "")[:1].lower()])


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
def retention(session: Session, topic: str, bytes_: int | str | None, time_: str | None, yes: bool) -> None:
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
    show(session, rows, views.retentions)


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
