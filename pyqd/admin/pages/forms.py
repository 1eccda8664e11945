"""Changes from the pages: each is a POST with a token of the session, and is confirmed before it is done."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final

from flask import Blueprint, Response, abort, flash, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin import actions
from pyqd.admin.access.roles import Role
from pyqd.admin.nsqadmin_api import caller
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError
from pyqd.primitives.names import is_valid_name_str

TOKEN: Final = "csrf"
# Actions that lose messages, or that may. They are confirmed.
LOSING: Final = ("empty", "delete", "tombstone")


def csrf_token() -> str:
    """Return the token that forms of this session carry."""
    if TOKEN not in session:
        session[TOKEN] = secrets.token_urlsafe(24)
    return str(session[TOKEN])


def check_token() -> None:
    """Refuse a POST that does not come from a page of this session."""
    if not hmac.compare_digest(request.form.get(TOKEN, ""), session.get(TOKEN, "") or secrets.token_urlsafe(24)):
        abort(Response(_("The form is out of date: load the page again."), 403))


def place_url(topic: str, channel: str) -> str:
    """Return the URL of the page of a channel, or of a topic."""
    return url_for("pages.channel", topic=topic, channel=channel) if channel else url_for("pages.topic", topic=topic)


def forms(site: Site) -> Blueprint:
    """Return the routes of the forms."""
    routes = Blueprint("forms", __name__)
    handlers = Forms(site)
    routes.add_url_rule("/do/<action>", "do", handlers.do, methods=["POST"])
    routes.add_url_rule("/do/create", "create", handlers.create, methods=["POST"])
    return routes


class Forms:
    """Handlers of the forms."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def create(self) -> AnyResponse:
        """Create a topic, and a channel."""
        check_token()
        topic, channel = request.form.get("topic", "").strip(), request.form.get("channel", "").strip()
        for kind, name in (("topic", topic), ("channel", channel)):
            if (name or kind == "topic") and not is_valid_name_str(name):
                flash(_("Names have 1 to 64 letters, digits and .-_, and may end with #ephemeral."), "bad")
                return redirect(url_for("pages.lookup"), 303)
        self.site.require(Role.ADMIN, topic)
        self.run(lambda: actions.create(self.site.cluster, topic, channel), "create_topic", topic, channel)
        return redirect(place_url(topic, channel), 303)

    def do(self, action: str) -> AnyResponse | str:
        """Change a topic or a channel; a tombstone also has a node."""
        check_token()
        if action not in (*actions.ACTIONS, "delete", "tombstone"):
            abort(404)
        form = request.form
        topic, channel, node = form.get("topic", ""), form.get("channel", ""), form.get("node", "")
        self.site.require(Role.OPERATE if action in actions.ACTIONS else Role.ADMIN, topic)
        if action in LOSING and form.get("confirmed") != "yes":
            return render_template("confirm.html", action=action, topic=topic, channel=channel, node=node)
        cluster = self.site.cluster
        if action == "tombstone":
            self.run(lambda: actions.tombstone(cluster, topic, node), "tombstone_topic_producer", topic, "", node)
            return redirect(url_for("pages.node", node=node), 303)
        kind = "channel" if channel else "topic"
        if action == "delete" and channel:
            self.run(lambda: actions.delete_channel(cluster, topic, channel), "delete_channel", topic, channel)
            return redirect(url_for("pages.topic", topic=topic), 303)
        if action == "delete":
            self.run(lambda: actions.delete_topic(cluster, topic), "delete_topic", topic)
            return redirect(url_for("pages.home"), 303)
        self.run(lambda: actions.change(cluster, action, topic, channel), f"{action}_{kind}", topic, channel)
        return redirect(place_url(topic, channel), 303)

    def run(self, change: Callable[[], list[str]], name: str, topic: str, channel: str = "", node: str = "") -> None:
        """Do a change, log and notify it, and tell the result on the next page."""
        try:
            failures = change()
        except UpstreamError as error:
            failures = [str(error)]
        self.site.notifier.notify(name, caller(self.site), topic=topic, channel=channel, node=node)
        for failure in failures:
            flash(failure, "bad")
        if not failures:
            flash(_("Done."), "good")
