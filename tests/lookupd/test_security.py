"""TLS and logins over HTTP of pyqlookupd, and `--check-config`."""

import contextlib
import http.client
import json
import os
import signal
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyqd.apps import lookupd
from pyqd.lookupd.options import LOOKUP_DAEMON
from tests.lookupd.conftest import WAIT_S, LookupDaemon, running
from tests.support import server
from tests.support.certificates import Certificates
from tests.support.preloaded import completed
from tests.support.server import free_port, wait_until

# Most tests start a lookup daemon or a broker with TLS.
pytestmark = pytest.mark.slow

ADMIN_TOKEN = "admin-admin-admin-admin"
READ_TOKEN = "read-read-read-read-read"


@contextlib.contextmanager
def secured(directory: Path, *flags: str) -> Iterator[tuple[LookupDaemon, int]]:
    """Run a lookup daemon with flags. Yields: the daemon and the port of HTTPS."""
    https_port = free_port()
    command = (sys.executable, "-m", "pyqd.apps.lookupd", f"--https-address=127.0.0.1:{https_port}")
    with running(LookupDaemon(command, directory / "pyqlookupd.log", flags)) as daemon:
        yield daemon, https_port


def ask(
    port: int, method: str, target: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, Any]:
    """Return status and JSON of an answer; over HTTPS with a context."""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S, context=context)
    with contextlib.closing(connection):
        connection.request(method, target, headers=dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] == b"{" else text


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_https_serves_the_same_registry_as_http(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with secured(tmp_path, *certificates.server_flags()) as (daemon, https_port):
        context = certificates.client_context()
        assert ask(https_port, "POST", "/topic/create?topic=t", context=context) == (200, b"")
        assert daemon.ask("GET", "/topics") == (200, {"topics": ["t"]})
        assert ask(https_port, "GET", "/topics", context=context) == (200, {"topics": ["t"]})


def test_http_is_refused_if_tls_is_required_and_names_the_port_of_https(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with secured(tmp_path, *certificates.server_flags(), "--tls-required") as (daemon, https_port):
        assert daemon.ask("GET", "/topics") == (403, {"message": "TLS_REQUIRED", "https_port": https_port})
        assert ask(https_port, "GET", "/topics", context=certificates.client_context()) == (200, {"topics": []})


def test_without_a_certificate_there_is_no_listener_for_https(tmp_path: Path) -> None:
    with secured(tmp_path) as (daemon, https_port):
        assert daemon.ask("GET", "/topics")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            ask(https_port, "GET", "/topics")


def test_tokens_grant_reading_and_administration(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{ADMIN_TOKEN} admin\n{READ_TOKEN} status\n")
    tokens.chmod(0o600)
    with secured(tmp_path, f"--http-auth-token-file={tokens}") as (daemon, _):
        port = daemon.ports["HTTP"]
        assert ask(port, "GET", "/ping")[0] == 200
        for target in ("/topics", "/nodes", "/lookup?topic=t", "/metrics", "/debug"):
            assert ask(port, "GET", target)[0] == 401
            assert ask(port, "GET", target, bearer(READ_TOKEN))[0] in (200, 404)
        for target in ("/topic/create?topic=t", "/topic/tombstone?topic=t&node=n:1", "/topic/delete?topic=t"):
            assert ask(port, "POST", target)[0] == 401
            assert ask(port, "POST", target, bearer(READ_TOKEN))[0] == 403
            assert ask(port, "POST", target, bearer(ADMIN_TOKEN))[0] == 200
        # Brokers and consumers send no token.
        tokens.write_text(f"{ADMIN_TOKEN} admin\nanonymous status\n")
        assert daemon.process is not None
        os.kill(daemon.process.pid, signal.SIGHUP)
        wait_until(lambda: ask(port, "GET", "/topics")[0] == 200, "the tokens are read again")
        assert ask(port, "POST", "/topic/create?topic=t")[0] == 401
        broker = daemon.broker()
        assert broker.send("REGISTER t c") == [b"OK"]
        assert ask(port, "GET", "/channels?topic=t") == (200, {"channels": ["c"]})


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_broker_asks_for_channels_over_https_if_it_must(tmp_path: Path, is_trusted: bool) -> None:
    certificates = Certificates(tmp_path)
    with secured(tmp_path, *certificates.server_flags(), "--tls-required", "--broadcast-address=127.0.0.1") as (
        lookup,
        https_port,
    ):
        context = certificates.client_context()
        topics = ("t", "u", "v")
        for topic in topics:
            target = f"/channel/create?topic={topic}&channel=c"
            assert ask(https_port, "POST", target, context=context)[0] == 200
        trust = [f"--tls-root-ca-file={certificates.authority.path}"] if is_trusted else []
        flags = [f"--lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}", *trust]
        with server.running(server.Daemon(server.pyqd(), tmp_path / "broker", flags)) as broker:
            for topic in topics:
                assert broker.http("POST", f"/pub?topic={topic}", b"x").status == 200
            if is_trusted:
                # A loaded machine may not shake hands in time for the first one.
                wait_until(lambda: broker.channel("v", "c") is not None, "the channel was created")
            else:
                wait_until(lambda: "cannot ask for the channels" in broker.log_text(), "the failure is logged")
                # A loaded machine may not come to the certificate in time.
                texts = ("certificate verify failed", "no answer in time")
                assert any(text in broker.log_text() for text in texts)
                if texts[0] in broker.log_text():
                    assert "--tls-root-ca-file must hold the authority" in broker.log_text()
                assert all(broker.channel(topic, "c") is None for topic in topics)


def test_the_log_of_a_broker_says_how_a_lookup_daemon_with_tokens_lets_it_read(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{ADMIN_TOKEN} admin\n")
    tokens.chmod(0o600)
    flags = (f"--http-auth-token-file={tokens}", "--broadcast-address=127.0.0.1")
    with secured(tmp_path, *flags) as (lookup, _):
        flag = f"--lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}"
        with server.running(server.Daemon(server.pyqd(), tmp_path / "broker", [flag])) as broker:
            broker.http("POST", "/topic/create?topic=t")
            wait_until(lambda: "status 401; brokers send no token" in broker.log_text(), "the failure is logged")
            assert "'anonymous status'" in broker.log_text()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--tls-cert=no.pem", "--tls-key=no.pem"], "failed to build TLS config - open no.pem: no such file"),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--http-auth-token-file=no"], "failed to instantiate pyqlookupd - failed to read tokens - open no: no such"),
        (["--tcp-address=a:70000"], "listen (a:70000) failed - listen tcp: address 70000: invalid port"),
        (["--max-connections=-1"], "--max-connections must not be negative"),
    ],
)
def test_obstacles_end_the_start_and_the_check_of_the_configuration(
    flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lookupd.main(["--check-config", *flags]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert text in err
    started = completed([sys.executable, "-m", "pyqd.apps.lookupd", *flags])
    assert started.returncode == 1
    assert text in started.stderr


def test_the_printed_configuration_is_a_file_with_the_same_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--http-address=127.0.0.1:1", "--tombstone-lifetime=1m30s", *Certificates(tmp_path).server_flags()]
    assert lookupd.main(["--check-config", *given, "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert err == "warning: --verbose has no effect; use --log-level\n"
    path = tmp_path / "pyqlookupd.toml"
    path.write_text(out)
    assert 'tombstone_lifetime = "1m30s" ' in out
    again = LOOKUP_DAEMON.parse_settings([f"--config={path}"]).options()
    assert again == LOOKUP_DAEMON.parse_settings([*given, f"--config={path}"]).options()
