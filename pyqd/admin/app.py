"""The Flask application of the web admin."""

from __future__ import annotations

import gzip
import ipaddress
import secrets
import time
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from flask import Blueprint, Flask, Response, abort, redirect, render_template, request, url_for
from flask.sessions import SecureCookieSessionInterface
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin.access.oidc import add_oidc
from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.routes import access, guard, local_path
from pyqd.admin.graphs import Graphs
from pyqd.admin.nsqadmin_api import CONFIG_BODY_MAX, TEXT_TYPE, api, json_reply, text_reply
from pyqd.admin.options import AdminOptions
from pyqd.admin.pages.browser import browser
from pyqd.admin.pages.charts import chart, spark
from pyqd.admin.pages.consumers import consumers
from pyqd.admin.pages.dead_letters import dead_letters
from pyqd.admin.pages.forms import check_token, csrf_token, forms
from pyqd.admin.pages.language import NAMES, language, translate, translate_plural
from pyqd.admin.pages.settings import settings
from pyqd.admin.pages.views import pages
from pyqd.admin.site import Site, address_here, secret_in
from pyqd.primitives.addresses import is_ip_address
from pyqd.primitives.errors import StartupError
from pyqd.primitives.nsq_compat import VERSIONS
from pyqd.primitives.quantities import format_size, format_span
from pyqd.primitives.timestamps import format_timestamp

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Headers of proxies that tell the client's scheme.
SCHEMES: Final = ("HTTP_X_FORWARDED_PROTO", "HTTP_X_SCHEME")
# Below this size compression saves no packet.
COMPRESSED_MIN: Final = 1024
GZIP_LEVEL: Final = 4
KEY_BYTES_MIN: Final = 32
# A form may publish a message of any size that the broker takes; other bodies are small.
BODY_MAX: Final = 16 << 20
OTHER_BODY_MAX: Final = CONFIG_BODY_MAX
# Blueprints whose refusals are read by people.
PAGES: Final = ("pages", "forms", "access", "browser", "dead_letters", "settings", "consumers", "stories")
# Endpoints of files; nsqadmin refuses an unknown one in plain text.
FILES: Final = ("static", "fonts")
# Headers that protect browsers. Source: OWASP's "HTTP security response headers".
HEADERS: Final = {
    # All scripts, styles and pictures come from this process; none stands in a page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS: Final = "max-age=31536000"
COOKIE_AGE_S: Final = 365 * 24 * 3600


def new_app(site: Site) -> Flask:
    """Return the application; its routes are below the base path of the options."""
    base = "" if site.options.base_path == "/" else site.options.base_path
    app = Flask(__name__, static_folder=site.options.dev_static_dir or "static", static_url_path=f"{base}/static")
    stories = [trace_pages] if site.options.trace_database else []
    for routes in (api, pages, forms, browser, dead_letters, settings, consumers, *stories):
        app.register_blueprint(routes(site), url_prefix=base or None)
    app.register_blueprint(access(site.policy), url_prefix=base or None)
    app.add_url_rule(f"{base}/preferences", "preferences", change_preferences, methods=["POST"])
    guard(app, site.policy, base)
    if site.options.oidc_issuer:
        add_oidc(app, site.policy, base)
    app.secret_key = session_key(site.options.session_key_file)
    app.config.update(
        SESSION_COOKIE_NAME="pyqadmin",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=BODY_MAX,
        MAX_FORM_MEMORY_SIZE=BODY_MAX,
    )
    app.session_interface = Sessions()
    app.wsgi_app = behind_proxy(app.wsgi_app, site.options)  # type: ignore[assignment, method-assign]
    prepare_templates(app, site)
    app.add_url_rule(f"{base}/ping", "ping", lambda: text_reply("OK"))
    # There are none: the system's fonts suffice.
    app.add_url_rule(f"{base}/fonts/<name>", "fonts", lambda **_: abort(404))
    if base:
        app.add_url_rule(f"{base}/", "to_base", lambda: redirect(quote(base), 301), strict_slashes=True)
        app.register_error_handler(404, lambda error: refusal(outside_of(base, error)))
    app.register_error_handler(HTTPException, refusal)
    app.after_request(compress)
    app.after_request(lambda response: protect(response, is_secure=bool(site.options.tls_cert)))
    return app


class Sessions(SecureCookieSessionInterface):
    """Sessions in signed cookies, which browsers send over HTTPS only if they have come over HTTPS."""

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002
        return request.is_secure


def behind_proxy(inner: WSGIApplication, options: AdminOptions) -> WSGIApplication:
    """Return an application that takes the client's address and scheme from a trusted proxy.

    Without --trusted-proxy everybody may send the scheme: a client that makes it up only gets wrong URLs itself. With
    it, the scheme and the user's name count from these proxies only.
    """
    networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in options.trusted_proxy]
    user = "HTTP_" + options.acl_http_header.upper().replace("-", "_")

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if networks:
            if is_in(networks, environ.get("REMOTE_ADDR", "")):
                environ["REMOTE_ADDR"] = client_of(environ, networks)
            else:
                for name in (*SCHEMES, user):
                    environ.pop(name, None)
        told = next((environ[name] for name in SCHEMES if environ.get(name)), "").partition(",")[0]
        if told.strip() == "https":
            environ["wsgi.url_scheme"] = "https"
        return inner(environ, start_response)

    return application


def client_of(environ: WSGIEnvironment, networks: Sequence[Network]) -> str:
    """Return the address before that of the first proxy that is trusted; a client may have written those before it."""
    address = str(environ.get("REMOTE_ADDR", ""))
    for part in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
        told = str(part).strip().strip("[]")
        if not is_ip_address(told):
            return address
        address = told
        if not is_in(networks, address):
            return address
    return address


def is_in(networks: Sequence[Network], text: str) -> bool:
    if not is_ip_address(text):
        return False
    ip = ipaddress.ip_address(text)
    return any((getattr(ip, "ipv4_mapped", None) or ip) in network for network in networks)


def body_max(app: Flask, site: Site, method: str, path: str, cookie: bytes) -> int:
    """Return the limit of a request's body: large ones are for users who may publish, by their cookie."""
    if method != "POST" or not path.endswith("/-/publish"):
        return OTHER_BODY_MAX
    with app.test_request_context(headers={"Cookie": cookie.decode("latin-1")}):
        return BODY_MAX if site.policy.knows_session() else OTHER_BODY_MAX


def trace_pages(site: Site) -> Blueprint:
    """Return the routes of the trace database. Raises: StartupError."""
    url = site.options.trace_database
    try:
        # Only these pages need SQLAlchemy.
        from pyqd.admin.pages.stories import stories
        from pyqd.trace import TraceError
    except ModuleNotFoundError as error:
        raise StartupError(f"--trace-database needs the package {error.name}: pip install 'pyqd[trace]'") from None
    try:
        return stories(site, url)
    except TraceError as error:
        raise StartupError(f"failed to open --trace-database - {error}") from None


def prepare_templates(app: Flask, site: Site) -> None:
    """Give the templates their functions and the texts in the reader's language."""
    app.jinja_env.add_extension("jinja2.ext.i18n")
    app.jinja_env.install_gettext_callables(translate, translate_plural, newstyle=True)  # type: ignore[attr-defined]
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    graphs = Graphs(site.options)
    app.jinja_env.globals.update(
        csrf_token=csrf_token,
        address_here=address_here,
        language=language,
        languages=list(NAMES.items()),
        spark=spark,
        chart=lambda name, key, title, unit="": chart(
            site.poller.history.values(name, key), title, unit, time.time(), graphs.links(name, key)
        ),
        duration=format_span,
        size=format_size,
        timestamp=lambda time_ns: format_timestamp(time_ns) if time_ns else "",
        date_time=date_time,
        has_stories=bool(site.options.trace_database),
        version=VERSIONS,
    )
    app.jinja_env.globals["m"] = app.jinja_env.get_template("macros.html").module
    app.context_processor(
        lambda: {
            "fragment": "fragment" in request.args,
            "theme": request.cookies.get("theme", ""),
            "user": site.user,
            "needs_login": site.policy.needs_login,
            "may": lambda role, topic=None: site.may(UserRole.parse(role), topic),
        }
    )


def protect(response: AnyResponse, *, is_secure: bool) -> AnyResponse:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if is_secure:
        response.headers.setdefault("Strict-Transport-Security", HSTS)
    if response.mimetype == "text/html":
        response.headers.setdefault("Cache-Control", "no-store")
    if "fragment" in request.args:
        # For the script of the page: this is its live part, and not a page of a proxy or of a login.
        response.headers["X-Fragment"] = "1"
    return response


def change_preferences() -> AnyResponse:
    """Store theme and language of this browser in cookies, and return to the page."""
    check_token()
    back = request.form.get("back", "")
    response = redirect(local_path(back) or url_for("pages.home"), 303)
    for name, known in (("theme", ("dark", "light")), ("language", tuple(NAMES))):
        value = request.form.get(name, "")
        if value in known:
            response.set_cookie(
                name, value, max_age=COOKIE_AGE_S, httponly=True, samesite="Lax", secure=request.is_secure
            )
    return response


def date_time(at: datetime | None) -> str:
    """Return a time as text, in UTC with milliseconds; empty for None."""
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def session_key(path: str) -> bytes:
    """Return the key that signs sessions: of a file, or a random one. Raises: StartupError."""
    if not path:
        return secrets.token_bytes(KEY_BYTES_MIN)
    key = secret_in(path, "session-key-file", Path.read_bytes)
    if len(key) < KEY_BYTES_MIN:
        raise StartupError(
            f"failed to read --session-key-file - {path} has {len(key)} bytes; {KEY_BYTES_MIN} are needed"
        )
    return key


def refusal(error: HTTPException) -> Response | HTTPException | tuple[str, int]:
    """Return the answer to a refused request: a page to a reader, and JSON in the form of NSQ's daemons to programs."""
    if error.code is None or error.code < 400:
        return error
    if request.endpoint in FILES:
        return Response("NOT_FOUND" if error.code == 404 else error.name, error.code, content_type=TEXT_TYPE)
    # An unknown path is refused in the form that the client asks for; programs do not ask for HTML.
    is_typed = request.blueprint is None and "text/html" in request.headers.get("Accept", "")
    if request.blueprint in PAGES or is_typed:
        return render_template("error.html", code=error.code, text=error.description), error.code
    name = (error.name or "").upper().replace(" ", "_").replace("'", "")
    return json_reply({"message": name}, error.code)


def outside_of(base: str, error: HTTPException) -> HTTPException:
    """Return the error of a path that does not exist, with the reason if it does not begin with the base path."""
    if request.path != base and not request.path.startswith(f"{base}/"):
        error.description = translate("Paths begin with %(base)s here. A proxy in front must leave it on.") % {
            "base": base
        }
    return error


def compress(response: AnyResponse) -> AnyResponse:
    """Compress an answer if the client asks for gzip or deflate: the one that it names first, as nsqadmin does."""
    response.headers.add("Vary", "Accept-Encoding")
    if response.is_streamed or response.direct_passthrough or "Content-Encoding" in response.headers:
        return response
    wanted = [part.strip() for part in request.headers.get("Accept-Encoding", "").split(",")]
    encoding = next((part for part in wanted if part in ("gzip", "deflate")), "")
    data = response.get_data() if encoding else b""
    if len(data) < COMPRESSED_MIN:
        return response
    if encoding == "gzip":
        response.set_data(gzip.compress(data, GZIP_LEVEL, mtime=0))
    else:
        packer = zlib.compressobj(GZIP_LEVEL, wbits=-zlib.MAX_WBITS)
        response.set_data(packer.compress(data) + packer.flush())
    response.headers["Content-Encoding"] = encoding
    return response
