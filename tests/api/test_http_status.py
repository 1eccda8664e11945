"""GET /stats of the HTTP server alone."""

import pytest

from pyqd.broker.stats import STEPS_PER_PAUSE
from tests.api.conftest import HttpApp
from tests.api.http_app import PRODUCER


def test_stats_of_nothing_has_empty_topics(app: HttpApp) -> None:
    stats = app.get("/stats?format=json").json()
    assert list(stats) == ["version", "health", "start_time", "pyqd_version", "topics", "memory", "producers"]
    assert (stats["version"], stats["health"], stats["topics"]) == ("1.3.0", "OK", [])
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
