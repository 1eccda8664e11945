"""Pages about the life of messages, read from the trace database: search, and the timeline of one message."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import Role
from pyqd.admin.health import mark
from pyqd.admin.pages.language import translate
from pyqd.admin.site import Site
from pyqd.trace.database import Database
from pyqd.trace.errors import TraceError
from pyqd.trace.search import STATES, Query, find, unclaimed
from pyqd.trace.story import stories_of

LIMIT: Final = 200
MESSAGE_ID: Final = re.compile(r"[0-9a-f]{16}")
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


def named(name: str) -> str:
    """Return an event, a state or a reason in the reader's language."""
    return translate(NAMES[name]) if name in NAMES else name.replace("_", " ")


def stories(site: Site, url: str) -> Blueprint:
    """Return the routes. url: of the trace database. Raises: TraceError if it is no URL of a database."""
    routes = Blueprint("stories", __name__)
    views = Stories(site, Database(url))
    routes.add_url_rule("/messages", "search", views.search)
    routes.add_url_rule("/messages/<message_id>", "story", views.story)
    routes.register_error_handler(TraceError, views.unreadable)
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
        since = datetime.now(timezone.utc) - timedelta(seconds=SPANS[span])
        query = Query(topic=topic or None, channel=channel or None, since=since, state=state or None, limit=LIMIT)
        rows = find(self.database, query)
        # Of all topics of a large database, messages that no channel has got cost as much again.
        if topic or len(rows) < LIMIT:
            rows += unclaimed(self.database, query)
        rows = sorted(rows, key=lambda row: row.at, reverse=True)[:LIMIT]
        found = [row for row in rows if self.site.may(Role.VIEW, row.topic)]
        return render_template(
            "stories.html",
            rows=found,
            limit=LIMIT,
            id=wanted,
            topic=topic,
            channel=channel,
            state=state,
            states=STATES,
            named=named,
            span=span,
            spans=SPANS,
        )

    def story(self, message_id: str) -> str | tuple[str, int]:
        """Show all that is known of the messages with an id."""
        found = [story for story in stories_of(self.database, message_id) if self.site.may(Role.VIEW, story.topic)]
        return render_template("story.html", id=message_id, stories=found, named=named), 200 if found else 404

    def unreadable(self, error: TraceError) -> tuple[str, int]:
        """Show why the database does not answer."""
        return render_template("refused.html", error=str(error)), 502
