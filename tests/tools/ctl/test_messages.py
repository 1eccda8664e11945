"""pyqctl publish, peek, cancel, reschedule and deliver-now, against real brokers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyqd.primitives.durations import MINUTE_NS
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port, wait_until
from tests.tools.ctl.conftest import Ctl, address_of

UNKNOWN = "0123456789abcdef"


@pytest.fixture
def queue(broker: Daemon, topic: str) -> str:
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="email")
    return topic


def bodies(ctl: Ctl, *arguments: str) -> list[str]:
    return [row["body"] for row in ctl("peek", *arguments).json()["messages"]]


def test_a_published_message_is_shown_with_its_id(ctl: Ctl, broker: Daemon, queue: str) -> None:
    published = ctl("publish", queue, "hello").json()
    assert (published["node"], published["count"]) == (address_of(broker), 1)
    (shown,) = ctl("peek", queue, "email").json()["messages"]
    assert (shown["id"], shown["body"], shown["node"]) == (published["id"], "hello", address_of(broker))
    with Client(broker.tcp_address) as client:
        client.sub(queue, "email", rdy_count=1)
        assert client.read_message().id.decode() == published["id"]


def test_a_body_comes_from_standard_input_or_a_file_byte_by_byte(ctl: Ctl, queue: str, tmp_path: Path) -> None:
    data = bytes(range(256))
    path = tmp_path / "body"
    path.write_bytes(data + b"\n")
    assert ctl("publish", queue, input=data).code == 0
    assert ctl("publish", queue, "-", input=data).code == 0
    assert ctl("publish", queue, "--file", str(path)).code == 0
    shown = [base64.b64decode(body) for body in bodies(ctl, queue, "email", "--body=base64")]
    assert shown == [data, data, data + b"\n"]


def test_each_line_is_a_message(ctl: Ctl, queue: str) -> None:
    published = ctl("publish", queue, "--lines", input="one\n\ntwo\nthree").json()
    assert published["count"] == 3
    assert bodies(ctl, queue, "email") == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("body", "--file", "/dev/null"), "BODY or --file"),
        (("x", "--in=1m", "--at=-1m"), "--in or --at, not both"),
        (("x", "--at=noon"), "'noon' is no time"),
        (("x", "--in=-1s"), "is negative"),
    ],
)
def test_a_wrong_use_of_publish_sends_nothing(
    ctl: Ctl, broker: Daemon, topic: str, arguments: tuple[str, ...], reason: str
) -> None:
    ran = ctl("publish", topic, *arguments)
    assert ran.code == 2
    assert reason in ran.err
    assert topic not in broker.topics()


def test_an_empty_body_is_refused_by_the_broker(ctl: Ctl, topic: str) -> None:
    ran = ctl("publish", topic, input="")
    assert ran.code == 1
    assert "MSG_EMPTY" in ran.err


def test_a_message_is_published_at_a_broker_that_answers(bare: Ctl, broker: Daemon, queue: str) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("publish", queue, "x", "-a", absent, "-a", address_of(broker))
    assert ran.json()["node"] == address_of(broker)
    ran = bare("publish", queue, "x", "-a", absent)
    assert (ran.code, ran.out) == (3, "")


def test_deferred_messages_are_rescheduled_delivered_and_cancelled(ctl: Ctl, broker: Daemon, queue: str) -> None:
    first, second = (ctl("publish", queue, "x", "--in=10m").json()["id"] for _ in range(2))
    assert ctl("reschedule", queue, first, "--in=20m").json()["results"] == [
        {"id": first, "was": "deferred", "node": address_of(broker), "channel": "email", "status": "done"}
    ]
    shown = {row["id"]: row for row in ctl("peek", queue, "email", "--state=deferred").json()["messages"]}
    assert shown[first]["due"] - shown[second]["due"] > 9 * MINUTE_NS
    assert ctl("deliver-now", queue, first, "--channel=email").code == 0
    assert ctl("cancel", queue, second, "--yes").code == 0
    assert bodies(ctl, queue, "email", "--state=deferred") == []
    assert [row["id"] for row in ctl("peek", queue, "email").json()["messages"]] == [first]


def test_ids_are_read_from_standard_input(ctl: Ctl, queue: str) -> None:
    ids = [ctl("publish", queue, "x", "--in=10m").json()["id"] for _ in range(3)]
    rows = ctl("cancel", queue, "-", "--yes", input="\n".join(ids)).json()["results"]
    assert [row["id"] for row in rows] == ids
    assert ctl("cancel", queue, "-", "--yes", input="\n").code == 2
    assert "is no message id" in ctl("cancel", queue, "-", "--yes", input=b"\xff").err


@pytest.fixture
def holder(broker: Daemon) -> Iterator[Client]:
    with Client(broker.tcp_address) as client:
        yield client


def test_a_message_that_a_client_has_is_not_changed(ctl: Ctl, queue: str, holder: Client) -> None:
    message_id = ctl("publish", queue, "x").json()["id"]
    ran = ctl("cancel", queue, message_id)
    assert (ran.code, f"Cancel 1 message of topic {queue} on all channels?" in ran.err) == (2, True)
    assert ctl("reschedule", queue, message_id).code == 2
    holder.sub(queue, "email", rdy_count=1)
    holder.read_message()
    ran = ctl("cancel", queue, message_id, "--yes")
    assert ran.code == 1
    assert json.loads(ran.out)["results"][0]["status"] == "in_flight"
    (row,) = ctl("peek", queue, "email", "--state=in_flight").json()["messages"]
    assert row["client"]["remote_address"] == holder.local_address
    assert holder.local_address in ctl("peek", queue, "email", "--state=in_flight", "--table").out


def test_a_message_is_found_on_the_broker_that_has_it(both: Ctl, second_broker: Daemon, topic: str) -> None:
    both("create", topic, "email")
    reply = second_broker.http("POST", "/pub", b"x", topic=topic)
    message_id = reply.headers["x-nsq-message-id"]
    (row,) = both("cancel", topic, message_id, "-y").json()["results"]
    assert (row["node"], row["status"]) == (address_of(second_broker), "done")


def test_an_unknown_message_ends_with_exit_code_4(both: Ctl, topic: str) -> None:
    both("create", topic, "email")
    known = both("publish", topic, "x").json()["id"]
    ran = both("cancel", topic, UNKNOWN, known, "-y")
    assert ran.code == 4
    assert [row["id"] for row in json.loads(ran.out)["results"]] == [known]
    assert "MESSAGE_NOT_FOUND" in ran.err


def test_a_message_is_not_called_missing_while_a_broker_is_silent(bare: Ctl, broker: Daemon, queue: str) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("cancel", queue, UNKNOWN, "-y", "-a", absent, "-a", address_of(broker))
    assert ran.code == 3


@pytest.mark.parametrize("wrong", ["", "xyz", UNKNOWN + "0", UNKNOWN[:-1] + "g"])
def test_what_is_no_id_is_not_sent(bare: Ctl, wrong: str) -> None:
    ran = bare("cancel", "orders", wrong, "-y", "-a", "127.0.0.1:1")
    assert ran.code == 2
    assert "no message id" in ran.err


def test_pages_are_followed_up_to_the_limit(ctl: Ctl, broker: Daemon, queue: str) -> None:
    with Client(broker.tcp_address) as client:
        client.mpub(queue, [b"%d" % number for number in range(1500)])
    shown = ctl("peek", queue, "email", "-n", "1200", "--body=none").json()
    assert len(shown["messages"]) == 1200
    cursor = shown["next"][address_of(broker)]
    rest = ctl("peek", queue, "email", "-n", "1200", "--after", cursor).json()
    assert [row["body"] for row in rest["messages"]] == [str(number) for number in range(1200, 1500)]
    assert rest["next"] == {}


def test_messages_of_several_brokers_are_shown_with_their_broker(
    both: Ctl, broker: Daemon, second_broker: Daemon, topic: str
) -> None:
    both("create", topic, "email")
    for daemon in (broker, second_broker):
        daemon.http("POST", "/pub", b"x", topic=topic)
    nodes = [row["node"] for row in both("peek", topic, "email").json()["messages"]]
    assert nodes == [address_of(broker), address_of(second_broker)]
    assert "Node" in both("peek", topic, "email", "--table").out
    assert both("peek", topic, "email", "--after=q1").code == 2


def test_messages_that_the_topic_holds_are_shown(ctl: Ctl, broker: Daemon, topic: str) -> None:
    broker.http("POST", "/pub", b"held", topic=topic)
    assert bodies(ctl, topic) == ["held"]


def test_control_characters_of_a_body_do_not_reach_the_terminal(ctl: Ctl, broker: Daemon, queue: str) -> None:
    broker.http("POST", "/pub", "\x1b[31m[red]\r\n\x9b\u202e\u061cend".encode(), topic=queue)
    shown = ctl("peek", queue, "email", "--table", COLUMNS="200").out
    assert r"\x1b[31m[red]\x0d\n\u009b\u202e\u061cend" in shown
    assert not {"\x1b", "\x9b", "\u202e", "\u061c", "\r"} & set(shown)


def test_messages_of_an_unknown_channel_end_with_exit_code_4(ctl: Ctl, queue: str) -> None:
    ran = ctl("peek", queue, "absent")
    assert ran.code == 4
    assert "CHANNEL_NOT_FOUND" in ran.err


def test_nsqd_takes_messages_and_tells_no_ids(go_ctl: Ctl, go_broker: Daemon, topic: str) -> None:
    go_ctl("create", topic, "email")
    assert go_ctl("publish", topic, "hello").json()["id"] is None
    assert go_ctl("publish", topic, "later", "--in=10m").code == 0
    assert go_ctl("publish", topic, "--lines", input="a\nb\n").json()["count"] == 2

    def counts() -> tuple[int, int]:
        channel = go_broker.topics()[topic]["channels"][0]
        return channel["depth"], channel["deferred_count"]

    wait_until(lambda: counts() == (3, 1), "the messages are in the channel")


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "orders", "x", "--at=2030-01-01T00:00:00Z"),
        ("publish", "orders", "x", "--lines", "--in=1m"),
        ("peek", "orders", "email"),
        ("cancel", "orders", UNKNOWN, "--yes"),
        ("reschedule", "orders", UNKNOWN, "--in=1m"),
        ("deliver-now", "orders", UNKNOWN),
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
def test_calls_that_nsqd_lacks_end_with_a_clear_error(
    go_ctl: Ctl, go_broker: Daemon, arguments: tuple[str, ...]
) -> None:
    ran = go_ctl(*arguments)
    assert ran.code == 6
    assert address_of(go_broker) in ran.err
    assert "NSQ" in ran.err or "nsqd" in ran.err
    assert "orders" not in go_broker.topics()
