"""Producers of both faces on real brokers."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pyqd.client import (
    ClosedError,
    CodecError,
    InvalidNameError,
    Outgoing,
    RefusedError,
    SettingError,
    TooBigError,
)
from pyqd.client.codecs import JsonCodec

WAIT_S = 20.0


@pytest.fixture
def producer(face, address):
    return face.producer(address)


@pytest.fixture
def read(face, address, topic):
    """Function that returns the bodies of the next messages of the topic, sorted."""
    consumer = face.consumer(topic, nsqd=address, max_in_flight=2500)

    def read(count):
        bodies: list[bytes] = []
        while len(bodies) < count:
            messages = consumer.fetch(count - len(bodies), WAIT_S)
            assert messages
            consumer.finish_many(messages)
            bodies += [message.body for message in messages]
        return sorted(bodies)

    return read


@pytest.fixture
def ids_expected(implementation):
    return implementation.name == "pyqd"


class TestPublish:
    def test_a_message_is_delivered_as_it_was_published(self, producer, read, topic):
        body = bytes(range(256)) * 10
        producer.publish(topic, body)
        assert read(1) == [body]

    def test_the_id_is_that_of_the_delivered_message(self, face, producer, address, topic, ids_expected):
        message_id = producer.publish(topic, b"x")
        (message,) = face.consumer(topic, nsqd=address).fetch(1, WAIT_S)
        assert message_id == (message.id if ids_expected else None)
        message.finish()

    @pytest.mark.parametrize("body", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a.b.c")[::2]])
    def test_bodies_of_all_kinds_of_bytes(self, producer, read, topic, body):
        producer.publish(topic, body)
        assert read(1) == [b"abc"]

    def test_the_ids_of_a_batch_are_those_of_its_messages(self, face, producer, address, topic, ids_expected):
        bodies = [b"%d" % number for number in range(5000)]
        ids = producer.publish_many(topic, iter(bodies))
        consumer = face.consumer(topic, nsqd=address, max_in_flight=2500)
        delivered: dict[bytes, str] = {}
        while len(delivered) < len(bodies):
            for message in consumer.fetch(2500, WAIT_S):
                delivered[message.body] = message.id
                message.finish()
        assert ids == ([delivered[body] for body in bodies] if ids_expected else None)

    def test_an_empty_batch_is_nothing(self, producer, topic, broker):
        assert producer.publish_many(topic, []) == []
        assert broker.topic(topic) is None

    @pytest.mark.slow
    def test_submitted_messages_are_all_published(self, producer, read, topic):
        bodies = [b"%04d" % number for number in range(2000)]
        futures = [producer.submit(topic, body) for body in bodies]
        assert producer.flush(WAIT_S) is True
        for future in futures:
            future.result(WAIT_S)
        assert read(2000) == bodies

    @pytest.mark.slow
    def test_close_waits_for_what_was_submitted(self, face, address, read, topic):
        producer = face.producer(address)
        for number in range(500):
            producer.submit(topic, b"%03d" % number)
        producer.close()
        assert len(read(500)) == 500

    def test_flush_without_messages_returns_at_once(self, producer):
        assert producer.flush() is True

    def test_a_closed_producer_refuses(self, producer, topic):
        producer.publish(topic, b"x")
        producer.close()
        producer.close()
        with pytest.raises(ClosedError, match="closed"):
            producer.publish(topic, b"x")
        with pytest.raises(ClosedError, match="closed"):
            producer.submit(topic, b"x")

    @pytest.mark.slow
    def test_many_threads_share_a_connection(self, face, broker, address, read, topic):
        producer = face.producer(address, client_id="shared")
        errors = []

        def publish(thread):
            try:
                for number in range(100):
                    producer.publish(topic, b"%d-%d" % (thread, number))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(set(read(1600))) == 1600
        assert producer.stats()["published"] == 1600
        assert producer.stats()["pending"] == producer.stats()["pending_bytes"] == 0

    def test_statistics_name_the_broker(self, producer, address, topic):
        producer.publish(topic, b"x")
        stats = producer.stats()
        assert stats["brokers"] == {address: {"connected": True, "breaker": "closed", "error": None}}
        assert (stats["published"], stats["failed"], stats["retried"]) == (1, 0, 0)


class TestDueTimes:
    @pytest.mark.slow
    @pytest.mark.pyqd_only(reason="the forms differ in the client only, and a test takes 5 s on nsqd")
    @pytest.mark.parametrize(
        "due",
        [
            lambda: {"delay": timedelta(milliseconds=300)},
            lambda: {"at": time.time() + 0.3},
            lambda: {"at": datetime.now(timezone.utc) + timedelta(seconds=0.3)},
            lambda: {"at": datetime.now(timezone(timedelta(hours=5))) + timedelta(seconds=0.3)},
        ],
        ids=["timedelta", "unix time", "UTC", "another zone"],
    )
    def test_a_due_time_has_several_forms(self, face, producer, address, topic, due):
        started_s = time.time()
        producer.publish(topic, b"x", **due())
        (message,) = face.consumer(topic, nsqd=address).fetch(1, WAIT_S)
        message.finish()
        # A due time is rounded to milliseconds.
        assert time.time() - started_s >= 0.299

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["publish", "submit", "publish_many"])
    def test_a_message_does_not_come_before_its_due_time(self, face, producer, address, topic, how):
        started_s = time.monotonic()
        if how == "publish_many":
            producer.publish_many(topic, [b"x"], delay=0.3)
        elif how == "publish":
            producer.publish(topic, b"x", delay=0.3)
        else:
            producer.submit(topic, b"x", delay=0.3).result(WAIT_S)
        (message,) = face.consumer(topic, nsqd=address).fetch(1, WAIT_S)
        message.finish()
        assert time.monotonic() - started_s >= 0.3

    @pytest.mark.slow
    def test_each_message_of_a_batch_has_its_own(self, face, producer, address, topic):
        messages = [
            Outgoing(b"late", delay=0.6),
            b"now",
            Outgoing(b"middle", at=time.time() + 0.3),
            Outgoing(b"past", at=1.0),
        ]
        producer.publish_many(topic, messages)
        consumer = face.consumer(topic, nsqd=address, max_in_flight=10)
        got: list[Any] = []
        while len(got) < 4:
            for message in consumer.fetch(1, WAIT_S):
                message.finish()
                got.append(message.body)
        assert set(got[:2]) == {b"now", b"past"}
        assert got[2:] == [b"middle", b"late"]

    @pytest.mark.slow
    def test_the_due_time_of_a_batch_is_for_those_without_their_own(self, face, producer, address, topic):
        producer.publish_many(topic, [b"batch", Outgoing(b"own", delay=0.01)], delay=0.5)
        consumer = face.consumer(topic, nsqd=address, max_in_flight=10)
        got: list[Any] = []
        while len(got) < 2:
            for message in consumer.fetch(1, WAIT_S):
                message.finish()
                got.append(message.body)
        assert got == [b"own", b"batch"]

    @pytest.mark.parametrize(
        ("due", "text"),
        [
            ({"delay": 1, "at": 1}, "not both"),
            ({"delay": -1}, "from 0"),
            ({"delay": timedelta(seconds=-1)}, "from 0"),
            ({"delay": float("nan")}, "seconds"),
            ({"delay": float("inf")}, "seconds"),
            ({"delay": "5"}, "seconds"),
            ({"delay": True}, "seconds"),
            ({"at": datetime(2030, 1, 1)}, "time zone"),
            ({"at": "2030-01-01"}, "aware datetime"),
            ({"at": float("nan")}, "aware datetime"),
            ({"at": time.time() * 1000}, "since 1970"),
        ],
    )
    def test_a_wrong_due_time_is_refused_by_the_client(self, producer, topic, due, text):
        for call in (producer.publish, producer.submit):
            with pytest.raises(SettingError, match=text):
                call(topic, b"x", **due)
        with pytest.raises(SettingError, match=text):
            producer.publish_many(topic, [b"x"], **due)
        with pytest.raises(SettingError, match=text):
            producer.publish_many(topic, [Outgoing(b"x", **due)])

    def test_a_delay_does_not_depend_on_the_clock(self, face, producer, address, topic, monkeypatch):
        producer.publish(topic, b"connects")
        real = time.time
        # A clock that is an hour fast, as on another machine than the broker's.
        monkeypatch.setattr(time, "time", lambda: real() + 3600)
        producer.publish(topic, b"x", delay=0.05)
        producer.publish_many(topic, [b"y"], delay=0.05)
        consumer = face.consumer(topic, nsqd=address, max_in_flight=3)
        got: list[Any] = []
        while len(got) < 3:
            messages = consumer.fetch(3, WAIT_S)
            assert messages
            consumer.finish_many(messages)
            got += [message.body for message in messages]
        assert sorted(got) == [b"connects", b"x", b"y"]

    def test_the_broker_refuses_a_delay_beyond_its_limit(self, producer, topic):
        with pytest.raises(RefusedError, match="E_INVALID") as caught:
            producer.publish(topic, b"x", delay=timedelta(days=300))
        assert caught.value.code == "E_INVALID"
        # The connection was closed by the broker; the next publish has another one.
        producer.publish(topic, b"x")


class TestErrors:
    @pytest.mark.parametrize("name", ["", "a b", "a" * 65, "ü", "a/b", "new\nline"])
    def test_a_bad_name_is_refused_by_the_client(self, producer, name):
        for call in (producer.publish, producer.submit):
            with pytest.raises(InvalidNameError):
                call(name, b"x")
            with pytest.raises(InvalidNameError):
                call(name, b"x", delay=1)
        with pytest.raises(InvalidNameError):
            producer.publish_many(name, [b"x"])
        with pytest.raises(InvalidNameError):
            producer.publish_many(name, [b"x"], delay=1)
        assert producer.stats()["pending"] == producer.stats()["pending_bytes"] == 0

    @pytest.mark.parametrize(
        ("body", "text"), [(b"", "one byte"), ("text", r"\.encode\(\)"), (5, "not int"), (None, "not NoneType")]
    )
    def test_a_body_that_is_no_bytes_is_refused_by_the_client(self, producer, topic, body, text):
        for call in (producer.publish, producer.submit):
            with pytest.raises(SettingError, match=text):
                call(topic, body)
        with pytest.raises(SettingError, match=text):
            producer.publish_many(topic, [b"good", body])

    def test_a_message_over_the_limit_fails_alone(self, producer, read, topic):
        futures = [producer.submit(topic, b"%02d" % number) for number in range(20)]
        big = producer.submit(topic, bytes(2 << 20))
        futures += [producer.submit(topic, b"%02d" % number) for number in range(20, 40)]
        with pytest.raises(TooBigError, match="too big") as caught:
            big.result(WAIT_S)
        assert caught.value.code == "E_BAD_MESSAGE"
        for future in futures:
            future.result(WAIT_S)
        # What the broker had executed and not answered before it closed the connection is published twice.
        expected = {b"%02d" % number for number in range(40)}
        got = set(read(40))
        while got != expected:
            got |= set(read(1))

    def test_a_batch_over_the_limit_publishes_nothing(self, producer, broker, topic):
        with pytest.raises(TooBigError):
            producer.publish_many(topic, [bytes(1 << 20) for _ in range(6)])
        with pytest.raises(TooBigError):
            producer.publish_many(topic, [b"small", bytes(2 << 20)])
        assert (broker.topic(topic) or {"message_count": 0})["message_count"] == 0

    def test_no_broker_is_named(self, face):
        with pytest.raises(SettingError, match="no broker"):
            face.producer()

    @pytest.mark.parametrize(
        "options", [{"timeout": "x"}, {"timeout": 0}, {"timeout": float("nan")}, {"max_pending_bytes": 0}]
    )
    def test_an_option_of_the_producer_that_makes_no_sense(self, face, address, options):
        with pytest.raises(SettingError, match=next(iter(options))):
            face.producer(address, **options)

    def test_an_unknown_option_is_named(self, face, address):
        with pytest.raises(SettingError, match="did you mean heartbeat_interval"):
            face.producer(address, heartbeat_intervall=1)


class TestCodecs:
    def test_bodies_are_encoded(self, face, address, topic):
        producer = face.producer(address, codec=JsonCodec())
        producer.publish(topic, {"order": 5})
        producer.publish_many(topic, [[1], Outgoing("text", delay=0.01)])
        consumer = face.consumer(topic, nsqd=address, codec=JsonCodec(), max_in_flight=3)
        values: list[Any] = []
        while len(values) < 3:
            for message in consumer.fetch(3, WAIT_S):
                values.append(message.value)
                message.finish()
        assert sorted(map(str, values)) == sorted(map(str, [{"order": 5}, [1], "text"]))

    def test_a_value_that_cannot_be_encoded_is_refused(self, face, address, topic):
        producer = face.producer(address, codec=JsonCodec())
        with pytest.raises(CodecError):
            producer.publish(topic, object())

    def test_a_body_that_cannot_be_decoded_raises_when_it_is_read(self, face, address, topic):
        face.producer(address).publish(topic, b"{not json")
        (message,) = face.consumer(topic, nsqd=address, codec=JsonCodec()).fetch(1, WAIT_S)
        with pytest.raises(CodecError):
            _ = message.value
        assert message.body == b"{not json"
        message.finish()


def test_urls_name_brokers_and_options(face, address, topic):
    producer = face.producer(f"nsq://{address}?heartbeat_interval=5&client_id=from-url")
    producer.publish(topic, b"x")
    assert list(producer.stats()["brokers"]) == [address]
