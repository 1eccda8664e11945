"""Flags, base path, notifications and Graphite of the web admin; the same tests run on nsqadmin where it can."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.admin.conftest import Admin, World
from tests.support.http_stub import http_stub, json_answer, lookup_answers
from tests.support.http_target import Answer, HttpTarget, http_target
from tests.support.preloaded import completed
from tests.support.server import free_port, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

BOTH = ("pyqadmin", "nsqadmin")
ADDRESS = "--nsqd-http-address=127.0.0.1:4151"


def refused(*flags: str) -> str:
    """Return what pyqadmin says when it does not start."""
    command = [sys.executable, "-m", "pyqd.apps.admin", "--http-address=127.0.0.1:0", *flags]
    done = completed(command)
    assert done.returncode == 1, done
    line = done.stderr.splitlines()[-1]
    assert line.startswith("[pyqadmin] ")
    return line.partition("FATAL: ")[2]


class TestFlags:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ((), "--nsqd-http-address or --lookupd-http-address required"),
            ((ADDRESS, "--lookupd-http-address=a:1"), "use --nsqd-http-address or --lookupd-http-address not both"),
            (
                (ADDRESS, "--http-client-tls-cert=x"),
                "--http-client-tls-key must be specified with --http-client-tls-cert",
            ),
            (("--nsqd-http-address=http://a:1",), "failed to resolve --nsqd-http-address (http://a:1)"),
            (
                (ADDRESS, "--allow-config-from-cidr=x"),
                "failed to parse --allow-config-from-cidr (x) - invalid CIDR address",
            ),
            ((ADDRESS, "--proxy-graphite", "--graphite-url=x"), "failed to parse --graphite-url (x)"),
            ((ADDRESS, "--tls-cert=x"), "--tls-cert and --tls-key must be given together"),
            ((ADDRESS, "--users-file=/nowhere"), "failed to read --users-file /nowhere"),
            ((ADDRESS, "--http-client-token-file=/nowhere"), "failed to read --http-client-token-file"),
            ((ADDRESS, "--oidc-issuer=https://a"), "--oidc-issuer needs --oidc-client-id"),
        ],
    )
    def test_wrong_flags_are_named(self, flags: tuple[str, ...], said: str) -> None:
        assert said in refused(*flags)

    def test_a_taken_port_is_named(self, world: World) -> None:
        taken = world.brokers[0].http_port
        said = refused(ADDRESS, f"--http-address=127.0.0.1:{taken}")
        assert f"listen (127.0.0.1:{taken}) failed" in said

    @pytest.mark.parametrize("name", BOTH)
    def test_a_configuration_file_of_nsqadmin_works(
        self, world: World, start_admin: Callable[..., Admin], tmp_path: Path, name: str
    ) -> None:
        file = tmp_path / "nsqadmin.cfg"
        file.write_text(f'nsqlookupd_http_addresses = ["{world.lookupd}"]\nstatsd_interval = "30s"\n')
        admin = start_admin(name, f"--config={file}")
        assert admin.get("/config/statsd_interval") == 30_000_000_000
        assert admin.get("/config/nsqlookupd_http_addresses") == [world.lookupd]


@pytest.mark.parametrize("name", BOTH)
def test_all_paths_begin_with_the_base_path(world: World, start_admin: Callable[..., Admin], name: str) -> None:
    admin = start_admin(
        name, f"--lookupd-http-address={world.lookupd}", "--base-path=/nsq/admin/", ping="/nsq/admin/ping"
    )
    assert admin.ask("GET", "/nsq/admin/api/topics").status == 200
    assert admin.ask("GET", "/api/topics").status == 404
    page = admin.ask("GET", "/nsq/admin")
    assert (page.status, page.headers["content-type"].split(";")[0]) == (200, "text/html")
    moved = admin.ask("GET", "/nsq/admin/")
    assert (moved.status, moved.headers["location"]) == (301, "/nsq/admin")


@pytest.fixture
def endpoint() -> Iterator[HttpTarget]:
    """A server that takes notifications, and whose answers do not matter."""
    with http_target(lambda _taken: Answer(500)) as target:
        yield target


@pytest.fixture
def babbler() -> Iterator[str]:
    """URL of a server whose answers are not HTTP."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"garbage\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class TestEmptyCluster:
    def test_a_cluster_without_brokers_says_how_to_register_one(self, start_admin: Callable[..., Admin]) -> None:
        with http_stub(lookup_answers({})) as lookupd:
            admin = start_admin("pyqadmin", f"--lookupd-http-address={lookupd.address}")
            wait_until(lambda: b"No broker is registered" in admin.ask("GET", "/").body, "the first poll")
            for path in ("/", "/health"):
                page = admin.ask("GET", path).body
                assert (b"No broker is registered" in page, b"failed to query" in page) == (True, False)

    def test_brokers_that_do_not_answer_are_not_taken_for_none(self, start_admin: Callable[..., Admin]) -> None:
        admin = start_admin("pyqadmin", f"--nsqd-http-address=127.0.0.1:{free_port()}")
        wait_until(lambda: b"failed to query any nsqd" in admin.ask("GET", "/").body, "the first poll")
        page = admin.ask("GET", "/").body
        assert (b"No broker is registered" in page, b"There is no topic yet" in page) == (False, False)


class TestNotifications:
    @pytest.mark.parametrize("name", BOTH)
    def test_each_change_is_told(
        self, world: World, start_admin: Callable[..., Admin], endpoint: HttpTarget, topic: str, name: str
    ) -> None:
        world.publish(topic, {0: 0}, channel="c")
        flags = (
            f"--lookupd-http-address={world.lookupd}",
            f"--notification-http-endpoint={endpoint.url}/told",
        )
        admin = start_admin(name, *flags)
        path = f"/api/topics/{topic}/c"
        headers = {"Authorization": "Basic YWRhOng=", "User-Agent": "tests/1"}
        assert admin.ask("POST", f"{path}?a=b", b'{"action":"pause"}', headers).status == 200
        assert admin.ask("DELETE", path).status == 200
        wait_until(lambda: len(endpoint.requests) == 2, "two notifications")
        assert {each.headers["Content-Type"] for each in endpoint.requests} == {"application/json"}
        first, second = map(json.loads, endpoint.bodies)
        assert {key: first[key] for key in ("action", "topic", "channel", "user", "user_agent", "url")} == {
            "action": "pause_channel",
            "topic": topic,
            "channel": "c",
            "user": "ada",
            "user_agent": "tests/1",
            "url": f"http://127.0.0.1:{admin.port}{path}?a=b",
        }
        assert first["remote_ip"].startswith("127.0.0.1:")
        assert {"timestamp", "via"} <= first.keys()
        assert (second["action"], "user" in second, "node" in second) == ("delete_channel", False, False)

    def test_a_host_name_that_cannot_exist_leaves_the_pages_of_the_other_brokers(
        self, world: World, start_admin: Callable[..., Admin], topic: str
    ) -> None:
        world.publish(topic, {0: 3})
        with http_stub(lookup_answers({topic: ["a..b:4151", world.addresses()[0]]})) as stub:
            admin = start_admin("pyqadmin", f"--lookupd-http-address={stub.address}")
            for path in ("/nodes", "/api/counter", f"/topics/{topic}", "/api/topics"):
                assert admin.ask("GET", path).status == 200, path
            assert admin.get(f"/api/topics/{topic}")["message_count"] == 3
            assert "Traceback" not in admin.log.read_text()

    @pytest.mark.parametrize("kind", ["not HTTP", "unreachable"])
    def test_a_failure_is_an_error_in_the_log_and_keeps_no_later_notification_back(
        self, world: World, start_admin: Callable[..., Admin], babbler: str, topic: str, kind: str
    ) -> None:
        world.publish(topic, {0: 0})
        url = babbler if kind == "not HTTP" else f"http://127.0.0.1:{free_port()}/"
        flags = (f"--lookupd-http-address={world.lookupd}", f"--notification-http-endpoint={url}")
        admin = start_admin("pyqadmin", *flags)
        for action in ("pause", "unpause"):
            assert admin.send("POST", f"/api/topics/{topic}", {"action": action}).status == 200
        wait_until(lambda: admin.log.read_text().count("failed to send a notification") == 2, "both errors")
        assert admin.ask("GET", "/ping").status == 200


class TestGraphite:
    @pytest.mark.parametrize("name", BOTH)
    def test_rates_are_read_and_pictures_are_passed_on(
        self, world: World, start_admin: Callable[..., Admin], name: str
    ) -> None:
        with http_stub(lambda path, query: json_answer([{"target": "t", "datapoints": [[600, 1]]}])) as graphite:
            admin = start_admin(
                name,
                f"--lookupd-http-address={world.lookupd}",
                f"--graphite-url=http://{graphite.address}",
                "--proxy-graphite",
            )
            assert admin.get("/api/graphite?metric=rate&target=x") == {"rate": "10.00"}
            query = {"from": "-120sec", "until": "-60sec", "format": "json", "target": "x"}
            assert graphite.requests == [("/render", query)]
            assert admin.get("/render?target=y")[0]["target"] == "t"
            assert graphite.requests[1] == ("/render", {"target": "y"})

    @pytest.mark.parametrize("name", BOTH)
    def test_wrong_questions_and_a_silent_graphite_are_errors(
        self, world: World, start_admin: Callable[..., Admin], name: str
    ) -> None:
        url = f"--graphite-url=http://127.0.0.1:{free_port()}"
        admin = start_admin(name, f"--lookupd-http-address={world.lookupd}", url)
        for query, status, said in (
            ("metric=depth&target=x", 400, "INVALID_ARG_METRIC"),
            ("metric=rate", 400, "INVALID_ARG_TARGET"),
            ("metric=rate&target=x", 500, "INTERNAL_ERROR"),
        ):
            answer = admin.ask("GET", f"/api/graphite?{query}")
            assert (answer.status, answer.message) == (status, said)
        assert admin.ask("GET", "/render").status == 404

    def test_an_answer_that_is_not_http_is_a_failure_of_graphite(
        self, world: World, start_admin: Callable[..., Admin], babbler: str
    ) -> None:
        flags = (f"--lookupd-http-address={world.lookupd}", f"--graphite-url={babbler}", "--proxy-graphite")
        admin = start_admin("pyqadmin", *flags)
        answer = admin.ask("GET", "/api/graphite?metric=rate&target=x")
        assert (answer.status, answer.message) == (500, "INTERNAL_ERROR")
        assert admin.ask("GET", "/render?target=x").status == 502
        assert "Traceback" not in admin.log.read_text()


class TestLive:
    @pytest.mark.slow
    def test_browsers_that_go_away_leave_nothing_behind(self, world: World, start_admin: Callable[..., Admin]) -> None:
        admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}")
        wait_until(lambda: b"asked for the first time" not in admin.ask("GET", "/").body, "the first poll")
        before = descriptors_of(admin)
        streams = [socket.create_connection(("127.0.0.1", admin.port)) for _ in range(50)]
        for stream in streams:
            stream.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in stream.recv(4096)
        assert descriptors_of(admin) > before + 40
        for stream in streams:
            stream.close()
        # The next events find nobody.
        wait_until(lambda: descriptors_of(admin) < before + 10, "closed connections", 40)


def descriptors_of(admin: Admin) -> int:
    assert admin.process is not None
    return len(os.listdir(f"/proc/{admin.process.pid}/fd"))
