"""DPUB with a due time instead of a delay: an extension of pyqd's."""

from __future__ import annotations

import time

import pytest

from tests.support.nsq import Client, dpub
from tests.support.server import Daemon

pytestmark = pytest.mark.pyqd_only


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.slow
def test_a_message_is_delivered_at_its_due_time_and_not_before(client: Client, timed_topic: str) -> None:
    client.sub(timed_topic, rdy_count=1)
    due_ms = now_ms() + 300
    client.dpub(timed_topic, f"@{due_ms}", b"x")
    assert client.read_message().body == b"x"
    assert now_ms() >= due_ms


@pytest.mark.parametrize("moment", ["@0", "@1", "@1000000000000"])
def test_a_due_time_in_the_past_means_immediate_delivery(client: Client, topic: str, moment: str) -> None:
    client.dpub(topic, moment, b"x")
    client.sub(topic, rdy_count=1)
    assert client.read_message().body == b"x"


def test_a_message_with_a_future_due_time_counts_as_deferred(client: Client, server: Daemon, topic: str) -> None:
    client.sub(topic, rdy_count=1)
    client.dpub(topic, f"@{now_ms() + 3_000_000}", b"x")
    server.wait_for_channel(topic, "c", deferred_count=1, depth=0)


def test_a_due_time_beyond_the_longest_delay_is_refused(client: Client, topic: str) -> None:
    due_ms = now_ms() + 3_700_000
    client.send(dpub(topic, f"@{due_ms}", b"x"))
    text = client.read_frame().data.decode()
    assert text.startswith(f"E_INVALID DPUB due time {due_ms} out of range 0-")


@pytest.mark.parametrize("moment", ["@x", "@-1", "@1.5"])
def test_an_invalid_due_time_is_refused(client: Client, topic: str, moment: str) -> None:
    client.send(dpub(topic, moment, b"x"))
    assert client.read_frame().data.decode() == f"E_INVALID DPUB could not parse due time {moment}"
