"""Pages about the life of messages, read from the trace database: search, and the timeline of one message."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import Role
from pyqd.admin.site import Site
from pyqd.trace.database import Database
from pyqd.trace.errors import TraceError
from pyqd.trace.search import STATES, Query, find
from pyqd.trace.story import stories_of

LIMIT: Final = 200
MESSAGE_ID: Final = re.compile(r"[0-9a-f]{16}")
SPANS: Final = {"10 min": 600, "1 h": 3600, "1 d": 86_400, "7 d": 604_800}


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
        found = [row for row in find(self.database, query) if self.site.may(Role.VIEW, row.topic)]
        return render_template(
            "stories.html",
            rows=found,
            limit=LIMIT,
            id=wanted,
            topic=topic,
            channel=channel,
            state=state,
            states=STATES,
            span=span,
            spans=SPANS,
        )

    def story(self, message_id: str) -> str | tuple[str, int]:
        """Show all that is known of the messages with an id."""
        found = [story for story in stories_of(self.database, message_id) if self.site.may(Role.VIEW, story.topic)]
        return render_template("story.html", id=message_id, stories=found), 200 if found else 404

    def unreadable(self, error: TraceError) -> tuple[str, int]:
        """Show why the database does not answer."""
        return render_template("refused.html", error=str(error)), 502
