"""GET /info and /stats."""

import re

import pytest

from pyqd.broker.stats import STEPS_PER_PAUSE
from tests.api.conftest import HttpApp
from tests.api.http_app import PRODUCER

MEMORY = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]


def test_info_shows_the_addresses_of_the_daemon(app: HttpApp) -> None:
    info = app.get("/info").json()
    assert info.pop("start_time") > 1_700_000_000
    assert list(info.items()) == [
        ("version", "1.3.0"),
        ("broadcast_address", "127.0.0.1"),
        ("hostname", "host1"),
        ("http_port", app.port),
        ("tcp_port", 4150),
        ("max_heartbeat_interval", 60_000_000_000),
        ("max_output_buffer_size", 65536),
        ("max_output_buffer_timeout", 30_000_000_000),
        ("max_deflate_level", 6),
        ("topology_zone", ""),
        ("topology_region", ""),
    ]


def test_stats_of_nothing_has_empty_topics(app: HttpApp) -> None:
    stats = app.get("/stats?format=json").json()
    assert list(stats) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (stats["version"], stats["health"], stats["topics"]) == ("1.3.0", "OK", [])
    assert list(stats["memory"]) == MEMORY
    assert stats["memory"]["heap_in_use_bytes"] > 1_000_000


def test_producers_show_the_topic_asked_for(app: HttpApp) -> None:
    app.post("/pub?topic=orders", b"x")
    app.post("/pub?topic=third", b"x")
    (any_topic,) = app.get("/stats?format=json").json()["producers"]
    assert any_topic == {**PRODUCER, "pub_counts": [{"topic": "other", "count": 1}]}
    assert list(any_topic) == list(PRODUCER)
    (orders,) = app.get("/stats?format=json&topic=orders").json()["producers"]
    assert orders["pub_counts"] == [{"topic": "orders", "count": 6}]
    (third,) = app.get("/stats?format=json&topic=third").json()["producers"]
    assert "pub_counts" not in third


def test_an_unknown_topic_has_null_for_topics_and_producers(app: HttpApp) -> None:
    stats = app.get("/stats?format=json&topic=nothing").json()
    assert (stats["topics"], stats["producers"]) == (None, None)


def test_clients_and_memory_are_left_out_when_turned_off(app: HttpApp) -> None:
    for off in ("false", "0"):
        stats = app.get(f"/stats?format=json&include_clients={off}&include_mem={off}").json()
        assert list(stats) == ["version", "health", "start_time", "topics", "producers"]
        assert stats["producers"] is None
    for on in ("true", "1", "no", ""):
        stats = app.get(f"/stats?format=json&include_clients={on}&include_mem={on}").json()
        assert "memory" in stats
        assert len(stats["producers"]) == 1


@pytest.mark.slow
def test_many_topics_come_sorted_and_whole(app: HttpApp) -> None:
    names = sorted(f"many{number}#ephemeral" for number in range(200))
    for name in names:
        app.post(f"/pub?topic={name.replace('#', '%23')}", b"x")
    found = [topic["topic_name"] for topic in app.get("/stats?format=json").json()["topics"]]
    assert [name for name in found if name.startswith("many")] == names
    assert found == sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("count", [STEPS_PER_PAUSE, STEPS_PER_PAUSE + 1, 3 * STEPS_PER_PAUSE])
def test_many_channels_come_sorted_and_whole(app: HttpApp, count: int) -> None:
    names = [f"c{number:03}" for number in range(count)]
    app.post("/topic/create?topic=a")
    app.post("/topic/create?topic=wide")
    for name in names:
        app.post(f"/channel/create?topic=wide&channel={name}")
    for path in ("/stats?format=json", "/stats?format=json&topic=wide"):
        *_, wide = app.get(path).json()["topics"]
        assert list(wide)[:3] == ["topic_name", "channels", "depth"]
        assert [channel["channel_name"] for channel in wide["channels"]] == names


def test_any_other_format_is_text_for_people(app: HttpApp) -> None:
    app.post("/pub?topic=orders", b"x")
    reply = app.get("/stats?topic=orders&format=JSON")
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    text = reply.body.decode()
    assert re.match(
        r"nsqd v1\.3\.0 \(built w/python[\d.]+\)\nstart_time \S+\nuptime \S+s\n\nHealth: OK\n\nMemory:\n", text
    )
    assert "\n   gc_pause_usec_100        \t0\n" in text
    assert re.search(
        r"\n\nTopics:\n   \[orders         \] depth: \d     be-depth: 0     msgs: \d        e2e%: \n"
        r"\nProducers:\n   \[V2 prodhost:54952 ua/1  \] msgs: 6        topics: orders=6 connected: \S+s\n$",
        text,
    )


def test_text_of_nothing_says_none(app: HttpApp) -> None:
    text = app.get("/stats?topic=nothing&include_mem=0").body.decode()
    assert text.endswith("\nHealth: OK\n\nTopics: None\n\nProducers: None\n")
