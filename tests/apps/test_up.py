"""`pyqd up`: broker, lookup daemon and web admin as one group of processes."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.apps.up import make_private, pyqctl
from tests.support.http_stub import http_stub
from tests.support.server import REPOSITORY, WAIT_S, free_port, wait_until

# Each test starts a broker, a lookup daemon and a web admin in new interpreters.
pytestmark = pytest.mark.slow

UP_WAIT_S = 60.0
NAMES = ("tcp-port", "http-port", "lookupd-tcp-port", "lookupd-http-port", "admin-port")


class Up:
    """One `pyqd up` on free ports."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.ports = {name: free_port() for name in NAMES}
        self.log = directory / "log"
        ports = [f"--{name}={port}" for name, port in self.ports.items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyqd.apps.cli", "up", f"--data-path={directory / 'data'}", *ports, *flags],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait_up(self) -> None:
        wait_until(lambda: "pyqd is up" in self.text() or self.process.poll() is not None, "up", UP_WAIT_S)
        assert self.process.poll() is None, self.text()

    def answers(self, name: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=WAIT_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/ping")
            return connection.getresponse().read() == b"OK"
        return False

    def ask(self, name: str, method: str, target: str, body: bytes | None = None) -> tuple[int, Any, bytes]:
        """Return status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, target, body)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def commands(self) -> dict[int, str]:
        """Return the command lines of the programs, by process id."""
        found = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(status.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    words = (status.parent / "cmdline").read_bytes().split(b"\0")
                    found[int(status.parent.name)] = b" ".join(words).decode()
        return found

    def children(self) -> dict[str, int]:
        """Return the process ids by module."""
        modules = {pid: re.search(r"pyqd\.apps\.(\w+)", command) for pid, command in self.commands().items()}
        return {module[1]: pid for pid, module in modules.items() if module}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    group = Up(tmp_path)
    try:
        group.wait_up()
        yield group
    finally:
        group.process.terminate()
        group.process.wait(UP_WAIT_S)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
class TestGroup:
    def test_all_programs_run_until_a_signal(self, up: Up) -> None:
        assert [up.answers(name) for name in ("http-port", "lookupd-http-port", "admin-port")] == [True] * 3
        children = up.children()
        assert set(children) == {"daemon", "lookupd", "admin"}
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(UP_WAIT_S) == 0
        assert not any(map(is_alive, children.values()))
        assert "Traceback" not in up.text()

    def test_other_hosts_reach_nothing(self, up: Up) -> None:
        for port in up.ports.values():
            with contextlib.closing(socket.create_connection(("127.0.0.1", port), WAIT_S)):
                pass
            # A listener on all addresses would take this one too.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), WAIT_S)

    def test_the_life_of_a_message_can_be_seen_in_the_web_admin(self, up: Up) -> None:
        reply = up.ask("http-port", "POST", "/pub?topic=greetings", b"hello")
        message_id = reply[1]["X-NSQ-Message-Id"]

        def is_told() -> bool:
            return b"<strong>published</strong>" in up.ask("admin-port", "GET", f"/messages/{message_id}")[2]

        wait_until(is_told, "the story of the message", UP_WAIT_S)
        address = f"127.0.0.1:{up.ports['http-port']}"
        command = [sys.executable, "-m", "pyqd.tools.pyqctl", "trace", "-a", address, "--table", message_id]
        shown = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=UP_WAIT_S, check=True).stdout
        assert f"message {message_id} of topic greetings" in shown

    def test_it_is_told_who_has_changed_what(self, up: Up) -> None:
        assert f"http://127.0.0.1:{up.ports['admin-port']}/messages" in up.text()
        up.ask("http-port", "POST", "/pub?topic=greetings", b"hello")
        action = b'{"action":"pause"}'
        wait_until(
            lambda: up.ask("admin-port", "POST", "/api/topics/greetings", action)[0] == 200, "the topic is known"
        )
        assert "pause_topic topic=greetings by anonymous from 127.0.0.1:" in up.text()
        # Requests would hide it.
        assert "GET /live" not in up.text()

    def test_a_program_that_crashes_starts_again(self, up: Up) -> None:
        before = up.children()
        os.kill(before["daemon"], signal.SIGKILL)
        os.kill(before["admin"], signal.SIGKILL)

        def is_back() -> bool:
            return up.answers("http-port") and up.answers("admin-port") and len(up.children()) == 3

        wait_until(is_back, "broker and admin again", UP_WAIT_S)
        after = up.children()
        assert (after["daemon"] != before["daemon"], after["lookupd"]) == (True, before["lookupd"])

    def test_nothing_stays_if_the_group_is_killed(self, up: Up) -> None:
        children = up.children()
        up.process.kill()
        wait_until(lambda: not any(map(is_alive, children.values())), "the end of all programs", UP_WAIT_S)


def test_a_port_that_is_taken_ends_the_group(tmp_path: Path) -> None:
    taken = free_port()

    with socket.create_server(("127.0.0.1", taken)):
        group = Up(tmp_path, f"--admin-port={taken}")
        assert group.process.wait(UP_WAIT_S) == 1
    assert f"listen (127.0.0.1:{taken}) failed" in group.text()
    assert "pyqd is up" not in group.text()


def test_a_wrong_flag_of_the_broker_is_named_at_once(tmp_path: Path) -> None:
    group = Up(tmp_path, "--mem-queue-sise=1")
    assert group.process.wait(UP_WAIT_S) == 2
    assert "mem-queue-size" in group.text()


def test_another_daemon_at_a_port_ends_the_group(tmp_path: Path) -> None:
    with http_stub(lambda _path, _query: (200, {}, b"OK")) as other:
        port = other.address.rpartition(":")[2]
        group = Up(tmp_path, f"--http-port={port}")
        assert group.process.wait(UP_WAIT_S) == 1
    assert f"pyqd cannot start: another process answers at http://127.0.0.1:{port} already" in group.text()
    assert "pyqd is up" not in group.text()


def test_traces_are_limited_by_default_and_the_start_says_so(up: Up) -> None:
    (shipper,) = [command for command in up.commands().values() if "pyq_trace ship" in command]
    assert "--keep=1d --keep-bytes=1GiB" in shipper
    assert "keeps 1d or 1GiB, whichever is less" in up.text()


def test_a_limit_of_traces_that_is_none_is_refused(tmp_path: Path) -> None:
    group = Up(tmp_path, "--trace-keep=soon")
    assert group.process.wait(UP_WAIT_S) == 2
    assert "'soon' is no duration such as" in group.text()


def test_pyqctl_is_named_as_a_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert pyqctl() == "pyqctl"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert os.path.samefile(pyqctl(), Path(sys.executable).with_name("pyqctl"))


def test_the_traces_of_an_earlier_run_become_private(tmp_path: Path) -> None:
    for name in ("trace.db", "trace.db-wal"):
        (tmp_path / name).touch(0o644)
    make_private(tmp_path / "trace.db")
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
