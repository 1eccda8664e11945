"""Logins of the HTTP API: which right opens which route, the token file, and the auth servers that TCP has."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pyqd.api.login import FAILURES_AT_ONCE_MAX
from pyqd.api.rights import ADMIN, CONSUME, GRANTED, OPEN, PUBLISH, STATUS
from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from tests.support.authd import Answer, AuthServer, Query, entry, state
from tests.support.certificates import Certificates
from tests.support.routes import routes_of
from tests.support.server import Daemon, Reply, free_port, pyqd, running, wait_until

RESTART = "POST /restart"
RIGHT_OF = {
    OPEN: ["GET /ping"],
    STATUS: [
        "GET /info",
        "GET /stats",
        "GET /metrics",
        "GET /durability",
        "GET /openapi.json",
        "GET /topic/retention",
        "GET /topic/quota",
        "GET /topic/trace",
        "GET /channel/limits",
        "GET /drain",
        "GET /restart",
    ],
    PUBLISH: ["POST /pub", "POST /mpub"],
    CONSUME: [
        "GET /topic/positions",
        "GET /topic/log",
        "GET /trace/log",
        "POST /channel/seek",
        "GET /channel/messages",
        "POST /message/cancel",
        "POST /message/reschedule",
        "POST /message/deliver_now",
    ],
    ADMIN: [
        "POST /topic/create",
        "POST /topic/delete",
        "POST /topic/empty",
        "POST /topic/pause",
        "POST /topic/unpause",
        "POST /topic/retention",
        "POST /topic/quota",
        "POST /topic/trace",
        "POST /channel/create",
        "POST /channel/delete",
        "POST /channel/empty",
        "POST /channel/pause",
        "POST /channel/unpause",
        "POST /channel/limits",
        "POST /drain",
        RESTART,
        "GET /config/:opt",
        "PUT /config/:opt",
        "GET /debug/pprof/",
        "GET /debug/pprof/cmdline",
        "GET /debug/pprof/symbol",
        "POST /debug/pprof/symbol",
        "GET /debug/pprof/profile",
        "GET /debug/pprof/heap",
        "GET /debug/pprof/goroutine",
        "GET /debug/pprof/block",
        "GET /debug/pprof/threadcreate",
        "GET /debug/profile",
        "GET /debug/heap",
        "POST /debug/heap/start",
        "POST /debug/heap/stop",
        "GET /debug/greenlets",
        "PUT /debug/setblockrate",
        "POST /debug/freememory",
    ],
}
TOKEN_OF = {right: f"token-that-may-{right}" for right in GRANTED}
ORDERS_TOKEN = "token-for-orders-alone"
HASHED_TOKEN = "token-kept-as-its-digest"
UNKNOWN_TOKEN = "token-that-nobody-knows"
LINES = [
    "# what the tests log in by",
    "",
    *(f"{token} {right}" for right, token in TOKEN_OF.items()),
    f"{ORDERS_TOKEN} publish,consume,admin orders_*",
    f"sha256:{hashlib.sha256(HASHED_TOKEN.encode()).hexdigest()}   publish",
]

Start = Callable[..., Daemon]


def token_file(directory: Path, lines: list[str], mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


def request(
    daemon: Daemon, method: str, path: str, token: str | None = None, body: bytes | None = None, header: str = ""
) -> Reply:
    """Make a request. header: the Authorization header, if it is not that of a bearer's token."""
    connection = http.client.HTTPConnection(*daemon.http_address, timeout=10)
    headers = {"Authorization": header or f"Bearer {token}"} if header or token is not None else {}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        found = {name.lower(): ", ".join(response.headers.get_all(name) or ()) for name in response.headers}
        return Reply(response.status, found, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("login")
    with running(Daemon(pyqd(), directory, (f"-http-auth-token-file={token_file(directory, LINES)}",))) as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a daemon with a file of these tokens and other flags, for this test alone."""
    daemons: list[Daemon] = []

    def start_with(lines: list[str], *flags: str, mode: int = 0o600) -> Daemon:
        path = token_file(tmp_path, lines, mode)
        daemons.append(Daemon(pyqd(), tmp_path, (f"-http-auth-token-file={path}", *flags)).start())
        return daemons[-1]

    yield start_with
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def authd() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.stop()


@pytest.fixture
def asking(tmp_path: Path, authd: AuthServer) -> Iterator[Daemon]:
    """A daemon that asks the auth server about logins."""
    with running(Daemon(pyqd(), tmp_path, (f"-auth-http-address={authd.address}", "-http-auth"))) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that asks an auth server whose answers are those of ANSWER_OF."""
    authd = AuthServer(lambda query: ANSWER_OF[query.secret])
    flags = (f"-auth-http-address={authd.address}", "-http-auth")
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("deciding"), flags)) as daemon:
        yield daemon
    authd.stop()


def test_every_route_names_its_right(tmp_path: Path) -> None:
    broker = Broker(parse_args([f"--data-path={tmp_path}"]))
    routes = routes_of(broker)
    found: dict[str, list[str]] = {}
    for route in routes:
        found.setdefault(route.right, []).append(f"{route.method} {route.path}")
    assert {right: sorted(paths) for right, paths in found.items()} == {
        right: sorted(paths) for right, paths in RIGHT_OF.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHT_OF)
def test_a_route_is_open_to_its_right_and_to_no_other(server: Daemon, right: str) -> None:
    for route in RIGHT_OF[right]:
        method, path = route.replace(":opt", "log_level").split()
        # Invalid arguments: no profile is recorded, and no drain begins.
        path += "?seconds=x&timeout=x"
        # Only those whom it refuses ask for a restart, which has no arguments that could be invalid.
        tokens = {held: token for held, token in TOKEN_OF.items() if route != RESTART or held != right}
        statuses = {held: request(server, method, path, token).status for held, token in tokens.items()}
        for held, status in statuses.items():
            if right in (OPEN, STATUS, held):
                assert status not in (401, 403), (route, held)
            else:
                assert status == 403, (route, held)
        assert (request(server, method, path).status == 401) == (right != OPEN), route


def test_a_request_without_a_login_is_told_how_to_log_in(server: Daemon) -> None:
    reply = request(server, "POST", "/pub?topic=t", body=b"x")
    assert (reply.status, reply.body) == (401, b'{"message":"UNAUTHORIZED"}')
    assert reply.headers["www-authenticate"] == 'Bearer realm="pyqd", Basic realm="pyqd"'
    assert reply.headers["content-type"] == "application/json; charset=utf-8"


def test_a_request_without_the_right_is_refused_with_the_reason(server: Daemon) -> None:
    reply = request(server, "POST", "/pub?topic=t", TOKEN_OF[CONSUME], b"x")
    assert (reply.status, reply.body) == (403, b'{"message":"FORBIDDEN"}')
    assert "www-authenticate" not in reply.headers


def test_a_refused_publish_publishes_nothing(server: Daemon) -> None:
    for token in (None, TOKEN_OF[ADMIN], UNKNOWN_TOKEN):
        assert request(server, "POST", "/pub?topic=refused", token, b"x").status in (401, 403, 429)
    stats = request(server, "GET", "/stats?format=json&topic=refused", TOKEN_OF[STATUS]).json()
    assert not stats["topics"]


def test_publishes_of_one_connection_are_looked_at_one_by_one(server: Daemon) -> None:
    connection = http.client.HTTPConnection(*server.http_address, timeout=10)
    statuses = []
    for token in (TOKEN_OF[PUBLISH], TOKEN_OF[CONSUME], TOKEN_OF[PUBLISH], None, TOKEN_OF[PUBLISH]):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("POST", "/pub?topic=one_by_one", b"x", headers)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    assert statuses == [200, 403, 200, 401, 200]


def test_a_token_may_be_kept_as_its_digest(server: Daemon) -> None:
    assert request(server, "POST", "/pub?topic=t", HASHED_TOKEN, b"x").status == 200


def test_the_digest_of_a_token_is_none(server: Daemon) -> None:
    digest = hashlib.sha256(HASHED_TOKEN.encode()).hexdigest()
    assert request(server, "POST", "/pub?topic=t", digest, b"x").status == 401


HEADERS = [
    (f"bearer  {TOKEN_OF[STATUS]} ", 200),
    ("Basic " + base64.b64encode(f"anybody:{TOKEN_OF[STATUS]}".encode()).decode(), 200),
    ("basic " + base64.b64encode(f":{TOKEN_OF[STATUS]}".encode()).decode(), 200),
    ("Basic " + base64.b64encode(TOKEN_OF[STATUS].encode()).decode(), 401),
    ("Basic not/base64!", 401),
    (f"Token {TOKEN_OF[STATUS]}", 401),
    ("Bearer", 401),
    (TOKEN_OF[STATUS], 401),
]


def test_a_secret_comes_as_bearer_or_basic(start: Start) -> None:
    daemon = start(LINES)
    for header, status in HEADERS:
        assert request(daemon, "GET", "/info", header=header).status == status, header


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/pub?topic=orders_eu", 200),
        ("POST", "/pub?topic=orders", 403),
        ("POST", "/pub?topic=other", 403),
        ("POST", "/pub?topic=orders_eu&topic=other", 200),
        ("POST", "/pub?topic=other&topic=orders_eu", 403),
        ("POST", "/pub?topic=%6frders_eu", 200),
        ("POST", "/topic/delete?topic=other", 403),
        ("POST", "/topic/create?topic=orders_us", 200),
        ("POST", "/channel/limits?topic=orders_eu&channel=c&max_attempts=3&dead_letter_topic=other", 403),
        ("GET", "/channel/messages?topic=other&channel=c", 403),
        ("GET", "/config/log_level", 403),
        ("POST", "/pub", 403),
        ("POST", "/pub?topic=orders_eu;x", 400),
        ("GET", "/stats", 200),
    ],
)
def test_a_token_for_some_topics_is_for_nothing_else(server: Daemon, method: str, path: str, status: int) -> None:
    assert request(server, method, path, ORDERS_TOKEN, b"x").status == status


def test_routes_open_to_all_are_listed_in_the_file(start: Start) -> None:
    daemon = start([*LINES, "anonymous status,publish open_*"])
    assert request(daemon, "GET", "/stats").status == 200
    assert request(daemon, "POST", "/pub?topic=open_t", body=b"x").status == 200
    assert request(daemon, "POST", "/pub?topic=t", body=b"x").status == 401
    assert request(daemon, "POST", "/pub?topic=t", "anonymous", b"x").status == 401
    assert request(daemon, "GET", "/stats", UNKNOWN_TOKEN).status == 401


def test_failed_logins_are_logged_and_limited_and_known_tokens_are_not(start: Start) -> None:
    daemon = start(LINES)
    replies = [request(daemon, "GET", "/stats", UNKNOWN_TOKEN) for _ in range(FAILURES_AT_ONCE_MAX + 20)]
    statuses = [reply.status for reply in replies]
    assert statuses[:FAILURES_AT_ONCE_MAX] == [401] * FAILURES_AT_ONCE_MAX
    refused = replies[statuses.index(429)]
    assert (refused.body, refused.headers["retry-after"]) == (b'{"message":"TOO_MANY_FAILED_LOGINS"}', "1")
    assert request(daemon, "GET", "/stats", TOKEN_OF[STATUS]).status == 200
    log = daemon.log_text()
    assert log.count("HTTP: login failed for GET /stats (127.0.0.1:") == statuses.count(401)
    assert UNKNOWN_TOKEN not in log
    assert TOKEN_OF[STATUS] not in log


def test_the_file_is_read_again_on_sighup(start: Start, tmp_path: Path) -> None:
    daemon = start(LINES)
    fresh = "token-that-was-added-later"
    token_file(tmp_path, [f"{fresh} status"])
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "reloaded 1 tokens" in daemon.log_text(), "the tokens are reloaded")
    assert request(daemon, "GET", "/stats", fresh).status == 200
    assert request(daemon, "GET", "/stats", TOKEN_OF[STATUS]).status == 401


def test_a_file_that_does_not_do_changes_nothing(start: Start, tmp_path: Path) -> None:
    daemon = start(LINES)
    token_file(tmp_path, ["short status"])
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "cannot reload tokens" in daemon.log_text(), "the reload fails")
    assert request(daemon, "GET", "/stats", TOKEN_OF[STATUS]).status == 200


def test_a_file_that_others_can_read_is_warned_of(start: Start) -> None:
    assert "has mode 644: others than its owner can use it" in start(LINES, mode=0o644).log_text()


def test_a_file_of_the_owner_alone_is_not_warned_of(start: Start) -> None:
    assert "has mode" not in start(LINES).log_text()


def end_of(directory: Path, *flags: str) -> str:
    """Run a daemon that does not start. Returns: its output."""
    daemon = Daemon(pyqd(), directory, flags)
    with pytest.raises(AssertionError):
        daemon.start()
    return daemon.log_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("short publish", "line 1: a token must have at least 16 characters, all printable ASCII"),
        ("token-of-somebody", "line 1: a line must have a token, its rights and optionally a pattern of topics"),
        (
            "token-of-somebody publish * more",
            "line 1: a line must have a token, its rights and optionally a pattern of topics",
        ),
        ("token-of-somebody fly", "line 1: rights must be of status, publish, consume, admin, separated by commas"),
        ("token-of-somebody open", "line 1: rights must be of status, publish, consume, admin, separated by commas"),
        ("token-of-somebody publish a/b", "line 1: no topic matches the pattern"),
        ("sha256:12 publish", "line 1: a digest must have 64 hex digits"),
        ("token-of-somebody status\ntoken-of-somebody admin", "line 2: the token is a duplicate"),
    ],
)
def test_a_file_with_a_mistake_is_not_served_by(tmp_path: Path, line: str, reason: str) -> None:
    path = token_file(tmp_path, [line])
    log = end_of(tmp_path, f"-http-auth-token-file={path}")
    assert f"failed to instantiate pyqd - failed to read tokens - {path}: {reason}" in log
    assert "token-of-somebody" not in log


@pytest.mark.slow
def test_a_file_that_is_missing_is_not_served_by(tmp_path: Path) -> None:
    log = end_of(tmp_path, f"-http-auth-token-file={tmp_path}/none")
    assert f"failed to read tokens - open {tmp_path}/none: no such file or directory" in log


@pytest.mark.slow
def test_auth_servers_for_http_have_to_be_named(tmp_path: Path) -> None:
    log = end_of(tmp_path, "-http-auth")
    assert "--http-auth needs --auth-http-address" in log


@pytest.mark.slow
def test_listening_beyond_loopback_without_a_login_is_warned_of(tmp_path: Path) -> None:
    warning = "every client that reaches"
    assert f"WARNING: HTTP: {warning} 0.0.0.0:" in start_and_stop(everywhere(tmp_path))
    with_login = everywhere(tmp_path / "login", f"-http-auth-token-file={token_file(tmp_path, LINES)}")
    for daemon in (Daemon(pyqd(), tmp_path / "loopback"), with_login):
        assert warning not in start_and_stop(daemon)


def everywhere(directory: Path, *flags: str) -> Daemon:
    """Return a daemon that will listen for HTTP on every interface."""
    port = free_port()
    daemon = Daemon(pyqd(), directory, (f"-http-address=0.0.0.0:{port}", *flags))
    daemon.tcp_port, daemon.http_port = free_port(), port
    return daemon


def start_and_stop(daemon: Daemon) -> str:
    daemon.start()
    daemon.stop()
    return daemon.log_text()


ANSWER_OF: Mapping[str, Answer] = {
    "producer": state(entry("^published$", permissions="publish")),
    "consumer": state(entry("^orders$", ("^email$",), "subscribe")),
    "reader": state(entry("^orders$", (".*",), "subscribe")),
    "admin": state(entry("^orders$", permissions="admin")),
    "root": state(entry(permissions="admin")),
    "nothing": state(),
    "broken": Answer(500, b""),
    "garbage": Answer(200, b"{"),
}


@pytest.mark.parametrize(
    ("secret", "method", "path", "status"),
    [
        ("producer", "POST", "/pub?topic=published", 200),
        ("producer", "POST", "/pub?topic=other", 403),
        ("producer", "GET", "/topic/log?topic=published", 403),
        ("producer", "POST", "/topic/create?topic=published", 403),
        ("producer", "GET", "/stats", 200),
        ("consumer", "POST", "/pub?topic=orders", 403),
        ("consumer", "GET", "/channel/messages?topic=orders&channel=email", 404),
        ("consumer", "GET", "/channel/messages?topic=orders&channel=audit", 403),
        ("consumer", "GET", "/topic/log?topic=orders", 403),
        ("reader", "GET", "/topic/log?topic=orders", 404),
        ("admin", "POST", "/topic/pause?topic=orders", 404),
        ("admin", "POST", "/topic/pause?topic=other", 403),
        ("admin", "GET", "/config/log_level", 403),
        ("root", "GET", "/config/log_level", 200),
        ("nothing", "GET", "/stats", 401),
        ("broken", "GET", "/stats", 401),
        ("garbage", "GET", "/stats", 401),
    ],
)
def test_auth_servers_decide_about_logins(deciding: Daemon, secret: str, method: str, path: str, status: int) -> None:
    assert request(deciding, method, path, secret, b"x").status == status


def test_auth_servers_are_asked_as_for_tcp(asking: Daemon, authd: AuthServer) -> None:
    assert request(asking, "GET", "/stats", "secret").status == 200
    (query,) = authd.queries
    assert query.values == {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ["secret"], "tls": ["false"]}


def test_auth_servers_are_asked_once_until_their_answer_expires(asking: Daemon, authd: AuthServer) -> None:
    authd.answer = lambda _query: state(entry(), ttl=1)
    for _ in range(3):
        assert request(asking, "GET", "/stats", "secret").status == 200
    authd.answer = lambda _query: Answer(403, b"{}")
    wait_until(lambda: request(asking, "GET", "/stats", "secret").status == 401, "the login ends with its time")
    assert request(asking, "GET", "/ping").status == 200


def test_a_slow_auth_server_delays_no_other_request(asking: Daemon, authd: AuthServer) -> None:
    def slow(query: Query) -> Answer:
        if query.secret == "slow":
            authd.released.wait(10)
        return state(entry())

    authd.answer = slow
    connection = http.client.HTTPConnection(*asking.http_address, timeout=10)
    connection.request("GET", "/stats", headers={"Authorization": "Bearer slow"})
    wait_until(lambda: bool(authd.queries), "the auth server is asked")
    assert request(asking, "GET", "/stats", "quick").status == 200
    authd.released.set()
    assert connection.getresponse().status == 200
    connection.close()


def test_auth_servers_are_not_asked_beyond_the_limit_of_failures(asking: Daemon, authd: AuthServer) -> None:
    authd.answer = lambda _query: Answer(403, b"{}")
    started_s = time.monotonic()
    count = FAILURES_AT_ONCE_MAX * 3
    statuses = [request(asking, "GET", "/stats", f"guess-{number}").status for number in range(count)]
    assert 429 in statuses
    assert len({query.secret for query in authd.queries}) <= FAILURES_AT_ONCE_MAX + time.monotonic() - started_s + 1


@pytest.mark.slow
def test_over_https_auth_servers_get_the_name_of_the_certificate(tmp_path: Path, authd: AuthServer) -> None:
    certificates = Certificates(tmp_path)
    flags = (
        *certificates.server_flags(),
        "-https-address=127.0.0.1:0",
        "-tls-required=tcp-https",
        "-tls-client-auth-policy=require-verify",
        f"-tls-root-ca-file={certificates.authority.path}",
        f"-auth-http-address={authd.address}",
        "-http-auth",
    )
    daemon = Daemon(pyqd(), tmp_path, flags).start()
    (port,) = re.findall(r"HTTPS: listening on 127\.0\.0\.1:(\d+)", daemon.log_text())
    context = certificates.client_context(certificates.client)
    connection = http.client.HTTPSConnection("127.0.0.1", int(port), timeout=10, context=context)
    connection.request("GET", "/stats", headers={"Authorization": "Bearer secret"})
    assert connection.getresponse().status == 200
    connection.close()
    daemon.stop()
    (query,) = authd.queries
    assert (query.values["tls"], query.values["common_name"]) == (["true"], ["client"])
