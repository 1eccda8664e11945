"""Drain: new consumers are refused, messages in flight can be finished, then publishes are refused and pyqd stops."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.nsq import Client
from tests.support.preloaded import completed
from tests.support.readiness import is_readable
from tests.support.server import REPOSITORY, Daemon, wait_until

pytestmark = pytest.mark.slow

Connect = Callable[[], Client]

WAIT_S = 20.0
CLOSING = 4


def begin(daemon: Daemon, timeout: str = "20s") -> None:
    reply = daemon.http("POST", "/drain", timeout=timeout)
    assert (reply.status, reply.json()["draining"]) == (200, True)


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[[], Client]]:
    """Return a function that connects a client; all are closed at the end."""
    with ExitStack() as clients:
        yield lambda: clients.enter_context(Client(daemon.tcp_address))


def consumer_with_a_message(daemon: Daemon, connect: Connect) -> tuple[Client, bytes]:
    """Return a consumer that has one message in flight, and the id; another message is in its channel."""
    client = connect()
    client.sub("t", rdy_count=1)
    daemon.http("POST", "/mpub", b"one\ntwo", topic="t")
    return client, client.read_message().id


def test_a_daemon_that_drains_refuses_new_consumers_and_new_topics(daemon: Daemon, connect: Connect) -> None:
    consumer, _ = consumer_with_a_message(daemon, connect)
    publisher = connect()
    begin(daemon)
    publisher.send(b"MPUB other\n\0\0\0\x0b\0\0\0\1\0\0\0\3abc")
    publisher.expect_fatal("E_MPUB_FAILED", "MPUB failed exiting")
    late = connect()
    late.send(b"SUB t c\n")
    late.expect_fatal("E_SUB_FAILED", "SUB failed exiting")
    reply = daemon.http("POST", "/pub", b"after", topic="other")
    assert (reply.status, reply.json()) == (503, {"message": "EXITING"})
    assert set(daemon.topics()) == {"t"}
    assert daemon.http("GET", "/ping").status == 500
    consumer.close()
    assert daemon.wait_ended() == 0


def test_publishes_are_accepted_until_the_consumers_have_finished_and_then_refused(
    daemon: Daemon, connect: Connect
) -> None:
    consumer, message_id = consumer_with_a_message(daemon, connect)
    publisher = connect()
    begin(daemon)
    publisher.pub("t", b"during the drain")
    assert daemon.http("POST", "/pub", b"during the drain", topic="t").status == 200
    consumer.send(b"FIN " + message_id + b"\n")
    answers: list[bytes] = []
    while not answers or answers[-1] == b"OK":
        publisher.send(b"PUB t\n\0\0\0\1x")
        answers.append(publisher.read_frame().data)
    assert answers[-1] == b"E_PUB_FAILED PUB failed exiting"
    assert daemon.wait_ended() == 0
    daemon.start()
    daemon.wait_for_topic("t", message_count=4 + len(answers) - 1)


def test_messages_in_flight_can_be_finished_and_no_others_are_delivered(daemon: Daemon, connect: Connect) -> None:
    consumer, message_id = consumer_with_a_message(daemon, connect)
    begin(daemon)
    wait_until(lambda: daemon.http("GET", "/drain").json()["in_flight"] == 1, "one message is in flight")
    consumer.send(b"RDY 5\nTOUCH " + message_id + b"\n")
    consumer.send(b"FIN " + message_id + b"\n")
    assert daemon.wait_ended() == 0
    consumer.expect_closed()
    daemon.start()
    again = connect()
    again.sub("t", rdy_count=5)
    message = again.read_message()
    assert (message.body, message.attempts) == (b"two", 1)


def test_a_consumer_may_send_cls_once_during_a_drain(daemon: Daemon, connect: Connect) -> None:
    consumer, message_id = consumer_with_a_message(daemon, connect)
    begin(daemon)
    wait_until(lambda: (daemon.channel("t", "c") or {})["clients"][0]["state"] == CLOSING, "deliveries have stopped")
    consumer.send(b"CLS\n")
    consumer.expect_response(b"CLOSE_WAIT")
    consumer.send(b"FIN " + message_id + b"\nCLS\n")
    consumer.expect_fatal("E_INVALID", "cannot CLS in current state")
    assert daemon.wait_ended() == 0


def test_a_drain_ends_at_its_deadline_and_loses_nothing(daemon: Daemon, connect: Connect) -> None:
    consumer, _ = consumer_with_a_message(daemon, connect)
    begin(daemon, "300ms")
    assert daemon.wait_ended() == 0
    consumer.expect_closed()
    assert "1 messages are in flight at the deadline" in daemon.log_text()
    daemon.start()
    again = connect()
    again.sub("t", rdy_count=5)
    found = {(each.body, each.attempts) for each in again.read_messages(2)}
    assert found == {(b"one", 2), (b"two", 1)}


@pytest.mark.flags("-drain-timeout=20s")
def test_sigterm_drains_if_a_timeout_is_set_and_a_second_one_stops_at_once(daemon: Daemon, connect: Connect) -> None:
    consumer, _ = consumer_with_a_message(daemon, connect)
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: daemon.http("GET", "/drain").json()["draining"], "the daemon drains")
    time.sleep(0.3)
    daemon.assert_healthy()
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait_ended() == 0
    consumer.expect_closed()


@pytest.mark.flags("-sync-every=1")
def test_publishes_before_a_drain_get_their_ok(daemon: Daemon, connect: Connect) -> None:
    publisher = connect()
    publisher.send(b"PUB t\n\0\0\0\1x" * 200)
    wait_until(lambda: daemon.topic("t") is not None, "the topic exists")
    begin(daemon)
    answers = [publisher.read_frame() for _ in range(200)]
    taken = sum(frame.data == b"OK" for frame in answers)
    assert daemon.wait_ended() == 0
    daemon.start()
    daemon.wait_for_topic("t", message_count=taken, depth=taken)


def test_the_command_shows_the_progress_and_waits_for_the_end(daemon: Daemon, connect: Connect) -> None:
    consumer, message_id = consumer_with_a_message(daemon, connect)
    command = [sys.executable, "-m", "pyqd.apps.cli", "drain", f"--http-address=127.0.0.1:{daemon.http_port}"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as drain:
        assert drain.stdout is not None
        assert drain.stdout.readline() == "1 messages in flight with 1 consumers\n"
        consumer.send(b"FIN " + message_id + b"\n")
        assert drain.stdout.read().endswith("stopped\n")
        assert drain.wait(WAIT_S) == 0
    assert daemon.wait_ended() == 0


class FakeDaemon(ThreadingHTTPServer):
    """Answers like a daemon that drains and then closes its connections. pid: its process id, in its answers."""

    daemon_threads = True

    def __init__(self, pid: int, answers: int) -> None:
        super().__init__(("127.0.0.1", 0), FakeDrain)
        self.pid = pid
        self.answers_left = answers
        self.connections: list[object] = []


class FakeDrain(BaseHTTPRequestHandler):
    """One connection to it, which the client keeps open."""

    protocol_version = "HTTP/1.1"
    server: FakeDaemon

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self)

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.server.answers_left == 0:
            self.close_connection = True
            return
        self.server.answers_left -= 1
        body = json.dumps({"draining": True, "in_flight": 1, "consumers": 1, "pid": self.server.pid}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python with arguments; it is killed at the end of the block."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize(("name", "is_waited_for"), [("pyqd", True), ("other", False)])
def test_the_command_waits_for_the_process_of_the_daemon_and_connects_once(name: str, is_waited_for: bool) -> None:
    """A process id that is another program's comes from a container."""
    with process("-c", "import time; time.sleep(600)", name) as stopping, FakeDaemon(stopping.pid, 3) as fake:
        serving = threading.Thread(target=fake.serve_forever)
        serving.start()
        try:
            address = f"127.0.0.1:{fake.server_port}"
            with process("-m", "pyqd.apps.cli", "drain", f"--http-address={address}") as drain:
                assert drain.stdout is not None
                assert drain.stdout.readline() == "1 messages in flight with 1 consumers\n"
                if is_waited_for:
                    wait_until(lambda: fake.answers_left == 0, "the daemon has answered for the last time")
                    assert not is_readable(drain.stdout, 1.0)
                    stopping.kill()
                assert drain.stdout.read() == "stopped\n"
                assert drain.wait(WAIT_S) == 0
        finally:
            fake.shutdown()
            serving.join(WAIT_S)
        assert len(fake.connections) == 1


def test_the_command_names_an_address_that_nothing_listens_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyqd.apps.cli", "drain", f"--http-address={tmp_path}/none.sock"]
    done = completed(command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"pyqd drain: cannot reach pyqd at {tmp_path}/none.sock: No such file")


def test_a_timeout_that_is_no_duration_is_refused_and_nothing_drains(daemon: Daemon) -> None:
    for text in ("5", "x", "-1s"):
        reply = daemon.http("POST", "/drain", timeout=text)
        assert (reply.status, reply.json()) == (400, {"message": "INVALID_TIMEOUT"})
    assert not daemon.http("GET", "/drain").json()["draining"]
