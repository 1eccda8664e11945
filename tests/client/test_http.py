"""HTTP client of a broker: single messages, errors, retries, TLS, tokens; against a real daemon and a stub."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyqd.client import http as client_http
from pyqd.client.errors import (
    AuthenticationError,
    InvalidNameError,
    NotConnectedError,
    NotFoundError,
    ProtocolError,
    QuotaError,
    RefusedError,
    SettingError,
    TlsError,
    TooBigError,
)
from pyqd.client.http import BrokerHttp, ChannelResult, HttpAddress, parse_http_address
from tests.support.certificates import Certificates
from tests.support.http_stub import cut_off, http_stub, json_answer
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port, pyqd, running

TOKEN = "a-token-of-the-tests-0001"
READER = "a-token-of-the-tests-0002"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("broker"))) as daemon:
        yield daemon


def address_of(daemon: Daemon) -> str:
    return f"127.0.0.1:{daemon.http_port}"


@pytest.fixture
def opened() -> Iterator[Callable[..., BrokerHttp]]:
    """Return a function that makes a client; all are closed afterwards."""
    with contextlib.ExitStack() as made:
        yield lambda *address, **settings: made.enter_context(BrokerHttp(*address, **settings))


@pytest.fixture
def client(broker: Daemon, opened: Callable[..., BrokerHttp]) -> BrokerHttp:
    return opened(address_of(broker), timeout_s=10.0, retry_timeout_s=0.0)


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    """The HTTPS address of a daemon that wants a certificate."""
    port = free_port()
    flags = (
        *certificates.server_flags(),
        f"-https-address=127.0.0.1:{port}",
        "-tls-client-auth-policy=require-verify",
        f"-tls-root-ca-file={certificates.authority.path}",
    )
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("https"), flags)):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a login: TOKEN may consume, READER may look."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"{TOKEN} consume\n{READER} status\n")
    tokens.chmod(0o600)
    flags = (f"-http-auth-token-file={tokens}",)
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("guarded"), flags)) as daemon:
        yield daemon


def deferred(broker: Daemon, topic: str, channel: str = "c") -> str:
    """Publish a message that is due in an hour. Returns: its id."""
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel=channel)
    reply = broker.http("POST", "/pub", b"body", topic=topic, defer="3600000")
    return reply.headers["x-nsq-message-id"]


def test_a_cancelled_message_is_gone(broker, client):
    message_id = deferred(broker, "cancelled")
    assert client.cancel("cancelled", message_id) == [ChannelResult("c", "done", "deferred")]
    assert client.cancel("cancelled", message_id) == [ChannelResult("c", "finished", None)]


def test_a_message_is_cancelled_on_one_channel_only(broker, client):
    message_id = deferred(broker, "one_channel")
    broker.http("POST", "/channel/create", topic="one_channel", channel="other")
    assert client.cancel("one_channel", message_id, "c") == [ChannelResult("c", "done", "deferred")]


def test_a_message_can_be_delivered_now(broker, client):
    message_id = deferred(broker, "now")
    assert client.deliver_now("now", message_id.encode()) == [ChannelResult("c", "done", "deferred")]
    with Client(broker.tcp_address) as consumer:
        consumer.sub("now", rdy_count=1)
        assert consumer.read_message().id.decode() == message_id


@pytest.mark.parametrize("when", ["delay_ms", "due_ms"])
def test_a_message_is_rescheduled_by_a_delay_or_to_a_due_time(broker, client, when):
    topic = f"rescheduled_{when}"
    message_id = deferred(broker, topic)
    due_ms = round(time.time() * 1000) + 7_200_000
    given = {"delay_ms": 3_500_000} if when == "delay_ms" else {"due_ms": due_ms - 3_700_000}
    assert client.reschedule(topic, message_id, **given) == [ChannelResult("c", "done", "deferred")]
    shown = broker.http("GET", "/channel/messages", topic=topic, channel="c", state="deferred").json()["messages"]
    assert abs(shown[0]["due"] / 1e6 - (due_ms - 3_700_000)) < 60_000


@pytest.mark.parametrize("given", [{}, {"delay_ms": 1, "due_ms": 1}], ids=["none", "both"])
def test_a_reschedule_needs_one_time(client, given):
    with pytest.raises(SettingError, match="give one of them"):
        client.reschedule("t", "0" * 16, **given)


def test_a_message_in_flight_is_left_to_its_consumer(broker, client):
    with Client(broker.tcp_address) as consumer:
        consumer.pub("flying", b"body")
        consumer.sub("flying", rdy_count=1)
        message = consumer.read_message()
        assert client.cancel("flying", message.id) == [ChannelResult("c", "in_flight", None)]
        consumer.fin(message)


def test_an_unknown_topic_and_an_unknown_message_are_not_found(broker, client):
    with pytest.raises(NotFoundError, match="TOPIC_NOT_FOUND") as raised:
        client.cancel("unknown", "0" * 16)
    assert raised.value.code == "TOPIC_NOT_FOUND"
    assert raised.value.broker == address_of(broker)
    deferred(broker, "known")
    with pytest.raises(NotFoundError, match=r"no message 0{16} waits in topic known: .*\(/message/cancel: 404 "):
        client.cancel("known", "0" * 16)


def test_a_wrong_name_is_refused_before_it_is_sent(client):
    with pytest.raises(InvalidNameError):
        client.cancel("a b", "0" * 16)
    with pytest.raises(InvalidNameError):
        client.cancel("a", "0" * 16, "c d")


def test_a_wrong_id_is_refused_by_the_broker(broker, client):
    deferred(broker, "known")
    with pytest.raises(RefusedError, match="INVALID_ARG_ID"):
        client.cancel("known", "x")


def test_info_names_the_ports(broker, client):
    assert client.info()["tcp_port"] == broker.tcp_port


def test_the_connection_is_kept_between_requests(client):
    client.info()
    kept = client._connection._http
    client.info()
    assert client._connection._http is kept is not None


def test_a_request_outlasts_a_restart_of_the_broker(daemon):
    message_id = deferred(daemon, "restarted")
    with BrokerHttp(address_of(daemon), retry_timeout_s=30.0) as client:
        client.info()
        daemon.kill()
        starting = threading.Thread(target=daemon.start)
        starting.start()
        try:
            assert client.cancel("restarted", message_id) == [ChannelResult("c", "done", "deferred")]
        finally:
            starting.join()


def test_a_broker_that_cannot_be_reached_is_an_error_with_its_address(opened):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(NotConnectedError, match=rf"{address}: GET /info: Connection refused$"):
        opened(address, retry_timeout_s=0.0).info()
    with pytest.raises(NotConnectedError, match=rf"{address}: GET /info: Connection refused, tried for 0.01 s$"):
        opened(address, retry_timeout_s=0.01).info()


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_name_that_cannot_exist_is_an_error_at_once_that_names_it(opened, host):
    started_s = time.monotonic()
    with pytest.raises(NotConnectedError, match=f"^{re.escape(host)}:4151: '{re.escape(host)}' is no host name: "):
        opened(f"{host}:4151", retry_timeout_s=30.0).info()
    assert time.monotonic() - started_s < 10.0


def test_a_request_that_may_not_be_repeated_is_sent_once(opened):
    with http_stub(lambda path, query: json_answer({"message": "BUSY"}, 503)) as stub:
        assert opened(stub.address).request("GET", "/x", retry=False).status == 503
        assert len(stub.requests) == 1


@pytest.mark.slow
def test_passing_trouble_is_retried_until_an_answer_comes(opened):
    answers = iter([None, json_answer({"message": "INTERNAL_ERROR"}, 500), json_answer({}, 503), json_answer({"v": 1})])
    with http_stub(lambda path, query: next(answers)) as stub:
        assert opened(stub.address).info() == {"v": 1}
        assert len(stub.requests) == 4


@pytest.mark.parametrize("byte_count", [0, 5])
def test_an_answer_that_is_cut_off_is_requested_again(opened, byte_count):
    whole = json_answer({"v": 1})
    answers = iter([cut_off(whole, byte_count), whole, whole])
    with http_stub(lambda path, query: next(answers)) as stub:
        client = opened(stub.address)
        assert client.info() == {"v": 1}
        assert client.info() == {"v": 1}
        assert len(stub.requests) == 3


def test_answers_that_are_all_cut_off_are_an_error_with_the_reason(opened):
    with (
        http_stub(lambda path, query: cut_off(json_answer({"v": 1}), 5)) as stub,
        pytest.raises(NotConnectedError, match=r"the connection ended within the answer, after 5 bytes of its body$"),
    ):
        opened(stub.address, retry_timeout_s=0.0).info()


def test_passing_trouble_that_lasts_is_an_error_with_the_last_answer(opened):
    with http_stub(lambda path, query: json_answer({"message": "EXITING"}, 503)) as stub:
        with pytest.raises(NotConnectedError, match=r"answered 503 EXITING, tried for 0\.1 s"):
            opened(stub.address, retry_timeout_s=0.1).info()
        assert len(stub.requests) > 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "INVALID_DEFER", RefusedError),
        (401, "UNAUTHORIZED", AuthenticationError),
        (403, "FORBIDDEN", AuthenticationError),
        (403, "TOO_MANY_TOPICS", QuotaError),
        (404, "MESSAGE_NOT_FOUND", NotFoundError),
        (413, "MSG_TOO_BIG", TooBigError),
    ],
)
def test_each_refusal_has_its_error_with_the_code(opened, status, code, kind):
    with http_stub(lambda path, query: json_answer({"message": code}, status)) as stub:
        with pytest.raises(kind, match=rf": \S+ .*\(/info: {status} {code}\)$") as raised:
            opened(stub.address).info()
        assert raised.value.code == code
        assert len(stub.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"results":[7]}', b'{"results":[{}]}', b"{}"])
def test_an_answer_that_is_not_a_brokers_is_an_error_of_the_protocol(opened, monkeypatch, body):
    monkeypatch.setattr(BrokerHttp, "request", lambda *a, **k: client_http.Reply(200, {}, body))
    with pytest.raises(ProtocolError, match=r"127\.0\.0\.1:1: /message/cancel: "):
        opened("127.0.0.1:1").cancel("t", "0" * 16)


def test_an_answer_without_an_end_is_not_read_to_the_end(opened, monkeypatch):
    monkeypatch.setattr(client_http, "ANSWER_BYTES_MAX", 1000)
    with (
        http_stub(lambda path, query: (200, {}, bytes(1001))) as stub,
        pytest.raises(ProtocolError, match="more than 1000 bytes"),
    ):
        opened(stub.address).info()


def test_a_port_that_is_not_http_is_an_error_with_its_address(opened, broker):
    with pytest.raises(NotConnectedError, match=f"127.0.0.1:{broker.tcp_port}: GET /info"):
        opened(f"127.0.0.1:{broker.tcp_port}", retry_timeout_s=0.0).info()


class TestTls:
    @pytest.mark.parametrize("form", ["{}", "https://{}"])
    def test_an_address_speaks_tls_by_its_scheme_or_by_the_option(self, opened, https, certificates, form):
        client = opened(
            form.format(https),
            tls=form == "{}",
            new_context=lambda: certificates.client_context(certificates.client),
        )
        with client:
            assert client.info()["version"]

    def test_an_unknown_authority_is_an_error_at_once_with_the_option(self, opened, https):
        with pytest.raises(TlsError, match=rf"{https}: TLS: certificate verify failed: .*tls_ca"):
            opened(https, tls=True).info()

    def test_a_missing_certificate_is_an_error_at_once_with_the_options(self, opened, https, certificates):
        with pytest.raises(TlsError, match=r"client's certificate, options tls_cert and tls_key\?"):
            opened(https, tls=True, new_context=certificates.client_context).info()

    def test_a_port_without_tls_is_an_error_at_once(self, opened, broker):
        with pytest.raises(TlsError, match="the port speaks no TLS: is it the one of HTTPS"):
            opened(address_of(broker), tls=True).info()

    def test_plain_http_to_a_port_with_tls_has_a_hint(self, opened, https):
        with pytest.raises((TlsError, NotConnectedError), match="is it tls=true"):
            opened(https, retry_timeout_s=0.0).info()

    def test_a_file_that_cannot_be_read_is_the_error_of_its_option(self, opened):
        def missing() -> ssl.SSLContext:
            raise SettingError("tls_ca: no such file")

        with pytest.raises(SettingError, match="tls_ca"):
            opened("https://127.0.0.1:1", new_context=missing).info()


class TestToken:
    def test_the_right_token_opens(self, opened, guarded):
        with pytest.raises(NotFoundError):
            opened(address_of(guarded), token=TOKEN).cancel("t", "0" * 16)

    @pytest.mark.parametrize("token", [None, "a-token-of-the-tests-9999", READER])
    def test_another_one_is_refused_with_a_hint_and_never_named(self, opened, guarded, token):
        with pytest.raises(AuthenticationError, match=r"is the token right.* 40[13] ") as raised:
            opened(address_of(guarded), token=token).cancel("t", "0" * 16)
        assert "a-token" not in str(raised.value)

    @pytest.mark.parametrize("token", ["secret\r\nX-Evil: 1", "secr\u00e9t"], ids=["line", "letter"])
    def test_a_token_that_no_header_can_have_is_refused_without_being_named(self, opened, token):
        with pytest.raises(SettingError) as raised:
            opened("127.0.0.1", token=token)
        assert "secr" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "tls", "expected"),
    [
        ("host:1", False, HttpAddress("host", 1, False)),
        ("host", False, HttpAddress("host", 4151, False)),
        ("host", True, HttpAddress("host", 4152, True)),
        ("http://host", True, HttpAddress("host", 4151, False)),
        ("https://host:1/", False, HttpAddress("host", 1, True)),
        ("HTTPS://host", False, HttpAddress("host", 4152, True)),
        ("[::1]:7", False, HttpAddress("::1", 7, False)),
        ("/run/pyqd.sock", True, HttpAddress("localhost", 0, False, "/run/pyqd.sock")),
    ],
)
def test_an_address_has_several_forms(text, tls, expected):
    assert parse_http_address(text, tls) == expected


@pytest.mark.parametrize("text", ["", "ftp://host", "host:x", "host:99999", "http://", "user@host", "host/path", "h?q"])
def test_anything_else_is_no_address(opened, text):
    with pytest.raises(SettingError):
        opened(text)


@pytest.mark.slow
def test_a_broker_is_reached_on_a_unix_socket(tmp_path: Path):
    body = json.dumps({"version": "1"}).encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "http.sock"))
        listener.listen()

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += accepted.recv(1000)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        answering = threading.Thread(target=answer)
        answering.start()
        with BrokerHttp(str(tmp_path / "http.sock"), timeout_s=10.0) as client:
            assert client.info() == {"version": "1"}
        answering.join()
