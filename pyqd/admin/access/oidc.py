"""Logins by OpenID Connect, and the roles that its claims give.

Source: OpenID Connect Core 1.0; docs/admin.md, "OpenID Connect".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from authlib.integrations.flask_client import OAuth
from flask import Flask, flash, redirect, request, session, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.policy import Policy
from pyqd.admin.access.roles import User, UserRole
from pyqd.admin.notifications import audit_logger
from pyqd.admin.options import AdminOptions
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import secret_in
from pyqd.primitives.errors import StartupError

SCOPE: Final = "openid profile email"
NEXT: Final = "next"

logger = logging.getLogger(__name__)


def parse_rule(text: str) -> tuple[str, UserRole, tuple[str, ...]]:
    """Return claim value, role and topic patterns of `VALUE=ROLE[:PATTERN,...]`. Raises: ValueError."""
    value, equals, rest = text.rpartition("=")
    role, _colon, patterns = rest.partition(":")
    if not equals or not value:
        raise ValueError(f"expected VALUE=ROLE or VALUE=ROLE:TOPIC,TOPIC, not {text!r}")
    return value, UserRole.parse(role), tuple(patterns.split(",")) if patterns else ("*",)


def user_of_claims(options: AdminOptions, claims: Mapping[str, Any]) -> User | None:
    """Return the user for the claims of a login; None if no rule gives a role.

    The highest role counts, for the topics of all rules that give it.
    """
    found = claims.get(options.oidc_claim)
    values = set() if found is None else set(map(str, found)) if isinstance(found, list) else {str(found)}
    name = str(claims.get("preferred_username") or claims.get("email") or claims.get("sub"))
    rules = [(role, topics) for value, role, topics in map(parse_rule, options.oidc_role) if value in values]
    if not rules:
        return None
    role = max(role for role, _topics in rules)
    topics = tuple(dict.fromkeys(topic for each, patterns in rules if each == role for topic in patterns))
    return User(name, role, topics)


def check_oidc(options: AdminOptions) -> None:
    """Check the flags of OpenID Connect. Raises: StartupError."""
    if not options.oidc_issuer:
        return
    if not options.oidc_client_id:
        raise StartupError("--oidc-issuer needs --oidc-client-id: the name of pyqadmin at the issuer")
    if not options.oidc_role:
        raise StartupError("--oidc-issuer needs --oidc-role, or nobody may log in; such as --oidc-role=staff=view")
    try:
        for rule in options.oidc_role:
            parse_rule(rule)
    except ValueError as error:
        raise StartupError(f"invalid --oidc-role - {error}") from None


def add_oidc(app: Flask, policy: Policy, base: str) -> None:
    """Add the routes of the login. Raises: StartupError if the client's secret cannot be read."""
    options = policy.options
    secret_file = options.oidc_client_secret_file
    oauth = OAuth(app)
    oauth.register(
        "issuer",
        server_metadata_url=f"{options.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
        client_id=options.oidc_client_id,
        client_secret=secret_in(secret_file, "oidc-client-secret-file", Path.read_text) if secret_file else None,
        client_kwargs={"scope": SCOPE, "code_challenge_method": "S256"},
    )

    def refused(text: str) -> Response:
        flash(text, "bad")
        return redirect(url_for("access.login"), 303)

    def begin() -> Response:
        try:
            answer: Response = oauth.issuer.authorize_redirect(url_for("oidc_end", _external=True))
        except Exception as error:
            # Whatever fails here lies between this process and the issuer.
            logger.error("cannot ask the issuer %s: %s", options.oidc_issuer, error)
            return refused(_("The login service does not answer."))
        return answer

    def end() -> Response:
        target = session.get(NEXT, "")
        try:
            claims = oauth.issuer.authorize_access_token()["userinfo"]
        except Exception as error:
            # Each library below has errors of its own for answers of the issuer, and for tokens that are not valid.
            audit_logger.warning(
                "login by OpenID Connect from %s has failed at %s: %s", request.remote_addr, options.oidc_issuer, error
            )
            return refused(_("The login has failed."))
        user = user_of_claims(options, claims)
        if user is None:
            audit_logger.warning(
                "login of %s by OpenID Connect from %s is refused: %s %r gives no role",
                claims.get("sub"),
                request.remote_addr,
                options.oidc_claim,
                claims.get(options.oidc_claim),
            )
            return refused(_("You have no role here: ask your administrator."))
        policy.begin_granted_session(user)
        audit_logger.info("login of %s by OpenID Connect from %s", user.name, request.remote_addr)
        return redirect(target or url_for("pages.home"), 303)

    app.add_url_rule(f"{base}/login/oidc", "oidc_begin", begin)
    app.add_url_rule(f"{base}/login/oidc/callback", "oidc_end", end)
