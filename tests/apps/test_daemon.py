"""Command line, start and stop of the daemon, and the state that a clean stop leaves for the next start."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.nsq import Client, Message
from tests.support.preloaded import program_environment
from tests.support.readiness import is_readable
from tests.support.server import Daemon, free_port, pyqd, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.flags("-msg-timeout=2s")]

WAIT_S = 20.0
COMMAND = (sys.executable, "-m", "pyqd.apps.daemon")


def run(*flags: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the daemon to its end."""
    return subprocess.run(
        [*COMMAND, *flags],
        cwd=directory,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def started(log_path: Path, *flags: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start the daemon, with its log in a file."""
    with log_path.open("wb") as log:
        return subprocess.Popen([*COMMAND, *flags], cwd=directory, env=program_environment(), stderr=log)


def connect(daemon: Daemon) -> Client:
    return Client(daemon.tcp_address)


def test_the_version_goes_to_standard_output(tmp_path: Path) -> None:
    result = run("--version", directory=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("pyqd v")


def test_an_unknown_flag_is_named_and_the_exit_code_is_2(tmp_path: Path) -> None:
    result = run("-no-such-flag", directory=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "pyqd: flag provided but not defined: -no-such-flag (pyqd --help lists all flags)\n"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-node-id=1024"], "failed to instantiate pyqd - --node-id must be [0,1024)"),
        (["-data-path=a b"], "a b'; --data-path names another"),
        (["-data-path=file"], "/file is not a directory; --data-path names another"),
        (["-tcp-address=127.0.0.1:70000"], "listen (127.0.0.1:70000) failed"),
        (
            ["-tcp-address=4150"],
            "listen (4150) failed - listen tcp: address 4150: missing colon before the port; write :4150",
        ),
    ],
)
def test_a_failed_start_logs_one_fatal_line_and_exits_with_1(tmp_path: Path, flags: list[str], text: str) -> None:
    (tmp_path / "file").touch()
    result = run(*flags, "-http-address=", directory=tmp_path)
    assert result.returncode == 1
    fatal = [line for line in result.stderr.splitlines() if "FATAL" in line]
    assert len(fatal) == 1
    assert text in fatal[0]
    assert "Traceback" not in result.stderr


def test_an_address_that_is_none_leaves_the_data_path_as_it_was(tmp_path: Path) -> None:
    result = run("-http-address=4151", "-tcp-address=127.0.0.1:0", directory=tmp_path)
    assert result.returncode == 1
    assert "write :4151" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_second_daemon_on_the_same_data_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    result = run(f"-data-path={daemon.data_path}", "-http-address=", directory=tmp_path)
    assert result.returncode == 1
    assert "cannot flock directory" in result.stderr
    assert "possibly in use by another instance" in result.stderr


def test_a_taken_port_is_named(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    address = f"127.0.0.1:{daemon.tcp_port}"
    result = run(f"-tcp-address={address}", "-data-path=other", "-http-address=", directory=tmp_path)
    assert result.returncode == 1
    assert f"listen ({address}) failed - listen tcp {address}: bind: address already in use" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: int) -> None:
    port = free_port()
    process = started(tmp_path / "log", f"-tcp-address=127.0.0.1:{port}", "-http-address=", directory=tmp_path)
    try:
        wait_until(lambda: b"TCP: listening" in (tmp_path / "log").read_bytes(), "the daemon listens", WAIT_S)
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith("INFO: NSQ: bye")


def test_a_publish_that_is_read_during_the_stop_is_not_stored(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.apps.late_publish", str(tmp_path)],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "1 1\n"), result.stderr


def said_at_the_start(tmp_path: Path, *flags: str) -> str:
    """Start a daemon in tmp_path/here and stop it. Returns: its log."""
    here = tmp_path / "here"
    here.mkdir(exist_ok=True)
    log_path = tmp_path / "start.log"
    process = started(log_path, "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", *flags, directory=here)
    try:
        wait_until(lambda: b"HTTP: listening" in log_path.read_bytes(), "the daemon listens", WAIT_S)
    finally:
        process.terminate()
        process.wait(WAIT_S)
    return log_path.read_text()


def test_the_start_logs_the_data_path_and_the_protocols(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    said = said_at_the_start(tmp_path, "-data-path=../data")
    assert f" INFO: data path: {tmp_path}/data\n" in said
    assert " INFO: PROTOCOL: V2 of NSQ, compatible with nsqd 1.3.0\n" in said
    assert " INFO: TCP: listening on 127.0.0.1:" in said
    assert "curl" not in said


def test_the_current_directory_is_taken_with_a_warning_the_first_time(tmp_path: Path) -> None:
    text = f"data path: {tmp_path}/here, the current directory; --data-path names another\n"
    assert f" WARNING: {text}" in said_at_the_start(tmp_path)
    assert f" INFO: {text}" in said_at_the_start(tmp_path)


@pytest.mark.parametrize("http", ["0.0.0.0:0", "[::1]:0", "web.sock"])
def test_on_a_terminal_the_start_names_a_command_that_publishes(tmp_path: Path, http: str) -> None:
    terminal, stderr = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "-tcp-address=127.0.0.1:0", f"-http-address={http}"],
        cwd=tmp_path,
        env=program_environment(),
        stderr=stderr,
    )
    os.close(stderr)
    try:
        said = b""
        while b"publish a first message with: " not in said or not said.endswith(b"\n"):
            assert is_readable(terminal, WAIT_S), said
            said += os.read(terminal, 65536)
        command = said.partition(b"publish a first message with: ")[2].splitlines()[0].decode()
        published = subprocess.run(command, shell=True, capture_output=True, timeout=WAIT_S, check=True)
        assert published.stdout == b"OK"
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def takes_connections(path: Path) -> bool:
    """Return whether something listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_it_serves_unix_sockets_logs_their_full_paths_and_removes_them(tmp_path: Path) -> None:
    tcp_path, http_path = tmp_path / "tcp.sock", tmp_path / "http.sock"
    process = started(tmp_path / "log", "-tcp-address=tcp.sock", f"-http-address={http_path}", directory=tmp_path)
    try:
        # The HTTP listener is the last to start; its file exists shortly before it accepts connections.
        wait_until(lambda: takes_connections(http_path), "the daemon listens", WAIT_S)
        web = http.client.HTTPConnection("localhost", timeout=WAIT_S)
        web.sock = socket.socket(socket.AF_UNIX)
        web.sock.connect(str(http_path))
        web.request("POST", "/pub?topic=t", b"over unix")
        assert web.getresponse().read() == b"OK"
        web.close()
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(WAIT_S)
            raw.connect(str(tcp_path))
            raw.sendall(b"  V2SUB t c\nRDY 1\n")
            received = b""
            while b"over unix" not in received:
                received += raw.recv(4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert not tcp_path.exists()
    assert not http_path.exists()
    said = (tmp_path / "log").read_text()
    assert f"TCP: listening on {tcp_path}\n" in said
    assert f"HTTP: listening on {http_path}\n" in said


def cpu_s(daemon: Daemon) -> float:
    """Return the CPU time that the daemon has taken so far."""
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_removed_files_are_unmapped_by_a_thread_of_their_own(daemon: Daemon) -> None:
    names = [path.read_text() for path in Path(f"/proc/{daemon.pid}/task").glob("*/comm")]
    assert names.count("pyqd-releases\n") == 1


def test_a_daemon_sleeps_after_its_clients_have_gone(tmp_path: Path) -> None:
    """A loop that never waits takes all it can get, however busy the machine is; one that does takes nearly nothing."""
    daemon = Daemon(pyqd(), tmp_path, ["-first-command-timeout=200ms", "-command-timeout=200ms"])
    daemon.start()
    try:
        with connect(daemon) as client:
            client.sub("idle", "c", rdy_count=1)
            client.pub("idle", b"x")
            client.fin(client.read_message())
        # Each timer that the daemon keeps has gone off by then.
        time.sleep(1.5)
        before_s, before_at = cpu_s(daemon), time.monotonic()
        time.sleep(1.0)
        assert cpu_s(daemon) - before_s < 0.1 * (time.monotonic() - before_at)
    finally:
        daemon.stop()


def held(daemon: Daemon, topic: str, channel: str) -> tuple[int, int, int]:
    """Return depth with in-flight messages, deferred, and message_count of a channel."""
    stats = daemon.channel(topic, channel)
    assert stats is not None
    return stats["depth"] + stats["in_flight_count"], stats["deferred_count"], stats["message_count"]


def deferred(daemon: Daemon, topic: str, channel: str) -> dict[str, int]:
    """Return the due times of a channel's deferred messages by id, in Unix ns."""
    page = daemon.http("GET", "/channel/messages", topic=topic, channel=channel, state="deferred").json()
    return {message["id"]: message["due"] for message in page["messages"]}


def test_a_clean_stop_keeps_depths_attempts_and_due_times(daemon: Daemon) -> None:
    with connect(daemon) as client:
        client.sub("kept", "c")
        for index in range(5):
            client.pub("kept", b"%d" % index)
        client.rdy(2)
        first, second = client.read_messages(2)
        client.rdy(0)
        client.fin(first)
        client.dpub("kept", 600_000, b"later")
        client.expect_alive()
    before = held(daemon, "kept", "c")
    due_of = deferred(daemon, "kept", "c")
    assert before == (4, 1, 6)
    daemon.stop()
    daemon.start()
    assert held(daemon, "kept", "c") == before
    assert deferred(daemon, "kept", "c") == due_of
    (later,) = due_of
    assert daemon.http("POST", "/message/deliver_now", topic="kept", channel="c", id=later).status == 200
    received: dict[bytes, Message] = {}
    with connect(daemon) as client:
        client.sub("kept", "c", rdy_count=10)
        while len(received) < 5:
            message = client.read_message()
            received[message.body] = message
            client.fin(message)
    assert set(received) == {b"1", b"2", b"3", b"4", b"later"}
    assert received[second.body].attempts == second.attempts + 1
    assert received[b"4"].attempts == 1
