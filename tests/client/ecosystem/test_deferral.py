"""Due times behind the broker's limit."""

from __future__ import annotations

import pytest

from pyqd.client import Consumer, Producer
from pyqd.client.ecosystem import deferral
from pyqd.client.ecosystem.deferral import DeferringProducer, limit_in, now_ms, requeue_delay_s
from tests.support.server import Daemon

HOUR_MS = 3_600_000


def address(daemon: Daemon) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def test_the_limit_of_a_refused_delay_is_a_duration() -> None:
    assert limit_in("E_INVALID DPUB timeout 3600001 out of range 0-3600000") == 3_600_000 - deferral.SLACK_MS


def test_the_limit_of_a_refused_due_time_is_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "now_ms", lambda: 1_000_000)
    assert limit_in("E_INVALID DPUB due time 9000000 out of range 0-1060000") == 60_000 - deferral.SLACK_MS


def test_other_refusals_have_no_limit() -> None:
    assert limit_in("E_BAD_MESSAGE DPUB message too big 1048577 > 1048576") is None


def test_a_limit_below_the_slack_is_no_delay() -> None:
    assert limit_in("E_INVALID DPUB timeout 2 out of range 0-1") == 0


def test_a_received_message_that_is_not_due_is_requeued_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "now_ms", lambda: 1_000_000)
    assert requeue_delay_s(1_000_250) == 0.25
    assert requeue_delay_s(1_000_000 + 2 * HOUR_MS) == 2 * HOUR_MS / 1000
    assert [requeue_delay_s(due_ms) for due_ms in (None, 1_000_000, 999_999, 0)] == [None] * 4


@pytest.mark.flags("-max-req-timeout=5s")
def test_a_message_that_is_due_behind_the_limit_is_published_with_the_longest_delay(daemon: Daemon) -> None:
    with Producer(address(daemon)) as producer:
        deferring = DeferringProducer(producer)
        for number in range(3):
            deferring.publish("later", b"%d" % number, now_ms() + 24 * HOUR_MS)
        deferring.publish("later", b"now")
        with Consumer("later", "all", nsqd=address(daemon)) as consumer:
            (first,) = consumer.fetch()
            assert first.body == b"now"
            first.finish()
            daemon.wait_for_channel("later", "all", deferred_count=3, depth=0)


@pytest.mark.flags("-max-msg-size=100")
def test_other_refusals_are_raised(daemon: Daemon) -> None:
    from pyqd.client import TooBigError

    with Producer(address(daemon)) as producer, pytest.raises(TooBigError):
        DeferringProducer(producer).publish("later", b"x" * 101, now_ms() + 1000)


def test_a_past_due_time_means_at_once(daemon: Daemon) -> None:
    with Producer(address(daemon)) as producer, Consumer("late", "all", nsqd=address(daemon)) as consumer:
        DeferringProducer(producer).publish("late", b"past", now_ms() - 1000)
        (message,) = consumer.fetch()
        assert message.body == b"past"
        message.finish()
