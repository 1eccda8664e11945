"""AUTH over TCP: the request to the auth server, the permissions that follow, and their expiry."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator

import pytest

from pyqd.config.options import Options
from pyqd.tcp.authd import AuthError, AuthServers
from tests.support.authd import Answer, AuthServer, Query, entry, state
from tests.support.certificates import Certificates
from tests.support.nsq import ERROR, RESPONSE, Client, dpub, mpub, pub, sized, sub
from tests.support.server import Daemon, Implementation, free_port, wait_until

Run = Callable[..., Daemon]

ANSWER_OF = {
    "all": state(entry()),
    "orders": state(entry("^orders$", ("^email$",), "subscribe"), entry("^orders", (".*",), "publish")),
    "publish-only": state(entry(permissions="publish")),
    "subscribe-only": state(entry(permissions="subscribe")),
    "no-channels": state(entry(channels=())),
    "nothing": state(),
    "unanchored": state(entry("b+c", ("x",), "subscribe publish"), entry("[[:digit:]]{3}")),
    "nobody": state(entry(), identity="", identity_url=""),
    "forbidden": Answer(403, b"no"),
    "broken": Answer(500, b"{}"),
    "garbage": Answer(200, b"\x00\xff{"),
    "array": Answer(200, b"[]"),
    "null": Answer(200, b"null"),
    "empty": Answer(200, b""),
    "no-ttl": Answer(200, json.dumps({"authorizations": [entry()]}).encode()),
    "ttl-0": state(entry(), ttl=0),
    "ttl-negative": state(entry(), ttl=-1),
    "ttl-text": state(entry(), ttl="60"),
    "ttl-fraction": state(entry(), ttl=1.5),
    "bad-permission": state(entry(permissions="subscribe fly")),
    "bad-topic": state(entry("[")),
    "look-ahead": state(entry("(?=a)")),
    "bad-channel": state(entry(channels=(".*", "(("))),
    "short-lived": state(entry(), ttl=1),
}
REFUSED = (
    "forbidden",
    "broken",
    "garbage",
    "array",
    "null",
    "empty",
    "no-ttl",
    "ttl-0",
    "ttl-negative",
    "ttl-text",
    "ttl-fraction",
    "bad-permission",
    "bad-topic",
    "look-ahead",
    "bad-channel",
)


def auth(secret: str | bytes) -> bytes:
    return b"AUTH\n" + sized(secret if isinstance(secret, bytes) else secret.encode())


def answer(query: Query) -> Answer:
    return ANSWER_OF.get(query.secret, Answer(403, b"unknown"))


@pytest.fixture(scope="module")
def authd() -> Iterator[AuthServer]:
    server = AuthServer(answer)
    yield server
    server.stop()


@pytest.fixture
def own_authd() -> Iterator[AuthServer]:
    """An auth server whose answers are this test's."""
    server = AuthServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def run(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a function that runs a server with these flags, one for all tests with the same flags."""
    daemons: dict[tuple[str, ...], Daemon] = {}

    def run_with(*flags: str) -> Daemon:
        if flags not in daemons:
            daemons[flags] = Daemon(implementation, tmp_path_factory.mktemp("auth"), flags).start()
        return daemons[flags]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [stack.callback(daemon.stop) for daemon in daemons.values()])
        yield run_with


@pytest.fixture
def guarded(run: Run, authd: AuthServer) -> Daemon:
    """A server with the auth server whose answers are in ANSWER_OF."""
    return run(f"-auth-http-address={authd.address}")


def authed(daemon: Daemon, secret: str) -> Client:
    client = Client(daemon.tcp_address)
    client.send(auth(secret))
    frame = client.read_frame()
    assert frame.type == RESPONSE, frame
    return client


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.path, certificates.server.key_path)
    return context


def client_stats(daemon: Daemon, topic: str) -> dict[str, object]:
    stats = daemon.http("GET", f"/stats?format=json&topic={topic}").json()
    (client,) = stats["topics"][0]["channels"][0]["clients"]
    assert isinstance(client, dict)
    return client


def test_the_reply_to_identify_shows_that_auth_is_required(guarded: Daemon) -> None:
    with Client(guarded.tcp_address) as client:
        assert client.identify()["auth_required"] is True


def test_auth_is_answered_with_the_identity(guarded: Daemon) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(auth("orders"))
        client.expect_response(b'{"identity":"bob","identity_url":"http://bob","permission_count":2}')


def test_permitted_commands_are_executed(guarded: Daemon) -> None:
    with authed(guarded, "orders") as client:
        client.pub("orders", b"1")
        client.mpub("orders_eu", [b"2"])
        client.dpub("orders", 0, b"3")
        client.sub("orders", "email", rdy_count=5)
        message = client.read_message()
        client.fin(message)


@pytest.mark.parametrize("command", [pub("t", b"x"), mpub("t", [b"x"]), dpub("t", 1, b"x"), sub("t", "c")])
def test_without_auth_nothing_may_be_done(guarded: Daemon, command: bytes) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(command)
        client.expect_fatal("E_AUTH_FIRST", b"AUTH required before " + command.split()[0])


@pytest.mark.parametrize(
    ("secret", "command", "text"),
    [
        ("orders", pub("other", b"x"), 'PUB on "other" ""'),
        ("orders", mpub("other", [b"x"]), 'MPUB on "other" ""'),
        ("orders", dpub("other", 1, b"x"), 'DPUB on "other" ""'),
        ("orders", sub("other", "email"), 'SUB on "other" "email"'),
        ("orders", sub("orders", "audit"), 'SUB on "orders" "audit"'),
        ("orders", sub("orders_eu", "email"), 'SUB on "orders_eu" "email"'),
        ("publish-only", sub("t", "c"), 'SUB on "t" "c"'),
        ("subscribe-only", pub("t", b"x"), 'PUB on "t" ""'),
        ("no-channels", pub("t", b"x"), 'PUB on "t" ""'),
        ("no-channels", sub("t", "c"), 'SUB on "t" "c"'),
        ("unanchored", pub("abbcd", b"x"), 'PUB on "abbcd" ""'),
    ],
)
def test_commands_without_permission_are_refused(guarded: Daemon, secret: str, command: bytes, text: str) -> None:
    with authed(guarded, secret) as client:
        client.send(command)
        client.expect_fatal("E_UNAUTHORIZED", f"AUTH failed for {text}")


def test_a_refused_publish_after_a_permitted_one_is_refused(guarded: Daemon) -> None:
    with authed(guarded, "orders") as client:
        client.send(pub("orders", b"1") + pub("orders_eu", b"2") + pub("orders", b"3") + pub("other", b"4"))
        client.expect_ok(3)
        client.expect_fatal("E_UNAUTHORIZED", 'AUTH failed for PUB on "other" ""')


def test_patterns_are_searched_for_in_names(guarded: Daemon) -> None:
    with authed(guarded, "unanchored") as client:
        client.pub("a123", b"x")
        client.sub("abbcd", "axb")


def test_a_refused_publish_makes_no_topic(guarded: Daemon, topic: str) -> None:
    with authed(guarded, "orders") as client:
        client.send(pub(topic, b"x"))
        assert client.read_frame().type == ERROR
    assert not guarded.http("GET", f"/stats?format=json&topic={topic}").json()["topics"]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (b"PUB bad/name\n\0\0\0\1x", "E_BAD_TOPIC", 'PUB topic name "bad/name" is not valid'),
        (b"PUB t\n\0\0\0\0", "E_BAD_MESSAGE", "PUB invalid message body size 0"),
        (b"DPUB t x\n\0\0\0\1x", "E_INVALID", "DPUB could not parse timeout x"),
        (b"MPUB t\n\0\0\0\0", "E_AUTH_FIRST", "AUTH required before MPUB"),
        (b"SUB bad/name c\n", "E_BAD_TOPIC", 'SUB topic name "bad/name" is not valid'),
        (b"AUTH x\n\0\0\0\1x", "E_INVALID", "AUTH invalid number of parameters"),
        (b"AUTH\n\0\0\0\0", "E_BAD_BODY", "AUTH invalid body size 0"),
        (b"AUTH\n\x7f\0\0\0", "E_BAD_BODY", "AUTH body too big 2130706432 > 5242880"),
    ],
)
def test_other_checks_come_in_their_order(guarded: Daemon, command: bytes, code: str, text: str) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(command)
        client.expect_fatal(code, text)


def test_a_second_auth_is_refused(guarded: Daemon) -> None:
    with authed(guarded, "all") as client:
        client.send(auth("all"))
        client.expect_fatal("E_INVALID", "AUTH already set")


def test_auth_after_sub_is_refused(guarded: Daemon, topic: str) -> None:
    with authed(guarded, "all") as client:
        client.sub(topic)
        client.send(auth("all"))
        client.expect_fatal("E_INVALID", "cannot AUTH in current state")


def test_a_client_without_any_permission_gets_an_error(guarded: Daemon) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(auth("nothing"))
        client.expect_fatal("E_UNAUTHORIZED", "AUTH no authorizations found")


@pytest.mark.parametrize("secret", REFUSED)
def test_an_answer_of_no_use_is_a_failed_auth(guarded: Daemon, secret: str) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(auth(secret))
        client.expect_fatal("E_AUTH_FAILED", "AUTH failed")


def test_stats_show_the_identity_of_a_client(guarded: Daemon, topic: str) -> None:
    with authed(guarded, "all") as client:
        client.sub(topic)
        shown = client_stats(guarded, topic)
        assert (shown["authed"], shown["auth_identity"], shown["auth_identity_url"]) == (True, "bob", "http://bob")
        keys = list(shown)
        at = keys.index("user_agent")
        assert keys[at + 1 : at + 5] == ["authed", "auth_identity", "auth_identity_url", "topology_zone"]


def test_stats_leave_out_empty_fields(guarded: Daemon, topic: str) -> None:
    with authed(guarded, "nobody") as client:
        client.sub(topic)
        shown = client_stats(guarded, topic)
        assert shown["authed"] is True
        assert "auth_identity" not in shown
        assert "auth_identity_url" not in shown


@pytest.mark.slow
def test_the_auth_server_is_asked_by_get(run: Run, own_authd: AuthServer) -> None:
    server = run(f"-auth-http-address={own_authd.address}")
    secret = "s e+c/r&t=\N{LATIN SMALL LETTER E WITH ACUTE}"
    with authed(server, secret):
        pass
    (query,) = own_authd.queries
    assert (query.method, query.path) == ("GET", "/auth")
    assert query.values == {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": [secret], "tls": ["false"]}
    assert query.raw == "common_name=&remote_ip=127.0.0.1&secret=s+e%2Bc%2Fr%26t%3D%C3%A9&tls=false"
    assert query.headers["accept"] == "application/vnd.nsq; version=1.0"


@pytest.mark.slow
def test_the_auth_server_is_asked_by_post(run: Run, own_authd: AuthServer) -> None:
    server = run(f"-auth-http-address=http://{own_authd.address}/who/is", "-auth-http-request-method=post")
    with authed(server, "s<&>"):
        pass
    (query,) = own_authd.queries
    assert (query.method, query.path) == ("POST", "/who/is")
    assert query.values == {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ["s<&>"], "tls": ["false"]}
    assert query.headers["content-type"] == "application/json"


@pytest.mark.slow
def test_the_auth_server_gets_the_use_of_tls_and_the_name_of_the_certificate(
    run: Run, own_authd: AuthServer, certificates: Certificates
) -> None:
    server = run(
        f"-auth-http-address={own_authd.address}",
        *certificates.server_flags(),
        "-tls-client-auth-policy=require",
    )
    with Client(server.tcp_address) as client:
        client.identify(tls_v1=True)
        client.start_tls(certificates.client_context(certificates.client))
        client.send(auth("s"))
        assert client.read_frame().type == RESPONSE
    (query,) = own_authd.queries
    assert query.values["tls"] == ["true"]
    assert query.values["common_name"] == ["client"]


@pytest.mark.slow
def test_a_redirection_is_followed(run: Run, own_authd: AuthServer) -> None:
    own_authd.answer = lambda query: (
        state(entry()) if query.path == "/there" else Answer(302, b"", (("Location", "/there?secret=s"),))
    )
    with authed(run(f"-auth-http-address={own_authd.address}"), "s"):
        pass


@pytest.mark.slow
def test_of_several_servers_one_that_answers_is_enough(run: Run, own_authd: AuthServer) -> None:
    server = run(f"-auth-http-address=127.0.0.1:{free_port()}", f"-auth-http-address={own_authd.address}")
    for _ in range(4):
        with authed(server, "s") as client:
            client.pub("t", b"x")
    assert len(own_authd.queries) == 4


@pytest.mark.slow
def test_a_server_that_is_down_is_a_failed_auth(run: Run) -> None:
    server = run(f"-auth-http-address=127.0.0.1:{free_port()}")
    with Client(server.tcp_address) as client:
        client.send(auth("s"))
        client.expect_fatal("E_AUTH_FAILED", "AUTH failed")


@pytest.mark.slow
def test_a_slow_auth_server_fails_the_auth_and_delays_no_other_client(run: Run, own_authd: AuthServer) -> None:
    def slow(query: Query) -> Answer:
        if query.secret == "slow":
            own_authd.released.wait(10)
        return state(entry())

    own_authd.answer = slow
    server = run(f"-auth-http-address={own_authd.address}", "-http-client-request-timeout=300ms")
    with Client(server.tcp_address) as client:
        client.send(auth("slow"))
        wait_until(lambda: bool(own_authd.queries), "the slow server is asked")
        with authed(server, "s") as other:
            other.pub("t", b"x")
        client.expect_fatal("E_AUTH_FAILED", "AUTH failed")


@pytest.mark.slow
def test_a_client_with_short_heartbeats_may_wait_for_a_slow_auth_server(run: Run, own_authd: AuthServer) -> None:
    def slow(_query: Query) -> Answer:
        own_authd.released.wait(2.5)
        return state(entry())

    own_authd.answer = slow
    with Client(run(f"-auth-http-address={own_authd.address}").tcp_address) as client:
        client.identify(heartbeat_interval=1000)
        client.send(auth("s"))
        # Its heartbeats are answered, but the daemon reads the answers only behind the AUTH.
        while (frame := client.read_frame(heartbeats=True)).data == b"_heartbeat_":
            client.send(b"NOP\n")
        assert frame.type == RESPONSE
        client.pub("t", b"x")


def test_commands_behind_auth_wait_for_it(guarded: Daemon, topic: str) -> None:
    with Client(guarded.tcp_address) as client:
        client.send(auth("all") + pub(topic, b"1") + mpub(topic, [b"2", b"3"]) + sub(topic, "c"))
        assert client.read_frame().type == RESPONSE
        client.expect_ok(3)


@pytest.mark.slow
def test_expired_permissions_are_requested_again(run: Run, own_authd: AuthServer, topic: str) -> None:
    own_authd.answer = lambda _query: state(entry(), ttl=1)
    with authed(run(f"-auth-http-address={own_authd.address}"), "s") as client:
        client.pub(topic, b"1")

        def asked_again() -> bool:
            client.pub(topic, b"2")
            return len(own_authd.queries) > 1

        wait_until(asked_again, "the auth server is asked again")
        assert own_authd.queries[1].secret == "s"
        client.send(pub(topic, b"3") + mpub(topic, [b"4"]))
        client.expect_ok(2)
        client.sub(topic)


@pytest.mark.slow
def test_a_permission_that_was_taken_away_ends_with_its_time(run: Run, own_authd: AuthServer, topic: str) -> None:
    own_authd.answer = lambda _query: state(entry(), ttl=1)
    with authed(run(f"-auth-http-address={own_authd.address}"), "s") as client:
        client.pub(topic, b"1")
        own_authd.answer = lambda _query: state(entry("^other$"))

        def refused() -> bool:
            client.send(pub(topic, b"2"))
            frame = client.read_frame()
            if frame.type == RESPONSE:
                return False
            assert frame.data == f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'.encode()
            return True

        wait_until(refused, "the publish is refused")
        client.expect_closed()


@pytest.mark.slow
def test_when_no_server_answers_any_more_it_ends_with_its_time(run: Run, own_authd: AuthServer, topic: str) -> None:
    own_authd.answer = lambda _query: state(entry(), ttl=1)
    with authed(run(f"-auth-http-address={own_authd.address}"), "s") as client:
        own_authd.answer = lambda _query: Answer(500, b"")

        def refused() -> bool:
            client.send(pub(topic, b"2"))
            frame = client.read_frame()
            assert frame in ((RESPONSE, b"OK"), (ERROR, b"E_AUTH_FAILED AUTH failed"))
            return frame.type == ERROR

        wait_until(refused, "the publish is refused")
        client.expect_closed()


@pytest.mark.slow
def test_a_server_may_send_on_to_https(run: Run, own_authd: AuthServer, certificates: Certificates) -> None:
    secured = AuthServer(context=server_context(certificates))
    try:
        own_authd.answer = lambda _query: Answer(403, json.dumps({"https_port": secured.port}).encode())
        server = run(f"-auth-http-address={own_authd.address}", f"-tls-root-ca-file={certificates.authority.path}")
        with authed(server, "s"):
            pass
        assert [query.path for query in secured.queries] == ["/auth"]
    finally:
        secured.stop()


@pytest.mark.slow
def test_an_auth_server_with_an_unknown_certificate_is_not_queried(run: Run, certificates: Certificates) -> None:
    secured = AuthServer(context=server_context(certificates))
    try:
        server = run(f"-auth-http-address=https://127.0.0.1:{secured.port}/auth")
        with Client(server.tcp_address) as client:
            client.send(auth("s"))
            client.expect_fatal("E_AUTH_FAILED", "AUTH failed")
        assert not secured.queries
    finally:
        secured.stop()


@pytest.mark.slow
def test_without_auth_servers_auth_is_disabled(run: Run) -> None:
    server = run()
    with Client(server.tcp_address) as client:
        assert client.identify()["auth_required"] is False
        client.send(auth("s"))
        client.expect_fatal("E_AUTH_DISABLED", "AUTH disabled")


def test_http_requires_no_login_although_tcp_does(guarded: Daemon, topic: str) -> None:
    assert guarded.http("POST", f"/pub?topic={topic}", b"x").status == 200


@pytest.mark.pyqd_only(reason="nsqd has no DMPUB")
def test_dmpub_needs_the_permission_to_publish(guarded: Daemon, topic: str) -> None:
    def dmpub(name: str) -> bytes:
        return b"DMPUB %s 1000\n" % name.encode() + mpub("t", [b"x"]).split(b"\n", 1)[1]

    with Client(guarded.tcp_address) as client:
        client.send(dmpub(topic))
        client.expect_fatal("E_AUTH_FIRST", "AUTH required before DMPUB")
    with authed(guarded, "publish-only") as client:
        client.send(dmpub(topic))
        client.expect_ok()
    with authed(guarded, "subscribe-only") as client:
        client.send(dmpub(topic))
        client.expect_fatal("E_UNAUTHORIZED", f'AUTH failed for DMPUB on "{topic}" ""')


def test_a_host_name_that_no_host_can_have_is_an_error_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    servers = AuthServers(Options(auth_http_address=("a..b:4180",)))
    with pytest.raises(AuthError, match=r"^failed to auth against a\.\.b:4180 - 'a\.\.b' is no host name: "):
        servers.ask(b"secret", "127.0.0.1", tls=False, common_name="")
    assert capfd.readouterr().err == ""
