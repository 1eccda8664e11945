"""Walk over all HTTP routes of the daemons with every form of access.

A form of access is a set of request headers and a rule of what they open. Each form makes every visit: every route with
every query of QUERIES. A visit is let through exactly if the rule says so. Routes are read from the programs, and the
names that a route touches follow from its path here, not from the tables of routes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import pytest

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.http.messages import Route
from pyqd.lookupd.api import LookupRoutes
from pyqd.lookupd.metrics import LookupMetrics
from pyqd.lookupd.registry import Registry
from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as running_lookupd
from tests.support.authd import Answer, AuthServer, entry, state
from tests.support.routes import routes_of
from tests.support.server import Daemon, pyqd, running

WAIT_S = 20.0
REFUSED = (401, 403, 429)
# Routes of one topic, by their first segment, and those of one channel.
OF_TOPIC = ("pub", "mpub", "topic", "channel", "message")
OF_CHANNEL = ("channel", "message")
# The values are invalid for all other parameters that routes read, so that no profile and no drain begins.
INVALID = "seconds=x&timeout=x&lines=x&frames=x&rate=x"
QUERIES = (
    "",
    "topic=orders_a",
    "topic=orders_a&channel=email",
    "topic=orders_a&channel=audit",
    "topic=other&channel=email",
    "topic=&channel=email",
    "topic=*&channel=*",
    "topic=other&topic=orders_a&channel=email",
    "topic=orders_a&channel=email&dead_letter_topic=orders_b",
    "topic=orders_a&channel=email&dead_letter_topic=other",
    "topic=other&channel=email&dead_letter_topic=orders_a",
    "channel=email&dead_letter_topic=orders_a&node=orders_a&to=orders_a&id=orders_a&name=orders_a",
)


class Visit(NamedTuple):
    """One request of the walk.

    topics: those that it touches; empty for everything. channel: the one that it touches; empty for all.
    """

    method: str
    target: str
    right: str
    topics: tuple[str, ...]
    channel: str


class Form(NamedTuple):
    """A form of access: the headers that a client sends, and the rule of what they open."""

    name: str
    headers: Mapping[str, str]
    may: Callable[[Visit], bool]


def visits_to(routes: Sequence[Route]) -> list[Visit]:
    """Return every visit to routes: each with every query."""
    found = []
    for route in routes:
        segment = route.path.split("/")[1]
        for query in QUERIES:
            named = parse_qs(query)
            topics = [named.get("topic", [""])[0]] if segment in OF_TOPIC else []
            if route.path == "/channel/limits":
                topics += named.get("dead_letter_topic", [])
            channel = named.get("channel", [""])[0] if segment in OF_CHANNEL else ""
            path = route.path.replace(":opt", "log_level")
            known = tuple(filter(None, topics))
            found.append(Visit(route.method, f"{path}?{INVALID}&{query}", route.right, known, channel))
    return found


def opens(rights: Sequence[str], topics: str = "", channel: str = "") -> Callable[[Visit], bool]:
    """Return the rule of rights on topics with a prefix, and for consuming on one channel; empty for all of them."""

    def may(visit: Visit) -> bool:
        if visit.right in ("open", "status"):
            return True
        covers_topics = not topics or (bool(visit.topics) and all(name.startswith(topics) for name in visit.topics))
        return visit.right in rights and covers_topics and (not channel or visit.channel == channel)

    return may


def opens_ping_alone(visit: Visit) -> bool:
    return visit.right == "open"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def basic(secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"user:{secret}".encode()).decode()}


ALL_RIGHTS = ("publish", "consume", "admin")
ROOT = "token-with-every-right"
DIGESTED = "token-kept-as-its-digest"
# Requests of a browser, to a server whose logins would let them through, or that has none.
PAGES_OF_OTHER_SITES = {
    "page of another site": {"Sec-Fetch-Site": "cross-site", "Origin": "http://other.example"},
    "page of another port": {"Sec-Fetch-Site": "same-site"},
    "link on another site": {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    },
    "page over plain HTTP": {"Origin": "http://other.example"},
    "frame without an origin": {"Origin": "null"},
    "page with a rebound name": {
        "Host": "other.example",
        "Origin": "http://other.example",
        "Sec-Fetch-Site": "same-origin",
    },
    "rebound name alone": {"Host": "other.example:4151"},
}
PAGE_FORMS = [
    Form(name, {**bearer(ROOT), **headers}, opens_ping_alone) for name, headers in PAGES_OF_OTHER_SITES.items()
]
# Name, rights and pattern of each token, and the prefix that the pattern stands for.
TOKENS = [
    *((f"token-that-may-{right}", (right,), "", "") for right in ("status", *ALL_RIGHTS)),
    *((f"token-that-may-{right}-orders", (right,), "orders_*", "orders_") for right in ALL_RIGHTS),
    ("token-of-two-rights", ("publish", "admin"), "orders_a", "orders_a"),
    ("token-of-short-names", ALL_RIGHTS, "?", "no such prefix"),
    (ROOT, ALL_RIGHTS, "*", ""),
]
TOKEN_LINES = [
    *(f"{token} {','.join(rights)} {pattern}" for token, rights, pattern, _ in TOKENS),
    f"sha256:{hashlib.sha256(DIGESTED.encode()).hexdigest()} admin orders_*",
]
TOKEN_FORMS = [
    *(Form(token, bearer(token), opens(rights, prefix)) for token, rights, _, prefix in TOKENS),
    Form("password", basic("token-that-may-admin-orders"), opens(("admin",), "orders_")),
    Form("digest", bearer(DIGESTED), opens(("admin",), "orders_")),
    Form("no login", {}, opens_ping_alone),
    Form("unknown token", bearer("token-that-nobody-knows"), opens_ping_alone),
    Form("another scheme", {"Authorization": f"Token {ROOT}"}, opens_ping_alone),
    *PAGE_FORMS,
]
ANONYMOUS_LINES = [f"{ROOT} {','.join(ALL_RIGHTS)}", "anonymous status,admin orders_*"]
ANONYMOUS_FORMS = [
    Form("anonymous", {}, opens(("admin",), "orders_")),
    Form(ROOT, bearer(ROOT), opens(ALL_RIGHTS)),
]

OPEN_FORMS = [
    Form("no login", {}, opens(ALL_RIGHTS)),
    Form("page of this server", {"Sec-Fetch-Site": "same-origin"}, opens(ALL_RIGHTS)),
    Form("name in a private network", {"Host": "pyqd-0.pyqd.jobs.svc.cluster.local:4151"}, opens(ALL_RIGHTS)),
    *PAGE_FORMS,
]

# Answers of the auth server by secret, and the rule of each. Secrets that it refuses come last: after ten of them
# unknown secrets are refused for a while.
GRANTS: dict[str, tuple[Answer, Callable[[Visit], bool]]] = {
    "everything": (state(entry(permissions="subscribe publish admin")), opens(ALL_RIGHTS)),
    "producer": (state(entry("^orders_", permissions="publish")), opens(("publish",), "orders_")),
    "consumer": (state(entry("^orders_", ("^email$",), "subscribe")), opens(("consume",), "orders_", "email")),
    "reader": (state(entry("^orders_", permissions="subscribe")), opens(("consume",), "orders_")),
    "admin": (state(entry("^orders_", permissions="admin")), opens(("admin",), "orders_")),
    # These are found in the empty name, too.
    "admin of some": (state(entry("^(orders_.*)?$", permissions="admin")), opens(("admin",), "orders_")),
    "consumer of one": (
        state(entry("^(orders_.*)?$", ("^(email)?$",), "subscribe")),
        opens(("consume",), "orders_", "email"),
    ),
    "nothing": (state(), opens_ping_alone),
    "broken": (Answer(500, b""), opens_ping_alone),
}
AUTH_FORMS = [Form(secret, bearer(secret), may) for secret, (_, may) in GRANTS.items()]


def token_file(directory: Path, lines: Sequence[str]) -> str:
    path = directory / "tokens"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return f"--http-auth-token-file={path}"


@contextlib.contextmanager
def broker(directory: Path, lines: Sequence[str] = ()) -> Iterator[int]:
    """Run pyqd with tokens. Yields: its HTTP port."""
    flags = (token_file(directory, lines),) if lines else ()
    with running(Daemon(pyqd(), directory, flags)) as daemon:
        yield daemon.http_address[1]


@contextlib.contextmanager
def broker_with_auth_server(directory: Path, _lines: Sequence[str]) -> Iterator[int]:
    """Run pyqd that asks an auth server. Yields: its HTTP port."""
    authd = AuthServer(lambda query: GRANTS[query.secret][0])
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(authd.stop)
        flags = (f"--auth-http-address={authd.address}", "--http-auth")
        daemon = stack.enter_context(running(Daemon(pyqd(), directory, flags)))
        yield daemon.http_address[1]


@contextlib.contextmanager
def lookup_daemon(directory: Path, lines: Sequence[str]) -> Iterator[int]:
    """Run pyqlookupd with tokens. Yields: its HTTP port."""
    command = (sys.executable, "-m", "pyqd.apps.lookupd")
    flags = (token_file(directory, lines),) if lines else ()
    with running_lookupd(LookupDaemon(command, directory / "log", flags)) as daemon:
        yield daemon.ports["HTTP"]


def broker_routes(directory: Path) -> list[Route]:
    return routes_of(Broker(parse_args([f"--data-path={directory}"])))


def lookup_routes(_directory: Path) -> list[Route]:
    registry = Registry(1, 1)
    return [*LookupRoutes(registry).routes(), *LookupMetrics(registry, int, int).routes()]


class Walk(NamedTuple):
    """A program with one kind of login: how it is run, its routes, and the forms of access that it is asked with."""

    serve: Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[int]]
    lines: Sequence[str]
    routes: Callable[[Path], list[Route]]
    forms: Sequence[Form]


WALKS = {
    "broker with tokens": Walk(broker, TOKEN_LINES, broker_routes, TOKEN_FORMS),
    "broker with anonymous rights": Walk(broker, ANONYMOUS_LINES, broker_routes, ANONYMOUS_FORMS),
    "broker with an auth server": Walk(broker_with_auth_server, (), broker_routes, AUTH_FORMS),
    "broker without a login": Walk(broker, (), broker_routes, OPEN_FORMS),
    "lookup daemon with tokens": Walk(lookup_daemon, TOKEN_LINES, lookup_routes, TOKEN_FORMS),
    "lookup daemon without a login": Walk(lookup_daemon, (), lookup_routes, OPEN_FORMS),
}


def statuses(port: int, form: Form, visits: Sequence[Visit]) -> Iterator[tuple[Visit, int]]:
    """Make visits over one connection. Yields: each with the status of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with contextlib.closing(connection):
        for visit in visits:
            connection.request(visit.method, visit.target, b"x", dict(form.headers))
            response = connection.getresponse()
            response.read()
            yield visit, response.status


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", WALKS)
def test_every_route_opens_to_the_rights_on_the_names_that_it_touches_and_to_nothing_else(
    name: str, tmp_path: Path
) -> None:
    walk = WALKS[name]
    in_process = tmp_path / "in-process"
    in_process.mkdir()
    visits = visits_to(walk.routes(in_process))
    wrong = []
    with walk.serve(tmp_path, walk.lines) as port:
        for form in walk.forms:
            # A restart has no invalid parameter: only forms that it refuses ask for one.
            asked = [visit for visit in visits if "/restart" not in visit.target or not form.may(visit)]
            wrong += [
                (form.name, *visit[:2], status)
                for visit, status in statuses(port, form, asked)
                if (status in REFUSED) == form.may(visit)
            ]
    assert wrong == []
