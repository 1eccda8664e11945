"""Read-only paged listings of the messages of a channel, or of those that a topic holds.

A page's cursor is a text that names the last message shown, in the order of the state: it needs no memory in the
broker, never expires, and another reader may use it. Its forms, with numbers: r (returned: entry), q (queued:
position), f (in flight: slot, run), d (deferred: due time, place, run), l (dead letter: entry).

Long walks pause, and a page that takes too many of them ends early: it may be short, even empty, and not the last.
"""

import re
from typing import Any, Final, NamedTuple

from pyqd.broker.channel import Channel
from pyqd.broker.replay import Pause, TopicGone, prepare_in_steps, yield_or_read
from pyqd.broker.topic import Topic
from pyqd.hot.broker.peek import DeferredSearch, QueueWalk, in_flight_page, run_of, waiting_page
from pyqd.hot.primitives.clock import wall

READY: Final = "ready"
IN_FLIGHT: Final = "in_flight"
DEFERRED: Final = "deferred"
DEAD_LETTER: Final = "dead_letter"
STATES: Final = (READY, IN_FLIGHT, DEFERRED, DEAD_LETTER)
# Slices of a walk over a queue; after these the page is returned as it is.
TURNS_MAX: Final = 100

_CURSOR = re.compile(r"([rql])(\d{1,20})|(f)(\d{1,10})\.(\d{1,20})|(d)(-?\d{1,19})\.(-?\d{1,19})\.(\d{1,20})", re.ASCII)
_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1


class ListedMessage(NamedTuple):
    """One message, as it was seen. body: as much of it as was asked for. The last three: in flight only."""

    guid: int
    timestamp_ns: int
    attempts: int
    size_bytes: int
    position: int
    due_ns: int
    body: bytes
    client: Any = None
    delivered_ns: int = 0
    deadline_ns: int = 0


class ListedPage(NamedTuple):
    """Messages of one state. after: cursor of the next page; None: there is none."""

    rows: list[ListedMessage]
    after: str | None


class Cursor(NamedTuple):
    """A cursor taken apart. kind: "" for the beginning."""

    kind: str = ""
    numbers: tuple[int, ...] = (0,)


KINDS_OF: Final = {READY: "rq", IN_FLIGHT: "f", DEFERRED: "d", DEAD_LETTER: "l"}


def parse_cursor(text: str, state: str) -> Cursor:
    """Return the cursor of a page of that state. Raises: ValueError."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"not a cursor: {text!r}")
    kind, *numbers = [part for part in match.groups() if part is not None]
    cursor = Cursor(kind, tuple(int(number) for number in numbers))
    if (
        kind not in KINDS_OF[state]
        or max(cursor.numbers) > _UINT64_MAX
        or (kind == "d" and max(map(abs, cursor.numbers[:2])) > _INT64_MAX)
    ):
        raise ValueError(f"not a cursor of this state: {text!r}")
    return cursor


def page_of_channel(
    topic: Topic, channel: Channel, state: str, cursor: Cursor, count_max: int, body_bytes_max: int, pause: Pause
) -> ListedPage:
    """Return a page of a channel's messages. Raises: TopicGone."""
    if state == READY:
        return ready_page(topic, channel, cursor, count_max, body_bytes_max, pause)
    if state == DEFERRED:
        return deferred_page(topic, channel, cursor, count_max, body_bytes_max, pause)
    if state == DEAD_LETTER:
        rows, number, at_end = waiting_page(channel, True, cursor.numbers[0], count_max, body_bytes_max)
        return ListedPage([ListedMessage(*row) for row in rows], None if at_end else f"l{number}")
    run = run_of(channel)
    slot = cursor.numbers[0] if cursor.kind and cursor.numbers[1] == run else 0
    rows, slot, at_end = in_flight_page(channel, slot, count_max, body_bytes_max)
    return ListedPage([ListedMessage(*row) for row in rows], None if at_end else f"f{slot}.{run}")


def ready_page(
    topic: Topic, channel: Channel, cursor: Cursor, count_max: int, body_bytes_max: int, pause: Pause
) -> ListedPage:
    """Return a page of waiting messages: first those delivered before, then the queue."""
    found: list[ListedMessage] = []
    if cursor.kind != "q":
        rows, number, at_end = waiting_page(channel, False, cursor.numbers[0], count_max, body_bytes_max)
        found = [ListedMessage(*row) for row in rows]
        if not at_end:
            return ListedPage(found, f"r{number}")
        if len(found) == count_max:
            return ListedPage(found, f"q{topic.reader.position_of(channel.ledger.cursor)}")
        start = channel.ledger.cursor
    else:
        start = topic.reader.ordinal_of(cursor.numbers[0])
    return queue_page(topic, channel, start, found, count_max, body_bytes_max, pause)


def page_of_topic(
    topic: Topic, state: str, cursor: Cursor, count_max: int, body_bytes_max: int, pause: Pause
) -> ListedPage:
    """Return a page of the messages that a topic without channels, or a paused one, holds. Raises: TopicGone."""
    if state in (IN_FLIGHT, DEAD_LETTER):
        return ListedPage([], None)
    start = topic.reader.ordinal_of(cursor.numbers[0]) if cursor.kind == "q" else topic.end
    page = queue_page(topic, None, start, [], count_max, body_bytes_max, pause)
    now_ns = wall()
    return ListedPage([row for row in page.rows if (row.due_ns > now_ns) == (state == DEFERRED)], page.after)


def queue_page(
    topic: Topic,
    channel: Channel | None,
    start: int,
    before: list[ListedMessage],
    count_max: int,
    body_bytes_max: int,
    pause: Pause,
) -> ListedPage:
    """Return a page that continues in the topic's log, from an ordinal on. before: rows that the page has already."""
    reader = topic.reader
    walk = QueueWalk(topic, channel, start)
    for turn in range(TURNS_MAX):
        if turn:
            pause()
        prepare_in_steps(topic, lambda: walk.prepare(reader, body_bytes_max), pause)
        if topic.exiting or (channel is not None and channel.exiting):
            raise TopicGone
        if walk.walk(reader, count_max - len(before), body_bytes_max):
            break
    rows = before + [ListedMessage(*row) for row in walk.rows]
    return ListedPage(rows, None if walk.at_end else f"q{reader.position_of(walk.ordinal)}")


def deferred_page(
    topic: Topic, channel: Channel, cursor: Cursor, count_max: int, body_bytes_max: int, pause: Pause
) -> ListedPage:
    """Return a page of deferred messages, earliest first."""
    run = run_of(channel)
    after = (-_INT64_MAX, -1)
    if cursor.kind:
        due_ns, place, of_run = cursor.numbers
        after = (due_ns, place if of_run == run else -1)
    search = DeferredSearch(channel, after, count_max)
    presence = topic.reader.presence
    while not (search.step() and search.has_page(presence, body_bytes_max)):
        yield_or_read(topic.broker, presence, pause)
        if channel.is_closed():
            raise TopicGone
    rows, (due_ns, place), at_end = search.page(body_bytes_max)
    return ListedPage([ListedMessage(*row) for row in rows], None if at_end else f"d{due_ns}.{place}.{run}")
