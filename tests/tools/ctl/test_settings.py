"""pyqctl seek, limits and retention, against real brokers."""

from __future__ import annotations

import json

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, free_port
from tests.tools.ctl.conftest import Ctl, address_of


@pytest.fixture
def queue(broker: Daemon, topic: str) -> str:
    """A topic with a channel `email` that has finished two of three messages."""
    broker.http("POST", "/topic/create", topic=topic)
    broker.http("POST", "/channel/create", topic=topic, channel="email")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"1", b"2", b"3"])
        client.sub(topic, "email", rdy_count=2)
        finished = client.read_messages(2)
        # The third message stays in the channel.
        client.rdy(0)
        for message in finished:
            client.fin(message)
        # Answered when both are finished.
        client.send(b"CLS\n")
        client.expect_response(b"CLOSE_WAIT")
    return topic


def depth(broker: Daemon, topic: str) -> int:
    return int(broker.topics()[topic]["channels"][0]["depth"])


def test_a_dry_run_shows_the_effect_and_changes_nothing(ctl: Ctl, broker: Daemon, queue: str) -> None:
    (row,) = ctl("seek", queue, "email", "earliest", "--dry-run").json()["nodes"]
    assert (row["node"], row["redeliver"], row["dry_run"]) == (address_of(broker), 2, True)
    assert depth(broker, queue) == 1
    assert "dry run" in ctl("seek", queue, "email", "earliest", "-n", "--table").out


def test_a_seek_moves_the_channel(ctl: Ctl, broker: Daemon, queue: str) -> None:
    (row,) = ctl("seek", queue, "email", "earliest", "--yes").json()["nodes"]
    assert (row["depth"], row["dry_run"]) == (3, False)
    assert depth(broker, queue) == 3
    assert ctl("seek", queue, "email", "latest", "--yes").code == 0
    assert depth(broker, queue) == 0
    assert ctl("seek", queue, "email", "--yes", "--", "-90m").code == 0
    assert depth(broker, queue) == 3


def test_the_question_before_a_seek_shows_its_effect(ctl: Ctl, broker: Daemon, queue: str) -> None:
    ran = ctl("seek", queue, "email", "earliest")
    assert ran.code == 2
    assert "2 messages delivered again, 0 messages skipped?" in ran.err
    assert depth(broker, queue) == 1


def test_a_position_is_for_one_broker(both: Ctl, broker: Daemon, second_broker: Daemon, queue: str) -> None:
    ran = both("seek", queue, "email", "0", "--dry-run")
    assert ran.code == 2
    assert f"choose one of {address_of(broker)}, {address_of(second_broker)}" in ran.err


def test_a_broker_that_does_not_answer_is_reported_once(bare: Ctl, broker: Daemon, queue: str) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("retention", queue, "--bytes=1GiB", "-a", absent, "-a", address_of(broker))
    assert ran.code == 3
    assert ran.err.count(absent) == 1
    assert json.loads(ran.out)["nodes"][0]["own_bytes"] == 1 << 30


def test_limits_are_shown_and_changed(ctl: Ctl, broker: Daemon, queue: str) -> None:
    assert ctl("limits", queue, "email").json()["nodes"][0]["rate"] == 0
    changed = ("--rate=7.5", "--max-attempts=3", f"--dead-letter-topic={queue}-dead")
    (row,) = ctl("limits", queue, "email", *changed).json()["nodes"]
    assert (row["rate"], row["max_attempts"], row["dead_letter_topic"]) == (7.5, 3, f"{queue}-dead")
    assert ctl("limits", queue, "email").json()["nodes"] == [row]
    assert "7.5" in ctl("limits", queue, "email", "--table").out
    assert f"{queue}-dead" in broker.topics()


def test_retention_is_shown_and_raised_without_a_question(ctl: Ctl, queue: str) -> None:
    (row,) = ctl("retention", queue).json()["nodes"]
    assert (row["bytes"], row["own_bytes"]) == (0, None)
    (row,) = ctl("retention", queue, "--bytes=1GiB", "--time=72h").json()["nodes"]
    assert (row["own_bytes"], row["own_time"]) == (1 << 30, "72h0m0s")
    assert "1.0 GiB" in ctl("retention", queue, "--table").out


@pytest.mark.parametrize("change", ["--bytes=1000", "--bytes=0", "--time=1h", "--time=default"])
def test_keeping_fewer_messages_asks_first(ctl: Ctl, queue: str, change: str) -> None:
    ctl("retention", queue, "--bytes=1GiB", "--time=72h")
    ran = ctl("retention", queue, change)
    assert ran.code == 2
    assert "1,073,741,824 bytes, 72h0m0s. Keep fewer?" in ran.err
    assert ctl("retention", queue).json()["nodes"][0]["own_bytes"] == 1 << 30
    assert ctl("retention", queue, change, "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("seek", "yesterday", "--dry-run"), "INVALID_TO"), (("limits", "--rate=fast"), "INVALID_RATE")],
)
def test_a_value_that_is_none_is_refused(ctl: Ctl, queue: str, arguments: tuple[str, ...], code: str) -> None:
    ran = ctl(arguments[0], queue, "email", *arguments[1:])
    assert (ran.code, code in ran.err) == (1, True)


@pytest.mark.parametrize("change", ["--bytes=many", "--bytes=-1", "--time=long", "--bytes=1GB1"])
def test_a_retention_that_is_none_is_not_sent(bare: Ctl, change: str) -> None:
    assert bare("retention", "orders", change, "-a", "127.0.0.1:1").code == 2


@pytest.mark.parametrize(("text", "number"), [("10", 10), ("1k", 1024), ("2MiB", 2 << 20), ("3GB", 3 << 30)])
def test_a_size_has_a_binary_unit(ctl: Ctl, queue: str, text: str, number: int) -> None:
    assert ctl("retention", queue, f"--bytes={text}").json()["nodes"][0]["own_bytes"] == number


@pytest.mark.parametrize(
    "arguments", [("seek", "{}", "c", "earliest", "-y"), ("limits", "{}", "c"), ("retention", "{}")]
)
def test_nsqd_has_none_of_these_calls(go_ctl: Ctl, go_broker: Daemon, topic: str, arguments: tuple[str, ...]) -> None:
    go_ctl("create", topic, "c")
    ran = go_ctl(*(argument.format(topic) for argument in arguments))
    assert ran.code == 6
    assert "the broker has no such call" in ran.err
