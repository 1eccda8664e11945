"""Tests of pyqd.testing.daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pyqd.client.settings import parse_targets
from pyqd.testing.daemon import LOG_NAME, BrokerError, BrokerProcess
from tests.support.server import REPOSITORY, wait_until

# Each test starts the daemon as users do, in a new interpreter.
pytestmark = pytest.mark.slow


def publish(broker: BrokerProcess, topic: str, *bodies: bytes, **query: object) -> None:
    for body in bodies:
        broker.request("POST", "/pub", body, topic=topic, **query)


def connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def test_a_daemon_serves_at_its_addresses(broker: BrokerProcess) -> None:
    assert broker.is_running
    assert connects(broker.tcp_address)
    assert connects(broker.http_address)
    assert parse_targets(broker.url, None).settings == {"http": broker.http_address}
    assert [str(address) for address in parse_targets(broker.url, None).brokers] == [broker.tcp_address]
    assert broker.stats()["topics"] == []
    assert any(broker.data_path.iterdir())


def test_a_stopped_daemon_refuses_connections_and_keeps_its_ports(broker: BrokerProcess) -> None:
    addresses = broker.tcp_address, broker.http_address
    broker.stop()
    assert not broker.is_running
    assert broker.pid is None
    assert not any(map(connects, addresses))
    broker.start()
    assert (broker.tcp_address, broker.http_address) == addresses
    assert all(map(connects, addresses))


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_messages_survive_a_restart(broker: BrokerProcess, way: str) -> None:
    publish(broker, "orders", b"one")
    before = broker.pid
    getattr(broker, way)()
    broker.restart()
    assert broker.pid != before
    assert broker.published("orders") == [b"one"]


def test_a_daemon_starts_in_a_process_with_many_open_files(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        # select(2) takes no descriptor from 1024 on.
        for _ in range(1024):
            stack.enter_context(open(os.devnull, "rb"))
        with BrokerProcess(tmp_path / "broker") as broker:
            assert broker.is_running


def test_two_daemons_run_beside_each_other(tmp_path: Path, broker: BrokerProcess) -> None:
    with BrokerProcess(tmp_path / "other") as other:
        publish(other, "orders", b"one")
        assert other.published("orders") == [b"one"]
        assert broker.published("orders") == []


def test_more_than_one_answer_is_read(broker: BrokerProcess) -> None:
    bodies = [bytes([number]) * 900_000 for number in range(1, 11)]
    publish(broker, "orders", *bodies)
    assert broker.published("orders") == bodies


def test_messages_of_an_ephemeral_topic_are_read(broker: BrokerProcess) -> None:
    publish(broker, "orders#ephemeral", b"one")
    assert broker.published("orders#ephemeral") == [b"one"]


def test_an_unknown_topic_has_no_messages(broker: BrokerProcess) -> None:
    assert broker.published("nothing") == []
    assert broker.topic_stats("nothing") is None
    assert broker.topic_stats("nothing", "email") is None


def test_a_wait_for_a_depth_ends_when_it_is_reached(broker: BrokerProcess) -> None:
    publish(broker, "orders", b"one", b"two")
    broker.wait_for_depth("orders", depth=2)
    broker.request("POST", "/channel/create", topic="orders", channel="email")
    broker.wait_for_depth("orders", "email", depth=2)
    broker.wait_for_depth("orders", depth=0)


def test_a_wait_names_the_state_that_it_met(broker: BrokerProcess) -> None:
    publish(broker, "orders", b"one")
    with pytest.raises(BrokerError, match="waited 0 s for a depth of 7 in topic orders: the depth is 1"):
        broker.wait_for_depth("orders", depth=7, timeout=0)
    with pytest.raises(BrokerError, match="a depth of 1 in channel email of topic orders: it does not exist"):
        broker.wait_for_depth("orders", "email", depth=1, timeout=0)
    with pytest.raises(BrokerError, match="an empty topic orders: the topic holds 1"):
        broker.wait_until_empty("orders", timeout=0)
    with pytest.raises(BrokerError, match="an empty channel email of topic orders: it does not exist"):
        broker.wait_until_empty("orders", "email", timeout=0)


def test_a_topic_is_empty_when_every_channel_has_finished(broker: BrokerProcess) -> None:
    for channel in ("email", "audit"):
        broker.request("POST", "/topic/create", topic="orders")
        broker.request("POST", "/channel/create", topic="orders", channel=channel)
    broker.wait_until_empty("orders")
    publish(broker, "orders", b"one")
    publish(broker, "orders", b"later", defer=60_000)
    broker.wait_for_depth("orders", "audit", depth=1)
    with pytest.raises(BrokerError, match="channel audit has 1 waiting and 1 deferred"):
        broker.wait_until_empty("orders", timeout=0)
    broker.request("POST", "/channel/empty", topic="orders", channel="email")
    broker.wait_until_empty("orders", "email")
    broker.request("POST", "/channel/delete", topic="orders", channel="audit")
    broker.wait_until_empty("orders")


def test_deleted_topics_are_gone(broker: BrokerProcess) -> None:
    publish(broker, "orders", b"one")
    publish(broker, "users", b"one")
    broker.delete_topics()
    assert broker.stats()["topics"] == []


def test_a_refused_request_raises_the_answer(broker: BrokerProcess) -> None:
    with pytest.raises(BrokerError, match=r"POST /pub\?topic=%21: 400 .*INVALID_TOPIC"):
        publish(broker, "!", b"one")


def test_a_request_to_a_stopped_daemon_says_that_it_is_stopped(broker: BrokerProcess) -> None:
    broker.stop()
    with pytest.raises(BrokerError, match=r"(?s)GET /stats.*refused; the daemon is stopped.*NSQ: bye"):
        broker.stats()


def test_a_daemon_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(
        BrokerError, match=r"(?s)ended with exit code 2 before it served; the end of its log.*-max-msg-size"
    ):
        BrokerProcess(tmp_path, ["--max-msg-size=none"]).__enter__()


def test_a_daemon_that_died_is_reported_by_its_stop(broker: BrokerProcess) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerError, match="ended with exit code -9"):
        broker.stop()


def test_a_started_daemon_is_not_started_twice(broker: BrokerProcess) -> None:
    with pytest.raises(BrokerError, match="started already"):
        broker.start()


def test_no_daemon_outlives_a_test_process_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pyqd.testing import BrokerProcess\nbroker = BrokerProcess(sys.argv[1])\nbroker.start()\n"
        "print(broker.pid, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, 0)
        process.kill()
    wait_until(lambda: "NSQ: bye" in (tmp_path / LOG_NAME).read_text(), "the daemon has stopped")
    wait_until(lambda: has_ended(pid), "the process has ended")


def has_ended(pid: int) -> bool:
    """Return True if a process is gone, or only waits to be collected by the system's first process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_reading_loads_neither_gevent_nor_compiled_code(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pyqd.testing import BrokerProcess\n"
        "with BrokerProcess(sys.argv[1]) as broker:\n"
        "    broker.request('POST', '/pub', b'one', topic='orders')\n"
        "    assert broker.published('orders') == [b'one']\n"
        "print([name for name in sys.modules if name.startswith(('gevent', 'greenlet', 'pyqd.hot'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "[]\n"
