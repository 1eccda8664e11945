"""Changes from the pages: each is a POST with a token of the session, and is confirmed before it is done."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin.access.roles import UserRole
from pyqd.admin.actions import ACTIONS, perform
from pyqd.admin.health import mark
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import Site
from pyqd.admin.upstream import AbsentCallError, UpstreamError
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
    if request.method != "POST":
        return
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


def blueprint(
    name: str, gets: Mapping[str, Callable[..., Any]], posts: Mapping[str, Callable[..., Any]] | None = None
) -> Blueprint:
    """Return routes named like their views, which are given by path. A POST needs the token of the session.

    A refusal of a broker has a page of its own.
    """
    routes = Blueprint(name, __name__)
    for method, views in (("GET", gets), ("POST", posts or {})):
        for path, view in views.items():
            routes.add_url_rule(path, view.__name__, view, methods=[method])
    routes.before_request(check_token)
    routes.register_error_handler(UpstreamError, refused)
    routes.register_error_handler(AbsentCallError, absent)
    return routes


def refused(error: Exception) -> tuple[str, int]:
    return render_template("refused.html", error=str(error)), 502


def absent(_error: AbsentCallError) -> str:
    return render_template("absent.html")


class SiteViews:
    """Views of one web admin."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def nodes(self, topic: str) -> list[str]:
        """Return the addresses of the brokers that have a topic. Raises: UpstreamError."""
        return sorted(node.http_address for node in self.site.cluster.producers_of(topic).value)


def forms(site: Site) -> Blueprint:
    views = Forms(site)
    return blueprint("forms", {}, {"/do/<action>": views.do, "/do/create": views.create})


class Forms(SiteViews):
    """Handlers of the forms."""

    def create(self) -> AnyResponse | str:
        topic, channel = request.form.get("topic", "").strip(), request.form.get("channel", "").strip()
        for kind, name in (("topic", topic), ("channel", channel)):
            if (name or kind == "topic") and not is_valid_name_str(name):
                flash(_("Names have 1 to 64 letters, digits and .-_, and may end with #ephemeral."), "bad")
                return redirect(url_for("pages.lookup"), 303)
        self.site.require(UserRole.ADMIN, topic)
        if request.form.get("confirmed") != "yes":
            return confirmation("create", topic, channel)
        self.run("create", topic, channel)
        return redirect(place_url(topic, channel), 303)

    def do(self, action: str) -> AnyResponse | str:
        """Change a topic or a channel; a tombstone also has a node."""
        if action not in (*ACTIONS, "delete", "tombstone"):
            abort(404)
        form = request.form
        topic, channel, node = form.get("topic", ""), form.get("channel", ""), form.get("node", "")
        self.site.require(UserRole.OPERATE if action in ACTIONS else UserRole.ADMIN, topic)
        if action == "tombstone" and not self.site.is_broker(node):
            flash(_("There is no broker %(node)s.") % {"node": node}, "bad")
            return redirect(url_for("pages.topic", topic=topic), 303)
        if form.get("confirmed") != "yes":
            return confirmation(action, topic, channel, node)
        self.run(action, topic, channel, node)
        if form.get("origin") == "lookup":
            return redirect(url_for("pages.lookup"), 303)
        if action == "tombstone":
            return redirect(url_for("pages.node", node=node), 303)
        if action == "delete":
            return redirect(url_for("pages.topic", topic=topic) if channel else url_for("pages.home"), 303)
        return redirect(place_url(topic, channel), 303)

    def run(self, action: str, topic: str, channel: str, node: str = "") -> None:
        """Do a change, and tell the result on the next page."""
        try:
            failures = perform(self.site, action, topic, channel, node)
        except UpstreamError as error:
            failures = [str(error)]
        tell_failures(failures)


def tell_failures(failures: Sequence[str]) -> None:
    """Show on the next page which members have failed, or that a change is done."""
    flash_errors(failures)
    if not failures:
        flash(_("Done."), "good")


def confirmation(action: str, topic: str, channel: str, node: str = "") -> str:
    """Return the page that asks whether to do an action. Browsers with scripts ask before."""
    return render_template("confirm.html", action=action, topic=topic, channel=channel, node=node)
