"""/debug: answers that nsqd gives too, and the diagnostics of a CPython process."""

from __future__ import annotations

import pytest

from tests.support.needs import skip_outside_ci
from tests.support.server import Daemon, Reply
from tests.support.two_servers import Connect

TEXT = "text/plain; charset=utf-8"
RATE = "/debug/setblockrate"
PROFILES = ("heap", "goroutine", "block", "threadcreate")

pyqd_only = pytest.mark.pyqd_only("Go's formats there")


def expect_text(reply: Reply, status: int = 200) -> str:
    assert (reply.status, reply.headers["content-type"]) == (status, TEXT), reply
    assert "x-nsq-content-type" not in reply.headers
    return reply.body.decode()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "cmdline", "symbol", *(f"{name}?debug=1" for name in PROFILES)])
def test_the_paths_of_pprof_answer_with_text(server: Daemon, path: str) -> None:
    reply = server.http("GET", f"/debug/pprof/{path}")
    assert reply.status == 200
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-type"].startswith(("text/plain", "text/html"))
    assert "x-nsq-content-type" not in reply.headers


def test_the_index_is_a_directory(server: Daemon) -> None:
    reply = server.http("GET", "/debug/pprof")
    assert (reply.status, reply.headers["location"]) == (301, "/debug/pprof/")
    for path in ("mutex", "trace", "allocs", "nothing"):
        assert server.http("GET", f"/debug/pprof/{path}").status == 404


def test_the_command_line_is_shown_with_nul_separators(server: Daemon) -> None:
    words = server.http("GET", "/debug/pprof/cmdline").body.split(b"\0")
    assert f"-data-path={server.data_path}".encode() in words


@pytest.mark.parametrize(
    ("rate", "reason"),
    [("x", "invalid syntax"), ("", "invalid syntax"), ("1.5", "invalid syntax"), ("9" * 20, "value out of range")],
)
def test_a_block_rate_that_is_no_number_is_refused(server: Daemon, rate: str, reason: str) -> None:
    text = expect_text(server.http("PUT", f"{RATE}?rate={rate}"), 400)
    assert text == f'invalid block rate : strconv.Atoi: parsing "{rate}": {reason}'


@pyqd_only
def test_a_block_rate_and_freeing_memory_are_answered(server: Daemon) -> None:
    # nsqd does it, and says 500 by mistake.
    assert server.http("PUT", f"{RATE}?rate=5").status == 200
    assert server.http("PUT", RATE).status == 400
    assert expect_text(server.http("POST", "/debug/freememory")).endswith(" bytes returned\n")


@pytest.mark.slow
@pyqd_only
def test_the_heap_is_shown_by_type_and_if_traced_by_line(server: Daemon) -> None:
    text = expect_text(server.http("GET", "/debug/heap"))
    assert "heap_in_use_bytes" in text
    assert "builtins.dict\n" in text
    assert "not traced" in text
    assert server.http("POST", "/debug/heap/start?frames=0").status == 400
    expect_text(server.http("POST", "/debug/heap/start?frames=3"))
    try:
        server.http("POST", "/pub?topic=traced", b"x")
        assert " bytes traced" in expect_text(server.http("GET", "/debug/heap?lines=5"))
    finally:
        expect_text(server.http("POST", "/debug/heap/stop"))
    assert "not traced" in expect_text(server.http("GET", "/debug/heap"))


@pyqd_only
def test_greenlets_are_shown_with_their_stacks_equal_ones_together(
    server: Daemon, connect: Connect, topic: str
) -> None:
    for _ in range(3):
        connect().sub(topic, "c")
    text = expect_text(server.http("GET", "/debug/greenlets"))
    assert "IOLoop of a client, in compiled code\n" in text
    assert "messagePump of a client, in compiled code\n" in text
    assert "housekeeper.py" in text
    assert "MainThread\n" in text


@pyqd_only
@pytest.mark.parametrize("query", ["seconds=0", "seconds=x", "seconds=-1", "rate=0", "seconds=", "seconds=1%zz"])
def test_a_profile_of_no_time_is_refused(server: Daemon, query: str) -> None:
    assert server.http("GET", f"/debug/profile?{query}").status == 400


@pyqd_only
@pytest.mark.slow
def test_a_profile_is_an_image(server: Daemon) -> None:
    reply = server.http("GET", "/debug/profile?seconds=1")
    if reply.status == 501 or (reply.status == 503 and b"may not trace" in reply.body):
        skip_outside_ci(reply.body.decode().strip())
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "image/svg+xml"
    assert b"<svg" in reply.body
