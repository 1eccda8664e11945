"""POST /topic/* and /channel/*: refusals, and the effects on messages and clients."""

from __future__ import annotations

import contextlib
import http.client
import threading

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.two_servers import Connect

VERSION_HEADER = "x-nsq-content-type"
TOPIC_ACTIONS = ("create", "delete", "empty", "pause", "unpause")
CHANNEL_ACTIONS = ("create", "delete", "empty", "pause", "unpause")
# These two check the name; the others look it up.
NAME_CHECKED = ("create", "empty")


def post(server: Daemon, path: str, **query: str) -> None:
    """Expect the answer of success: nothing."""
    reply = server.http("POST", path, None, **query)
    assert (reply.status, reply.body) == (200, b"")
    assert "content-type" not in reply.headers
    assert reply.headers[VERSION_HEADER] == "nsq; version=1.0"
    assert reply.headers["content-length"] == "0"


def expect_refused(server: Daemon, target: str, status: int, code: str) -> None:
    reply = server.http("POST", target)
    assert (reply.status, reply.body) == (status, b'{"message":"%s"}' % code.encode()), target
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers[VERSION_HEADER] == "nsq; version=1.0"


@pytest.mark.parametrize("action", TOPIC_ACTIONS)
def test_a_topic_that_cannot_be_is_refused(server: Daemon, action: str) -> None:
    expect_refused(server, f"/topic/{action}", 400, "MISSING_ARG_TOPIC")
    expect_refused(server, f"/topic/{action}?topic=a%zz", 400, "INVALID_REQUEST")
    expect_refused(server, f"/topic/{action}?topic=a;b", 400, "INVALID_REQUEST")
    invalid = (400, "INVALID_TOPIC") if action in NAME_CHECKED else (404, "TOPIC_NOT_FOUND")
    for name in ("", "a%20b", "%23ephemeral", "a" * 65):
        expect_refused(server, f"/topic/{action}?topic={name}", *invalid)
    if action != "create":
        expect_refused(server, f"/topic/{action}?topic=none_such", 404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize("action", CHANNEL_ACTIONS)
def test_a_channel_that_cannot_be_is_refused_in_order(server: Daemon, topic: str, action: str) -> None:
    post(server, "/topic/create", topic=topic)
    for query, status, code in [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("?channel=!", 400, "MISSING_ARG_TOPIC"),
        ("?topic=%zz&channel=c", 400, "INVALID_REQUEST"),
        ("?topic=!&channel=!", 400, "INVALID_ARG_TOPIC"),
        ("?topic=&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("?topic=none_such", 400, "MISSING_ARG_CHANNEL"),
        ("?topic=none_such&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("?topic=none_such&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("?topic=none_such&channel=c", 404, "TOPIC_NOT_FOUND"),
    ]:
        expect_refused(server, f"/channel/{action}{query}", status, code)
    if action != "create":
        expect_refused(server, f"/channel/{action}?topic={topic}&channel=none_such", 404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("path", [f"/topic/{action}" for action in TOPIC_ACTIONS])
def test_other_methods_are_refused(server: Daemon, path: str) -> None:
    for method in ("GET", "PUT", "DELETE", "HEAD"):
        reply = server.http(method, f"{path}?topic=none_such")
        assert (reply.status, reply.headers["allow"]) == (405, "OPTIONS, POST")
    reply = server.http("OPTIONS", path)
    assert (reply.status, reply.body, reply.headers["allow"]) == (200, b"", "OPTIONS, POST")
    assert VERSION_HEADER not in reply.headers


def test_creating_an_existing_topic_or_channel_changes_nothing(server: Daemon, client: Client, topic: str) -> None:
    client.pub(topic, b"x")
    for _ in range(2):
        post(server, "/topic/create", topic=topic)
        post(server, "/channel/create", topic=topic, channel="c")
    server.wait_for_channel(topic, "c", depth=1)


def test_the_body_of_a_request_is_ignored(server: Daemon, topic: str) -> None:
    reply = server.http("POST", f"/topic/create?topic={topic}", body=b"topic=other" * 1000)
    assert reply.status == 200
    assert server.topic(topic) is not None


def test_a_deleted_channel_is_gone_with_its_messages_and_clients(server: Daemon, connect: Connect, topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c", rdy_count=1)
    publisher.pub_each(topic, [b"1", b"2", b"3"])
    consumer.read_message()
    post(server, "/channel/delete", topic=topic, channel="c")
    consumer.expect_closed()
    assert server.channel(topic, "c") is None
    expect_refused(server, f"/channel/delete?topic={topic}&channel=c", 404, "CHANNEL_NOT_FOUND")
    # The topic goes on, and holds new messages until there is a channel.
    publisher.pub(topic, b"4")
    later = connect()
    later.sub(topic, "c", rdy_count=5)
    message = later.read_message()
    assert (message.body, message.attempts) == (b"4", 1)
    later.fin(message)
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=0, message_count=1)


def test_deleting_one_channel_leaves_the_others(server: Daemon, connect: Connect, topic: str) -> None:
    doomed, kept = connect(), connect()
    doomed.sub(topic, "doomed", rdy_count=1)
    kept.sub(topic, "kept", rdy_count=10)
    connect().pub_each(topic, [b"1", b"2"])
    doomed.read_message()
    post(server, "/channel/delete", topic=topic, channel="doomed")
    assert {message.body for message in kept.read_messages(2)} == {b"1", b"2"}
    doomed.expect_closed()
    kept.expect_alive()


def test_a_deleted_topic_loses_its_messages_and_publishing_re_creates_it(
    server: Daemon, connect: Connect, topic: str
) -> None:
    consumer, idle, publisher = connect(), connect(), connect()
    consumer.sub(topic, "c", rdy_count=1)
    idle.sub(topic, "d")
    publisher.pub_each(topic, [b"1", b"2"])
    publisher.dpub(topic, 600, b"deferred")
    consumer.read_message()
    post(server, "/topic/delete", topic=topic)
    consumer.expect_closed()
    idle.expect_closed()
    publisher.expect_alive()
    assert server.topic(topic) is None
    expect_refused(server, f"/topic/delete?topic={topic}", 404, "TOPIC_NOT_FOUND")
    publisher.pub(topic, b"3")
    server.wait_for_topic(topic, depth=1, message_count=1, message_bytes=1, channels=[])
    later = connect()
    later.sub(topic, "c", rdy_count=5)
    assert later.read_message().body == b"3"


def test_an_ephemeral_topic_goes_with_its_last_channel(server: Daemon, topic: str) -> None:
    name = f"{topic}#ephemeral"
    post(server, "/topic/create", topic=name)
    for channel in ("a", "b"):
        post(server, "/channel/create", topic=name, channel=channel)
    post(server, "/channel/delete", topic=name, channel="a")
    assert server.topic(name) is not None
    post(server, "/channel/delete", topic=name, channel="b")
    wait_until(lambda: server.topic(name) is None, "the ephemeral topic is gone")


@pytest.mark.slow
def test_an_emptied_channel_has_nothing_left(server: Daemon, connect: Connect, topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c", rdy_count=2)
    publisher.pub_each(topic, [b"%d" % number for number in range(5)])
    publisher.dpub(topic, 60000, b"deferred")
    taken = consumer.read_messages(2)
    server.wait_for_channel(topic, "c", depth=3, in_flight_count=2, deferred_count=1)
    post(server, "/channel/empty", topic=topic, channel="c")
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=0, deferred_count=0, message_count=6, client_count=1)
    channel = server.channel(topic, "c")
    assert channel is not None
    assert channel["clients"][0]["in_flight_count"] == 0
    consumer.fin(taken[0])
    consumer.expect_error("E_FIN_FAILED", b"FIN " + taken[0].id + b" failed ID not in flight")
    # The consumer's count is 0, so it is sent more without having finished anything.
    publisher.pub_each(topic, [b"a", b"b"])
    assert {message.body for message in consumer.read_messages(2)} == {b"a", b"b"}


@pytest.mark.slow
def test_an_emptied_topic_drops_messages_without_a_channel(server: Daemon, connect: Connect, topic: str) -> None:
    publisher = connect()
    publisher.pub_each(topic, [b"1", b"2"])
    publisher.dpub(topic, 60000, b"deferred")
    post(server, "/topic/empty", topic=topic)
    server.wait_for_topic(topic, depth=0, message_count=3)
    post(server, "/channel/create", topic=topic, channel="c")
    server.wait_for_channel(topic, "c", depth=0, deferred_count=0, message_count=0)
    publisher.pub(topic, b"3")
    server.wait_for_channel(topic, "c", depth=1)
    post(server, "/topic/empty", topic=topic)
    server.wait_for_channel(topic, "c", depth=1)


@pytest.mark.slow
def test_emptying_a_paused_topic_keeps_the_messages_of_its_channels(
    server: Daemon, connect: Connect, topic: str
) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c")
    publisher.pub(topic, b"before")
    server.wait_for_channel(topic, "c", depth=1)
    post(server, "/topic/pause", topic=topic)
    publisher.pub_each(topic, [b"1", b"2"])
    server.wait_for_topic(topic, depth=2, paused=True)
    post(server, "/topic/empty", topic=topic)
    server.wait_for_topic(topic, depth=0)
    post(server, "/topic/unpause", topic=topic)
    publisher.pub(topic, b"after")
    consumer.rdy(10)
    assert {message.body for message in consumer.read_messages(2)} == {b"before", b"after"}
    server.wait_for_channel(topic, "c", depth=0, message_count=2)


def test_a_paused_topic_takes_messages_and_holds_them(server: Daemon, connect: Connect, topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c", rdy_count=10)
    post(server, "/topic/pause", topic=topic)
    post(server, "/topic/pause", topic=topic)
    publisher.pub_each(topic, [b"1", b"2"])
    server.wait_for_topic(topic, depth=2, paused=True, message_count=2)
    server.wait_for_channel(topic, "c", depth=0, message_count=0, paused=False)
    post(server, "/topic/unpause", topic=topic)
    assert {message.body for message in consumer.read_messages(2)} == {b"1", b"2"}
    server.wait_for_topic(topic, depth=0, paused=False)


def test_a_paused_channel_delivers_nothing_and_keeps_rdy(server: Daemon, connect: Connect, topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c", rdy_count=10)
    publisher.pub(topic, b"in flight")
    held = consumer.read_message()
    post(server, "/channel/pause", topic=topic, channel="c")
    publisher.pub_each(topic, [b"1", b"2"])
    server.wait_for_channel(topic, "c", depth=2, in_flight_count=1, paused=True)
    consumer.req(held, 0)
    server.wait_for_channel(topic, "c", depth=3, in_flight_count=0, requeue_count=1)
    consumer.expect_alive()
    post(server, "/channel/unpause", topic=topic, channel="c")
    assert {message.body for message in consumer.read_messages(3)} == {b"in flight", b"1", b"2"}
    server.wait_for_channel(topic, "c", depth=0, in_flight_count=3, paused=False)


@pytest.mark.slow
def test_timeouts_expire_in_a_paused_channel(server: Daemon, connect: Connect, timed_topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.identify(msg_timeout=1000)
    consumer.sub(timed_topic, "c", rdy_count=1)
    publisher.pub(timed_topic, b"x")
    consumer.read_message()
    post(server, "/channel/pause", topic=timed_topic, channel="c")
    publisher.dpub(timed_topic, 500, b"deferred")
    server.wait_for_channel(timed_topic, "c", depth=2, in_flight_count=0, deferred_count=0, timeout_count=1)
    post(server, "/channel/unpause", topic=timed_topic, channel="c")


def test_a_client_may_finish_messages_of_a_paused_channel(server: Daemon, connect: Connect, topic: str) -> None:
    consumer, publisher = connect(), connect()
    consumer.sub(topic, "c", rdy_count=1)
    publisher.pub_each(topic, [b"1", b"2"])
    held = consumer.read_message()
    post(server, "/channel/pause", topic=topic, channel="c")
    consumer.fin(held)
    server.wait_for_channel(topic, "c", depth=1, in_flight_count=0)
    consumer.expect_alive()
    post(server, "/channel/unpause", topic=topic, channel="c")
    assert consumer.read_message().body == b"2"


@pytest.mark.pyqd_only("nsqd writes its metadata behind the answer, and its queue files at intervals")
def test_deleted_and_emptied_messages_do_not_return_after_a_kill(own_server: Daemon) -> None:
    server = own_server
    with Client(server.tcp_address) as client:
        for name in ("gone", "kept", "held"):
            client.pub_each(name, [b"1", b"2"])
            client.dpub(name, 60000, b"deferred")
        for name, channel in (("gone", "c"), ("kept", "gone"), ("kept", "empty"), ("kept", "full")):
            post(server, "/channel/create", topic=name, channel=channel)
        client.pub_each("kept", [b"3", b"4"])
        client.dpub("kept", 60000, b"deferred")
    post(server, "/topic/delete", topic="gone")
    post(server, "/channel/delete", topic="kept", channel="gone")
    post(server, "/channel/empty", topic="kept", channel="empty")
    post(server, "/topic/empty", topic="held")
    server.kill()
    server.start()
    assert server.topics().keys() == {"kept", "held"}
    server.wait_for_topic("held", depth=0)
    server.wait_for_channel("kept", "empty", depth=0, in_flight_count=0, deferred_count=0)
    server.wait_for_channel("kept", "full", depth=2, deferred_count=1)
    assert server.channel("kept", "gone") is None
    assert not list(server.data_path.glob("discarded/*"))


@pytest.mark.pyqd_only("nsqd writes its metadata behind the answer, and its queue files at intervals")
def test_a_kill_in_the_middle_of_deleting_leaves_topics_whole_or_not_at_all(own_server: Daemon) -> None:
    server = own_server
    names = [f"t{number}" for number in range(30)]
    with Client(server.tcp_address) as client:
        for name in names:
            for channel in ("c", "d"):
                post(server, "/topic/create", topic=name)
                post(server, "/channel/create", topic=name, channel=channel)
            client.pub_each(name, [b"1", b"2"])
            client.dpub(name, 60000, b"deferred")
    answered: list[str] = []

    def delete_all() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for name in names:
                post(server, "/topic/delete", topic=name)
                answered.append(name)

    deleting = threading.Thread(target=delete_all)
    deleting.start()
    wait_until(lambda: len(answered) > 7, "some are deleted")
    server.kill()
    deleting.join(10)
    server.start()
    left = server.topics()
    assert len(answered) < len(names)
    # The one that was being deleted may be there or not.
    assert left.keys() in (set(names[len(answered) :]), set(names[len(answered) + 1 :]))
    for topic in left.values():
        shown = [(entry["channel_name"], entry["depth"], entry["deferred_count"]) for entry in topic["channels"]]
        assert shown == [("c", 2, 1), ("d", 2, 1)]
