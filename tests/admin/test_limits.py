"""Limits of the web admin before a login: sizes, times, connections, and requests that proxies read otherwise."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from pyqd.apps.web_admin import SETTINGS
from tests.admin.conftest import PASSWORDS, Admin, World
from tests.admin.test_access import Browser, basic
from tests.support.ambiguous_http import AMBIGUOUS
from tests.support.server import WAIT_S, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

LOGIN = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"


def connection_to(admin: Admin) -> socket.socket:
    return socket.create_connection(("127.0.0.1", admin.port), timeout=WAIT_S)


def answer_to(admin: Admin, text: bytes) -> bytes:
    """Return the answer to bytes, to the end of the connection."""
    with connection_to(admin) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(9999), b""))


def memory_bytes(admin: Admin) -> int:
    assert admin.process is not None
    with open(f"/proc/{admin.process.pid}/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_requests_that_proxies_may_read_otherwise_are_refused(open_admin: Admin) -> None:
    for name, headers in AMBIGUOUS.items():
        answer = answer_to(open_admin, b"POST /login HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n" + b"x" * 13)
        assert answer.startswith(b"HTTP/1.1 400 "), name


@pytest.mark.parametrize(
    "header",
    [
        b"Host: x\nX-Forwarded-User: ada",
        b"X-A: b\rX-Forwarded-User: ada",
        b"X-A: b\r\n X-Forwarded-User: ada",
        b"X-A: b\r\n\tX-Forwarded-User: ada",
        b"X-Forwarded-User : ada",
        b"X-A: \x00",
    ],
)
def test_a_header_that_hides_another_one_is_refused(open_admin: Admin, header: bytes) -> None:
    answer = answer_to(open_admin, b"GET /ping HTTP/1.1\r\nHost: x\r\n" + header + b"\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_large_bodies_before_the_login_hold_no_memory(closed: Admin) -> None:
    before = memory_bytes(closed)
    with ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(connection_to(closed))
            connection.sendall(LOGIN + b"Content-Length: 16000000\r\n\r\n" + b"x" * 100_000)
        for _ in range(60):
            connection = stack.enter_context(connection_to(closed))
            connection.sendall(LOGIN + b"Content-Length: 1000000\r\n\r\n" + b"x" * 990_000)
        assert closed.ask("GET", "/ping").status == 200
        assert memory_bytes(closed) - before < 150_000_000


def test_a_large_message_is_published_by_a_user_and_by_nobody_else(world: World, closed: Admin, topic: str) -> None:
    world.publish(topic, {0: 0}, channel="c")
    browser = Browser(closed)
    browser.log_in("ada")
    browser.get(f"/topics/{topic}/-/publish")
    fields = {"node": world.addresses()[0], "body": "é" * 500_000}
    stranger = Browser(closed)
    stranger.page = browser.page
    assert stranger.post(f"/topics/{topic}/-/publish", **fields).status in (303, 413)
    assert browser.post(f"/topics/{topic}/-/publish", **fields).status == 303
    # Three megabytes in the form, and one as a message.
    assert (world.brokers[0].channel(topic, "c") or {})["depth"] == 1


def test_slow_headers_end_in_time_and_connections_are_counted(world: World, start_admin: Callable[..., Admin]) -> None:
    admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", "--max-http-connections=20")
    with ExitStack() as stack:
        started_s = time.monotonic()
        slow = [stack.enter_context(connection_to(admin)) for _ in range(20)]
        for each in slow:
            each.sendall(b"GET / HTTP/1.1\r\n")
        refused = stack.enter_context(connection_to(admin))
        assert refused.recv(999).startswith(b"HTTP/1.1 503 ")
        wait_until(lambda: drips_in_vain(slow), "the end of the slow headers", SETTINGS.header_s + WAIT_S)
        assert time.monotonic() - started_s < SETTINGS.header_s + WAIT_S / 2
    assert admin.ask("GET", "/ping").status == 200


def drips_in_vain(connections: list[socket.socket]) -> bool:
    """Send another byte on each connection. Returns: whether all of them are closed."""
    time.sleep(0.2)
    for each in list(connections):
        try:
            each.sendall(b"x")
        except OSError:
            connections.remove(each)
    return not connections


def test_credentials_in_a_header_do_not_make_bodies_larger(closed: Admin) -> None:
    body = b"csrf=x&body=" + b"x" * (4 << 20)
    headers = {**basic("ada", PASSWORDS["ada"]), "Content-Type": "application/x-www-form-urlencoded"}
    assert closed.ask("POST", "/topics/t/-/publish", body, headers).status == 413
