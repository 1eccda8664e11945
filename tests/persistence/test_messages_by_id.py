"""Messages that are listed, cancelled and rescheduled on a running daemon, and the state after a SIGKILL."""

from typing import Any

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.flags("-max-bytes-per-file=65536")]


@pytest.fixture
def daemon(daemon: Daemon) -> Daemon:
    for path, channel in (("/topic/create", {}), ("/channel/create", {"channel": "c"})):
        assert daemon.http("POST", path, None, topic="t", **channel).status == 200
    return daemon


def messages(daemon: Daemon, state: str = "ready", **query: str) -> list[Any]:
    reply = daemon.http("GET", "/channel/messages", None, topic="t", channel="c", state=state, limit="1000", **query)
    assert reply.status == 200, reply
    shown = reply.json()
    found: list[Any] = shown["messages"]
    return found if shown["next"] is None else found + messages(daemon, state, **{**query, "after": shown["next"]})


def ids(daemon: Daemon, state: str = "ready") -> dict[str, str]:
    return {message["body"]: message["id"] for message in messages(daemon, state)}


def amend(daemon: Daemon, what: str, message_id: str, **query: str) -> str:
    reply = daemon.http("POST", f"/message/{what}", None, topic="t", id=message_id, **query)
    assert reply.status == 200, reply
    (result,) = reply.json()["results"]
    return str(result["status"])


def publish(daemon: Daemon, count: int, defer_ms: int = 0) -> None:
    with Client(daemon.tcp_address) as client:
        if defer_ms:
            for number in range(count):
                client.dpub("t", defer_ms, b"%d" % number)
        else:
            client.pub_each("t", [b"%d" % number for number in range(count)])


def take_all(daemon: Daemon, count: int) -> list[bytes]:
    """Finish exactly so many messages. Returns: their bodies, sorted."""
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=1000)
        found = client.finish_exactly(count)
    return sorted(message.body for message in found)


def test_a_message_in_flight_is_listed_with_its_client_and_cannot_be_cancelled(daemon):
    publish(daemon, 3)
    with Client(daemon.tcp_address) as client:
        client.identify(client_id="me", hostname="here", msg_timeout=60_000)
        client.sub("t", "c", rdy_count=1)
        message = client.read_message()
        (shown,) = messages(daemon, "in_flight")
        assert (shown["id"], shown["body"], shown["attempts"]) == (message.id.decode(), "0", 1)
        assert shown["client"]["client_id"] == "me"
        assert shown["client"]["hostname"] == "here"
        assert shown["timestamp"] == message.timestamp_ns < shown["delivered"]
        assert shown["deadline"] - shown["delivered"] == 60_000_000_000
        for what, query in (("cancel", {}), ("deliver_now", {}), ("reschedule", {"defer": "1000"})):
            assert amend(daemon, what, shown["id"], **query) == "in_flight"
        assert len(messages(daemon)) == 2
        client.rdy(0)
        client.fin(message)
        client.expect_alive()
        wait_until(lambda: amend(daemon, "cancel", shown["id"]) == "finished", "it is finished")


def test_a_returned_message_is_shown_before_the_queue_and_cancelled(daemon):
    publish(daemon, 3)
    with Client(daemon.tcp_address) as client:
        client.sub("t", "c", rdy_count=2)
        held = client.read_messages(2)
        client.rdy(0)
        client.expect_alive()
        client.req(held[1], 0)
        client.expect_alive()
        assert [(each["body"], each["attempts"]) for each in messages(daemon)] == [("1", 1), ("2", 0)]
        assert amend(daemon, "cancel", held[1].id.decode()) == "done"
        assert [each["body"] for each in messages(daemon)] == ["2"]
        client.fin(held[0])
        client.expect_alive()
    daemon.kill_and_start()
    assert take_all(daemon, 1) == [b"2"]


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_a_cancelled_message_is_never_delivered(daemon, kills):
    publish(daemon, 20)
    publish(daemon, 10, defer_ms=60_000)
    ready, deferred = ids(daemon), ids(daemon, "deferred")
    for number in (0, 7, 19):
        assert amend(daemon, "cancel", ready[str(number)]) == "done"
    for number in (0, 9):
        assert amend(daemon, "cancel", deferred[str(number)]) == "done"
    for _ in range(kills):
        daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=17, deferred_count=8)
    for number in range(10):
        assert amend(daemon, "deliver_now", deferred[str(number)]) == ("finished" if number in (0, 9) else "done")
    daemon.wait_for_channel("t", "c", depth=25, deferred_count=0)
    expected = [b"%d" % number for number in range(20) if number not in (0, 7, 19)]
    assert take_all(daemon, 25) == sorted(expected + [b"%d" % number for number in range(1, 9)])


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_a_rescheduled_message_is_delivered_once_at_its_new_time(daemon, kills):
    publish(daemon, 20)
    publish(daemon, 2, defer_ms=60_000)
    ready, deferred = ids(daemon), ids(daemon, "deferred")
    moved = [ready["3"], ready["19"], deferred["1"]]
    for message_id in moved:
        assert amend(daemon, "reschedule", message_id, defer="120000") == "done"
    for _ in range(kills):
        daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=18, deferred_count=4)
    shown = messages(daemon, "deferred")
    assert [message["id"] for message in shown] == [deferred["0"], *moved]
    assert take_all(daemon, 18) == sorted(b"%d" % number for number in range(19) if number != 3)
    for message_id in moved:
        assert amend(daemon, "deliver_now", message_id) == "done"
    if kills:
        daemon.kill_and_start()
    daemon.wait_for_channel("t", "c", depth=3, deferred_count=1)
    assert take_all(daemon, 3) == [b"1", b"19", b"3"]
    assert take_all(daemon, 0) == []


def test_a_message_is_found_in_a_queue_of_many_segments(daemon):
    publish(daemon, 1000)
    with Client(daemon.tcp_address) as client:
        client.mpub("t", [b"%06d" % number + bytes(2000) for number in range(500)])
    of = {message["body"][:6]: message["id"] for message in messages(daemon)}
    assert len(of) == 1500
    for body in ("0", "999", "000000", "000250", "000499"):
        assert amend(daemon, "cancel", of[body]) == "done"
    left = [message["body"][:6] for message in messages(daemon)]
    assert len(left) == 1495
    assert left == [body for body in of if body not in ("0", "999", "000000", "000250", "000499")]
