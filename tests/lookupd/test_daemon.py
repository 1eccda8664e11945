"""Tests of the program pyqlookupd, on its own and beside nsqlookupd."""

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lookupd.conftest import WAIT_S, LookupDaemon, running
from tests.support.preloaded import completed

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "pyqd.apps.lookupd")


def until(check: Any, what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def without_ports(found: Any) -> Any:
    """Return an answer in an order and without the parts that differ from run to run."""
    if isinstance(found, dict):
        volatile = ("remote_address", "id", "last_update", "tombstoned_at")
        return {key: "" if key in volatile else without_ports(value) for key, value in found.items()}
    if isinstance(found, list):
        return sorted((without_ports(each) for each in found), key=repr)
    return found


def conversation(daemon: LookupDaemon) -> list[Any]:
    """Return the answers of a lookup daemon to brokers and HTTP clients, step by step."""
    seen: list[Any] = []

    def look() -> None:
        for target in (
            "/topics",
            "/channels?topic=t",
            "/channels?topic=*",
            "/lookup?topic=t",
            "/lookup?topic=t%23ephemeral",
            "/nodes",
            "/debug",
        ):
            seen.append((target, *map(without_ports, daemon.ask("GET", target))))

    look()
    first, second = daemon.broker(), daemon.broker(broadcast_address="10.1.1.2", topology_zone="z")
    look()
    seen.append(first.send("REGISTER t c", "REGISTER t#ephemeral c#ephemeral", "REGISTER u", "PING"))
    seen.append(second.send("REGISTER t d", "REGISTER u c"))
    look()
    for method, target in (
        ("POST", "/topic/tombstone?topic=t&node=10.1.1.1:4151"),
        ("POST", "/topic/tombstone?topic=none&node=10.1.1.1:4151"),
        ("POST", "/topic/create?topic=made"),
        ("POST", "/channel/create?topic=made2&channel=c"),
        ("POST", "/channel/delete?topic=made2&channel=none"),
        ("POST", "/channel/delete?topic=t&channel=c"),
        ("POST", "/topic/create?topic=b$"),
        ("POST", "/topic/create"),
        ("POST", "/channel/create?topic=made2"),
        ("POST", "/channel/create?topic=made2&channel=b$"),
        ("POST", "/topic/tombstone?topic=t"),
        ("POST", "/topic/delete?topic=unknown"),
        ("GET", "/topic/create?topic=x"),
        ("GET", "/lookup"),
        ("GET", "/lookup?topic=unknown"),
        ("GET", "/channels?topic=unknown"),
        ("GET", "/nothing"),
        ("GET", "/ping"),
        ("GET", "/info"),
    ):
        seen.append((method, target, *map(without_ports, daemon.ask(method, target))))
    look()
    seen.append(
        first.send("UNREGISTER t#ephemeral c#ephemeral", "UNREGISTER u", "UNREGISTER none none", "UNREGISTER t")
    )
    look()
    seen.append(second.send("REGISTER b$"))
    assert second.answer() == b""
    until(lambda: len(daemon.ask("GET", "/nodes")[1]["producers"]) == 1, "a broker has left")
    look()
    seen.append(daemon.ask("POST", "/topic/delete?topic=*"))
    look()
    first.close()
    second.close()
    until(lambda: not daemon.ask("GET", "/nodes")[1]["producers"], "the other has left")
    look()
    return seen


def test_brokers_register_and_clients_look_up(pyqlookupd: LookupDaemon) -> None:
    broker = pyqlookupd.broker()
    assert broker.info["tcp_port"] == pyqlookupd.ports["TCP"]
    assert broker.info["http_port"] == pyqlookupd.ports["HTTP"]
    assert broker.send("REGISTER orders email", "PING") == [b"OK", b"OK"]
    status, found = pyqlookupd.ask("GET", "/lookup?topic=orders")
    assert (status, found["channels"]) == (200, ["email"])
    assert [each["broadcast_address"] for each in found["producers"]] == ["10.1.1.1"]
    broker.close()
    until(lambda: pyqlookupd.ask("GET", "/lookup?topic=orders")[1]["producers"] == [], "the broker has left")


def test_every_answer_is_that_of_nsqlookupd(pyqlookupd: LookupDaemon, nsqlookupd: LookupDaemon) -> None:
    ours, theirs = conversation(pyqlookupd), conversation(nsqlookupd)
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, f"step {step}"


def test_metrics_count_registrations(pyqlookupd: LookupDaemon) -> None:
    broker = pyqlookupd.broker()
    broker.send("REGISTER orders email")
    _, text = pyqlookupd.ask("GET", "/metrics")
    for line in (b"pyqlookupd_producers 1.0", b"pyqlookupd_topics 1.0", b'pyqlookupd_connections{protocol="tcp"} 1.0'):
        assert line in text


def test_a_slow_reader_gets_all_its_answers(pyqlookupd: LookupDaemon) -> None:
    broker, count = pyqlookupd.broker(), 50_000
    broker.socket.setblocking(False)
    unsent = b"PING\n" * count
    received = b""
    deadline_s = time.monotonic() + WAIT_S
    while len(received) < 6 * count:
        assert time.monotonic() < deadline_s
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[broker.socket.send(unsent) :] if unsent else b""
        if not unsent:
            broker.socket.settimeout(WAIT_S)
            received += broker.read(6 * count - len(received))
    assert received == b"\0\0\0\2OK" * count


def test_lookups_omit_brokers_that_are_silent(tmp_path: Path) -> None:
    flags = ("-inactive-producer-timeout=300ms",)
    with running(LookupDaemon(COMMAND, tmp_path / "log", flags)) as daemon:
        broker = daemon.broker()
        broker.send("REGISTER t")
        until(lambda: daemon.ask("GET", "/lookup?topic=t")[1]["producers"] == [], "the broker is inactive")
        broker.send("PING")
        assert len(daemon.ask("GET", "/lookup?topic=t")[1]["producers"]) == 1


def test_brokers_beyond_the_limit_get_an_error(tmp_path: Path) -> None:
    with running(LookupDaemon(COMMAND, tmp_path / "log", ("-max-connections=1",))) as daemon:
        first = daemon.broker()
        with pytest.raises(ValueError, match="Expecting value"):
            daemon.broker()
        assert "limit of 1 connections reached" in daemon.log.read_text()
        assert first.send("PING") == [b"OK"]


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("-version",), 0, "pyqlookupd v"),
        (("-tombstone-lifetim=1s",), 2, "did you mean --tombstone-lifetime?"),
        (("-inactive-producer-timeout=5",), 2, "write 5s"),
        (("-tcp-address=4160",), 1, ":4160"),
    ],
)
def test_a_command_line_is_answered_at_once(flags: tuple[str, ...], code: int, text: str) -> None:
    done = completed([*COMMAND, *flags])
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "[pyqd]" not in done.stderr


def test_a_configuration_file_has_the_keys_of_nsqlookupd(tmp_path: Path) -> None:
    config = tmp_path / "lookupd.toml"
    config.write_text('broadcast_address = "lookup1"\ntombstone_lifetime = "1s"\n')
    with running(LookupDaemon(COMMAND, tmp_path / "log", (f"-config={config}",))) as daemon:
        assert daemon.broker().info["broadcast_address"] == "lookup1"


def test_a_broker_of_nsq_registers(pyqlookupd: LookupDaemon, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = request.config.getoption("nsqd")
    if path is None:
        pytest.skip("no nsqd: NSQD may name one")
    (tmp_path / "data").mkdir()
    with (tmp_path / "nsqd.log").open("wb") as log:
        nsqd = subprocess.Popen(
            [
                path,
                "-tcp-address=127.0.0.1:0",
                "-http-address=127.0.0.1:0",
                f"-data-path={tmp_path / 'data'}",
                "-broadcast-address=127.0.0.1",
                f"-lookupd-tcp-address=127.0.0.1:{pyqlookupd.ports['TCP']}",
            ],
            stderr=log,
        )
    try:
        until(lambda: pyqlookupd.ask("GET", "/nodes")[1]["producers"], "nsqd identifies itself")
        [node] = pyqlookupd.ask("GET", "/nodes")[1]["producers"]
        # With channels here, nsqd asks for them before the first message of the topic.
        pyqlookupd.ask("POST", "/channel/create?topic=orders&channel=email")
        with socket.create_connection(("127.0.0.1", node["tcp_port"]), timeout=WAIT_S) as client:
            client.sendall(b"  V2PUB orders\n\0\0\0\5hello")
            assert client.recv(100).endswith(b"OK")
        found = pyqlookupd.ask("GET", "/lookup?topic=orders")[1]
        assert (found["channels"], [each["tcp_port"] for each in found["producers"]]) == (["email"], [node["tcp_port"]])
        text = (tmp_path / "nsqd.log").read_text()
        assert "TOPIC(orders): new channel(email)" in text
    finally:
        nsqd.terminate()
        nsqd.wait(WAIT_S)
    until(lambda: not pyqlookupd.ask("GET", "/nodes")[1]["producers"], "nsqd has left")


def test_a_process_of_its_own_logs_its_start_and_its_stop(tmp_path: Path) -> None:
    # Not a fork of a process that has loaded the module: the module's name is another one there.
    daemon = LookupDaemon((sys.executable, "-u", "-m", "pyqd.apps.lookupd"), tmp_path / "log")
    with running(daemon):
        pass
    lines = daemon.log.read_text().splitlines()
    assert all(line.startswith("[pyqlookupd] ") for line in lines)
    assert "pyqlookupd v" in lines[0]
