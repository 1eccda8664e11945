"""TLS by its flags: refusals without it, accepted client certificates, HTTPS, and renewed certificates."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates, certify
from tests.support.nsq import ERROR, Client, identify, pub, rdy, sub
from tests.support.preloaded import completed
from tests.support.server import Daemon, Implementation, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

WAIT_S = 10.0
HTTPS_LINE = re.compile(r"HTTPS: listening on 127\.0\.0\.1:(\d+)")
Run = Callable[..., Daemon]


@pytest.fixture(scope="module")
def run(
    implementation: Implementation, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Run]:
    """Return a function that runs a server with TLS and further flags, one for all tests with the same flags."""
    daemons: dict[tuple[str, ...], Daemon] = {}

    def run_with(*flags: str) -> Daemon:
        if flags not in daemons:
            every = (*certificates.server_flags(), "-https-address=127.0.0.1:0", *flags)
            daemons[flags] = Daemon(implementation, tmp_path_factory.mktemp("tls"), every).start()
        return daemons[flags]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [stack.callback(daemon.stop) for daemon in daemons.values()])
        yield run_with


def connect(daemon: Daemon) -> Client:
    return Client(daemon.tcp_address)


def secured(daemon: Daemon, context: ssl.SSLContext, **fields: object) -> Client:
    client = connect(daemon)
    try:
        assert client.identify(tls_v1=True, **fields)["tls_v1"] is True
        client.start_tls(context)
    except BaseException:
        client.close()
        raise
    return client


def https_port(daemon: Daemon) -> int:
    return int(HTTPS_LINE.findall(daemon.log_text())[-1])


def https_get(daemon: Daemon, context: ssl.SSLContext, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", https_port(daemon), timeout=WAIT_S, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


COMMANDS = {
    b"NOP": b"NOP\n",
    b"PUB": pub("t", b"x"),
    b"SUB": sub("t", "c"),
    b"RDY": rdy(1),
    b"FIN": b"FIN 0123456789abcdef\n",
    b"AUTH": b"AUTH\n\0\0\0\1x",
    b"WHAT": b"WHAT is this\n",
    b"": b"\n",
}


@pytest.mark.parametrize("policy", ["true", "tcp-https"])
@pytest.mark.parametrize("command", COMMANDS)
def test_required_tls_permits_only_identify_before_the_upgrade(run: Run, policy: str, command: bytes) -> None:
    daemon = run(f"-tls-required={policy}")
    with connect(daemon) as client:
        client.send(identify({}))
        client.expect_ok()
        client.send(COMMANDS[command])
        client.expect_fatal("E_INVALID", b"cannot " + command + b" in current state (TLS required)")


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
@pytest.mark.parametrize("command", COMMANDS)
def test_compression_alone_does_not_satisfy_required_tls(run: Run, compression: str, command: bytes) -> None:
    with connect(run("-tls-required")) as client:
        assert client.identify(**{compression: True})[compression] is True
        client.start_snappy() if compression == "snappy" else client.start_deflate()
        client.send(COMMANDS[command])
        client.expect_fatal("E_INVALID", b"cannot " + command + b" in current state (TLS required)")


def test_an_upgrade_to_tls_satisfies_required_tls(run: Run, certificates: Certificates) -> None:
    with secured(run("-tls-required"), certificates.client_context()) as client:
        client.expect_alive()


@pytest.mark.parametrize(("method", "path"), [("GET", "/ping"), ("POST", "/pub?topic=t"), ("PUT", "/nothing/here")])
def test_required_tls_refuses_every_plain_http_request(run: Run, method: str, path: str) -> None:
    daemon = run("-tls-required")
    reply = daemon.http(method, path, b"body")
    assert reply.status == 403
    assert reply.body == b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port(daemon)
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["x-nsq-content-type"] == "nsq; version=1.0"


def test_tls_required_for_tcp_leaves_http_open(run: Run) -> None:
    assert run("-tls-required=tcp-https").http("GET", "/ping").body == b"OK"


def test_https_answers_as_http_does(run: Run, certificates: Certificates) -> None:
    daemon = run("-tls-required")
    context = certificates.client_context()
    assert https_get(daemon, context, "/ping") == (200, b"OK")
    status, body = https_get(daemon, context, "/stats?format=json")
    assert (status, json.loads(body)["health"]) == (200, "OK")
    assert https_get(daemon, context, "/nothing") == (404, b'{"message":"NOT_FOUND"}')


def test_https_takes_a_large_body_and_many_requests_on_one_connection(run: Run, certificates: Certificates) -> None:
    daemon = run()
    context = certificates.client_context()
    connection = http.client.HTTPSConnection("127.0.0.1", https_port(daemon), timeout=WAIT_S, context=context)
    for size in (1, 16384, 70_000, 1 << 20):
        connection.request("POST", "/pub?topic=https", bytes(size))
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"OK")
    connection.request("POST", "/pub?topic=https", bytes((1 << 20) + 1))
    assert connection.getresponse().status == 413
    connection.close()
    daemon.wait_for_topic("https", message_count=4)


def test_plain_http_on_the_https_port_is_harmless(run: Run, certificates: Certificates) -> None:
    daemon = run()
    with socket.create_connection(("127.0.0.1", https_port(daemon)), WAIT_S) as plain:
        plain.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        # nsqd answers in plain HTTP that this is HTTPS, pyqd in an alert.
        while plain.recv(4096):
            pass
    assert https_get(daemon, certificates.client_context(), "/ping") == (200, b"OK")


def test_a_failed_handshake_is_reported_in_plain_text(run: Run) -> None:
    with connect(run()) as client:
        assert client.identify(tls_v1=True)["tls_v1"] is True
        client.send(b"this is no TLS at all, and long enough to be a record\n")
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client._socket.recv(4096):
                said += part
    assert b"E_IDENTIFY_FAILED IDENTIFY failed tls: " in said


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_auth_policy_lets_no_client_in_without_a_certificate(
    run: Run, certificates: Certificates, policy: str
) -> None:
    daemon = run(f"-tls-client-auth-policy={policy}", f"-tls-root-ca-file={certificates.authority.path}")
    with connect(daemon) as client:
        client.identify(tls_v1=True)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client.start_tls(certificates.client_context())
    with connect(daemon) as client:
        client.send(b"NOP\n")
        client.expect_fatal("E_INVALID", "cannot NOP in current state (TLS required)")


@pytest.mark.parametrize(
    ("policy", "shown", "welcome"),
    [
        ("require", "client", True),
        ("require", "stranger", True),
        ("require-verify", "client", True),
        ("require-verify", "stranger", False),
        ("something else", "stranger", True),
    ],
)
def test_a_client_auth_policy_selects_the_accepted_certificates(
    run: Run, certificates: Certificates, policy: str, shown: str, welcome: bool
) -> None:
    daemon = run(f"-tls-client-auth-policy={policy}", f"-tls-root-ca-file={certificates.authority.path}")
    context = certificates.client_context(getattr(certificates, shown))
    if welcome:
        with secured(daemon, context) as client:
            client.expect_alive()
        assert https_get(daemon, context, "/ping") == (200, b"OK")
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secured(daemon, context)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            https_get(daemon, context, "/ping")


def client_stats(daemon: Daemon, topic: str) -> dict[str, object]:
    channel = daemon.channel(topic, "c")
    assert channel is not None
    (stats,) = channel["clients"]
    assert isinstance(stats, dict)
    return stats


@pytest.mark.parametrize(
    ("version", "told", "suite"),
    [
        (ssl.TLSVersion.TLSv1, "TLS1.0", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
        (ssl.TLSVersion.TLSv1_2, "TLS1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        (ssl.TLSVersion.TLSv1_3, "TLS1.3", "Unknown 4865"),
    ],
)
def test_stats_name_version_and_suite_as_go_does(
    run: Run, certificates: Certificates, version: ssl.TLSVersion, told: str, suite: str, topic: str
) -> None:
    daemon = run("-tls-min-version=tls1.0")
    with secured(daemon, only(certificates, version)) as client:
        client.sub(topic)
        stats = client_stats(daemon, topic)
    assert (stats["tls_version"], stats["tls_cipher_suite"]) == (told, suite)


def only(certificates: Certificates, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context of a client that speaks one version of TLS."""
    context = certificates.client_context()
    # The client's library must be told to allow old versions.
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        pytest.warns(DeprecationWarning, match="TLSv1")
        if version < ssl.TLSVersion.TLSv1_2
        else contextlib.nullcontext()
    ):
        context.minimum_version = context.maximum_version = version
    if version == ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    elif version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
    return context


def test_a_version_below_the_least_is_refused(run: Run, certificates: Certificates) -> None:
    daemon = run("-tls-min-version=tls1.3")
    with secured(daemon, only(certificates, ssl.TLSVersion.TLSv1_3)) as client:
        client.expect_alive()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secured(daemon, only(certificates, ssl.TLSVersion.TLSv1_2))


def test_answers_that_wait_for_a_sync_come_through_tls(run: Run, certificates: Certificates, topic: str) -> None:
    with secured(run("-sync-every=1"), certificates.client_context()) as client:
        client.send(b"".join(pub(topic, b"%d" % number) for number in range(100)))
        client.expect_ok(100)
        client.sub(topic, rdy_count=100)
        assert len(client.read_messages(100)) == 100


@pytest.mark.slow
def test_a_stalled_handshake_ends_within_seconds_and_delays_no_other_client(
    run: Run, certificates: Certificates
) -> None:
    daemon = run()
    idle = socket.create_connection(("127.0.0.1", https_port(daemon)), WAIT_S)
    with idle, connect(daemon) as client, connect(daemon) as other:
        client.identify(tls_v1=True)
        client.send(b"\x16\x03\x01")
        other.expect_alive()
        assert https_get(daemon, certificates.client_context(), "/ping") == (200, b"OK")
        frame = client.read_frame()
        assert (frame.type, frame.data[:34]) == (ERROR, b"E_IDENTIFY_FAILED IDENTIFY failed ")
        assert frame.data.endswith(b"i/o timeout")
        client.expect_closed()
        if daemon.implementation.name != "nsqd":
            # Over HTTP nsqd waits for ever.
            assert idle.recv(1) == b""


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS"])
def test_plain_http_on_the_https_port_gets_an_explanation(run: Run, method: str) -> None:
    daemon = run()
    with socket.create_connection(("127.0.0.1", https_port(daemon)), timeout=WAIT_S) as plain:
        plain.sendall(f"{method} /ping HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
    assert answer == b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


BAD_FLAGS = {
    "cannot require TLS client connections without TLS key and cert": ["-tls-required"],
    "failed to build TLS config - open nowhere.pem: no such file or directory": [
        "-tls-cert=nowhere.pem",
        "-tls-key=nowhere.key",
    ],
    "failed to build TLS config - open : no such file or directory": ["-tls-cert={server.path}"],
    "failed to build TLS config - tls: failed to find any PEM data in certificate input": [
        "-tls-cert=/dev/null",
        "-tls-key={server.key_path}",
    ],
    "failed to build TLS config - tls: private key does not match public key": [
        "-tls-cert={server.path}",
        "-tls-key={client.key_path}",
    ],
    "failed to build TLS config - failed to append certificate to pool": [
        "-tls-cert={server.path}",
        "-tls-key={server.key_path}",
        "-tls-root-ca-file=/dev/null",
    ],
    "failed to build client TLS config - failed to append certificate to pool": ["-tls-root-ca-file=/dev/null"],
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", BAD_FLAGS)
def test_flags_that_do_not_do_end_the_start(
    implementation: Implementation, certificates: Certificates, tmp_path: Path, reason: str
) -> None:
    flags = [flag.format(server=certificates.server, client=certificates.client) for flag in BAD_FLAGS[reason]]
    command = [*implementation.argv, "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", "-data-path=.", *flags]
    ended = completed(command, tmp_path)
    assert ended.returncode == 1
    assert f"FATAL: failed to instantiate {implementation.name} - {reason}" in ended.stderr


def served_name(daemon: Daemon, certificates: Certificates) -> str:
    """Return the common name in the certificate that the daemon shows over TCP."""
    with secured(daemon, certificates.client_context()) as client:
        subject = client._socket.getpeercert()["subject"]
    return str(dict(pair for (pair,) in subject)["commonName"])


@pytest.mark.slow
@pytest.mark.pyqd_only
def test_sighup_reads_certificates_again_and_drops_no_connection(
    implementation: Implementation, certificates: Certificates, tmp_path: Path
) -> None:
    path, key_path = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        shutil.copy(certificates.directory / f"{name}.pem", path)
        shutil.copy(certificates.directory / f"{name}.key", key_path)

    certify(certificates.directory, "renewed", signer=certificates.authority)
    install("server")
    flags = (f"-tls-cert={path}", f"-tls-key={key_path}", "-https-address=127.0.0.1:0")
    daemon = Daemon(implementation, tmp_path, flags).start()
    try:
        old = secured(daemon, certificates.client_context())
        assert served_name(daemon, certificates) == "server"
        install("renewed")
        reload(daemon, "TLS: reloaded certificates")
        assert served_name(daemon, certificates) == "renewed"
        old.expect_alive()
        path.write_text("no certificate")
        reload(daemon, "ERROR: TLS: cannot reload certificates: ")
        assert served_name(daemon, certificates) == "renewed"
        old.expect_alive()
        old.close()
        daemon.stop()
    finally:
        daemon.kill()


def reload(daemon: Daemon, said: str) -> None:
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: said in daemon.log_text(), said)
