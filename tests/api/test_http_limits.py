"""GET and POST /channel/limits."""

import pytest

from tests.api.conftest import HttpApp

NONE = {
    "rate": 0,
    "burst": 0,
    "max_attempts": 0,
    "dead_letter_topic": None,
    "dead_letter_count": 0,
    "dead_letters_waiting": 0,
    "waiting_for": None,
}


@pytest.fixture
def channel(app: HttpApp, request: pytest.FixtureRequest) -> str:
    """A channel of its own for each test: the part of a query that names it."""
    topic = "t" + str(abs(hash(request.node.name)))
    for target in (f"/topic/create?topic={topic}", f"/channel/create?topic={topic}&channel=c"):
        assert app.post(target).status == 200
    return f"topic={topic}&channel=c"


def names_of(channel: str) -> dict[str, str]:
    return dict(part.split("=") for part in channel.split("&"))


def test_limits_are_shown_changed_and_taken_away(app: HttpApp, channel: str) -> None:
    none = names_of(channel) | NONE
    assert app.get(f"/channel/limits?{channel}").json() == none
    limited = none | {"rate": 2.5, "burst": 2.5}
    assert app.post(f"/channel/limits?{channel}&rate=2.5").json() == limited
    limited |= {"burst": 10}
    assert app.post(f"/channel/limits?{channel}&burst=10").json() == limited
    limited |= {"max_attempts": 3, "dead_letter_topic": "dead"}
    assert app.post(f"/channel/limits?{channel}&max_attempts=3&dead_letter_topic=dead").json() == limited
    limited |= {"rate": 5000, "burst": 5000, "max_attempts": 4}
    assert app.post(f"/channel/limits?{channel}&rate=5000&max_attempts=4").json() == limited
    assert app.get(f"/channel/limits?{channel}").json() == limited
    limited |= {"rate": 0, "burst": 0}
    assert app.post(f"/channel/limits?{channel}&rate=0").json() == limited
    assert app.post(f"/channel/limits?{channel}&max_attempts=0").json() == none


def test_a_burst_too_small_for_the_rate_is_shown_with_its_effective_value(app: HttpApp, channel: str) -> None:
    assert app.post(f"/channel/limits?{channel}&rate=1000&burst=1").json()["burst"] == 10


def test_the_dead_letter_topic_is_made_at_once(app: HttpApp, channel: str) -> None:
    assert app.post(f"/channel/limits?{channel}&max_attempts=3&dead_letter_topic=made_by_limits").status == 200
    (topic,) = app.get("/stats?format=json&topic=made_by_limits").json()["topics"]
    assert topic["depth"] == 0


def test_statistics_show_limits_only_of_channels_that_have_some(app: HttpApp, channel: str) -> None:
    def shown() -> dict[str, object]:
        (topic,) = app.get(f"/stats?format=json&{channel}").json()["topics"]
        return dict(topic["channels"][0])

    assert "limits" not in shown()
    app.post(f"/channel/limits?{channel}&rate=0.5")
    limits = {name: value for name, value in NONE.items() if name != "waiting_for"}
    assert shown()["limits"] == limits | {"rate": 0.5, "burst": 1}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MISSING_ARG_RATE"),
        ("rate=", "INVALID_RATE"),
        ("rate=-1", "INVALID_RATE"),
        ("rate=1e3", "INVALID_RATE"),
        ("rate=nan", "INVALID_RATE"),
        ("rate=1.", "INVALID_RATE"),
        ("rate=1000000000", "INVALID_RATE"),
        ("burst=5", "MISSING_ARG_RATE"),
        ("rate=0&burst=5", "MISSING_ARG_RATE"),
        ("rate=1&burst=x", "INVALID_BURST"),
        ("max_attempts=5", "MISSING_ARG_DEAD_LETTER_TOPIC"),
        ("max_attempts=x&dead_letter_topic=dead", "INVALID_MAX_ATTEMPTS"),
        ("max_attempts=65536&dead_letter_topic=dead", "INVALID_MAX_ATTEMPTS"),
        ("dead_letter_topic=dead", "MISSING_ARG_MAX_ATTEMPTS"),
        ("max_attempts=0&dead_letter_topic=dead", "MISSING_ARG_MAX_ATTEMPTS"),
        ("max_attempts=5&dead_letter_topic=", "INVALID_DEAD_LETTER_TOPIC"),
        ("max_attempts=5&dead_letter_topic=!", "INVALID_DEAD_LETTER_TOPIC"),
        ("max_attempts=5&dead_letter_topic=dead%23ephemeral", "INVALID_DEAD_LETTER_TOPIC"),
    ],
)
def test_impossible_limits_are_refused_and_change_nothing(app: HttpApp, channel: str, query: str, code: str) -> None:
    reply = app.post(f"/channel/limits?{channel}&{query}")
    assert (reply.status, reply.json()["message"]) == (400, code)
    assert app.get(f"/channel/limits?{channel}").json() == names_of(channel) | NONE


def test_a_topic_is_not_its_own_dead_letter_topic(app: HttpApp, channel: str) -> None:
    topic = names_of(channel)["topic"]
    reply = app.post(f"/channel/limits?{channel}&max_attempts=1&dead_letter_topic={topic}")
    assert (reply.status, reply.json()["message"]) == (400, "INVALID_DEAD_LETTER_TOPIC")


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/channel/limits?channel=c&rate=1", 400, "MISSING_ARG_TOPIC"),
        ("/channel/limits?topic=none&channel=c&rate=1", 404, "TOPIC_NOT_FOUND"),
        ("/channel/limits?topic=known&rate=1", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/limits?topic=known&channel=none&rate=1", 404, "CHANNEL_NOT_FOUND"),
    ],
)
def test_the_channel_is_looked_for_first(app: HttpApp, target: str, status: int, code: str) -> None:
    assert app.post("/topic/create?topic=known").status == 200
    for reply in (app.post(target), app.get(target)):
        assert (reply.status, reply.json()["message"]) == (status, code)
