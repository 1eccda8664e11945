"""GET and POST /topic/retention and /topic/quota."""

import pytest

from tests.api.conftest import HttpApp

KIB = 1024


def test_retention_is_shown_changed_and_given_back_to_the_flags(app: HttpApp) -> None:
    assert app.post("/topic/create?topic=r").status == 200
    none = {"topic": "r", "bytes": 0, "time": "0s", "own_bytes": None, "own_time": None}
    assert app.get("/topic/retention?topic=r").json() == none
    kept = none | {"bytes": 1000, "own_bytes": 1000, "time": "1h30m0s", "own_time": "1h30m0s"}
    assert app.post("/topic/retention?topic=r&bytes=1000&time=90m").json() == kept
    assert app.get("/topic/retention?topic=r").json() == kept
    assert app.post("/topic/retention?topic=r&bytes=0").json() == kept | {"bytes": 0, "own_bytes": 0}
    assert app.post("/topic/retention?topic=r&bytes=default&time=default").json() == none


@pytest.mark.slow
def test_a_quota_refuses_publishing_until_it_is_raised(app: HttpApp) -> None:
    assert app.post("/topic/create?topic=q").status == 200
    shown = {"topic": "q", "bytes": 256 * KIB, "own_bytes": 1, "used": 64 * KIB, "refused": None}
    assert app.post("/topic/quota?topic=q&bytes=1").json() == shown
    accepted = 0
    while app.post("/pub?topic=q", bytes(1000)).status == 200:
        accepted += 1
        assert accepted < 1000
    shown = app.get("/topic/quota?topic=q").json()
    assert shown["used"] == 256 * KIB
    assert shown["refused"] == "the topic's limit of 262144 bytes is reached"
    reply = app.get("/ping")
    assert (reply.status, reply.body) == (500, f"NOK - topic q: {shown['refused']}".encode())
    assert app.post("/topic/quota?topic=q&bytes=default").json()["refused"] is None
    assert app.get("/ping").status == 200
    assert app.post("/pub?topic=q", bytes(1000)).status == 200


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/topic/retention?bytes=1", 400, "MISSING_ARG_TOPIC"),
        ("/topic/retention?topic=!&bytes=1", 400, "INVALID_TOPIC"),
        ("/topic/retention?topic=none&bytes=1", 404, "TOPIC_NOT_FOUND"),
        ("/topic/retention?topic=bad", 400, "MISSING_ARG_BYTES"),
        ("/topic/retention?topic=bad&bytes=-1", 400, "INVALID_BYTES"),
        ("/topic/retention?topic=bad&bytes=", 400, "INVALID_BYTES"),
        ("/topic/retention?topic=bad&time=1", 400, "INVALID_TIME"),
        ("/topic/retention?topic=bad&time=-1h", 400, "INVALID_TIME"),
        ("/topic/quota?topic=bad", 400, "MISSING_ARG_BYTES"),
        ("/topic/quota?topic=bad&bytes=1k", 400, "INVALID_BYTES"),
        ("/topic/quota?topic=none&bytes=1", 404, "TOPIC_NOT_FOUND"),
    ],
)
def test_what_cannot_be_is_refused(app: HttpApp, target: str, status: int, code: str) -> None:
    assert app.post("/topic/create?topic=bad").status == 200
    reply = app.post(target)
    assert (reply.status, reply.json()["message"]) == (status, code)
