"""Answers that the publishing thread receives from the socket itself, without the selector."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyqd.client import Producer
from pyqd.client.engine import link
from pyqd.client.engine.poller import SocketPoller
from tests.support.publish_broker import PublishBroker, ok
from tests.support.scripted_broker import ERROR, frame
from tests.support.server import REPOSITORY, WAIT_S

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

GEVENT = """
from gevent import monkey
monkey.patch_all()
import socket
from pyqd.client.engine.link import let_wait
one, other = socket.socketpair()
with one, other:
    print(let_wait(one), one.gettimeout())
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have recv() wait for an answer however slow the machine is."""
    monkeypatch.setattr(link, "RECEIVE_S", WAIT_S)


@pytest.fixture
def selecting(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Threads that have called SocketPoller.select(), in order."""
    threads: list[threading.Thread] = []
    select = SocketPoller.select

    def noting(self: SocketPoller, timeout_s: float | None) -> object:
        threads.append(threading.current_thread())
        return select(self, timeout_s)

    monkeypatch.setattr(SocketPoller, "select", noting)
    return threads


@pytest.mark.usefixtures("patient")
def test_an_answer_is_received_without_the_selector(
    address: str, topic: str, selecting: list[threading.Thread]
) -> None:
    with Producer(address) as producer:
        producer.publish(topic, b"connects")
        selecting.clear()
        for _ in range(20):
            producer.publish(topic, b"x")
        assert threading.current_thread() not in selecting


def test_a_late_answer_is_awaited_with_the_selector(
    scripted: PublishBroker, selecting: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(scripted.address) as producer:
        producer.publish("t", b"connects")
        has_selected = threading.Event()
        select = SocketPoller.select

        def noting(self: SocketPoller, timeout_s: float | None) -> object:
            has_selected.set()
            return select(self, timeout_s)

        monkeypatch.setattr(SocketPoller, "select", noting)
        scripted.answer = lambda publish: ok(publish) if has_selected.wait(WAIT_S) else None
        producer.publish("t", b"x")
        assert has_selected.is_set()


@pytest.mark.usefixtures("patient")
def test_timers_and_callbacks_run_between_publishes(scripted: PublishBroker) -> None:
    with Producer(scripted.address) as producer:
        producer.publish("t", b"connects")
        engine, seen = producer._engine, list[str]()
        with engine.lock:
            engine.call_later(0.0, lambda: seen.append("timer"))
        producer.publish("t", b"x")
        engine.post(lambda: seen.append("posted"))
        producer.publish("t", b"x")
        assert seen == ["timer", "posted"]


@pytest.mark.usefixtures("patient")
def test_a_connection_that_breaks_meanwhile_is_opened_again(scripted: PublishBroker) -> None:
    with Producer(scripted.address) as producer:
        producer.publish("t", b"connects")
        scripted.answer = lambda publish: ok(publish) if publish.number > 2 else None
        producer.publish("t", b"x")
        assert (scripted.bodies(), scripted.connection_count) == ([b"connects", b"x", b"x"], 2)


def test_another_thread_may_close_the_link_that_is_waited_for(scripted: PublishBroker) -> None:
    with Producer(scripted.address) as producer:
        producer.publish("t", b"connects")
        engine = producer._engine
        (waited,) = (entry[0] for entry in producer._publishing._ready)

        def close() -> None:
            with engine.lock:
                waited.close()

        closing = threading.Thread(target=close)
        with engine.lock:
            closing.start()
            while waited.is_open:
                waited.receive_waiting(engine.lock)
        closing.join(WAIT_S)
        assert not waited.can_wait


class LateSocket:
    """Socket whose bytes come while its producer is closed."""

    def __init__(self, sock: Any, close: Callable[[], None]) -> None:
        self._sock = sock
        self._close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, _count: int) -> bytes:
        self._close()
        return frame(ERROR, b"E_INVALID")


def test_bytes_of_a_link_that_is_closed_meanwhile_are_ignored(scripted: PublishBroker) -> None:
    with Producer(scripted.address) as producer:
        producer.publish("t", b"connects")
        engine = producer._engine
        (waited,) = (entry[0] for entry in producer._publishing._ready)
        late: Any = LateSocket(waited._socket, producer._publishing.close)
        waited._socket = late
        with engine.lock:
            waited.receive_waiting(engine.lock)
        assert producer.stats()["published"] == 1


def test_a_socket_of_the_system_may_wait() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert link.let_wait(one)
        with pytest.raises(BlockingIOError):
            one.recv(1)
        with pytest.raises(BlockingIOError):
            one.recv(1, link.DONT_WAIT)


def test_a_socket_of_gevent_may_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GEVENT], cwd=REPOSITORY, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["False", "0.0"], "")
