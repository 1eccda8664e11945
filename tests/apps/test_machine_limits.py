"""Limits of the machine: new connections and topics are refused with the remedy, old ones go on, and a
restart works.
"""

import contextlib
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.nsq import ERROR, Client, Closed, identify, sub
from tests.support.server import Daemon, Implementation, daemons_running, patched_pyqd, wait_until

WAIT_S = 20.0
ADDRESS_SPACE_KB = 8 << 20
ROOM_BYTES = (64 << 20) + (16 << 20)
TOPICS_MAX = 5000
BODIES = [bytes([number]) * 1000 for number in range(250)]


# The daemon, which can start no thread when it listens, and whose hub has a thread that is busy.
NO_MORE_THREADS = """
import threading
import gevent.threadpool
from pyqd.apps.daemon import Daemon

start = Daemon.start

def refuse(*_arguments):
    raise RuntimeError("can't start new thread")

def start_and_refuse(self):
    start(self)
    gevent.threadpool.start_new_thread = refuse
    self.hub.threadpool.spawn(threading.Event().wait, 600)

Daemon.start = start_and_refuse
"""


def limited(*limits: str) -> Implementation:
    """Return the daemon under limits of the shell's ulimit."""
    set_limits = "".join(f"ulimit {limit}; " for limit in limits)
    return Implementation(
        "pyqd", ("/bin/sh", "-c", f'{set_limits}exec "{sys.executable}" -m pyqd.apps.daemon "$@"', "sh")
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    with daemons_running() as start_daemon:
        yield lambda implementation, *flags: start_daemon(Daemon(implementation, tmp_path, flags))


def topics_until_refused(daemon: Daemon) -> tuple[int, bytes]:
    """Create topics with a channel each. Returns: how many there are, and the answer that refused the next."""
    for number in range(TOPICS_MAX):
        for path in (f"/topic/create?topic=t{number}", f"/channel/create?topic=t{number}&channel=c"):
            reply = daemon.http("POST", path)
            if reply.status != 200:
                assert reply.status == 503
                return number, reply.body
    raise AssertionError("nothing was refused")


def fill_and_drain(client: Client, topic: str) -> None:
    """Publish enough to need more segments, and take all of it."""
    for _ in range(4):
        client.mpub(topic, BODIES)
    client.sub(topic, "c", rdy_count=100)
    for _ in range(4 * len(BODIES)):
        client.fin(client.read_message())


def expect_refusal_and_service(daemon: Daemon, code: bytes, remedy: bytes) -> None:
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(Client(daemon.tcp_address)) for _ in range(4)]
        for client in clients:
            client.expect_alive()
        count, answer = topics_until_refused(daemon)
        assert count > 15
        assert code in answer
        assert remedy in answer
        clients[3].send(sub("another", "c"))
        frame = clients[3].read_frame()
        assert frame.type == ERROR
        assert frame.data.startswith(b"E_" + code)
        assert remedy in frame.data
        ping = daemon.http("GET", "/ping")
        assert ping.status == 500
        assert remedy in ping.body
        limit = b'pyqd_machine_limit_reached{resource="%s"} 1.0' % code.removeprefix(b"OUT_OF_").lower()
        assert limit in daemon.http("GET", "/metrics").body
        assert daemon.log_text().count("LIMIT: new topics") == 1
        for number in range(3):
            fill_and_drain(clients[number], f"t{number}")


def told_by(daemon: Daemon) -> bytes:
    """Return the error that a new client gets; empty if so many were refused that it is closed without one."""
    with Client(daemon.tcp_address) as late:
        try:
            late.send(identify({}))
            frame = late.read_frame()
        except (OSError, Closed):
            return b""
        assert frame.data.startswith(b"E_TOO_MANY_CONNECTIONS limit of ")
        return frame.data


def test_without_an_arena_the_limit_of_mappings_refuses_topics(start: Callable[..., Daemon]) -> None:
    # A sync keeps the files that it writes mapped, also those of deleted topics, and takes its time on a busy disk.
    daemon = start(limited(f"-v {ADDRESS_SPACE_KB}"), "--max-mapped-files=60", "--sync-timeout=1h")
    expect_refusal_and_service(daemon, b"OUT_OF_MAPPINGS", b"vm.max_map_count")
    for number in range(3, 12):
        assert daemon.http("POST", f"/topic/delete?topic=t{number}").status == 200
    wait_until(lambda: daemon.http("POST", "/topic/create?topic=another").status == 200, "there is room", WAIT_S)
    daemon.stop()
    daemon.start()
    with Client(daemon.tcp_address) as client:
        fill_and_drain(client, "t0")


def test_without_memory_topics_are_refused_until_there_is_some(start: Callable[..., Daemon]) -> None:
    daemon = start(limited(f"-v {ADDRESS_SPACE_KB}"))
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
    limit_bytes = pages * os.sysconf("SC_PAGESIZE") + ROOM_BYTES
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit_bytes, ADDRESS_SPACE_KB << 10))
    expect_refusal_and_service(daemon, b"OUT_OF_MEMORY", b"ulimit -v")
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_KB << 10, ADDRESS_SPACE_KB << 10))
    wait_until(lambda: daemon.http("POST", "/topic/create?topic=another").status == 200, "there is memory", WAIT_S)
    wait_until(lambda: daemon.http("GET", "/ping").status == 200, "health is good again", WAIT_S)


@pytest.mark.parametrize("flags", [[], ["--sync-fin"]])
def test_all_threads_run_when_the_daemon_listens_so_that_none_takes_memory_later(
    start: Callable[..., Daemon], flags: list[str]
) -> None:
    daemon = start(limited(f"-v {ADDRESS_SPACE_KB}"), "--sync-timeout=100ms", *flags)
    threads = len(os.listdir(f"/proc/{daemon.pid}/task"))
    with Client(daemon.tcp_address) as client:
        client.expect_alive()
        fill_and_drain(client, "t")
    wait_until(lambda: daemon.http("GET", "/ping").status == 200, "it answers", WAIT_S)
    wait_until(lambda: has_synced(daemon), "a sync has ended", WAIT_S)
    assert len(os.listdir(f"/proc/{daemon.pid}/task")) == threads


def has_synced(daemon: Daemon) -> bool:
    synced = re.compile(rb"^pyqd_sync_duration_seconds_count [1-9]", re.MULTILINE)
    return synced.search(daemon.http("GET", "/metrics").body) is not None


def test_syncs_go_on_at_the_limit_of_threads_while_requests_wait_in_the_threads_of_the_hub(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = start(patched_pyqd(tmp_path / "threads.py", NO_MORE_THREADS), "--sync-fin", "--sync-timeout=100ms")
    with Client(daemon.tcp_address) as client:
        client.mpub("t", [b"first", b"second"])
        wait_until(lambda: has_synced(daemon), "a sync has ended", WAIT_S)
        client.sub("t", "c", rdy_count=1)
        for _ in range(2):
            client.fin(client.read_message())
    assert daemon.http("GET", "/ping").status == 200


def test_idle_connections_leave_descriptors_for_storage(start: Callable[..., Daemon]) -> None:
    daemon = start(limited("-n 160"))
    with contextlib.ExitStack() as held:
        publisher = held.enter_context(Client(daemon.tcp_address))
        publisher.pub("first", b"x")
        for _ in range(300):
            held.enter_context(socket.create_connection(daemon.tcp_address, WAIT_S))
        wait_until(lambda: b"RLIMIT_NOFILE" in told_by(daemon), "a client is told why it is refused", WAIT_S)
        for number in range(30):
            publisher.pub(f"new{number}", b"x" * 100_000)
        for _ in range(40):
            publisher.mpub("many", BODIES)
    wait_until(lambda: daemon.http("GET", "/ping").status == 200, "there is a place again", WAIT_S)
