"""Pages about the life of messages, read from the trace database: search, and the timeline of one message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final, TypeVar

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import UserRole
from pyqd.admin.health import mark
from pyqd.admin.pages.browser import MESSAGE_ID
from pyqd.admin.pages.forms import blueprint, refused
from pyqd.admin.pages.language import translate
from pyqd.admin.site import Site
from pyqd.fallback.trace_states import STATES
from pyqd.primitives.names import is_valid_name_str
from pyqd.trace import TraceError
from pyqd.trace.database import Database
from pyqd.trace.search import TraceQuery, newest
from pyqd.trace.story import stories_of

T = TypeVar("T")

LIMIT: Final = 200
UNTIL_FORM: Final = "%Y-%m-%dT%H:%M:%S"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
SPANS: Final = {"10 min": 600, "1 h": 3600, "1 d": 86_400, "7 d": 604_800}

# Names of events, of states and of reasons for readers. docs/trace.md describes them.
NAMES: Final = {
    "published": mark("published"),
    "stored": mark("stored"),
    "sent": mark("sent"),
    "finished": mark("finished"),
    "requeued": mark("requeued"),
    "timed_out": mark("timed out"),
    "touched": mark("touched"),
    "client_gone": mark("client gone"),
    "cancelled": mark("cancelled"),
    "rescheduled": mark("rescheduled"),
    "delivered_now": mark("delivered now"),
    "dead_lettered": mark("dead letter"),
    "dropped": mark("dropped"),
    "expired": mark("expired"),
    "lost_events": mark("events lost"),
    "waiting": mark("waiting"),
    "in_flight": mark("in flight"),
    "unfinished": mark("unfinished"),
    "disconnected": mark("client gone, not timed out yet"),
    "attempts": mark("because of the limit of attempts"),
    "ephemeral": mark("because an ephemeral channel holds no more"),
    "emptied": mark("because it was emptied"),
    "channel_deleted": mark("because the channel was deleted"),
    "topic_deleted": mark("because the topic was deleted"),
    "seek": mark("by a seek"),
    "sampled": mark("because of the client's sample rate"),
    "copy": mark("because it was there twice"),
    "released": mark("after the topic had held it"),
    "unknown_gap": mark("after a power failure or damage"),
}


def time_of(text: str) -> datetime | None:
    """Return the time of a field of a form, which is UTC; None if it is empty or no time since 1970."""
    try:
        found = datetime.fromisoformat(text)
        found = found.astimezone(timezone.utc) if found.tzinfo else found.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None
    # The start of a search is earlier, and must be in the calendar too.
    return found if found >= EPOCH else None


def named(name: str) -> str:
    """Return an event, a state or a reason in the reader's language."""
    return translate(NAMES[name]) if name in NAMES else name.replace("_", " ")


def stories(site: Site, url: str) -> Blueprint:
    """Return the routes. url: of the trace database. Raises: TraceError if it is no URL of a database."""
    views = Stories(site, Database(url))
    routes = blueprint("stories", {"/messages": views.search, "/messages/<message_id>": views.story})
    routes.register_error_handler(TraceError, refused)
    return routes


class Stories:
    """Views of the trace database."""

    def __init__(self, site: Site, database: Database) -> None:
        self.site = site
        self.database = database

    def search(self) -> str | Response:
        """Show messages by topic, channel, state and time; a message's id leads to its story."""
        fields = request.args
        wanted = fields.get("id", "").strip().lower()
        if MESSAGE_ID.fullmatch(wanted):
            return redirect(url_for("stories.story", message_id=wanted), 303)
        topic, channel = fields.get("topic", "").strip(), fields.get("channel", "").strip()
        state = fields.get("state", "") if fields.get("state") in STATES else ""
        span = fields.get("within", "") if fields.get("within") in SPANS else "1 h"
        until = time_of(fields.get("until", ""))
        query = TraceQuery(
            topic=topic or None,
            channel=channel or None,
            since=(until or datetime.now(timezone.utc)) - timedelta(seconds=SPANS[span]),
            until=until,
            state=state or None,
            limit=LIMIT,
            topics=None if topic or self.site.sees_all() else self.visible_topics(),
        )
        # Databases refuse some other texts, such as those with NUL.
        can_exist = all(is_valid_name_str(name) for name in (topic, channel) if name)
        rows = self.read(lambda: newest(self.database, query)) if can_exist else []
        found = [row for row in rows if self.site.may(UserRole.VIEW, row.topic)]
        return render_template(
            "stories.html",
            rows=found,
            limit=LIMIT,
            id=wanted,
            is_no_id=bool(wanted),
            topic=topic,
            channel=channel,
            state=state,
            states=STATES,
            named=named,
            span=span,
            spans=SPANS,
            until="" if until is None else until.strftime(UNTIL_FORM),
        )

    def visible_topics(self) -> tuple[str, ...]:
        """Return the topics of the cluster that the user may see: the newest messages of all may be of others only."""
        snapshot = self.site.poller.snapshot
        names = {*snapshot.topics, *snapshot.names}
        return tuple(sorted(name for name in names if self.site.may(UserRole.VIEW, name)))

    def read(self, call: Callable[[], T]) -> T:
        """Return the result of a call that reads the database. Other requests go on meanwhile."""
        # The drivers of the other databases wait for sockets, which lets other requests run.
        result: T = self.site.apart(call) if self.database.engine.dialect.name == "sqlite" else call()
        return result

    def story(self, message_id: str) -> str | tuple[str, int]:
        """Show all that is known of the messages with an id."""
        can_exist = MESSAGE_ID.fullmatch(message_id) is not None
        stories = self.read(lambda: stories_of(self.database, message_id)) if can_exist else []
        found = [story for story in stories if self.site.may(UserRole.VIEW, story.topic)]
        return render_template("story.html", id=message_id, stories=found, named=named), 200 if found else 404
