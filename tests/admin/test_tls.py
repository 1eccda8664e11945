"""HTTPS of the web admin itself, and HTTPS and tokens of its requests to brokers."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.admin.conftest import Admin, World
from tests.admin.test_service import refused
from tests.support.certificates import Certificate, Certificates, certify
from tests.support.server import WAIT_S, Daemon, pyqd, wait_until

# Each test starts web admins or brokers of its own.
pytestmark = pytest.mark.slow


def test_pages_over_https_have_cookies_for_https_only(
    world: World, start_admin: Callable[..., Admin], certificates: Certificates
) -> None:
    key = certificates.server
    flags = (f"--lookupd-http-address={world.lookupd}", f"--tls-cert={key.path}", f"--tls-key={key.key_path}")
    admin = start_admin("pyqadmin", *flags, authority=certificates.authority.path)
    page = admin.ask("GET", "/nodes")
    assert (page.status, page.headers["strict-transport-security"]) == (200, "max-age=31536000")
    assert "Secure" in page.headers["set-cookie"].split("; ")
    assert "HTTPS: listening on" in admin.log.read_text()
    plain = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=WAIT_S)
    with contextlib.closing(plain):
        plain.request("GET", "/nodes")
        assert plain.getresponse().status == 400
    wait_until(lambda: "client sent an HTTP request to an HTTPS server" in admin.log.read_text(), "the line in the log")
    # A traceback would fail the stop of this process.


def test_a_renewed_certificate_is_served_after_a_hangup(
    world: World, start_admin: Callable[..., Admin], certificates: Certificates, tmp_path: Path
) -> None:
    paths = tmp_path / "pem", tmp_path / "key"

    def install(key: Certificate) -> None:
        for source, target in zip((key.path, key.key_path), paths, strict=True):
            shutil.copy(source, target)

    def reload(said: str) -> None:
        assert admin.process is not None
        admin.process.send_signal(signal.SIGHUP)
        wait_until(lambda: said in admin.log.read_text(), said)

    install(certificates.server)
    flags = (f"--lookupd-http-address={world.lookupd}", f"--tls-cert={paths[0]}", f"--tls-key={paths[1]}")
    admin = start_admin("pyqadmin", *flags, authority=certificates.authority.path)
    renewed = certify(certificates.directory, "renewed-admin", signer=certificates.authority)
    install(renewed)
    reload("TLS: reloaded certificates")
    served = ssl.get_server_certificate(("127.0.0.1", admin.port), timeout=WAIT_S)
    assert served.strip() in renewed.path.read_text()
    paths[1].write_text("no key")
    reload("TLS: cannot reload certificates: tls: failed to find any PEM data in key input")
    assert ssl.get_server_certificate(("127.0.0.1", admin.port), timeout=WAIT_S) == served
    assert admin.ask("GET", "/ping").body == b"OK"


def test_a_key_that_is_not_the_certificates_is_named_at_the_start(certificates: Certificates) -> None:
    flags = (f"--tls-cert={certificates.server.path}", f"--tls-key={certificates.stranger.key_path}")
    assert "failed to LoadX509KeyPair" in refused("--nsqd-http-address=127.0.0.1:4151", *flags)


def test_brokers_that_require_tls_are_asked_over_https(
    start_admin: Callable[..., Admin], certificates: Certificates, tmp_path: Path
) -> None:
    flags = (
        *certificates.server_flags(),
        "-https-address=127.0.0.1:0",
        "-tls-required",
        "-broadcast-address=127.0.0.1",
    )
    broker = Daemon(pyqd(), tmp_path, flags)
    broker.start()
    try:
        address = f"--nsqd-http-address=127.0.0.1:{broker.http_port}"
        trusting = start_admin("pyqadmin", address, f"--http-client-tls-root-ca-file={certificates.authority.path}")
        assert trusting.get("/api/nodes")["nodes"][0]["http_port"] == broker.http_port
        careless = start_admin("pyqadmin", address, "--http-client-tls-insecure-skip-verify")
        assert careless.get("/api/nodes")["message"] == ""
        answer = start_admin("pyqadmin", address).ask("GET", "/api/nodes")
        assert (answer.status, "certificate" in answer.message) == (502, True)
    finally:
        broker.stop()
