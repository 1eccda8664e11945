"""Every series, key and column shows its own number: in a broker with a different value for each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd.api.stats_text import stats_text
from pyqd.broker.stats import Selection, head_stats
from pyqd.metrics import statsd
from pyqd.metrics.prometheus import ConnectionCounts, Metrics
from pyqd.metrics.prometheus_text import CHANNEL_FAMILIES, TOPIC_FAMILIES, SeriesWriter
from tests.support.distinct import CHANNEL_VALUES, TOPIC_VALUES, distinct_broker
from tests.support.snapshot import snapshot

COUNTERS_ONLY = Selection(include_clients=False, include_mem=False)
TOTALS = ("messages", "message_bytes", "finished", "requeued", "timed_out", "dead_letters", "damage", "damage_lost")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    broker = distinct_broker(tmp_path_factory.mktemp("distinct"))
    yield broker
    broker.close()


def series_of(broker: Any) -> dict[str, float]:
    text = b"".join(SeriesWriter(broker, pause=lambda: None).write()).decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}


def named(kind: str, values: dict[str, int]) -> dict[str, float]:
    return {f"pyqd_{kind}_{key}{'_total' if key in TOTALS else ''}": float(value) for key, value in values.items()}


def test_every_series_of_topics_and_channels(broker: Any) -> None:
    expected = {
        **named("topic", TOPIC_VALUES),
        **named("channel", CHANNEL_VALUES),
        "pyqd_topic_paused": 1,
        "pyqd_topic_refusing": 0,
        "pyqd_channel_paused": 1,
    }
    assert set(expected) == {family.name for family in (*TOPIC_FAMILIES, *CHANNEL_FAMILIES)}
    assert series_of(broker) == expected


def test_a_topic_that_refuses_is_not_one_that_is_paused(broker: Any) -> None:
    topic = broker.topics["orders"]
    topic.pause(False)
    topic.quota.refusal = "the quota is full"
    try:
        values = series_of(broker)
        assert (values["pyqd_topic_refusing"], values["pyqd_topic_paused"]) == (1, 0)
        assert values["pyqd_topic_depth"] == 0
    finally:
        topic.quota.refusal = None


def test_every_key_of_the_statistics(tmp_path: Path) -> None:
    broker = distinct_broker(tmp_path)
    (topic,) = snapshot(broker, 1, list, COUNTERS_ONLY)["topics"]
    (channel,) = topic.pop("channels")
    latency = {"count": 0, "percentiles": None}
    values = CHANNEL_VALUES
    assert topic == {
        "topic_name": "orders",
        "depth": TOPIC_VALUES["depth"],
        "backend_depth": TOPIC_VALUES["backend_depth"],
        "message_count": TOPIC_VALUES["messages"],
        "message_bytes": TOPIC_VALUES["message_bytes"],
        "paused": True,
        "e2e_processing_latency": latency,
        "damage": {"count": TOPIC_VALUES["damage"], "records_lost": TOPIC_VALUES["damage_lost"], "bytes": 1000},
    }
    assert channel == {
        "channel_name": "email",
        "depth": values["depth"],
        "backend_depth": values["backend_depth"],
        "in_flight_count": values["in_flight"],
        "deferred_count": values["deferred"],
        "message_count": values["messages"],
        "global_msg_count": sum(values[name] for name in ("dead_letters", "timed_out", "deferred", "finished"))
        + values["in_flight"]
        + values["dead_letters_waiting"],
        "requeue_count": values["requeued"],
        "timeout_count": values["timed_out"],
        "client_count": values["clients"],
        "clients": None,
        "paused": True,
        "e2e_processing_latency": latency,
        "limits": {
            "rate": 0,
            "burst": 0,
            "max_attempts": 1,
            "dead_letter_topic": "dead",
            "dead_letter_count": values["dead_letters"],
            "dead_letters_waiting": values["dead_letters_waiting"],
        },
    }
    broker.close()


def test_every_column_of_the_page_for_people(tmp_path: Path) -> None:
    broker = distinct_broker(tmp_path)
    topics = snapshot(broker, 1, list, COUNTERS_ONLY)["topics"]
    text = "".join(stats_text(head_stats(broker, 1), 10**9, topics, None, []))
    topic, channel = (re.sub(r" +", " ", line) for line in text.splitlines() if line.lstrip().startswith("*P"))
    assert topic == "*P [orders ] depth: 12 be-depth: 9 msgs: 120 e2e%: "
    assert channel == " *P [email ] depth: 40 be-depth: 31 inflt: 27 def: 11 re-q: 25 timeout: 4 msgs: 108 e2e%: "
    broker.close()


def test_every_key_of_statsd(tmp_path: Path) -> None:
    broker = distinct_broker(tmp_path)
    (topic,) = snapshot(broker, 1, list, COUNTERS_ONLY)["topics"]
    channel = {
        "message_count": "messages",
        "depth": "depth",
        "backend_depth": "backend_depth",
        "in_flight_count": "in_flight",
        "deferred_count": "deferred",
        "requeue_count": "requeued",
        "timeout_count": "timed_out",
        "clients": "clients",
    }
    assert dict(statsd.topic_entries(topic, False)) == {
        "topic.orders.message_count": TOPIC_VALUES["messages"],
        "topic.orders.message_bytes": TOPIC_VALUES["message_bytes"],
        "topic.orders.depth": TOPIC_VALUES["depth"],
        "topic.orders.backend_depth": TOPIC_VALUES["backend_depth"],
        **{f"topic.orders.channel.email.{key}": CHANNEL_VALUES[name] for key, name in channel.items()},
    }
    broker.close()


def test_dead_letters_are_shown_after_the_limit_was_taken_away(tmp_path: Path) -> None:
    broker = distinct_broker(tmp_path)
    channel = broker.topics["orders"].channels_by_name["email"]
    channel.set_limits(type(channel.limits)())
    (topic,) = snapshot(broker, 1, list, COUNTERS_ONLY)["topics"]
    assert topic["channels"][0]["limits"]["dead_letter_count"] == CHANNEL_VALUES["dead_letters"]
    broker.close()


def test_every_series_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = distinct_broker(tmp_path)
    broker.topic("other").channel("one")
    broker.topic("third").channel("two")
    broker.topic("third").channel("three")
    metrics = Metrics(broker, lambda: ConnectionCounts(*range(101, 106)))
    broker.damage.add(200, 300, 400)
    broker.write_failure_count, broker.sync_failure_count = 501, 502
    broker.short_of_room.update("abcde")
    monkeypatch.setattr(broker, "health", lambda: "NOK")
    metrics.series_count, metrics.summed_count = 601, 602
    broker.reserve.floor_bytes = 701
    trace = {"events": 1101, "lost": 1102, "overwritten": 1103, "bytes": 1104, "oldest": 1, "next": 1206}
    monkeypatch.setattr(broker.tracing, "stats", lambda: trace)
    monkeypatch.setattr("pyqd.hot.net.buffers.total", lambda: 801)
    monkeypatch.setattr(broker.files, "free_bytes", lambda _path: 901)
    monkeypatch.setattr("pyqd.metrics.prometheus.unmanaged_count", lambda: 1)
    for name, value in {"mapped_count": 1002, "file_count": 1003, "mapped_max": 1005, "remapped_count": 1006}.items():
        monkeypatch.setattr(f"pyqd.hot.diskqueue.arena.{name}", lambda value=value: value)
    expected = {
        "pyqd_build_info": 1,
        "pyqd_healthy": 0,
        "pyqd_topics": 3,
        "pyqd_channels": 4,
        "pyqd_tcp_connections": 101,
        "pyqd_http_connections": 102,
        "pyqd_tcp_refused_total": 103,
        "pyqd_http_refused_total": 104,
        "pyqd_connections_shed_total": 105,
        "pyqd_buffer_bytes": 801,
        "pyqd_files": 1004,
        "pyqd_mapped_files": 1003,
        "pyqd_mapped_files_max": 1005,
        "pyqd_files_mapped_again_total": 1006,
        "pyqd_machine_limit_reached": 0,
        "pyqd_disk_free_bytes": 901,
        "pyqd_disk_free_min_bytes": 701,
        "pyqd_topics_refusing": 5,
        "pyqd_damage_total": 203,
        "pyqd_damage_lost_total": 305,
        "pyqd_damage_bytes_total": 1400,
        "pyqd_write_failures_total": 501,
        "pyqd_sync_failures_total": 502,
        "pyqd_trace_events_total": 1101,
        "pyqd_trace_events_lost_total": 1102,
        "pyqd_trace_events_overwritten_total": 1103,
        "pyqd_trace_bytes": 1104,
        "pyqd_trace_kept_events": 1205,
        "pyqd_metrics_series": 601,
        "pyqd_metrics_topics_summed": 602,
    }
    found = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        if family.name.startswith("pyqd_") and family.type != "histogram"
        for sample in family.samples
    }
    assert found == expected
    broker.close()
