"""Restart: a successor takes over the listening sockets, and clients notice a reconnect only."""

import contextlib
import fcntl
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyqd.api.restart import RestartError
from pyqd.apps.inherited import Inherited
from pyqd.apps.restart import Restarts
from tests.support.certificates import certify
from tests.support.nsq import Client, Closed
from tests.support.server import REPOSITORY, Adopted, Daemon, free_port, patched_pyqd, pyqd, running, wait_until

pytestmark = pytest.mark.slow

WAIT_S = 20.0
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(REPOSITORY)])}


class Connecting(threading.Thread):
    """Thread that connects again and again, and asks for /ping on each connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self.address = address
        self.count = self.closed = 0
        self.refused: list[OSError] = []
        self.longest_s = 0.0
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            began_s = time.monotonic()
            try:
                with socket.create_connection(self.address, WAIT_S) as connection:
                    try:
                        connection.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
                        self.closed += not connection.recv(100)
                    except ConnectionError:
                        self.closed += 1
            except OSError as error:
                self.refused.append(error)
            self.count += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


@contextlib.contextmanager
def connecting(address: tuple[str, int]) -> Iterator[Connecting]:
    thread = Connecting(address)
    thread.start()
    try:
        yield thread
    finally:
        thread.stopping = True
        thread.join(WAIT_S)


def test_no_connection_is_refused_while_a_successor_takes_over(daemon: Daemon) -> None:
    with connecting(daemon.http_address) as thread:
        for _ in range(3):
            before = daemon.pid
            daemon.hand_over()
            assert daemon.pid != before
        wait_until(lambda: thread.count > 100, "there were connections")
    assert thread.refused == []
    assert thread.closed <= 3 * 2


def is_longer(found: Sequence[object], count: int) -> bool:
    return len(found) > count


def test_messages_attempts_and_due_times_survive_a_restart(daemon: Daemon) -> None:
    with Client(daemon.tcp_address) as consumer:
        consumer.sub("t", rdy_count=1)
        daemon.http("POST", "/mpub", b"one\ntwo", topic="t")
        daemon.http("POST", "/pub", b"late", topic="t", defer="3000")
        due_s = time.monotonic() + 3.0
        assert consumer.read_message().attempts == 1
        daemon.hand_over()
        consumer.expect_closed()
    with Client(daemon.tcp_address) as consumer:
        consumer.sub("t", rdy_count=5)
        assert {(each.body, each.attempts) for each in consumer.read_messages(2)} == {(b"one", 2), (b"two", 1)}
        assert consumer.read_message().body == b"late"
        assert time.monotonic() >= due_s - 0.05


def test_a_publisher_that_reconnects_loses_nothing_over_restarts(daemon: Daemon) -> None:
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        number = 0
        while not stop.is_set():
            with contextlib.suppress(OSError, AssertionError, Closed), Client(daemon.tcp_address) as client:
                while not stop.is_set():
                    time.sleep(0.001)
                    client.pub("t", b"%d" % number)
                    confirmed.append(number)
                    number += 1

    daemon.http("POST", "/channel/create", topic="t", channel="c")
    daemon.http("POST", "/topic/create", topic="t")
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(3):
            count = len(confirmed)
            daemon.hand_over()
            wait_until(partial(is_longer, confirmed, count + 20), "the publisher goes on")
    finally:
        stop.set()
        thread.join(WAIT_S)
    with Client(daemon.tcp_address) as consumer:
        consumer.sub("t", rdy_count=2500)
        missing = set(confirmed)
        while missing:
            message = consumer.read_message()
            missing.discard(int(message.body))
            consumer.fin(message)


def test_a_daemon_with_more_descriptors_than_select_can_wait_for_restarts(daemon: Daemon) -> None:
    with contextlib.ExitStack() as clients:
        for _ in range(1100):
            clients.enter_context(socket.create_connection(daemon.tcp_address, WAIT_S))
        wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) > 1100, "all are accepted")
        daemon.hand_over()


def test_sigusr2_restarts(daemon: Daemon) -> None:
    before = daemon.pid
    os.kill(before, signal.SIGUSR2)
    wait_until(lambda: pid_of(daemon) != before, "the successor serves", WAIT_S)
    assert daemon.wait_ended() == 0
    daemon.adopt(pid_of(daemon))


def pid_of(daemon: Daemon) -> int:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return int(daemon.http("GET", "/restart").json()["pid"])
    return daemon.pid


def test_the_first_process_of_a_container_refuses_to_restart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restarts = Restarts(keep=Inherited, on_ready=lambda: None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(RestartError, match="restart the container instead"):
        restarts.begin()
    restarts.begin_unasked()
    assert caplog.text.count("restart refused: this process is the first of its container") == 2


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[tuple[Daemon, Path]]:
    """A daemon with a configuration file, and the file."""
    path = tmp_path / "pyqd.toml"
    path.write_text("max_topics = 7\n")
    with running(Daemon(pyqd(), tmp_path, [f"-config={path}"])) as daemon:
        yield daemon, path


@pytest.mark.parametrize("config", ['tls_cert = "missing.pem"\ntls_key = "missing.pem"\n', "max_topics = -1\n"])
def test_a_successor_that_cannot_start_leaves_the_daemon_as_it_was(
    configured: tuple[Daemon, Path], config: str
) -> None:
    daemon, path = configured
    before = daemon.pid
    path.write_text(config)
    with Client(daemon.tcp_address) as client:
        client.pub("t", b"before")
        reply = daemon.http("POST", "/restart")
        assert reply.status == 503
        assert reply.json()["message"].startswith("RESTART_REFUSED: failed to instantiate pyqd")
        client.pub("t", b"after")
    assert daemon.pid == before
    assert daemon.http("GET", "/restart").json()["error"].startswith("failed to instantiate pyqd")


def test_a_successor_that_fails_to_load_gives_the_daemon_back_to_its_predecessor(
    configured: tuple[Daemon, Path],
) -> None:
    daemon, path = configured
    before = daemon.pid
    with socket.create_server(("127.0.0.1", 0)) as other, connecting(daemon.http_address) as thread:
        # The port is free only for the check of the flags: the successor listens on it when it has loaded the data.
        certificate = certify(path.parent, "daemon")
        path.write_text(
            f'tls_cert = "{certificate.path}"\ntls_key = "{certificate.key_path}"\n'
            f'https_address = "127.0.0.1:{other.getsockname()[1]}"\n'
        )
        daemon.http("POST", "/pub", b"kept", topic="t")
        assert daemon.http("POST", "/restart").status == 200
        wait_until(lambda: "restart refused" in daemon.log_text(), "the restart is refused", WAIT_S)
        wait_until(lambda: daemon.topic("t") is not None, "the daemon serves again", WAIT_S)
    assert thread.refused == []
    assert daemon.pid == pid_of(daemon) == before
    assert "address already in use" in daemon.http("GET", "/restart").json()["error"]
    path.write_text("max_topics = 8\n")
    daemon.hand_over()
    daemon.wait_for_topic("t", message_count=1)
    assert daemon.http("GET", "/config/max_topics").body == b"8"


SIGNAL_BETWEEN_DAEMONS = """
import os
from pyqd.apps.daemon import Daemon

made = []
construct = Daemon.__init__

def construct_after_signal(self, *args, **kwargs):
    made.append(self)
    if len(made) == 2:
        os.kill(os.getpid(), int(os.environ["SIGNAL_BETWEEN"]))
    construct(self, *args, **kwargs)

Daemon.__init__ = construct_after_signal
"""


@pytest.fixture
def refused_restart(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A daemon whose successor fails to load; it gets a signal before it has made the daemon that then goes on."""
    monkeypatch.setenv("SIGNAL_BETWEEN", str(int(request.param)))
    path = tmp_path / "pyqd.toml"
    path.write_text("")
    program = patched_pyqd(tmp_path / "signalled.py", SIGNAL_BETWEEN_DAEMONS)
    daemon = Daemon(program, tmp_path / "daemon", [f"-config={path}"])
    with socket.create_server(("127.0.0.1", 0)) as other, running(daemon):
        certificate = certify(tmp_path, "daemon")
        path.write_text(
            f'tls_cert = "{certificate.path}"\ntls_key = "{certificate.key_path}"\n'
            f'https_address = "127.0.0.1:{other.getsockname()[1]}"\n'
        )
        assert daemon.http("POST", "/restart").status == 200
        wait_until(lambda: "restart refused" in daemon.log_text(), "the restart is refused", WAIT_S)
        yield daemon


@pytest.mark.parametrize("refused_restart", [signal.SIGHUP, signal.SIGUSR2], indirect=True)
def test_a_signal_after_a_failed_restart_does_not_end_the_daemon(refused_restart: Daemon) -> None:
    daemon = refused_restart
    daemon.http("POST", "/pub", b"after", topic="t")
    wait_until(lambda: daemon.topic("t") is not None, "the daemon serves again", WAIT_S)


@pytest.mark.parametrize("refused_restart", [signal.SIGINT, signal.SIGTERM], indirect=True)
def test_a_signal_to_stop_after_a_failed_restart_stops_the_daemon_cleanly(refused_restart: Daemon) -> None:
    assert refused_restart.wait_ended() == 0
    assert refused_restart.log_text().splitlines()[-1].endswith("INFO: NSQ: bye")


FAILS_AS_IT_STOPS = """
from pyqd.apps.daemon import Daemon

stop_serving = Daemon.stop_serving

def fail_and_stop(self):
    self.on_internal_error(AssertionError("an invariant is broken"))
    stop_serving(self)

Daemon.stop_serving = fail_and_stop
"""


def test_an_internal_error_while_it_hands_over_ends_the_daemon_and_the_successor(tmp_path: Path) -> None:
    daemon = Daemon(patched_pyqd(tmp_path / "failing.py", FAILS_AS_IT_STOPS), tmp_path / "daemon")
    with running(daemon):
        successor = int(daemon.http("POST", "/restart").json()["pid"])
        assert daemon.wait_ended() == 1
        assert not Path(f"/proc/{successor}").exists()
    assert "has taken over" not in daemon.log_text()


def test_the_command_reports_the_new_process(daemon: Daemon) -> None:
    before = daemon.pid
    done = subprocess.run(
        [sys.executable, "-m", "pyqd.apps.cli", "restart", f"--http-address=127.0.0.1:{daemon.http_port}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    daemon.wait_ended()
    daemon.adopt(pid_of(daemon))
    assert (done.returncode, done.stdout) == (0, f"process {daemon.pid} has taken over from {before}\n")


@contextlib.contextmanager
def started(directory: Path, *flags: str, sockets: Sequence[socket.socket] = (), **variables: str) -> Iterator[Any]:
    """Start a daemon as systemd does, with listening sockets from descriptor 3 on."""
    program = (
        "import os, sys\n"
        "for index, fd in enumerate(map(int, sys.argv[1].split(',')) if sys.argv[1] else ()): os.dup2(fd, 3 + index)\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'pyqd.apps.daemon', *sys.argv[2:]])\n"
    )
    # Above those that they are copied to.
    fds = [fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, 100) for each in sockets]
    (directory / "data").mkdir()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, ",".join(map(str, fds)), f"--data-path={directory / 'data'}", *flags],
            env=ENVIRONMENT | {"LISTEN_FDS": str(len(fds)), **variables},
            pass_fds=fds,
            stderr=log,
        )
    try:
        yield process
    finally:
        for fd in fds:
            os.close(fd)
        process.kill()
        process.wait()


def ping(path: Path) -> str:
    """Return the answer of /ping over a unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        connection.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        return connection.recv(1000).decode().rpartition("\r\n")[2]


def test_a_socket_of_systemd_is_recognised_by_its_port_or_its_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as http_socket:
        http_socket.bind(str(tmp_path / "http.sock"))
        http_socket.listen()
        flags = f"--tcp-address=127.0.0.1:{tcp.getsockname()[1]}", "--http-address=127.0.0.1:1"
        with started(tmp_path, *flags, sockets=[tcp, http_socket], LISTEN_FDNAMES="pyqd.socket:http") as process:
            # Clients wait in the queue until the daemon has loaded.
            assert ping(tmp_path / "http.sock") == "OK"
            with Client(tcp.getsockname()) as client:
                client.pub("t", b"x")
            process.terminate()
            assert process.wait(WAIT_S) == 0


def test_a_socket_of_systemd_that_no_flag_names_is_an_error(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        started(tmp_path, "--tcp-address=127.0.0.1:1", "--http-address=", sockets=[other]) as process,
    ):
        assert process.wait(WAIT_S) == 1
        shown = f"socket activation: no listener for the socket 127.0.0.1:{other.getsockname()[1]}"
        assert shown in (tmp_path / "log").read_text()


def test_systemd_hears_of_start_watchdog_restart_and_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        path = tmp_path / "http.sock"
        flags = f"--tcp-address={tmp_path / 'tcp.sock'}", f"--http-address={path}"
        with started(tmp_path, *flags, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="300000") as process:
            heard = until(manager, "READY=1")
            assert f"MAINPID={process.pid}\n" in heard[-1]
            assert "WATCHDOG=1" in until(manager, "WATCHDOG=1")
            process.send_signal(signal.SIGUSR2)
            heard = until(manager, "READY=1")
            pid = int(heard[-1].partition("MAINPID=")[2].partition("\n")[0])
            # Two processes send, so either message may be the first.
            expected = f"MAINPID={pid}\nSTATUS=serving"
            assert expected in heard or until(manager, expected)
            assert process.wait(WAIT_S) == 0
            assert ping(path) == "OK"
            adopted = Adopted(pid)
            adopted.send_signal(signal.SIGTERM)
            assert until(manager, "STOPPING=1")
            adopted.wait(WAIT_S)
            assert not path.exists()


def until(manager: socket.socket, text: str) -> list[str]:
    """Return the messages up to one that begins with a text."""
    heard: list[str] = []
    while not heard or not heard[-1].startswith(text):
        heard.append(manager.recv(4096).decode())
    return heard


# A successor waits before it says a word, and the daemon that it succeeds goes on. Files beside the program say so.
WITH_HELD_SUCCESSOR = """
import os
import sys
import time
from pyqd.apps.restart import Predecessor

def held(name, function):
    def call(self):
        open(sys.argv[0] + "." + name, "w").close()
        while os.path.exists(sys.argv[0] + ".held-" + name):
            time.sleep(0.005)
        return function(self)
    return call

Predecessor.wait_for_go = held("starting", Predecessor.wait_for_go)
Predecessor.report_serving = held("loaded", Predecessor.report_serving)
"""


class Held:
    """A daemon whose successor waits at two places: before it says `ready`, and before it says `up`."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.program = directory / "held.py"
        self.daemon = Daemon(patched_pyqd(self.program, WITH_HELD_SUCCESSOR), directory / "daemon", flags)

    def path(self, name: str) -> Path:
        return Path(f"{self.program}.{name}")

    def hold(self, name: str) -> None:
        self.path(f"held-{name}").touch()

    def go_on(self) -> None:
        for name in ("starting", "loaded"):
            self.path(f"held-{name}").unlink(missing_ok=True)

    def wait_for(self, name: str) -> None:
        wait_until(self.path(name).exists, f"the successor is {name}", WAIT_S)

    def hold_loaded(self) -> int:
        """Restart up to the point where the successor has loaded the data. Returns: its pid."""
        self.hold("loaded")
        pid = int(self.daemon.http("POST", "/restart").json()["pid"])
        self.wait_for("loaded")
        return pid

    def is_locked(self) -> bool:
        """Return whether a process holds the lock on the data directory."""
        fd = os.open(self.daemon.data_path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


@contextlib.contextmanager
def holding(directory: Path, *flags: str) -> Iterator[Held]:
    held = Held(directory, *flags)
    with running(held.daemon):
        yield held


def test_sigterm_while_a_successor_starts_stops_the_daemon_and_the_successor(tmp_path: Path) -> None:
    with holding(tmp_path, "-drain-timeout=20s") as held:
        with Client(held.daemon.tcp_address) as consumer:
            consumer.sub("t", rdy_count=1)
            held.daemon.http("POST", "/pub", b"x", topic="t")
            message = consumer.read_message()
            held.hold("starting")
            os.kill(held.daemon.pid, signal.SIGUSR2)
            held.wait_for("starting")
            os.kill(held.daemon.pid, signal.SIGTERM)
            wait_until(lambda: held.daemon.http("GET", "/drain").json()["draining"], "the daemon drains")
            held.go_on()
            assert held.daemon.http("POST", "/restart").status == 503
            time.sleep(0.3)
            consumer.fin(message)
        assert held.daemon.wait_ended() == 0
        assert not held.is_locked()
        assert "ready to take over" not in held.daemon.log_text()
        held.daemon.start()


def test_sigterm_while_a_successor_loads_the_data_stops_both(tmp_path: Path) -> None:
    with holding(tmp_path) as held:
        held.daemon.http("POST", "/pub", b"x", topic="t")
        held.hold_loaded()
        os.kill(held.daemon.pid, signal.SIGTERM)
        time.sleep(0.3)
        held.go_on()
        assert held.daemon.wait_ended() == 0
        assert not held.is_locked()
        held.daemon.start()
        held.daemon.wait_for_topic("t", message_count=1)


def test_a_successor_serves_if_its_predecessor_is_killed_while_it_loads(tmp_path: Path) -> None:
    with holding(tmp_path) as held:
        held.daemon.http("POST", "/pub", b"x", topic="t")
        pid = held.hold_loaded()
        held.daemon.kill()
        held.go_on()
        held.daemon.adopt(pid)
        held.daemon.wait_for_topic("t", message_count=1)


def test_a_request_after_a_late_handshake_is_not_executed_by_the_predecessor(tmp_path: Path) -> None:
    certificate = certify(tmp_path, "daemon")
    port = free_port()
    flags = f"-tls-cert={certificate.path}", f"-tls-key={certificate.key_path}", f"-https-address=127.0.0.1:{port}"
    with (
        holding(tmp_path, *flags) as held,
        socket.create_connection(("127.0.0.1", port), WAIT_S) as connection,
    ):
        pid = held.hold_loaded()
        received = b""
        with contextlib.suppress(OSError), ssl._create_unverified_context().wrap_socket(connection) as secured:
            secured.sendall(b"POST /pub?topic=late HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
            received = secured.recv(1000)
        assert received == b""
        held.go_on()
        assert held.daemon.wait_ended() == 0
        held.daemon.adopt(pid)
        wait_until(lambda: pid_of(held.daemon) == pid, "the successor serves", WAIT_S)
        assert held.daemon.topic("late") is None


def test_a_daemon_that_drains_starts_no_successor(daemon: Daemon) -> None:
    with Client(daemon.tcp_address) as consumer:
        consumer.sub("t", rdy_count=1)
        daemon.http("POST", "/pub", b"x", topic="t")
        message = consumer.read_message()
        daemon.http("POST", "/drain")
        reply = daemon.http("POST", "/restart")
        assert (reply.status, reply.json()["message"]) == (503, "RESTART_REFUSED: the daemon is about to stop")
        consumer.fin(message)
    assert daemon.wait_ended() == 0


def test_a_successor_that_fails_leaves_the_files_of_unix_sockets(tmp_path: Path) -> None:
    config, path = tmp_path / "pyqd.toml", tmp_path / "tcp.sock"
    http_path = tmp_path / "http.sock"
    config.write_text("")
    flags = f"--tcp-address={path}", f"--http-address={http_path}", f"--config={config}"
    with socket.create_server(("127.0.0.1", 0)) as other, started(tmp_path, *flags) as process:
        wait_until(http_path.exists, "the daemon listens", WAIT_S)
        certificate = certify(tmp_path, "daemon")
        config.write_text(
            f'tls_cert = "{certificate.path}"\ntls_key = "{certificate.key_path}"\n'
            f'https_address = "127.0.0.1:{other.getsockname()[1]}"\n'
        )
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: "restart refused" in (tmp_path / "log").read_text(), "the restart is refused", WAIT_S)
        assert ping(http_path) == "OK"
        assert path.exists()
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert not path.exists()
        assert not http_path.exists()


def test_a_daemon_under_load_goes_on_after_a_successor_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "pyqd.toml"
    path.write_text("")
    certificate = certify(tmp_path, "daemon")
    confirmed: list[bytes] = []
    stop = threading.Event()

    def publish(thread: int) -> None:
        number = 0
        while not stop.is_set():
            with contextlib.suppress(OSError, AssertionError, Closed), Client(daemon.tcp_address) as client:
                while not stop.is_set():
                    body = b"%d %d" % (thread, number)
                    number += 1
                    client.mpub("t", [body] if number % 10 else [body, *[b"x" * 100_000] * 20])
                    confirmed.append(body)

    def consume() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, AssertionError, Closed), Client(daemon.tcp_address) as client:
                client.sub("t", "other", rdy_count=50)
                while not stop.is_set():
                    client.fin(client.read_message())

    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        running(Daemon(pyqd(), tmp_path, ["-sync-every=1", f"-config={path}"])) as daemon,
    ):
        daemon.http("POST", "/topic/create", topic="t")
        daemon.http("POST", "/channel/create", topic="t", channel="c")
        threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
        threads += [threading.Thread(target=consume) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            path.write_text(
                f'tls_cert = "{certificate.path}"\ntls_key = "{certificate.key_path}"\n'
                f'https_address = "127.0.0.1:{other.getsockname()[1]}"\n'
            )
            for round_number in range(1, 4):
                count = len(confirmed)
                wait_until(partial(is_longer, confirmed, count + 20), "the publishers go on", WAIT_S)
                assert daemon.http("POST", "/restart").status == 200
                wait_until(partial(has_refused, daemon, round_number), "the restart is refused", WAIT_S)
                daemon.assert_healthy()
            count = len(confirmed)
            wait_until(partial(is_longer, confirmed, count + 20), "the publishers go on", WAIT_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_S)
        with Client(daemon.tcp_address) as consumer:
            consumer.sub("t", rdy_count=100)
            missing = set(confirmed)
            while missing:
                message = consumer.read_message()
                missing.discard(message.body)
                consumer.fin(message)


def has_refused(daemon: Daemon, count: int) -> bool:
    """Return whether restarts have failed so often, and the daemon serves."""
    if daemon.log_text().count("restart refused") != count:
        return False
    return not daemon.http("GET", "/restart").json()["restarting"]
