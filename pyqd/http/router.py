"""Router: finds the route of a request, or the answer if no route matches.

A GET route answers HEAD too, as HTTP demands; the connection leaves out the body. nsqd answers HEAD with 405. A route's
path may end in one parameter of one segment, as in `/config/:opt`. A path that differs from a route's only in case, a
doubled slash or a trailing slash is redirected to that route, if the route takes the request's method.

Source: docs/nsq/http-api.md, "Conventions".
"""

import html
import posixpath
from collections.abc import Iterable

from pyqd.http.messages import HTML, HttpError, Match, Request, Response, Route, error_response
from pyqd.http.query import unescape

NOT_FOUND = Match(None, error_response(HttpError(404, "NOT_FOUND")))


class Router:
    """Table of routes with look-up by method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._found: dict[tuple[str, str], Match] = {}
        self._with_argument: dict[tuple[str, str], Route] = {}
        self._path_of_normalized: dict[str, str] = {}
        methods_of: dict[str, set[str]] = {}
        for route in routes:
            head, colon, _ = route.path.partition(":")
            methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
            methods_of.setdefault(head + colon, set()).update(methods)
            for method in methods:
                if colon:
                    self._with_argument[method, head] = route
                else:
                    self._found[method, route.path] = Match(route, logged=route.logged)
                    self._path_of_normalized[normalized(route.path)] = route.path
        # Keyed by path; the path of a route with a parameter ends in ":".
        self._allow_of = {path: ", ".join(sorted({*methods, "OPTIONS"})) for path, methods in methods_of.items()}

    def match(self, request: Request) -> Match:
        found = self._found.get((request.method, request.path))
        return self._search(request) if found is None else found

    def _search(self, request: Request) -> Match:
        if request.method == "OPTIONS" and request.target == "*":
            return Match(None, Response(200, common_headers=False), logged=False)
        path = request.path
        if not path.startswith("/"):
            path = "/" + path.partition("://")[2].partition("/")[2]
        try:
            path = unescape(path)
        except ValueError:
            return NOT_FOUND
        found = self._found.get((request.method, path))
        if found is not None:
            return found
        head, slash, argument = path.rpartition("/")
        head += slash
        route = self._with_argument.get((request.method, head)) if argument else None
        if route is not None:
            return Match(route, argument=argument, logged=route.logged)
        canonical = self._path_of_normalized.get(normalized(path))
        if canonical is not None and (request.method, canonical) in self._found:
            return redirect(request, canonical)
        allow = self._allow_of.get(path) or (self._allow_of.get(head + ":") if argument else None)
        return NOT_FOUND if allow is None else refuse(request.method, allow)


def refuse(method: str, allow: str) -> Match:
    headers = (("Allow", allow),)
    if method == "OPTIONS":
        return Match(None, Response(200, headers=headers, common_headers=False), logged=False)
    return Match(None, error_response(HttpError(405, "METHOD_NOT_ALLOWED"), headers))


def normalized(path: str) -> str:
    """Return the normal form of a path. Paths with the same normal form are redirected to one route."""
    cleaned = posixpath.normpath("/" + path.lstrip("/")).lower()
    return cleaned.rstrip("/") or "/"


def redirect(request: Request, path: str) -> Match:
    """Return a redirection to the route's path with the same query."""
    target = f"{path}?{request.query_text}" if request.query_text else path
    headers = (("Location", target),)
    if request.method not in ("GET", "HEAD"):
        return Match(None, Response(307, headers=headers, common_headers=False), logged=False)
    body = f'<a href="{html.escape(target)}">Moved Permanently</a>.\n\n'
    return Match(None, Response(301, body.encode(errors="replace"), HTML, headers, common_headers=False), logged=False)
