"""pyqd/openapi.json: OpenAPI 3.1 of the daemon's HTTP API, from the table of routes and from http_calls.py."""

from __future__ import annotations

import http
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyqd import __version__
from pyqd.api.rights import OPEN
from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from pyqd.http.messages import Route
from scripts.pages.http_calls import CALLS, JSON, SCHEMAS, STRING, TEXT, Answer, Call, Parameter, ref
from tests.support.routes import routes_of

PAGE: Final = Path(__file__).resolve().parents[2] / "pyqd" / "openapi.json"
DESCRIPTION: Final = """\
HTTP API of a pyqd broker. nsqd's calls answer as nsqd does. Without a login all calls are open. With one, each call
needs a token with its right: the list in `security` names it. A token may also be the password of Basic authentication.
"""
# A line for each call.
LINED_DEPTH: Final = 3
# Errors of every call, those of every call but /ping, and those of every call with a query.
QUERIED: Final = "400 INVALID_REQUEST"
ALWAYS: Final = "500 INTERNAL_ERROR 503 TOO_MANY_CONNECTIONS"
GUARDED: Final = (
    "401 UNAUTHORIZED 403 FORBIDDEN CROSS_SITE_REQUEST: UNKNOWN_HOST: TLS_REQUIRED 429 TOO_MANY_FAILED_LOGINS"
)


def codes_by_status(text: str) -> dict[int, list[str]]:
    """Return the codes of each status in a text of statuses, each before its codes."""
    found: dict[int, list[str]] = {}
    status = 0
    for word in text.split():
        if word.isdigit():
            status = int(word)
        elif word not in found.setdefault(status, []):
            found[status].append(word)
    return dict(sorted(found.items()))


def error_of(status: int, codes: list[str]) -> dict[str, Any]:
    """Return the response of a status whose body has one of the codes."""
    pattern = "|".join(f"{code} .*" if code.endswith(":") else code for code in codes)
    schema = {"allOf": [ref("Error"), {"properties": {"message": {"pattern": f"^({pattern})$"}}}]}
    listed = ", ".join(f"`{code}`" for code in codes)
    return {"description": f"{http.HTTPStatus(status).phrase}: {listed}", "content": {JSON: {"schema": schema}}}


COMMON_CODES: Final = codes_by_status(f"{QUERIED} {GUARDED} {ALWAYS}")
COMMON: Final = {status: error_of(status, codes) for status, codes in COMMON_CODES.items()}


def component_of(status: int) -> str:
    return http.HTTPStatus(status).phrase.title().replace(" ", "")


def success_of(answers: tuple[Answer, ...]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": "Done"}
    if headers := {name: {"schema": STRING} for answer in answers for name in answer.headers}:
        response["headers"] = headers
    if content := {answer.content_type: {"schema": answer.schema} for answer in answers if answer.content_type}:
        response["content"] = content
    return response


def errors_of(route: Route, call: Call) -> dict[str, Any]:
    """Return the error responses of a call. A status with no codes but the common ones refers to the components."""
    query = QUERIED if any(not is_in_path(each, route) for each in call.parameters) else ""
    guarded = "" if route.right == OPEN else GUARDED
    found: dict[str, Any] = {}
    for status, codes in codes_by_status(f"{guarded} {ALWAYS} {query} {call.errors}").items():
        response = error_of(status, codes)
        common = COMMON.get(status) == response
        found[str(status)] = {"$ref": f"#/components/responses/{component_of(status)}"} if common else response
    for status in call.fails:
        response = found.setdefault(str(status), {})
        if "$ref" in response:
            response = found[str(status)] = json.loads(json.dumps(COMMON[status]))
        response.setdefault("description", "Refused, with the reason as text")
        response.setdefault("content", {})[TEXT] = {"schema": STRING}
    return dict(sorted(found.items()))


def is_in_path(parameter: Parameter, route: Route) -> bool:
    return f":{parameter.name}" in route.path


def operation_of(route: Route, call: Call) -> dict[str, Any]:
    tag = route.path.split("/")[1].removesuffix(".json")
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": call.summary,
        "tags": [tag],
        # The last entry: without a login, or if anonymous clients have the right.
        "security": [] if route.right == OPEN else [{"bearer": [route.right]}, {"basic": [route.right]}, {}],
    }
    if call.parameters:
        operation["parameters"] = [
            {
                "name": each.name,
                "in": "path" if is_in_path(each, route) else "query",
                "required": each.required,
                "description": each.meaning,
                "schema": each.schema,
            }
            for each in call.parameters
        ]
    kind, meaning = call.body
    if kind:
        operation["requestBody"] = {"description": meaning, "content": {kind: {"schema": STRING}}}
    operation["responses"] = {"200": success_of(call.answers), **errors_of(route, call)}
    return operation


def document(routes: list[Route]) -> dict[str, Any]:
    """Return the description of these routes. Raises: KeyError for a route that http_calls.py does not describe."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = re.sub(r":(\w+)", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = operation_of(route, CALLS[f"{route.method} {path}"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyqd", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {component_of(status): response for status, response in COMMON.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def files() -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory() as directory:
        routes = routes_of(Broker(parse_args([f"--data-path={directory}"])))
    yield PAGE, lines_of(document(routes), LINED_DEPTH) + "\n"


def lines_of(value: Any, depth: int) -> str:
    """Return a value as JSON, with a line for each entry of the objects down to this depth."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines_of(each, depth - 1)}" for key, each in value.items()) + "\n}"
