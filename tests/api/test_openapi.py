"""pyqd/openapi.json says of each route what the route does: right, parameters, answers and errors."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from pyqd.api.rights import OPEN
from pyqd.broker.broker import Broker
from pyqd.http.messages import HttpError, Request, Response, Route, error_response
from pyqd.http.query import UrlQuery
from pyqd.http.router import Router
from tests.support.routes import routes_of
from tests.support.storage import broker_on, publish

ROOT = Path(__file__).parents[2]
DOCUMENT: dict[str, Any] = json.loads((ROOT / "pyqd" / "openapi.json").read_text())
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
# Values with which a call succeeds; of diagnostics those that end them early.
VALUES = {
    "topic": "orders",
    "channel": "email",
    "to": "earliest",
    "start": "earliest",
    "from": "earliest",
    "time": "1h",
    "bytes": "100",
    "max_bytes": "1000",
    "defer": "0",
    "due": "1",
    "rate": "1",
    "burst": "1",
    "max_attempts": "3",
    "dead_letter_topic": "dead",
    "format": "json",
    "timeout": "1s",
    "limit": "10",
    "state": "ready",
    "body": "text",
    "dry_run": "true",
    "position": "0",
    "wait_ms": "1",
    "body_bytes": "10",
}
OF_CALL = {
    "GET /topic/positions": {"time": "-1h"},
    "GET /topic/log": {"to": "5"},
    "GET /channel/messages": {"after": ""},
    "POST /channel/create": {"channel": "audit"},
    "POST /mpub": {"binary": "false"},
}
BODIES = {"GET /config/{opt}": b"", "PUT /config/{opt}": b"debug"}
WRONG = "!"
PATH_PARAMETER, IN_BRACES = r":(\w+)", r"{\1}"
# Errors that take more than a wrong parameter.
NOT_TRIED = {"INVALID_OPTION", "INVALID_REQUEST", "INVALID_VALUE", "MSG_EMPTY", "POSITION_BEYOND_END"}
# They measure or change the process that runs the test.
PROCESS_CALLS = ("/debug/profile", "/debug/pprof/profile", "/debug/heap", "/debug/pprof/heap")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = broker_on(tmp_path, retention_bytes=1 << 30)
    topic = broker.topic("orders")
    topic.channel("email")
    publish(topic, 2)
    yield broker
    tracemalloc.stop()
    broker.close()


def message_id(broker: Broker) -> str:
    request = Request("GET", "/channel/messages?topic=orders&channel=email", "1.1", {})
    return str(json.loads(answer(broker, request).body)["messages"][0]["id"])


def answer(broker: Broker, request: Request) -> Response:
    """Return the answer of a broker's routes, as the server gives it."""
    request.match = Router(routes_of(broker)).match(request)
    request.complete = True
    assert request.match.route is not None
    try:
        return request.match.route.handler(request)
    except HttpError as error:
        return error_response(error)


def parameters_of(call: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in OPERATIONS[call].get("parameters", ()) if each["in"] == "query"}


def request_of(call: str, values: dict[str, str]) -> Request:
    method, _, path = call.partition(" ")
    request = Request(method, path.replace("{opt}", "log_level") + "?" + urlencode(values), "1.1", {})
    request.body = BODIES.get(call, b"a message")
    return request


def good_values(call: str, broker: Broker) -> dict[str, str]:
    known = VALUES | {"id": message_id(broker)} | OF_CALL.get(call, {})
    values = {name: known.get(name, "") for name in parameters_of(call)}
    values.pop("due", None)
    return values


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema
    if "$ref" in schema:
        found = DOCUMENT
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
    return found


def assert_fits(value: Any, schema: dict[str, Any]) -> None:
    """Assert that a value has the types of a schema, and that its objects have the properties which it names."""
    schema = schema_of(schema)
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if value is None and "null" in names:
        return
    kinds = [types[name] for name in names if name != "null"]
    assert not kinds or isinstance(value, tuple(kinds)), (value, schema)  # type: ignore[arg-type]
    if "properties" in schema:
        assert set(value) <= set(schema["properties"])
        assert set(value) >= set(schema["required"])
        for name, each in value.items():
            assert_fits(each, schema["properties"][name])
    for each in value if "items" in schema else ():
        assert_fits(each, schema["items"])


def test_it_has_every_route_with_its_right(broker: Broker) -> None:
    def right_of(route: Route) -> list[str]:
        return [] if route.right == OPEN else [route.right, route.right]

    routes = {
        f"{each.method} {re.sub(PATH_PARAMETER, IN_BRACES, each.path)}": right_of(each) for each in routes_of(broker)
    }
    said = {
        call: [right for each in operation["security"] for rights in each.values() for right in rights]
        for call, operation in OPERATIONS.items()
    }
    assert said == routes


@pytest.mark.parametrize("call", [call for call in OPERATIONS if not call.endswith(PROCESS_CALLS)])
def test_a_successful_answer_is_as_described(call: str, broker: Broker) -> None:
    response = answer(broker, request_of(call, good_values(call, broker)))
    if call == "POST /restart":
        assert (response.status, json.loads(response.body)["message"].partition(" ")[0]) == (503, "RESTART_REFUSED:")
        return
    described = OPERATIONS[call]["responses"][str(response.status)]
    assert set(dict(response.headers)) - {"X-Content-Type-Options"} <= set(described.get("headers", ()))
    kind = (response.content_type or "").partition(";")[0]
    if not kind:
        assert response.body == b""
        return
    assert kind in described["content"]
    if kind == "application/json":
        assert_fits(json.loads(response.body + b"".join(response.pieces)), described["content"][kind]["schema"])


@pytest.mark.parametrize("call", OPERATIONS)
def test_the_described_parameters_are_those_that_the_route_asks_for(
    call: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request_of(call, values) for values in variations(call, broker)]
    asked: set[str] = set()
    get, flag = UrlQuery.get, UrlQuery.flag

    def noted_get(query: UrlQuery, name: str) -> str | None:
        asked.add(name)
        return get(query, name)

    def noted_flag(query: UrlQuery, name: str) -> bool:
        asked.add(name)
        return flag(query, name)

    monkeypatch.setattr(UrlQuery, "get", noted_get)
    monkeypatch.setattr(UrlQuery, "flag", noted_flag)
    for request in requests:
        answer(broker, request)
    assert asked == set(parameters_of(call))


def variations(call: str, broker: Broker) -> Iterator[dict[str, str]]:
    """Yield parameters of a call: each wrong and each left out in turn, unknown names, both due times, all."""
    good = good_values(call, broker)
    if call.endswith(PROCESS_CALLS):
        good = dict.fromkeys(good, "") | {"rate" if "rate" in good else "lines": WRONG}
    if "max_attempts" in good:
        # Before the channel has limits.
        for name in ("topic", "burst", "max_attempts", "dead_letter_topic"):
            yield {"topic": good["topic"], "channel": good["channel"], name: good[name]}
    for name in good:
        yield {**good, name: WRONG}
        yield {each: value for each, value in good.items() if each != name}
    if "due" in parameters_of(call):
        yield {**good, "due": "1"}
        yield {**{name: value for name, value in good.items() if name != "defer"}, "due": WRONG}
    if "topic" in good:
        yield {**good, "topic": "unknown"}
        yield {**good, **({"channel": "unknown"} if "channel" in good else {})}
        yield {"topic": "orders"}
    if "id" in good:
        yield {**good, "id": "0" * 16}
    yield good


@pytest.mark.parametrize("call", OPERATIONS)
def test_the_described_errors_are_those_of_wrong_requests(call: str, broker: Broker) -> None:
    described = {
        (int(status), code)
        for status, response in OPERATIONS[call]["responses"].items()
        for code in re.findall(r"`([A-Z_]+):?`", schema_of(response)["description"])
    }
    seen: set[tuple[int, str]] = set()
    for values in variations(call, broker):
        response = answer(broker, request_of(call, values))
        if response.status >= 400 and response.content_type == "application/json; charset=utf-8":
            seen.add((response.status, json.loads(response.body)["message"].partition(":")[0]))
    assert seen <= described
    unseen = {(status, code) for status, code in described - seen if status in (400, 404)}
    assert {code for _, code in unseen} <= NOT_TRIED


def test_the_broker_serves_it(broker: Broker) -> None:
    assert json.loads(answer(broker, request_of("GET /openapi.json", {})).body) == DOCUMENT
