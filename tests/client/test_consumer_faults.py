"""Consumers of both faces whose brokers and lookup daemons die, come again, or talk nonsense."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import pytest

from pyqd.client import ClosedError, NotConnectedError, ProtocolError, RefusedError, RetryPolicy
from pyqd.client.core import discovery
from tests.lookupd.conftest import LookupDaemon
from tests.support.http_stub import http_stub
from tests.support.scripted_broker import ERROR, frame
from tests.support.server import Daemon, daemons_running, free_port, pyqd, wait_until

WAIT_S = 20.0
SOON = {"reconnect_first": 0.01, "reconnect_max": 0.1, "backoff": 0.0}


def address_of(daemon):
    return f"127.0.0.1:{daemon.tcp_port}"


@pytest.fixture
def start(tmp_path):
    """Function that starts a daemon with these flags."""
    with daemons_running() as begin:

        def make(name, *flags):
            (tmp_path / name).mkdir()
            return begin(Daemon(pyqd(), tmp_path / name, flags))

        yield make


@contextlib.contextmanager
def stopped(daemon):
    """Have a daemon hang for a block."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@contextlib.contextmanager
def dripping(head):
    """Serve an HTTP answer that goes on for ever, a byte at a time; give the address."""
    is_over = threading.Event()

    def drip(client):
        with client, contextlib.suppress(OSError):
            client.sendall(head)
            while not is_over.wait(0.02):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threads.append(threading.Thread(target=drip, args=(listener.accept()[0],)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield "{}:{}".format(*listener.getsockname())
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(WAIT_S)
            for thread in threads:
                thread.join(WAIT_S)
                assert not thread.is_alive()


def take(consumer, count):
    """Finish that many messages, and return their bodies, sorted."""
    got: list[Any] = []
    while len(got) < count:
        messages = consumer.fetch(count, WAIT_S)
        assert messages
        got += [message.body for message in messages]
        consumer.finish_many(messages)
    return sorted(got)


class TestConnect:
    def test_it_names_a_broker_that_cannot_be_reached(self, face, daemon):
        silent = f"127.0.0.1:{free_port()}"
        consumer = face.consumer("t", nsqd=[address_of(daemon), silent], **SOON)
        with pytest.raises(NotConnectedError, match=f"{silent}: Connection refused"):
            consumer.connect()
        # The other broker is there.
        face.producer(address_of(daemon)).publish("t", b"x")
        assert take(consumer, 1) == [b"x"]

    def test_it_returns_when_the_brokers_are_reached(self, face, daemon):
        consumer = face.consumer("t", nsqd=address_of(daemon), **SOON)
        consumer.connect()
        assert consumer.stats()["brokers"][address_of(daemon)]["connected"]

    def test_it_does_not_wait_for_brokers_of_lookup_daemons(self, face):
        consumer = face.consumer("t", lookupd=f"127.0.0.1:{free_port()}", **SOON)
        consumer.connect()
        consumer.close()
        with pytest.raises(ClosedError):
            consumer.connect()


class TestBroker:
    def test_a_restarted_broker_is_consumed_again(self, face, daemon):
        producer = face.producer(address_of(daemon), reconnect_max=0.1)
        consumer = face.consumer("t", nsqd=address_of(daemon), max_in_flight=5, **SOON)
        producer.publish_many("t", [b"1", b"2"])
        assert take(consumer, 2) == [b"1", b"2"]
        for body in (b"3", b"4"):
            # An answer that has not arrived is lost with the broker, and its message comes again.
            daemon.wait_for_channel("t", "c", in_flight_count=0)
            daemon.kill_and_start()
            producer.publish("t", body)
            assert take(consumer, 1) == [body]

    def test_iteration_goes_on_over_a_restart(self, face, daemon):
        producer = face.producer(address_of(daemon), reconnect_max=0.1)
        consumer = face.consumer("t", nsqd=address_of(daemon), **SOON)
        got: list[Any] = []
        iterator = iter(consumer)
        producer.publish("t", b"1")
        message = next(iterator)
        message.finish()
        got.append(message.body)
        restart = threading.Thread(target=daemon.kill_and_start)
        restart.start()
        restart.join()
        producer.publish("t", b"2")
        while b"2" not in got:
            message = next(iterator)
            message.finish()
            got.append(message.body)

    def test_an_answer_over_a_lost_connection_has_no_effect(self, face, daemon):
        face.producer(address_of(daemon)).publish("t", b"x")
        consumer = face.consumer("t", nsqd=address_of(daemon), **SOON)
        (message,) = consumer.fetch(1, WAIT_S)
        daemon.kill_and_start()
        wait_until(lambda: message.is_lost, "the loss is noticed")
        message.finish()
        assert consumer.stats()["finished"] == 0
        assert consumer.stats()["answered_late"] == 1
        (again,) = consumer.fetch(1, WAIT_S)
        assert (again.id, again.attempts) == (message.id, 2)
        again.finish()

    def test_messages_of_a_lost_connection_that_nobody_took_are_not_handed_out(self, face, daemon):
        face.producer(address_of(daemon)).publish_many("t", [b"%d" % number for number in range(10)])
        consumer = face.consumer("t", nsqd=address_of(daemon), max_in_flight=10, **SOON)
        (held,) = consumer.fetch(1, WAIT_S)
        wait_until(lambda: consumer.stats()["received"] == 10, "all have arrived")
        daemon.kill()
        wait_until(lambda: consumer.stats()["ready"] == 0, "they are dropped")
        assert consumer.fetch(1, 0.05) == []
        daemon.start()
        assert len(take(consumer, 10)) == 10
        assert held.is_lost

    def test_a_failed_handler_of_a_lost_message_makes_no_dead_letter(self, face, daemon):
        face.producer(address_of(daemon)).publish("t", b"x")
        retry = RetryPolicy(1, delay=0.01, dead_letter_topic="dead")
        consumer = face.consumer("t", nsqd=address_of(daemon), retry=retry, **SOON)
        (message,) = consumer.fetch(1, WAIT_S)
        daemon.kill()
        wait_until(lambda: message.is_lost, "the loss is noticed")
        with pytest.raises(ValueError, match="mine"), message:
            raise ValueError("mine")
        daemon.start()
        # It comes again, as the second attempt, which makes the only dead letter.
        daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0, deferred_count=0)
        daemon.wait_for_topic("dead", message_count=1)
        assert consumer.stats()["dead_letters"] == 1

    def test_a_failed_handler_after_close_raises_its_own_error(self, face, daemon):
        face.producer(address_of(daemon)).publish("t", b"x")
        retry = RetryPolicy(1, delay=0.01, dead_letter_topic="dead")
        consumer = face.consumer("t", nsqd=address_of(daemon), retry=retry, **SOON)
        (message,) = consumer.fetch(1, WAIT_S)
        consumer.close()
        with pytest.raises(ValueError, match="mine"), message:
            raise ValueError("mine")

    def test_max_in_flight_is_divided_among_brokers(self, face, start):
        daemons = [start("one"), start("two"), start("three")]
        consumer = face.consumer("t", nsqd=[address_of(daemon) for daemon in daemons], max_in_flight=8, **SOON)
        assert consumer.fetch(1, 0.1) == []

        def ready_counts():
            channels = [daemon.channel("t", "c") for daemon in daemons]
            return sorted(channel["clients"][0]["ready_count"] for channel in channels if channel["clients"])

        wait_until(lambda: ready_counts() == [2, 3, 3], "all brokers have their share")
        for daemon in daemons:
            face.producer(address_of(daemon)).publish_many("t", [b"x"] * 20)
        held: list[Any] = []
        while len(held) < 8:
            held += consumer.fetch(20, WAIT_S)
        assert consumer.fetch(20, 0.2) == []
        assert len({message.broker for message in held}) == 3
        consumer.finish_many(held)
        assert len(take(consumer, 52)) == 52

    def test_a_dead_broker_s_share_goes_to_the_others(self, face, start):
        dead, alive = start("dead"), start("alive")
        consumer = face.consumer("t", nsqd=[address_of(dead), address_of(alive)], max_in_flight=4, **SOON)
        assert consumer.fetch(1, 0.2) == []
        dead.kill()
        producer = face.producer(address_of(alive))
        producer.publish_many("t", [b"%d" % number for number in range(8)])
        held: list[Any] = []
        while len(held) < 4:
            held += consumer.fetch(4, WAIT_S)
        consumer.finish_many(held)
        assert len(take(consumer, 4)) == 4

    def test_a_refused_subscription_is_tried_again(self, face, start, caplog):
        daemon = start("full", "-max-channels-per-topic=1")
        face.producer(address_of(daemon)).publish("t", b"x")
        first = face.consumer("t", "first", nsqd=address_of(daemon))
        assert take(first, 1) == [b"x"]
        # Otherwise it would make its channel again.
        assert first.drain() is True
        consumer = face.consumer("t", "second", nsqd=address_of(daemon), **SOON)
        assert consumer.fetch(1, 0.3) == []
        assert "E_TOO_MANY_CHANNELS" in caplog.text
        daemon.http("POST", "/channel/delete", topic="t", channel="first")
        face.producer(address_of(daemon)).publish("t", b"y")
        assert take(consumer, 1) == [b"y"]

    def test_a_refused_identify_is_an_error_at_once(self, face, daemon):
        consumer = face.consumer("t", nsqd=address_of(daemon), msg_timeout=100_000.0)
        with pytest.raises(RefusedError, match="msg timeout"):
            consumer.fetch(1, WAIT_S)

    def test_a_port_that_speaks_http_is_named_at_once(self, face, daemon):
        consumer = face.consumer("t", nsqd=f"127.0.0.1:{daemon.http_port}")
        with pytest.raises(ProtocolError, match="this is an HTTP port; give the broker's TCP port"):
            consumer.fetch(1, WAIT_S)
        codes = face.consumer("t", nsqd=f"127.0.0.1:{daemon.http_port}")
        codes.handler()(print)
        with pytest.raises(ProtocolError, match="this is an HTTP port; give the broker's TCP port"):
            codes.run()

    @pytest.mark.slow
    def test_errors_of_the_broker_do_not_make_a_busy_loop(self, face, scripted):
        scripted.after_identify = frame(ERROR, b"E_INVALID for no reason")
        consumer = face.consumer("t", nsqd=scripted.address)
        assert consumer.fetch(1, 1.0) == []
        assert scripted.connection_count < 10

    def test_a_finish_that_comes_too_late_is_counted(self, face, start):
        daemon = start("quick", "-msg-timeout=200ms")
        face.producer(address_of(daemon)).publish("t", b"x")
        consumer = face.consumer("t", nsqd=address_of(daemon), auto_touch=False, **SOON)
        (message,) = consumer.fetch(1, WAIT_S)
        # Otherwise it comes again to the same connection, which may finish it then.
        consumer.pause()
        daemon.wait_for_channel("t", "c", timeout_count=1, depth=1)
        message.finish()
        wait_until(lambda: consumer.stats()["answered_late"] == 1, "the broker's answer")
        assert consumer.stats()["brokers"][address_of(daemon)]["connected"]

    def test_a_message_that_can_be_kept_no_longer_is_touched_no_more(self, face, start):
        daemon = start("strict", "-msg-timeout=300ms", "-max-msg-timeout=600ms")
        face.producer(address_of(daemon)).publish("t", b"x")
        consumer = face.consumer("t", nsqd=address_of(daemon), **SOON)
        (message,) = consumer.fetch(1, WAIT_S)
        consumer.pause()
        daemon.wait_for_channel("t", "c", timeout_count=1)
        wait_until(lambda: consumer.stats()["answered_late"] == 1, "a touch is refused")
        # Several times the interval of touches.
        time.sleep(0.6)
        assert consumer.stats()["answered_late"] == 1
        message.finish()
        wait_until(lambda: consumer.stats()["answered_late"] == 2, "the answer is refused too")

    def test_a_broker_that_hangs_is_left_after_two_heartbeats(self, face, start):
        hung, alive = start("hung"), start("alive")
        addresses = [address_of(hung), address_of(alive)]
        consumer = face.consumer("t", nsqd=addresses, heartbeat_interval=1.0, connect_timeout=0.5, **SOON)
        assert consumer.fetch(1, 0.2) == []
        with stopped(hung):
            wait_until(lambda: not consumer.stats()["brokers"][addresses[0]]["connected"], "it is left")
            face.producer(addresses[1]).publish("t", b"x")
            assert take(consumer, 1) == [b"x"]
        wait_until(lambda: consumer.stats()["brokers"][addresses[0]]["connected"], "it is connected again")


class TestLookup:
    @pytest.fixture
    def lookupd(self, tmp_path):
        daemon = LookupDaemon((sys.executable, "-m", "pyqd.apps.lookupd"), tmp_path / "lookupd.log")
        daemon.start()
        yield daemon
        daemon.kill()

    @pytest.fixture
    def lookup(self, lookupd):
        return f"127.0.0.1:{lookupd.ports['HTTP']}"

    def registered(self, start, lookupd, name):
        return start(name, f"-lookupd-tcp-address=127.0.0.1:{lookupd.ports['TCP']}")

    def test_brokers_of_a_topic_are_found(self, face, start, lookupd, lookup):
        first = self.registered(start, lookupd, "first")
        face.producer(address_of(first)).publish("t", b"1")
        consumer = face.consumer("t", lookupd=lookup, lookupd_poll_interval=0.1, max_in_flight=4, **SOON)
        assert take(consumer, 1) == [b"1"]
        second = self.registered(start, lookupd, "second")
        face.producer(address_of(second)).publish("t", b"2")
        assert take(consumer, 1) == [b"2"]
        assert len(consumer.stats()["brokers"]) == 2

    def test_a_producer_finds_brokers(self, face, start, lookupd, lookup):
        daemon = self.registered(start, lookupd, "one")
        wait_until(lambda: lookupd.ask("GET", "/nodes")[1]["producers"], "the broker is registered")
        producer = face.producer(lookupd=lookup, lookupd_poll_interval=0.1)
        producer.publish("t", b"x")
        assert daemon.topic("t")["message_count"] == 1

    def test_a_topic_that_does_not_exist_yet(self, face, start, lookupd, lookup):
        daemon = self.registered(start, lookupd, "one")
        consumer = face.consumer("later", lookupd=lookup, lookupd_poll_interval=0.05, **SOON)
        assert consumer.fetch(1, 0.2) == []
        face.producer(address_of(daemon)).publish("later", b"x")
        assert take(consumer, 1) == [b"x"]

    def test_a_lookup_daemon_that_is_down_does_not_disturb(self, face, start, lookupd, lookup):
        daemon = self.registered(start, lookupd, "one")
        producer = face.producer(address_of(daemon))
        producer.publish("t", b"1")
        consumer = face.consumer("t", lookupd=["127.0.0.1:1", lookup], lookupd_poll_interval=0.05, **SOON)
        assert take(consumer, 1) == [b"1"]
        lookupd.kill()
        producer.publish("t", b"2")
        assert take(consumer, 1) == [b"2"]
        daemon.wait_for_channel("t", "c", in_flight_count=0)
        # The lost broker is tried again without the lookup daemon.
        daemon.kill_and_start()
        producer.publish("t", b"3", timeout=WAIT_S)
        assert take(consumer, 1) == [b"3"]

    @pytest.mark.slow
    def test_without_any_answer_the_producer_says_why(self, face):
        producer = face.producer(lookupd="127.0.0.1:1", timeout=0.3)
        with pytest.raises(ConnectionError, match="refused"):
            producer.publish("t", b"x")

    @pytest.mark.slow
    def test_without_a_broker_the_producer_says_so(self, face, lookupd, lookup):
        producer = face.producer(lookupd=lookup, timeout=0.5)
        with pytest.raises(ConnectionError, match="name no broker"):
            producer.publish("t", b"x")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "answer",
        [
            (200, {}, b"[" * 100_000),
            (301, {"Location": "http://127.0.0.1:1/"}, b""),
            (200, {}, b'{"producers": [{"broadcast_address": "127.0.0.1", "tcp_port": 99999999}]}'),
        ],
    )
    def test_a_malformed_answer_is_survived(self, face, answer, caplog):
        discovery._warn_of.cache_clear()
        with http_stub(lambda path, query: answer) as stub:
            consumer = face.consumer("t", lookupd=stub.address, lookupd_poll_interval=0.05)
            assert consumer.fetch(1, 0.1) == []
            wait_until(lambda: len(stub.requests) > 3, "several polls")
            assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
            producer = face.producer(lookupd=stub.address, timeout=0.3)
            with pytest.raises(ConnectionError, match=r"lookup|127\.0\.0\.1"):
                producer.publish("t", b"x")

    @pytest.mark.slow
    def test_a_topic_that_no_broker_has_is_named(self, face, lookupd, lookup, caplog):
        consumer = face.consumer("later", lookupd=lookup, lookupd_poll_interval=0.05)
        assert consumer.fetch(1, 0.3) == []
        (text,) = [record.getMessage() for record in caplog.records]
        assert text == (
            f"no brokers from a lookup daemon: http://{lookup}/lookup?topic=later: no broker has the topic yet"
        )

    @pytest.mark.slow
    def test_a_lookup_daemon_that_sends_a_byte_now_and_then_is_left(self, face, caplog):
        with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n") as address:
            consumer = face.consumer("t", lookupd=address, lookupd_poll_interval=0.05, lookupd_timeout=0.3)
            assert consumer.fetch(1, 0.1) == []
            wait_until(lambda: "no whole answer within 0.3 s" in caplog.text, "the answer is left")

    def test_a_redirect_takes_the_token_to_no_other_server(self, face):
        with http_stub(lambda path, query: (200, {}, b'{"producers": []}')) as other:
            # Another name of the same machine is another server.
            elsewhere = other.address.replace("127.0.0.1", "localhost")
            with http_stub(lambda path, query: (302, {"Location": f"http://{elsewhere}/lookup"}, b"")) as stub:
                consumer = face.consumer("t", lookupd=stub.address, lookupd_token="secret")
                assert consumer.fetch(1, 0.05) == []
                wait_until(lambda: len(other.requests) > 0, "the redirect is followed")
                assert stub.tokens[0] == "Bearer secret"
        assert other.tokens[0] is None

    @pytest.mark.slow
    def test_a_lookup_daemon_that_never_answers_does_not_block_the_end(self, face):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = "{}:{}".format(*listener.getsockname())
            consumer = face.consumer("t", lookupd=address, lookupd_timeout=1.0)
            started_s = time.monotonic()
            assert consumer.fetch(1, 0.2) == []
            consumer.close()
            assert time.monotonic() - started_s < WAIT_S
        # The question ends by its own timeout.
        wait_until(lambda: not [each for each in threading.enumerate() if each.name.endswith(": lookupd")], "no thread")
