"""The reference of the HTTP API names every request that the daemon answers, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from tests.support.routes import routes_of as daemons_routes_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("http.md", "space.md")
REQUEST = re.compile(r"\b(GET|POST|PUT|HEAD) (/[a-z0-9_/]*(?:\.json)?(?:\\?<\w+\\?>)?)")
PARAMETER = re.compile(r":\w+$|\\?<\w+\\?>$")


def routes_of(directory: Path) -> set[tuple[str, str]]:
    broker = Broker(parse_args([f"--data-path={directory}"]))
    return {(route.method, PARAMETER.sub("", route.path)) for route in daemons_routes_of(broker)}


def documented() -> set[tuple[str, str]]:
    found = [request for page in PAGES for request in REQUEST.findall((DOCS / page).read_text())]
    return {(method, PARAMETER.sub("", path)) for method, path in found}


def test_every_route_is_in_the_reference(tmp_path: Path) -> None:
    assert routes_of(tmp_path) - documented() == set()


def test_every_request_of_the_reference_has_a_route(tmp_path: Path) -> None:
    assert documented() - routes_of(tmp_path) == set()
