"""Producers of both faces whose brokers die, hang, refuse, or are no brokers."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyqd.client import (
    BufferFullError,
    ClosedError,
    NotConnectedError,
    Outgoing,
    ProtocolError,
    QuotaError,
    RefusedError,
    TimedOutError,
    UnansweredError,
    publishing,
)
from tests.support.http_stub import http_stub, json_answer
from tests.support.publish_broker import ok, publish_brokers
from tests.support.scripted_broker import ERROR, RESPONSE, frame
from tests.support.server import Daemon, daemons_running, free_port, pyqd, wait_until

WAIT_S = 20.0
# Connections are tried again soon, so that a test takes no longer than its daemon's start.
SOON = {"reconnect_first": 0.01, "reconnect_max": 0.1}


@contextlib.contextmanager
def swallowing():
    """Give an address at which connections neither succeed nor fail: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(listener.getsockname())
        yield listener.getsockname()


def never(_publish):
    return b""


def hang_up(_publish):
    return None


def producer_of(address):
    """Return a broker in the answer of a lookup daemon."""
    return {"broadcast_address": address[0], "tcp_port": int(address[1]), "http_port": 1}


def exiting(publish):
    """Refuse as a broker that stops."""
    name = publish.line.split()[0].decode()
    return frame(ERROR, f"E_{name}_FAILED {name} failed exiting".encode())


def address_of(daemon):
    return f"127.0.0.1:{daemon.tcp_port}"


@pytest.fixture
def two(tmp_path):
    """Two daemons."""
    with daemons_running() as start:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            made.append(start(Daemon(pyqd(), tmp_path / name)))
        yield made


class TestNoBroker:
    @pytest.mark.slow
    def test_a_publish_fails_with_the_cause_if_nothing_listens(self, face):
        address = f"127.0.0.1:{free_port()}"
        producer = face.producer(address, timeout=0.3)
        with pytest.raises(NotConnectedError, match=f"{address}: Connection refused"):
            producer.publish("t", b"x")
        future = producer.submit("t", b"x")
        with pytest.raises(NotConnectedError, match="Connection refused"):
            future.result(WAIT_S)
        assert producer.stats()["failed"] == 2
        assert "Connection refused" in producer.stats()["brokers"][address]["error"]

    @pytest.mark.slow
    def test_a_publish_waits_for_a_stopped_broker_as_long_as_the_setting_says(self, face, daemon):
        address = address_of(daemon)
        producer = face.producer(address, timeout=WAIT_S, not_connected_timeout=0.3)
        producer.publish("t", b"before")
        daemon.stop()
        # A message that is sent before the loss is noticed may have been published.
        wait_until(lambda: not producer.stats()["brokers"][address]["connected"], "the connection is lost")
        for _ in range(2):
            with pytest.raises(NotConnectedError, match=rf"not_connected_timeout=0\.3: {address}: Connection refused"):
                producer.publish("t", b"x")
        daemon.start()
        producer.publish("t", b"after")

    @pytest.mark.slow
    def test_many_publishes_that_wait_share_the_attempts_to_connect(self, face):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            producer = face.producer("{}:{}".format(*listener.getsockname()), not_connected_timeout=0.5)
            futures = [producer.submit("t", b"x") for _ in range(100)]
            count = 0
            while not all(future.done() for future in futures):
                # A proxy accepts and hangs up while its broker is away.
                with contextlib.suppress(TimeoutError):
                    listener.settimeout(0.1)
                    listener.accept()[0].close()
                    count += 1
        assert all(isinstance(future.exception(), NotConnectedError) for future in futures)
        assert 2 <= count < 50

    @pytest.mark.slow
    def test_a_slow_handshake_is_awaited(self, face):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            producer = face.producer("{}:{}".format(*listener.getsockname()), not_connected_timeout=0.1)
            future = producer.submit("t", b"x")
            listener.settimeout(WAIT_S)
            client, _ = listener.accept()
            with client, client.makefile("rb") as stream:
                time.sleep(1.0)
                client.sendall(frame(RESPONSE, b"OK"))
                assert any(b"PUB" in line for line in stream)
                client.sendall(frame(RESPONSE, b"OK"))
                assert future.result(WAIT_S) is None

    @pytest.mark.slow
    def test_a_slow_answer_of_a_lookup_daemon_is_awaited(self, face, scripted):
        def answer(_path, _query):
            time.sleep(1.0)
            return json_answer({"producers": [producer_of(scripted.address.split(":"))]})

        with http_stub(answer) as stub:
            face.producer(lookupd=stub.address, not_connected_timeout=0.1).publish("t", b"x")
        assert scripted.bodies() == [b"x"]

    @pytest.mark.slow
    def test_attempts_that_hang_do_not_prolong_the_wait_for_ever(self, face):
        with swallowing() as one, swallowing() as other:
            addresses = ["{}:{}".format(*address) for address in (one, other)]
            producer = face.producer(addresses, timeout=WAIT_S, connect_timeout=0.4, not_connected_timeout=0.1)
            with pytest.raises(NotConnectedError, match=r"not_connected_timeout=0\.1: .* no connection within 0\.4 s"):
                producer.publish("t", b"x")

    @pytest.mark.slow
    def test_what_was_sent_may_have_been_published_although_the_broker_stays_away(self, face, scripted):
        scripted.answer = lambda _publish: scripted._listener.close()
        with pytest.raises(TimedOutError, match=r"not_connected_timeout=0\.1: .*; the message may have been published"):
            face.producer(scripted.address, not_connected_timeout=0.1).publish("t", b"x")

    @pytest.mark.slow
    def test_a_name_that_does_not_exist(self, face):
        producer = face.producer("no-such-host.invalid", timeout=1.0)
        with pytest.raises(NotConnectedError, match="no-such-host"):
            producer.publish("t", b"x")

    @pytest.mark.slow
    def test_a_unix_socket_that_does_not_exist(self, face, tmp_path):
        producer = face.producer(str(tmp_path / "none"), timeout=0.3)
        with pytest.raises(NotConnectedError, match="No such file"):
            producer.publish("t", b"x")

    @pytest.mark.slow
    def test_an_address_of_a_name_that_swallows_packets_is_passed_over(self, face, scripted, monkeypatch):
        host, port = scripted.address.split(":")
        with swallowing() as hole:
            look_up = socket.getaddrinfo

            def two_addresses(name, *more, **most):
                if name != "both":
                    return look_up(name, *more, **most)
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in (hole, (host, int(port)))]

            monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
            face.producer("both:4150", connect_timeout=1.0).publish("t", b"x")
        assert scripted.bodies() == [b"x"]

    def test_a_port_that_speaks_http_is_named_at_once(self, face, daemon):
        producer = face.producer(f"127.0.0.1:{daemon.http_port}")
        with pytest.raises(ProtocolError, match="this is an HTTP port; give the broker's TCP port"):
            producer.publish("t", b"x")

    @pytest.mark.slow
    def test_a_broker_that_accepts_and_never_answers(self, face):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = "{}:{}".format(*listener.getsockname())
            producer = face.producer(address, timeout=1.0, connect_timeout=0.2)
            with pytest.raises(NotConnectedError, match=r"no connection within 0\.2 s"):
                producer.publish("t", b"x")

    @pytest.mark.parametrize("greeting", [b"\0" * 64, b"\xff" * 64, frame(7, b"x"), frame(RESPONSE, b"[1, 2]")])
    def test_bytes_that_are_no_answer_to_identify(self, face, scripted, greeting):
        scripted.greeting = greeting
        with pytest.raises(ProtocolError, match="NSQ's TCP port"):
            face.producer(scripted.address).publish("t", b"x")

    @pytest.mark.parametrize("info", [{"max_rdy_count": "many"}, {"msg_timeout": -5}, {"msg_timeout": [1]}])
    def test_numbers_that_are_none_in_the_answer_to_identify(self, face, scripted, info):
        scripted.info = info
        with pytest.raises(ProtocolError, match=next(iter(info))):
            face.producer(scripted.address).publish("t", b"x")

    def test_a_refused_identify_is_reported_at_once(self, face, scripted):
        scripted.greeting = frame(ERROR, b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid")
        with pytest.raises(RefusedError, match="heartbeat interval"):
            face.producer(scripted.address).publish("t", b"x")

    @pytest.mark.flags("-max-connections=1")
    def test_a_broker_that_is_full_is_named(self, face, daemon):
        with socket.create_connection(daemon.tcp_address) as taken:
            # The broker accepts connections in their order.
            taken.sendall(b"  V2")
            producer = face.producer(address_of(daemon), timeout=1.0, **SOON)
            with pytest.raises(NotConnectedError, match="E_TOO_MANY_CONNECTIONS") as caught:
                producer.publish("t", b"x")
            assert isinstance(caught.value.__cause__, QuotaError)
        # The quota is free again: the producer goes on by itself.
        producer.publish("t", b"x", timeout=WAIT_S)

    @pytest.mark.flags("-max-topics=1")
    def test_a_quota_of_topics(self, face, daemon):
        producer = face.producer(address_of(daemon))
        producer.publish("first", b"x")
        with pytest.raises(QuotaError, match="E_TOO_MANY_TOPICS"):
            producer.publish("second", b"x")
        producer.publish("first", b"y")

    @pytest.mark.flags("-max-topic-bytes=262144")
    def test_a_quota_of_space(self, face, daemon):
        producer = face.producer(address_of(daemon))

        def fill():
            for _ in range(100):
                producer.publish("full", bytes(20_000))

        with pytest.raises(QuotaError, match=r"E_PUB_FAILED .* the topic's limit of 262144 bytes is reached"):
            fill()
        with pytest.raises(QuotaError, match="E_MPUB_FAILED"):
            producer.publish_many("full", [bytes(20_000)] * 2)
        with pytest.raises(QuotaError, match="E_DPUB_FAILED"):
            producer.publish("full", bytes(20_000), delay=60)
        producer.publish("empty", b"x")

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("less than 1048576 bytes would be left free on the disk", QuotaError),
            ("write /data/t.diskqueue.000001.dat: no space left on device", QuotaError),
            ("failed to write segment 3 - Disk quota exceeded", QuotaError),
            ("failed to write segment 3 - Input/output error", RefusedError),
        ],
    )
    def test_a_lack_of_space_is_told_from_a_broken_disk(self, face, scripted, text, kind):
        scripted.answer = lambda publish: frame(ERROR, f"E_PUB_FAILED PUB failed {text}".encode())
        with pytest.raises(RefusedError, match=text) as caught:
            face.producer(scripted.address).publish("t", b"x")
        assert type(caught.value) is kind


class TestThreads:
    """Python starts no thread at a container's limit, and 3.12 starts none while the interpreter ends."""

    @pytest.fixture(autouse=True)
    def no_threads(self, monkeypatch):
        real_start = threading.Thread.start

        def start(thread):
            if thread.name.startswith("pyqd "):
                raise RuntimeError("can't start new thread")
            real_start(thread)

        monkeypatch.setattr(threading.Thread, "start", start)

    def test_a_publish_needs_none_of_its_own(self, face, scripted, caplog):
        # A name, which is otherwise looked up in a thread.
        producer = face.producer(scripted.address.replace("127.0.0.1", "localhost"), **SOON)
        producer.publish("t", b"1")
        scripted.hang_up()
        producer.publish("t", b"2")
        assert scripted.bodies()[0] == b"1"
        assert scripted.bodies()[-1] == b"2"
        assert "can't start new thread; heartbeats are answered only while the program waits" in caplog.text

    @pytest.mark.slow
    def test_a_lookup_daemon_is_asked_by_the_thread_that_waits(self, face):
        producer = face.producer(lookupd=f"127.0.0.1:{free_port()}", lookupd_poll_interval=0.05, timeout=0.3)
        with pytest.raises(NotConnectedError, match="Connection refused"):
            producer.publish("t", b"x")


class TestConnect:
    def test_it_returns_when_the_brokers_are_reached(self, face, scripted):
        producer = face.producer(scripted.address)
        producer.connect()
        assert producer.stats()["brokers"][scripted.address]["connected"]
        producer.connect()
        assert scripted.connection_count == 1

    def test_it_names_a_broker_that_cannot_be_reached(self, face, scripted):
        silent = f"127.0.0.1:{free_port()}"
        producer = face.producer(scripted.address, silent)
        with pytest.raises(NotConnectedError, match=f"{silent}: Connection refused"):
            producer.connect()
        # The other broker is there.
        producer.publish("t", b"x")

    def test_a_broker_that_hangs_up_after_identify_was_reached(self, face, scripted):
        scripted.answer = hang_up
        producer = face.producer(scripted.address, retry_unanswered=False)
        future = producer.submit("t", b"x")
        producer.connect()
        with pytest.raises(UnansweredError):
            future.result(WAIT_S)

    def test_several_threads_may_wait(self, face, scripted):
        producer = face.producer(scripted.address)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(producer.connect) for _ in range(4)]:
                done.result(WAIT_S)

    def test_a_closed_producer_is_refused(self, face, scripted):
        producer = face.producer(scripted.address)
        producer.close()
        with pytest.raises(ClosedError):
            producer.connect()


class TestAnswers:
    @pytest.mark.slow
    def test_a_broker_that_never_answers(self, face, scripted):
        scripted.answer = never
        producer = face.producer(scripted.address)
        with pytest.raises(TimedOutError, match="may have been published") as caught:
            producer.publish("t", b"x", timeout=0.2)
        assert caught.value.may_have_happened is True
        assert isinstance(caught.value, TimeoutError)
        assert producer.stats()["pending"] == 0

    @pytest.mark.slow
    def test_a_submitted_message_without_an_answer_fails_too(self, face, scripted):
        scripted.answer = never
        producer = face.producer(scripted.address, timeout=0.3, **SOON)
        with pytest.raises(TimedOutError) as caught:
            producer.submit("t", b"x").result(WAIT_S)
        assert caught.value.may_have_happened is True

    @pytest.mark.slow
    def test_without_a_connection_nothing_has_happened(self, face):
        producer = face.producer(f"127.0.0.1:{free_port()}", timeout=0.2)
        with pytest.raises(NotConnectedError) as caught:
            producer.publish("t", b"x")
        assert not isinstance(caught.value, UnansweredError)

    @pytest.mark.slow
    def test_a_late_answer_is_not_taken_for_that_of_the_next_publish(self, face, scripted):
        late = threading.Event()

        def answer(publish):
            if publish.body == b"slow":
                late.wait(WAIT_S)
                return frame(RESPONSE, b"OK")
            return frame(ERROR, b"E_PUB_FAILED PUB failed") if publish.body == b"refused" else ok(publish)

        scripted.answer = answer
        producer = face.producer(scripted.address)
        with pytest.raises(TimedOutError):
            producer.publish("t", b"slow", timeout=0.2)
        future = producer.submit("t", b"refused")
        late.set()
        with pytest.raises(RefusedError, match="E_PUB_FAILED"):
            future.result(WAIT_S)

    @pytest.mark.slow
    def test_one_impatient_publish_leaves_the_others_alone(self, face, scripted):
        late = threading.Event()

        def answer(publish):
            late.wait(WAIT_S)
            return ok(publish)

        scripted.answer = answer
        producer = face.producer(scripted.address)
        with pytest.raises(TimedOutError):
            producer.publish("t", b"impatient", timeout=0.2)
        futures = [producer.submit("t", b"%d" % number) for number in range(10)]
        # Longer than the interval at which overdue answers are looked for.
        time.sleep(0.6)
        late.set()
        for future in futures:
            future.result(WAIT_S)
        assert scripted.connection_count == 1
        assert scripted.bodies() == [b"impatient", *(b"%d" % number for number in range(10))]

    def test_an_error_between_answers_belongs_to_one_publish(self, face, scripted):
        failing = {b"3": b"E_BAD_MESSAGE PUB message too big 5 > 3", b"7": b"E_UNAUTHORIZED AUTH failed for PUB"}
        refused = set()

        def answer(publish):
            if publish.body in failing:
                refused.add(publish.body)
                return frame(ERROR, failing[publish.body])
            return ok(publish)

        scripted.answer = answer
        producer = face.producer(scripted.address)
        futures = [producer.submit("t", b"%d" % number) for number in range(10)]
        kinds = [type(future.exception(WAIT_S)).__name__ for future in futures]
        assert (
            kinds == ["NoneType"] * 3 + ["TooBigError"] + ["NoneType"] * 3 + ["AuthenticationError"] + ["NoneType"] * 2
        )
        assert set(scripted.bodies()) == {b"%d" % number for number in range(10)}

    @pytest.mark.parametrize("answer", [b"OK zzz", b"OK 1", b"what", b"", b"OK 0123456789abcdef x"])
    def test_a_wrong_answer_is_an_error(self, face, scripted, answer):
        scripted.answer = lambda _publish: frame(RESPONSE, answer)
        producer = face.producer(scripted.address)
        with pytest.raises(ProtocolError, match="instead of OK"):
            producer.publish("t", b"x")
        with pytest.raises(ProtocolError, match="instead of OK"):
            producer.submit("t", b"x").result(WAIT_S)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("answer", "greeting"),
        [(frame(9, b""), None), (None, frame(ERROR, b"E_AUTH_FAILED later"))],
        ids=["wrong bytes", "refused afterwards"],
    )
    def test_what_was_sent_is_never_said_not_to_have_happened(self, face, scripted, answer, greeting):
        def break_off(_publish):
            scripted.greeting = frame(ERROR, b"E_AUTH_FAILED later") if greeting else None
            return answer

        scripted.answer = break_off
        producer = face.producer(scripted.address, timeout=1.0, reconnect_first=0.01)
        with pytest.raises((UnansweredError, TimedOutError), match="may have been published"):
            producer.publish("t", b"x")

    def test_wrong_bytes_in_the_middle_do_not_end_a_producer(self, face, scripted):
        scripted.answer = lambda publish: frame(9, b"") if publish.number == 1 else ok(publish)
        producer = face.producer(scripted.address, reconnect_first=0.01)
        producer.publish("t", b"x")
        assert scripted.bodies() == [b"x", b"x"]

    def test_an_answer_that_nobody_asked_for_is_ignored(self, face, scripted):
        scripted.after_identify = frame(RESPONSE, b"OK") * 3
        producer = face.producer(scripted.address)
        for number in range(5):
            producer.publish("t", b"%d" % number)
        assert producer.stats()["published"] == 5

    @pytest.mark.slow
    def test_an_error_that_nobody_caused_does_not_make_a_busy_loop(self, face, scripted):
        producer = face.producer(scripted.address)
        producer.publish("t", b"x")
        scripted.after_identify = frame(ERROR, b"E_INVALID for no reason")
        scripted.hang_up()
        scripted.wait(lambda: scripted.connection_count >= 4, "attempts to connect")
        # The waits double from 0.1 s, and are halved at most.
        time.sleep(1.0)
        assert scripted.connection_count < 10
        assert "for no reason" in producer.stats()["brokers"][scripted.address]["error"]

    def test_an_answer_that_arrives_in_pieces_is_read(self, face, scripted):
        answer = frame(RESPONSE, b"OK 0123456789abcdef")
        sent = threading.Event()

        def in_pieces(_publish):
            client = scripted._clients[-1]
            for index in range(len(answer) - 1):
                client.sendall(answer[index : index + 1])
                sent.wait(0.001)
            return answer[-1:]

        scripted.answer = in_pieces
        assert face.producer(scripted.address).publish("t", b"x") == "0123456789abcdef"


class TestLostConnections:
    def test_unanswered_messages_are_sent_again(self, face, scripted):
        hung_up: list[Any] = []

        def answer(publish):
            if len(hung_up) < 3 and publish.number % 20 == 0:
                hung_up.append(publish)
                return None
            return ok(publish)

        scripted.answer = answer
        producer = face.producer(scripted.address, **SOON)
        futures = [producer.submit("t", b"%d" % number) for number in range(100)]
        for future in futures:
            future.result(WAIT_S)
        assert len(hung_up) == 3
        assert set(scripted.bodies()) == {b"%d" % number for number in range(100)}
        assert producer.stats()["retried"] > 0

    def test_unanswered_messages_fail_if_they_must_not_be_sent_again(self, face, scripted):
        scripted.answer = hang_up
        producer = face.producer(scripted.address, retry_unanswered=False)
        with pytest.raises(UnansweredError, match="may have been published"):
            producer.publish("t", b"x")
        assert scripted.bodies() == [b"x"]

    @pytest.mark.slow
    def test_a_broker_that_hangs_up_each_time_is_tried_until_the_timeout(self, face, scripted):
        scripted.answer = hang_up
        producer = face.producer(scripted.address, timeout=0.5, **SOON)
        with pytest.raises(TimedOutError) as caught:
            producer.publish("t", b"x")
        assert caught.value.may_have_happened is True

    @pytest.mark.slow
    def test_a_broker_killed_in_the_middle_of_a_pipeline(self, face, daemon):
        producer = face.producer(address_of(daemon), **SOON)
        futures = []
        for number in range(6000):
            futures.append(producer.submit("t", b"%d" % number))
            if number in (2000, 4000):
                daemon.kill()
            if number in (3000, 5000):
                daemon.start()
        for future in futures:
            future.result(WAIT_S)
        found: set[bytes] = set()
        consumer = face.consumer("t", nsqd=address_of(daemon), max_in_flight=2500)
        while len(found) < 6000:
            messages = consumer.fetch(2500, WAIT_S)
            assert messages
            found |= {message.body for message in messages}
            consumer.finish_many(messages)
        assert found == {b"%d" % number for number in range(6000)}

    def test_a_blocking_publish_waits_for_a_restart(self, face, daemon):
        producer = face.producer(address_of(daemon), **SOON)
        producer.publish("t", b"before")
        daemon.kill()
        restart = threading.Thread(target=daemon.start)
        restart.start()
        producer.publish("t", b"after")
        restart.join()
        assert daemon.topic("t")["message_count"] >= 1


class TestRefusedSetUp:
    def test_an_error_right_behind_the_answer_to_identify_refuses_no_publication(self, face, scripted):
        scripted.after_identify = frame(ERROR, b"E_INVALID the broker does not want this client")
        producer = face.producer(scripted.address, reconnect_first=0.01, reconnect_max=0.05)
        future = producer.submit("t", b"x")
        wait_until(lambda: scripted.connection_count > 1, "the second connection")
        scripted.after_identify = b""
        future.result(WAIT_S)
        assert producer.stats()["failed"] == 0


class TestTimeoutsOfSeveralLengths:
    """A publication with a short timeout behind one with a long timeout."""

    @pytest.fixture
    def patient(self):
        """Function that publishes with a long timeout in a thread, and returns its future."""
        with ThreadPoolExecutor(1) as pool:
            yield lambda producer: pool.submit(producer.publish, "t", b"patient", timeout=WAIT_S)

    @pytest.mark.slow
    def test_a_short_one_is_kept_without_a_broker(self, face, patient):
        producer = face.producer(f"127.0.0.1:{free_port()}", timeout=0.3)
        long = patient(producer)
        wait_until(lambda: producer.stats()["pending"] == 1, "the first publication")
        with pytest.raises(NotConnectedError):
            producer.submit("t", b"x").result(WAIT_S / 4)
        assert not long.done()
        producer.close(0)
        with pytest.raises(ClosedError):
            long.result(WAIT_S)

    @pytest.mark.slow
    def test_a_short_one_is_kept_by_a_broker_that_is_slow(self, face, scripted, patient):
        def wait(publish):
            scripted.released.wait(WAIT_S)
            return ok(publish)

        scripted.answer = wait
        producer = face.producer(scripted.address, timeout=0.3)
        long = patient(producer)
        scripted.wait(lambda: len(scripted.published) == 1, "the first publication")
        with pytest.raises(TimedOutError) as caught:
            producer.submit("t", b"x").result(WAIT_S / 4)
        assert caught.value.may_have_happened is True
        scripted.released.set()
        # The connection stays for the first one, and the late answer to the second one is ignored.
        long.result(WAIT_S)
        producer.publish("t", b"after")
        assert scripted.connection_count == 1
        assert producer.stats()["failed"] == 1

    @pytest.mark.slow
    def test_a_silent_broker_is_left_when_the_short_one_is_over(self, face, scripted, patient, monkeypatch):
        monkeypatch.setattr(publishing, "SILENT_S", 0.1)
        scripted.answer = lambda publish: ok(publish) if scripted.connection_count > 1 else b""
        producer = face.producer(scripted.address, timeout=0.3, **SOON)
        long = patient(producer)
        scripted.wait(lambda: len(scripted.published) == 1, "the first publication")
        with pytest.raises(TimedOutError):
            producer.submit("t", b"x").result(WAIT_S / 4)
        long.result(WAIT_S)
        assert scripted.connection_count == 2


class TestSeveralBrokers:
    def test_all_brokers_are_used(self, face):
        with publish_brokers(3) as brokers:
            producer = face.producer([broker.address for broker in brokers])
            producer.publish("t", b"connects")
            for broker in brokers:
                broker.wait_for_connection()
            wait_until(lambda: all(b["connected"] for b in producer.stats()["brokers"].values()), "all are ready")
            for number in range(30):
                producer.publish("t", b"%d" % number)
            assert min(len(broker.published) for broker in brokers) >= 9

    @pytest.mark.slow
    def test_one_that_is_killed_is_replaced_by_the_other(self, face, two):
        producer = face.producer([address_of(daemon) for daemon in two], timeout=5.0)
        for number in range(50):
            producer.publish("t", b"%d" % number)
        two[0].kill()
        for number in range(50, 100):
            producer.publish("t", b"%d" % number)
        stats = producer.stats()["brokers"]
        assert stats[address_of(two[0])]["connected"] is False
        assert stats[address_of(two[1])]["connected"] is True
        two[0].start()
        wait_until(lambda: producer.stats()["brokers"][address_of(two[0])]["connected"], "the broker is used again")

    @pytest.mark.slow
    def test_messages_of_one_that_hangs_are_published_by_the_other(self, face, two):
        hung, alive = two
        producer = face.producer(
            [address_of(daemon) for daemon in two], heartbeat_interval=1.0, connect_timeout=0.5, reconnect_max=0.5
        )
        producer.publish("t", b"connects")
        wait_until(lambda: all(each["connected"] for each in producer.stats()["brokers"].values()), "both are ready")
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            futures = [producer.submit("t", b"%d" % number) for number in range(100)]
            for future in futures:
                future.result(WAIT_S)
            assert alive.topic("t")["message_count"] >= 99
        finally:
            os.kill(hung.pid, signal.SIGCONT)
        wait_until(lambda: producer.stats()["brokers"][address_of(hung)]["connected"], "it is used again")

    @pytest.mark.slow
    def test_the_circuit_breaker_spares_a_dead_broker(self, face):
        with publish_brokers(2) as (dead, alive):
            dead.greeting = b""
            dead.answer = hang_up
            # It accepts and hangs up, which looks like a broker that crashes at each start.
            dead.after_identify = frame(ERROR, b"E_INVALID crashes")
            producer = face.producer(dead.address, alive.address, reconnect_first=0.01, reconnect_max=60.0)
            deadline_s = time.monotonic() + 1.0
            while time.monotonic() < deadline_s:
                producer.publish("t", b"x")
            # Five attempts open the breaker; the next one comes seconds later.
            assert dead.connection_count <= 6
            assert len(alive.published) > 20

    @pytest.mark.slow
    def test_an_open_breaker_lets_one_attempt_through(self, face):
        with socket.socket() as listener:
            # Bound without listening: connections are refused.
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(WAIT_S)
            address = "{}:{}".format(*listener.getsockname())
            producer = face.producer(address, reconnect_first=0.01, reconnect_max=0.02)
            future = producer.submit("t", b"x")

            def breaker():
                return producer.stats()["brokers"][address]["breaker"]

            wait_until(lambda: breaker() == "open", "the breaker opens")
            listener.listen()
            # A broker that hangs up without an answer opens the breaker again.
            client, _ = listener.accept()
            with client:
                assert breaker() == "half-open"
            client, _ = listener.accept()
            with client, client.makefile("rb") as stream:
                assert breaker() == "half-open"
                client.sendall(frame(RESPONSE, b"OK"))
                assert any(b"PUB" in line for line in stream)
                assert breaker() == "closed"
                client.sendall(frame(RESPONSE, b"OK"))
                assert future.result(WAIT_S) is None

    def test_a_wrong_port_beside_a_right_one_does_not_fail_a_publish(self, face, daemon):
        producer = face.producer(f"127.0.0.1:{daemon.http_port}", address_of(daemon))
        for number in range(20):
            producer.publish("t", b"%d" % number)
        assert daemon.topic("t")["message_count"] == 20


class TestStoppingBrokers:
    """A refusal with the text `exiting` means that the broker has stored nothing."""

    def test_another_broker_takes_what_one_that_stops_refuses(self, face):
        with publish_brokers(2) as (stopping, other):
            producer = face.producer(stopping.address, other.address, retry_unanswered=False)
            producer.connect()
            stopping.answer = exiting
            futures = [producer.submit("t", b"%d" % number) for number in range(20)]
            producer.publish_many("t", [b"one", b"two"])
            producer.publish("t", b"late", delay=1.0)
            for future in futures:
                future.result(WAIT_S)
            assert stopping.published
            assert len(other.published) == 22

    def test_the_only_broker_gets_it_again_when_it_accepts(self, face, scripted):
        scripted.answer = lambda publish: exiting(publish) if publish.number < 4 else ok(publish)
        face.producer(scripted.address, timeout=WAIT_S).publish("t", b"x")
        assert scripted.bodies() == [b"x"] * 4

    def test_without_another_broker_the_publish_waits_for_its_timeout_and_names_the_reason(self, face, scripted):
        scripted.answer = exiting
        with pytest.raises(NotConnectedError, match="E_PUB_FAILED PUB failed exiting") as caught:
            face.producer(scripted.address, timeout=0.5, **SOON).publish("t", b"x")
        assert not isinstance(caught.value, UnansweredError)

    def test_a_batch_of_which_a_part_was_stored_is_sent_again_only_if_it_may_exist_twice(self, face, scripted):
        # Without ids the broker is nsqd, which gets messages with due times one by one.
        scripted.answer = lambda publish: exiting(publish) if publish.number == 2 else ok(publish)
        messages = [Outgoing(b"one", delay=1.0), Outgoing(b"two", delay=2.0)]
        with pytest.raises(UnansweredError, match="exiting; the message may have been published"):
            face.producer(scripted.address, retry_unanswered=False).publish_many("t", messages)
        scripted.published.clear()
        face.producer(scripted.address, **SOON).publish_many("t", messages)
        assert scripted.bodies() == [b"one", b"two", b"one", b"two"]

    @pytest.mark.slow
    @pytest.mark.parametrize("waits", [True, False], ids=["a publish that waits", "a publish that comes then"])
    def test_the_only_broker_is_used_within_half_a_second_of_its_return(self, face, waits):
        with socket.socket() as listener:
            # Bound without listening: connections are refused.
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(WAIT_S)
            producer = face.producer("{}:{}".format(*listener.getsockname()), reconnect_first=0.01)
            future = producer.submit("t", b"waits") if waits else None
            with pytest.raises(NotConnectedError):
                producer.publish("t", b"x", timeout=1.5)
            listener.listen()
            returned_s = time.monotonic()
            future = future or producer.submit("t", b"comes then")
            client, _ = listener.accept()
            assert time.monotonic() - returned_s < 0.5
            client.close()

    @pytest.mark.slow
    def test_the_only_broker_of_a_lookup_daemon_is_used_within_half_a_second_of_its_return(self, face):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(WAIT_S)
            named = [producer_of(listener.getsockname())]
            with http_stub(lambda path, query: json_answer({"producers": named})) as stub:
                producer = face.producer(lookupd=stub.address, timeout=1.0)
                with pytest.raises(NotConnectedError, match="refused"):
                    producer.publish("t", b"x")
                # The broker has stopped, and the lookup daemon has forgotten it.
                named.clear()
                with pytest.raises(NotConnectedError):
                    producer.publish("t", b"x", timeout=2.0)
                listener.listen()
                returned_s = time.monotonic()
                producer.submit("t", b"x")
                client, _ = listener.accept()
                assert time.monotonic() - returned_s < 0.5
                client.close()

    @pytest.mark.slow
    def test_a_publish_that_waits_learns_soon_of_the_first_broker_of_a_lookup_daemon(self, face, scripted):
        named: list[dict[str, Any]] = []
        with http_stub(lambda path, query: json_answer({"producers": named})) as stub:
            future = face.producer(lookupd=stub.address).submit("t", b"x")
            wait_until(lambda: bool(stub.requests), "the first question")
            named.append(producer_of(scripted.address.split(":")))
            future.result(5.0)

    @pytest.mark.slow
    def test_a_drain_fails_no_publish_if_there_is_another_broker(self, face, two):
        producer = face.producer([address_of(daemon) for daemon in two], timeout=WAIT_S)
        producer.connect()
        published = 0
        with ThreadPoolExecutor() as pool:
            ended = pool.submit(two[0].wait_ended)
            assert two[0].http("POST", "/drain").status == 200
            while not ended.done() or published < 200:
                producer.publish("t", b"x")
                published += 1
        assert two[1].topic("t")["message_count"] > 0


class TestBuffer:
    @pytest.mark.slow
    def test_it_is_bounded_without_a_broker(self, face):
        producer = face.producer(f"127.0.0.1:{free_port()}", timeout=0.5, max_pending_bytes=100_000)

        def fill():
            for _ in range(150):
                producer.submit("t", bytes(1000))
                assert producer.stats()["pending_bytes"] <= 101_200

        if face.name == "asyncio":
            with pytest.raises(BufferFullError, match="max_pending_bytes=100000"):
                fill()
        else:
            # It waits until the first messages have failed, at most for its own timeout.
            with contextlib.suppress(BufferFullError):
                fill()
        assert producer.stats()["pending_bytes"] + 1200 * producer.stats()["failed"] >= 100_000

    def test_a_message_larger_than_the_buffer_passes_alone(self, face, scripted):
        producer = face.producer(scripted.address, max_pending_bytes=1000)
        producer.publish("t", bytes(100_000))
        assert [len(body) for body in scripted.bodies()] == [100_000]

    @pytest.mark.slow
    def test_space_is_there_again_after_answers(self, face, scripted):
        producer = face.producer(scripted.address, max_pending_bytes=10_000)
        for _ in range(300):
            try:
                producer.submit("t", bytes(1000))
            except BufferFullError:
                assert producer.flush(WAIT_S)
                producer.submit("t", bytes(1000))
        assert producer.flush(WAIT_S)
        assert len(scripted.published) == 300

    @pytest.mark.slow
    def test_threads_wait_for_space(self, face, scripted):
        producer = face.producer(scripted.address, max_pending_bytes=3000)
        errors = []

        def publish():
            try:
                for _ in range(50):
                    producer.publish("t", bytes(1000))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=publish) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert errors == []
        assert len(scripted.published) == 600


class TestClose:
    @pytest.mark.slow
    def test_what_is_unanswered_fails(self, face, scripted, caplog):
        scripted.answer = never
        producer = face.producer(scripted.address)
        future = producer.submit("t", b"x")
        scripted.wait(lambda: scripted.published, "a publish")
        with caplog.at_level(logging.WARNING):
            producer.close(timeout=0.1)
        with pytest.raises(ClosedError):
            future.result(WAIT_S)
        assert "1 messages that no broker has acknowledged" in caplog.text

    def test_a_thread_that_publishes_meanwhile_ends(self, face, scripted):
        scripted.answer = never
        producer = face.producer(scripted.address)
        errors = []

        def publish():
            try:
                producer.publish("t", b"x")
            except Exception as error:
                errors.append(type(error))

        threads = [threading.Thread(target=publish) for _ in range(5)]
        for thread in threads:
            thread.start()
        scripted.wait(lambda: len(scripted.published) == 5, "five publishes")
        producer.close(timeout=0.1)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert errors == [ClosedError] * 5
