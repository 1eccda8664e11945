"""Requests of web pages of other sites are refused, and all other clients go on without a flag."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.api.conftest import HttpApp
from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as running_lookupd
from tests.support.certificates import Certificates
from tests.support.server import Daemon, Reply, free_port, pyqd, running

WAIT_S = 10.0
PAGES = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Host": "evil.example:4151"},
]
# Over each way that a request may take: the short path, the routes, an answer without a route.
REQUESTS = [
    ("POST", "/pub?topic=t"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/mpub?topic=t&binary=true"),
    ("POST", "/topic/delete?topic=t"),
    ("POST", "/drain"),
    ("GET", "/stats"),
    ("GET", "/config/log_level"),
    ("OPTIONS", "/pub"),
    ("GET", "/STATS"),
    ("GET", "/none"),
]


def asked(connection: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str]) -> Reply:
    connection.request(method, target, b"x" if method == "POST" else None, dict(headers))
    response = connection.getresponse()
    return Reply(response.status, {}, response.read())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--http-allow-host=*.example.org", "--http-allow-origin=https://tool.example.org")
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("sites"), flags)) as found:
        yield found


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection(*daemon.http_address, timeout=WAIT_S)
    yield found
    found.close()


@pytest.mark.parametrize("headers", PAGES, ids=str)
def test_pages_of_other_sites_reach_ping_alone(connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
    for method, target in REQUESTS:
        assert asked(connection, method, target, headers).status == 403, target
    assert asked(connection, "GET", "/ping", headers).body == b"OK"
    # The connection and its short path go on for others.
    assert asked(connection, "POST", "/pub?topic=t", {}).status == 200


def test_a_refused_publish_behind_an_accepted_one_publishes_nothing(daemon: Daemon) -> None:
    def pub(host: str) -> bytes:
        return b"POST /pub?topic=behind HTTP/1.1\r\nHost: %b\r\nContent-Length: 1\r\n\r\nx" % host.encode()

    with socket.create_connection(daemon.http_address, WAIT_S) as client:
        client.sendall(pub("localhost") + pub("evil.example") + pub("localhost"))
        client.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert [answers.count(b" %d " % status) for status in (200, 403)] == [2, 1]
    found = daemon.topic("behind")
    assert found is not None
    assert found["message_count"] == 2


def test_flags_accept_further_hosts_and_origins(connection: http.client.HTTPConnection) -> None:
    for headers in ({"Host": "a.example.org"}, {"Origin": "https://tool.example.org", "Sec-Fetch-Site": "cross-site"}):
        for method, target in (("POST", "/pub?topic=t"), ("GET", "/stats")):
            assert asked(connection, method, target, headers).status == 200


def test_the_answer_and_the_log_name_the_remedy(daemon: Daemon, connection: http.client.HTTPConnection) -> None:
    text = "remedy.example is no name of this server; --http-allow-host=remedy.example accepts it"
    for _ in range(2):
        reply = asked(connection, "GET", "/stats", {"Host": "remedy.example"})
        assert reply.json() == {"message": f"UNKNOWN_HOST: {text}"}
    assert daemon.log_text().count(text) == 1


def test_clients_without_marks_need_no_flag(daemon: Daemon) -> None:
    for head in (
        "POST /pub?topic=t HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
        "POST /pub?topic=t HTTP/1.1\r\nHost:\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        "POST /pub?topic=t HTTP/1.1\r\nHost: nsqd:4151\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        "POST /pub?topic=t HTTP/1.0\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 1\r\n\r\nx",
    ):
        with socket.create_connection(daemon.http_address, WAIT_S) as client:
            client.sendall(head.encode())
            assert client.recv(65536).split()[1] == b"200", head


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_needs_no_flag(daemon: Daemon) -> None:
    for host in ("127.0.0.1", "localhost", socket.gethostname()):
        url = f"http://{host}:{daemon.http_port}/pub?topic=curl"
        command = ["curl", "-sS", "--fail", "--resolve", f"*:{daemon.http_port}:127.0.0.1", "-d", "hello", url]
        assert subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True).stdout == b"OK"


def test_over_a_unix_socket_any_host_is_accepted_and_pages_are_not(tmp_path: Path) -> None:
    path = tmp_path / "http"
    app = HttpApp(tmp_path, str(path))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(WAIT_S)
        client.connect(str(path))
        head = "POST /pub?topic=t HTTP/1.1\r\nHost: any.example\r\nContent-Length: 1\r\n{}\r\nx"
        client.sendall(head.format("").encode())
        assert client.recv(65536).split()[1] == b"200"
        client.sendall(head.format("Sec-Fetch-Site: cross-site\r\n").encode())
        assert client.recv(65536).split()[1] == b"403"
    assert app.stop() == 0


@pytest.mark.slow
def test_over_https_the_certificate_tells_the_host(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    port = free_port()
    flags = (*certificates.server_flags(), f"-https-address=127.0.0.1:{port}")
    with running(Daemon(pyqd(), tmp_path, flags)):
        context = certificates.client_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S, context=context)
        assert asked(connection, "GET", "/stats", {"Host": "queue.example.com"}).status == 200
        assert asked(connection, "GET", "/stats", {"Sec-Fetch-Site": "cross-site"}).status == 403
        connection.close()


def test_a_lookup_daemon_refuses_them_too(tmp_path: Path) -> None:
    command = (*pyqd().argv[:2], "pyqd.apps.lookupd")
    with running_lookupd(LookupDaemon(command, tmp_path / "log", ("--http-allow-host=a.example",))) as daemon:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.ports["HTTP"], timeout=WAIT_S)
        for headers in PAGES:
            for method, target in (("GET", "/nodes"), ("POST", "/topic/delete?topic=t")):
                assert asked(connection, method, target, headers).status == 403
            assert asked(connection, "GET", "/ping", headers).status == 200
        assert asked(connection, "GET", "/nodes", {"Host": "a.example"}).status == 200
        connection.close()
