"""The user behind a request, by the ways of logging in that the options choose.

1. A users' file or OpenID Connect: every page and the API need a login. Scripts send basic authentication.
2. --admin-user without these: a proxy names the user in --acl-http-header, as for nsqadmin. Listed users are
   administrators, all others may view.
3. Neither: every user is an administrator.

Source: docs/admin.md, "Access".
"""

from __future__ import annotations

import base64
import contextlib
import logging
import secrets
import time
from pathlib import Path
from threading import Lock
from typing import Final

from flask import Request, session
from werkzeug.exceptions import TooManyRequests

from pyqd.admin.access.limiter import WAIT_MAX_S, LoginLimiter
from pyqd.admin.access.roles import EVERYBODY, NOBODY, User, UserRole
from pyqd.admin.access.users import Users
from pyqd.admin.notifications import audit_logger
from pyqd.admin.options import AdminOptions
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.private_files import replace_private

# Fields of the session's cookie, which is signed.
NAME: Final = "user"
STAMP: Final = "stamp"
UNTIL: Final = "until"
ID: Final = "id"
GRANT: Final = "grant"
ID_BYTES: Final = 16

logger = logging.getLogger(__name__)


class EndedSessions:
    """Sessions that a logout has ended, with the times of their own end: copies of their cookies do not count.

    key_file: path of the key that signs sessions, beside which the list is kept, as the sessions outlast the process;
    empty: they end with it.
    """

    def __init__(self, key_file: str = "") -> None:
        self._path = Path(f"{key_file}.ended") if key_file else None
        self._lock = Lock()
        self._until: dict[str, float] = {}
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                for line in self._path.read_text("ascii").splitlines():
                    session_id, _, until_s = line.partition(" ")
                    self._until[session_id] = float(until_s)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until

    def add(self, session_id: str, until_s: float) -> None:
        """End a session. A file that cannot be written is logged: the session ends with this process only."""
        now_s = time.time()
        with self._lock:
            self._until = {each: end_s for each, end_s in self._until.items() if end_s > now_s}
            self._until[session_id] = until_s
            if self._path is None:
                return
            text = "".join(f"{each} {end_s:.0f}\n" for each, end_s in self._until.items())
            try:
                replace_private(self._path, text)
            except OSError as error:
                logger.error(
                    "cannot write %s: %s; a copy of the cookie counts again after a restart", self._path, error
                )


class Policy:
    """The ways of logging in of one web admin. Raises: StartupError if the users' file cannot be read."""

    def __init__(self, options: AdminOptions) -> None:
        self.options = options
        self.users = Users(options.users_file) if options.users_file else None
        self.limiter = LoginLimiter()
        self.ended = EndedSessions(options.session_key_file)

    @property
    def needs_login(self) -> bool:
        return self.users is not None or bool(self.options.oidc_issuer)

    def user_of(self, request: Request) -> User:
        """Return the user behind a request; NOBODY if a login is missing."""
        if self.needs_login:
            return self._session_user() or self._basic_user(request) or NOBODY
        name = request.headers.get(self.options.acl_http_header, "")
        if not self.options.admin_user:
            return User(name, UserRole.ADMIN) if name else EVERYBODY
        return User(name, UserRole.ADMIN if name in self.options.admin_user else UserRole.VIEW)

    def knows_session(self) -> bool:
        """Return whether the cookie of the current request is that of a user, or no login is needed."""
        return not self.needs_login or self._session_user() is not None

    def log_in(self, name: str, password: str, address: str) -> User | None:
        """Check name and password and begin a session. Returns: None if they are wrong."""
        user = self.check(name, password, address)
        entry = self.users.entry(name) if self.users is not None else None
        if user is None or entry is None:
            return None
        self._begin_session(user)
        session[STAMP] = entry.stamp
        return user

    def check(self, name: str, password: str, address: str) -> User | None:
        """Check name and password, after a wait if there were many failures. Returns: None if they are wrong.

        Raises: TooManyRequests if too many attempts wait already.
        """
        if self.users is None:
            return None
        wait_s = self.limiter.wait_s(name, address)
        if wait_s > WAIT_MAX_S:
            audit_logger.warning("login of %r from %s is refused: too many attempts wait", name, address)
            raise TooManyRequests(retry_after=int(WAIT_MAX_S))
        if wait_s > 0:
            time.sleep(wait_s)
        entry = self.users.login(name, password)
        if entry is None:
            self.limiter.failed(name, address)
            return None
        self.limiter.succeeded(name, address)
        return entry.user

    def begin_granted_session(self, user: User) -> None:
        """Make the session of this browser one of a user of OpenID Connect. grant: from the claims of the login.

        A user of the file may have the same name, and has other rights.
        """
        self._begin_session(user)
        session[GRANT] = [int(user.role), list(user.topics)]

    def _begin_session(self, user: User) -> None:
        session.clear()
        session[NAME] = user.name
        session[ID] = secrets.token_hex(ID_BYTES)
        session[UNTIL] = int(time.time()) + self.options.session_timeout_ns // SECOND_NS

    def log_out(self) -> None:
        """End the session, also for copies of its cookie."""
        if ID in session:
            self.ended.add(session[ID], session[UNTIL])
        session.clear()

    def _session_user(self) -> User | None:
        if session.get(UNTIL, 0) < time.time() or session.get(ID, "") in self.ended:
            return None
        if GRANT in session and self.options.oidc_issuer:
            role, topics = session[GRANT]
            return User(session[NAME], UserRole(role), tuple(topics))
        entry = self.users.entry(session.get(NAME, "")) if self.users is not None else None
        return entry.user if entry is not None and entry.stamp == session.get(STAMP) else None

    def _basic_user(self, request: Request) -> User | None:
        name, password = basic_credentials(request)
        return self.check(name, password, request.remote_addr or "") if name else None


def basic_credentials(request: Request) -> tuple[str, str]:
    """Return name and password of basic authentication; empty ones without it."""
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(value, validate=True).decode(errors="replace").partition(":")
    except ValueError:
        return "", ""
    return name, password
