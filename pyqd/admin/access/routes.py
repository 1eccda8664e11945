"""Login and logout, and the check that comes before every request."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Flask, Request, Response, g, redirect, render_template, request, session, url_for
from werkzeug.exceptions import Forbidden, TooManyRequests
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin.access.oidc import NEXT
from pyqd.admin.access.policy import Policy
from pyqd.admin.access.roles import NOBODY, User, UserRole
from pyqd.admin.notifications import audit_logger
from pyqd.admin.nsqadmin_api import json_reply
from pyqd.admin.pages.forms import check_token
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import address_here
from pyqd.primitives.sites import Sites

# Endpoints that need no login.
OPEN: Final = (
    "access.login",
    "access.check",
    "access.logout",
    "static",
    "fonts",
    "ping",
    "preferences",
    "oidc_begin",
    "oidc_end",
)
CHANGING: Final = ("POST", "PUT", "DELETE")
API: Final = "nsqadmin_api"
PING: Final = "ping"
# The least role for each change, by method and path. A handler also checks the role for the topic that it changes.
ROLES: Final = {
    ("POST", "/api/topics"): UserRole.ADMIN,
    ("POST", "/api/topics/<topic>"): UserRole.OPERATE,
    ("DELETE", "/api/topics/<topic>"): UserRole.ADMIN,
    ("POST", "/api/topics/<topic>/<channel>"): UserRole.OPERATE,
    ("DELETE", "/api/topics/<topic>/<channel>"): UserRole.ADMIN,
    ("DELETE", "/api/nodes/<node>"): UserRole.ADMIN,
    ("PUT", "/config/<option>"): UserRole.ADMIN,
    ("POST", "/do/<action>"): UserRole.OPERATE,
    ("POST", "/do/create"): UserRole.ADMIN,
    ("POST", "/topics/<topic>/<channel>/messages"): UserRole.OPERATE,
    ("POST", "/topics/<topic>/<channel>/seek"): UserRole.OPERATE,
    ("POST", "/topics/<topic>/<channel>/dead-letters"): UserRole.OPERATE,
    ("POST", "/topics/<topic>/<channel>/limits"): UserRole.ADMIN,
    ("POST", "/topics/<topic>/-/publish"): UserRole.OPERATE,
    ("POST", "/topics/<topic>/-/settings"): UserRole.ADMIN,
}


def local_path(text: str) -> str:
    """Return a path of this site; empty for any other address."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else ""


def is_navigation(request: Request) -> bool:
    """Return whether a request opens a page in a tab, as a link on any page may do."""
    mode, dest = request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest")
    return request.method not in CHANGING and mode == "navigate" and dest == "document"


def foreign_problem(sites: Sites, policy: Policy, request: Request) -> str:
    """Return the reason why a request is refused as one of another site's page; empty if it is not."""
    headers = request.headers
    host = headers.get("Host", "")
    if not is_navigation(request):
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        # Forms have a token, and a proxy may change the host of theirs.
        is_judged = site is not None or request.blueprint == API
        problem = sites.origin_problem(site, origin, host) if is_judged else ""
        if problem:
            return f"CROSS_SITE_REQUEST: {problem}"
    # A page whose name was resolved to this address has neither a login here nor a certificate.
    if policy.needs_login or policy.options.tls_cert:
        return ""
    problem = sites.host_problem(host)
    return f"UNKNOWN_HOST: {problem}" if problem else ""


def may_change(user: User, method: str, path: str) -> bool:
    """Return whether a user may make a change. A route without an entry is for administrators of all topics."""
    role = ROLES.get((method, path))
    return user.may(UserRole.ADMIN) if role is None else user.role >= role


def guard(app: Flask, policy: Policy, base: str) -> None:
    """Check each request before its route, in every mode of access.

    The request must come from this site, and from a user if logins are needed; a change needs a role for it. base: path
    that those of the routes begin with.
    """
    sites = Sites("", policy.options.http_allow_host, policy.options.http_allow_origin)

    def check() -> AnyResponse | None:
        problem = "" if request.endpoint == PING else foreign_problem(sites, policy, request)
        if problem:
            return json_reply({"message": problem}, 403)
        g.user = policy.user_of(request)
        if request.endpoint in OPEN or request.url_rule is None:
            # Unknown paths are no pages: behind a proxy that strips the base path, that of the login is one, too.
            return None
        if policy.needs_login and g.user is NOBODY:
            return without_login()
        path = request.url_rule.rule.removeprefix(base)
        if request.method in CHANGING and not may_change(g.user, request.method, path):
            raise Forbidden
        return None

    app.before_request(check)


def without_login() -> AnyResponse:
    """Return the answer to a request that needs a login: 401 to programs and scripts, to people the login's page."""
    if request.blueprint == API:
        refused = json_reply({"message": "UNAUTHORIZED"}, 401)
        refused.headers["WWW-Authenticate"] = 'Basic realm="pyqadmin", charset="UTF-8"'
        return refused
    if "fragment" in request.args or request.endpoint == "pages.live":
        return Response(status=401)
    return redirect(url_for("access.login", next=address_here()), 303)


def access(policy: Policy) -> Blueprint:
    routes = Blueprint("access", __name__)

    def login() -> str:
        session[NEXT] = local_path(request.args.get("next", "")) or session.get(NEXT, "")
        return page()

    def page(error: str = "", name: str = "") -> str:
        oidc = bool(policy.options.oidc_issuer)
        return render_template("login.html", error=error, name=name, passwords=policy.users is not None, oidc=oidc)

    def check() -> AnyResponse | tuple[str, int] | tuple[str, int, dict[str, str]]:
        check_token()
        name, password = request.form.get("name", ""), request.form.get("password", "")
        address = request.remote_addr or ""
        target = session.get(NEXT, "")
        try:
            user = policy.log_in(name, password, address)
        except TooManyRequests as error:
            seconds = str(error.retry_after)
            text = _("Too many failed logins: try again in %(seconds)s seconds.") % {"seconds": seconds}
            return page(text, name), 429, {"Retry-After": seconds}
        if user is None:
            audit_logger.warning("login of %r from %s has failed", name, address)
            return page(_("Name or password is wrong."), name), 401
        audit_logger.info("login of %s from %s", name, address)
        return redirect(target or url_for("pages.home"), 303)

    def logout() -> AnyResponse:
        check_token()
        audit_logger.info("logout of %s from %s", g.user.name, request.remote_addr)
        policy.log_out()
        return redirect(url_for("access.login"), 303)

    routes.add_url_rule("/login", "login", login, methods=["GET"])
    routes.add_url_rule("/login", "check", check, methods=["POST"])
    routes.add_url_rule("/logout", "logout", logout, methods=["POST"])
    return routes
