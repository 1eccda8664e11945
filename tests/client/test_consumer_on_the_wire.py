"""Commands of consumers and producers on scripted brokers: bootstrap, faults, touches, requeues, discovery."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pyqd.client import AuthenticationError, Consumer, Message, Producer, RetryPolicy, SettingError, consumption
from pyqd.client.engine.link import Link
from tests.support.http_stub import http_stub
from tests.support.scripted_broker import MESSAGE, RESPONSE, WAIT_S, ScriptedBroker, frame, scripted_brokers, settle
from tests.support.server import wait_until


@pytest.fixture
def brokers() -> Iterator[list[ScriptedBroker]]:
    """Give three brokers, a, b and c. None has admitted the client."""
    with scripted_brokers("a", "b", "c") as brokers:
        yield brokers


@pytest.fixture
def broker(brokers: list[ScriptedBroker]) -> ScriptedBroker:
    """Give one broker that admits clients."""
    brokers[0].admit()
    return brokers[0]


@pytest.fixture
def consume() -> Iterator[Callable[..., Consumer]]:
    """Give a function that makes a consumer; it is closed with the test."""
    made: list[Consumer] = []

    def make(*brokers: ScriptedBroker, **options: Any) -> Consumer:
        addresses = [broker.address for broker in brokers] or None
        made.append(Consumer("topic", "channel", nsqd=addresses, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def begin(consumer: Consumer) -> None:
    """Have the consumer connect; it goes on without a thread of the test."""
    assert consumer.fetch(timeout=0) == []


def one(consumer: Consumer) -> Message:
    (message,) = consumer.fetch(timeout=WAIT_S)
    return message


class TestBootstrap:
    def test_a_consumer_sends_nothing_between_identify_and_its_answer(self, consume, brokers):
        a = brokers[0]
        consumer = consume(a)
        begin(consumer)
        a.wait_for_client()
        a.admit()
        a.wait_for("RDY 1")
        assert a.commands() == ["IDENTIFY", "SUB topic channel", "RDY 1"]

    def test_a_producer_sends_nothing_between_identify_and_its_answer(self, brokers):
        a = brokers[0]
        with Producer(a.address) as producer:
            future = producer.submit("topic", b"body")
            a.wait_for_client()
            a.admit()
            future.result(WAIT_S)
        assert a.commands("IDENTIFY", "early", "PUB") == ["IDENTIFY", "PUB topic"]


class TestFaults:
    @pytest.mark.slow
    @pytest.mark.parametrize("text", ["E_INVALID cannot RDY in current state", "E_BAD_TOPIC SUB topic name", "E_X"])
    def test_after_another_error_the_consumer_connects_again(self, consume, broker, text):
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.error(text)
        broker.wait_for("closed")
        broker.wait_for("RDY 1", times=2)
        broker.deliver(b"after")
        assert one(consumer).body == b"after"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "data",
        [
            struct.pack(">ii", 4, 9),
            struct.pack(">i", -1),
            struct.pack(">ii", 3, 0),
            struct.pack(">ii", 20, 2) + bytes(16),
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ],
        ids=["unknown type", "negative size", "small size", "short message", "HTTP"],
    )
    def test_bytes_that_are_no_frames_end_the_connection_only(self, consume, brokers, data):
        for broker in brokers[:2]:
            broker.admit()
        a, b, _ = brokers
        consumer = consume(a, b, max_in_flight=2)
        begin(consumer)
        for broker in (a, b):
            broker.wait_for("RDY 1")
        a.send_bytes(data)
        a.wait_for("closed")
        a.wait_for("RDY 1", times=2)
        b.deliver(b"body")
        assert one(consumer).body == b"body"
        assert b.commands("closed") == []

    @pytest.mark.slow
    def test_bytes_that_are_no_frames_do_not_end_a_consumer_of_one_broker(self, consume, broker):
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.send_bytes(struct.pack(">ii", 4, 9))
        broker.wait_for("RDY 1", times=2)
        broker.deliver(b"body")
        assert one(consumer).body == b"body"

    @pytest.mark.slow
    def test_a_refused_subscription_is_logged_once_and_tried_less_and_less_often(self, consume, broker, caplog):
        caplog.set_level("INFO", "pyqd.client")
        broker.sub_error = "E_TOO_MANY_CHANNELS no more channels"
        consumer = consume(broker, reconnect_first=0.02, reconnect_max=0.1)
        begin(consumer)
        broker.wait_for("SUB topic channel", times=4)
        broker.sub_error = ""
        broker.wait_for("closed", times=4)
        broker.wait_for("RDY 1", times=5)
        broker.deliver(b"body")
        assert one(consumer).body == b"body"
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if "E_TOO_MANY_CHANNELS" in line] == [
            f"no connection to {broker.address}: topic/channel: E_TOO_MANY_CHANNELS no more channels; trying again"
        ]
        assert lines[-1] == f"connected to {broker.address} again"

    @pytest.mark.slow
    def test_each_cause_of_a_lost_connection_is_logged_once(self, consume, broker, caplog):
        consumer = consume(broker, reconnect_first=0.01, reconnect_max=0.05)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.identify_error = "E_AUTH_FAILED the login service is down"
        broker.error("E_INVALID the first cause")
        broker.wait_for("closed", times=4)
        logged = [record.getMessage() for record in caplog.records if "no connection" in record.getMessage()]
        assert len(logged) == 2
        assert "E_INVALID the first cause" in logged[0]
        assert "E_AUTH_FAILED the login service is down" in logged[1]

    @pytest.mark.slow
    def test_brokers_that_refuse_a_consumer_which_has_worked_get_time(self, consume, broker, monkeypatch):
        consumer = consume(broker, reconnect_first=0.01, reconnect_max=0.05)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.deliver(b"before")
        one(consumer).finish()
        broker.identify_error = "E_AUTH_FAILED the login service is down"
        broker.wait_for("FIN 1")
        broker.error("E_INVALID")
        broker.wait_for("closed", times=4)
        assert consumer.fetch(timeout=0) == []
        broker.identify_error = ""
        broker.wait_for("RDY 1", times=2)
        broker.deliver(b"after")
        one(consumer).finish()
        broker.wait_for("FIN 2")
        monkeypatch.setattr(consumption, "REFUSED_S", 0.0)
        broker.identify_error = "E_AUTH_FAILED the secret has changed"
        broker.error("E_INVALID")
        with pytest.raises(AuthenticationError, match="the secret has changed"):
            consumer.fetch(timeout=WAIT_S)

    def test_one_broker_that_refuses_does_not_end_a_consumer_of_two(self, consume, brokers):
        a, b, _ = brokers
        a.identify_error = "E_AUTH_FAILED not here"
        a.admit()
        b.admit()
        consumer = consume(a, b)
        begin(consumer)
        a.wait_for("closed")
        b.wait_for("RDY 1")
        b.deliver(b"body")
        assert one(consumer).body == b"body"

    def test_brokers_that_all_refuse_end_a_consumer(self, consume, brokers):
        for broker in brokers:
            broker.identify_error = "E_AUTH_FAILED nowhere"
            broker.admit()
        with pytest.raises(AuthenticationError, match="E_AUTH_FAILED nowhere"):
            consume(*brokers).fetch(timeout=WAIT_S)

    @pytest.mark.slow
    def test_the_silence_that_ends_a_connection_may_be_given(self, consume, broker):
        consumer = consume(broker, heartbeat_interval=0.1, silence_timeout=0.1)
        begin(consumer)
        broker.wait_for("closed")
        with pytest.raises(SettingError, match=r"silence_timeout=1: expected a number from 30"):
            consume(broker, silence_timeout=1)

    @pytest.mark.slow
    def test_heartbeats_are_answered_while_the_program_does_something_else(self, consume, broker):
        consumer = consume(broker, max_in_flight=2)
        begin(consumer)
        broker.wait_for("RDY 2")
        broker.deliver(b"body")
        message = one(consumer)
        for _ in range(3):
            settle(broker)
        message.finish()
        broker.wait_for("FIN 1")


class TestTouchAndRequeue:
    def test_the_delay_of_a_failed_message_grows_with_its_attempts(self, consume, broker):
        consumer = consume(broker, retry=RetryPolicy(delay=2.0, max_delay=5.0), backoff=0)
        begin(consumer)
        broker.wait_for("RDY 1")
        for number, delay_ms in enumerate((2000, 4000, 5000), start=1):
            broker.deliver(b"body", attempts=number)
            with pytest.raises(ZeroDivisionError), one(consumer):
                raise ZeroDivisionError
            broker.wait_for(f"REQ {number} {delay_ms}")
        assert broker.commands("RDY") == ["RDY 1"]

    def test_a_delay_longer_than_an_hour_is_left_to_the_broker(self, consume, broker):
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.deliver(b"daily")
        one(consumer).requeue(timedelta(days=1), backoff=False)
        broker.wait_for("REQ 1 86400000")
        broker.deliver(b"never")
        one(consumer).requeue(timedelta(days=100_000), backoff=False)
        broker.wait_for(f"REQ 2 {1 << 40}")

    @pytest.mark.slow
    def test_messages_that_nobody_took_are_given_back_without_delay(self, consume, broker):
        consumer = consume(broker, max_in_flight=3)
        begin(consumer)
        broker.wait_for("RDY 3")
        broker.deliver(b"1", b"2", b"3")
        settle(broker)
        one(consumer).finish()
        assert consumer.drain(WAIT_S)
        broker.wait_for("closed")
        assert sorted(broker.commands("FIN", "REQ")) == ["FIN 1", "REQ 2 0", "REQ 3 0"]
        assert broker.commands("RDY") == ["RDY 3"]

    def test_a_pause_sends_rdy_0_and_resuming_sends_the_limit(self, consume, broker):
        consumer = consume(broker, max_in_flight=3)
        begin(consumer)
        broker.wait_for("RDY 3")
        consumer.pause()
        broker.wait_for("RDY 0")
        consumer.max_in_flight = 4
        consumer.resume()
        broker.wait_for("RDY 4")
        assert broker.commands("RDY") == ["RDY 3", "RDY 0", "RDY 4"]


def redelivery(number: int) -> bytes:
    """Return the frame of a message that a scripted broker has delivered before."""
    return frame(MESSAGE, struct.pack(">qH16s", 1, 2, b"%016x" % number) + b"body")


class TestRedelivery:
    """A message that timed out comes again on the same connection while a handler has its first copy."""

    @pytest.fixture
    def copies(self, consume, broker) -> tuple[Consumer, Message, Message]:
        """The consumer, and both copies of the message."""
        consumer = consume(broker, max_in_flight=2, auto_touch=False)
        begin(consumer)
        broker.wait_for("RDY 2")
        broker.deliver(b"body")
        first = one(consumer)
        broker.send_bytes(redelivery(1))
        return consumer, first, one(consumer)

    def test_the_first_copy_is_lost_and_its_answer_is_not_sent(self, copies, broker):
        consumer, first, second = copies
        assert (first.is_lost, second.is_lost) == (True, False)
        first.finish()
        second.finish()
        broker.wait_for("FIN 1")
        settle(broker)
        assert broker.commands("FIN", "REQ") == ["FIN 1"]
        assert consumer.stats()["answered_late"] == 1

    @pytest.mark.slow
    def test_the_first_copy_leaves_its_slot(self, copies, broker):
        consumer, _, second = copies
        assert consumer._consumption.flow.in_flight == 1
        second.finish()
        assert consumer._consumption.flow.in_flight == 0

    @pytest.mark.slow
    def test_copies_may_be_answered_after_the_connection_is_lost(self, copies, broker):
        consumer, first, second = copies
        broker.disconnect()
        broker.wait_for("closed")
        assert consumer.fetch(timeout=0.1) == []
        first.requeue()
        with second:
            pass
        assert consumer.stats()["answered_late"] == 2

    @pytest.mark.slow
    def test_the_first_copy_may_be_answered_after_a_drain(self, copies, broker):
        consumer, first, second = copies
        second.finish()
        assert consumer.drain(WAIT_S) is True
        first.finish()
        assert broker.commands("FIN") == ["FIN 1"]

    @pytest.mark.slow
    def test_a_first_copy_that_no_user_has_seen_is_dropped(self, consume, broker):
        consumer = consume(broker, max_in_flight=2, auto_touch=False)
        begin(consumer)
        broker.wait_for("RDY 2")
        broker.deliver(b"body")
        broker.send_bytes(redelivery(1))
        settle(broker)
        assert one(consumer).attempts == 2
        assert consumer.fetch(timeout=0) == []


class TestCommandsThatFindTheConnectionBroken:
    """A command that a link sends at once may be the one that discovers the loss of the connection."""

    @pytest.fixture
    def breaking(self, monkeypatch) -> Callable[[str], None]:
        """Return a function: the next command that begins so finds its connection broken."""
        send = Link.send

        def break_at(beginning: str) -> None:
            def failing(link: Link, command: bytes, *, soon: bool = False) -> None:
                if command.startswith(beginning.encode()):
                    link.fail(ConnectionResetError("broken"))
                else:
                    send(link, command, soon=soon)

            monkeypatch.setattr(Link, "send", failing)

        return break_at

    @pytest.fixture
    def messages(self, consume, broker) -> tuple[Consumer, list[Message]]:
        """A consumer and its two messages. They are touched after a short time."""
        broker.msg_timeout_ms = 400
        consumer = consume(broker, max_in_flight=2, backoff_failures=1)
        begin(consumer)
        broker.wait_for("RDY 2")
        broker.deliver(b"1", b"2")
        return consumer, [one(consumer), one(consumer)]

    def test_a_failed_message_is_requeued_without_an_error(self, messages, breaking):
        consumer, (first, second) = messages
        breaking("RDY")
        first.requeue()
        assert second.is_lost
        assert consumer.stats()["in_flight"] == 0

    @pytest.mark.slow
    def test_touches_of_a_lost_message_end_with_its_connection(self, messages, breaking, broker, caplog):
        _, (first, _) = messages
        breaking("TOUCH")
        broker.wait_for("RDY 2", times=2)
        assert first.is_lost
        assert "internal error" not in caplog.text

    def test_a_consumer_whose_connection_breaks_at_cls_stops(self, messages, breaking):
        consumer, (first, _) = messages
        breaking("CLS")
        assert consumer.drain(WAIT_S) is True
        assert first.is_lost

    def test_the_last_answer_ends_a_consumer(self, messages, broker, monkeypatch):
        consumer, (first, second) = messages
        consumer.stop()
        broker.wait_for("CLS")
        first.finish()
        subscription = next(iter(consumer._consumption._subscriptions.values()))
        wait_until(lambda: subscription.has_ended, "the end of the intake")
        monkeypatch.setattr(Link, "flush", lambda link: link.fail(ConnectionResetError("broken")))
        second.finish()
        assert consumer._consumption.is_drained

    def test_a_consumer_gives_back_at_its_end(self, messages, breaking, broker):
        broker.answers_cls = False
        consumer, (first, second) = messages
        consumer.stop()
        broker.wait_for("CLS")
        first.requeue()
        breaking("REQ")
        consumer.close()
        assert second.is_lost


class TestDiscovery:
    def answer(self, *brokers: ScriptedBroker) -> tuple[int, dict[str, str], bytes]:
        producers = [
            {
                "broadcast_address": "127.0.0.1",
                "tcp_port": int(broker.address.rpartition(":")[2]),
                "http_port": 0,
                "hostname": "h",
                "version": "1.3.0",
                "remote_address": "127.0.0.1:1",
            }
            for broker in brokers
        ]
        headers = {"X-NSQ-Content-Type": "nsq; version=1.0"}
        return 200, headers, json.dumps({"channels": [], "producers": producers}).encode()

    def test_a_lookup_address_without_a_port_is_refused_at_once(self, consume):
        with pytest.raises(SettingError, match="missing port"):
            consume(lookupd="lookup.example")

    def test_brokers_are_found_and_later_ones_too(self, consume, brokers):
        a, b, _ = brokers
        a.admit()
        b.admit()
        known = [a]
        with http_stub(lambda path, query: self.answer(*known)) as stub:
            consumer = consume(lookupd=stub.address, lookupd_poll_interval=0.05, max_in_flight=4)
            begin(consumer)
            a.wait_for("RDY 4")
            known.append(b)
            b.wait_for("RDY 2")
            a.wait_for("RDY 2")
        assert stub.requests[0] == ("/lookup", {"topic": "topic"})

    @pytest.mark.parametrize("host", ["a\0b", "\ud800"])
    def test_an_address_that_no_system_call_takes_does_not_end_the_polls(self, consume, broker, host):
        _, headers, body = self.answer(broker)
        good = json.loads(body)["producers"][0]
        producers = [{**good, "broadcast_address": host}]

        def answered(_path: str, _query: dict[str, str]) -> Any:
            return 200, headers, json.dumps({"channels": [], "producers": producers}).encode()

        with http_stub(answered) as stub:
            consumer = consume(lookupd=stub.address, lookupd_poll_interval=0.05)
            assert consumer.fetch(timeout=0.1) == []
            producers.append(good)
            broker.wait_for("RDY 1")
            broker.deliver(b"body")
            assert one(consumer).body == b"body"

    @pytest.mark.slow
    def test_the_loss_of_a_connection_asks_for_brokers(self, consume, brokers):
        a, b, _ = brokers
        a.admit()
        b.admit()
        known = [a]
        with http_stub(lambda path, query: self.answer(*known)) as stub:
            # The next poll would be an hour later.
            begin(consume(lookupd=stub.address, lookupd_poll_interval=3600.0))
            a.wait_for("RDY 1")
            known[:] = [b]
            a.disconnect()
            b.wait_for("RDY 1")

    def test_a_broker_that_is_no_longer_named_stays_connected(self, consume, brokers):
        a, b, _ = brokers
        a.admit()
        b.admit()
        known = [a]
        with http_stub(lambda path, query: self.answer(*known)) as stub:
            consumer = consume(lookupd=stub.address, lookupd_poll_interval=0.05)
            begin(consumer)
            a.wait_for("RDY 1")
            known[:] = [b]
            b.wait_for("SUB topic channel")
            a.deliver(b"body")
            assert one(consumer).body == b"body"

    @pytest.mark.parametrize("bad", [None, (500, {}, b"busy"), (404, {}, b"TOPIC_NOT_FOUND")])
    def test_the_next_lookup_daemon_is_asked_after_a_bad_answer(self, consume, broker, bad):
        with http_stub(lambda path, query: bad) as wrong, http_stub(lambda path, query: self.answer(broker)) as right:
            consumer = consume(lookupd=[wrong.address, right.address])
            begin(consumer)
            broker.wait_for("RDY 1")
        assert len(wrong.requests) == 1

    def test_a_lookup_daemon_that_nobody_runs_is_passed_over(self, consume, broker):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nowhere = "{}:{}".format(*closed.getsockname())
        with http_stub(lambda path, query: self.answer(broker)) as right:
            consumer = consume(lookupd=[nowhere, right.address])
            begin(consumer)
            broker.wait_for("RDY 1")


class TestEnd:
    @pytest.mark.slow
    def test_a_message_behind_close_wait_goes_back(self, consume, broker, caplog):
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        broker.answers_cls = False
        consumer.stop()
        broker.wait_for("CLS")
        broker.deliver(b"body", before=[frame(RESPONSE, b"CLOSE_WAIT")])
        broker.wait_for("closed")
        assert consumer.drain(WAIT_S) is True
        # Unanswered it would stay in flight at nsqd until its timeout.
        assert broker.commands("REQ", "closed") == ["REQ 1 0", "closed"]
        assert caplog.records == []

    def test_a_drain_waits_for_messages_behind_close_wait(self, consume, broker, monkeypatch):
        monkeypatch.setattr(consumption, "CROSSING_S", WAIT_S)
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        consumer.stop()
        broker.wait_for("CLS")
        settle(broker)
        assert consumer.drain(0) is False
        assert broker.commands("REQ") == []

    def test_pyqd_sends_nothing_behind_close_wait(self, consume, broker, monkeypatch):
        monkeypatch.setattr(consumption, "CROSSING_S", WAIT_S)
        broker.more_facts = {"message_ids": True}
        consumer = consume(broker)
        begin(consumer)
        broker.wait_for("RDY 1")
        consumer.stop()
        broker.wait_for("closed")
        assert consumer.drain(0) is True

    @pytest.mark.slow
    def test_messages_go_back_when_the_broker_sends_no_more(self, consume, broker):
        consumer = consume(broker, max_in_flight=3)
        begin(consumer)
        broker.wait_for("RDY 3")
        broker.deliver(b"held", b"unseen")
        held = one(consumer)
        broker.answers_cls = False
        consumer.stop()
        broker.wait_for("CLS")
        held.requeue(0)
        broker.deliver(b"late")
        settle(broker)
        # Before CLOSE_WAIT the broker would deliver them to this connection again.
        assert broker.commands("REQ") == []
        broker.close_wait()
        broker.wait_for("closed")
        assert sorted(broker.commands("REQ")) == ["REQ 1 0", "REQ 2 0", "REQ 3 0"]
        assert consumer.drain(WAIT_S) is True

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_no_thread_is_left(self, consume, broker, end):
        before = set(threading.enumerate())
        consumer = consume(broker)
        consumer.handler(2)(lambda message: None)
        consumer.start()
        broker.wait_for("RDY 2")
        getattr(consumer, end)()
        for thread in set(threading.enumerate()) - before:
            thread.join(WAIT_S)
            assert not thread.is_alive()
