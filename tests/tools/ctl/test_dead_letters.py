"""pyqctl dead-letters list and return, against real brokers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pyqd.admin.dead_letters import Calls
from pyqd.admin.upstream import Upstream
from pyqd.client import Consumer, RetryPolicy
from pyqd.client.dead_letters import return_dead_letters, select_dead_letters
from pyqd.client.errors import RefusedError
from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.tools.ctl.conftest import Ctl, address_of
from tests.tools.ctl.test_command_line import PROGRAM, environment

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

LONG = b"long " * 2000


@pytest.fixture
def queue(ctl: Ctl, topic: str) -> str:
    """A topic with a channel `email` whose messages are dead letters after one attempt."""
    assert ctl("create", topic, "email").code == 0
    assert ctl("limits", topic, "email", "--max-attempts=1", f"--dead-letter-topic={topic}-dead").code == 0
    return topic


def kill(daemon: Daemon, topic: str, *bodies: bytes, channel: str = "email") -> None:
    """Publish messages and requeue each, so that they become dead letters."""
    before = dead_count(daemon, topic, channel)
    with Client(daemon.tcp_address) as client:
        client.mpub(topic, bodies)
        client.sub(topic, channel, rdy_count=len(bodies))
        for message in client.read_messages(len(bodies)):
            client.req(message, 0)
        wait_until(lambda: dead_count(daemon, topic, channel) == before + len(bodies), "the dead letters are published")


def dead_count(daemon: Daemon, topic: str, channel: str) -> int:
    return int(daemon.http("GET", "/channel/limits", topic=topic, channel=channel).json()["dead_letter_count"])


def listed(ctl: Ctl, topic: str, *more: str) -> list[tuple[str, str | None, str]]:
    rows = ctl("dead-letters", "list", topic, "email", *more).json()["messages"]
    return [(row["topic"], row["channel"], row["body"]) for row in rows]


def received(daemon: Daemon, topic: str, channel: str, count: int) -> list[bytes]:
    with Client(daemon.tcp_address) as client:
        client.sub(topic, channel, rdy_count=count)
        messages = client.read_messages(count)
        client.rdy(0)
        for message in messages:
            client.fin(message)
        client.send(b"CLS\n")
        client.expect_response(b"CLOSE_WAIT")
    return sorted(message.body for message in messages)


def test_dead_letters_are_listed_where_they_are(ctl: Ctl, broker: Daemon, queue: str) -> None:
    kill(broker, queue, b"poison")
    assert listed(ctl, queue) == [(f"{queue}-dead", None, "poison")]
    ctl("create", f"{queue}-dead", "inspect")
    assert listed(ctl, queue) == [(f"{queue}-dead", "inspect", "poison")]
    assert f"{queue}-dead/inspect" in ctl("dead-letters", "list", queue, "email", "--table").out


def test_dead_letters_that_wait_are_listed_too(ctl: Ctl, broker: Daemon, queue: str) -> None:
    # Without its topic a dead letter waits in the channel.
    with Client(broker.tcp_address) as client:
        client.pub(queue, b"poison")
        client.sub(queue, "email", rdy_count=1)
        message = client.read_message()
        assert ctl("delete", f"{queue}-dead", "--yes").code == 0
        client.req(message, 0)

        def is_waiting() -> bool:
            limits = broker.http("GET", "/channel/limits", topic=queue, channel="email").json()
            return bool(limits["dead_letters_waiting"])

        wait_until(is_waiting, "the dead letter waits")
    assert listed(ctl, queue) == [(queue, "email", "poison")]


def test_the_topic_of_a_clients_own_policy_is_named(ctl: Ctl, broker: Daemon, topic: str) -> None:
    # The broker has no limits of this channel: a consumer publishes its dead letters by itself.
    assert ctl("create", topic, "email").code == 0
    policy = RetryPolicy(max_attempts=1, dead_letter_topic=f"{topic}-failed")
    with Client(broker.tcp_address) as client:
        client.pub(topic, b"poison")
    with Consumer(topic, "email", nsqd=f"127.0.0.1:{broker.tcp_port}", retry=policy, backoff=0) as consumer:
        (message,) = consumer.fetch()
        with contextlib.suppress(ValueError), message:
            raise ValueError
        wait_until(lambda: consumer.stats()["dead_letters"] == 1, "the dead letter is published")
    ran = ctl("dead-letters", "list", topic, "email")
    assert ran.json()["messages"] == []
    assert f"--dead-letter-topic names the one of a client's own retry policy; perhaps {topic}-failed" in ran.err
    named = f"--dead-letter-topic={topic}-failed"
    assert listed(ctl, topic, named) == [(f"{topic}-failed", None, "poison")]
    assert ctl("dead-letters", "list", topic, "email", f"--dead-letter-topic={topic}").code == 2
    (result,) = ctl("dead-letters", "return", topic, "email", named, "--yes").json()["results"]
    assert (result["state"], listed(ctl, topic, named)) == ("returned", [])
    assert received(broker, topic, "email", 1) == [b"poison"]


def test_dead_letters_return_to_their_topic_whole(ctl: Ctl, broker: Daemon, queue: str) -> None:
    kill(broker, queue, b"one", LONG, b"\xff\x00")
    results = ctl("dead-letters", "return", queue, "email", "-y", "-n", "2").json()["results"]
    assert (len(results), len(listed(ctl, queue))) == (2, 1)
    results += ctl("dead-letters", "return", queue, "email", "--yes").json()["results"]
    assert [row["state"] for row in results] == ["returned"] * 3
    assert listed(ctl, queue) == []
    shown = ctl("peek", queue, "email", "--body=none").json()["messages"]
    assert sorted(row["id"] for row in shown) == sorted(row["new_id"] for row in results)
    assert received(broker, queue, "email", 3) == sorted([b"one", LONG, b"\xff\x00"])


def test_dead_letters_return_from_the_channel_that_holds_them(ctl: Ctl, broker: Daemon, queue: str) -> None:
    ctl("create", f"{queue}-dead", "inspect")
    kill(broker, queue, b"one")
    assert ctl("dead-letters", "return", queue, "email", "--yes").code == 0
    assert listed(ctl, queue) == []
    (channel,) = broker.topics()[f"{queue}-dead"]["channels"]
    assert channel["channel_name"] == "inspect"
    assert received(broker, queue, "email", 1) == [b"one"]
    ctl("create", f"{queue}-dead", "archive")
    kill(broker, queue, b"two")
    ran = ctl("dead-letters", "return", queue, "email", "--yes")
    assert ran.code == 2
    assert "archive, inspect: choose one with --from-channel" in ran.err
    assert ctl("dead-letters", "return", queue, "email", "--yes", "--from-channel=inspect").code == 0
    assert listed(ctl, queue) == [(f"{queue}-dead", "archive", "two")]
    assert ctl("dead-letters", "return", queue, "email", "--yes", "--from-channel=absent").code == 2


def test_single_dead_letters_return(ctl: Ctl, broker: Daemon, queue: str) -> None:
    kill(broker, queue, b"one", b"two", b"three")
    ids = {row["body"]: row["id"] for row in ctl("dead-letters", "list", queue, "email").json()["messages"]}
    assert ctl("dead-letters", "return", queue, "email", ids["two"], "-y").code == 0
    assert received(broker, queue, "email", 1) == [b"two"]
    # The topic holds the others, as before, and no channel is left behind.
    assert listed(ctl, queue) == [(f"{queue}-dead", None, "one"), (f"{queue}-dead", None, "three")]
    assert (broker.topics()[f"{queue}-dead"]["channels"], broker.topics()[f"{queue}-dead"]["paused"]) == ([], False)
    ids |= {row["body"]: row["id"] for row in ctl("dead-letters", "list", queue, "email").json()["messages"]}
    ran = ctl("dead-letters", "return", queue, "email", ids["two"], ids["one"], "-y")
    assert ran.code == 4
    assert ids["two"] in ran.err
    assert [row["state"] for row in json.loads(ran.out)["results"]] == ["returned"]


def test_the_question_names_all_channels_that_receive_the_messages(ctl: Ctl, broker: Daemon, queue: str) -> None:
    kill(broker, queue, b"one")
    ctl("create", queue, "audit")
    ran = ctl("dead-letters", "return", queue, "email")
    assert ran.code == 2
    assert "These channels receive them: audit, email." in ran.err
    assert len(listed(ctl, queue)) == 1


def test_a_dead_letter_that_a_client_has_does_not_return(ctl: Ctl, broker: Daemon, queue: str) -> None:
    ctl("create", f"{queue}-dead", "inspect")
    kill(broker, queue, b"one")
    letter = ctl("dead-letters", "list", queue, "email").json()["messages"][0]["id"]
    with Client(broker.tcp_address) as client:
        client.sub(f"{queue}-dead", "inspect", rdy_count=1)
        client.read_message()
        assert ctl("dead-letters", "return", queue, "email", "-y").json()["results"] == []
        ran = ctl("dead-letters", "return", queue, "email", letter, "-y")
        assert ran.code == 4
    assert ctl("peek", queue, "email").json()["messages"] == []


def test_dead_letters_of_several_topics_do_not_return_by_mistake(ctl: Ctl, broker: Daemon, queue: str) -> None:
    other = f"{queue}-other"
    ctl("create", other, "sms")
    ctl("limits", other, "sms", "--max-attempts=1", f"--dead-letter-topic={queue}-dead")
    kill(broker, queue, b"one")
    kill(broker, other, b"other", channel="sms")
    ran = ctl("dead-letters", "return", queue, "email", "--yes")
    assert ran.code == 2
    assert f"has dead letters of {other}/sms too" in ran.err
    assert len(listed(ctl, queue)) == 2
    assert len(ctl("dead-letters", "return", queue, "email", "--yes", "--shared").json()["results"]) == 2


def test_a_channel_without_dead_letters_has_none_to_return(ctl: Ctl, topic: str, queue: str) -> None:
    assert ctl("dead-letters", "return", queue, "email").json()["results"] == []
    ctl("create", queue, "plain")
    ran = ctl("dead-letters", "return", queue, "plain")
    assert ran.code == 2
    assert "has no dead-letter topic" in ran.err
    assert ctl("dead-letters", "list", queue, "plain").json()["messages"] == []


def test_each_broker_returns_its_own(both: Ctl, broker: Daemon, second_broker: Daemon, topic: str) -> None:
    both("create", topic, "email")
    both("limits", topic, "email", "--max-attempts=1", f"--dead-letter-topic={topic}-dead")
    kill(broker, topic, b"one")
    kill(second_broker, topic, b"two")
    results = both("dead-letters", "return", topic, "email", "-y").json()["results"]
    assert [row["node"] for row in results] == [address_of(broker), address_of(second_broker)]
    assert received(second_broker, topic, "email", 1) == [b"two"]


@pytest.mark.parametrize("action", ["list", "return"])
def test_nsqd_has_no_dead_letters(go_ctl: Ctl, topic: str, action: str) -> None:
    go_ctl("create", topic, "c")
    assert go_ctl("dead-letters", action, topic, "c").code == 6


@pytest.mark.slow
def test_a_kill_while_dead_letters_return_loses_none(ctl: Ctl, broker: Daemon, queue: str, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(300)]
    kill(broker, queue, *bodies)
    before = broker.topics()[queue]["message_count"]
    arguments = ("dead-letters", "return", queue, "email", "--yes", "-a", address_of(broker))
    with subprocess.Popen([*PROGRAM, *arguments], env=environment(tmp_path), stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: broker.topics()[queue]["message_count"] > before + 10, "some have returned")
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it had time to return all of them"
    assert len(listed(ctl, queue, "-n", "1000")) > 0
    assert ctl("dead-letters", "return", queue, "email", "--yes").code == 0
    assert listed(ctl, queue) == []
    returned = received(broker, queue, "email", broker.topics()[queue]["message_count"] - before)
    assert set(returned) == set(bodies)
    # The one that was between its steps may come twice.
    assert len(returned) <= len(bodies) + 1


def test_a_dead_letter_stays_if_its_topic_refuses_it(ctl: Ctl, broker: Daemon, queue: str) -> None:
    body = b"x" * 100_000
    kill(broker, queue, body, body)
    broker.http("POST", "/topic/quota", topic=queue, bytes="1")

    def is_full() -> bool:
        # A segment may still be under way to the topic, for long on a busy machine: what it takes is published then.
        for _ in range(10):
            time.sleep(0.1)
            if broker.http("POST", "/pub", body, topic=queue).status != 503:
                return False
        return True

    wait_until(is_full, "a topic that refuses messages")
    ran = ctl("dead-letters", "return", queue, "email", "--yes")
    # The broker is unhealthy as long as a topic refuses publishers.
    assert ctl("delete", queue, "--yes").code == 0
    assert ran.code == 1
    # The first refusal ends the command.
    assert [row["state"] for row in json.loads(ran.out)["results"]] == ["failed"]
    assert "STORAGE_FAILED: failed to store in topic" in ran.err
    dead = broker.topics()[f"{queue}-dead"]
    # The channel that it was lent is gone, and both messages are held again, also the one that was rescheduled.
    assert (dead["channels"], dead["depth"]) == ([], 2)


def test_long_and_binary_dead_letters_stay_in_their_topic_whole(ctl: Ctl, broker: Daemon, queue: str) -> None:
    bodies = [b"one", b"two\n", b"\xff\x00", *(LONG + b"%d" % number for number in range(60))]
    kill(broker, queue, *bodies)
    (first, *_) = ctl("dead-letters", "list", queue, "email").json()["messages"]
    assert ctl("dead-letters", "return", queue, "email", first["id"], "-y").code == 0
    (returned,) = received(broker, queue, "email", 1)
    assert received(broker, f"{queue}-dead", "inspect", len(bodies) - 1) == sorted({*bodies} - {returned})


def test_a_paused_topic_and_one_with_very_many_messages_are_left_alone(
    ctl: Ctl, broker: Daemon, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(broker, queue, b"one", b"two")
    dead = f"{queue}-dead"
    assert ctl("pause", dead).code == 0
    ran = ctl("dead-letters", "return", queue, "email", "--yes")
    assert (ran.code, "unpause it first" in ran.err) == (1, True)
    assert ctl("unpause", dead).code == 0
    monkeypatch.setattr("pyqd.client.dead_letters.LENT_MAX", 1)
    with contextlib.closing(Upstream()) as upstream:
        calls = Calls(upstream, f"127.0.0.1:{broker.http_port}")
        rows = list(select_dead_letters(calls, dead, None))
        with pytest.raises(RefusedError, match="create a channel for them first"):
            list(return_dead_letters(calls, dead, None, rows, queue, "x"))
    assert broker.topics()[dead]["channels"] == []


def test_a_channel_that_a_killed_run_has_left_is_taken_back(ctl: Ctl, broker: Daemon, queue: str) -> None:
    kill(broker, queue, b"one", b"two")
    dead = f"{queue}-dead"
    assert ctl("create", dead, "pyqctl").code == 0
    assert ctl("pause", dead).code == 0
    (first, _) = ctl("dead-letters", "list", queue, "email").json()["messages"]
    assert ctl("dead-letters", "return", queue, "email", first["id"], "-y").code == 0
    found = broker.topics()[dead]
    assert (found["channels"], found["depth"], found["paused"]) == ([], 1, False)
