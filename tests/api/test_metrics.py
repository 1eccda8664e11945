"""GET /metrics: the metrics in Prometheus' own format, and no more of them than the limit allows."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.metrics.prometheus_text import (
    CHANNEL_FAMILIES,
    CHANNELS_PER_SLICE,
    LATENCY,
    OTHER,
    TOPIC_FAMILIES,
    SeriesWriter,
)
from pyqd.net.loop_driver import yield_to_loop
from tests.api.conftest import FLAGS, HttpApp
from tests.support.nsq import Client
from tests.support.server import Daemon, pyqd, wait_until
from tests.support.structures import note_latency

Values = dict[tuple[str, str, str], float]


def families_of(text: str) -> dict[str, Any]:
    """Return the families that Prometheus' parser finds, by name; each may come once only."""
    found = list(text_string_to_metric_families(text))
    by_name = {family.name: family for family in found}
    assert len(by_name) == len(found)
    return by_name


def values_of(text: str) -> Values:
    values: Values = {}
    for family in families_of(text).values():
        for sample in family.samples:
            if "quantile" not in sample.labels and "le" not in sample.labels:
                key = (sample.name, sample.labels.get("topic", ""), sample.labels.get("channel", ""))
                if set(sample.labels) <= {"topic", "channel"}:
                    assert key not in values
                    values[key] = sample.value
    return values


def series_count(text: str) -> int:
    return len(re.findall(r"^pyqd_(?:topic|channel)_", text, re.MULTILINE))


def filled(tmp_path: Path, *flags: str) -> Broker:
    """Six topics with two channels each; topic n has n + 1 messages of two bytes."""
    broker = Broker(parse_args([f"--data-path={tmp_path}", *flags]))
    broker.load()
    for number in range(6):
        topic = broker.topic(f"t{number}")
        topic.channel("a")
        topic.channel("b#ephemeral").pause(True)
        for _ in range(number + 1):
            topic.publish_body(b"xy", time.time_ns())
    return broker


@pytest.fixture
def broker_of(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(*flags: str) -> Broker:
        made.append(filled(tmp_path, *flags))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def written(broker: Broker) -> tuple[str, SeriesWriter]:
    writer = SeriesWriter(broker, pause=lambda: None)
    return b"".join(writer.write()).decode(), writer


def test_counters_are_typed_and_named_as_such_and_all_have_help(broker_of: Callable[..., Broker]) -> None:
    text, _ = written(broker_of("--e2e-processing-latency-percentile=0.5"))
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert dict(declared) == {
        **{family.name: family.kind for family in (*TOPIC_FAMILIES, *CHANNEL_FAMILIES)},
        LATENCY: "summary",
    }
    for name, kind in declared:
        assert name.endswith("_total") == (kind == "counter"), name
        assert f"# HELP {name} " in text


def test_topics_beyond_the_limit_are_shown_as_their_sum(broker_of: Callable[..., Broker]) -> None:
    per_topic = len(TOPIC_FAMILIES) + 2 * len(CHANNEL_FAMILIES)
    series_max = 3 * per_topic + len(TOPIC_FAMILIES) + len(CHANNEL_FAMILIES)
    broker = broker_of("--metrics-max-series=0")
    everything = values_of(written(broker)[0])
    broker.options = dataclasses.replace(broker.options, metrics_max_series=series_max)
    text, writer = written(broker)
    values = values_of(text)
    assert (writer.summed_count, writer.series_count) == (3, series_max)
    assert {topic for _, topic, _ in values} == {"t0", "t1", "t2", OTHER}
    for family in (*TOPIC_FAMILIES, *CHANNEL_FAMILIES):
        total = sum(value for (name, *_), value in everything.items() if name == family.name)
        assert sum(value for (name, *_), value in values.items() if name == family.name) == total


@pytest.mark.parametrize("series_max", [100, 174, 180, 193, 200])
def test_a_topic_that_has_series_keeps_them_when_more_topics_come(
    broker_of: Callable[..., Broker], series_max: int
) -> None:
    broker = broker_of(f"--metrics-max-series={series_max}")
    before = {topic for _, topic, _ in values_of(written(broker)[0])}
    broker.topic("a-new-one").channel("a")
    assert before <= {topic for _, topic, _ in values_of(written(broker)[0])}


@pytest.mark.parametrize("series_max", [1, 19, 25, 60, 120])
def test_there_are_never_more_series_than_allowed_but_for_the_sums(
    broker_of: Callable[..., Broker], series_max: int
) -> None:
    text, writer = written(broker_of(f"--metrics-max-series={series_max}"))
    sums = len(TOPIC_FAMILIES) + len(CHANNEL_FAMILIES)
    assert series_count(text) == writer.series_count <= max(series_max, sums)


def test_latencies_are_a_summary_with_the_quantiles_asked_for(broker_of: Callable[..., Broker]) -> None:
    broker = broker_of("--e2e-processing-latency-percentile=0.99,0.5")
    latency = broker.topic("t1").channel("a").latency
    assert latency is not None
    for _ in range(3):
        note_latency(latency, time.time_ns() - 2 * 10**9)
    text, _ = written(broker)
    samples = families_of(text)[LATENCY].samples
    of_channel = {s.labels["quantile"]: s.value for s in samples if s.labels["topic"] == "t1" and s.value == s.value}
    assert {quantile: round(value) for quantile, value in of_channel.items()} == {"0.99": 2, "0.5": 2}
    idle = [s.value for s in samples if s.labels["topic"] == "t2"]
    assert len(idle) == 4
    assert all(math.isnan(value) for value in idle)


def test_a_topic_may_go_while_it_is_looked_at(broker_of: Callable[..., Broker]) -> None:
    broker = broker_of()
    names = iter(["t0", "t3", "t5"])

    def delete_one() -> None:
        name = next(names, None)
        if name is not None:
            broker.delete_topic(name)

    for topic in range(70):
        broker.topic("t0").channel(f"c{topic}")
    text = b"".join(SeriesWriter(broker, pause=delete_one).write()).decode()
    assert {"t1", "t2", "t4"} <= {topic for _, topic, _ in values_of(text)}


def test_topics_without_channels_are_written_with_pauses(broker_of: Callable[..., Broker]) -> None:
    broker = broker_of("--metrics-max-series=0")
    for number in range(4 * CHANNELS_PER_SLICE):
        broker.topic(f"alone{number}#ephemeral")
    pauses: list[None] = []
    b"".join(SeriesWriter(broker, pause=lambda: pauses.append(None)).write())
    assert len(pauses) > 4


def test_the_reply_is_prometheus_text(app: HttpApp) -> None:
    app.post("/pub?topic=orders", b"x")
    reply = app.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "X-Nsq-Content-Type" not in reply.headers
    values = values_of(reply.body.decode())
    assert values["pyqd_topic_messages_total", "orders", ""] == 1
    assert values["pyqd_healthy", "", ""] == 1
    assert values["process_start_time_seconds", "", ""] > 1_700_000_000
    assert values["pyqd_metrics_series", "", ""] == series_count(reply.body.decode())
    assert not any(name.endswith("_created") for name, *_ in values)


def test_other_methods_are_refused(app: HttpApp) -> None:
    reply = app.post("/metrics")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.slow
def test_scrapes_at_once_each_get_all(app: HttpApp) -> None:
    for number in range(100):
        app.post(f"/pub?topic=many{number}%23ephemeral", b"x")
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(app.get("/metrics").body.decode())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(texts) == 4
    assert len({series_count(text) for text in texts}) == 1


@pytest.mark.slow
def test_too_many_topics_are_reported_once_in_the_log_and_in_a_metric(tmp_path: Path) -> None:
    small = HttpApp(tmp_path, flags=(*FLAGS, "--metrics-max-series=30"))
    try:
        for number in range(4):
            small.post(f"/pub?topic=t{number}", b"x")
        for _ in range(2):
            values = values_of(small.get("/metrics").body.decode())
            assert values["pyqd_metrics_topics_summed", "", ""] == 3
            assert values["pyqd_topic_messages_total", OTHER, ""] == 3
    finally:
        assert small.stop() == 0
    assert small.log_text().count("topics are shown as a sum: --metrics-max-series=30 is reached") == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_has_nothing_to_say(app: HttpApp) -> None:
    body = app.get("/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")


@pytest.mark.slow
def test_metrics_show_the_loop_the_syncs_and_the_clients(tmp_path: Path) -> None:
    daemon = Daemon(pyqd(), tmp_path, ["-sync-timeout=100ms"])
    started_s = time.monotonic()
    daemon.start()

    def scraped() -> Values:
        return values_of(daemon.http("GET", "/metrics").body.decode())

    try:
        with Client(daemon.tcp_address) as client:
            client.pub("orders", b"x")
            wait_until(lambda: scraped()["pyqd_sync_duration_seconds_count", "", ""] > 0, "a sync is timed")
            wait_until(lambda: scraped()["pyqd_loop_lag_seconds_count", "", ""] > 1, "the loop is looked at")
            values = scraped()
        assert values["pyqd_loop_lag_seconds_count", "", ""] <= (time.monotonic() - started_s) * 4 + 1
        assert values["pyqd_tcp_connections", "", ""] == 1
        assert values["pyqd_http_connections", "", ""] >= 1
        assert values["pyqd_disk_free_bytes", "", ""] > values["pyqd_disk_free_min_bytes", "", ""] > 0
    finally:
        daemon.stop()


def test_long_work_yields_to_sockets() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    read: list[bytes] = []
    watcher = gevent.get_hub().loop.io(ours.fileno(), 1)
    watcher.start(lambda: read.append(ours.recv(1)))
    theirs.send(b"x")
    pieces = 0
    while not read and pieces < 50:
        yield_to_loop()
        pieces += 1
    watcher.stop()
    watcher.close()
    ours.close()
    theirs.close()
    assert pieces <= 3
