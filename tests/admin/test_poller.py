"""Polls of brokers that misbehave: a broker that fails leaves the numbers of the others."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from pyqd.admin.cluster import Cluster
from pyqd.admin.poller import INTERVAL_S, ClusterPoller
from pyqd.admin.upstream import Upstream
from tests.support.http_stub import Answer, HttpStub, http_stub, json_answer, lookup_answers

GOOD = {"topics": [{"topic_name": "t", "depth": 1, "channels": []}]}
ABSENT = json_answer({"message": "NOT_FOUND"}, 404)


def broker(stats: Any) -> AbstractContextManager[HttpStub]:
    """Serve the statistics of a broker, and no other call."""
    return http_stub(lambda path, _query: json_answer(stats) if path == "/stats" else ABSENT)


@contextmanager
def poller_of(*brokers: str, others: tuple[str, ...] = (), **options: Any) -> Iterator[ClusterPoller]:
    """Make a poller of brokers that a lookup daemon knows. others: more lookup daemons. options: of the `Upstream`."""
    upstream = Upstream(**options)
    try:
        with http_stub(lookup_answers({"t": list(brokers)})) as lookupd:
            yield ClusterPoller(Cluster(upstream, (lookupd.address, *others)))
    finally:
        upstream.close()


@pytest.mark.parametrize(
    "stats",
    [
        [],
        {"topics": ["a"]},
        {"topics": [{"topic_name": "t", "channels": [{}]}]},
        {"topics": [{"topic_name": "t", "depth": "x"}]},
        {"topics": [], "memory": {"heap_in_use_bytes": "x"}},
        {"topics": [{"topic_name": "t", "e2e_processing_latency": {"percentiles": [{"quantile": 1, "value": "x"}]}}]},
    ],
)
def test_an_answer_of_another_form_fails_for_its_broker_only(stats: Any) -> None:
    with broker(GOOD) as good, broker(stats) as bad, poller_of(good.address, bad.address) as poller:
        snapshot = poller.poll()
        assert (snapshot.number, snapshot.topics["t"].waiting, list(snapshot.processes)) == (1, 1, [good.address])
        (failure,) = snapshot.failures
        assert bad.address in failure
        assert "the answer is not one of NSQ's daemons" in failure


@pytest.mark.parametrize("durability", [{"disk_free_bytes": "x"}, {"health": 1}, {"damage": []}])
def test_a_durability_of_another_form_is_not_known(durability: Any) -> None:
    def answer(path: str, _query: dict[str, str]) -> Answer:
        return json_answer(GOOD if path == "/stats" else durability)

    with http_stub(answer) as bad, poller_of(bad.address) as poller:
        snapshot = poller.poll()
        assert (snapshot.number, snapshot.durability[bad.address].is_known) == (1, False)


@pytest.mark.parametrize("answer", [{"topics": 1, "producers": 1}, {"producers": ["a"]}, {"producers": {"a": 1}}])
def test_an_answer_of_another_form_fails_for_its_lookup_daemon_only(answer: Any) -> None:
    bad_one = http_stub(lambda *_: json_answer(answer))
    with broker(GOOD) as good, bad_one as bad, poller_of(good.address, others=(bad.address,)) as poller:
        snapshot = poller.poll()
        assert (snapshot.topics["t"].waiting, snapshot.names) == (1, ("t",))
        assert any(failure.startswith(bad.address) for failure in snapshot.failures)


def test_a_broker_that_does_not_answer_leaves_the_interval_of_the_polls() -> None:
    def hang(_path: str, _query: dict[str, str]) -> Answer:
        is_over.wait(10)
        return ABSENT

    is_over = threading.Event()
    with broker(GOOD) as good, http_stub(hang) as hung:
        with poller_of(good.address, hung.address, timeout_s=0.3) as poller:
            for _ in range(2):
                snapshot = poller.poll()
            assert list(snapshot.processes) == [good.address]
            assert poller.interval_s == INTERVAL_S
        is_over.set()


@pytest.mark.parametrize("interval_s", [2.0, 20.0, 60.0])
def test_a_chart_has_no_gaps_however_rare_the_polls_are(interval_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker(GOOD) as good, poller_of(good.address) as poller:
        now_s = 1_700_000_000.0
        monkeypatch.setattr("pyqd.admin.poller.time.time", lambda: now_s)
        for _ in range(20):
            poller.interval_s = interval_s
            poller.poll()
            now_s += max(10.0, interval_s) + 0.7
        values = poller.history.values("depth", ("t",))
        first = next(number for number, value in enumerate(values) if value == 1)
        assert not any(math.isnan(value) for value in values[first:])


def test_sums_without_a_broker_that_misses_a_poll_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = [{"channel_name": "c", "depth": 5}]
    found = {"topics": [{"topic_name": "t", "channels": channels}, {"topic_name": "other", "channels": channels}]}
    answers: list[Answer] = []
    now_s = 1_700_000_000.0
    monkeypatch.setattr("pyqd.admin.poller.time.time", lambda: now_s)
    monkeypatch.setattr("pyqd.admin.poller.GONE_S", 50.0, raising=False)
    with broker(found) as one, http_stub(lambda path, _: answers[0] if path == "/stats" else ABSENT) as two:
        with poller_of(one.address, two.address) as poller:
            there = json_answer({"topics": [{"topic_name": "t", "channels": channels}]})
            # The last one comes after so long a time that the broker is gone.
            for answer, pause_s in ((there, 10.0), (ABSENT, 10.0), (there, 40.0), (ABSENT, 10.0), (ABSENT, 0)):
                answers[:] = [answer]
                poller.poll()
                now_s += pause_s
            values = {key: poller.history.values("depth", key) for key in (("t",), ("t", "c"), ("other", "c"), ())}
        known = {key: [value for value in found if value >= 0] for key, found in values.items()}
    assert known == {("t",): [10, 10, 5], ("t", "c"): [10, 10, 5], ("other", "c"): [5] * 5, (): [15, 15, 10]}
