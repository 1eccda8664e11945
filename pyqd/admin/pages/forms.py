"""Changes from the pages: each is a POST with a token of the session, and is confirmed before it is done."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin import actions
from pyqd.admin.access.roles import Role
from pyqd.admin.health import mark
from pyqd.admin.notifications import failed
from pyqd.admin.nsqadmin_api import caller
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError
from pyqd.primitives.names import is_valid_name_str

TOKEN: Final = "csrf"
# Errors on a page, and characters of each.
ERRORS_MAX: Final = 10
ERROR_LENGTH_MAX: Final = 300
OUT_OF_DATE: Final = mark("The form is out of date: load the page again.")

logger = logging.getLogger(__name__)


def csrf_token() -> str:
    """Return the token that forms of this session carry."""
    if TOKEN not in session:
        session[TOKEN] = secrets.token_urlsafe(24)
    return str(session[TOKEN])


def check_token() -> None:
    """Refuse a POST that does not come from a page of this session."""
    given, expected = request.form.get(TOKEN, ""), session.get(TOKEN, "") or secrets.token_urlsafe(24)
    # The function takes text in ASCII only.
    if not hmac.compare_digest(given.encode(), expected.encode()):
        abort(403, OUT_OF_DATE)


def flash_errors(errors: Sequence[str]) -> None:
    """Show errors on the next page, and log them. Of many, and of long ones, only the log has all."""
    for error in errors:
        logger.warning("%s", error)
    # Browsers drop a cookie of more than 4,096 bytes, and with it all that the next page is to tell.
    for error in errors[:ERRORS_MAX]:
        flash(error if len(error) <= ERROR_LENGTH_MAX else f"{error[: ERROR_LENGTH_MAX - 1]}…", "bad")
    if len(errors) > ERRORS_MAX:
        flash(_("and %(count)s more; the log has all") % {"count": len(errors) - ERRORS_MAX}, "bad")


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

    def create(self) -> AnyResponse | str:
        """Create a topic, and a channel."""
        check_token()
        topic, channel = request.form.get("topic", "").strip(), request.form.get("channel", "").strip()
        for kind, name in (("topic", topic), ("channel", channel)):
            if (name or kind == "topic") and not is_valid_name_str(name):
                flash(_("Names have 1 to 64 letters, digits and .-_, and may end with #ephemeral."), "bad")
                return redirect(url_for("pages.lookup"), 303)
        self.site.require(Role.ADMIN, topic)
        if request.form.get("confirmed") != "yes":
            return confirmation("create", topic, channel)
        failures = self.run(lambda: actions.create(self.site.cluster, topic, channel))
        if failures is None:
            self.log_failed("create_channel" if channel else "create_topic", topic, channel)
        else:
            self.tell("create_topic", topic, details=failed(failures))
            if channel:
                self.tell("create_channel", topic, channel, details=failed(failures))
        return redirect(place_url(topic, channel), 303)

    def do(self, action: str) -> AnyResponse | str:
        """Change a topic or a channel; a tombstone also has a node."""
        check_token()
        if action not in (*actions.ACTIONS, "delete", "tombstone"):
            abort(404)
        form = request.form
        topic, channel, node = form.get("topic", ""), form.get("channel", ""), form.get("node", "")
        self.site.require(Role.OPERATE if action in actions.ACTIONS else Role.ADMIN, topic)
        if action == "tombstone" and not self.site.is_broker(node):
            flash(_("There is no broker %(node)s.") % {"node": node}, "bad")
            return redirect(url_for("pages.topic", topic=topic), 303)
        if form.get("confirmed") != "yes":
            return confirmation(action, topic, channel, node)
        failures = self.run(lambda: self.change(action, topic, channel, node))
        kind = "channel" if channel else "topic"
        name = "tombstone_topic_producer" if action == "tombstone" else f"{action}_{kind}"
        # nsqadmin notifies these three actions even if no broker has done them.
        if failures is not None or action in actions.ACTIONS:
            self.tell(name, topic, channel, node, details="failed" if failures is None else failed(failures))
        else:
            self.log_failed(name, topic, channel, node)
        if form.get("origin") == "lookup":
            return redirect(url_for("pages.lookup"), 303)
        if action == "tombstone":
            return redirect(url_for("pages.node", node=node), 303)
        if action == "delete":
            return redirect(url_for("pages.topic", topic=topic) if channel else url_for("pages.home"), 303)
        return redirect(place_url(topic, channel), 303)

    def change(self, action: str, topic: str, channel: str, node: str) -> list[str]:
        """Do an action. Returns: the failures of single members. Raises: UpstreamError."""
        cluster = self.site.cluster
        if action == "tombstone":
            return actions.tombstone(cluster, topic, node)
        if action == "delete":
            return actions.delete_channel(cluster, topic, channel) if channel else actions.delete_topic(cluster, topic)
        return actions.change(cluster, action, topic, channel)

    def run(self, change: Callable[[], list[str]]) -> list[str] | None:
        """Do a change, and tell the result on the next page. Returns: the failures; None if all of it has failed."""
        try:
            failures = change()
        except UpstreamError as error:
            flash_errors([str(error)])
            return None
        flash_errors(failures)
        if not failures:
            flash(_("Done."), "good")
        return failures

    def tell(self, name: str, topic: str, channel: str = "", node: str = "", details: str = "") -> None:
        """Log a change, and notify it."""
        self.site.notifier.notify(name, caller(self.site), topic=topic, channel=channel, node=node, details=details)

    def log_failed(self, name: str, topic: str, channel: str = "", node: str = "") -> None:
        """Log a change that has failed, and may have taken effect at some members."""
        user = caller(self.site)
        self.site.notifier.audit(name, user, topic=topic, channel=channel, node=node, details="failed")


def confirmation(action: str, topic: str, channel: str, node: str = "") -> str:
    """Return the page that asks whether to do an action. Browsers with scripts ask before."""
    return render_template("confirm.html", action=action, topic=topic, channel=channel, node=node)
