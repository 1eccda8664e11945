"""Output of pyq_trace's queries: values for JSON, and tables for a terminal."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.quantities import format_size, format_span
from pyqd.tools.ctl.table import Fitted, TableColumn, count, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pyqd.trace.figures import TraceFigures
    from pyqd.trace.search import FoundMessage
    from pyqd.trace.story import Step, Story

# Of a body, on a terminal.
BODY_CHARS: Final = 400
TIME: Final = "%Y-%m-%d %H:%M:%S.%f"


def jsonable(value: Any) -> Any:
    """Return a value of a query as JSON has it: times in RFC 3339, bodies as text, or as {"base64": ...}."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if value == float("inf"):
        return None
    return value


def story_value(story: Story) -> dict[str, Any]:
    shown = asdict(story)
    shown["channels"] = list(shown["channels"].values())
    for step in shown["steps"]:
        # The place in the broker's log is of no use to readers.
        del step["position"]
    found: dict[str, Any] = jsonable(shown)
    return found


def step_value(story: Story, step: Step) -> dict[str, Any]:
    value = {"message_id": story.message_id, "topic": story.topic, "nsqd": story.nsqd, **asdict(step)}
    del value["position"]
    found: dict[str, Any] = jsonable(value)
    return found


def found_row(found: FoundMessage) -> dict[str, Any]:
    return {**asdict(found), "taken_s": found.taken_s}


def key_of(found: FoundMessage) -> tuple[str, ...]:
    """Return the key of a line of `find --follow`: a message is shown again with each new state."""
    return found.nsqd, found.message_id, found.topic, found.channel, found.state, str(found.at)


def key_of_step(story: Story, step: Step) -> tuple[object, ...]:
    """Return the key of a line of `show --follow`. New steps may come before others, and in each of several stories."""
    return story.nsqd, story.topic, step.channel, step.event, step.position, step.at


def step_line(step: Step) -> str:
    words = [column.text(step_row(step)) for column in STEPS]
    return "  ".join(word for word in words if word not in ("", "-"))


def found_line(found: FoundMessage) -> str:
    return "  ".join(column.text(found_row(found)) for column in FOUND)


def time_text(at: datetime) -> str:
    return at.strftime(TIME)


def channel_text(name: str) -> str:
    """Return the name of a channel; a dash for a message that no channel has got."""
    return name or "-"


def span_text(span_s: float | None) -> str:
    """Return a length of time; empty for None, and `longer` for one above the greatest class."""
    if span_s is None:
        return ""
    return "longer" if span_s == float("inf") else format_span(span_s * SECOND_NS)


STEPS: Final = (
    TableColumn("Time (UTC)", "at", time_text),
    TableColumn("After", "after_s", span_text, is_number=True),
    TableColumn("Channel", "channel", style="bold"),
    TableColumn("Event", "event"),
    TableColumn("Attempt", "attempt", is_number=True, rank=1),
    TableColumn("Client", "client", rank=2),
    TableColumn("User agent", "user_agent", rank=4),
    TableColumn("", "note", rank=3),
)
FOUND: Final = (
    TableColumn("Id", "message_id", style="bold"),
    TableColumn("Topic", "topic"),
    TableColumn("Channel", "channel", channel_text),
    TableColumn("State", "state"),
    TableColumn("Time (UTC)", "at", time_text),
    TableColumn("Attempts", "attempts", is_number=True, rank=1),
    TableColumn("Took", "taken_s", span_text, is_number=True, rank=2),
    TableColumn("Client", "client", rank=3),
    TableColumn("Broker", "nsqd", rank=4),
)
TOPICS: Final = (
    TableColumn("Topic", "topic", style="bold"),
    TableColumn("Messages", "message_count", count, is_number=True),
    TableColumn("Bodies", "size_bytes", format_size, is_number=True),
    TableColumn("First (UTC)", "first_at", time_text, rank=2),
    TableColumn("Last (UTC)", "last_at", time_text, rank=1),
)
CHANNELS: Final = (
    TableColumn("Topic", "topic"),
    TableColumn("Channel", "channel", style="bold"),
    TableColumn("Deliveries", "delivery_count", count, is_number=True),
    TableColumn("Finished", "finished", count, is_number=True),
    TableColumn("Requeued", "requeued", count, is_number=True, rank=1),
    TableColumn("Timed out", "timed_out", count, is_number=True, rank=1),
    TableColumn("Disconn.", "disconnected", count, is_number=True, rank=2),
    TableColumn("Dead", "dead_lettered", count, is_number=True, rank=1),
    TableColumn("Cancelled", "cancelled", count, is_number=True, rank=2),
    TableColumn("In flight", "in_flight", count, is_number=True, rank=1),
    TableColumn("p50 ≤", "p50", span_text, is_number=True, rank=3),
    TableColumn("p90 ≤", "p90", span_text, is_number=True, rank=4),
    TableColumn("p99 ≤", "p99", span_text, is_number=True, rank=3),
)
GAPS: Final = (
    TableColumn("Broker", "nsqd", style="bold"),
    TableColumn("Lost events", "event_count", count, is_number=True),
    TableColumn("Gaps of unknown size", "unknown_count", count, is_number=True, rank=1),
    TableColumn("Last noticed (UTC)", "last_at", time_text, rank=2),
)


def note_of(step: Step) -> str:
    """Return the rest of a step as text: why a message came back, or when it is due."""
    parts = []
    if step.message_count is not None:
        parts.append("with others")
    if step.reason is not None:
        parts.append(step.reason)
    if step.delay_ms is not None:
        parts.append(f"delay {span_text(step.delay_ms / 1000)}" if step.delay_ms else "no delay")
    if step.due_at is not None:
        parts.append(f"due {time_text(step.due_at)}")
    if step.is_end_missing:
        parts.append("its end is not recorded")
    return ", ".join(parts)


def head_of(story: Story) -> list[str]:
    lines = [f"message {story.message_id} of topic {story.topic} at {story.nsqd}"]
    if story.size is not None:
        lines[0] += f", {count(story.size)} bytes"
    if story.body is not None:
        lines.append(f"body: {printable(story.body.decode(errors='replace'))[:BODY_CHARS]}")
    for channel in story.channels.values():
        attempts = f"{channel.attempts} deliver{'y' if channel.attempts == 1 else 'ies'}"
        text = f"{channel.channel}: {channel.state}, {attempts}"
        since = story.published_at
        if since is not None and channel.first_sent_at is not None:
            text += f", first after {span_text((channel.first_sent_at - since).total_seconds())}"
        if since is not None and channel.ended_at is not None:
            text += f", over after {span_text((channel.ended_at - since).total_seconds())}"
        lines.append(text)
    return lines


def step_row(step: Step) -> dict[str, Any]:
    return {**asdict(step), "note": note_of(step)}


def story_view(story: Story) -> RenderableType:
    return Fitted(STEPS, list(map(step_row, story.steps)))


def found_view(found: Sequence[FoundMessage]) -> RenderableType:
    return Fitted(FOUND, list(map(found_row, found)))


def figures_views(figures: TraceFigures) -> Sequence[RenderableType]:
    channels = [
        {
            **asdict(channel),
            **channel.outcomes,
            **{f"p{percent}": value for percent, value in channel.percentiles_s.items()},
        }
        for channel in figures.channels
    ]
    views = [Fitted(TOPICS, [asdict(topic) for topic in figures.topics]), Fitted(CHANNELS, channels)]
    if figures.gaps:
        views.append(Fitted(GAPS, [asdict(gap) for gap in figures.gaps]))
    return views
