"""The brokers' token: it goes to brokers that the operator names, and never in clear if TLS is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from pyqd.admin.app import new_app
from pyqd.admin.options import AdminOptions
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError, check_registered
from pyqd.client.errors import NotConnectedError
from tests.admin.conftest import Admin
from tests.support.certificates import Certificates
from tests.support.http_stub import Answer, HttpStub, http_stub, json_answer, lookup_answers
from tests.support.server import Daemon, free_port, pyqd, wait_until

TOKEN = "secret-of-the-brokers"
BEARER = f"Bearer {TOKEN}"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


@pytest.fixture
def stranger() -> Iterator[HttpStub]:
    """A server that anybody has registered with a lookup daemon as a broker; it wants a login."""

    def answer(path: str, _query: dict[str, str]) -> Answer:
        return json_answer({"message": "UNAUTHORIZED"}, 401 if path == "/stats" else 200)

    with http_stub(answer) as stub:
        yield stub


def made(**options: object) -> Site:
    return Site(AdminOptions(**options))  # type: ignore[arg-type]


def test_a_broker_that_only_a_lookup_daemon_names_gets_no_token(stranger: HttpStub, token_file: str) -> None:
    with http_stub(lookup_answers({"t": [stranger.address]})) as lookupd:
        site = made(lookupd_http_address=(lookupd.address,), http_client_token_file=token_file)
        found = site.poller.poll()
        assert set(stranger.tokens) == {None}
        assert BEARER in lookupd.tokens
        assert f"{stranger.address} was asked without the token: no --trusted-broker names it" in str(found.failures)
        site.close()


def test_a_broker_of_a_lookup_daemon_gets_the_token_if_it_is_named(stranger: HttpStub, token_file: str) -> None:
    with http_stub(lookup_answers({"t": [stranger.address]})) as lookupd:
        for entry, has_token in ((stranger.address, True), ("127.0.0.0/8", True), ("10.0.0.0/8", False)):
            site = made(
                lookupd_http_address=(lookupd.address,), http_client_token_file=token_file, trusted_broker=(entry,)
            )
            stranger.tokens.clear()
            site.poller.poll()
            assert (BEARER in stranger.tokens) is has_token, entry
            assert bool(site.poller.cluster.upstream.withheld(stranger.address)) is not has_token
            site.close()


def test_a_lookup_daemon_that_is_set_later_gets_no_token(token_file: str) -> None:
    with http_stub(lookup_answers({})) as first, http_stub(lookup_answers({})) as second:
        site = made(lookupd_http_address=(first.address,), http_client_token_file=token_file)
        site.change_lookupds((second.address,))
        site.cluster.topics()
        assert set(second.tokens) == {None}
        site.close()


def test_a_token_does_not_go_in_clear_if_a_flag_of_tls_is_given(
    stranger: HttpStub, token_file: str, certificates: Certificates
) -> None:
    site = made(
        nsqd_http_address=(stranger.address,),
        http_client_token_file=token_file,
        http_client_tls_root_ca_file=str(certificates.authority.path),
    )
    with pytest.raises(UpstreamError, match="it is not asked over HTTPS, and flags of TLS are given"):
        site.cluster.nodes()
    assert set(stranger.tokens) == {None}
    site.close()


@pytest.mark.slow
def test_a_broker_with_https_gets_the_token_over_https_and_may_be_given_as_a_url(
    start_admin: Callable[..., Admin], certificates: Certificates, tmp_path: Path, token_file: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} admin\n")
    tokens.chmod(0o600)
    port = free_port()
    flags = (*certificates.server_flags(), f"-https-address=127.0.0.1:{port}", f"-http-auth-token-file={tokens}")
    broker = Daemon(pyqd(), tmp_path, (*flags, "-broadcast-address=127.0.0.1"))
    broker.start()
    try:
        flags = (
            f"--http-client-token-file={token_file}",
            f"--http-client-tls-root-ca-file={certificates.authority.path}",
        )
        address = f"https://127.0.0.1:{port}"
        admin = start_admin("pyqadmin", f"--nsqd-http-address={address}", *flags)
        assert admin.get("/api/nodes")["nodes"][0]["http_port"] == broker.http_port
        assert admin.get("/api/counter")["message"] == ""
        plain = start_admin("pyqadmin", f"--nsqd-http-address=127.0.0.1:{broker.http_port}", *flags)
        assert "asked without the token" in plain.ask("GET", "/api/nodes").message
    finally:
        broker.stop()


@pytest.mark.slow
def test_the_page_of_health_names_brokers_without_the_token(
    start_admin: Callable[..., Admin], stranger: HttpStub, token_file: str
) -> None:
    with http_stub(lookup_answers({"t": [stranger.address]})) as lookupd:
        flags = (f"--lookupd-http-address={lookupd.address}", f"--http-client-token-file={token_file}")
        admin = start_admin("pyqadmin", *flags)
        said = f"{stranger.address} is asked without the token: no --trusted-broker names it."
        wait_until(lambda: said in admin.ask("GET", "/health").body.decode(), "the finding")


@pytest.mark.parametrize(
    ("host", "is_local", "is_asked"),
    [
        ("169.254.169.254", True, False),
        ("fe80::1", True, False),
        ("0.0.0.0", True, False),
        ("::", True, False),
        ("224.0.0.1", True, False),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("127.0.0.1", True, True),
        ("10.0.0.1", False, True),
        ("192.0.2.1", False, True),
        ("2001:db8::1", False, True),
        ("broker-1", False, True),
    ],
)
def test_addresses_of_services_for_this_machine_alone_are_no_brokers(host: str, is_local: bool, is_asked: bool) -> None:
    refusal = pytest.raises(NotConnectedError, match="registered as a broker, and not asked")
    with nullcontext() if is_asked else refusal:
        check_registered("broker:4151", host, may_be_local=is_local)


def test_a_registered_name_of_this_machine_is_not_asked_unless_a_lookup_daemon_is_there(stranger: HttpStub) -> None:
    port = stranger.address.rpartition(":")[2]
    for address in (stranger.address, f"localhost:{port}"):
        for options, is_asked in (
            ({"lookupd_http_address": ("lookup-1:4161",)}, False),
            ({"lookupd_http_address": ("lookup-1:4161",), "trusted_broker": (address,)}, True),
            ({"lookupd_http_address": ("127.0.0.1:4161",)}, True),
        ):
            site = made(**options)
            stranger.requests.clear()
            said = "got response 401" if is_asked else "registered as a broker, and not"
            with pytest.raises(UpstreamError, match=said):
                site.upstream.get(address, "/stats")
            assert bool(stranger.requests) is is_asked
            site.close()


def test_a_registered_text_that_is_no_address_is_a_failure_of_that_broker(stranger: HttpStub, token_file: str) -> None:
    with http_stub(lookup_answers({"t": ["a b/c?d:4151", "user@host:4151", stranger.address]})) as lookupd:
        site = made(lookupd_http_address=(lookupd.address,), http_client_token_file=token_file)
        client = new_app(site).test_client()
        found = site.poller.poll()
        assert "a b/c?d:4151" in str(found.failures)
        for path in ("/health", "/nodes", "/durability", "/topics/t", "/topics/t/-/settings"):
            # No broker has numbers of the topic.
            assert client.get(path).status_code == (502 if path == "/topics/t" else 200), path
        assert client.post("/api/topics/t", json={"action": "pause"}).status_code == 200
        assert client.get("/topics/t/c/messages?node=a+b/c?d:4151").status_code == 502
        site.close()


def test_the_password_of_graphite_does_not_follow_a_redirect() -> None:
    with http_stub(lambda *_: json_answer([])) as other:
        moved = {"Location": f"http://{other.address}/render"}
        with http_stub(lambda *_: (302, moved, b"")) as graphite:
            site = made(nsqd_http_address=("127.0.0.1:1",), graphite_url=f"http://me:secret@{graphite.address}")
            assert site.ask_graphite("/render")[0] == 200
            assert (graphite.tokens, other.tokens) == (["Basic bWU6c2VjcmV0"], [None])
            site.close()
