"""Commands that query the database: show, find, stats."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from pyqd.client.errors import SettingError
from pyqd.fallback.trace_states import STATES
from pyqd.tools.ctl.exits import NOT_FOUND, OK
from pyqd.tools.ctl.output import CommandOutput
from pyqd.tools.trace import views
from pyqd.tools.trace.frame import instant, opened, reading_options, say, span

if TYPE_CHECKING:
    from pyqd.trace.search import FoundMessage
    from pyqd.trace.story import Story

POLL_S: Final = 1.0
ID_CHARS: Final = 16
ALIASES: Final = {"dead": "dead_lettered"}


@click.command()
@click.argument("message_id", metavar="ID")
@reading_options
def show(message_id: str, url: str, as_json: bool | None, follow: bool) -> int:
    """Show the story of the message ID: each event with its time, who had it, and why it came back.

    The id is the one that a publisher gets, 16 hexadecimal digits. Exit code 4: no event of it is in the database.
    """
    from pyqd.trace.story import stories_of

    wanted = message_id.lower()
    if len(wanted) != ID_CHARS or set(wanted) - set("0123456789abcdef"):
        raise SettingError(f"{message_id!r} is no message id: it has {ID_CHARS} hexadecimal digits")
    output = CommandOutput(as_json)
    with opened(url) as database:
        if follow:
            return _follow_story(output, lambda: stories_of(database, wanted))
        stories = stories_of(database, wanted)
        if not stories:
            say(f"no event of message {wanted} is in {database.name}")
            return NOT_FOUND
        output.show({"stories": [views.story_value(story) for story in stories]}, lambda: _whole(stories))
    return OK


def _follow_story(output: CommandOutput, ask: Callable[[], list[Story]]) -> int:
    """Print the steps of a message as they come, until each channel is done with it."""
    shown: set[tuple[object, ...]] = set()
    while True:
        stories = ask()
        steps = [(story, step) for story in stories for step in story.steps]
        for story, step in steps:
            key = views.key_of_step(story, step)
            if key in shown:
                continue
            shown.add(key)
            if output.is_json:
                output.show_line(views.step_value(story, step))
            else:
                output.line(views.step_line(step))
        if stories and all(story.is_over for story in stories):
            return OK
        time.sleep(POLL_S)


def _whole(stories: list[Story]) -> Any:
    from rich.console import Group

    from pyqd.tools.ctl.table import cell

    parts: list[Any] = []
    for story in stories:
        first, *others = views.head_of(story)
        parts += [cell(first, "bold"), *map(cell, others), cell(""), views.story_view(story)]
    return Group(*parts)


@click.command()
@click.option("-t", "--topic", help="topic")
@click.option("-c", "--channel", help="channel")
@click.option("--since", type=instant, metavar="TIME", help="not before: -10m, or 2026-11-23T12:00:00Z")
@click.option("--until", type=instant, metavar="TIME", help="before")
@click.option("--state", type=click.Choice((*STATES, *ALIASES)), help="unfinished: also waiting and in flight")
@click.option("--slower-than", type=span, metavar="DURATION", help="from publishing, or from the due time, to the end")
@click.option("--attempts-above", type=click.IntRange(0), metavar="N", help="delivered more often")
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True, help="messages at most")
@reading_options
def find(
    topic: str | None,
    channel: str | None,
    since: datetime | None,
    until: datetime | None,
    state: str | None,
    slower_than: timedelta | None,
    attempts_above: int | None,
    limit: int,
    url: str,
    as_json: bool | None,
    follow: bool,
) -> int:
    """List messages by topic, channel, time and state, the newest first.

    A message has a line for each channel, with its last delivery there. The time is that of this delivery, or for a
    message that was never sent the time at which the channel got it. A message that no channel has got is listed
    without one, with the time of its publishing. A query with topic and channel is the quickest.
    """
    from pyqd.trace.search import TraceQuery, newest

    output = CommandOutput(as_json)
    query = TraceQuery(
        topic, channel, since, until, ALIASES.get(state or "", state), slower_than, attempts_above, limit
    )
    with opened(url) as database:
        if follow:
            return _follow_search(output, lambda: newest(database, query), limit)
        found = newest(database, query)
        output.show(
            {"messages": [views.jsonable(views.found_row(row)) for row in found]}, lambda: views.found_view(found)
        )
    return OK


def _follow_search(output: CommandOutput, ask: Callable[[], list[FoundMessage]], limit: int) -> int:
    """Print messages as they come to meet the conditions, for ever. limit: of messages that `ask` returns."""
    seen: set[tuple[str, ...]] = set()
    while True:
        found = {views.key_of(row): row for row in reversed(ask())}
        for key, row in found.items():
            if key not in seen:
                output.show_line(views.jsonable(views.found_row(row))) if output.is_json else output.line(
                    views.found_line(row)
                )
        if seen and len(found) >= limit and seen.isdisjoint(found):
            say(
                f"more than {limit} messages at once, of which the oldest are left out: --limit sets how many are shown"
            )
        # A message that is no longer found cannot come again: its key has the time.
        seen = set(found)
        time.sleep(POLL_S)


@click.command()
@click.option("-t", "--topic", help="topic")
@click.option("--since", type=instant, metavar="TIME", help="not before: -10m, or 2026-11-23T12:00:00Z")
@click.option("--until", type=instant, metavar="TIME", help="before")
@reading_options
def stats(
    topic: str | None, since: datetime | None, until: datetime | None, url: str, as_json: bool | None, follow: bool
) -> int:
    """Show counts and times of topics and channels, and the events that brokers have lost.

    Percentiles are of the time from sending to FIN; each is the upper limit of a class in steps of 1, 2, 5. Lost events
    are those that a broker overwrote before they were stored, or that were damaged.
    """
    from pyqd.trace.figures import figures_of

    output = CommandOutput(as_json)
    with opened(url) as database:
        while True:
            figures = figures_of(database, topic, since, until)
            value = views.jsonable(asdict(figures))
            if output.is_json:
                output.show_line(value) if follow else output.show(value, lambda: "")
            else:
                console = output.console()
                if follow:
                    console.clear()
                for view in views.figures_views(figures):
                    console.print(view)
                    console.print()
            if not follow:
                return OK
            time.sleep(POLL_S)
